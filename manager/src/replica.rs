//! One node's replica of the log, on a thread of its own.
//!
//! ```text
//! owner: heard bytes, decisions of the leader, voters ──▶ Replica ──▶ events: leads, follows, decisions, voters, bytes to carry
//! ```
//! *Invariants*: events come in one order. A node that `Leads` has heard of all decisions of earlier terms. It may learn late that another
//! leads: the log takes none of its decisions then, and each decision has the term in which the log has taken it.

pub(crate) mod driven;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use openraft::{ChangeMembers, Config, EmptyNode, Membership, Raft, ServerState, SnapshotPolicy};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::decisions::{Decisions, StateMachine};
use crate::disk::{Directory, DirectoryError, Disk};
use crate::network::Network;
use crate::store::{self, LogEnds, LogStore};
use crate::{LogEnd, ReplicaId, Types};

/// Between two attempts of a leader: to hear of all decisions, or to change the members of the log.
const AGAIN: Duration = Duration::from_millis(200);
/// After so many entries there is a snapshot.
const SNAPSHOT_ENTRIES: u64 = 512;
/// So many entries that are in the snapshot are kept, for nodes that are a little behind.
const KEPT_ENTRIES: u64 = 64;
/// No node has this number.
const NOBODY: u16 = u16::MAX;

/// What has happened at a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// This node leads from now on, in a term that no other node leads in.
    Leads {
        /// The term.
        term: u64,
    },
    /// Another node leads, or none that is known.
    Follows {
        /// Which one.
        leader: Option<u16>,
    },
    /// All decisions up to some place in the log were made: what they come to replaces what was made before. It comes first at a
    /// replica that goes on from what is in its directory, and later at one that was far behind.
    Installed {
        /// The last place in the log that is in it.
        index: u64,
        /// The snapshot of the owner's state machine.
        snapshot: Vec<u8>,
    },
    /// The log of this node takes a decision, which may never be made. It comes before any other node hears that this one has it.
    /// A replica that goes on says again what is in its log.
    Appended {
        /// Its place in the log.
        index: u64,
        /// The term in which the log takes it.
        term: u64,
        /// The decision.
        decision: Vec<u8>,
    },
    /// The log of this node takes new voters, or the two sets between which they change. Each set decides by majority from now on.
    /// An earlier incarnation of this node is not this one: it counts as node 65,535, which is nobody.
    Voting {
        /// Their place in the log.
        index: u64,
        /// One set, or two.
        sets: Vec<BTreeSet<u16>>,
    },
    /// The log of this node has given up what it took at these places; none of it was made.
    Truncated {
        /// The first of them.
        from: u64,
    },
    /// A decision was made.
    Made {
        /// The term in which the log has taken it.
        term: u64,
        /// The decision.
        decision: Vec<u8>,
    },
    /// These nodes vote: nothing is decided without a majority of each set. There are two sets while the voters change. Numbers are as
    /// in [`Self::Voting`].
    Voters(Vec<BTreeSet<u16>>),
    /// Send these bytes to a node; they may be lost.
    Send {
        /// The node.
        to: u16,
        /// What it is to hear.
        bytes: Vec<u8>,
    },
    /// The replica could not start, or could not store something, or raft has ended. Nothing more comes but events that were under way.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why a replica does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refuses a thread.
    #[error("the system gives the manager no thread: {0}")]
    Thread(#[source] io::Error),
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The log cannot take the entry by which the replica votes alone.
    #[error("the replica cannot take over: {0}")]
    TakeOver(#[source] io::Error),
}

/// How a replica is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster. A directory of another is refused.
    pub cluster: String,
    /// The replica. A directory of another node is refused.
    pub id: ReplicaId,
    /// Those that vote at first, the same at all replicas that begin the log. A replica that comes later knows none: it hears of the
    /// log when the leader has taken it in.
    pub founders: BTreeSet<ReplicaId>,
    /// Between two signs of life of the leader. A node that has had none for about three times as long stands for election.
    pub heartbeat: Duration,
    /// What the replica stores is in this directory, which is made if there is none, and it goes on from there. Without one it is
    /// in memory.
    pub directory: Option<PathBuf>,
}

enum Command {
    Hear(u16, Vec<u8>),
    Decide(Vec<u8>),
    SetMembers(LogMembers),
    HandOver(BTreeSet<ReplicaId>),
    End,
}

/// The replicas of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogMembers {
    /// All of them.
    pub all: BTreeSet<ReplicaId>,
    /// Those of them that vote.
    pub voters: BTreeSet<ReplicaId>,
}

/// A replica that runs. It ends when it is dropped.
pub struct Replica {
    commands: UnboundedSender<Command>,
    log_ends: LogEnds,
    thread: Option<thread::JoinHandle<()>>,
}

impl Replica {
    /// Starts a replica; `on_event` is called for each event, on the replica's thread. Decisions are folded into `state`, which
    /// is the same at the beginning at all nodes; a replica that goes on has that of its directory instead.
    ///
    /// # Errors
    /// [`StartError`], if the system refuses a thread or the directory cannot be used.
    pub fn start(
        options: Options,
        state: impl StateMachine,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let disk = match &options.directory {
            Some(path) => Some(Box::new(Directory::open(path)?) as Box<dyn Disk>),
            None => None,
        };
        Self::start_on(disk, options, None, (Box::new(state), Arc::new(on_event)))
    }

    /// Starts a replica that goes on from its directory, and votes alone from now on: an operator has given up the majority that voted before,
    /// for ever. `all` are the replicas that hear its decisions. Otherwise as [`Self::start`].
    ///
    /// The caller is sure of two things: no replica of that majority votes any more, and no other replica that is left has a
    /// log with a later [`LogEnd`]. Then this log has all decisions that a replica which is left goes by.
    ///
    /// # Errors
    /// As [`Self::start`]; there is no directory, or it cannot be written to.
    pub fn take_over(
        options: Options,
        all: &BTreeSet<ReplicaId>,
        state: impl StateMachine,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let path = options.directory.clone().unwrap_or_default();
        let disk = Some(Box::new(Directory::open(&path)?) as Box<dyn Disk>);
        Self::start_on(disk, options, Some(all), (Box::new(state), Arc::new(on_event)))
    }

    /// Starts a replica whose files are on a disk, if there is one. It takes over from a majority that is given up if it is told for whom.
    fn start_on(
        disk: Option<Box<dyn Disk>>,
        options: Options,
        takes_over: Option<&BTreeSet<ReplicaId>>,
        (state, on_event): (Box<dyn StateMachine>, OnEvent),
    ) -> Result<Self, StartError> {
        let stores = store::open(disk, &options.cluster, options.id, state, &on_event)?;
        let storage = stores.0.storage();
        takes_over.map_or(Ok(()), |all| storage.take_over(all)).map_err(StartError::TakeOver)?;
        let log_ends = storage.log_ends();
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (commands, received) = unbounded_channel();
        let body = move || runtime.block_on(run(options, stores, on_event, received));
        let thread = thread::Builder::new().name("manager".to_owned()).spawn(body);
        let thread = Some(thread.map_err(StartError::Thread)?);
        Ok(Self { commands, log_ends, thread })
    }

    /// The last place of its log.
    #[must_use]
    pub fn log_end(&self) -> LogEnd {
        self.log_ends.last()
    }

    /// Takes bytes that another node's replica had carried here.
    pub fn hear(&self, from: u16, bytes: Vec<u8>) {
        self.command(Command::Hear(from, bytes));
    }

    /// Proposes a decision, as the leader. It is made when [`Event::Made`] says so; if another node leads before, it may not be.
    pub fn decide(&self, decision: Vec<u8>) {
        self.command(Command::Decide(decision));
    }

    /// Has these replicas be those of the log, as the leader. What was said so before holds no more.
    pub fn set_members(&self, members: LogMembers) {
        self.command(Command::SetMembers(members));
    }

    /// Has those of these replicas vote in place of all others that the log names, as the leader; nothing comes of it if that is none. What
    /// was said so before holds no more.
    pub fn hand_over(&self, to: BTreeSet<ReplicaId>) {
        self.command(Command::HandOver(to));
    }

    fn command(&self, command: Command) {
        // A replica that has ended, because its disk has failed or raft has met a bug, was logged.
        let _ = self.commands.send(command);
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.command(Command::End);
        if let Some(thread) =
            self.thread.take().filter(|it| it.thread().id() != thread::current().id())
        {
            // One that has panicked has nothing more to do.
            let _ = thread.join();
        }
    }
}

/// Is called for each event.
pub(crate) type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// The body of the thread.
async fn run(
    options: Options,
    (log, decisions): (LogStore, Decisions),
    on_event: OnEvent,
    mut commands: UnboundedReceiver<Command>,
) {
    let storage = log.storage().clone();
    storage.tell_stored();
    // The owner hears of it, unless it has heard that the storage has failed.
    let fail = move |reason: String| _ = storage.check(Err(reason));
    let carried = Arc::clone(&on_event);
    let carrier = Arc::new(move |to, bytes| carried(Event::Send { to, bytes }));
    let network = Network::new(options.id, carrier);
    let config = Arc::new(config(&options));
    let number = options.id.number();
    let raft = match Raft::<Types>::new(number, config, network.clone(), log, decisions).await {
        Ok(raft) => raft,
        Err(error) => return fail(format!("its replica cannot start: {error}")),
    };
    if options.founders.contains(&options.id) {
        let voters = options.founders.iter().map(|voter| (voter.number(), EmptyNode {}));
        // All voters begin so, with the same members, which raft allows; some have heard of it from another before.
        let _ = raft.initialize(voters.collect::<BTreeMap<_, _>>()).await;
    }
    let watch = watch(raft.clone(), options.id, on_event);
    let serve = async {
        let mut changing: Option<JoinHandle<()>> = None;
        while let Some(command) = commands.recv().await {
            let mut wanted = None;
            match command {
                Command::Hear(from, bytes) => {
                    let (network, raft) = (network.clone(), raft.clone());
                    tokio::spawn(async move { network.hear(&raft, from, &bytes).await });
                }
                Command::Decide(decision) => {
                    // Its end is an event, or another node leads.
                    let _ = raft.client_write_ff(decision).await;
                }
                Command::SetMembers(members) => wanted = Some(members),
                Command::HandOver(to) => {
                    let known = raft.metrics().borrow().membership_config.membership().clone();
                    let known = known.nodes().map(|(number, _)| ReplicaId::of(*number));
                    let voters: BTreeSet<_> =
                        known.filter(|replica| to.contains(replica)).collect();
                    // Without any, the log keeps those that it has.
                    wanted = Some(LogMembers { all: voters.clone(), voters });
                }
                Command::End => return,
            }
            if let Some(members) = wanted {
                changing.take().iter().for_each(JoinHandle::abort);
                if !members.voters.is_empty() {
                    changing = Some(tokio::spawn(change_members(raft.clone(), number, members)));
                }
            }
        }
    };
    tokio::select! {
        () = watch => fail("its replica has ended".to_owned()),
        () = serve => {}
    }
    // It ends with its runtime, if not so.
    let _ = raft.shutdown().await;
}

/// Changes who votes and who hears decisions, tried again for as long as this replica leads: another change may be under way.
async fn change_members(raft: Raft<Types>, own: u64, wanted: LogMembers) {
    while raft.current_leader().await == Some(own) {
        let present = raft.metrics().borrow().membership_config.membership().clone();
        let Some(change) = next_change(&present, &wanted) else { return };
        if let Err(error) = raft.change_membership(change, true).await {
            tracing::debug!("the manager's members are not changed yet: {error}");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// The next step from the present members of the log to those that are wanted: a replica that comes hears decisions before
/// it votes, and a replica that goes votes no more before it hears none.
fn next_change(
    present: &Membership<u64, EmptyNode>,
    wanted: &LogMembers,
) -> Option<ChangeMembers<u64, EmptyNode>> {
    let numbers = |replicas: &BTreeSet<ReplicaId>| -> BTreeSet<u64> {
        replicas.iter().map(|replica| replica.number()).collect()
    };
    let (all, voters) = (numbers(&wanted.all), numbers(&wanted.voters));
    let known: BTreeSet<u64> = present.nodes().map(|(number, _)| *number).collect();
    let missing = all.difference(&known).map(|number| (*number, EmptyNode {}));
    let missing: BTreeMap<_, _> = missing.collect();
    if !missing.is_empty() {
        return Some(ChangeMembers::AddNodes(missing));
    }
    if *present.get_joint_config() != [voters.clone()] {
        return Some(ChangeMembers::ReplaceAllVoters(voters));
    }
    let gone: BTreeSet<_> = known.difference(&all).copied().collect();
    (!gone.is_empty()).then_some(ChangeMembers::RemoveNodes(gone))
}

/// The nodes of replicas, as the owner of this one is told of them.
pub(crate) fn nodes_of(own: ReplicaId, replicas: &BTreeSet<u64>) -> BTreeSet<u16> {
    let replicas = replicas.iter().map(|number| ReplicaId::of(*number));
    let is_earlier = |replica: ReplicaId| replica.node == own.node && replica != own;
    replicas.map(|replica| if is_earlier(replica) { NOBODY } else { replica.node }).collect()
}

/// Says who leads and who votes.
async fn watch(raft: Raft<Types>, own: ReplicaId, on_event: OnEvent) {
    let set = |replicas: &BTreeSet<u64>| nodes_of(own, replicas);
    let mut metrics = raft.metrics();
    let (mut role, mut voters) = (None, Vec::new());
    loop {
        let seen = metrics.borrow_and_update().clone();
        let sets = seen.membership_config.membership().get_joint_config();
        let present: Vec<BTreeSet<u16>> = sets.iter().map(set).collect();
        if present != voters {
            voters = present;
            on_event(Event::Voters(voters.clone()));
        }
        let leads = seen.state == ServerState::Leader;
        let leader = seen.current_leader.map(|leader| ReplicaId::of(leader).node);
        let now = (leads.then_some(seen.current_term), leader.filter(|_| !leads));
        if role != Some(now) {
            match now {
                // It has heard of all decisions before it decides.
                (Some(term), _) if raft.ensure_linearizable().await.is_ok() => {
                    on_event(Event::Leads { term });
                    role = Some(now);
                }
                (Some(_), _) => {
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                (None, leader) => {
                    on_event(Event::Follows { leader });
                    role = Some(now);
                }
            }
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

fn config(options: &Options) -> Config {
    let heartbeat_ms = u64::try_from(options.heartbeat.as_millis()).unwrap_or(u64::MAX).max(1);
    // Windows that do not overlap: raft draws once for each process, and two equal draws would tie for ever.
    let rank = u64::from(options.id.node);
    let election_timeout_min = heartbeat_ms * (3 + 2 * rank);
    Config {
        cluster_name: "gannet".to_owned(),
        heartbeat_interval: heartbeat_ms,
        election_timeout_min,
        election_timeout_max: election_timeout_min + heartbeat_ms,
        // A disk may be slow to sync it.
        install_snapshot_timeout: 10 * heartbeat_ms,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(SNAPSHOT_ENTRIES),
        max_in_snapshot_log_to_keep: KEPT_ENTRIES,
        ..Config::default()
    }
}

#[cfg(test)]
mod restarts;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::fakes::All;

    /// Longest wait for what must come.
    const COMES: Duration = Duration::from_secs(60);
    /// How often a decision is said, some hundred milliseconds apart.
    const ROUNDS_MAX: u32 = 300;

    fn id(node: u16) -> ReplicaId {
        ReplicaId { node, incarnation: 7 }
    }

    fn members(all: impl Iterator<Item = u16>, voters: &[u16]) -> LogMembers {
        LogMembers { all: all.map(id).collect(), voters: voters.iter().copied().map(id).collect() }
    }

    type Replicas = Arc<Mutex<BTreeMap<u16, Replica>>>;

    /// Replicas in this process; what each says but for bytes, which are carried.
    fn start(nodes: u16, voters: u16) -> (Replicas, Vec<Receiver<Event>>) {
        let replicas = Replicas::default();
        let start = |node: u16| {
            let (said, events) = channel();
            let others = Arc::downgrade(&replicas);
            let options = Options {
                cluster: "gannet".to_owned(),
                id: id(node),
                founders: if node < voters {
                    (0..voters).map(id).collect()
                } else {
                    BTreeSet::new()
                },
                heartbeat: Duration::from_millis(50),
                directory: None,
            };
            let replica = Replica::start(options, All::default(), move |event| match event {
                Event::Send { to, bytes } => {
                    let Some(others) = others.upgrade() else { return };
                    let others = others.lock().unwrap_or_else(PoisonError::into_inner);
                    others.get(&to).into_iter().for_each(|other| other.hear(node, bytes.clone()));
                }
                event => drop(said.send(event)),
            });
            (replica.expect("a thread"), events)
        };
        let started: Vec<_> = (0..nodes).map(start).collect();
        let mut events = Vec::new();
        for (node, (replica, said)) in (0..).zip(started) {
            replicas.lock().unwrap_or_else(PoisonError::into_inner).insert(node, replica);
            events.push(said);
        }
        (replicas, events)
    }

    fn until<T>(events: &Receiver<Event>, is_it: impl Fn(&Event) -> Option<T>) -> T {
        loop {
            match events.recv_timeout(COMES) {
                Ok(event) => {
                    if let Some(found) = is_it(&event) {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("the event does not come")
                }
            }
        }
    }

    fn with<T>(replicas: &Replicas, node: u16, act: impl FnOnce(&Replica) -> T) -> T {
        act(&replicas.lock().unwrap_or_else(PoisonError::into_inner)[&node])
    }

    fn end(replicas: &Replicas, node: u16) {
        let ended = replicas.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
        drop(ended);
    }

    /// Has a decision made by these voters; the node that leads when all nodes have heard of it.
    fn decide(
        replicas: &Replicas,
        events: &BTreeMap<u16, Receiver<Event>>,
        made: &mut BTreeMap<u16, Vec<Vec<u8>>>,
        (decision, voters): (&[u8], &[u16]),
    ) -> u16 {
        let mut leader = 0;
        for _ in 0..ROUNDS_MAX {
            // On a busy machine another may lead before the decision is made. So all say it, and say it again.
            events.keys().for_each(|node| with(replicas, *node, |it| it.decide(decision.to_vec())));
            for (node, events) in events {
                while let Ok(event) = events.recv_timeout(Duration::from_millis(100)) {
                    match event {
                        Event::Leads { .. } => {
                            leader = *node;
                            let members = members(0..4, voters);
                            with(replicas, *node, |replica| replica.set_members(members));
                        }
                        Event::Made { decision, .. } => {
                            made.entry(*node).or_default().push(decision)
                        }
                        Event::Installed { .. }
                        | Event::Failed { .. }
                        | Event::Appended { .. }
                        | Event::Truncated { .. }
                        | Event::Voting { .. }
                        | Event::Follows { .. }
                        | Event::Voters(_)
                        | Event::Send { .. } => {}
                    }
                }
            }
            let has_it =
                |node| made.get(node).is_some_and(|all| all.iter().any(|it| it == decision));
            if events.keys().all(has_it) {
                return leader;
            }
        }
        panic!("the decision is not made")
    }

    #[test]
    fn decisions_reach_all_nodes_and_outlive_their_leader() {
        let (replicas, events) = start(4, 3);
        let mut events: BTreeMap<u16, _> = (0..).zip(events).collect();
        let mut made = BTreeMap::new();
        let first = decide(&replicas, &events, &mut made, (b"one", &[0, 1, 2]));
        end(&replicas, first);
        events.remove(&first);
        let second = decide(&replicas, &events, &mut made, (b"two", &[0, 1, 2]));
        // One voter is enough from then on.
        let alone = members(events.keys().copied(), &[second]);
        with(&replicas, second, |replica| replica.set_members(alone));
        let voters = |event: &Event| match event {
            Event::Voters(sets) if *sets == [[second].into()] => Some(()),
            _ => None,
        };
        until(&events[&second], voters);
        for node in events.keys().copied().filter(|node| *node != second && *node < 3) {
            end(&replicas, node);
        }
        events.retain(|node, _| *node == second || *node == 3);
        decide(&replicas, &events, &mut made, (b"three", &[second]));
        for decisions in events.keys().map(|node| &made[node]) {
            let mut decisions = decisions.clone();
            decisions.dedup();
            let expected: [&[u8]; 3] = [b"one", b"two", b"three"];
            assert_eq!(decisions, expected, "decisions come in one order");
        }
    }
}
