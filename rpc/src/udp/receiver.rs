//! The receiving half of the `udp` transport.
//!
//! One recvmmsg fetches a batch of datagrams into buffers of this value. Packets are read in place until the batch is released.
//!
//! *Invariants*: at most [`DATAGRAMS_MAX`] datagrams are fetched at once. A datagram that cannot be opened is dropped and counted.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::rc::Rc;

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg};

use crate::packet::HEADER_BYTES;
use crate::transport::{PacketReceiver, Refused};
use crate::udp::datagram::{Format, Refusal};
use crate::udp::stride;

/// Datagrams received at once.
const DATAGRAMS_MAX: usize = 32;
/// Packets of a batch, beyond which no further datagram is opened for it: what the prefetch passes
/// keep in flight.
const BATCH_MAX: usize = 64;

/// The receiving end of one worker; see `udp.rs`.
pub struct UdpReceiver {
    socket: Rc<UdpSocket>,
    format: Format,
    bytes: Vec<u8>,
    headers: MultiHeaders<SockaddrStorage>,
    /// Bytes of the datagrams that arrived.
    datagrams: Vec<usize>,
    /// How many of them were opened.
    opened: usize,
    /// Where the packets of the batch lie.
    packets: Vec<Range<usize>>,
    datagram_bytes: usize,
    refused: Refused,
}

impl UdpReceiver {
    pub(super) fn new(socket: Rc<UdpSocket>, format: Format, datagram_bytes: usize) -> Self {
        let packets_max = BATCH_MAX + datagram_bytes / HEADER_BYTES;
        Self {
            socket,
            format,
            bytes: vec![0; DATAGRAMS_MAX * stride(datagram_bytes)],
            headers: MultiHeaders::preallocate(DATAGRAMS_MAX, None),
            datagrams: Vec::with_capacity(DATAGRAMS_MAX),
            opened: 0,
            packets: Vec::with_capacity(packets_max),
            datagram_bytes,
            refused: Refused::default(),
        }
    }

    /// Receives datagrams; none if the socket has none. An error of the socket is ignored, as no caller could react.
    fn receive(&mut self) {
        let Self { bytes, headers, datagrams, datagram_bytes, .. } = self;
        self.opened = 0;
        datagrams.clear();
        let mut slots = bytes.chunks_mut(stride(*datagram_bytes));
        let mut slices: [[IoSliceMut<'_>; 1]; DATAGRAMS_MAX] = std::array::from_fn(|_| {
            [IoSliceMut::new(slots.next().map_or(&mut [], |slot| &mut slot[..*datagram_bytes]))]
        });
        let flags = MsgFlags::MSG_DONTWAIT;
        if let Ok(arrived) =
            recvmmsg(self.socket.as_raw_fd(), headers, slices.iter_mut(), flags, None)
        {
            datagrams.extend(arrived.map(|datagram| datagram.bytes));
        }
    }

    /// Opens one datagram and adds its packets to the batch.
    fn open(&mut self, index: usize) {
        let start = index * stride(self.datagram_bytes);
        let datagram = &mut self.bytes[start..][..self.datagrams[index]];
        let mut left = match self.format.open(datagram) {
            Ok(left) => left,
            Err(refusal) => return self.count(refusal),
        };
        loop {
            match Format::next_packet(datagram, &mut left) {
                // Too short ones would be more than there is room for.
                Ok(Some(packet)) if packet.len() < HEADER_BYTES => {
                    return self.count(Refusal::Foreign);
                }
                Ok(Some(packet)) => {
                    self.packets.push(start + packet.start..start + packet.end);
                }
                Ok(None) => return,
                Err(refusal) => return self.count(refusal),
            }
        }
    }

    fn count(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Foreign => self.refused.foreign += 1,
            Refusal::Unauthentic => self.refused.unauthentic += 1,
        }
    }
}

impl PacketReceiver for UdpReceiver {
    fn poll(&mut self) -> usize {
        if !self.has_packets() {
            self.receive();
        }
        while self.packets.len() < BATCH_MAX && self.has_packets() {
            self.opened += 1;
            self.open(self.opened - 1);
        }
        self.packets.len()
    }

    #[inline(always)]
    fn packet(&self, index: usize) -> &[u8] {
        &self.bytes[self.packets[index].clone()]
    }

    fn release(&mut self) {
        self.packets.clear();
    }

    /// What waits in the socket its descriptor tells.
    fn has_packets(&self) -> bool {
        self.opened < self.datagrams.len()
    }

    fn refused(&self) -> Refused {
        self.refused
    }
}

impl AsFd for UdpReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
