//! The harness: every coroutine of every worker runs transactions of a workload until the run ends.
//!
//! ```text
//! clients begin:   warm-up ─► measured ─► stopped      phases of a Control, which every client reads
//! ```
//!
//! An aborted transaction is not retried: the coroutine draws a new one, as FaSST does. Latencies are those of committed
//! transactions.
//!
//! *Source*: FaSST section 6.
//!
//! *Not here*: what a workload does (`workload`), counting (`statistics`), checks of copies (`replicas`), SQL (`sql`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gannet_engine::{
    Abort, Cluster, ClusterOptions, Coordinator, Failure, Membership, Topology, WorkerId,
};

use crate::beside::{self, Beside, Filling};
use crate::check::Check;
use crate::exchange::exchanged;
use crate::members;
use crate::moves::{self, MovesReport};
use crate::progress::Progress;
use crate::replicas::check_replicas;
use crate::report::{Load, Report, Run, Verification, cores_used};
use crate::statistics::{self, Statistics};
use crate::workload::{BenchmarkError, Profile, Result as Outcome, Workload, seeded};

/// How long a run measures transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// For this time, after the warm-up.
    Duration(Duration),
    /// Until about so many transactions have begun, without a warm-up.
    Transactions(u64),
}

/// The settings of a run.
#[derive(Clone)]
pub struct Settings {
    /// The cluster.
    pub cluster: ClusterOptions,
    /// How long to measure.
    pub limit: Limit,
    /// How long to run before measuring.
    pub warmup: Duration,
    /// Seed of all random draws.
    pub seed: u64,
    /// How often the last of several processes is drained while transactions are measured, and gets its share again. Then the measured time
    /// ends when all have moved.
    pub drains: usize,
    /// A second table that takes rows while transactions are measured. Then the measured time ends when it has them all.
    pub beside: Option<Beside>,
    /// This process's membership, if each of several processes runs the same benchmark on its node.
    pub member: Option<Membership>,
}

const WARMING_UP: u8 = 0;
pub(crate) const MEASURING: u8 = 1;
pub(crate) const STOPPING: u8 = 2;

/// The state that the clients of a run share.
pub(crate) struct Control {
    phase: AtomicU8,
    /// Transactions that may still begin; unlimited for a run of given time.
    left: AtomicU64,
    counted: bool,
    /// Whether a client waits after a conflict.
    backs_off: bool,
    /// Transactions begun by each worker, for the progress line.
    begun: Vec<PaddedCount>,
}

/// A counter that a single thread writes, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct PaddedCount(AtomicU64);

/// Runs `workload` on a cluster of its own, and verifies the data.
///
/// # Errors
/// [`BenchmarkError`] if the settings are impossible or the memory does not suffice. A failed verification is no error: the
/// report has it.
pub fn run<W: Workload>(mut workload: W, settings: &Settings) -> Result<Report, BenchmarkError> {
    moves::check(settings.drains, settings.cluster.coroutines, settings.member.is_some())?;
    beside::check_coroutines(settings.beside, settings.cluster.coroutines)?;
    let progress = Progress::new(workload.name());
    let cluster = match &settings.member {
        None => Cluster::open(settings.cluster.clone())?,
        Some(member) => join(settings, member)?,
    };
    let profile = Profile::of(&workload);
    let mut agreed = all_settings(&profile, settings);
    agreed.insert("duration", format!("{:?}", settings.limit));
    agreed.insert("warmup", format!("{:?}", settings.warmup));
    members::agree(&cluster, &agreed)?;
    let before_bytes = members::used_bytes(&cluster);
    workload.create_tables(&cluster)?;
    let second = settings.beside.map(|beside| beside.create(&cluster)).transpose()?;
    progress.say("loading".to_owned());
    let load = load(&workload, &cluster, before_bytes)?;
    let workload = Arc::new(workload);
    let Measured { statistics, seconds, moves } =
        measure(&workload, &cluster, (settings, second), &progress)?;
    progress.say("verifying".to_owned());
    let whole = statistics.whole();
    let has_all = settings.cluster.replicas == settings.cluster.nodes || settings.member.is_none();
    // A process without a copy of all rows cannot look at them.
    let mut checks = if has_all { workload.verify(&cluster, &whole) } else { Vec::new() };
    if cluster.transport().is_some() {
        checks.extend(members::check_copies(&cluster)?);
    } else {
        checks.extend(check_replicas(&cluster));
    }
    // Other processes may still wait for this one. An error means that they have left, which is no failure.
    let _ = exchanged(&cluster, "leaving", ());
    checks.extend(second.map(|second| second.check(&cluster)));
    if let Some(error) = &whole.first_error {
        checks.push(Check::new("no transaction ended in an error", false, error.as_str()));
    }
    if let Some(reason) = stuck(&statistics) {
        checks.push(Check::new("transactions commit", false, reason));
    }
    let run = Run {
        settings: all_settings(&profile, settings),
        topology: topology_text(&cluster),
        durability: "memory",
        cores: cores_used(threads_of_all(&cluster)),
        seconds,
        load,
        profile,
    };
    Ok(Report { moves, ..Report::new(run, &statistics, Verification::new(checks)) })
}

/// Joins the other processes, each of which verifies its own copies.
fn join(settings: &Settings, member: &Membership) -> Result<Cluster, BenchmarkError> {
    let ClusterOptions { nodes, replicas, .. } = settings.cluster;
    if replicas < nodes && settings.drains == 0 {
        return Err(BenchmarkError::Setting {
            setting: "--replicas",
            value: replicas.to_string(),
            allowed: format!(
                "{nodes} with {nodes} processes, each of which verifies its own copies, or --drains"
            ),
        });
    }
    Ok(Cluster::join(settings.cluster.clone(), member)?)
}

fn all_settings(profile: &Profile, settings: &Settings) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<_, _> = profile.settings.iter().cloned().collect();
    all.extend(cluster_settings(&settings.cluster));
    all.insert("coroutines", settings.cluster.coroutines.to_string());
    all.insert("seed", settings.seed.to_string());
    if settings.drains > 0 {
        all.insert("drains", settings.drains.to_string());
    }
    if let Some(beside) = settings.beside {
        all.insert("beside", beside.setting());
    }
    all
}

/// The settings of a cluster, for the report.
#[must_use]
pub fn cluster_settings(options: &ClusterOptions) -> Vec<(&'static str, String)> {
    vec![
        ("nodes", options.nodes.to_string()),
        ("replicas", options.replicas.to_string()),
        ("threads", options.threads.to_string()),
    ]
}

/// Why a run without commits fails.
pub(crate) fn stuck(statistics: &Statistics) -> Option<String> {
    let whole = statistics.whole();
    (whole.attempted() > 0 && whole.qualified() == 0)
        .then(|| format!("{} attempted, none committed", whole.attempted()))
}

/// Loads the rows, and measures what that takes.
fn load<W: Workload>(
    workload: &W,
    cluster: &Cluster,
    before_bytes: u64,
) -> Result<Load, BenchmarkError> {
    let start = now();
    load_rows(workload, cluster)?;
    let memory_bytes = members::memory_bytes(cluster, before_bytes)?;
    Load::new(cluster, memory_bytes, start.elapsed())
}

/// Loads the rows of a workload, on as many threads as the cluster has.
pub(crate) fn load_rows<W: Workload>(
    workload: &W,
    cluster: &Cluster,
) -> Result<(), BenchmarkError> {
    let shares = cluster.thread_count() as u64;
    std::thread::scope(|scope| {
        let loaders: Vec<_> = (0..shares)
            .map(|share| scope.spawn(move || workload.load(cluster, share, shares)))
            .collect();
        loaders
            .into_iter()
            .try_for_each(|loader| loader.join().expect("a loader returns its errors"))
    })
}

fn measure<W: Workload>(
    workload: &Arc<W>,
    cluster: &Cluster,
    (settings, second): (&Settings, Option<Filling>),
    progress: &Progress,
) -> Result<Measured, BenchmarkError> {
    let options = cluster.options();
    let workers = options.nodes * options.threads;
    let limit = match settings.limit {
        Limit::Transactions(all) if cluster.transport().is_some() => {
            Limit::Transactions(all.div_ceil(options.nodes as u64))
        }
        limit => limit,
    };
    let control = Arc::new(Control::new(limit, false, workers));
    let has_moves = settings.drains > 0;
    let others = if has_moves { moves::COROUTINES } else { 0 }
        + if second.is_some() { beside::COROUTINES } else { 0 };
    let clients = options.coroutines - others;
    exchanged(cluster, "measuring", ())?;
    let mut start = now();
    let mut completions = Vec::new();
    let is_local = |worker: &usize| cluster.node(worker / options.threads).is_some();
    for worker in (0..workers).filter(is_local) {
        for coroutine in 0..clients {
            let stream = (worker * options.coroutines + coroutine) as u64;
            let (workload, control, seed) =
                (Arc::clone(workload), Arc::clone(&control), settings.seed);
            let job = move |coordinator: &mut Coordinator<'_>| {
                client(&*workload, &control, coordinator, worker, (seed, stream), u64::MAX)
            };
            let at = WorkerId { node: worker / options.threads, worker: worker % options.threads };
            completions.push(cluster.spawn(at, job)?);
        }
    }
    let (mut seconds, mut filled) = (None, Ok(()));
    let move_all = || moves::run(cluster, settings.drains, progress);
    let moves = match settings.limit {
        Limit::Duration(duration) => {
            wait(settings.warmup, "warming up", &control, progress);
            control.measure();
            start = now();
            let moves = if has_moves { Some(move_all()) } else { None };
            match second {
                Some(second) => filled = second.run(cluster),
                None if moves.is_none() => wait(duration, "measuring", &control, progress),
                None => {}
            }
            control.stop();
            seconds = Some(start.elapsed().as_secs_f64());
            moves
        }
        Limit::Transactions(_) => has_moves.then(move_all),
    };
    // Clients end first: to close a cluster is to wait for its jobs.
    let moves = moves.transpose()?;
    filled?;
    let mut sum = Statistics::new(workload.transactions().len(), workload.tallies().len());
    for completion in completions {
        if let Some(statistics) = completion.wait().map_err(|lost| cluster.loss(lost))? {
            sum.add(&statistics);
        }
    }
    let seconds = seconds.unwrap_or_else(|| start.elapsed().as_secs_f64());
    let (statistics, seconds) = members::together(cluster, sum, seconds)?;
    Ok(Measured { statistics, seconds, moves })
}

/// What a run has measured, in all processes together.
struct Measured {
    statistics: Statistics,
    seconds: f64,
    moves: Option<MovesReport>,
}

/// A client: runs transactions one after the other, at most `transactions`, drawn from a stream of a seed.
pub(crate) fn client<W: Workload>(
    workload: &W,
    control: &Control,
    coordinator: &mut Coordinator<'_>,
    worker: usize,
    (seed, stream): (u64, u64),
    transactions: u64,
) -> Option<Statistics> {
    let mut random = seeded(seed, stream + 1);
    let statistics =
        statistics::of_thread((workload.transactions().len(), workload.tallies().len()));
    let mut start_ns = coordinator.now_ns();
    let mut conflicts = 0;
    for _ in 0..transactions {
        let Some(phase) = control.begin(worker) else { break };
        let ran = workload.run_one(coordinator, &mut random);
        let end_ns = coordinator.now_ns();
        let latency_ns = end_ns.saturating_sub(start_ns);
        statistics.borrow_mut().record(&ran, latency_ns, phase == MEASURING);
        start_ns = end_ns;
        if matches!(
            ran.result,
            Outcome::Aborted(Abort::Failure(Failure::Halted | Failure::Revoked | Failure::Unknown))
        ) {
            break;
        }
        // A transaction that ends at once, as its rows are lost, lets others run.
        let is_lost = matches!(ran.result, Outcome::Aborted(Abort::Failure(Failure::Lost { .. })));
        if control.backs_off || is_lost {
            conflicts = if matches!(ran.result, Outcome::Aborted(_)) { conflicts + 1 } else { 0 };
            if conflicts > 0 {
                coordinator.back_off(conflicts);
            }
        }
    }
    drop(statistics);
    statistics::take()
}

impl Control {
    pub(crate) fn new(limit: Limit, backs_off: bool, workers: usize) -> Self {
        let (transactions, counted) = match limit {
            Limit::Duration(_) => (u64::MAX, false),
            Limit::Transactions(transactions) => (transactions, true),
        };
        Self {
            phase: AtomicU8::new(if counted { MEASURING } else { WARMING_UP }),
            left: AtomicU64::new(transactions),
            counted,
            backs_off,
            begun: (0..workers).map(|_| PaddedCount::default()).collect(),
        }
    }

    /// The phase, if a client of `worker` may begin a transaction.
    #[inline]
    pub(crate) fn begin(&self, worker: usize) -> Option<u8> {
        let phase = self.phase();
        if phase == STOPPING || self.counted && !self.take_one() {
            return None;
        }
        let begun = &self.begun[worker].0;
        begun.store(begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Some(phase)
    }

    #[inline]
    pub(crate) fn phase(&self) -> u8 {
        // Relaxed: a few transactions more or less in a phase do not matter.
        self.phase.load(Ordering::Relaxed)
    }

    /// Begins the measured phase, unless the run was stopped.
    pub(crate) fn measure(&self) {
        let (from, to) = (WARMING_UP, MEASURING);
        // A failure means that the run was stopped.
        let _ = self.phase.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Stops the run: clients begin no further transaction.
    pub(crate) fn stop(&self) {
        self.phase.store(STOPPING, Ordering::Relaxed);
    }

    #[inline]
    fn take_one(&self) -> bool {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.is_ok()
    }

    pub(crate) fn begun(&self) -> u64 {
        self.begun.iter().map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#[inline]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark runs for a given time")]
pub(crate) fn wait(duration: Duration, phase: &str, control: &Control, progress: &Progress) {
    let start = now();
    let mut before = control.begun();
    while let Some(left) = duration.checked_sub(start.elapsed())
        && control.phase() != STOPPING
    {
        let step = left.min(Duration::from_secs(1));
        std::thread::sleep(step);
        let begun = control.begun();
        let rate = (begun - before) as f64 / step.as_secs_f64().max(1e-3) / 1e6;
        progress.say(format!("{phase}, {rate:.2} M transactions/s, {begun} so far"));
        before = begun;
    }
}

/// OS threads that drive workers, in all processes.
fn threads_of_all(cluster: &Cluster) -> usize {
    let processes = if cluster.transport().is_some() { cluster.options().nodes } else { 1 };
    cluster.thread_count() * processes
}

/// A cluster's topology, in words.
#[must_use]
pub fn topology_text(cluster: &Cluster) -> String {
    let options = cluster.options();
    let threads = cluster.thread_count();
    if let Some(transport) = cluster.transport() {
        let (nodes, carrier) = (options.nodes, transport.name());
        return format!("{nodes} processes over {carrier}, {threads} OS threads in each");
    }
    match options.topology {
        Topology::ThreadPerWorkerNumber => format!(
            "{} nodes in one process, {threads} OS threads, thread i drives worker i of every node",
            options.nodes
        ),
        Topology::ThreadPerWorker => format!(
            "{} nodes in one process, {threads} OS threads, one per worker of each node",
            options.nodes
        ),
    }
}
