//! `gannet bench`: the command line of the benchmarks.
//!
//! Exit codes: 0 verified, 1 verification failed, 2 the benchmark could not run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use gannet_benchmarks::object_store::ObjectStore;
use gannet_benchmarks::pairs::Pairs;
use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::{
    BenchmarkError, EchoSettings, Limit, Report, Settings, Workload, rpc_echo, run_floor,
};
use gannet_engine::{ClusterOptions, Topology};
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    workload: WorkloadArguments,
    #[command(flatten)]
    common: Common,
}

/// Options of every workload.
#[derive(Args)]
struct Common {
    /// Nodes of the cluster, all in this process.
    #[arg(long, global = true, default_value_t = 3)]
    nodes: usize,
    /// Copies of every row, at most one per node.
    #[arg(long, global = true, default_value_t = 3)]
    replicas: usize,
    /// Workers of each node; one OS thread drives worker i of every node [default: all cores].
    #[arg(long, global = true)]
    threads: Option<usize>,
    /// Coroutines of each worker: transactions that it has in flight.
    #[arg(long, global = true, default_value_t = 20)]
    coroutines: usize,
    /// Measured time, such as 10s or 500ms.
    #[arg(long, global = true, default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Run about this many transactions instead, without a warm-up.
    #[arg(long, global = true, conflicts_with = "duration")]
    transactions: Option<u64>,
    /// Time before measuring.
    #[arg(long, global = true, default_value = "2s", value_parser = parse_duration)]
    warmup: Duration,
    /// Seed of everything drawn.
    #[arg(long, global = true, default_value_t = 1)]
    seed: u64,
    /// Table memory of each node, such as 512MiB [default: its share of 70 % of the free memory].
    #[arg(long, global = true, value_parser = parse_bytes)]
    memory: Option<usize>,
    /// Give every worker of every node an OS thread, so that messages cross cores.
    #[arg(long, global = true)]
    thread_per_node: bool,
    /// Keep idle threads polling instead of letting them sleep.
    #[arg(long, global = true)]
    busy_poll: bool,
    /// How to print the report.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the report to this file instead of standard output.
    #[arg(long, global = true)]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Subcommand)]
enum WorkloadArguments {
    /// TATP: a phone company's subscribers, 80 % reads.
    Tatp {
        /// Subscribers of the whole cluster.
        #[arg(long, default_value_t = 100_000)]
        subscribers: u64,
        /// Choose subscribers uniformly instead of as the specification says.
        #[arg(long)]
        uniform: bool,
        /// Run the same transactions on plain hash maps too, and print the ratio.
        #[arg(long)]
        floor: bool,
    },
    /// SmallBank: bank accounts, 85 % writes.
    #[command(name = "smallbank")]
    SmallBank {
        /// Accounts of the whole cluster [default: 100,000 per worker].
        #[arg(long)]
        accounts: Option<u64>,
        /// Run the same transactions on plain hash maps too, and print the ratio.
        #[arg(long)]
        floor: bool,
    },
    /// The object store O(r, w): r keys, of which w are written on average.
    Objects {
        /// Keys of a transaction.
        #[arg(long, default_value_t = 4)]
        reads: usize,
        /// How many of them are written on average.
        #[arg(long, default_value_t = 2)]
        writes: usize,
        /// Keys in the store [default: 1,000,000 per worker].
        #[arg(long)]
        keys: Option<u64>,
        /// Skew of a Zipf distribution of the keys; 0 is uniform.
        #[arg(long, default_value_t = 0.0)]
        theta: f64,
    },
    /// Pairs of keys that are inserted and deleted together.
    Pairs,
    /// Withdrawals that only read validation keeps from taking too much.
    Skew {
        /// Pairs of accounts.
        #[arg(long, default_value_t = 100)]
        pairs: u64,
    },
    /// RPC echo, without transactions: of the common options it takes threads, coroutines, duration,
    /// warmup, format and output.
    Rpc {
        /// Requests per batch.
        #[arg(long, default_value_t = 11)]
        batch: usize,
    },
}

/// Why the command could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    #[error("cannot write the report to {path}: {source}; choose another --output")]
    Output { path: String, source: std::io::Error },
}

/// Runs the benchmark and prints its report; whether its data were right.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, CommandError> {
    let common = &arguments.common;
    let output = common.open_output()?;
    let settings = common.settings()?;
    let workers = (settings.cluster.threads * settings.cluster.nodes) as u64;
    let report = match arguments.workload {
        WorkloadArguments::Tatp { subscribers, uniform, floor } => {
            let tatp = Tatp::new(subscribers, uniform, common.seed)?;
            let floor = floor.then(|| tatp.floor());
            with_floor(tatp, &settings, floor)?
        }
        WorkloadArguments::SmallBank { accounts, floor } => {
            let bank = SmallBank::new(accounts.unwrap_or(100_000 * workers), common.seed)?;
            let floor = floor.then(|| bank.floor());
            with_floor(bank, &settings, floor)?
        }
        WorkloadArguments::Objects { reads, writes, keys, theta } => {
            let keys = keys.unwrap_or(1_000_000 * workers);
            gannet_benchmarks::run(ObjectStore::new(keys, reads, writes, theta)?, &settings)?
        }
        WorkloadArguments::Pairs => gannet_benchmarks::run(Pairs::default(), &settings)?,
        WorkloadArguments::Skew { pairs } => gannet_benchmarks::run(Skew::new(pairs)?, &settings)?,
        WorkloadArguments::Rpc { batch } => rpc_echo::run(&EchoSettings {
            batch,
            threads: settings.cluster.threads,
            coroutines: settings.cluster.coroutines,
            duration: common.duration,
            warmup: common.warmup,
        })?,
    };
    let text = match common.format {
        Format::Text => report.to_text(),
        Format::Json => report.to_json() + "\n",
    };
    common.print(output, &text)?;
    Ok(report.verify.passed)
}

fn with_floor<W: Workload, F: gannet_benchmarks::FloorWorkload>(
    workload: W,
    settings: &Settings,
    floor: Option<F>,
) -> Result<Report, BenchmarkError> {
    let mut report = gannet_benchmarks::run(workload, settings)?;
    let duration = match settings.limit {
        Limit::Duration(duration) => duration,
        Limit::Transactions(_) => Duration::from_secs(1),
    };
    let threads = report.cores;
    report.floor = floor.map(|floor| run_floor(&floor, &report, threads, duration, settings.seed));
    Ok(report)
}

impl Common {
    fn settings(&self) -> Result<Settings, BenchmarkError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let topology = if self.thread_per_node {
            Topology::ThreadPerWorker
        } else {
            Topology::ThreadPerWorkerNumber
        };
        let threads = self.threads.unwrap_or(if self.thread_per_node { 1 } else { cores });
        let os_threads = if self.thread_per_node { threads * self.nodes } else { threads };
        if os_threads > cores {
            return Err(BenchmarkError::Setting {
                setting: if self.thread_per_node { "--nodes x --threads" } else { "--threads" },
                value: os_threads.to_string(),
                allowed: format!("at most {cores}, the cores of this machine"),
            });
        }
        if self.duration.is_zero() {
            return Err(BenchmarkError::Setting {
                setting: "--duration",
                value: "0".to_owned(),
                allowed: "more than 0, such as 10s".to_owned(),
            });
        }
        Ok(Settings {
            cluster: ClusterOptions {
                nodes: self.nodes,
                replicas: self.replicas,
                threads,
                coroutines: self.coroutines,
                memory_limit_bytes: self.memory,
                busy_poll: self.busy_poll,
                topology,
                seed: self.seed,
                ..ClusterOptions::default()
            },
            limit: self.transactions.map_or(Limit::Duration(self.duration), Limit::Transactions),
            warmup: self.warmup,
            seed: self.seed,
        })
    }

    /// Opened before the run, so that a path that cannot be written costs no run.
    fn open_output(&self) -> Result<Option<std::fs::File>, CommandError> {
        let open = |path: &PathBuf| {
            std::fs::File::create(path).map_err(|source| output_error(path, source))
        };
        self.output.as_ref().map(open).transpose()
    }

    fn print(&self, output: Option<std::fs::File>, text: &str) -> Result<(), CommandError> {
        use std::io::Write;
        let (result, path) = match (output, &self.output) {
            (Some(mut file), Some(path)) => (file.write_all(text.as_bytes()), path.clone()),
            _ => (std::io::stdout().write_all(text.as_bytes()), PathBuf::from("standard output")),
        };
        result.map_err(|source| output_error(&path, source))
    }
}

fn output_error(path: &std::path::Path, source: std::io::Error) -> CommandError {
    CommandError::Output { path: path.display().to_string(), source }
}

/// A number and its unit: `ms`, `s`, `m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("give a number and a unit, such as 10s, 500ms or 2m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|duration| *duration <= Duration::from_secs(7 * 24 * 3600))
        .ok_or_else(|| "use at most a week".to_owned())
}

/// A number of bytes and its unit: `KiB`, `MiB`, `GiB`, or none.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("give a number and a unit, such as 512MiB or 4GiB".to_owned()),
    };
    let number: usize = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "use more than 0 and fewer than 16 EiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        for wrong in ["", "10", "s", "-1s", "1h", "1e9s", "99999999m", "1..2s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("17"), Ok(17));
        for wrong in ["", "MiB", "0", "1MB", "99999999999999GiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
