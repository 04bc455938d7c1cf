//! The `udp` transport: peer threads of nodes on any Linux network, over IPv4 or IPv6.
//!
//! Every worker has a socket: worker i of a node is at the node's address with i added to its port. A
//! doorbell is one sendmmsg of the datagrams of all destinations, each with as many packets as fit;
//! a poll is one recvmmsg. Nothing is allocated and no lock is taken on the way.
//!
//! With a [`ClusterKey`] each datagram is encrypted and vouched for; without one, which is for networks
//! that are trusted, packets have a checksum.
//!
//! *Invariants*: whatever the network or a stranger does, a datagram is delivered or dropped and
//! counted; after [`UdpPort::open`] nothing is an error.
//!
//! *Not here*: congestion: what an endpoint has under way is bounded by its credits (`peer.rs`).

mod cluster_key;
mod datagram;
mod receiver;
mod seal;
mod sender;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use nix::sys::socket::{setsockopt, sockopt};

use crate::transport::Port;
use crate::udp::datagram::Format;
use crate::udp::seal::Seal;

pub use cluster_key::{ClusterKey, ClusterKeyError};
pub use receiver::UdpReceiver;
pub use sender::UdpSender;

/// Smallest and largest MTU that can be set: the least of IPv6, and the loopback's, whose headers fit
/// 16 bits of length.
const MTU_MIN: usize = 1_280;
const MTU_MAX: usize = 65_535;
/// The MTU without a setting: Ethernet's, or what costs a loopback no speed.
const MTU_ETHERNET: usize = 1_500;
const MTU_LOOPBACK: usize = 16 << 10;
/// Bytes of an IP and a UDP header.
const HEADERS_V4: usize = 28;
const HEADERS_V6: usize = 48;
/// Bytes that a socket may hold in each direction, if the system allows it.
const SOCKET_BYTES: usize = 8 << 20;

/// Where a worker is, and its peers.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// Own node.
    pub node: u16,
    /// Own worker.
    pub worker: u16,
    /// Address of worker 0 of each node, the own one included; all IPv4 or all IPv6. None in place of a node that may come later, and
    /// tells its address then.
    pub addresses: Vec<Option<SocketAddr>>,
    /// MTU of the path between any two nodes in bytes, headers included, as `ip link` shows
    /// them; the same for every node. Without it 1,500, or more if the own address is a loopback one.
    pub mtu: Option<usize>,
    /// The secret of the cluster; none on a network that only the cluster uses.
    pub key: Option<ClusterKey>,
}

/// A worker's socket could not be opened; every message says what to change.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// Another program, or another node, is there.
    #[error(
        "{address} is in use: stop the other program there, or give node {node} another port \
         (worker i of a node uses its port + i)"
    )]
    PortInUse {
        /// Where the worker was to be.
        address: SocketAddr,
        /// Own node.
        node: u16,
    },
    /// The address belongs to no interface of this host.
    #[error(
        "{address} is no address of this host: give node {node} one that `ip address` shows here"
    )]
    NotOfThisHost {
        /// Where the worker was to be.
        address: SocketAddr,
        /// Own node.
        node: u16,
    },
    /// There is no route to a peer.
    #[error(
        "no route from {own} to node {node} at {address} ({source}): check its address and `ip route`"
    )]
    Unreachable {
        /// Own address.
        own: SocketAddr,
        /// The peer.
        node: u16,
        /// Its address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The setting is out of range.
    #[error(
        "an MTU of {mtu} is not supported: use {MTU_MIN} to {MTU_MAX}, the same for every node"
    )]
    Mtu {
        /// The setting.
        mtu: usize,
    },
    /// The path to a peer has a smaller MTU than the setting says.
    #[error(
        "the path to node {node} at {address} has an MTU of {path} bytes and the setting is {mtu}: set \
         it to at most {path} on every node"
    )]
    PathTooNarrow {
        /// The peer.
        node: u16,
        /// Its address.
        address: SocketAddr,
        /// The path's MTU.
        path: usize,
        /// The setting.
        mtu: usize,
    },
    /// IPv4 and IPv6 are mixed.
    #[error(
        "node {node} has the address {address}, of another family than this node's {own}: use one family"
    )]
    MixedFamilies {
        /// The node.
        node: u16,
        /// Its address.
        address: SocketAddr,
        /// That of this node.
        own: SocketAddr,
    },
    /// The worker's port would be above 65,535.
    #[error(
        "worker {worker} of {address} would have a port above 65535: use a lower port or fewer workers"
    )]
    PortTooHigh {
        /// Address of worker 0.
        address: SocketAddr,
        /// The worker.
        worker: u16,
    },
    /// The address is a placeholder.
    #[error(
        "{address} names no host and port: give node {node} those at which all others reach it"
    )]
    Placeholder {
        /// The node.
        node: u16,
        /// Its address.
        address: SocketAddr,
    },
    /// A peer tells something else than an address.
    #[error("node {node} tells {told:?}, which is no address: start the same release on all nodes")]
    NoAddressTold {
        /// The peer.
        node: u16,
        /// What it tells.
        told: String,
    },
    /// The node has no address.
    #[error("node {node} has no address: {nodes} are given, for nodes from 0")]
    NoAddress {
        /// Own node.
        node: u16,
        /// Addresses given.
        nodes: usize,
    },
    /// The system refuses for another reason.
    #[error("cannot open a socket at {address}: {source}")]
    System {
        /// Where the worker was to be.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A worker's open socket, before it is on its thread.
#[derive(Debug)]
pub struct UdpPort {
    socket: UdpSocket,
    /// Of the peer workers, by node.
    addresses: Vec<Option<SocketAddr>>,
    paths: Paths,
    datagram_bytes: usize,
    key: Option<ClusterKey>,
}

impl UdpPort {
    /// Opens the socket of a worker and checks the paths to its peers, who need not be there yet.
    ///
    /// # Errors
    /// [`UdpError`], which says what to change.
    pub fn open(options: &UdpOptions) -> Result<Self, UdpError> {
        let node = options.node;
        let nodes = options.addresses.len();
        let own = options.addresses.get(usize::from(node)).copied().flatten();
        let own = of_worker(options.worker, node, own.ok_or(UdpError::NoAddress { node, nodes })?)?;
        let mtu = match options.mtu {
            Some(mtu) if (MTU_MIN..=MTU_MAX).contains(&mtu) => mtu,
            Some(mtu) => return Err(UdpError::Mtu { mtu }),
            None if own.ip().is_loopback() => MTU_LOOPBACK,
            None => MTU_ETHERNET,
        };
        let paths = Paths { node, worker: options.worker, own, mtu };
        let peer = |(peer, address): (u16, &Option<SocketAddr>)| {
            address.map(|address| paths.peer(peer, address)).transpose()
        };
        let addresses = (0..).zip(&options.addresses).map(peer).collect::<Result<_, _>>()?;
        let socket = UdpSocket::bind(own).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => UdpError::PortInUse { address: own, node },
            io::ErrorKind::AddrNotAvailable => UdpError::NotOfThisHost { address: own, node },
            _ => UdpError::System { address: own, source },
        })?;
        let refused = |source| UdpError::System { address: own, source };
        socket.set_nonblocking(true).map_err(refused)?;
        grow_buffers(&socket);
        let headers = if own.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let datagram_bytes = mtu - headers;
        Ok(Self { socket, addresses, paths, datagram_bytes, key: options.key.clone() })
    }
}

impl UdpPort {
    /// Finds peers where they tell to be, by node. Of those that tell nothing the address is as before.
    ///
    /// # Errors
    /// [`UdpError`], which says what to change.
    pub fn connect(&mut self, told: &[Option<String>]) -> Result<(), UdpError> {
        for ((node, told), address) in (0..).zip(told).zip(&mut self.addresses) {
            if let Some(told) = told {
                *address = Some(self.paths.told(node, told)?);
            }
        }
        Ok(())
    }
}

impl Port for UdpPort {
    type Sender = UdpSender;
    type Receiver = UdpReceiver;

    const POLL_IS_SYSTEM_CALL: bool = true;

    /// # Panics
    /// If the system gives no random bytes, of which a key needs some.
    fn split(self) -> (UdpSender, UdpReceiver) {
        let socket = Rc::new(self.socket);
        let format = || {
            let seal = |key| Seal::new(key).expect("the system gives random bytes");
            Format::new(self.key.as_ref().map(seal))
        };
        let packet_bytes_max = Format::packet_bytes_max(self.key.is_some(), self.datagram_bytes);
        let receiver = UdpReceiver::new(Rc::clone(&socket), format(), self.datagram_bytes);
        let sizes = (self.datagram_bytes, packet_bytes_max);
        let wants_checksum = self.key.is_none();
        let peers = (&self.addresses[..], self.paths);
        let sender = UdpSender::new(socket, format(), peers, sizes, wants_checksum);
        (sender, receiver)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The paths of a worker to its peers.
#[derive(Clone, Copy, Debug)]
struct Paths {
    node: u16,
    worker: u16,
    /// Of this worker.
    own: SocketAddr,
    mtu: usize,
}

impl Paths {
    /// Where the peer worker of a node is that tells where its worker 0 is.
    fn told(&self, node: u16, told: &str) -> Result<SocketAddr, UdpError> {
        let address = told.parse();
        self.peer(
            node,
            address.map_err(|_| UdpError::NoAddressTold { node, told: told.to_owned() })?,
        )
    }

    /// Where the peer worker of a node is, if there is a path that suffices.
    fn peer(&self, node: u16, address: SocketAddr) -> Result<SocketAddr, UdpError> {
        let own = self.own;
        let peer = of_worker(self.worker, node, address)?;
        if peer.is_ipv4() != own.is_ipv4() {
            return Err(UdpError::MixedFamilies { node, address, own });
        }
        if node != self.node {
            check_path(own, node, peer, self.mtu)?;
        }
        Ok(peer)
    }
}

/// Where a worker of a node is, whose worker 0 is at this address.
fn of_worker(worker: u16, node: u16, address: SocketAddr) -> Result<SocketAddr, UdpError> {
    if address.ip().is_unspecified() || address.port() == 0 {
        return Err(UdpError::Placeholder { node, address });
    }
    let port = address.port().checked_add(worker);
    let port = port.ok_or(UdpError::PortTooHigh { address, worker })?;
    Ok(SocketAddr::new(address.ip(), port))
}

/// Whether there is a route to a peer whose MTU suffices.
fn check_path(own: SocketAddr, node: u16, address: SocketAddr, mtu: usize) -> Result<(), UdpError> {
    let any: IpAddr = match own {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let unreachable = |source| UdpError::Unreachable { own, node, address, source };
    let probe = UdpSocket::bind((any, 0)).map_err(unreachable)?;
    probe.connect(address).map_err(unreachable)?;
    // Linux answers this for IPv6 sockets as well. Where it does not, the kernel fragments.
    let path = nix::sys::socket::getsockopt(&probe, sockopt::IpMtu);
    match path.map(usize::try_from) {
        Ok(Ok(path)) if path < mtu => Err(UdpError::PathTooNarrow { node, address, path, mtu }),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes the socket's buffers as large as the system allows: with the privilege for it, or without.
fn grow_buffers(socket: &UdpSocket) {
    let forced = setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BYTES)
        .and_then(|()| setsockopt(socket, sockopt::SndBufForce, &SOCKET_BYTES));
    if forced.is_err() {
        // What is beyond the system's limit is cut off; less costs packets, not correctness.
        let _ = setsockopt(socket, sockopt::RcvBuf, &SOCKET_BYTES);
        let _ = setsockopt(socket, sockopt::SndBuf, &SOCKET_BYTES);
    }
}

/// Distance of two datagrams in a buffer: no two begin in the same set of a cache.
fn stride(datagram_bytes: usize) -> usize {
    (datagram_bytes.div_ceil(64) | 1) * 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_must_carry_the_mtu() {
        for own in ["127.0.0.1:1", "[::1]:1"] {
            let own: SocketAddr = own.parse().unwrap();
            assert!(check_path(own, 1, own, MTU_MAX).is_ok());
            let error = check_path(own, 1, own, 100_000).unwrap_err();
            assert!(matches!(error, UdpError::PathTooNarrow { path: ..100_000, .. }), "{error}");
        }
    }

    #[test]
    fn datagrams_begin_in_different_sets() {
        for bytes in [1_232, 1_472, MTU_LOOPBACK - HEADERS_V4, MTU_MAX - HEADERS_V6] {
            assert!(stride(bytes) >= bytes && stride(bytes) / 64 % 2 == 1);
        }
    }
}
