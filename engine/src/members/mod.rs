//! The other processes of a cluster: who they are, when all have come, and when one has gone.
//!
//! ```text
//! gather   each member calls those with smaller numbers; they compare their settings (`greeting`)
//! meet     goes on when every member has come to the same point, and says the same of it
//! report   every second each member says how it is
//! halt     a connection has ended: nobody can go on
//! ```
//! A stream per pair of members, at the address whose UDP port belongs to worker 0. No request takes this way.
//!
//! *Invariants*: members agree on all settings and know each other's incarnations before the first request. Who comes
//! later, or again, is refused: its memory is empty, and nobody can fill it yet.
//!
//! *Not here*: requests, in crate `rpc`; changes of the membership, which need recovery.

mod frame;
mod gather;
mod greeting;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::ClusterKey;

use crate::members::frame::{Frame, FrameError, Seal};
use crate::members::gather::{Door, Gathered, gather};
use crate::statistics::{NodeReport, NodeState, NodeStatus, Reporter};

/// Between two reports of a member.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Reports of others may be this late before they count as missing.
const REPORTS_LATE: u64 = 2;
/// Between two lines that say who has not come.
const PATIENCE: Duration = Duration::from_secs(5);

/// What carries packets between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams, between any hosts.
    #[default]
    Udp,
    /// Rings in memory that processes of one host share. Packets are not sealed: nobody else sees them.
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

/// This process's place in a cluster of processes.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Number of the node that this process is, from 0.
    pub node: usize,
    /// What carries packets.
    pub transport: Transport,
    /// By node: where it is reached. The members' own talk is TCP at the port; over UDP worker i listens at the port plus i.
    pub addresses: Vec<SocketAddr>,
    /// What packets and members' talk are sealed with; without one the network is trusted.
    pub key: Option<ClusterKey>,
    /// Name of the cluster: processes of others are refused.
    pub cluster: String,
    /// Bytes that the path between any two nodes carries at once; see [`gannet_rpc::UdpOptions`]. Over RDMA the bytes of
    /// a packet.
    pub mtu: Option<usize>,
    /// The RDMA device, if packets take one.
    pub rdma: RdmaPort,
    /// How long to wait for the other members.
    pub join_timeout: Duration,
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
    /// A member does not take this process.
    #[error("node {node} at {address} refuses this node: {reason}")]
    Refused {
        /// Who refuses.
        node: usize,
        /// Where it is.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Some members did not come.
    #[error("{missing} did not come within {seconds} s; start it, or wait longer")]
    Missing {
        /// Who has not come.
        missing: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Members do different things.
    #[error(
        "this node has come to \"{own}\" and node {node} to \"{other}\"; run the same program on all nodes"
    )]
    Different {
        /// What this member does.
        own: String,
        /// Who does something else.
        node: usize,
        /// What it does.
        other: String,
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
        /// What was asked for.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

/// What the threads of a member know.
#[derive(Default)]
struct State {
    /// By point, then node: what the node does there, and what it has said.
    arrived: BTreeMap<u64, BTreeMap<usize, (String, String)>>,
    /// By node: what it last said of itself, and own reports since then.
    reports: BTreeMap<usize, (Option<NodeReport>, u64)>,
    /// Those whose connection has ended.
    gone: BTreeSet<usize>,
    /// Why the cluster has halted.
    halted: Option<String>,
    /// What to do then.
    on_halt: Option<Box<dyn Fn() + Send>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// This member stops: what ends now is no loss.
    leaving: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn halt(&self, reason: String) {
        // Acquire: pairs with the Release in Members::leave().
        if self.leaving.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.lock();
        if state.halted.is_none() {
            tracing::error!("{reason}");
            state.halted = Some(reason);
            if let Some(act) = &state.on_halt {
                act();
            }
        }
        self.changed.notify_all();
    }
}

/// The streams to the other members.
struct Peers(Mutex<Vec<(TcpStream, Seal)>>);

/// The other members, all of whom have come.
pub(crate) struct Members {
    node: usize,
    transport: Transport,
    incarnations: Vec<u32>,
    addresses: Vec<SocketAddr>,
    peers: Arc<Peers>,
    shared: Arc<Shared>,
    /// The next point to meet at.
    point: Mutex<u64>,
    /// The thread that reports.
    reporting: Option<JoinHandle<()>>,
    _door: Door,
}

impl Members {
    /// Waits until every member has come.
    pub(crate) fn gather(
        membership: &Membership,
        settings: BTreeMap<String, String>,
    ) -> Result<Self, JoinError> {
        let address = membership.addresses[membership.node];
        let listener =
            TcpListener::bind(address).map_err(|reason| JoinError::Listen { address, reason })?;
        let nodes = membership.addresses.len();
        let shared = Arc::new(Shared::default());
        let Gathered { incarnation, greeted, door } = gather(listener, membership, settings)?;
        let mut incarnations = vec![incarnation; nodes];
        let mut peers = Vec::new();
        for (node, greeted) in greeted {
            incarnations[node] = greeted.hello.incarnation;
            peers.push((greeted.stream.try_clone().map_err(refused("a stream"))?, greeted.sending));
            shared.lock().reports.insert(node, (None, 0));
            let (address, shared) = (membership.addresses[node], Arc::clone(&shared));
            spawn("members-hear", move || {
                attend(node, address, greeted.stream, greeted.receiving, &shared);
            })?;
        }
        Ok(Self {
            node: membership.node,
            transport: membership.transport,
            incarnations,
            addresses: membership.addresses.clone(),
            peers: Arc::new(Peers(Mutex::new(peers))),
            shared,
            point: Mutex::new(0),
            reporting: None,
            _door: door,
        })
    }

    /// Of this member.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[self.node]
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// By node.
    pub(crate) fn incarnations(&self) -> &[u32] {
        &self.incarnations
    }

    /// Why the cluster has halted, if it has.
    pub(crate) fn halted(&self) -> Option<String> {
        self.shared.lock().halted.clone()
    }

    /// Says what to do when a member has gone; done at once if one has.
    pub(crate) fn on_halt(&self, act: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.halted.is_some() {
            act();
        }
        state.on_halt = Some(Box::new(act));
    }

    /// Waits until every member has come to the same point, where all do `what`; what each has said there, by node.
    pub(crate) fn meet(&self, what: &str, said: String) -> Result<Vec<String>, JoinError> {
        let mut next = self.point.lock().unwrap_or_else(PoisonError::into_inner);
        let point = *next;
        *next += 1;
        let (what, own) = (what.to_owned(), self.node);
        let frame = Frame::Arrived { point, what: what.clone(), said: said.clone() };
        self.peers.say(&frame);
        let mut state = self.shared.lock();
        state.arrived.entry(point).or_default().insert(own, (what.clone(), said));
        loop {
            let all = state.arrived.entry(point).or_default();
            // Whoever does something else may have ended already because of it: that is why, and not that it has gone.
            if let Some((node, (other, _))) = all.iter().find(|(_, (other, _))| *other != what) {
                let (node, other) = (*node, other.clone());
                return Err(JoinError::Different { own: what, node, other });
            }
            if all.len() == self.incarnations.len() {
                break;
            }
            if let Some(reason) = &state.halted {
                return Err(JoinError::Halted(reason.clone()));
            }
            let waited = self.shared.changed.wait_timeout(state, PATIENCE);
            let (next, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timed_out.timed_out() {
                let here = |node: &usize| {
                    state.arrived.get(&point).is_some_and(|all| all.contains_key(node))
                };
                let missing: Vec<_> =
                    (0..self.incarnations.len()).filter(|node| !here(node)).collect();
                tracing::info!("{what}: waiting for nodes {missing:?}");
            }
        }
        let all = state.arrived.remove(&point).unwrap_or_default();
        Ok(all.into_values().map(|(_, said)| said).collect())
    }

    /// Tells the others that this member stops.
    pub(crate) fn leave(&self) {
        // Release: pairs with the Acquire in Shared::halt().
        self.shared.leaving.store(true, Ordering::Release);
        self.peers.say(&Frame::Leaving);
        {
            // Whoever waits for another member waits in vain.
            let mut state = self.shared.lock();
            state.halted.get_or_insert_with(|| "this node stops".to_owned());
            if let Some(act) = &state.on_halt {
                act();
            }
        }
        self.shared.changed.notify_all();
        let peers = self.peers.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (stream, _) in &*peers {
            // It may have ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Reports every second, until this member stops.
    pub(crate) fn keep_reporting(&mut self, reporter: Reporter) -> Result<(), JoinError> {
        let (peers, shared) = (Arc::clone(&self.peers), Arc::clone(&self.shared));
        let reporting = spawn("members-report", move || {
            // Acquire: pairs with the Release in Members::leave().
            while !shared.leaving.load(Ordering::Acquire) {
                peers.say(&Frame::Report(reporter.report()));
                for (node, (_, silence)) in &mut shared.lock().reports {
                    *silence += 1;
                    if *silence == REPORTS_LATE + 1 {
                        tracing::warn!(
                            "node {node} says nothing for {silence} s; what needs it waits"
                        );
                    }
                }
                std::thread::park_timeout(REPORT_INTERVAL);
            }
        })?;
        self.reporting = Some(reporting);
        Ok(())
    }

    /// How the other members are.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        let state = self.shared.lock();
        let others = (0..self.addresses.len()).filter(|node| *node != self.node);
        let status = |node| {
            let (report, silence) = state.reports.get(&node).copied().unwrap_or_default();
            let node_state = match silence {
                _ if state.gone.contains(&node) => NodeState::Gone,
                0..=REPORTS_LATE => NodeState::Up,
                seconds => NodeState::Silent(seconds),
            };
            let address = Some(self.addresses[node]);
            NodeStatus { node, address, state: node_state, report }
        };
        others.map(status).collect()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.leave();
        // It holds what it reports of.
        if let Some(reporting) = self.reporting.take() {
            reporting.thread().unpark();
            let _ = reporting.join();
        }
    }
}

impl Peers {
    fn say(&self, frame: &Frame) {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain_mut(|(stream, seal)| {
            let said = frame::write(stream, frame, Some(seal)).is_ok();
            if !said {
                // Part of a frame may be under way, which nothing can follow: whoever listens to the member hears the end.
                let _ = stream.shutdown(Shutdown::Both);
            }
            said
        });
    }
}

/// What the operating system refused, as an error.
pub(crate) fn refused<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> JoinError {
    move |reason| JoinError::System { what, reason: reason.to_string() }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, JoinError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(body).map_err(refused("a thread"))
}

/// Hears what a member says until it goes.
fn attend(
    node: usize,
    address: SocketAddr,
    mut stream: TcpStream,
    mut seal: Seal,
    shared: &Shared,
) {
    let reason = loop {
        match frame::read(&mut stream, &mut seal) {
            Ok(Frame::Arrived { point, what, said }) => {
                shared.lock().arrived.entry(point).or_default().insert(node, (what, said));
                shared.changed.notify_all();
            }
            Ok(Frame::Report(report)) => {
                let before = shared.lock().reports.insert(node, (Some(report), 0));
                if before.is_some_and(|(_, silence)| silence > REPORTS_LATE) {
                    tracing::info!("node {node} speaks again");
                }
            }
            Ok(Frame::Leaving) => break "was stopped".to_owned(),
            Ok(
                Frame::Hello(_)
                | Frame::Confirmed
                | Frame::Refused { .. }
                | Frame::TooLate { .. }
                | Frame::WillCall,
            ) => {
                break format!("is not a member any more: {}", FrameError::Malformed);
            }
            Err(error) => break format!("is gone: {error}"),
        }
    };
    shared.lock().gone.insert(node);
    shared.halt(format!(
        "node {node} at {address} {reason}. Without recovery the cluster cannot go on: stop all nodes and start them again"
    ));
}
