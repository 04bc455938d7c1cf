//! The group of members as one of them sees it: a state machine without threads, sockets, clocks and randomness.
//!
//! ```text
//!                gathering                            formed                               leaving
//! members        come and go, in any incarnation      are those of the first change        are told
//! a call fails   is repeated                          nobody listens: halt                 nobody is called
//! begins         at the start                         node 0: all are connected            Group::leave()
//!                                                     others: node 0 says so
//! ```
//! ```text
//! the owner: time, connections, bytes, commands ──▶ Group ──▶ actions: call, send, close
//!                                                         ──▶ events: changes, reports, halting
//! ```
//! When all have come, node 0 proposes the first change of the configuration, which has what each member told of itself. A member
//! takes part in this change when it is connected to all others.
//!
//! *Invariants*: kept messages of a member arrive once and in order, whatever connections break. Once the group is formed, a
//! member is one incarnation of its process. A process that can read the group's bytes knows the key. A number of a
//! connection never comes again.
//!
//! *Not here*: connections and who calls whom, in `calls.rs`; processes that come back, in `coming_back.rs`; sockets, in `sockets.rs`;
//! changes themselves, in `change`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::HashSeed;

use crate::change::FOUNDER;
use crate::change_message::{ChangeMessage, Loss};
use crate::configuration::{Change, Configuration, MemberEntry};
use crate::learning::Lesson;
use crate::lease::LeaseTerms;
use crate::link::LinkError;
use crate::log_limiter::LogLimiter;
use crate::members::JoinError;
use crate::members::calls::{CALL_INTERVAL_NS, Connection};
use crate::members::leases::Leases;
use crate::members::message::{Hello, Message};
use crate::members::peer::Peer;
use crate::members::terms::ClusterTerms;
use crate::statistics::{NodeReport, NodeState, NodeStatus};

/// Between two reports of a member.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;
/// Between two log lines that name the members that have not come.
const PROGRESS_INTERVAL_NS: u64 = 5_000_000_000;

/// What a member begins with.
pub(crate) struct Setup {
    pub(crate) hello: Hello,
    pub(crate) terms: ClusterTerms,
    /// Whether it may begin a cluster with the others: it does not join one that it has asked.
    pub(crate) founds: bool,
    pub(crate) key: Option<ClusterKey>,
    /// What goes into the hashes of keys, if this process founds the cluster.
    pub(crate) hash_seed: HashSeed,
    /// How long to wait for the others.
    pub(crate) join_timeout: Duration,
    /// The incarnation before this one whose log of the membership this process has.
    pub(crate) predecessor: Option<u32>,
}

/// What the owner is to do with connections.
#[derive(Debug)]
pub(crate) enum Action {
    /// Connect to a member.
    Call { connection: u64, node: usize, address: SocketAddr },
    /// Send bytes behind those before.
    Send { connection: u64, bytes: Vec<u8> },
    /// The other end is a member.
    Admit { connection: u64 },
    /// End the connection. Bytes that the system has not taken yet are lost.
    Close { connection: u64 },
}

/// What the owner is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// A member's message about a change of the configuration, perhaps of this one.
    Change(usize, ChangeMessage),
    /// What another node's replica of the manager has carried here.
    Manager(u16, Vec<u8>),
    /// This incarnation of a member has this process wait until it is let in. Meanwhile the predecessor's replica is heard there.
    Waits(u16, u32),
    /// The connection with that member is gone.
    WaitsNoMore(u16),
    /// An operator has this process stop, and be started again.
    Restart,
    /// A report is due.
    ReportDue,
    /// The lease is to be renewed.
    RenewalDue,
    /// The lease is held until this time.
    Lease(u64),
    /// This process cannot become a member.
    Failed(JoinError),
    /// The cluster has halted, and why.
    Halted(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Gathering,
    Formed,
    Leaving,
}

/// The group as a member sees it.
pub(crate) struct Group {
    pub(super) setup: Setup,
    pub(super) now_ns: u64,
    pub(super) stage: Stage,
    pub(super) peers: BTreeMap<usize, Peer>,
    /// Those in use, and those whose handshake is under way.
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) last_connection: u64,
    pub(super) actions: VecDeque<Action>,
    pub(super) events: VecDeque<Event>,
    /// Limits lines about calls that fail.
    pub(super) log: LogLimiter,
    /// Why this member leaves, if not on request.
    pub(super) because: Option<String>,
    began_ns: u64,
    progress_at_ns: u64,
    report_at_ns: u64,
    /// The first change, until all others are connected.
    first_change: Option<ChangeMessage>,
    /// Number of this member's last proposal.
    proposals: u64,
    /// This process is a member, as is decided.
    pub(super) has_joined: bool,
    /// The others are members of a cluster already, and why they have not let this process in, as far as they have said.
    pub(super) comes_back: Option<String>,
    has_failed: bool,
    halted: Option<String>,
    /// See [`Group::is_outcast`].
    is_outcast: bool,
    /// It has proposed to be no member any more.
    parts: bool,
    /// Which member was lost last, and how.
    last_loss: String,
    pub(super) leases: Leases,
    /// How often members were suspected.
    pub(super) suspicions: u64,
}

impl Group {
    /// A member that calls the others from now on.
    pub(crate) fn new(setup: Setup, now_ns: u64) -> Self {
        let others = setup.terms.addresses.iter().enumerate();
        let others = others.filter(|(node, _)| *node != setup.hello.node);
        let peers = others.map(|(node, address)| (node, Peer::new(node, *address))).collect();
        let node = u16::try_from(setup.hello.node).expect("nodes are numbered with 16 bits");
        let leases = Leases::new(node, LeaseTerms::new(setup.terms.lease));
        let comes_back = (!setup.founds).then(|| "no member has answered yet".to_owned());
        let mut group = Self {
            setup,
            now_ns,
            stage: Stage::Gathering,
            peers,
            connections: BTreeMap::new(),
            last_connection: 0,
            actions: VecDeque::new(),
            events: VecDeque::new(),
            log: LogLimiter::default(),
            because: None,
            began_ns: now_ns,
            progress_at_ns: now_ns + PROGRESS_INTERVAL_NS,
            report_at_ns: now_ns + REPORT_INTERVAL_NS,
            first_change: None,
            proposals: 0,
            has_joined: false,
            comes_back,
            has_failed: false,
            halted: None,
            is_outcast: false,
            parts: false,
            last_loss: String::new(),
            leases,
            suspicions: 0,
        };
        group.form_if_complete();
        group
    }

    /// The first change was made here, or the others have let this process in: nothing is waited for any more.
    pub(crate) fn joined(&mut self, configuration: &Configuration) {
        if !std::mem::replace(&mut self.has_joined, true) && self.stage == Stage::Gathering {
            self.form_again(configuration);
        }
    }

    /// Number of this member's node.
    pub(crate) fn node(&self) -> usize {
        self.setup.hello.node
    }

    /// That of this process.
    pub(crate) fn incarnation(&self) -> u32 {
        self.setup.hello.entry.incarnation
    }

    /// It is this time, on a clock that only goes forward: does what is due.
    pub(crate) fn advance(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.end_handshakes();
        self.call_members();
        if self.now_ns >= self.report_at_ns {
            self.report_at_ns = self.now_ns + REPORT_INTERVAL_NS;
            self.events.push_back(Event::ReportDue);
        }
        if self.renews() && self.now_ns >= self.leases.renews_at_ns {
            self.events.push_back(Event::RenewalDue);
        }
        if !self.is_waiting() {
            return;
        }
        if self.now_ns >= self.join_by_ns() {
            let seconds = self.setup.join_timeout.as_secs();
            let missing = self.missing();
            self.fail(match (&self.comes_back, missing.is_empty()) {
                (Some(reason), _) => JoinError::NotLetIn { reason: reason.clone(), seconds },
                (None, true) => JoinError::NotStarted { seconds },
                (None, false) => JoinError::Missing { missing, seconds },
            });
        } else if self.now_ns >= self.progress_at_ns {
            self.progress_at_ns = self.now_ns + PROGRESS_INTERVAL_NS;
            match self.missing() {
                _ if self.comes_back.is_some() => {
                    tracing::info!("waiting until the others let this node in");
                }
                missing if missing.is_empty() => tracing::info!("waiting until all members start"),
                missing => tracing::info!("waiting for {missing}"),
            }
        }
    }

    /// When [`Self::advance`] has something to do next.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        let waits = self.is_waiting().then(|| self.join_by_ns().min(self.progress_at_ns));
        let connections = self.connections_deadline_ns();
        let renewal = self.renews().then_some(self.leases.renews_at_ns);
        connections.into_iter().chain(waits).chain(renewal).fold(self.report_at_ns, u64::min)
    }

    /// Members that are none any more, as is decided. Each is told so on each connection, until it has left or has ended.
    pub(crate) fn remove(&mut self, removed: &BTreeSet<(u16, u32)>) {
        for (node, incarnation) in removed.iter().map(|(node, it)| (usize::from(*node), *it)) {
            if (node, incarnation) == (self.node(), self.incarnation()) {
                self.was_removed();
            }
            let is_it = |peer: &&mut Peer| peer.incarnation() == Some(incarnation);
            let peer = self.peers.get_mut(&node).filter(is_it);
            let Some(peer) = peer.filter(|peer| !peer.is_removed) else { continue };
            (peer.is_removed, peer.is_newcomer) = (true, false);
            self.end_waiting(node);
            self.pass(node, &Message::Removed);
        }
    }

    /// Whether the others go on without this member, which was not told to stop.
    pub(crate) fn is_outcast(&self) -> bool {
        self.is_outcast
    }

    /// The others have removed this member.
    pub(super) fn was_removed(&mut self) {
        if self.parts {
            return self.leave(None);
        }
        self.has_to_go("the others have removed it, as it was silent or cut off".to_owned());
    }

    pub(super) fn has_to_go(&mut self, because: String) {
        if self.stage == Stage::Formed && self.halted.is_none() {
            self.is_outcast = true;
            self.leave(Some(because));
        }
    }

    /// What is to be done with connections next.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What has happened next.
    pub(crate) fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Proposes a change to the decider; the number of the proposal, which its answer has.
    pub(crate) fn propose(&mut self, change: Change) -> u64 {
        self.proposals += 1;
        self.parts |= matches!(change, Change::Part(_));
        let number = self.proposals;
        self.say_change(self.node(), ChangeMessage::Propose { number, change });
        number
    }

    /// Tells the decider what this member has copied as a learner.
    pub(crate) fn tell_copied(&mut self, copied: BTreeSet<Lesson>) {
        for (partition, since) in copied {
            self.say_change(self.node(), ChangeMessage::Copied { partition, since });
        }
    }

    /// Says a message about a change to a member, perhaps to this one.
    pub(crate) fn say_change(&mut self, to: usize, message: ChangeMessage) {
        if to == self.node() {
            self.events.push_back(Event::Change(to, message));
        } else {
            self.keep(to, &Message::Change(message));
        }
    }

    /// Tells all members how this one is.
    pub(crate) fn report(&mut self, report: &NodeReport) {
        if self.stage == Stage::Leaving {
            return;
        }
        for node in self.peer_nodes() {
            self.peers.get_mut(&node).into_iter().for_each(Peer::count_silence);
            self.pass(node, &Message::Report(report.clone()));
        }
    }

    /// The other members that this one hears.
    pub(crate) fn heard(&self) -> BTreeSet<u16> {
        let up = self.status().into_iter().filter(|it| it.state == NodeState::Up);
        up.filter_map(|it| u16::try_from(it.node).ok()).collect()
    }

    /// Says a message to a member that is connected; it may be lost.
    pub(super) fn pass(&mut self, to: usize, message: &Message) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if let Some(connection) = peer.present {
            let message = peer.delivery.pass(message);
            self.say(connection, message);
        }
    }

    /// Tells all members that this one leaves, and why if it does not do so on request. This member calls no other any more,
    /// and tells callers, too.
    pub(crate) fn leave(&mut self, because: Option<String>) {
        if self.stage == Stage::Leaving {
            return;
        }
        self.stage = Stage::Leaving;
        self.because.clone_from(&because);
        self.first_change = None;
        for node in self.peer_nodes() {
            self.end_attempt(node);
            self.keep(node, &Message::Leaving(because.clone()));
        }
        if self.halted.is_none() {
            let because = because.map(|because| format!(": {because}")).unwrap_or_default();
            let reason = format!("this node stops{because}");
            self.halted = Some(reason.clone());
            self.events.push_back(Event::Halted(reason));
        }
    }

    /// Whether all members that have come know that this one leaves.
    pub(crate) fn all_are_told(&self) -> bool {
        let knows = |peer: &Peer| peer.is_told || peer.is_gone || !peer.has_come;
        self.stage == Stage::Leaving && self.peers.values().all(knows)
    }

    /// Whether this member leaves.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// Why the cluster has halted, if it has.
    pub(crate) fn halted(&self) -> Option<&str> {
        self.halted.as_deref()
    }

    /// How the other members are.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        self.peers.values().filter(|peer| peer.address.is_some()).map(Peer::status).collect()
    }

    /// A message of a member that has come.
    pub(super) fn hear(&mut self, node: usize, message: Message) -> Result<(), LinkError> {
        let peer = self.peers.get(&node);
        let is_there = peer.is_some_and(Peer::is_there);
        let is_newcomer = peer.is_some_and(|peer| peer.is_newcomer);
        let incarnation = peer.and_then(Peer::incarnation).unwrap_or_default();
        match message {
            // A removed member has no more to say than that it leaves.
            Message::Report(_)
            | Message::Manager(_)
            | Message::Change(_)
            | Message::Halted(_)
            | Message::Renew { .. }
            | Message::Granted { .. }
            | Message::Voting { .. }
            | Message::Restart
            | Message::Stops
                if !is_there => {}
            Message::Report(report) => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.reported(report);
                }
            }
            Message::Manager(bytes) => {
                let node = u16::try_from(node).map_err(|_| LinkError::Malformed)?;
                self.events.push_back(Event::Manager(node, bytes));
            }
            Message::Halted(reason) if is_newcomer => self.left(node, Some(reason)),
            Message::Change(message) => match (&message, self.stage) {
                // Nothing is sure before this process is a member.
                (_, Stage::Gathering) if self.comes_back.is_some() => {
                    self.events.push_back(Event::Change(node, message));
                }
                (
                    ChangeMessage::Prepare { change: Change::Form { members, .. }, .. },
                    Stage::Gathering,
                ) if node == FOUNDER => {
                    let members = members.clone();
                    self.form(&members)?;
                    self.first_change = Some(message);
                    self.form_if_complete();
                }
                (_, Stage::Formed) => self.events.push_back(Event::Change(node, message)),
                // Nobody decides anything before the first change.
                (_, Stage::Gathering) => return Err(LinkError::Malformed),
                (_, Stage::Leaving) => {}
            },
            Message::Renew { index, sent_ns, complaints } => {
                let from = u16::try_from(node).map_err(|_| LinkError::Malformed)?;
                let renewal = (index, &complaints[..]);
                if self.leases.grant((from, incarnation), renewal, self.now_ns) {
                    self.pass(node, &Message::Granted { index, sent_ns });
                } else if let Some((index, sets)) = self.leases.other_voters(index) {
                    self.pass(node, &Message::Voting { index, sets });
                }
            }
            Message::Voting { index, sets } => self.leases.hear_voters(index, sets),
            Message::Granted { index, sent_ns } => {
                let voter = u16::try_from(node).map_err(|_| LinkError::Malformed)?;
                self.granted(voter, (index, sent_ns));
            }
            Message::Removed => self.was_removed(),
            Message::Restart => self.events.push_back(Event::Restart),
            Message::Stops => self.hear_stop(node),
            Message::Leaving(because) => {
                self.pass(node, &Message::Farewell);
                self.left(node, because);
            }
            Message::Halted(reason) => self.other_halted(node, &reason),
            Message::Farewell => {
                self.peers.get_mut(&node).into_iter().for_each(|peer| peer.is_told = true);
            }
        }
        Ok(())
    }

    /// From now on the members are these.
    fn form(&mut self, members: &[MemberEntry]) -> Result<(), LinkError> {
        let own = members.get(self.node());
        if members.len() != self.setup.terms.addresses.len() || own != Some(&self.setup.hello.entry)
        {
            return Err(LinkError::Malformed);
        }
        self.stage = Stage::Formed;
        self.leave_out_spares();
        for node in self.peer_nodes() {
            let is_first = |peer: &&mut Peer| peer.node < self.setup.terms.first_nodes;
            let Some(peer) = self.peers.get_mut(&node).filter(is_first) else { continue };
            if peer.become_incarnation(&members[node]) {
                // Another incarnation has come meanwhile, or none.
                self.end_present(node);
            }
        }
        Ok(())
    }

    /// Goes on when all others are connected.
    pub(super) fn form_if_complete(&mut self) {
        let first = self.setup.terms.first_nodes;
        let mut awaited = self.peers.values().filter(|peer| peer.node < first);
        if self.stage == Stage::Leaving || awaited.any(|peer| peer.present.is_none()) {
            return;
        }
        let founds = self.node() == FOUNDER && self.comes_back.is_none();
        if self.stage == Stage::Gathering && founds {
            let entries = self.peers.values().filter(|peer| peer.node < first);
            let entries = entries.filter_map(|peer| peer.entry.clone());
            let mut members: Vec<_> =
                std::iter::once(self.setup.hello.entry.clone()).chain(entries).collect();
            members.resize(self.setup.terms.addresses.len(), MemberEntry::absent());
            self.stage = Stage::Formed;
            self.leave_out_spares();
            let seed = self.setup.hash_seed;
            self.propose(Change::Form { members, seed });
        }
        if let Some(change) = self.first_change.take() {
            self.events.push_back(Event::Change(FOUNDER, change));
        }
    }

    /// A member has said that it leaves.
    pub(super) fn left(&mut self, node: usize, because: Option<String>) {
        match self.stage {
            Stage::Gathering => {
                self.end_present(node);
                let Some(peer) = self.peers.get_mut(&node) else { return };
                if peer.has_come {
                    let why = because.map(|because| format!(": {because}")).unwrap_or_default();
                    tracing::info!("node {node} waits no longer{why}");
                }
                peer.forget();
                peer.call_at_ns = self.now_ns + CALL_INTERVAL_NS;
            }
            Stage::Formed | Stage::Leaving => {
                let because = because.map(|because| format!(": {because}")).unwrap_or_default();
                self.lose(node, Loss::Left, &format!("was stopped{because}"));
            }
        }
    }

    /// A member has ended. The decider revokes it, and the others go on.
    pub(super) fn lose(&mut self, node: usize, loss: Loss, how: &str) {
        self.end_attempt(node);
        self.end_present(node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if std::mem::replace(&mut peer.is_gone, true) {
            return;
        }
        self.last_loss = format!("node {node}{} {how}", peer.at_address());
        if !self.has_joined || self.stage != Stage::Formed {
            return self.cannot_go_on("not all members have joined");
        }
        tracing::warn!("{}", self.last_loss);
        self.tell_loss(node, loss);
    }

    /// Tells the decider that the present process of another node was lost.
    pub(super) fn tell_loss(&mut self, node: usize, how: Loss) {
        let incarnation = self.peers.get(&node).and_then(Peer::incarnation);
        if let (Ok(node), Some(incarnation)) = (u16::try_from(node), incarnation) {
            self.say_change(self.node(), ChangeMessage::Lost { node, incarnation, how });
        }
    }

    /// The cluster cannot go on without a member that was lost, and why.
    pub(crate) fn cannot_go_on(&mut self, why: &str) {
        let last_loss = self.last_loss.clone();
        self.halt(format!(
            "{last_loss}. Without it the cluster cannot go on: {why}; stop all nodes and start them again"
        ));
    }

    /// Sends bytes to the manager's replica of another member; they are lost if there is no connection.
    pub(crate) fn send_to_replica(&mut self, to: usize, bytes: Vec<u8>) {
        match self.waiting(to) {
            Some(connection) => self.say(connection, Ok(bytes)),
            None => self.pass(to, &Message::Manager(bytes)),
        }
    }

    /// A member has said that it has halted.
    fn other_halted(&mut self, node: usize, reason: &str) {
        let place = self.peers.get(&node).map(Peer::at_address).unwrap_or_default();
        let halted = format!("node {node}{place} has halted: {reason}");
        match self.stage {
            // The others have formed the group with this member.
            Stage::Gathering => self.fail(JoinError::Halted(halted)),
            Stage::Formed => self.halt_and_tell(halted, reason),
            Stage::Leaving => {}
        }
    }

    fn halt(&mut self, reason: String) {
        self.halt_and_tell(reason.clone(), &reason);
    }

    /// Halts for a reason, unless this member has halted, and tells the others the first reason that is known.
    fn halt_and_tell(&mut self, reason: String, first: &str) {
        if self.halted.is_some() {
            return;
        }
        self.halted = Some(reason.clone());
        self.events.push_back(Event::Halted(reason));
        self.peer_nodes().into_iter().for_each(|node| self.end_waiting(node));
        if self.stage == Stage::Formed {
            let message = Message::Halted(first.to_owned());
            self.peer_nodes().into_iter().for_each(|node| self.keep(node, &message));
        }
    }

    /// This process cannot become a member. If the group is not formed yet, it forms without this process.
    pub(super) fn fail(&mut self, error: JoinError) {
        if !self.has_failed {
            self.has_failed = true;
            let because = error.to_string();
            self.events.push_back(Event::Failed(error));
            if self.stage == Stage::Gathering {
                self.leave(Some(because));
            }
        }
    }

    /// Says a message to a member, again on later connections until it is heard.
    pub(super) fn keep(&mut self, to: usize, message: &Message) {
        let Some(peer) = self.peers.get_mut(&to).filter(|peer| peer.is_there()) else { return };
        match peer.delivery.keep(message).map(<[u8]>::to_vec) {
            Ok(message) => {
                if let Some(connection) = peer.present {
                    self.say(connection, Ok(message));
                }
            }
            Err(error) => {
                if peer.is_newcomer {
                    return self.lose(to, Loss::Gone, "does not take what it is told");
                }
                // It may still work, so it cannot be revoked.
                self.last_loss = format!("node {to} is silent: {error}");
                self.cannot_go_on("it cannot be told of changes");
            }
        }
    }

    pub(super) fn peer_nodes(&self) -> BTreeSet<usize> {
        self.peers.keys().copied().collect()
    }

    /// Whether this member waits for others to come, or to start.
    fn is_waiting(&self) -> bool {
        !self.has_joined && !self.has_failed && self.halted.is_none()
    }

    fn join_by_ns(&self) -> u64 {
        let timeout_ns = u64::try_from(self.setup.join_timeout.as_nanos()).unwrap_or(u64::MAX);
        self.began_ns.saturating_add(timeout_ns)
    }

    /// The members that are not connected.
    fn missing(&self) -> String {
        let awaited = self.peers.values().filter(|peer| peer.node < self.setup.terms.first_nodes);
        let missing = awaited.filter(|peer| peer.present.is_none());
        let named = missing.map(|peer| format!("node {}{}", peer.node, peer.at_address()));
        named.collect::<Vec<_>>().join(", ")
    }
}
