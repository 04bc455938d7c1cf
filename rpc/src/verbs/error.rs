//! Why an RDMA device cannot be used; every message says what to do.
//!
//! *Invariants*: the errors are those of opening and connecting a queue pair, and of reaching a process that has come
//! back. None stops a worker that runs: a packet that cannot be sent is lost and counted. A setting is named by its
//! value, a device by the name that the system gives.
//!
//! *Not here*: the choice of device, port and GID (`preflight.rs`), and pairs that fail later (`restart.rs`).

use std::io;

/// A queue pair could not be opened or connected.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// This host has no RDMA device, or no driver for it in user space.
    #[error(
        "no RDMA device on this host: `rdma link` lists those that the kernel has. If it lists one, install the package \
         with its driver (Debian: ibverbs-providers). If not, load the driver of the card, or try Soft-RoCE \
         (`modprobe rdma_rxe; rdma link add rx0 type rxe netdev eth0`), or use the transport udp"
    )]
    NoDevice,
    /// There are others.
    #[error("no RDMA device is called {device:?}: this host has {}", present.join(", "))]
    UnknownDevice {
        /// The setting.
        device: String,
        /// Those that are there.
        present: Vec<String>,
    },
    /// The system does not let this user open it.
    #[error(
        "no permission to use the RDMA device {device}: let this user read and write /dev/infiniband/uverbs*"
    )]
    NotPermitted {
        /// The device.
        device: String,
    },
    /// It has fewer ports.
    #[error("the RDMA device {device} has no port {port}: use 1 to {ports}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The setting.
        port: u8,
        /// How many there are.
        ports: u8,
    },
    /// The port has no link.
    #[error(
        "port {port} of the RDMA device {device} is {state}: check its cable and switch, and `ip link set ... up` for the \
         network interface that belongs to it (`rdma link` names it)"
    )]
    PortDown {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What it is instead of active.
        state: String,
    },
    /// The port has no address as wanted.
    #[error(
        "port {port} of the RDMA device {device} has no {wanted}; it has {present}. Give its network interface an address \
         (`ip address add`), or choose another GID"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The setting in words.
        wanted: String,
        /// The GIDs that are there.
        present: String,
    },
    /// The setting is none.
    #[error("{text:?} is no choice of a GID: use ipv4, ipv6, or an index from 0 to 255")]
    UnknownGid {
        /// The setting.
        text: String,
    },
    /// The port has a smaller MTU.
    #[error(
        "port {port} of the RDMA device {device} has an MTU of {active} bytes and the setting is {wanted}: set the MTU to \
         {active} on every node, or that of the network interface to more (1104 bytes for 1024, 2128 for 2048, 4176 for \
         4096)"
    )]
    MtuTooSmall {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its MTU.
        active: usize,
        /// The setting, or the least that is supported.
        wanted: usize,
    },
    /// The limit of locked memory is too low.
    #[error(
        "cannot lock {bytes} bytes of memory for the RDMA device {device}, the limit is {limit}: raise it (`ulimit -l`, \
         LimitMEMLOCK= of a systemd unit, memlock in /etc/security/limits.conf)"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// What was to be locked at once.
        bytes: usize,
        /// The limit.
        limit: String,
    },
    /// The device refuses for another reason.
    #[error("the RDMA device {device} refuses {what}: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What was requested.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Devices cannot be listed.
    #[error("cannot list RDMA devices: {source}; is the kernel module ib_uverbs loaded?")]
    Unlisted {
        /// What the system said.
        source: io::Error,
    },
    /// What a peer said of itself is not an address.
    #[error("node {node} says that it is at {text:?}, and {reason}: does it run the same version?")]
    NotAnAddress {
        /// The peer.
        node: usize,
        /// What it said.
        text: String,
        /// What is wrong.
        reason: String,
    },
    /// Not all peers are named.
    #[error("{found} nodes have said where they are, instead of {nodes}")]
    WrongCount {
        /// How many should have.
        nodes: usize,
        /// How many have.
        found: usize,
    },
    /// Peers of different families do not reach each other.
    #[error(
        "node {node} has an RDMA address of {family}, this one of {own}: choose a GID of the same family on every node"
    )]
    MixedFamilies {
        /// The peer.
        node: usize,
        /// Its family.
        family: &'static str,
        /// The own one.
        own: &'static str,
    },
    /// A peer's datagrams have another size.
    #[error(
        "node {node} exchanges {theirs} bytes at once over RDMA, this one {own}: set the same MTU on every node, at most {}",
        theirs.min(own)
    )]
    MtuDiffers {
        /// The peer.
        node: usize,
        /// Its MTU.
        theirs: usize,
        /// The own one.
        own: usize,
    },
    /// There is no way to a peer.
    #[error(
        "no way from the RDMA device {device} to node {node} at {address} ({source}): check `ip route`, and `ping` it"
    )]
    Unreachable {
        /// The own device.
        device: String,
        /// The peer.
        node: usize,
        /// Where it says that it is.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}
