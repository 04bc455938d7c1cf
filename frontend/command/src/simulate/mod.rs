//! `gannet simulate`: clusters in virtual time, under faults, from seeds.
//!
//! ```text
//! campaign  many seeds on all cores ─► scenario  a cluster, a workload, faults; a verdict
//!                                      builds    the workload of sessions in SQL
//! ```
//!
//! Exit codes: 0 every check held, 1 a check failed, 2 the campaign could not run, 3 the run came to no end, 4 the engine
//! panicked, 5 a run could not be repeated, 6 some fault struck too seldom, or no member died in some stage of a commit.

mod builds;
mod campaign;
mod scenario;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gannet_benchmarks::BenchmarkError;
use tracing::level_filters::LevelFilter;

use crate::log::{Log, LogFormat};
use crate::output::{OutputError, print_line};
use campaign::{Campaign, Summary};
use scenario::{Chosen, Scenario, Verdict};

/// Campaigns of this many seeds must meet every kind of fault.
const SEEDS_FOR_ALL_FAULTS: u64 = 100;

/// Campaigns of this many seeds must have a death in each stage of a commit.
const SEEDS_FOR_ALL_MOMENTS: u64 = 250;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Run this many seeds.
    #[arg(long, default_value_t = 100, conflicts_with = "seed")]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1, conflicts_with = "seed")]
    first_seed: u64,
    /// Run this seed alone, twice unless openraft decides, and print its scenario and its outcome.
    #[arg(long)]
    seed: Option<u64>,
    /// Start no further seed after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Transactions of each seed.
    #[arg(long, default_value_t = 5_000)]
    transactions: u64,
    #[command(flatten)]
    chosen: Chosen,
    /// Write a line for every event of the seed to this file.
    #[arg(long, requires = "seed")]
    trace: Option<PathBuf>,
    /// Print what the members of the seed log.
    #[arg(long, requires = "seed")]
    log: bool,
    /// Print all faults of a seed that fails at once, without a search for those that it needs.
    #[arg(long)]
    all_faults: bool,
    /// Fail unless every kind of fault struck this often [default: once, from 100 seeds on].
    #[arg(long)]
    firings_min: Option<u64>,
    /// Add a line about this campaign to this file.
    #[arg(long)]
    ledger: Option<PathBuf>,
    /// Remove the rule of this name, or inject the fault, to see a check fail.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutant: Option<String>,
}

/// Why a campaign cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimulateError {
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    #[error("cannot write {path}: {error}; name a file in a folder that exists")]
    Write { path: PathBuf, error: std::io::Error },
    #[error("the operating system refused a thread: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[cfg(feature = "mutants")]
    #[error(transparent)]
    Mutant(#[from] crate::mutant::NoSuchMutant),
}

/// Runs the command, and returns its exit code.
pub(crate) fn run(arguments: &Arguments) -> Result<u8, SimulateError> {
    #[cfg(feature = "mutants")]
    let _mutant = arguments.mutant.as_deref().map(crate::mutant::named).transpose()?;
    if let Some(seed) = arguments.seed {
        return replay(seed, arguments);
    }
    let campaign = Campaign {
        first_seed: arguments.first_seed,
        seeds: arguments.seeds,
        time_limit: arguments.minutes.map(|minutes| Duration::from_secs(60 * minutes)),
        transactions: arguments.transactions,
        chosen: arguments.chosen,
    };
    let summary = campaign.run()?;
    print_line(&summary)?;
    let exit_code = judge(&summary, arguments)?;
    if let Some(path) = &arguments.ledger {
        append(path, &ledger_line(&campaign, &summary, exit_code))?;
    }
    Ok(exit_code)
}

/// Prints the faults of a campaign, and returns the exit code.
fn judge(summary: &Summary, arguments: &Arguments) -> Result<u8, SimulateError> {
    if let Some((scenario, verdict)) = &summary.failure {
        print_line(format_args!("seed {} {}", scenario.seed, verdict.describe()))?;
        let all = scenario.faults.len();
        let needed = if arguments.all_faults {
            print_line(format_args!("it had {all} faults:"))?;
            scenario.faults.clone()
        } else {
            let needed = scenario.minimise(verdict)?.faults;
            print_line(format_args!("it needs {} of its {all} faults:", needed.len()))?;
            needed
        };
        for fault in &needed {
            print_line(format_args!("  {fault}"))?;
        }
        let Chosen { workload, raft, clocks_stand, drains, pauses } = arguments.chosen;
        let raft = if raft { " --raft" } else { "" };
        let clocks_stand = if clocks_stand { " --clocks-stand" } else { "" };
        let drains = drains.map_or_else(String::new, |count| format!(" --drains {count}"));
        let pauses = if pauses == 0 { String::new() } else { format!(" --pauses {pauses}") };
        let options = [raft, clocks_stand, &drains, &pauses].concat();
        let workload = if workload.is_some() { " with the same --workload" } else { "" };
        print_line(format_args!(
            "replay it: gannet simulate --seed {} --transactions {}{options}{workload}",
            scenario.seed, scenario.transactions
        ))?;
        if !scenario.is_repeatable() {
            print_line("openraft draws at random for itself, so another run may pass")?;
        }
        return Ok(verdict.exit_code());
    }
    if let Some(seed) = summary.unrepeatable {
        print_line(format_args!("seed {seed} left another trace when it was run again"))?;
        return Ok(5);
    }
    let least = arguments.firings_min.unwrap_or(u64::from(summary.seeds >= SEEDS_FOR_ALL_FAULTS));
    let idle = summary.idle_faults(least);
    if !idle.is_empty() {
        let names: Vec<_> = idle.iter().map(|kind| kind.name()).collect();
        print_line(format_args!(
            "these faults struck fewer than {least} times: {}",
            names.join(", ")
        ))?;
        return Ok(6);
    }
    let idle = summary.idle_moments();
    if summary.seeds >= SEEDS_FOR_ALL_MOMENTS && !idle.is_empty() {
        print_line(format_args!("no member died at these moments: {idle:?}"))?;
        return Ok(6);
    }
    print_line("passed")?;
    Ok(0)
}

/// Runs one seed twice, and prints its scenario and its outcome.
fn replay(seed: u64, arguments: &Arguments) -> Result<u8, SimulateError> {
    let log = arguments.log.then(|| Log::start(LevelFilter::INFO, LogFormat::Text)).transpose();
    let _log = log.map_err(SimulateError::Thread)?;
    let scenario = Scenario::draw(seed, arguments.transactions, arguments.chosen);
    let Scenario { cluster, workload, faults, transactions, .. } = &scenario;
    print_line(format_args!("seed {seed}: {transactions} transactions of {workload:?}"))?;
    print_line(format_args!(
        "{} nodes, {} copies, {} workers each with {} coroutines, {} partitions",
        cluster.nodes, cluster.replicas, cluster.threads, cluster.coroutines, cluster.partitions
    ))?;
    if scenario.founding.spares > 0 {
        print_line(format_args!("  the last {} nodes are added later", scenario.founding.spares))?;
    }
    for fault in faults {
        print_line(format_args!("  {fault}"))?;
    }
    for kill in &scenario.kills {
        print_line(format_args!("  {kill}"))?;
    }
    for drain in &scenario.drains {
        print_line(format_args!("  {drain}"))?;
    }
    let trace = match &arguments.trace {
        None => None,
        Some(path) => {
            let file = File::create(path)
                .map_err(|error| SimulateError::Write { path: path.clone(), error })?;
            Some(Box::new(BufWriter::new(file)) as Box<dyn Write>)
        }
    };
    if scenario.clocks_stand {
        print_line("clocks of leases stand still at nodes that do, and reads are confirmed")?;
    }
    if let Some(at_ns) = scenario.disk_fails_ns.filter(|_| scenario.is_repeatable()) {
        let ms = at_ns / 1_000_000;
        print_line(format_args!("the disk of a voter of the manager fails after {ms} ms"))?;
    }
    if !scenario.is_repeatable() {
        print_line("openraft decides on the membership, so another run differs")?;
    }
    let verdict = scenario.run(trace)?;
    if let Some(found) = verdict.found() {
        let ms = found.virtual_ns as f64 / 1e6;
        print_line(format_args!("{ms:.3} ms of virtual time, trace {:016x}", found.trace_hash))?;
        if !found.killed.is_empty() {
            let (killed, changes) = (found.killed.len(), found.membership_changes);
            let end = if found.halted { "the others halted" } else { "the others went on" };
            print_line(format_args!(
                "{killed} killed, {changes} changes of the membership; {end}"
            ))?;
        }
        for check in &found.checks {
            let mark = if check.passed { "ok    " } else { "FAILED" };
            print_line(format_args!("  {mark} {}: {}", check.name, check.detail))?;
        }
    }
    print_line(verdict.describe())?;
    if !scenario.is_repeatable() {
        return Ok(verdict.exit_code());
    }
    let again = scenario.run(None)?;
    let hash = |verdict: &Verdict| verdict.found().map(|found| found.trace_hash);
    if hash(&again) != hash(&verdict) {
        print_line("the second run left another trace")?;
        return Ok(5);
    }
    Ok(verdict.exit_code())
}

fn ledger_line(campaign: &Campaign, summary: &Summary, exit_code: u8) -> String {
    let least = gannet_engine::simulation::FaultKind::ALL
        .into_iter()
        .map(|kind| summary.firings.of(kind))
        .min()
        .unwrap_or(0);
    let result = if exit_code == 0 { "clean".to_owned() } else { format!("exit {exit_code}") };
    format!(
        "| {} | {} | {} | {:.2} | {} | {least} | {} | {result} |\n",
        env!("CARGO_PKG_VERSION"),
        campaign.first_seed,
        summary.seeds,
        summary.virtual_hours(),
        summary.transactions,
        summary.kills_text()
    )
}

fn append(path: &Path, line: &str) -> Result<(), SimulateError> {
    let write = || OpenOptions::new().append(true).open(path)?.write_all(line.as_bytes());
    write().map_err(|error| SimulateError::Write { path: path.to_owned(), error })
}
