//! A workload on a simulated cluster, in virtual time, under faults, verified afterwards.
//!
//! *Source*: `docs/simulation.md`.
//!
//! *Not here*: the simulator (`gannet_engine::simulation`), and what seeds stand for (the command).

mod deaths;
mod heal;

use std::io::Write;
use std::sync::Arc;

use gannet_engine::simulation::{
    Awaited, CameBack, Drain, Fault, Firings, Founding, Kill, Simulation,
};
use gannet_engine::{ClusterOptions, Coordinator, WorkerId};
use gannet_rpc::Counters;

use crate::check::Check;
use crate::harness::{Control, Limit, client};
use crate::replicas::check_replicas;
use crate::rows;
use crate::simulate::deaths::Job;
use crate::statistics::{self, Statistics, Totals};
use crate::workload::{BenchmarkError, Workload};

pub use heal::HealPhase;

/// After the last fault, some transaction must end within this virtual time.
const HEAL_NS: u64 = 10_000_000_000;
/// Clients of each coroutine, one after the other, if a member is to die.
const CLIENTS_PER_COROUTINE: usize = 4;
/// Virtual time between two looks at whether there is progress.
const LOOK_NS: u64 = 10_000_000;

/// The settings of a simulated run.
pub struct SimulatedRun {
    /// The cluster.
    pub cluster: ClusterOptions,
    /// How it begins.
    pub founding: Founding,
    /// Whether clocks of leases stand still at nodes that do, and reads are confirmed.
    pub clocks_stand: bool,
    /// When the disk of a voter of the manager fails, in virtual nanoseconds, if so.
    pub disk_fails_ns: Option<u64>,
    /// Seed of network and clients.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<Fault>,
    /// The planned deaths of members.
    pub kills: Vec<Kill>,
    /// The planned drains of members.
    pub drains: Vec<Drain>,
    /// The number of transactions, or the virtual time.
    pub limit: Limit,
    /// Gets a line for every event.
    pub trace: Option<Box<dyn Write>>,
}

/// How a simulated run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every client has finished, and the cluster is at rest.
    Finished,
    /// A client, a job or a member waits forever, although all faults have ended.
    Stuck,
}

/// The findings of a simulated run.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// How the run ended.
    pub ended: Ended,
    /// What it still waited for, but for clients.
    pub awaited: Option<Awaited>,
    /// The checks; none if the run did not finish.
    pub checks: Vec<Check>,
    /// The counts of the clients.
    pub totals: Totals,
    /// How often each fault struck.
    pub firings: Firings,
    /// The deaths of members that have happened.
    pub killed: Vec<Kill>,
    /// How many members the others have removed, as they were silent or cut off.
    pub removed: u64,
    /// Whether the others have halted then, as they could not go on.
    pub halted: bool,
    /// Changes of the membership that the others have made.
    pub membership_changes: u64,
    /// Jobs that dead members had not begun, and that another member has taken over.
    pub handed_over: u64,
    /// The processes of dead members that were started again.
    pub came_back: CameBack,
    /// Members that were to be drained, or to hold their share again.
    pub drains: u64,
    /// Copies that nodes have given up, as others have them.
    pub given_up: u64,
    /// Bytes of rows that were copied to replace lost copies, or as copies moved.
    pub copied_bytes: u64,
    /// Buckets that were split as tables grew, in the partitions that are left.
    pub splits: u64,
    /// Halves of buckets that were merged, at all copies that are left.
    pub merges: u64,
    /// The counts of the endpoints.
    pub counters: Counters,
    /// The virtual time of the run, in nanoseconds.
    pub virtual_ns: u64,
    /// A hash of all events.
    pub trace_hash: u64,
}

impl Simulated {
    /// The findings of a run that has ended, or is stuck.
    #[must_use]
    pub fn of(simulation: &Simulation, finished: bool, checks: Vec<Check>, totals: Totals) -> Self {
        Self {
            ended: if finished { Ended::Finished } else { Ended::Stuck },
            awaited: simulation.awaited(),
            checks,
            totals,
            firings: simulation.firings(),
            killed: simulation.killed().to_vec(),
            removed: simulation.removed().len() as u64,
            halted: simulation.has_halted(),
            membership_changes: u64::from(simulation.epoch() - 1),
            handed_over: simulation.handed_over(),
            came_back: simulation.came_back(),
            drains: simulation.drains(),
            given_up: simulation.given_up(),
            copied_bytes: simulation.copied_bytes(),
            splits: rows::splits(simulation.cluster()),
            merges: simulation.merges(),
            counters: simulation.counters(),
            virtual_ns: simulation.now_ns(),
            trace_hash: simulation.trace_hash(),
        }
    }

    /// Whether the run has finished and every check has passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.ended == Ended::Finished && self.checks.iter().all(|check| check.passed)
    }
}

/// Runs until every client has finished. Returns false if too much time has passed since the last fault ended, the last transaction
/// began, and the last member was drained.
fn run_to_the_end(simulation: &mut Simulation, control: &Control) -> bool {
    let progress = |simulation: &Simulation| (control.begun(), simulation.drains());
    let (mut before, mut progressed_ns) = (progress(simulation), simulation.now_ns());
    loop {
        let now_ns = simulation.now_ns();
        if simulation.run_until(now_ns + LOOK_NS, &|| control.begun()) {
            return true;
        }
        if progress(simulation) != before {
            (before, progressed_ns) = (progress(simulation), now_ns);
        }
        if now_ns > simulation.last_end_ns().max(progressed_ns) + HEAL_NS {
            return false;
        }
    }
}

/// Simulates `workload`.
///
/// # Errors
/// [`BenchmarkError`] if the settings are impossible or the memory does not suffice. A failed check is no error.
///
/// # Panics
/// If the simulated cluster panics, which is a bug.
pub fn simulate<W: Workload>(
    mut workload: W,
    run: SimulatedRun,
) -> Result<Simulated, BenchmarkError> {
    let SimulatedRun { cluster, founding, clocks_stand, disk_fails_ns, seed, .. } = run;
    let SimulatedRun { faults, kills, drains, limit, trace, .. } = run;
    let mut simulation = Simulation::open_with(founding, cluster, seed, faults, trace)?;
    let some_die = !kills.is_empty();
    simulation.plan_kills(kills);
    simulation.plan_drains(drains);
    if let Limit::Transactions(transactions) = limit {
        simulation.plan_reshapes(seed, transactions);
    }
    workload.create_tables(simulation.cluster())?;
    workload.load(simulation.cluster(), 0, 1)?;
    let heal_phase = HealPhase::create(simulation.cluster())?;
    simulation.require_leases(clocks_stand);
    disk_fails_ns.into_iter().for_each(|after_ns| simulation.plan_disk_failure(after_ns));
    let workload = Arc::new(workload);
    let options = simulation.cluster().options();
    let control = Arc::new(Control::new(limit, true, options.nodes * options.threads));
    // An earlier run on this thread may have left statistics, if it was stuck.
    statistics::forget();
    let mut completions = Vec::new();
    // If a member is to die, further clients wait in its queue.
    let (clients, transactions) = match (some_die, limit) {
        (true, Limit::Transactions(transactions)) => {
            let clients = options.coroutines * CLIENTS_PER_COROUTINE;
            let all = (simulation.first_nodes() * options.threads * clients) as u64;
            (clients, transactions.div_ceil(all))
        }
        _ => (options.coroutines, u64::MAX),
    };
    // A node that is added serves, and has no clients until transactions have healed the cluster.
    for worker in 0..simulation.first_nodes() * options.threads {
        for client_number in 0..clients {
            let stream = (worker * clients + client_number) as u64;
            let (workload, control) = (Arc::clone(&workload), Arc::clone(&control));
            let job = move |coordinator: &mut Coordinator<'_>| {
                client(&*workload, &control, coordinator, worker, (seed, stream), transactions)
            };
            let at = WorkerId { node: worker / options.threads, worker: worker % options.threads };
            completions.push(simulation.cluster().spawn(at, job)?);
        }
    }
    if let Limit::Duration(duration) = limit {
        let end_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        simulation.run_until(end_ns, &|| control.begun());
        control.stop();
    }
    let finished = run_to_the_end(&mut simulation, &control);
    let mut sum = Statistics::new(workload.transactions().len(), workload.tallies().len());
    let mut checks = Vec::new();
    if finished {
        if !simulation.has_halted() {
            checks.push(heal_phase.run(&mut simulation, control.begun())?);
        }
        checks.extend(check(&simulation, &*workload, completions, &mut sum));
    }
    Ok(Simulated::of(&simulation, finished, checks, sum.whole()))
}

/// Checks the data and the answers after a run, and adds the counts of the clients to `sum`.
fn check<W: Workload>(
    simulation: &Simulation,
    workload: &W,
    completions: Vec<Job>,
    sum: &mut Statistics,
) -> Vec<Check> {
    let cluster = simulation.cluster();
    let some_have_died = !simulation.died().is_empty();
    let mut checks = Vec::new();
    if some_have_died {
        checks = deaths::check_jobs(simulation, completions, sum);
    } else {
        for completion in completions {
            match completion.wait() {
                Ok(found) => found.iter().for_each(|found| sum.add(found)),
                // Without a death, the cluster has halted because of a bug.
                Err(lost) => checks.push(Check::new("no job is lost", false, lost.to_string())),
            }
        }
        if let Some(error) = &sum.whole().first_error {
            checks.push(Check::new("no transaction ended in an error", false, error.as_str()));
        }
    }
    checks.extend(check_cluster(simulation));
    if simulation.dead().len() == cluster.nodes().len() {
        // The last one was removed by others, which have died since: its rows are old, and nobody serves any.
        return checks;
    }
    let has_lost_rows = simulation.has_lost_rows();
    if !(has_lost_rows || simulation.has_halted() && simulation.may_have_lost_records()) {
        let of_workload = workload.verify(cluster, &sum.whole()).into_iter();
        checks.extend(of_workload.filter(|check| !(some_have_died && check.needs_all_outcomes)));
    }
    checks
}

/// Checks what holds after every run, whatever its clients did: the copies are equal, and nothing is in use.
///
/// # Panics
/// If a commit record in a log is none.
#[must_use]
pub fn check_cluster(simulation: &Simulation) -> Vec<Check> {
    let cluster = simulation.cluster();
    let refused: u64 = cluster.nodes().iter().map(|node| node.refused()).sum();
    let mut checks = vec![Check::equal("requests refused", 0, i128::from(refused))];
    let all_are_dead = simulation.dead().len() == cluster.nodes().len();
    if !simulation.has_halted() && !all_are_dead {
        let CameBack { all, removed, joined, .. } = simulation.came_back();
        let name = "processes that were started again or added, and are members";
        checks.push(Check::equal(name, (all - removed).into(), joined.into()));
    }
    if all_are_dead {
        return checks;
    }
    if simulation.has_halted() {
        checks.extend(deaths::check_halted(simulation));
    } else {
        let configuration = simulation.cluster().configuration();
        // A copy may be missing for which only drained nodes are left.
        if !configuration.member_numbers().any(|node| configuration.is_drained(node)) {
            let missing = configuration.copies_missing() as i128;
            checks.push(Check::equal("copies that are missing", 0, missing));
        }
        let forgotten = simulation.bytes_of_others() as i128;
        checks.push(Check::equal("bytes of partitions that a node does not hold", 0, forgotten));
        checks.extend(check_replicas(cluster));
        let in_use = simulation.in_use() as i128;
        checks.push(Check::equal("requests, credits and coroutines in use", 0, in_use));
    }
    checks
}
