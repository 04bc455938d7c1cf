//! The sending half of the `udp` transport.
//!
//! Packets are collected by destination into datagrams, which leave with one sendmmsg at the doorbell.
//!
//! *Invariant*: a datagram that the system does not take is lost and counted; the endpoint sends its requests again.

use std::io::IoSlice;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::rc::Rc;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg};

use crate::transport::PacketSender;
use crate::udp::datagram::Format;
use crate::udp::{Paths, stride};

/// Datagrams of one doorbell; more are sent at once.
const DATAGRAMS_MAX: usize = 32;
/// A loss is answered after this at the earliest: threads that share a core may not run for as long.
const RETRANSMIT_FLOOR_NS: u64 = 2_000_000;

/// A datagram that is being filled.
#[derive(Clone, Copy)]
struct Datagram {
    used: usize,
    packets: u64,
}

/// The sending end of one worker; see `udp.rs`.
pub struct UdpSender {
    socket: Rc<UdpSocket>,
    format: Format,
    /// By node.
    addresses: Vec<Option<SockaddrStorage>>,
    paths: Paths,
    /// By node: which datagram of the batch takes its packets, if any.
    filling: Vec<Option<usize>>,
    /// The datagrams of the batch.
    datagrams: Vec<Datagram>,
    /// Where they go.
    destinations: Vec<Option<SockaddrStorage>>,
    bytes: Vec<u8>,
    headers: MultiHeaders<SockaddrStorage>,
    datagram_bytes: usize,
    packet_bytes_max: usize,
    wants_checksum: bool,
    dropped: u64,
}

impl UdpSender {
    pub(super) fn new(
        socket: Rc<UdpSocket>,
        format: Format,
        (addresses, paths): (&[Option<SocketAddr>], Paths),
        (datagram_bytes, packet_bytes_max): (usize, usize),
        wants_checksum: bool,
    ) -> Self {
        Self {
            socket,
            format,
            addresses: addresses.iter().map(|address| address.map(Into::into)).collect(),
            paths,
            filling: vec![None; addresses.len()],
            datagrams: Vec::with_capacity(DATAGRAMS_MAX),
            destinations: Vec::with_capacity(DATAGRAMS_MAX),
            bytes: vec![0; DATAGRAMS_MAX * stride(datagram_bytes)],
            headers: MultiHeaders::preallocate(DATAGRAMS_MAX, None),
            datagram_bytes,
            packet_bytes_max,
            wants_checksum,
            dropped: 0,
        }
    }

    #[inline]
    fn datagram(bytes: &mut [u8], index: usize, datagram_bytes: usize) -> &mut [u8] {
        &mut bytes[index * stride(datagram_bytes)..][..datagram_bytes]
    }

    /// Begins a datagram with `packet`, which fits.
    fn begin(&mut self, destination: u16, packet: &[u8]) {
        if self.datagrams.len() == DATAGRAMS_MAX {
            self.ring_doorbell();
        }
        let index = self.datagrams.len();
        let datagram = Self::datagram(&mut self.bytes, index, self.datagram_bytes);
        let begin = self.format.begin(datagram);
        let used = self.format.append(datagram, begin, packet);
        let used = used.expect("a packet is not larger than the MTU");
        self.datagrams.push(Datagram { used, packets: 1 });
        // Without an address the system does not take it.
        self.destinations.push(self.addresses[usize::from(destination)]);
        self.filling[usize::from(destination)] = Some(index);
    }

    /// Sends the datagrams, whose bytes are complete; those that the system does not take are lost.
    fn send(&mut self) {
        let Self { datagrams, destinations, bytes, headers, .. } = self;
        let count = datagrams.len();
        let mut slices = [[IoSlice::new(&[])]; DATAGRAMS_MAX];
        let stride = stride(self.datagram_bytes);
        for ((slice, datagram), bytes) in
            slices.iter_mut().zip(&*datagrams).zip(bytes.chunks(stride))
        {
            *slice = [IoSlice::new(&bytes[..datagram.used])];
        }
        let mut next = 0;
        while next < count {
            let sent = sendmmsg(
                self.socket.as_raw_fd(),
                headers,
                &slices[next..count],
                &destinations[next..],
                [],
                MsgFlags::MSG_DONTWAIT,
            );
            match sent.map(Iterator::count) {
                Ok(sent) if sent > 0 => next += sent,
                Err(Errno::EINTR) => {}
                // The buffers are full, and would be for the others.
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM) => {
                    self.dropped += datagrams[next..].iter().map(|lost| lost.packets).sum::<u64>();
                    return;
                }
                // This one has no way: others may have.
                Ok(_) | Err(_) => {
                    self.dropped += datagrams[next].packets;
                    next += 1;
                }
            }
        }
    }
}

impl PacketSender for UdpSender {
    fn mtu(&self) -> usize {
        self.packet_bytes_max
    }

    fn wants_checksum(&self) -> bool {
        self.wants_checksum
    }

    fn retransmit_floor_ns(&self) -> u64 {
        RETRANSMIT_FLOOR_NS
    }

    /// Sockets and switches drop packets that they have no room for.
    fn loses_by_congestion(&self) -> bool {
        true
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.datagrams.len() == DATAGRAMS_MAX
    }

    #[inline]
    fn queue(&mut self, destination: u16, packet: &[u8]) {
        if let Some(index) = self.filling[usize::from(destination)] {
            let datagram = Self::datagram(&mut self.bytes, index, self.datagram_bytes);
            let filling = &mut self.datagrams[index];
            if let Some(used) = self.format.append(datagram, filling.used, packet) {
                *filling = Datagram { used, packets: filling.packets + 1 };
                return;
            }
        }
        self.begin(destination, packet);
    }

    fn ring_doorbell(&mut self) {
        if self.datagrams.is_empty() {
            return;
        }
        for (index, filled) in self.datagrams.iter_mut().enumerate() {
            let datagram = Self::datagram(&mut self.bytes, index, self.datagram_bytes);
            filled.used = self.format.finish(datagram, filled.used);
        }
        self.send();
        self.datagrams.clear();
        self.destinations.clear();
        self.filling.fill(None);
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }

    fn reconnect(&mut self, node: u16, told: &str) -> Result<(), String> {
        let peer = self.paths.told(node, told).map_err(|error| error.to_string())?;
        self.addresses[usize::from(node)] = Some(peer.into());
        Ok(())
    }
}
