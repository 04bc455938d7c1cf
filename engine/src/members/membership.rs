//! Membership: which node of which cluster a process is to be, and why it could not become one.
//!
//! *Invariants*: a setting that all nodes must share says so. A lease has 5 ms at least, the name of a zone 64 bytes at
//! most. Without a key the network is trusted. An error says what to do.
//!
//! *Source*: `docs/operations.md`, "A cluster of processes".
//!
//! *Not here*: what the members do, in the files beside this one; the terms that members must agree on, in `terms.rs`,
//! which `join` makes of a membership.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use gannet_manager::DirectoryError;
use gannet_rpc::ClusterKey;
use serde::{Deserialize, Serialize};

use crate::configuration::ChangeError;
use crate::learning::COPY_BYTES_PER_SECOND;

/// The transport of packets between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// Datagrams, between any hosts.
    #[default]
    Udp,
    /// Rings in memory that processes of one host share. Packets are not sealed: no other process sees them.
    Memory,
    /// Datagrams of RDMA devices, if the Cargo feature `verbs` is on. Packets are not sealed: their network is trusted.
    Verbs,
}

impl Transport {
    /// As it is called in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Memory => "memory",
            Self::Verbs => "verbs",
        }
    }
}

/// Where [`Transport::Verbs`] finds its network; what is not set is chosen.
#[derive(Clone, Debug, Default)]
pub struct RdmaPort {
    /// Name of the RDMA device, such as mlx5_0.
    pub device: Option<String>,
    /// Port of the device, from 1.
    pub port: Option<u8>,
    /// Which of the port's addresses: `ipv4`, `ipv6`, or its index.
    pub gid: Option<String>,
}

/// Which node of a cluster of processes this process is.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Number of the node that this process is, from 0.
    pub node: usize,
    /// The transport of packets.
    pub transport: Transport,
    /// By node: where it is reached, at least of those that the cluster begins with; the same at all nodes. The members' own messages go by
    /// TCP to the port; over UDP worker i listens at the port plus i.
    pub addresses: Vec<SocketAddr>,
    /// How this process joins a cluster that has begun, if it has asked for the terms: see [`ClusterTerms::membership`].
    ///
    /// [`ClusterTerms::membership`]: crate::ClusterTerms::membership
    pub invitation: Option<Invitation>,
    /// How many nodes the cluster begins with, from node 0 on; the same at all nodes. Another one is let in when its process is started.
    pub first_nodes: usize,
    /// The failure domain that this node is in, such as a rack: copies and logs are spread over as many as possible. Without a name, it is in
    /// one of its own.
    pub zone: String,
    /// The key that packets and the members' own messages are sealed with; without one the network is trusted.
    pub key: Option<ClusterKey>,
    /// Name of the cluster: processes of others are refused.
    pub cluster: String,
    /// Path MTU between any two nodes in bytes; see [`gannet_rpc::UdpOptions`]. Over RDMA the bytes of
    /// a packet.
    pub mtu: Option<usize>,
    /// The RDMA device, if packets take one.
    pub rdma: RdmaPort,
    /// How long to wait for the other members.
    pub join_timeout: Duration,
    /// How long a node may answer after the others have last confirmed that it is a member; the same at all nodes. A node whose
    /// threads stand still for longer is removed, and one that was lost is gone without for no shorter time.
    pub lease: Duration,
    /// Whether a transaction that only reads waits until a majority of the nodes that decide on the membership has confirmed its node after
    /// its last read. For hosts whose clocks may stand still. Nodes may differ.
    pub confirm_reads: bool,
    /// How long a copy of a partition may be missing before another node is filled with the partition, if there is one with room.
    pub copies_after: Duration,
    /// Bytes that each worker of this node copies at most in a second, when the node is filled with partitions. Nodes may differ.
    pub copy_bytes_per_second: u64,
    /// Where the manager's replica of this node keeps its log and its votes. Without a directory they are in memory.
    pub manager_data: Option<PathBuf>,
    /// Forget what an earlier run of the cluster has left there.
    pub begin_anew: bool,
}

impl Membership {
    /// How long to wait for others by default.
    pub const JOIN_TIMEOUT: Duration = Duration::from_secs(300);
    /// How long a lease lasts by default. On shared machines threads were seen to stand still for tens of milliseconds.
    pub const LEASE: Duration = Duration::from_millis(500);
    /// How long a copy may be missing by default.
    pub const COPIES_AFTER: Duration = Duration::from_secs(30);
    /// Bytes that each worker copies at most in a second by default.
    pub const COPY_BYTES_PER_SECOND: u64 = COPY_BYTES_PER_SECOND;
    /// The shortest lease.
    pub const LEASE_MIN: Duration = Duration::from_millis(5);
    /// Bytes of a zone's name.
    pub const ZONE_BYTES_MAX: usize = 64;

    /// By node, of so many: where it is found, as far as this process knows.
    pub(crate) fn known_addresses(&self, nodes: usize) -> Vec<Option<SocketAddr>> {
        let mut known: Vec<_> = match &self.invitation {
            Some(invitation) => invitation.known.clone(),
            None => self.addresses.iter().copied().map(Some).collect(),
        };
        known.resize(nodes, None);
        if let (Some(invitation), Some(own)) = (&self.invitation, known.get_mut(self.node)) {
            *own = Some(invitation.address);
        }
        known
    }

    /// Where this process is found, if it has an address.
    pub(crate) fn own_address(&self) -> Option<SocketAddr> {
        match &self.invitation {
            Some(invitation) => Some(invitation.address),
            None => self.addresses.get(self.node).copied(),
        }
    }
}

impl Default for Membership {
    /// Of node 0 without an address, over UDP on a trusted network.
    fn default() -> Self {
        Self {
            node: 0,
            transport: Transport::default(),
            addresses: Vec::new(),
            invitation: None,
            first_nodes: 0,
            zone: String::new(),
            key: None,
            cluster: "gannet".to_owned(),
            mtu: None,
            rdma: RdmaPort::default(),
            join_timeout: Self::JOIN_TIMEOUT,
            lease: Self::LEASE,
            confirm_reads: false,
            copies_after: Self::COPIES_AFTER,
            copy_bytes_per_second: Self::COPY_BYTES_PER_SECOND,
            manager_data: None,
            begin_anew: false,
        }
    }
}

/// How a process joins that has asked members for their terms.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Where it is found.
    pub(crate) address: SocketAddr,
    /// By node: where the others are, as far as is known.
    pub(crate) known: Vec<Option<SocketAddr>>,
}

/// Why a process could not become a member. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The address cannot be listened at.
    #[error(
        "cannot listen at {address}: {reason}; is a node running there already, or is it another host's address?"
    )]
    Listen {
        /// The own address.
        address: SocketAddr,
        /// What the system says.
        reason: std::io::Error,
    },
    /// Two members would listen at the same port.
    #[error(
        "member {first} at {first_address} and member {second} at {second_address} share a port, of which each takes \
         {ports} from its own on; give each member other ones"
    )]
    Overlap {
        /// One of them.
        first: usize,
        /// Where it is to be.
        first_address: SocketAddr,
        /// The other.
        second: usize,
        /// Where that is to be.
        second_address: SocketAddr,
        /// Ports of each.
        ports: usize,
    },
    /// A member does not take this process.
    #[error("node {node}{place} refuses this node: {reason}")]
    Refused {
        /// The member that refuses.
        node: usize,
        /// Where it is, such as " at 10.0.0.1:7400".
        place: String,
        /// Why.
        reason: String,
    },
    /// One that was asked for the terms of the cluster is no member of it, or this process must not know them.
    #[error("{reason}; give the members' addresses, the key of the cluster, and the same release")]
    Stranger {
        /// What has come instead of an answer.
        reason: String,
    },
    /// No member has told the terms of the cluster.
    #[error(
        "no member of a cluster has answered in {seconds} s: {reason}; name members of one that has begun, or begin one with all of its first nodes"
    )]
    NobodyAnswers {
        /// What the last one has said.
        reason: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Some members did not come.
    #[error("{missing} did not come within {seconds} s; start it, or wait longer")]
    Missing {
        /// The members that have not come.
        missing: String,
        /// How long was waited.
        seconds: u64,
    },
    /// The manager's directory cannot be used.
    #[error(transparent)]
    ManagerData(#[from] DirectoryError),
    /// The manager's directory is of an earlier run.
    #[error(
        "{} is of an earlier run of the cluster, whose rows were in memory and are gone; begin anew with --begin-anew, which forgets \
         what is there, or give another directory", .0.display()
    )]
    EarlierRun(PathBuf),
    /// The lease is too short.
    #[error("a lease of {} ms is too short; use {} ms or more", .0.as_millis(), Membership::LEASE_MIN.as_millis())]
    ShortLease(Duration),
    /// The zone's name is too long.
    #[error("a zone's name has {0} bytes; use at most {max}", max = Membership::ZONE_BYTES_MAX)]
    LongZone(usize),
    /// All members are connected, and some did not start.
    #[error(
        "the other members did not all start within {seconds} s; see the log of each, or wait longer"
    )]
    NotStarted {
        /// How long was waited.
        seconds: u64,
    },
    /// The others go on as a cluster, and have not let this process in.
    #[error(
        "the others have not let this node in within {seconds} s: {reason}; see their logs, or wait longer"
    )]
    NotLetIn {
        /// Why, as far as they have said.
        reason: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Another member could not do what all do.
    #[error("node {node} could not: {reason}")]
    Elsewhere {
        /// Which one.
        node: usize,
        /// Why.
        reason: String,
    },
    /// A member has gone.
    #[error("{0}")]
    Halted(String),
    /// The operating system refused a thread or random bytes.
    #[error("the operating system refused {what}: {reason}")]
    System {
        /// What was requested.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

impl From<ChangeError> for JoinError {
    /// Why there was no first change.
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused { node, reason } => Self::Elsewhere { node, reason },
            error => Self::Halted(error.to_string()),
        }
    }
}

/// What the operating system refused, as an error.
pub(crate) fn refused<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> JoinError {
    move |reason| JoinError::System { what, reason: reason.to_string() }
}
