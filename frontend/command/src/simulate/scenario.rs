//! The scenario of a seed: a cluster, a workload and faults; and the verdict on its run.
//!
//! *Invariants*: cluster, workload, faults, deaths and drains follow from the seed and the options. An option that is
//! chosen leaves the other draws as they were. Where logs outlive their processes, each process that dies is started
//! again. A search for the necessary faults takes out one at a time, and keeps deaths and drains. A verdict has the exit
//! code of the command.
//!
//! *Source*: `docs/simulation.md`, "Members that die" and "Members that are drained".
//!
//! *Not here*: the simulator (`gannet_engine::simulation`), and workloads (`gannet_benchmarks`, `builds`).

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gannet_benchmarks::consistency::{ListAppend, Registers};
use gannet_benchmarks::loads::Loads;
use gannet_benchmarks::pairs::Pairs;
use gannet_benchmarks::ranges::Ranges;
use gannet_benchmarks::retries::Retries;
use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::{
    BenchmarkError, Ended, Limit, Random, Simulated, SimulatedRun, Workload, seeded, simulate,
};
use gannet_engine::ClusterOptions;
use gannet_engine::simulation::{Drain, Fault, Founding, Kill, ManagerKind, draw_faults, pauses};
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;
use rand::RngExt;

use crate::simulate::builds;

/// Table memory of a simulated node, in bytes.
const MEMORY_BYTES: usize = 16 << 20;
/// One of this many seeds has the replicas of the product's manager.
const RAFT_EVERY: u32 = 20;
/// In one of this many others, logs of the model outlive their processes.
const DURABLE_EVERY: u32 = 2;
/// In one of this many there is one copy, so a death takes rows with it.
const ONE_COPY_EVERY: u32 = 12;
/// One of this many seeds may have nodes that are added while transactions run: at most so many, to a cluster that begins with at least so many.
const SPARES_EVERY: u32 = 3;
const SPARES_MAX: usize = 2;
const FIRST_NODES_MIN: usize = 3;
/// In one of this many clocks of leases stand still at nodes that do, and reads are confirmed.
const CLOCKS_STAND_EVERY: u32 = 5;
/// In one of this many, of those without deaths, a disk of the manager fails, within this virtual time.
const DISK_FAILS_EVERY: u32 = 2;
const DISK_FAILS_NS_MAX: u64 = 30_000_000;
/// Members die in all seeds but one of this many.
const NO_KILL_EVERY: u64 = 3;
/// The stream of a seed's generator that draws the cluster and the workload.
const STREAM: u64 = u64::MAX;

/// A workload of simulated runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WorkloadKind {
    ListAppend,
    Registers,
    Pairs,
    Skew,
    Ranges,
    Retries,
    Loads,
    Smallbank,
    Tatp,
    /// SQL: builds of indexes beside changes of rows.
    Builds,
}

/// What is chosen for all seeds, instead of what each draws.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Chosen {
    /// Run this workload instead of the one that each seed draws.
    #[arg(long)]
    pub(crate) workload: Option<WorkloadKind>,
    /// Let openraft decide on the membership in every seed, instead of in one of twenty.
    #[arg(long)]
    pub(crate) raft: bool,
    /// Let clocks of leases stand still at nodes that do, and confirm reads, in every seed instead of in one of five.
    #[arg(long)]
    pub(crate) clocks_stand: bool,
    /// Drain a member so often in every seed, and have it hold its share again, instead of up to three times.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) drains: Option<u64>,
    /// Pause a member for longer than a lease, so often in every seed besides what it draws.
    #[arg(long, default_value_t = 0)]
    pub(crate) pauses: u64,
}

/// The scenario of a seed.
#[derive(Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) cluster: ClusterOptions,
    pub(crate) founding: Founding,
    /// Whether clocks of leases stand still at nodes that do, and reads are confirmed.
    pub(crate) clocks_stand: bool,
    /// When the disk of a voter of the manager fails, in virtual nanoseconds, if so.
    pub(crate) disk_fails_ns: Option<u64>,
    pub(crate) workload: WorkloadKind,
    pub(crate) faults: Vec<Fault>,
    /// The planned deaths of members.
    pub(crate) kills: Vec<Kill>,
    /// The planned drains of members.
    pub(crate) drains: Vec<Drain>,
    pub(crate) transactions: u64,
}

/// The verdict on a run.
pub(crate) enum Verdict {
    Passed(Simulated),
    /// A check failed.
    Unsafe(Simulated),
    /// A client, a job or a member waits forever.
    Stuck(Simulated),
    /// The engine panicked.
    Crashed(String),
}

/// The workload of a seed.
fn draw_workload(random: &mut Random, seed: u64) -> WorkloadKind {
    match random.random_range(0..14) {
        0..4 => WorkloadKind::ListAppend,
        4..6 => WorkloadKind::Registers,
        6 => WorkloadKind::Pairs,
        7 => WorkloadKind::Skew,
        8 => WorkloadKind::Smallbank,
        9..11 => WorkloadKind::Ranges,
        11 => WorkloadKind::Tatp,
        12 => WorkloadKind::Retries,
        _ if seed.is_multiple_of(2) => WorkloadKind::Loads,
        _ => WorkloadKind::Builds,
    }
}

/// How many nodes of so many are added later. Builds begin at all nodes.
fn draw_spares(random: &mut Random, workload: WorkloadKind, nodes: usize) -> usize {
    let spares_max = nodes.saturating_sub(FIRST_NODES_MIN).min(SPARES_MAX);
    let has_spares = random.random_ratio(1, SPARES_EVERY) && workload != WorkloadKind::Builds;
    if has_spares { random.random_range(0..=spares_max) } else { 0 }
}

impl Scenario {
    /// The scenario of `seed`; what is chosen replaces what the seed draws.
    pub(crate) fn draw(seed: u64, transactions: u64, chosen: Chosen) -> Self {
        let mut random: Random = seeded(seed, STREAM);
        let nodes = random.random_range(3..=7);
        let mut cluster = ClusterOptions {
            nodes,
            replicas: random.random_range(2..=3),
            threads: random.random_range(1..=2),
            coroutines: random.random_range(1..=12),
            partitions: 1 << random.random_range(1..5),
            memory_limit_bytes: Some(MEMORY_BYTES),
            seed,
            ..ClusterOptions::default()
        };
        let drawn = draw_workload(&mut random, seed);
        let nodes = u16::try_from(nodes).expect("at most seven nodes");
        let mut faults = draw_faults(seed, nodes, transactions);
        faults.extend(pauses(seed, nodes, transactions, chosen.pauses));
        let kills = !seed.is_multiple_of(NO_KILL_EVERY);
        let workload = chosen.workload.unwrap_or(drawn);
        let mut kills = if kills {
            // Stages take turns, so a campaign has a death in each.
            let turn = usize::try_from(seed % 1_000).expect("below 1,000");
            Kill::draw(seed, nodes, transactions, turn)
        } else {
            Vec::new()
        };
        let has_raft = random.random_ratio(1, RAFT_EVERY) || chosen.raft;
        let clocks_stand = random.random_ratio(1, CLOCKS_STAND_EVERY) || chosen.clocks_stand;
        // With a death besides, no majority might be left.
        let fails = kills.is_empty() && random.random_ratio(1, DISK_FAILS_EVERY);
        let disk_fails_ns = fails.then(|| random.random_range(0..DISK_FAILS_NS_MAX));
        let manager = match random.random_ratio(1, DURABLE_EVERY) {
            _ if has_raft => ManagerKind::Raft,
            true => ManagerKind::DurableModel,
            false => ManagerKind::Model,
        };
        if random.random_ratio(1, ONE_COPY_EVERY) {
            cluster.replicas = 1;
        }
        if manager == ManagerKind::DurableModel {
            // A majority may be gone until its processes are there again.
            for kill in &mut kills {
                kill.restarts_after_ns.get_or_insert_default();
            }
        }
        let spares = draw_spares(&mut random, workload, nodes.into());
        if spares > 0 {
            // A majority of those that were there at first lives, or nobody might be left to add nodes.
            kills.truncate((usize::from(nodes) - spares - 1) / 2);
        }
        Self {
            seed,
            cluster,
            founding: Founding { manager, spares },
            clocks_stand,
            disk_fails_ns,
            workload,
            faults,
            kills,
            drains: match chosen.drains {
                Some(count) => Drain::cycles(seed, nodes, transactions, count),
                None => Drain::draw(seed, nodes, transactions),
            },
            transactions,
        }
    }

    /// Whether a second run is the same run: openraft draws at random for itself.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.founding.manager != ManagerKind::Raft
    }

    /// Runs the scenario; `trace` gets a line for each event.
    pub(crate) fn run(&self, trace: Option<Box<dyn Write>>) -> Result<Verdict, BenchmarkError> {
        let result = catch_unwind(AssertUnwindSafe(|| match self.workload {
            WorkloadKind::ListAppend => self.run_with(ListAppend::new(self.transactions), trace),
            WorkloadKind::Registers => self.run_with(Registers::default(), trace),
            WorkloadKind::Pairs => self.run_with(Pairs::default(), trace),
            WorkloadKind::Skew => self.run_with(Skew::new(20)?, trace),
            WorkloadKind::Ranges => self.run_with(Ranges::new(30)?, trace),
            WorkloadKind::Retries => self.run_with(Retries::default(), trace),
            WorkloadKind::Loads => self.run_with(Loads::default(), trace),
            WorkloadKind::Smallbank => self.run_with(SmallBank::new(200, self.seed)?, trace),
            WorkloadKind::Tatp => self.run_with(Tatp::new(50, true, self.seed)?, trace),
            WorkloadKind::Builds => builds::run(self, trace),
        }));
        match result {
            Ok(found) => {
                let found = found?;
                Ok(match found.ended {
                    Ended::Stuck => Verdict::Stuck(found),
                    Ended::Finished if found.passed() => Verdict::Passed(found),
                    Ended::Finished => Verdict::Unsafe(found),
                })
            }
            Err(panic) => Ok(Verdict::Crashed(panic_text(&*panic))),
        }
    }

    fn run_with<W: Workload>(
        &self,
        workload: W,
        trace: Option<Box<dyn Write>>,
    ) -> Result<Simulated, BenchmarkError> {
        let run = SimulatedRun {
            cluster: self.cluster.clone(),
            founding: self.founding,
            clocks_stand: self.clocks_stand,
            disk_fails_ns: self.disk_fails_ns,
            seed: self.seed,
            faults: self.faults.clone(),
            kills: self.kills.clone(),
            drains: self.drains.clone(),
            limit: Limit::Transactions(self.transactions),
            trace,
        };
        simulate(workload, run)
    }

    /// The same scenario, with the fewest faults that still cause the same kind of failure.
    pub(crate) fn minimise(&self, failure: &Verdict) -> Result<Self, BenchmarkError> {
        let mut smallest = self.clone();
        let mut index = 0;
        while index < smallest.faults.len() {
            let mut smaller = smallest.clone();
            smaller.faults.remove(index);
            if smaller.run(None)?.exit_code() == failure.exit_code() {
                smallest = smaller;
            } else {
                index += 1;
            }
        }
        Ok(smallest)
    }
}

impl Verdict {
    /// The exit code of the command.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Passed(_) => 0,
            Self::Unsafe(_) => 1,
            Self::Stuck(_) => 3,
            Self::Crashed(_) => 4,
        }
    }

    /// The findings of the simulation, unless the engine panicked.
    pub(crate) fn found(&self) -> Option<&Simulated> {
        match self {
            Self::Passed(found) | Self::Unsafe(found) | Self::Stuck(found) => Some(found),
            Self::Crashed(_) => None,
        }
    }

    /// The verdict in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Passed(_) => "passed".to_owned(),
            Self::Unsafe(found) => {
                let failed = found.checks.iter().filter(|check| !check.passed);
                let failed: Vec<_> =
                    failed.map(|check| format!("{}: {}", check.name, check.detail)).collect();
                format!("unsafe: {}", failed.join("; "))
            }
            Self::Stuck(Simulated { awaited, .. }) => {
                let awaited = awaited.map_or("a client waits".to_owned(), |it| it.to_string());
                format!("stuck: {awaited}, although all faults have ended")
            }
            Self::Crashed(message) => format!("crashed: {message}"),
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
