//! A cluster on one thread in virtual time, from one seed: the production code over a network, clocks
//! and scheduling that misbehave as planned.
//!
//! ```text
//! Simulation ── Cluster without threads: tables, loader, jobs
//!   ├─ joining.rs   members come, and the first change starts their nodes
//!   ├─ members.rs   the groups of members, over the streams of streams.rs
//!   ├─ manager.rs   a model of the log that the manager's replicas have
//!   ├─ raft.rs      those replicas themselves, in some runs
//!   ├─ clock.rs     virtual time as each node sees it
//!   ├─ network.rs   the transport: delay, loss, duplicates, damage, partitions
//!   ├─ faults.rs    which faults a run has, and how often each struck
//!   ├─ strikes.rs   their begins and ends
//!   ├─ kill.rs      the death of a member
//!   ├─ coming_back.rs  its process is started again
//!   ├─ draining.rs  members that are drained
//!   ├─ reshaping.rs  tables that grow and shrink
//!   ├─ awaited.rs  what a run waits for before it is over
//!   └─ trace.rs     a hash of everything that happened
//! ```
//! Time advances by a little after a step in which some worker did something, and to the next
//! arrival, deadline or end of a fault where none did. Nothing else decides what happens: the same
//! seed and the same faults give the same run.
//!
//! *Source*: `docs/simulation.md`, "The simulator".
//!
//! *Not here*: disks.

mod awaited;
mod clock;
mod coming_back;
mod draining;
mod faults;
mod joining;
mod kill;
mod manager;
pub(crate) mod members;
mod network;
mod raft;
mod reshaping;
mod streams;
mod strikes;
mod trace;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gannet_rpc::{Clock, Counters};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::commit::Stage;
pub use awaited::Awaited;
pub use coming_back::CameBack;
pub use draining::Drain;
pub use faults::{Fault, FaultKind, Firings, draw_faults, pauses};
pub use joining::Founding;
pub use kill::{KILL_MOMENTS, Kill, KillMoment, Verdict};
pub use manager::ManagerKind;

use crate::cluster::{Cluster, ClusterError, ClusterOptions};
use crate::configuration::Configuration;
use crate::fence::Fenced;
use crate::lease::LeaseTerms;
use crate::member::{Member, WorkerClocks};
use crate::simulation::clock::{MembersClock, NodeClock, VirtualTime};
use crate::simulation::draining::Drains;
use crate::simulation::joining::{Outcome, SharedMembers};
use crate::simulation::network::{Inbox, Network, SimulatedReceiver, SimulatedSender};
use crate::simulation::reshaping::Reshapes;
use crate::simulation::trace::Trace;
use crate::worker::Worker;

/// Virtual time of a step in which some worker did something.
const STEP_NS: u64 = 500;
/// Nodes that are added come within this virtual time.
const SPARE_COMES_NS_MAX: u64 = 100_000_000;
/// How long a lease lasts.
const LEASE_NS: u64 = 20_000_000;

type SimulatedWorker = Worker<Fenced<SimulatedSender>, SimulatedReceiver>;

struct SimulatedNode {
    clock: Rc<NodeClock>,
    workers: Vec<(SimulatedWorker, Rc<RefCell<Inbox>>)>,
    /// It takes no step before this virtual time.
    stands_until_ns: u64,
    /// Virtual time between two of its steps.
    step_ns: u64,
    next_step_ns: u64,
    /// Whether it was killed or has halted: it takes no step any more.
    has_ended: bool,
}

impl SimulatedNode {
    /// The workers of a member.
    fn new(
        node: u16,
        member: &Arc<Member>,
        workers: u16,
        (time, joined_at_ns, network, members): Surroundings<'_>,
    ) -> Self {
        let clock = Rc::new(NodeClock::new(Rc::clone(time)));
        let rate = members.lock().rate_of(usize::from(node));
        let worker = |worker: u16| {
            let inbox = Rc::new(RefCell::new(Inbox::default()));
            let sender = SimulatedSender { network: Rc::clone(network), source: (node, worker) };
            let receiver = SimulatedReceiver::new(Rc::clone(&inbox));
            let lease_clock =
                Rc::new(MembersClock::new(Rc::clone(time), Rc::clone(joined_at_ns), rate.clone()));
            let clock = Rc::clone(&clock) as Rc<dyn Clock>;
            let clocks = WorkerClocks { time_of_day: Rc::clone(&clock), clock, lease_clock };
            (member.start_worker(usize::from(worker), clocks, sender, receiver), inbox)
        };
        Self {
            workers: (0..workers).map(worker).collect(),
            clock,
            stands_until_ns: 0,
            step_ns: 0,
            next_step_ns: 0,
            has_ended: false,
        }
    }
}

/// What a node has around: the time of workers, when that begins on the time of members, the network, and the members.
type Surroundings<'s> =
    (&'s VirtualTime, &'s VirtualTime, &'s Rc<RefCell<Network>>, &'s SharedMembers);

/// A simulated cluster; see the module's text.
pub struct Simulation {
    cluster: Arc<Cluster>,
    members: SharedMembers,
    /// The time of the members where that of the workers begins.
    joined_at_ns: VirtualTime,
    /// When something happens at the members next.
    members_due_ns: u64,
    time: VirtualTime,
    network: Rc<RefCell<Network>>,
    nodes: Vec<SimulatedNode>,
    /// Not begun, the last to begin first.
    planned: Vec<Fault>,
    /// Begun, with the virtual time of their end.
    active: Vec<(u64, Fault)>,
    last_end_ns: u64,
    /// The deaths of members that are still to come.
    planned_kills: Vec<Kill>,
    drains: Drains,
    reshapes: Reshapes,
    has_leases: bool,
    /// Whether the clock of leases stands still at a node that does.
    clocks_stand: bool,
    /// Those that have come.
    killed: Vec<Kill>,
    /// How many nodes, the last ones, were not there at first.
    spares: usize,
    /// Killed members whose processes are to be started again, and those that are to be added, and when.
    restarts: BTreeSet<(u64, usize)>,
    /// Those whose processes were, and that have been neither refused nor let in, with where each says that it has joined.
    again: BTreeMap<usize, Outcome>,
    came_back: CameBack,
    /// Those that have come back and live.
    back: BTreeSet<usize>,
    /// The members of processes before those.
    former: Vec<Arc<Member>>,
    lease_terms: Option<LeaseTerms>,
    /// Members that the others have removed, and that have heard of it.
    removed: BTreeSet<usize>,
    /// Whether each node is a process of its own, whose jobs end with it.
    has_processes: bool,
    /// Jobs of the killed member that another has got.
    handed_over: u64,
    /// How members that have halted have settled their commits.
    verdicts: Vec<Verdict>,
    trace: Trace,
}

impl Simulation {
    /// A cluster in virtual time with these faults. `trace` gets a line for each event.
    ///
    /// # Errors
    /// As [`Cluster::open`].
    pub fn open(
        options: ClusterOptions,
        seed: u64,
        faults: Vec<Fault>,
        trace: Option<Box<dyn Write>>,
    ) -> Result<Self, ClusterError> {
        Self::open_with(Founding::default(), options, seed, faults, trace)
    }

    /// As [`Self::open`], with a cluster that begins so.
    ///
    /// # Errors
    /// As [`Cluster::open`].
    ///
    /// # Panics
    /// Never: the numbers of nodes and workers are checked first.
    pub fn open_with(
        founding: Founding,
        options: ClusterOptions,
        seed: u64,
        mut faults: Vec<Fault>,
        trace: Option<Box<dyn Write>>,
    ) -> Result<Self, ClusterError> {
        let (cluster, members) = joining::join(options, seed, founding)?;
        let options = cluster.options();
        let narrow = |count: usize| u16::try_from(count).expect("checked by the cluster");
        let (nodes, workers) = (narrow(options.nodes), narrow(options.threads));
        let time = VirtualTime::default();
        let joined_at_ns = VirtualTime::new(Cell::new(members.lock().now_ns()));
        let network = Network::new(Rc::clone(&time), nodes, seed);
        let network = Rc::new(RefCell::new(network));
        let surroundings = (&time, &joined_at_ns, &network, &members);
        let nodes = (0..nodes).zip(&cluster.members);
        let nodes =
            nodes.map(|(node, member)| SimulatedNode::new(node, member, workers, surroundings));
        let mut nodes: Vec<_> = nodes.collect();
        let first = nodes.len() - founding.spares;
        nodes[first..].iter_mut().for_each(|node| node.has_ended = true);
        let spares: BTreeSet<_> = (first..nodes.len()).collect();
        let mut random = SmallRng::seed_from_u64(seed ^ 0x7370_6172);
        let restarts =
            spares.iter().map(|node| (random.random_range(0..SPARE_COMES_NS_MAX), *node)).collect();
        faults.sort_by_key(|fault| std::cmp::Reverse(fault.begins_at));
        Ok(Self {
            cluster: Arc::new(cluster),
            members,
            joined_at_ns,
            members_due_ns: 0,
            time,
            network,
            nodes,
            planned: faults,
            active: Vec::new(),
            last_end_ns: 0,
            planned_kills: Vec::new(),
            drains: Drains::default(),
            reshapes: Reshapes::none(),
            has_leases: false,
            clocks_stand: false,
            killed: Vec::new(),
            restarts,
            spares: founding.spares,
            again: BTreeMap::new(),
            came_back: CameBack::default(),
            back: BTreeSet::new(),
            former: Vec::new(),
            lease_terms: None,
            removed: BTreeSet::new(),
            has_processes: false,
            handed_over: 0,
            verdicts: Vec::new(),
            trace: Trace::new(trace),
        })
    }

    /// From now on members need leases: one that stands still for long is removed by the others. Tables may be created by jobs alone from
    /// then on: no worker runs while another thread waits for a change.
    ///
    /// Clocks of nodes that stand still go on; where reads are confirmed, such clocks stand still as well.
    pub fn require_leases(&mut self, confirms_reads: bool) {
        (self.has_leases, self.clocks_stand) = (true, confirms_reads);
        let nodes = self.cluster.nodes();
        let terms = LeaseTerms::new(Duration::from_nanos(LEASE_NS));
        let terms = terms.with_confirmed_reads(confirms_reads);
        self.lease_terms = Some(terms);
        // Tables have been created since.
        self.joined_at_ns.set(self.members.lock().now_ns() - self.now_ns());
        self.members.lock().require_leases(&nodes, terms);
    }

    /// The disk of a voter's replica of the manager fails after so much virtual time, if the manager is the model. The other
    /// voters are to be a majority, whichever of them die.
    pub fn plan_disk_failure(&mut self, after_ns: u64) {
        self.members.lock().fail_disk(self.joined_at_ns.get() + after_ns);
        self.members_due_ns = 0;
    }

    /// The cluster: create and load tables, spawn jobs, look at the data.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster, to be kept. A thread that blocks on one of its completions blocks for ever.
    #[must_use]
    pub fn shared_cluster(&self) -> Arc<Cluster> {
        Arc::clone(&self.cluster)
    }

    /// The part of the cluster that a process with one node has. From now on the jobs of a member that is killed or removed end with
    /// it, as they do with a process.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn process_of(&mut self, node: usize) -> Arc<Cluster> {
        self.has_processes = true;
        let (members, options) = (&self.cluster.members, self.cluster.options.clone());
        let mut process = Cluster::of_members(options, vec![Arc::clone(&members[node])], node);
        process.manager = self.members.as_manager(members.len());
        Arc::new(process)
    }

    /// Virtual time since all members have joined, in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.time.get()
    }

    /// When the last fault that has begun ends.
    #[must_use]
    pub fn last_end_ns(&self) -> u64 {
        self.last_end_ns
    }

    /// How often each fault struck.
    #[must_use]
    pub fn firings(&self) -> Firings {
        self.network.borrow().firings
    }

    /// A hash of everything that has happened.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Sum over all workers of what their endpoints have seen.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let workers = self.nodes.iter().flat_map(|node| &node.workers);
        workers.fold(Counters::default(), |sum, (worker, _)| sum + worker.counters())
    }

    /// Requests, credits and coroutines in use on all nodes that have not ended: none when nothing runs.
    #[must_use]
    pub fn in_use(&self) -> usize {
        let running = self.nodes.iter().filter(|node| !node.has_ended);
        running.flat_map(|node| &node.workers).map(|(worker, _)| worker.in_use()).sum()
    }

    /// The commit records that a node has: in its log slots, and of the last flush.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn log_records(&self, node: usize) -> Vec<Vec<u8>> {
        let workers = self.nodes[node].workers.iter();
        let flushed = self.cluster.members[node].node().flushed();
        let of_slots = workers.flat_map(|(worker, _)| worker.log_records());
        of_slots.chain(flushed.records.iter().cloned()).collect()
    }

    /// How far the commits of a node's coroutines have come: of each coroutine the decided one and the open one.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn stages(&self, node: usize) -> impl Iterator<Item = [Stage; 2]> {
        let workers = self.nodes[node].workers.iter();
        let commits = workers.flat_map(|(worker, _)| worker.commits());
        commits.map(|both| both.map(|(_, stage)| stage))
    }

    /// Has a node halt: its commits under way are settled, all its jobs end, and it takes no further step.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn halt(&mut self, node: usize) {
        let Self { nodes, verdicts, .. } = self;
        let SimulatedNode { workers, has_ended, .. } = &mut nodes[node];
        if std::mem::replace(has_ended, true) {
            return;
        }
        for (worker, _) in workers {
            let before: Vec<_> = worker.commits().flatten().collect();
            worker.settle();
            let after = worker.commits().flatten();
            verdicts.extend(before.into_iter().zip(after).filter_map(
                |((id, stage), (_, after))| match (stage, after) {
                    (Stage::Settled(_), _) => None,
                    (_, Stage::Settled(settled)) => Some(Verdict { id, stage, settled }),
                    _ => unreachable!("a worker settles all commits"),
                },
            ));
            worker.halt();
        }
    }

    /// Lets the members hear each other, and has those halt that have lost one.
    fn run_members(&mut self) {
        let now_ns = self.now_ns();
        let is_wished = |member: &Arc<Member>| member.node().lease().wants_renewal();
        if now_ns < self.members_due_ns && !self.cluster.members.iter().any(is_wished) {
            return;
        }
        let mut members = self.members.lock();
        members.advance(self.joined_at_ns.get() + now_ns);
        self.members_due_ns = members.due_ns(self.joined_at_ns.get());
        let halted: Vec<_> = members.halted().collect();
        drop(members);
        self.let_in();
        for (node, leaves) in halted {
            if self.nodes[node].has_ended || self.again.contains_key(&node) {
                continue;
            }
            self.trace.note(now_ns, || format!("node {node} halts"));
            self.halt(node);
            // The others may have ended before it could hear of its removal.
            if leaves || self.was_removed(node) {
                self.cluster.members[node].node().kill();
                self.hand_over(node);
                self.removed.insert(node);
                self.back.remove(&node);
            }
        }
    }

    /// Whether any member, a killed one too, has gone by a configuration that lacks a node.
    fn was_removed(&self, node: usize) -> bool {
        let number = u16::try_from(node).expect("nodes are numbered with 16 bits");
        let mut views = self.cluster.members.iter().map(|member| member.node().view());
        views.any(|view| !view.configuration().is_member(number))
    }

    /// The configuration of the member that has the latest.
    fn latest_configuration(&self) -> Arc<Configuration> {
        let living = self.cluster.members.iter().filter(|member| !member.node().is_killed());
        let all = living.map(|member| member.node().view().shared_configuration());
        all.max_by_key(|configuration| configuration.version)
            .unwrap_or_else(|| self.cluster.members[0].node().view().shared_configuration())
    }

    /// Answers the jobs that have come to members after their end: they have not begun.
    fn drop_late_jobs(&self) {
        let ended = self.nodes.iter().zip(&self.cluster.members).filter(|(node, _)| node.has_ended);
        let ended = ended.map(|(_, member)| member).chain(&self.former);
        for member in ended {
            for worker in 0..self.cluster.options.threads {
                drop(member.take_jobs(worker));
            }
        }
    }

    /// Whether members have halted, as they could not go on without one that was killed.
    #[must_use]
    pub fn has_halted(&self) -> bool {
        let mut nodes = self.nodes.iter().enumerate();
        let dead = self.dead();
        let is_out = |number| dead.contains(&number);
        nodes.any(|(number, node)| node.has_ended && !is_out(number))
    }

    /// Members that the others have removed, as they did not hear from them, and that know it.
    #[must_use]
    pub fn removed(&self) -> &BTreeSet<usize> {
        &self.removed
    }

    /// The epoch that the members have come to which were not killed.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        let members = self.cluster.members.iter().map(|member| member.node());
        let living = members.filter(|node| !node.is_killed());
        living.map(|node| node.view().configuration().epoch).max().unwrap_or(1)
    }

    /// Whether all members that had a record of some transaction may have been killed or removed before a change of the membership has
    /// flushed that record. The others halt then.
    #[must_use]
    pub fn may_have_lost_records(&self) -> bool {
        let members = self.cluster.members.iter().map(|member| member.node());
        let living = members.filter(|node| !node.is_killed()).map(|node| node.view());
        let latest = living.max_by_key(|view| view.configuration().version);
        let dead = self.dead();
        let is_dead = |replica: &u16| dead.contains(&usize::from(*replica));
        latest.is_some_and(|view| {
            let mut groups = view.configuration().last_log_groups();
            groups.any(|group| !group.is_empty() && group.iter().all(is_dead))
        })
    }

    /// Whether all copies of some partition are gone. The others go on without it, or have halted before they could decide on that.
    #[must_use]
    pub fn has_lost_rows(&self) -> bool {
        let (latest, dead) = (self.latest_configuration(), self.dead());
        let mut partitions = (0..=u16::MAX).take(latest.partitioning.count());
        partitions.any(|number| {
            latest.copies(number).iter().all(|copy| dead.contains(&usize::from(*copy)))
        })
    }

    /// Bytes of rows that nodes have copied from others, to replace copies that were lost.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.cluster.members.iter().map(|member| member.node().learning().bytes()).sum()
    }

    /// Runs until every job has ended, `true`, or virtual time has reached `deadline_ns`.
    ///
    /// `begun` tells how many transactions have begun: faults wait for it.
    pub fn run_until(&mut self, deadline_ns: u64, begun: &dyn Fn() -> u64) -> bool {
        self.run_clients(deadline_ns, begun, &mut || true)
    }

    /// As [`Self::run_until`], with clients beside the cluster. `clients` is called between steps: it may spawn jobs and look at
    /// their results, and returns whether all clients have ended.
    pub fn run_clients(
        &mut self,
        deadline_ns: u64,
        begun: &dyn Fn() -> u64,
        clients: &mut dyn FnMut() -> bool,
    ) -> bool {
        // A change since the last step has left other events.
        self.members_due_ns = self.members.lock().due_ns(self.joined_at_ns.get());
        while self.now_ns() < deadline_ns {
            if clients() && self.awaited().is_none() {
                return true;
            }
            let begun = begun();
            self.begin_faults(begun);
            self.end_faults();
            self.kill_member(begun);
            self.drain_members(begun);
            self.reshape_tables(begun);
            self.start_again();
            self.run_members();
            self.drop_late_jobs();
            self.deliver();
            let progressed = self.step();
            let now_ns = self.now_ns();
            let next_ns = if progressed { now_ns + STEP_NS } else { self.next_event_ns() };
            self.time.set(next_ns.clamp(now_ns + 1, deadline_ns.max(now_ns + 1)));
        }
        clients() && self.awaited().is_none()
    }

    /// Lets every worker that may take a step; whether one did something.
    fn step(&mut self) -> bool {
        let now_ns = self.time.get();
        let mut progressed = false;
        for node in &mut self.nodes {
            if node.has_ended || now_ns < node.stands_until_ns.max(node.next_step_ns) {
                continue;
            }
            node.next_step_ns = now_ns + node.step_ns;
            let local_ns = node.clock.now_ns();
            for (worker, _) in &mut node.workers {
                progressed |= worker.poll(local_ns);
            }
        }
        progressed
    }

    fn deliver(&mut self) {
        loop {
            let arrived = self.network.borrow_mut().take_arrived();
            let Some((source, (node, worker), packet)) = arrived else { break };
            self.trace.arrival(self.time.get(), source, node, &packet);
            let node = &self.nodes[usize::from(node)];
            if !node.has_ended {
                node.workers[usize::from(worker)].1.borrow_mut().push(packet);
            }
        }
    }

    /// When something happens next if no worker does anything before.
    fn next_event_ns(&self) -> u64 {
        let now_ns = self.time.get();
        let ends = self.active.iter().map(|&(end_ns, _)| end_ns);
        let nodes = self.nodes.iter().filter(|node| !node.has_ended).filter_map(|node| {
            let mut due = None;
            for (worker, inbox) in &node.workers {
                let has_packets = !worker.is_stopped() && !inbox.borrow().is_empty();
                let has_work = worker.has_work() || has_packets;
                let deadline = worker.next_deadline_ns();
                let deadline = deadline.map(|local_ns| node.clock.virtual_ns(local_ns));
                due = [due, deadline, has_work.then_some(now_ns)].into_iter().flatten().min();
            }
            due.map(|due| due.max(node.stands_until_ns).max(node.next_step_ns))
        });
        let arrival = self.network.borrow().next_arrival_ns();
        let restart = self.restarts.first().map(|(at_ns, _)| *at_ns);
        ends.chain(nodes).chain(arrival).chain(restart).fold(self.members_due_ns, u64::min)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for (worker, _) in self.nodes.iter_mut().flat_map(|node| &mut node.workers) {
            if worker.is_idle() {
                worker.close();
            }
        }
    }
}
