//! The other processes of a cluster: their identities, and whether each is there, silent, or gone.
//!
//! ```text
//! gather   each member calls those with smaller numbers; they compare their settings (`handshake`)
//! meet     a barrier: it returns when every member has come to the same point, and names the same purpose
//! report   every second each member sends its report
//! halt     a member has ended: the cluster cannot go on
//! ```
//! A stream per pair of members, at the address whose UDP port belongs to worker 0. No request takes this way. A stream that
//! breaks while both live is made anew (`link`).
//!
//! *Invariants*: members agree on all settings and know each other's incarnations before the first request. A process that comes
//! later, or again, is refused: its tables are empty, and no recovery can fill them yet.
//!
//! *Not here*: requests, in crate `rpc`; changes of the membership, which need recovery.

mod frame;
mod gather;
mod handshake;
mod link;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_rpc::ClusterKey;

use crate::change::{Change, ChangeError, ChangeMessage, Changes};
use crate::configuration::Configuration;
use crate::local_members::LocalMembers;
use crate::member::Member;
use crate::members::frame::{Frame, FrameError};
use crate::members::gather::{MemberListener, gather};
use crate::members::link::Link;
use crate::statistics::{NodeReport, NodeState, NodeStatus};

/// Between two reports of a member.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The member that decides changes of the configuration.
const DECIDER: usize = 0;
/// Reports of others may be this late before they count as missing.
const REPORTS_LATE: u64 = 2;
/// Between two log lines that name the members that have not come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The transport of packets between processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// By node: where it is reached. The members' own messages go by TCP to the port; over UDP worker i listens at the port plus i.
    pub addresses: Vec<SocketAddr>,
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
    #[error("node {node} at {address} refuses this node: {reason}")]
    Refused {
        /// The member that refuses.
        node: usize,
        /// Where it is.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// Some members did not come.
    #[error("{missing} did not come within {seconds} s; start it, or wait longer")]
    Missing {
        /// The members that have not come.
        missing: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Members do different things.
    #[error(
        "this node has come to \"{own}\" and node {node} to \"{other}\"; run the same program on all nodes"
    )]
    Different {
        /// The purpose that this member names.
        own: String,
        /// The member that names another.
        node: usize,
        /// The purpose that it names.
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
        /// What was requested.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

/// What the threads of a member know.
#[derive(Default)]
struct State {
    /// By point, then node: the purpose that the node names there, and its part.
    arrived: BTreeMap<u64, BTreeMap<usize, (String, String)>>,
    /// Points below have been passed: a repeated arrival at one of them is ignored.
    point: u64,
    /// All members have come to the points below: a member that stopped has said so. Their arrivals may still be under way.
    passed: u64,
    /// By node: its last report, and the number of own reports since then.
    reports: BTreeMap<usize, (Option<NodeReport>, u64)>,
    /// Those that have ended.
    gone: BTreeSet<usize>,
    /// Messages about changes of the configuration that are to be handled, and their senders.
    changes: VecDeque<(usize, ChangeMessage)>,
    /// The number of this member's last proposal of a change.
    proposals: u64,
    /// Answers to its proposals.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why the cluster has halted.
    halted: Option<String>,
    /// What to do then.
    on_halt: Option<Box<dyn Fn() + Send>>,
}

impl State {
    /// Whether a member is known to have come to a point.
    fn is_at(&self, node: usize, point: u64) -> bool {
        self.arrived.get(&point).is_some_and(|all| all.contains_key(&node))
    }

    /// Whether all have come to a point and no member has ended whose arrival is missing: the missing ones are under way.
    fn is_passed(&self, point: u64) -> bool {
        point < self.passed && self.gone.iter().all(|node| self.is_at(*node, point))
    }
}

#[derive(Default)]
struct GroupState {
    state: Mutex<State>,
    changed: Condvar,
    /// This member stops: what ends now is no loss.
    leaving: AtomicBool,
}

impl GroupState {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next message about a change; none if the cluster has halted.
    fn next_change(&self) -> Option<(usize, ChangeMessage)> {
        let mut state = self.lock();
        loop {
            if state.halted.is_some() || self.is_leaving() {
                return None;
            }
            if let Some(next) = state.changes.pop_front() {
                return Some(next);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_leaving(&self) -> bool {
        // Acquire: pairs with the Release in Members::leave().
        self.leaving.load(Ordering::Acquire)
    }

    /// Handles a frame of another member.
    fn receive(&self, node: usize, frame: Frame) -> Result<(), FrameError> {
        match frame {
            Frame::Arrived { point, what, said } => {
                let mut state = self.lock();
                if point >= state.point {
                    state.arrived.entry(point).or_default().insert(node, (what, said));
                    self.changed.notify_all();
                }
            }
            Frame::Change(message) => {
                self.lock().changes.push_back((node, message));
                self.changed.notify_all();
            }
            Frame::Report(report) => {
                let before = self.lock().reports.insert(node, (Some(report), 0));
                if before.is_some_and(|(_, silence)| silence > REPORTS_LATE) {
                    tracing::info!("node {node} speaks again");
                }
            }
            // These belong to a handshake, or end the connection.
            Frame::Hello(_)
            | Frame::Confirmed
            | Frame::Refused { .. }
            | Frame::TooLate { .. }
            | Frame::WillCall
            | Frame::Leaving { .. } => return Err(FrameError::Malformed),
        }
        Ok(())
    }

    /// A member that stops says that all have come to the points below `passed`.
    fn pass(&self, passed: u64) {
        let mut state = self.lock();
        state.passed = state.passed.max(passed);
    }

    fn halt(&self, reason: String) {
        if self.is_leaving() {
            return;
        }
        let mut state = self.lock();
        let is_first = state.halted.is_none();
        if is_first {
            state.halted = Some(reason.clone());
            if let Some(act) = &state.on_halt {
                act();
            }
        }
        self.changed.notify_all();
        drop(state);
        // Last: the log may fail, or be slow.
        if is_first {
            tracing::error!("{reason}");
        }
    }
}

/// The other members, all of whom have come.
pub(crate) struct Members {
    node: usize,
    transport: Transport,
    incarnations: Vec<u32>,
    addresses: Vec<SocketAddr>,
    links: Vec<Arc<Link>>,
    group: Arc<GroupState>,
    /// The next point to meet at.
    point: Mutex<u64>,
    /// The thread that reports.
    reporting: Option<JoinHandle<()>>,
    changing: Option<JoinHandle<()>>,
    _listener: MemberListener,
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
        let group = Arc::new(GroupState::default());
        let mut gathered = gather(listener, membership, settings, &group)?;
        let mut incarnations =
            vec![gathered.listener.handshaker.incarnation; membership.addresses.len()];
        let (mut links, mut receive_halves) = (Vec::new(), Vec::new());
        for (node, connection) in std::mem::take(&mut gathered.connections) {
            incarnations[node] = connection.hello.incarnation;
            let linked = Link::new(membership.addresses[node], connection);
            let (link, receive_half) = linked.map_err(refused("a stream"))?;
            group.lock().reports.insert(node, (None, 0));
            receive_halves.push((Arc::clone(&link), receive_half));
            links.push(link);
        }
        let listener = gathered.link(&links);
        for (link, receive_half) in receive_halves {
            let (handshaker, group) = (Arc::clone(&listener.handshaker), Arc::clone(&group));
            spawn("members-receive", move || {
                let reason = link.receive_until_gone(receive_half, &handshaker, &group);
                let Link { node, address, .. } = *link;
                group.lock().gone.insert(node);
                group.halt(format!(
                    "node {node} at {address} {reason}. Without recovery the cluster cannot go on: \
                     stop all nodes and start them again"
                ));
            })?;
        }
        Ok(Self {
            node: membership.node,
            transport: membership.transport,
            incarnations,
            addresses: membership.addresses.clone(),
            links,
            group,
            point: Mutex::new(0),
            reporting: None,
            changing: None,
            _listener: listener,
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
        self.group.lock().halted.clone()
    }

    /// Says what to do when a member has gone; done at once if one has.
    pub(crate) fn on_halt(&self, act: impl Fn() + Send + 'static) {
        let mut state = self.group.lock();
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
        broadcast(&self.links, &frame);
        let mut state = self.group.lock();
        state.arrived.entry(point).or_default().insert(own, (what.clone(), said));
        loop {
            let all = state.arrived.entry(point).or_default();
            // A member that names another purpose may have ended because of it. That is the reason, and not its end.
            if let Some((node, (other, _))) = all.iter().find(|(_, (other, _))| *other != what) {
                let (node, other) = (*node, other.clone());
                return Err(JoinError::Different { own: what, node, other });
            }
            if all.len() == self.incarnations.len() {
                break;
            }
            if let Some(reason) = &state.halted
                && (self.group.is_leaving() || !state.is_passed(point))
            {
                return Err(JoinError::Halted(reason.clone()));
            }
            let waited = self.group.changed.wait_timeout(state, PROGRESS_INTERVAL);
            let (next, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timed_out.timed_out() {
                let all = 0..self.incarnations.len();
                let missing: Vec<_> = all.filter(|node| !state.is_at(*node, point)).collect();
                tracing::info!("{what}: waiting for nodes {missing:?}");
            }
        }
        state.point = point + 1;
        let all = state.arrived.remove(&point).unwrap_or_default();
        Ok(all.into_values().map(|(_, said)| said).collect())
    }

    /// Tells the others that this member stops.
    pub(crate) fn leave(&self) {
        leave(&self.links, &self.group);
    }

    /// A function that does the same as [`Self::leave`], for a thread without the members.
    pub(crate) fn leaver(&self) -> impl Fn() + Send + 'static {
        let (links, group) = (self.links.clone(), Arc::clone(&self.group));
        move || leave(&links, &group)
    }

    /// Reports every second, until this member stops.
    pub(crate) fn keep_reporting(&mut self, member: Arc<Member>) -> Result<(), JoinError> {
        let (links, group) = (self.links.clone(), Arc::clone(&self.group));
        let reporting = spawn("members-report", move || {
            while !group.is_leaving() {
                broadcast(&links, &Frame::Report(member.report()));
                for (node, (_, silence)) in &mut group.lock().reports {
                    *silence += 1;
                    if *silence == REPORTS_LATE + 1 {
                        tracing::warn!(
                            "node {node} says nothing for {silence} s; what needs it waits"
                        );
                    }
                    let link = links.iter().find(|link| link.node == *node);
                    if let Some(link) =
                        link.filter(|link| *silence > REPORTS_LATE && link.is_wanted())
                    {
                        // The other knows that the connection has broken, and this member would not.
                        link.disconnect();
                    }
                }
                std::thread::park_timeout(REPORT_INTERVAL);
            }
        })?;
        self.reporting = Some(reporting);
        Ok(())
    }

    /// Takes part in changes of the configuration, until this member stops.
    pub(crate) fn follow_changes(
        &mut self,
        configuration: Arc<Configuration>,
        nodes: LocalMembers,
    ) -> Result<(), JoinError> {
        let (links, group) = (self.links.clone(), Arc::clone(&self.group));
        let mut changes = Changes::new(self.node, configuration, nodes);
        let changing = spawn("members-change", move || {
            while let Some((from, message)) = group.next_change() {
                for (to, message) in changes.receive(from, message) {
                    let link = links.iter().find(|link| link.node == to);
                    link.expect("there is a link to each other member")
                        .send(&Frame::Change(message));
                }
                group.lock().answers.append(&mut changes.take_answers());
                group.changed.notify_all();
            }
        })?;
        self.changing = Some(changing);
        Ok(())
    }

    /// Proposes a change, and waits for the answer: then all members go by it.
    pub(crate) fn propose(&self, change: Change) -> Result<Result<(), ChangeError>, JoinError> {
        let number = {
            let mut state = self.group.lock();
            state.proposals += 1;
            state.proposals
        };
        let propose = ChangeMessage::Propose { number, change };
        match self.links.iter().find(|link| link.node == DECIDER) {
            Some(link) => link.send(&Frame::Change(propose)),
            None => {
                self.group.lock().changes.push_back((self.node, propose));
                self.group.changed.notify_all();
            }
        }
        let mut state = self.group.lock();
        loop {
            if let Some(answer) = state.answers.remove(&number) {
                return Ok(answer);
            }
            if let Some(reason) = &state.halted {
                return Err(JoinError::Halted(reason.clone()));
            }
            state = self.group.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How the other members are.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        let state = self.group.lock();
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
        // The thread holds the node that it reports of.
        if let Some(reporting) = self.reporting.take() {
            reporting.thread().unpark();
            let _ = reporting.join();
        }
        // So does this one.
        if let Some(changing) = self.changing.take() {
            let _ = changing.join();
        }
    }
}

fn broadcast(links: &[Arc<Link>], frame: &Frame) {
    links.iter().for_each(|link| link.send(frame));
}

/// Tells the others that this member stops, and ends all waits for others.
fn leave(links: &[Arc<Link>], group: &GroupState) {
    // Release: pairs with the Acquire in GroupState::halt().
    group.leaving.store(true, Ordering::Release);
    broadcast(links, &Frame::Leaving { passed: group.lock().point });
    {
        // No other member will come any more.
        let mut state = group.lock();
        state.halted.get_or_insert_with(|| "this node stops".to_owned());
        if let Some(act) = &state.on_halt {
            act();
        }
    }
    group.changed.notify_all();
    links.iter().for_each(|link| link.disconnect());
}

/// What the operating system refused, as an error.
pub(crate) fn refused<E: std::fmt::Display>(what: &'static str) -> impl Fn(E) -> JoinError {
    move |reason| JoinError::System { what, reason: reason.to_string() }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, JoinError> {
    let builder = std::thread::Builder::new().name(name.to_owned());
    builder.spawn(body).map_err(refused("a thread"))
}
