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
use std::thread::JoinHandle;
use std::time::Duration;

use openraft::{ChangeMembers, Config, EmptyNode, Raft, ServerState, SnapshotPolicy};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Types;
use crate::decisions::{Decisions, StateMachine};
use crate::disk::{Directory, DirectoryError, Disk};
use crate::journal::Owner;
use crate::network::Network;
use crate::store::{self, LogStore};

/// Between two attempts of a leader: to hear of all decisions, or to change the members of the log.
const AGAIN: Duration = Duration::from_millis(200);
/// After so many entries there is a snapshot.
const SNAPSHOT_ENTRIES: u64 = 512;
/// So many entries that are in the snapshot are kept, for nodes that are a little behind.
const KEPT_ENTRIES: u64 = 64;

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
    /// These nodes vote: nothing is decided without a majority of each set. There are two sets while the voters change.
    Voters(Vec<BTreeSet<u16>>),
    /// Carry these bytes to a node; they may be lost.
    Carry {
        /// The node.
        to: u16,
        /// What it is to hear.
        bytes: Vec<u8>,
    },
    /// The replica could not store something. It has ended, and nothing more comes but events that were under way.
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
}

/// How a replica is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the cluster. A directory of another is refused.
    pub cluster: String,
    /// The node. A directory of another is refused.
    pub node: u16,
    /// All nodes of the cluster.
    pub nodes: Vec<u16>,
    /// Those that vote at first, the same at all nodes.
    pub voters: BTreeSet<u16>,
    /// Between two signs of life of the leader. A node that has had none for about three times as long stands for election.
    pub heartbeat: Duration,
    /// What the replica stores is in this directory, which is made if there is none, and it goes on from there. Without one it is
    /// in memory.
    pub directory: Option<PathBuf>,
}

enum Command {
    Hear(u16, Vec<u8>),
    Decide(Vec<u8>),
    SetVoters(BTreeSet<u16>),
    End,
}

/// A replica that runs. It ends when it is dropped.
pub struct Replica {
    commands: UnboundedSender<Command>,
    thread: Option<JoinHandle<()>>,
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
        Self::start_on(disk, options, Box::new(state), Arc::new(on_event))
    }

    /// Starts a replica whose files are on a disk, if there is one.
    fn start_on(
        disk: Option<Box<dyn Disk>>,
        options: Options,
        state: Box<dyn StateMachine>,
        on_event: OnEvent,
    ) -> Result<Self, StartError> {
        let owner = Owner { cluster: options.cluster.clone(), node: options.node };
        let stores = store::open(disk, &owner, state, &on_event)?;
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (commands, received) = unbounded_channel();
        let body = move || runtime.block_on(run(options, stores, on_event, received));
        let thread = std::thread::Builder::new().name("manager".to_owned()).spawn(body);
        let thread = Some(thread.map_err(StartError::Thread)?);
        Ok(Self { commands, thread })
    }

    /// Takes bytes that another node's replica had carried here.
    pub fn hear(&self, from: u16, bytes: Vec<u8>) {
        self.command(Command::Hear(from, bytes));
    }

    /// Proposes a decision, as the leader. It is made when [`Event::Made`] says so; if another node leads before, it may not be.
    pub fn decide(&self, decision: Vec<u8>) {
        self.command(Command::Decide(decision));
    }

    /// Has these nodes vote from now on, as the leader.
    pub fn set_voters(&self, voters: BTreeSet<u16>) {
        self.command(Command::SetVoters(voters));
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
            self.thread.take().filter(|it| it.thread().id() != std::thread::current().id())
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
    log.storage().tell_stored();
    let carried = Arc::clone(&on_event);
    let network = Network::new(Arc::new(move |to, bytes| carried(Event::Carry { to, bytes })));
    let config = Arc::new(config(&options));
    let node = u64::from(options.node);
    let raft = match Raft::<Types>::new(node, config, network.clone(), log, decisions).await {
        Ok(raft) => raft,
        Err(error) => return tracing::error!("the manager's replica cannot start: {error}"),
    };
    if options.voters.contains(&options.node) {
        let voters = options.voters.iter().map(|voter| (u64::from(*voter), EmptyNode {}));
        // All voters begin so, with the same members, which raft allows; some have heard of it from another before.
        let _ = raft.initialize(voters.collect::<BTreeMap<_, _>>()).await;
    }
    let watch = watch(raft.clone(), options.clone(), on_event);
    let serve = async {
        while let Some(command) = commands.recv().await {
            match command {
                Command::Hear(from, bytes) => {
                    let (network, raft) = (network.clone(), raft.clone());
                    tokio::spawn(async move { network.hear(&raft, from, &bytes).await });
                }
                Command::Decide(decision) => {
                    // Its end is an event, or another node leads.
                    let _ = raft.client_write_ff(decision).await;
                }
                Command::SetVoters(voters) => {
                    let voters = voters.into_iter().map(u64::from).collect();
                    let change = ChangeMembers::ReplaceAllVoters(voters);
                    tokio::spawn(change_members(raft.clone(), node, change));
                }
                Command::End => return,
            }
        }
    };
    tokio::select! {
        () = watch => tracing::error!("the manager's replica has ended"),
        () = serve => {}
    }
    // It ends with its runtime, if not so.
    let _ = raft.shutdown().await;
}

/// Changes who votes or hears decisions, tried again for as long as this node leads: another change may be under way.
async fn change_members(raft: Raft<Types>, node: u64, change: ChangeMembers<u64, EmptyNode>) {
    while raft.current_leader().await == Some(node) {
        match raft.change_membership(change.clone(), true).await {
            Ok(_) => return,
            Err(error) => tracing::debug!("the manager's members are not changed yet: {error}"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Says who leads and who votes. The leader takes all other nodes in as learners.
async fn watch(raft: Raft<Types>, options: Options, on_event: OnEvent) {
    let number = |node: u64| u16::try_from(node).unwrap_or(u16::MAX);
    let set = |nodes: &BTreeSet<u64>| nodes.iter().copied().map(number).collect();
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
        let leader = seen.current_leader.map(number);
        let now = (leads.then_some(seen.current_term), leader.filter(|_| !leads));
        if role != Some(now) {
            match now {
                // It has heard of all decisions before it decides.
                (Some(term), _) if raft.ensure_linearizable().await.is_ok() => {
                    on_event(Event::Leads { term });
                    take_in(&raft, &options);
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

/// Has the nodes that do not vote hear decisions.
fn take_in(raft: &Raft<Types>, options: &Options) {
    let learners = options.nodes.iter().filter(|node| !options.voters.contains(*node));
    let learners: BTreeMap<_, _> = learners.map(|node| (u64::from(*node), EmptyNode {})).collect();
    if !learners.is_empty() {
        let change = ChangeMembers::AddNodes(learners);
        tokio::spawn(change_members(raft.clone(), u64::from(options.node), change));
    }
}

fn config(options: &Options) -> Config {
    let heartbeat_ms = u64::try_from(options.heartbeat.as_millis()).unwrap_or(u64::MAX).max(1);
    // Windows that do not overlap: raft draws once for each process, and two equal draws would tie for ever.
    let rank = options.nodes.iter().position(|node| *node == options.node).unwrap_or(0) as u64;
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

    type Replicas = Arc<Mutex<BTreeMap<u16, Replica>>>;

    /// Replicas in this process; what each says but for bytes, which are carried.
    fn start(nodes: u16, voters: u16) -> (Replicas, Vec<Receiver<Event>>) {
        let replicas = Replicas::default();
        let all: Vec<u16> = (0..nodes).collect();
        let start = |node: u16| {
            let (said, events) = channel();
            let others = Arc::downgrade(&replicas);
            let options = Options {
                cluster: "gannet".to_owned(),
                node,
                nodes: all.clone(),
                voters: (0..voters).collect(),
                heartbeat: Duration::from_millis(50),
                directory: None,
            };
            let replica = Replica::start(options, All::default(), move |event| match event {
                Event::Carry { to, bytes } => {
                    let Some(others) = others.upgrade() else { return };
                    let others = others.lock().unwrap_or_else(PoisonError::into_inner);
                    others.get(&to).into_iter().for_each(|other| other.hear(node, bytes.clone()));
                }
                event => drop(said.send(event)),
            });
            (replica.expect("a thread"), events)
        };
        let started: Vec<_> = all.iter().map(|node| start(*node)).collect();
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

    /// The events of some nodes, the first of which leads, when all of them have heard of a decision.
    fn decide(
        replicas: &Replicas,
        events: &BTreeMap<u16, Receiver<Event>>,
        made: &mut BTreeMap<u16, Vec<Vec<u8>>>,
        decision: &[u8],
    ) -> u16 {
        let mut leader = 0;
        for _ in 0..ROUNDS_MAX {
            // On a busy machine another may lead before the decision is made. So all say it, and say it again.
            events.keys().for_each(|node| with(replicas, *node, |it| it.decide(decision.to_vec())));
            for (node, events) in events {
                while let Ok(event) = events.recv_timeout(Duration::from_millis(100)) {
                    match event {
                        Event::Leads { .. } => leader = *node,
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
                        | Event::Carry { .. } => {}
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
        let first = decide(&replicas, &events, &mut made, b"one");
        end(&replicas, first);
        events.remove(&first);
        let second = decide(&replicas, &events, &mut made, b"two");
        // One voter is enough from then on.
        with(&replicas, second, |replica| replica.set_voters([second].into()));
        let voters = |event: &Event| match event {
            Event::Voters(sets) if *sets == [[second].into()] => Some(()),
            _ => None,
        };
        until(&events[&second], voters);
        for node in events.keys().copied().filter(|node| *node != second && *node < 3) {
            end(&replicas, node);
        }
        events.retain(|node, _| *node == second || *node == 3);
        decide(&replicas, &events, &mut made, b"three");
        for decisions in events.keys().map(|node| &made[node]) {
            let mut decisions = decisions.clone();
            decisions.dedup();
            let expected: [&[u8]; 3] = [b"one", b"two", b"three"];
            assert_eq!(decisions, expected, "decisions come in one order");
        }
    }
}
