//! The other processes of a cluster: they come, agree on the first configuration and on all changes of it, report, and leave.
//!
//! ```text
//! Members   this process's member, for the rest of the engine                 mod.rs
//!   ├─ Group    who is there, what was said and not heard, why it halts          group.rs, calls.rs, peer.rs
//!   │             a state machine; messages in message.rs, bytes by `link`
//!   │    Leases   renewals, grants, suspicions                                 renewals.rs, leases.rs
//!   ├─ Sockets  a thread that serves the group                                   sockets.rs
//!   └─ Changes  a thread that takes part in changes, which may block, with the    deciding.rs
//!               manager's replica
//! ```
//! A stream per pair of members, at the address whose UDP port belongs to worker 0. No request takes this way. A stream that
//! breaks while both live is made anew.
//!
//! A member counts as lost when its host says that nobody listens at its address, or when it says that it leaves. One that is silent is
//! suspected: `leases.rs`.
//!
//! *Invariants*: members agree on all settings and know each other's incarnations before the first request. A process that comes
//! again is let in when the one before it was removed. Reports flow while a change is made.
//!
//! *Not here*: requests, in crate `rpc`; what follows when a member is lost, in `membership_change`.

mod asking;
mod calls;
mod coming_back;
mod deciding;
mod group;
mod leases;
mod membership;
mod message;
mod overriding;
mod peer;
mod predecessor;
mod renewals;
mod sockets;
mod stopping;
mod terms;
#[cfg(test)]
mod tests;
mod voting;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use gannet_manager::{Replica as ManagerReplica, ReplicaId};
use gannet_rpc::{BootClock, Clock};
use rustix::event::{EventfdFlags, eventfd};

use crate::change::Changes;
use crate::cluster::{ClusterError, drawn_hash_seed};
use crate::cluster_state::FailureAction;
use crate::configuration::{Change, ChangeError, Configuration, MemberEntry};
use crate::lease::LeaseTerms;
use crate::member::Member;
use crate::members::deciding::{Heard, ManagerLog};
use crate::members::sockets::Sockets;
use crate::membership_status::ManagerStatus;
use crate::outcome::panic_message;
use crate::replica::Replica;
use crate::statistics::{ManagerReport, NodeReport, NodeStatus};

pub use asking::ask_members;
pub(crate) use calls::Input;
pub(crate) use deciding::heartbeat;
pub(crate) use group::{Action, Event, Group, Setup};
pub(crate) use membership::refused;
pub use membership::{Invitation, JoinError, Membership, RdmaPort, Transport};
pub(crate) use message::Hello;
pub use overriding::OverrideError;
pub(crate) use predecessor::Predecessor;
pub use terms::ClusterTerms;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use voting::{Voting, replica_ids};

/// Messages to this node's replica of the manager that are kept until it has begun.
const EARLY_MAX: usize = 64;
/// Longest time that a member that nobody needs waits until it is none any more.
const PARTING: Duration = Duration::from_secs(2);
/// Longest time that a member that leaves waits until the others know.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Whether this process has become a member.
enum Joining {
    Waiting,
    Joined,
    Failed(JoinError),
}

/// What the threads of a member share.
struct State {
    group: Group,
    joining: Joining,
    /// Messages about changes go here, until the cluster halts.
    changes: Option<Sender<Heard>>,
    /// This node's replica of the manager, when the members are known.
    manager: Option<Arc<ManagerReplica>>,
    /// That of the process before, if this one has its directory.
    predecessor: Option<Arc<Predecessor>>,
    /// What other nodes' replicas have said before this node had one.
    early: Vec<(u16, Vec<u8>)>,
    /// The decider. Its suspicions are those of members that do not finish a step of a change.
    deciders: ManagerStatus,
    /// Answers to this member's proposals, by number.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    reporter: Option<Arc<Member>>,
    /// What to do when the cluster halts.
    on_halt: Option<Box<dyn Fn() + Send>>,
    /// What to do when the others have removed this member.
    on_removal: Option<FailureAction>,
    /// What to do when an operator has this process restart.
    on_restart: Option<Arc<dyn Fn() + Send + Sync>>,
    /// One has, and nothing was done yet.
    restart_wanted: bool,
    /// Nobody needs the group any more.
    is_over: bool,
}

impl State {
    /// Handles what has happened; why the cluster has halted just now, if it has and this member did not request it.
    fn handle_events(&mut self) -> Option<String> {
        let mut halted = None;
        while let Some(event) = self.group.next_event() {
            match event {
                Event::Change(from, message) => self.tell(Heard::Member(from, message)),
                Event::Manager(from, bytes) => match &self.manager {
                    Some(manager) => manager.hear(from, bytes),
                    None => self.hear_early(from, bytes),
                },
                Event::Waits(node, incarnation) => {
                    let member = ReplicaId { node, incarnation };
                    self.predecessor.iter().for_each(|it| it.resume(member));
                }
                Event::WaitsNoMore(node) => {
                    self.predecessor.iter().for_each(|it| it.part(node));
                }
                Event::Restart => self.restart_wanted = true,
                Event::ReportDue => {
                    let log_end = self.manager.as_ref().map(|manager| manager.log_end());
                    if let Some(member) = &self.reporter {
                        let hears = self.group.heard();
                        let manager = log_end.map(|log_end| ManagerReport { log_end, hears });
                        self.group.report(&NodeReport { manager, ..member.report() });
                    }
                }
                Event::RenewalDue => {
                    let node = self.reporter.as_ref().map(|member| member.node());
                    let complaints = node.map(|node| node.take_complaints()).unwrap_or_default();
                    self.group.renew(&complaints);
                    let copied = node.map(|node| node.take_copied()).unwrap_or_default();
                    self.group.tell_copied(copied);
                }
                Event::Lease(until_ns) => {
                    self.reporter.iter().for_each(|member| extend_lease(member, until_ns));
                }
                Event::Failed(error) => self.fail(error),
                Event::Halted(reason) => {
                    self.changes = None;
                    self.on_halt.iter().for_each(|act| act());
                    self.fail(JoinError::Halted(reason.clone()));
                    halted = Some(reason).filter(|_| !self.group.is_leaving());
                }
            }
        }
        halted
    }

    /// What another node's replica says while this node has none of its own: it may be for the predecessor's.
    fn hear_early(&mut self, from: u16, bytes: Vec<u8>) {
        let rest = match &self.predecessor {
            Some(predecessor) => predecessor.hear(from, bytes),
            None => Some(bytes),
        };
        // What does not fit is said again.
        if let Some(bytes) = rest.filter(|_| self.early.len() < EARLY_MAX) {
            self.early.push((from, bytes));
        }
    }

    /// Tells the thread of changes something.
    fn tell(&self, heard: Heard) {
        if let Some(changes) = &self.changes {
            // The thread has ended if the cluster has halted.
            let _ = changes.send(heard);
        }
    }

    fn fail(&mut self, error: JoinError) {
        if matches!(self.joining, Joining::Waiting) {
            self.joining = Joining::Failed(error);
        }
    }
}

/// Extends the lease of a member. If it had none any more, its workers send what has waited.
fn extend_lease(member: &Member, until_ns: u64) {
    let before_ns = member.node().lease().extend(until_ns);
    // After the extension: a worker that has found no lease before is woken.
    if before_ns <= BootClock.now_ns() {
        member.wake_all();
    }
}

/// The state, and what tells of its changes.
struct SharedState {
    state: Mutex<State>,
    changed: Condvar,
    /// Tells the thread of the sockets that the group has something to do.
    woken: OwnedFd,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, so a poisoned state is a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of this process's node.
    fn node(&self) -> u16 {
        u16::try_from(self.lock().group.node()).expect("nodes are numbered with 16 bits")
    }

    /// Does something with the state, and what follows.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let changed = change(&mut state);
        let halted = state.handle_events();
        let removal = if state.group.is_outcast() { state.on_removal.take() } else { None };
        let reason = removal.as_ref().and_then(|_| state.group.halted().map(str::to_owned));
        let restart = state.on_restart.clone();
        let restart = restart.filter(|_| std::mem::take(&mut state.restart_wanted));
        self.changed.notify_all();
        drop(state);
        // Without the lock: the log may be slow. The group's own lines, which are few, are written under the lock.
        if let Some(reason) = halted {
            tracing::error!("{reason}");
        }
        if let (Some(act), Some(reason)) = (removal, reason) {
            act(&reason);
        }
        restart.iter().for_each(|act| act());
        changed
    }

    /// The same, by another thread than that of the sockets.
    fn change_and_wake<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = self.change(change);
        self.wake();
        changed
    }

    /// Wakes the thread of the sockets.
    fn wake(&self) {
        // It fails only if the thread has been woken very often already.
        let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
    }

    /// Forgets how often the thread of the sockets was woken.
    fn hear_wakes(&self) {
        let _ = rustix::io::read(&self.woken, &mut [0; 8]);
    }

    /// What the sockets are to do, and until when they may wait then; none if it is over.
    fn turn(&self) -> Option<(Vec<Action>, u64)> {
        self.change(|state| {
            let node = state.reporter.as_ref().map(|member| member.node());
            if node.is_some_and(|node| node.lease().take_wish()) {
                state.group.renew_now();
            }
            // After the wish: what was read before is confirmed by what is sent now.
            state.group.advance(BootClock.now_ns());
            let actions: Vec<_> = std::iter::from_fn(|| state.group.next_action()).collect();
            let is_over = state.is_over && actions.is_empty();
            (!is_over).then(|| (actions, state.group.next_deadline_ns()))
        })
    }

    fn take(&self, connection: u64, input: &Input<'_>) {
        self.change(|state| state.group.take(connection, input));
    }

    fn accepted(&self, from: SocketAddr) -> u64 {
        self.change(|state| state.group.accepted(from.to_string()))
    }

    /// A thread has panicked: without it this member cannot go on.
    fn met_bug(&self, panic: &(dyn Any + Send)) {
        let why = panic_message(panic);
        let reason = format!("it has met a bug: {why}; start the cluster again");
        tracing::error!("this node stops: {reason}");
        self.change_and_wake(|state| {
            state.fail(JoinError::Halted(format!("this node stops: {reason}")));
            state.group.leave(Some(reason));
        });
    }
}

/// This process's member among all members.
pub(crate) struct Members {
    address: SocketAddr,
    transport: Transport,
    shared: Arc<SharedState>,
    threads: Vec<JoinHandle<()>>,
}

impl Members {
    /// Listens, calls the other members, and takes part in the first change of the configuration when all have come.
    pub(crate) fn start<R: Replica + Send + 'static>(
        membership: &Membership,
        terms: ClusterTerms,
        (entry, predecessor): (MemberEntry, Option<Arc<Predecessor>>),
        configuration: Configuration,
        replica: R,
    ) -> Result<Self, JoinError>
    where
        R::Prepared: Send,
    {
        let node = membership.node;
        let address = membership.own_address().expect("checked: a node has an address");
        let listener =
            TcpListener::bind(address).map_err(|reason| JoinError::Listen { address, reason })?;
        let setup = Setup {
            hello: Hello { node, entry, settings: terms.settings() },
            terms,
            founds: membership.invitation.is_none(),
            key: membership.key.clone(),
            join_timeout: membership.join_timeout,
            predecessor: predecessor.as_ref().map(|it| it.incarnation()),
            hash_seed: drawn_hash_seed().map_err(refused("random bytes"))?,
        };
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let (changes, messages) = channel();
        let state = State {
            group: Group::new(setup, BootClock.now_ns()),
            joining: Joining::Waiting,
            changes: Some(changes),
            manager: None,
            predecessor: predecessor.clone(),
            early: Vec::new(),
            deciders: ManagerStatus::default(),
            answers: BTreeMap::new(),
            reporter: None,
            on_halt: None,
            on_removal: None,
            on_restart: None,
            restart_wanted: false,
            is_over: false,
        };
        let shared = Arc::new(SharedState {
            state: Mutex::new(state),
            changed: Condvar::new(),
            woken: eventfd(0, flags).map_err(refused("a descriptor"))?,
        });
        if let Some(predecessor) = predecessor {
            let carrier = Arc::downgrade(&shared);
            predecessor.send_by(move |to, bytes| {
                if let Some(shared) = carrier.upgrade() {
                    shared.change_and_wake(|state| {
                        state.group.send_to_replica(usize::from(to), bytes)
                    });
                }
            });
        }
        let sockets = Sockets::new(Arc::clone(&shared), listener)
            .map_err(refused("a listener that does not block"))?;
        let transport = membership.transport;
        let mut members = Self { address, transport, shared, threads: Vec::new() };
        members.spawn("members", || sockets.serve())?;
        let shared = Arc::clone(&members.shared);
        let terms = LeaseTerms::new(membership.lease);
        let terms = Some(terms.with_copies_after(membership.copies_after));
        let changes = Changes::new(node, Arc::new(configuration), replica, terms);
        let (cluster, directory) = (membership.cluster.clone(), membership.manager_data.clone());
        let log = ManagerLog { cluster, directory, lease: membership.lease };
        members
            .spawn("members-change", move || deciding::follow(shared, log, changes, &messages))?;
        Ok(members)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), JoinError> {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                shared.met_bug(&*panic);
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        self.threads.push(thread.map_err(refused("a thread"))?);
        Ok(())
    }

    /// Waits until all members have begun.
    pub(crate) fn wait_until_joined(&self) -> Result<(), JoinError> {
        let is_waiting = |state: &mut State| matches!(state.joining, Joining::Waiting);
        let waited = self.shared.changed.wait_while(self.shared.lock(), is_waiting);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut state.joining, Joining::Joined) {
            Joining::Failed(error) => Err(error),
            Joining::Joined | Joining::Waiting => Ok(()),
        }
    }

    /// Of this member.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Why the cluster has halted, if it has.
    pub(crate) fn halted(&self) -> Option<String> {
        self.shared.lock().group.halted().map(str::to_owned)
    }

    /// Says what to do when the cluster halts; done at once if it has.
    pub(crate) fn on_halt(&self, act: impl Fn() + Send + 'static) {
        let mut state = self.shared.lock();
        if state.group.halted().is_some() {
            act();
        }
        state.on_halt = Some(Box::new(act));
    }

    /// Says what to do when the others have removed this member; the function gets the reason.
    pub(crate) fn on_removal(&self, act: impl FnOnce(&str) + Send + 'static) {
        self.shared.change(|state| state.on_removal = Some(Box::new(act)));
    }

    /// Reports every second from now on.
    pub(crate) fn keep_reporting(&self, member: Arc<Member>) {
        let shared = Arc::downgrade(&self.shared);
        member.node().set_renewal_waker(move || shared.upgrade().iter().for_each(|it| it.wake()));
        self.shared.lock().reporter = Some(member);
    }

    /// Tells the others that this member stops.
    pub(crate) fn leave(&self) {
        self.shared.change_and_wake(|state| state.group.leave(None));
    }

    /// A function that tells the others that this member stops and why, for a thread without the members.
    pub(crate) fn leaver(&self) -> impl Fn(&str) + Send + 'static {
        let shared = Arc::clone(&self.shared);
        move |why| shared.change_and_wake(|state| state.group.leave(Some(why.to_owned())))
    }

    /// Says what to do when an operator has this process stop and be started again; done at once if one has.
    pub(crate) fn on_restart(&self, act: impl Fn() + Send + Sync + 'static) {
        self.shared.change(|state| state.on_restart = Some(Arc::new(act)));
    }

    /// Has the process of a member stop and be started again. Whether it is there.
    pub(crate) fn restart(&self, node: u16) -> bool {
        self.shared.change_and_wake(|state| state.group.restart(usize::from(node)))
    }

    /// Has this member decide on the membership without a majority, as these members are lost for ever; they are removed then. Waits until
    /// it is recorded.
    pub(crate) fn give_up(&self, lost: BTreeSet<u16>) -> Result<(), ClusterError> {
        let (answer, answered) = channel();
        self.shared.change(|state| state.tell(Heard::GiveUp(lost.clone(), answer)));
        match answered.recv() {
            Ok(given_up) => given_up?,
            // The thread has ended.
            Err(_) => {
                let reason = self.halted().unwrap_or_else(|| "this node stops".to_owned());
                return Err(JoinError::Halted(reason).into());
            }
        }
        Ok(self.propose(Change::GiveUp(lost.into_iter().collect()))??)
    }

    /// Tells the others that this member is to stop.
    pub(crate) fn announce_stop(&self) {
        self.shared.change_and_wake(|state| state.group.announce_stop());
    }

    /// The other members that are there, each with whether it is to stop.
    pub(crate) fn present(&self) -> BTreeMap<u16, bool> {
        self.shared.lock().group.present()
    }

    /// Proposes a change, and waits for the answer: then all members go by it.
    pub(crate) fn propose(&self, change: Change) -> Result<Result<(), ChangeError>, JoinError> {
        let number = self.shared.change_and_wake(|state| state.group.propose(change));
        let mut state = self.shared.lock();
        loop {
            if let Some(answer) = state.answers.remove(&number) {
                return Ok(answer);
            }
            if let Some(reason) = state.group.halted() {
                return Err(JoinError::Halted(reason.to_owned()));
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Proposes that this member, which nobody needs, is none any more, so that nobody notices that it leaves. It is waited for a short time:
    /// if it comes to nothing, the others remove this member when it has left.
    pub(crate) fn part(&self) {
        let node = self.shared.node();
        let number = self.shared.change_and_wake(|state| state.group.propose(Change::Part(node)));
        let is_open = |state: &mut State| {
            !state.answers.contains_key(&number) && state.group.halted().is_none()
        };
        let waited = self.shared.changed.wait_timeout_while(self.shared.lock(), PARTING, is_open);
        drop(waited);
    }

    /// The member that decides on the membership, and how often this member has suspected others.
    pub(crate) fn manager_status(&self) -> ManagerStatus {
        let state = self.shared.lock();
        let suspicions = state.deciders.suspicions + state.group.suspicions;
        ManagerStatus { suspicions, ..state.deciders.clone() }
    }

    /// How the other members are.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        self.shared.lock().group.status()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.leave();
        let not_all_told = |state: &mut State| !state.group.all_are_told();
        let waited =
            self.shared.changed.wait_timeout_while(self.shared.lock(), LAST_WORDS, not_all_told);
        drop(waited);
        self.shared.change_and_wake(|state| state.is_over = true);
        for thread in self.threads.drain(..) {
            // One that has panicked has nothing more to do.
            let _ = thread.join();
        }
        // They hold what holds the group. The end of the replica waits for its thread, which may want the lock.
        let mut state = self.shared.lock();
        let held = (state.on_halt.take(), state.on_removal.take(), state.on_restart.take());
        let more = (state.reporter.take(), state.manager.take(), state.predecessor.take());
        drop(state);
        drop((held, more));
    }
}
