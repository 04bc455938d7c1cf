//! The `verbs` transport: peer threads of nodes over InfiniBand or RoCE, by datagrams of RDMA devices.
//!
//! ```text
//! open ─ address() ──► every peer's connect() ─ split ─ sender: a chain of SENDs per doorbell
//!             │                                  └───── receiver: a ring of RECVs
//!             └ of a process that has come back ──► every sender's reconnect()
//! ```
//! Every worker has a queue pair for unreliable datagrams; its number is the device's choice, so peers tell each other
//! where they are before they begin. Datagrams may be lost, and nothing waits for their acknowledgement: the endpoint
//! sends again what is not answered. A pair that fails is reset, which loses what was under way.
//!
//! Packets are neither encrypted nor authenticated: RDMA networks are trusted, as those who can send to a queue pair
//! are. The Q_Key that is derived from a cluster's key keeps clusters apart that share a network by mistake; it is no
//! secret. The device checks that packets arrive unchanged.
//!
//! *Source*: FaSST sections 3.2 (datagrams, Doorbell batching), 4.2 (batches, RECVs) and 4.4 (how many RECVs); HERD
//! sections 2.2.2 (inlining, selective signaling) and 3.3 (datagrams scale).
//!
//! *Invariants*: whatever the network does, a datagram is delivered or dropped; after [`VerbsPort::connect`] nothing
//! is an error that stops a worker. The only unsafe code is in `device.rs` and its `device/slots.rs`.
//!
//! *Not here*: what tells the peers where they are; shared RECV queues; InfiniBand was never tried, only Soft-RoCE.

mod address;
mod device;
mod error;
mod one_sided;
mod preflight;
mod receiver;
mod restart;
mod sender;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::str::FromStr;

use crate::transport::Port;
use crate::udp::ClusterKey;
use crate::verbs::address::{Address, Link};
use crate::verbs::device::{Capacity, GRH_BYTES, Memory, QueuePair, Ring};
use crate::verbs::preflight::Chosen;
use crate::verbs::restart::Restart;
use crate::window::CREDITS;

pub use error::VerbsError;
pub use one_sided::{OneSided, OneSidedPair, ReadError, RemoteRegion, SharedRegion};
pub use receiver::VerbsReceiver;
pub use sender::VerbsSender;

/// SENDs that may be under way; a doorbell posts no more.
const SENDS: usize = 256;
/// One SEND in this many reports its completion.
const SIGNAL_EVERY: usize = 32;
/// RECVs: at least, and at most. Between them as many as packets can be under way to a worker.
const RECEIVES_MIN: usize = 256;
const RECEIVES_MAX: usize = 4_096;
/// Packets up to this many bytes are copied into their work requests: the first size that the device allows.
const INLINE_BYTES: [usize; 3] = [256, 64, 0];
/// The Q_Key without a cluster key. Those with the highest bit set are the system's.
const OPEN_KEY: u32 = 0x474e_0001;
/// Bytes of a cache line; what a packet is read as begins at one.
const LINE_BYTES: usize = 64;

/// Where a worker's queue pair is to be.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// Own node.
    pub node: u16,
    /// Own worker, whose peers are those of the same number.
    pub worker: u16,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// The device, as `rdma link` names it before the slash; without it the first that is fit.
    pub device: Option<String>,
    /// The port of the device, from 1; without it the first that is fit.
    pub port: Option<u8>,
    /// Which of the port's addresses; without it the one that most likely reaches all others.
    pub gid: Option<GidChoice>,
    /// Bytes of the largest packet, the same for every node; without it the port's MTU.
    pub mtu: Option<usize>,
    /// The secret of the cluster; only a Q_Key is made of it.
    pub key: Option<ClusterKey>,
}

/// Which of a port's GIDs is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidChoice {
    /// One that holds an IPv4 address.
    Ipv4,
    /// One that holds an IPv6 address.
    Ipv6,
    /// That at this index of the port's table.
    Index(u8),
}

impl FromStr for GidChoice {
    type Err = VerbsError;

    fn from_str(text: &str) -> Result<Self, VerbsError> {
        match text {
            "ipv4" => Ok(Self::Ipv4),
            "ipv6" => Ok(Self::Ipv6),
            index => match index.parse() {
                Ok(index) => Ok(Self::Index(index)),
                Err(_) => Err(VerbsError::UnknownGid { text: text.to_owned() }),
            },
        }
    }
}

impl fmt::Display for GidChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipv4 => formatter.write_str("GID of an IPv4 address"),
            Self::Ipv6 => formatter.write_str("GID of an IPv6 address"),
            Self::Index(index) => write!(formatter, "GID of index {index}"),
        }
    }
}

/// A worker's open queue pair, before it is on its thread.
#[derive(Debug)]
pub struct VerbsPort {
    pair: QueuePair,
    sends: Memory,
    receives: Memory,
    nodes: usize,
    node: usize,
    paths: Paths,
}

/// How a worker finds its peers.
#[derive(Debug)]
struct Paths {
    chosen: Chosen,
    own: Address,
    worker: usize,
    key: u32,
}

impl VerbsPort {
    /// Opens the queue pair of a worker, after a look whether everything is there that it needs.
    ///
    /// # Errors
    /// [`VerbsError`], which says what to do.
    pub fn open(options: &VerbsOptions) -> Result<Self, VerbsError> {
        let chosen = Chosen::find(options)?;
        let entries_max = usize::try_from(chosen.device.attributes.max_qp_wr).unwrap_or(0);
        let receives = (2 * CREDITS * options.nodes).next_power_of_two();
        let receives = receives.clamp(RECEIVES_MIN, RECEIVES_MAX).min(entries_max);
        let sends = SENDS.min(entries_max);
        let pair = new_pair(&chosen, sends, receives)?;
        let (sends, receives) =
            (sends * stride(0, chosen.mtu), receives * receive_stride(chosen.mtu));
        let (sends, receives) = (chosen.memory(sends, false)?, chosen.memory(receives, false)?);
        let key = options.key.as_ref().map_or(OPEN_KEY, queue_key);
        restart::start(&pair, chosen.port, key).map_err(chosen.refused("to start a queue pair"))?;
        let (nodes, node) = (options.nodes, usize::from(options.node));
        let own = chosen.address(&pair);
        let paths = Paths { chosen, own, worker: usize::from(options.worker), key };
        Ok(Self { pair, sends, receives, nodes, node, paths })
    }

    /// Where it is. The addresses of a node's workers, in the order of their numbers and a line each, are what the node tells others.
    #[must_use]
    pub fn address(&self) -> String {
        self.paths.own.to_string()
    }

    /// Learns where the peer workers are, of what their nodes tell, by node; none of nodes that are not there, and the own entry is not
    /// looked at.
    ///
    /// # Errors
    /// [`VerbsError`], which says what to do.
    pub fn connect(&mut self, told: &[Option<String>]) -> Result<(), VerbsError> {
        if told.len() != self.nodes {
            return Err(VerbsError::WrongCount { nodes: self.nodes, found: told.len() });
        }
        for (node, told) in (0..).zip(told) {
            if let Some(told) = told.as_ref().filter(|_| usize::from(node) != self.node) {
                self.paths.find(&self.pair, node, told)?;
            }
        }
        Ok(())
    }
}

impl Paths {
    /// Finds the peer worker of a node, of what the node tells. Datagrams for the node go there from now on.
    fn find(&self, pair: &QueuePair, node: u16, told: &str) -> Result<(), VerbsError> {
        let of_worker = told.lines().nth(self.worker).unwrap_or("");
        let peer = peer_address(usize::from(node), of_worker, &self.own)?;
        let way = self.chosen.way_to(peer.gid, peer.lid);
        let handle = pair.peer(way, peer.pair, self.key).map_err(|source| {
            let (device, address) = (self.chosen.name.clone(), peer.gid.to_string());
            VerbsError::Unreachable { device, node: usize::from(node), address, source }
        })?;
        pair.set_peer(usize::from(node), handle);
        Ok(())
    }
}

impl Port for VerbsPort {
    type Sender = VerbsSender;
    type Receiver = VerbsReceiver;

    /// Completions lie in memory.
    const POLL_IS_SYSTEM_CALL: bool = false;

    fn split(self) -> (VerbsSender, VerbsReceiver) {
        let Self { pair, sends, receives, nodes, paths, .. } = self;
        let (mtu, chosen) = (paths.chosen.mtu, &paths.chosen);
        let pair = Rc::new(pair);
        let sends = Ring::of_sends(&pair, sends, stride(0, mtu), SIGNAL_EVERY);
        let receives = Ring::of_receives(&pair, receives, (receive_stride(mtu), receive_offset()));
        // Switches of Ethernet drop what they have no room for, unless told otherwise; InfiniBand's do not.
        let may_overrun = receives.room() < (2 * CREDITS * nodes) as u64;
        let loses_by_congestion = chosen.link == Link::Ethernet || may_overrun;
        let restart = Restart::new(pair, chosen.name.clone(), chosen.port, paths.key);
        let restart = Rc::new(restart);
        let sender = VerbsSender::new(sends, Rc::clone(&restart), paths, loses_by_congestion);
        (sender, VerbsReceiver::new(receives, restart, mtu))
    }
}

impl AsFd for VerbsPort {
    /// Readable when a datagram has come since [`PacketReceiver::has_packets`](crate::PacketReceiver::has_packets) was
    /// asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pair.as_fd()
    }
}

/// Opens a pair with as much inlining as the device allows.
fn new_pair(chosen: &Chosen, sends: usize, receives: usize) -> Result<QueuePair, VerbsError> {
    let mut last = None;
    for inline_bytes in INLINE_BYTES {
        let capacity = Capacity { sends, receives, inline_bytes };
        match QueuePair::new(&chosen.device, true, capacity) {
            Ok(pair) => return Ok(pair),
            Err(error) => last = Some(error),
        }
    }
    let last = last.unwrap_or_else(|| std::io::ErrorKind::Unsupported.into());
    Err(chosen.refused("a queue pair")(last))
}

/// What a peer says of itself, if datagrams can reach it.
fn peer_address(node: usize, text: &str, own: &Address) -> Result<Address, VerbsError> {
    let peer: Address = text.parse().map_err(|reason| {
        let text = text.to_owned();
        VerbsError::NotAnAddress { node, text, reason }
    })?;
    if peer.family() != own.family() {
        let (family, own) = (peer.family(), own.family());
        return Err(VerbsError::MixedFamilies { node, family, own });
    }
    if peer.mtu != own.mtu {
        return Err(VerbsError::MtuDiffers { node, theirs: peer.mtu, own: own.mtu });
    }
    Ok(peer)
}

/// The Q_Key of a cluster.
fn queue_key(key: &ClusterKey) -> u32 {
    let derived = key.derived(b"gannet queue pairs 1");
    let bytes: [u8; 4] = derived.first_chunk().copied().expect("a key is longer");
    u32::from_le_bytes(bytes) & (u32::MAX >> 1)
}

/// Bytes from one slot to the next: no two begin in the same set of a cache.
fn stride(offset: usize, mtu: usize) -> usize {
    ((offset + mtu).div_ceil(LINE_BYTES) | 1) * LINE_BYTES
}

/// Where the packet begins in the slot of a RECV: behind the header, at a line's beginning.
fn receive_offset() -> usize {
    GRH_BYTES.next_multiple_of(LINE_BYTES)
}

fn receive_stride(mtu: usize) -> usize {
    stride(receive_offset(), mtu)
}
