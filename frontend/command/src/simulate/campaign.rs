//! Campaigns: many seeds, on all cores, and their sums.
//!
//! *Invariants*: a thread runs a seed at a time, and a run depends on its seed and the options alone. One seed of 100
//! runs twice, unless openraft draws at random in it: then both runs must have one trace. The first failure ends the
//! campaign, when the runs under way have ended; that of the lowest seed is reported. The limit of time is real time,
//! that of a run is virtual.
//!
//! *Source*: `docs/simulation.md`, "Campaigns and fuzzing".
//!
//! *Not here*: a single seed (`scenario`); what the sums must be (`mod.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gannet_benchmarks::{BenchmarkError, Progress, Simulated};
use gannet_engine::simulation::{FaultKind, Firings, KILL_MOMENTS, KillMoment, ManagerKind};

use crate::simulate::scenario::{Chosen, Scenario, Verdict};

/// One seed in this many runs twice.
const TWICE_EVERY: u64 = 100;

/// The task of a campaign.
pub(crate) struct Campaign {
    pub(crate) first_seed: u64,
    pub(crate) seeds: u64,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) transactions: u64,
    pub(crate) chosen: Chosen,
}

/// The findings of a campaign.
#[derive(Default)]
pub(crate) struct Summary {
    pub(crate) seeds: u64,
    pub(crate) virtual_ns: u64,
    pub(crate) transactions: u64,
    pub(crate) committed: u64,
    pub(crate) firings: Firings,
    /// Seeds with replicas of the product's manager, and those with clocks that stand still.
    pub(crate) on_raft: u64,
    pub(crate) with_confirmed_reads: u64,
    /// Those in which a disk of the manager failed.
    pub(crate) disks_failed: u64,
    /// Seeds that planned deaths of members, and members that died, by [`KILL_MOMENTS`].
    pub(crate) kills_planned: u64,
    pub(crate) kills: [u64; KILL_MOMENTS.len()],
    /// Changes of the membership, and seeds in which the others halted.
    pub(crate) membership_changes: u64,
    pub(crate) halted: u64,
    /// Members that the others have removed, as they were silent or cut off.
    pub(crate) removed: u64,
    /// Jobs that killed members had not begun, and that other members have taken over.
    pub(crate) handed_over: u64,
    /// Processes of killed members that were started again, and those that the others have let in.
    pub(crate) came_back: u64,
    /// Nodes that were added.
    pub(crate) added: u64,
    pub(crate) elections: u64,
    /// Drains of members and their ends, copies that were given up to others, and bytes of rows that were copied.
    pub(crate) drains: u64,
    pub(crate) given_up: u64,
    pub(crate) copied_bytes: u64,
    pub(crate) splits: u64,
    pub(crate) merges: u64,
    pub(crate) let_in: u64,
    pub(crate) retransmitted: u64,
    pub(crate) seconds: f64,
    /// Seeds by workload.
    pub(crate) by_workload: BTreeMap<String, u64>,
    /// The failure with the lowest seed.
    pub(crate) failure: Option<(Scenario, Verdict)>,
    /// A seed whose second run had another trace.
    pub(crate) unrepeatable: Option<u64>,
}

impl Summary {
    fn add(&mut self, scenario: Scenario, verdict: Verdict) {
        self.seeds += 1;
        self.on_raft += u64::from(scenario.founding.manager == ManagerKind::Raft);
        self.with_confirmed_reads += u64::from(scenario.clocks_stand);
        let has_model = scenario.founding.manager != ManagerKind::Raft;
        self.disks_failed += u64::from(has_model && scenario.disk_fails_ns.is_some());
        self.kills_planned += u64::from(!scenario.kills.is_empty());
        *self.by_workload.entry(format!("{:?}", scenario.workload)).or_default() += 1;
        if let Some(found) = verdict.found() {
            self.add_found(found);
        }
        let is_first =
            self.failure.as_ref().is_none_or(|(earlier, _)| scenario.seed < earlier.seed);
        if verdict.exit_code() != 0 && is_first {
            self.failure = Some((scenario, verdict));
        }
    }

    fn add_found(&mut self, found: &Simulated) {
        self.virtual_ns += found.virtual_ns;
        self.transactions += found.totals.attempted();
        self.committed += found.totals.qualified();
        self.firings.add(&found.firings);
        for (moment, kills) in KILL_MOMENTS.into_iter().zip(&mut self.kills) {
            *kills += found.killed.iter().filter(|kill| kill.moment == moment).count() as u64;
        }
        self.membership_changes += found.membership_changes;
        self.halted += u64::from(found.halted);
        self.removed += found.removed;
        self.handed_over += found.handed_over;
        self.came_back += found.came_back.all - found.came_back.added;
        self.added += found.came_back.added;
        self.elections += found.came_back.elections;
        self.drains += found.drains;
        self.given_up += found.given_up;
        self.copied_bytes += found.copied_bytes;
        self.splits += found.splits;
        self.merges += found.merges;
        self.let_in += found.came_back.joined;
        self.retransmitted += found.counters.retransmitted;
    }

    /// The virtual time, in hours.
    pub(crate) fn virtual_hours(&self) -> f64 {
        self.virtual_ns as f64 / 3.6e12
    }

    /// Moments at which no member died, if deaths were planned.
    pub(crate) fn idle_moments(&self) -> Vec<KillMoment> {
        let by_moment = KILL_MOMENTS.into_iter().zip(self.kills);
        let idle = by_moment.filter(|(_, kills)| self.kills_planned > 0 && *kills == 0);
        idle.map(|(moment, _)| moment).collect()
    }

    /// The number of deaths at each moment.
    pub(crate) fn kills_text(&self) -> String {
        let by_moment = KILL_MOMENTS.into_iter().zip(self.kills);
        let name = |moment| match moment {
            KillMoment::Commit(stage) => format!("{stage:?}"),
            moment => format!("{moment:?}"),
        };
        let texts: Vec<_> =
            by_moment.map(|(moment, kills)| format!("{} {kills}", name(moment))).collect();
        texts.join(", ")
    }

    /// Kinds of faults that struck fewer than `least` times.
    pub(crate) fn idle_faults(&self, least: u64) -> Vec<FaultKind> {
        FaultKind::ALL.into_iter().filter(|&kind| self.firings.of(kind) < least).collect()
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            out,
            "{} seeds, {:.3} virtual hours, {} transactions, {} committed and found their rows",
            self.seeds,
            self.virtual_hours(),
            self.transactions,
            self.committed
        )?;
        let per_hour = self.seeds as f64 / self.seconds.max(1e-9) * 3600.0;
        writeln!(out, "{:.1} s, {per_hour:.0} seeds per hour", self.seconds)?;
        let workloads: Vec<_> =
            self.by_workload.iter().map(|(name, seeds)| format!("{name} {seeds}")).collect();
        writeln!(out, "seeds by workload: {}", workloads.join(", "))?;
        let firings: Vec<_> = FaultKind::ALL
            .iter()
            .map(|&kind| format!("{} {}", kind.name(), self.firings.of(kind)))
            .collect();
        writeln!(out, "faults while transactions were in flight: {}", firings.join(", "))?;
        writeln!(out, "members killed, by the moment: {}", self.kills_text())?;
        writeln!(
            out,
            "{} changes of the membership; {} living members were removed; in {} seeds the others halted; \
             {} seeds had openraft, {} clocks that stand still, {} a disk of the manager that fails",
            self.membership_changes,
            self.removed,
            self.halted,
            self.on_raft,
            self.with_confirmed_reads,
            self.disks_failed
        )?;
        writeln!(
            out,
            "{} jobs of killed members were taken over by other members",
            self.handed_over
        )?;
        writeln!(
            out,
            "{} processes of killed members were started again, and {} nodes were added; {} of them are members again; {} elections had no majority but for those",
            self.came_back, self.added, self.let_in, self.elections
        )?;
        let copied = self.copied_bytes >> 10;
        writeln!(
            out,
            "{} times members were drained or no longer; {} copies were given up; {copied} KiB of rows were copied",
            self.drains, self.given_up
        )?;
        let Self { splits, merges, .. } = self;
        writeln!(out, "{splits} buckets were split, and halves merged {merges} times at copies")?;
        write!(out, "requests sent again: {}", self.retransmitted)
    }
}

impl Campaign {
    /// Runs the seeds. A failure stops the campaign early.
    pub(crate) fn run(&self) -> Result<Summary, BenchmarkError> {
        let summary = Mutex::new(Summary::default());
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let start = now();
        let progress = Progress::new("simulate");
        let work = || -> Result<(), BenchmarkError> {
            while !stop.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let is_late = self.time_limit.is_some_and(|limit| start.elapsed() >= limit);
                if index >= self.seeds || is_late {
                    break;
                }
                let seed = self.first_seed + index;
                let scenario = Scenario::draw(seed, self.transactions, self.chosen);
                let verdict = scenario.run(None)?;
                let runs_again = index % TWICE_EVERY == 0 && scenario.is_repeatable();
                let again = if runs_again { Some(scenario.run(None)?) } else { None };
                let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                let hash = |verdict: &Verdict| verdict.found().map(|found| found.trace_hash);
                if again.is_some_and(|again| hash(&again) != hash(&verdict)) {
                    summary.unrepeatable = Some(seed);
                }
                summary.add(scenario, verdict);
                if summary.failure.is_some() || summary.unrepeatable.is_some() {
                    stop.store(true, Ordering::Relaxed);
                }
                let (seeds, transactions) = (summary.seeds, summary.transactions);
                progress
                    .say(format!("{seeds} of {} seeds, {transactions} transactions", self.seeds));
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a scenario's panic is caught"))
        })?;
        let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
        summary.seconds = start.elapsed().as_secs_f64();
        Ok(summary)
    }
}

#[expect(clippy::disallowed_methods, reason = "a campaign may end after a given time")]
fn now() -> Instant {
    Instant::now()
}
