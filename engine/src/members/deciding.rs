//! The thread that takes part in changes of the configuration, with the manager's replica of this node.
//!
//! ```text
//! messages of members ─┐                                    ┌─▶ messages to members
//!                      ├─▶ Changes ─▶ decisions ─▶ Replica ─┤
//! events of the replica┘                  ◀─── made ────────┘
//! ```
//! The first change is made without replicas; they begin with the members that it names, once.
//!
//! *Not here*: the log, in crate `manager`; who votes, in `voting.rs`.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use gannet_manager::{Event, Options, Replica as ManagerReplica, ReplicaId};
use gannet_rpc::{BootClock, Clock};

use crate::change::Changes;
use crate::change_message::{Addressed, ChangeMessage};
use crate::configuration::Configuration;
use crate::decision::{Decided, Decision};
use crate::members::overriding::{self, OverrideError};
use crate::members::voting::{Voting, replica_ids};
use crate::members::{JoinError, Joining, SharedState};
use crate::membership_status::indispensable;
use crate::replica::Replica;

/// Between two looks whether workers have come to a change.
const WORKERS_LOOK: Duration = Duration::from_micros(200);
/// Between two signs of life of the manager's leader: a fifth of a lease, within these bounds.
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_millis(100);

/// Between two signs of life of the manager's leader.
pub(crate) fn heartbeat(lease: Duration) -> Duration {
    (lease / 5).clamp(*HEARTBEAT.start(), *HEARTBEAT.end())
}

/// The cluster whose log the manager's replica has, and the log's place.
pub(super) struct ManagerLog {
    /// Name of the cluster.
    pub(super) cluster: String,
    /// In memory, if there is none.
    pub(super) directory: Option<PathBuf>,
    /// How long a lease lasts.
    pub(super) lease: Duration,
}

/// What the thread is told.
pub(super) enum Heard {
    /// A member's message, perhaps of this one.
    Member(usize, ChangeMessage),
    /// What has happened at this node's replica of the manager.
    Manager(Event),
    /// These members are lost for ever, and with them a majority: this member is to decide alone. Whether it does is sent.
    GiveUp(BTreeSet<u16>, Sender<Result<(), OverrideError>>),
}

/// The thread's state.
struct Deciding<R: Replica> {
    shared: Arc<SharedState>,
    log: ManagerLog,
    changes: Changes<R>,
    manager: Option<Arc<ManagerReplica>>,
    /// The replica was started before, with the first voters or with those of its log.
    has_begun: bool,
    voting: Voting,
}

/// Takes part in changes until the cluster halts.
pub(super) fn follow<R: Replica>(
    shared: Arc<SharedState>,
    log: ManagerLog,
    changes: Changes<R>,
    heard: &Receiver<Heard>,
) {
    let voting = Voting::default();
    let mut deciding = Deciding { shared, log, changes, manager: None, has_begun: false, voting };
    loop {
        let received = match deciding.next_look() {
            Some(look) => heard.recv_timeout(look),
            None => heard.recv().map_err(RecvTimeoutError::from),
        };
        deciding.changes.set_time(BootClock.now_ns());
        let said = match received {
            Ok(Heard::Member(from, message)) => deciding.changes.receive(from, message),
            Ok(Heard::Manager(event)) => deciding.take_event(event),
            Ok(Heard::GiveUp(lost, answer)) => {
                // The thread that asked may have gone.
                let _ = answer.send(deciding.give_up(&lost));
                Vec::new()
            }
            Err(RecvTimeoutError::Timeout) => deciding.changes.poll(),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        deciding.say(said);
        if let Err(error) = deciding.go_on() {
            let reason = format!("the manager's replica cannot start: {error}");
            deciding.shared.change_and_wake(|state| state.group.leave(Some(reason)));
        }
    }
}

impl<R: Replica> Deciding<R> {
    /// How long the thread waits until it looks at the changes, whatever it hears.
    fn next_look(&self) -> Option<Duration> {
        let deadline_ns = self.changes.next_deadline_ns();
        let due = deadline_ns.map(|at| Duration::from_nanos(at.saturating_sub(BootClock.now_ns())));
        due.into_iter().chain(self.changes.awaits_workers().then_some(WORKERS_LOOK)).min()
    }

    fn take_event(&mut self, event: Event) -> Vec<Addressed> {
        match event {
            Event::Leads { term } => {
                self.voting.set_leads(true);
                tracing::info!("this node decides on the membership from now on, in term {term}");
                self.changes.leads(term)
            }
            Event::Follows { .. } => {
                self.voting.set_leads(false);
                self.changes.follows();
                Vec::new()
            }
            Event::Made { term, decision } => match postcard::from_bytes(&decision) {
                Ok(decision) => self.changes.made(term, &decision),
                Err(error) => {
                    tracing::error!("a decision in the manager's log is damaged: {error}");
                    Vec::new()
                }
            },
            Event::Installed { snapshot, .. } => {
                match Decided::from_snapshot(&snapshot) {
                    Ok(decided) => self.changes.installed(decided),
                    Err(error) => {
                        tracing::error!("a snapshot of the manager's log is damaged: {error}");
                    }
                }
                Vec::new()
            }
            Event::Failed { reason } => {
                tracing::error!("this node takes no part in decisions any more: {reason}");
                self.voting.set_leads(false);
                // It does not hear any more who votes.
                self.voting.set_voters(Vec::new());
                self.changes.follows();
                Vec::new()
            }
            Event::Voters(sets) => {
                self.voting.set_voters(sets);
                Vec::new()
            }
            // The replica's thread tells the group itself.
            Event::Appended { .. }
            | Event::Truncated { .. }
            | Event::Voting { .. }
            | Event::Send { .. } => Vec::new(),
        }
    }

    /// Says what there is to say, and tells what has become of joining.
    fn say(&mut self, said: Vec<Addressed>) {
        let Self { shared, changes, .. } = self;
        shared.change_and_wake(|state| {
            if let Some(reason) = changes.take_end() {
                state.group.cannot_go_on(&reason);
            }
            for (to, message) in said {
                state.group.say_change(to, message);
            }
            state.group.remove(&changes.removed());
            state.group.admit(&changes.incarnations());
            state.group.set_changing(changes.is_changing());
            state.deciders.suspicions = changes.suspicions();
            state.answers.append(&mut changes.take_answers());
            if let Some(error) = changes.take_failure() {
                state.fail(JoinError::from(error));
            } else if changes.is_formed() && matches!(state.joining, Joining::Waiting) {
                state.joining = Joining::Joined;
                state.group.joined(changes.configuration());
            }
        });
    }

    /// Does what follows for the replica, which begins when the members are known.
    fn go_on(&mut self) -> io::Result<()> {
        if !self.changes.is_formed() {
            return Ok(());
        }
        let manager = match &self.manager {
            Some(manager) => Arc::clone(manager),
            None => self.start(None)?,
        };
        for decision in self.changes.take_decisions() {
            manager.decide(postcard::to_stdvec(&decision).map_err(io::Error::other)?);
        }
        let wanted = self.voting.take_wanted(self.shared.node(), self.changes.configuration());
        wanted.into_iter().for_each(|members| manager.set_members(members));
        self.changes.set_silent(&self.shared.lock().group.silent());
        let admits = self.voting.admits(self.changes.configuration());
        let said = self.changes.set_admits(admits);
        if !said.is_empty() {
            self.say(said);
        }
        // Voters of the past may all have ended. So may present ones: those come back that keep their logs.
        let knows_log = self.changes.knows_log();
        let lost = self.changes.lost_for_good();
        if let Some(why) = self.voting.obstacle(&lost).filter(|_| knows_log) {
            self.shared.change_and_wake(|state| state.group.cannot_go_on(&why));
        }
        Ok(())
    }

    /// How the manager's replica of this node starts: with the first voters, or, if the log is there already or it goes on from its own, without
    /// any.
    fn options(&mut self) -> Options {
        let configuration = self.changes.configuration();
        let mut voters = BTreeSet::new();
        if !self.has_begun && !self.changes.has_come_back() {
            voters = Voting::first_voters(configuration);
            self.voting.set_voters(vec![voters.clone()]);
            tell_losses(configuration, &voters);
            self.shared.change(|state| state.deciders.voters.clone_from(&voters));
        }
        let node = self.shared.node();
        let incarnation = configuration.members[usize::from(node)].incarnation;
        Options {
            cluster: self.log.cluster.clone(),
            id: ReplicaId { node, incarnation },
            founders: replica_ids(configuration, voters.iter()),
            heartbeat: heartbeat(self.log.lease),
            directory: self.log.directory.clone(),
        }
    }

    /// Has the replica vote alone, as an operator has given up these members, and with them the majority.
    fn give_up(&mut self, lost: &BTreeSet<u16>) -> Result<(), OverrideError> {
        let Some(manager) = &self.manager else { return Err(OverrideError::NoLog) };
        if self.log.directory.is_none() {
            return Err(OverrideError::InMemory);
        }
        let own = (self.shared.node(), manager.log_end());
        let others = self.shared.lock().group.survey();
        let configuration = self.changes.configuration();
        overriding::check(configuration, own, self.voting.sets(), &others, lost)?;
        tracing::warn!(
            "an operator has given up nodes {lost:?}, which had a majority: this node decides on the membership alone from now on"
        );
        let (lost, left): (Vec<u16>, Vec<u16>) =
            configuration.member_numbers().partition(|node| lost.contains(node));
        let of = |nodes: &[u16]| replica_ids(configuration, nodes.iter());
        let (lost, left) = (of(&lost), of(&left));
        self.changes.follows();
        // Without the lock, which the replica's thread may wait for before it ends, and gives the directory back.
        let ended = (self.manager.take(), self.shared.change(|state| state.manager.take()));
        drop(ended);
        // If it cannot take over, because its disk is full, it is started as it was.
        self.start(Some(&left)).map_err(|error| OverrideError::Failed(error.to_string()))?;
        self.voting.give_up(own.0, lost);
        Ok(())
    }

    /// Starts the manager's replica of this node. It takes over from a majority that is given up if there are those that are left.
    fn start(&mut self, left: Option<&BTreeSet<ReplicaId>>) -> io::Result<Arc<ManagerReplica>> {
        let options = self.options();
        self.has_begun = true;
        let decided = self.changes.first_decided();
        let manager = match left {
            Some(left) => ManagerReplica::take_over(options, left, decided, self.on_event()),
            None => ManagerReplica::start(options, decided, self.on_event()),
        };
        let manager = manager.map_err(io::Error::other)?;
        let manager = Arc::new(manager);
        self.manager = Some(Arc::clone(&manager));
        self.shared.change(|state| {
            state.predecessor = None;
            let early = std::mem::take(&mut state.early);
            early.into_iter().for_each(|(from, bytes)| manager.hear(from, bytes));
            state.manager = Some(Arc::clone(&manager));
        });
        Ok(manager)
    }

    /// What happens at the replica, on its thread.
    fn on_event(&self) -> impl Fn(Event) + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.shared);
        move |event| {
            let Some(shared) = shared.upgrade() else { return };
            match event {
                Event::Send { to, bytes } => {
                    shared.change_and_wake(|state| {
                        state.group.send_to_replica(usize::from(to), bytes)
                    });
                }
                // At once: what the log has taken, no lease may be granted against.
                Event::Appended { index, term, decision } => {
                    if let Some(standing) = Decision::standing_of(term, &decision) {
                        shared.change(|state| state.group.log_standing(index, standing));
                    }
                }
                Event::Truncated { from } => shared.change(|state| state.group.log_truncated(from)),
                Event::Voting { index, sets } => {
                    shared.change_and_wake(|state| state.group.set_voters(index, sets));
                }
                event => shared.change(|state| {
                    match &event {
                        Event::Leads { .. } => {
                            state.group.set_decides(true);
                            state.deciders.leader = u16::try_from(state.group.node()).ok();
                        }
                        Event::Follows { leader } => {
                            state.group.set_decides(false);
                            state.deciders.leader = *leader;
                        }
                        Event::Voters(sets) => {
                            state.deciders.voters = sets.iter().flatten().copied().collect();
                        }
                        Event::Installed { index, snapshot } => {
                            match Decided::from_snapshot(snapshot) {
                                Ok(Decided { configuration, .. }) => {
                                    state.group.log_installed(*index, &configuration);
                                }
                                // It does not know whom it may grant a lease.
                                Err(_) => state.group.vote_no_more(),
                            }
                        }
                        // It does not hear of removals any more.
                        Event::Failed { .. } => state.group.vote_no_more(),
                        _ => {}
                    }
                    state.tell(Heard::Manager(event));
                }),
            }
        }
    }
}

/// Tells the log which loss the cluster does not survive.
fn tell_losses(configuration: &Configuration, voters: &BTreeSet<u16>) {
    let (indispensable, awaited) = indispensable(configuration, voters);
    if !indispensable.is_empty() {
        tracing::warn!(
            "nodes {voters:?} vote on the membership; the cluster cannot go on after the loss of one of these nodes: {indispensable:?}"
        );
    } else if !awaited.is_empty() {
        tracing::warn!(
            "nodes {voters:?} vote on the membership; after the loss of one of these nodes the cluster waits until its process is started again: {awaited:?}"
        );
    } else {
        tracing::info!(
            "nodes {voters:?} vote on the membership; the cluster goes on after the loss of any one node"
        );
    }
}
