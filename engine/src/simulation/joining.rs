//! Joining in a simulation: members start one after the other and find each other, and the first change starts their nodes.
//!
//! ```text
//! seed ─▶ when each member starts ─▶ handshakes over streams that break ─▶ Change::Form ─▶ a part of the cluster for each member
//!                                                                                         └─▶ Cluster: the handle of all parts
//! ```
//! *Invariants*: the members' time begins before the first of them, and that of workers when all have joined. All later changes
//! of the configuration take the same streams.
//!
//! *Not here*: groups and streams, in `members.rs` and `streams.rs`; how a process joins, in `join`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rpc::ClusterKey;
use gannet_storage::HashSeed;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::{
    Cluster, ClusterError, ClusterOptions, check_memory, configuration, memory_limit_bytes,
};
use crate::configuration::{Change, Configuration, MemberEntry};
use crate::manager::{Asked, Manager, Proposed};
use crate::members::{ClusterTerms, Hello, JoinError, Setup};
use crate::simulation::LEASE_NS;
use crate::simulation::manager::ManagerKind;
use crate::simulation::members::SimulatedMembers;
use crate::starting::Starting;

/// All members start within this virtual time.
const START_NS_MAX: u64 = 500_000_000;
/// Of 1,000 messages at most so many break their stream while members join.
const BREAKS_PERMILLE_MAX: u32 = 100;
/// The clocks that count leases are wrong by at most so much: a tenth is allowed between two.
const DRIFT_PERMILLE_MAX: u32 = 40;
/// How long members wait for each other.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// Port of the first member.
const PORT: u16 = 7_000;

/// The members of a simulation, which the simulation and the cluster's manager share.
#[derive(Clone)]
pub(super) struct SharedMembers(Arc<Mutex<SimulatedMembers<Starting>>>);

impl SharedMembers {
    pub(super) fn lock(&self) -> MutexGuard<'_, SimulatedMembers<Starting>> {
        // A simulation in which something panics is over.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The manager of a cluster of so many members.
    pub(super) fn as_manager(&self, nodes: usize) -> Arc<dyn Manager> {
        let next_proposer = AtomicUsize::new(0);
        Arc::new(SimulatedManager { members: self.clone(), nodes, next_proposer })
    }
}

/// How a simulated cluster begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Founding {
    /// Its manager.
    pub manager: ManagerKind,
    /// How many of its nodes, the last ones, are not there at first, and are added later.
    pub spares: usize,
}

/// A cluster whose first members have joined, and the members. Those of the nodes that come later are killed.
pub(super) fn join(
    options: ClusterOptions,
    seed: u64,
    Founding { manager, spares }: Founding,
) -> Result<(Cluster, SharedMembers), ClusterError> {
    let configuration = unformed(&options, spares)?;
    let nodes = options.nodes;
    let limit = memory_limit_bytes(&options, nodes);
    check_memory(&vec![limit; nodes])?;
    let mut random = SmallRng::seed_from_u64(seed ^ 0x6a6f_696e);
    let mut members = SimulatedMembers::new(random.random(), manager);
    members.break_streams(random.random_range(0..=BREAKS_PERMILLE_MAX), 0);
    members.let_clocks_drift(DRIFT_PERMILLE_MAX);
    let first = nodes - spares;
    let mut starts: Vec<_> =
        (0..first).map(|node| (random.random_range(0..START_NS_MAX), node)).collect();
    starts.sort_unstable();
    let zones = zones(seed, nodes);
    let (started, outcomes) = channel();
    for (at_ns, node) in starts {
        members.run_until(at_ns);
        let entry = MemberEntry {
            incarnation: random.random(),
            memory_limit_bytes: limit as u64,
            ports: String::new(),
            keeps_log: manager == ManagerKind::DurableModel,
            address: None,
            zone: zones.get(node).map_or("", |zone| *zone).to_owned(),
        };
        let starting = starting(&options, node, started.clone());
        let setup = setup((node, None), (first, nodes), entry);
        members.start(setup, configuration.clone(), starting);
    }
    while !members.all().all(|member| member.has_joined()) {
        members.run_until(members.next_event_ns());
        if let Some(error) = members.take_failure() {
            // A node that could not start tells its own reason.
            return Err(outcomes.try_iter().find_map(Result::err).unwrap_or(error.into()));
        }
    }
    members.break_streams(0, 0);
    let mut parts = outcomes.try_iter().collect::<Result<Vec<_>, _>>()?;
    parts.sort_by_key(|part| part.first_node);
    for node in first..nodes {
        let formed = Configuration::clone(&parts[0].configuration());
        let part = Cluster::with_nodes(options.clone(), formed, node..node + 1)?;
        part.members[0].node().kill();
        parts.push(part);
    }
    let all = parts.iter().flat_map(|part| part.members.clone()).collect();
    let mut cluster = Cluster::of_members(options, all, 0);
    let members = SharedMembers(Arc::new(Mutex::new(members)));
    cluster.manager = members.as_manager(nodes);
    Ok((cluster, members))
}

/// The configuration before the first change.
fn unformed(options: &ClusterOptions, spares: usize) -> Result<Configuration, ClusterError> {
    let first = ClusterOptions { nodes: options.nodes - spares, ..options.clone() };
    Ok(configuration(&first)?.with_spares(options.nodes).unformed())
}

/// The zones of members: in half of the clusters they have some.
fn zones(seed: u64, nodes: usize) -> Vec<&'static str> {
    let mut random = SmallRng::seed_from_u64(seed ^ 0x7a6f_6e65);
    if random.random() {
        return Vec::new();
    }
    (0..nodes).map(|_| ["", "a", "b", "c"][random.random_range(0..4)]).collect()
}

/// What becomes of a process that is started again.
pub(super) struct Outcome {
    told: Receiver<Result<Cluster, ClusterError>>,
    joined: Option<Cluster>,
}

impl Outcome {
    /// The part of the cluster of the process, when that is a member. Why it could not start, the others are told.
    pub(super) fn joined(&mut self) -> Option<&Cluster> {
        if self.joined.is_none() {
            self.joined = self.told.try_recv().ok().and_then(Result::ok);
        }
        self.joined.as_ref()
    }
}

/// Starts the process of a member again that was killed: it comes with another incarnation, and has no tables.
pub(super) fn start_again(
    members: &mut SimulatedMembers<Starting>,
    options: &ClusterOptions,
    (node, spares): (usize, usize),
    before: &Configuration,
) -> Result<Outcome, ClusterError> {
    let entry = &before.members[node];
    let predecessor = entry.keeps_log.then_some(entry.incarnation);
    let incarnation = entry.incarnation.wrapping_add(1);
    // One that is added has nothing of a process before.
    let memory_limit_bytes = memory_limit_bytes(options, options.nodes) as u64;
    let entry = MemberEntry { incarnation, memory_limit_bytes, ..entry.clone() };
    let first = options.nodes - spares;
    let (started, outcome) = channel();
    let starting = starting(options, node, started);
    let configuration = unformed(options, spares)?;
    let setup = setup((node, predecessor), (first, options.nodes), entry);
    members.start(setup, configuration, starting);
    Ok(Outcome { told: outcome, joined: None })
}

fn starting(
    options: &ClusterOptions,
    node: usize,
    started: Sender<Result<Cluster, ClusterError>>,
) -> Starting {
    let options = options.clone();
    Starting::new(started, move |formed| {
        Cluster::with_nodes(options, formed.clone(), node..node + 1)
    })
}

fn setup(
    (node, predecessor): (usize, Option<u32>),
    (first_nodes, nodes): (usize, usize),
    entry: MemberEntry,
) -> Setup {
    let address = |port| Some(([10, 0, 0, 1], port).into());
    let terms = ClusterTerms {
        addresses: (PORT..).take(nodes).map(address).collect(),
        first_nodes,
        lease: Duration::from_nanos(LEASE_NS),
        ..ClusterTerms::default()
    };
    let hash_seed = HashSeed::new(entry.incarnation.into());
    Setup {
        hello: Hello { node, entry, settings: BTreeMap::new() },
        terms,
        founds: node < first_nodes,
        key: Some(ClusterKey::new([7; 32])),
        hash_seed,
        join_timeout: JOIN_TIMEOUT,
        predecessor,
    }
}

/// Takes the proposals of a simulated cluster to its members, each in turn. Virtual time of the members goes on meanwhile.
struct SimulatedManager {
    members: SharedMembers,
    nodes: usize,
    next_proposer: AtomicUsize,
}

impl SharedMembers {
    /// What became of a node's proposal.
    fn answer(&self, node: usize, number: Option<u64>) -> Option<Proposed> {
        let mut members = self.lock();
        let halted = |reason: &str| Some(Err(JoinError::Halted(reason.to_owned())));
        let Some(number) = number.filter(|_| members.member(node).is_some()) else {
            return halted("the member that proposes was killed");
        };
        if let Some(answer) = members.take_answer(node, number) {
            return Some(Ok(answer));
        }
        halted(members.member(node)?.group.halted()?)
    }
}

impl Manager for SimulatedManager {
    fn propose(&self, change: Change) -> Proposed {
        let mut members = self.members.lock();
        // Relaxed: a simulation has one thread.
        let turn = self.next_proposer.fetch_add(1, Ordering::Relaxed);
        let mut present = (0..self.nodes).map(|apart| (turn + apart) % self.nodes);
        let node = present.find(|node| members.member(*node).is_some()).unwrap_or_default();
        let number = members.propose(node, change);
        drop(members);
        loop {
            if let Some(proposed) = self.members.answer(node, number) {
                return proposed;
            }
            let mut members = self.members.lock();
            let next_ns = members.next_event_ns();
            members.run_until(next_ns);
        }
    }

    fn begin(&self, node: u16, change: &Change) -> Option<Asked> {
        let (members, node) = (self.members.clone(), usize::from(node));
        let number = members.lock().propose(node, change.clone());
        Some(Box::new(move || members.answer(node, number)))
    }
}
