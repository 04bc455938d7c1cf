//! `gannet bench`: the command line of the benchmarks.
//!
//! *Not here*: the workloads and the harness, in SQL as well, which are crates of their own; the processes of one benchmark
//! (`symmetric`).
//!
//! Exit codes: 0 verified, 1 verification failed or a partition did not come back, 2 the benchmark could not run.

mod recovery;
mod rpc;
mod symmetric;

use std::fs::File;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use gannet_benchmarks::pairs::Pairs;
use gannet_benchmarks::ranges::Ranges;
use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::sql::{Operation, SingleStatements, SqlSettings};
use gannet_benchmarks::{BenchmarkError, Beside, Limit, Report, Settings};
use gannet_engine::{ClusterOptions, Topology};
use gannet_microbenchmarks::object_store::ObjectStore;
use gannet_shell::ServerAddress;
use gannet_smallbank::SmallBank;
use gannet_sql_benchmarks::Benchmark;
use gannet_tatp::Tatp;

use crate::output::unless_left;
use crate::units::{parse_bytes, parse_duration};
use recovery::{RecoveryArguments, RecoveryError};
use rpc::RpcArguments;
use symmetric::{Processes, ProcessesError};

/// Default number of nodes of a cluster.
const NODES: usize = 3;
/// Default number of sessions, for workloads whose sessions do not disturb each other.
const SESSIONS: usize = 16;

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
    /// Nodes of the cluster, all in this process [default: 3].
    #[arg(long, global = true)]
    nodes: Option<usize>,
    /// Copies of every row, at most one per node.
    #[arg(long, global = true, default_value_t = 3)]
    replicas: usize,
    /// Workers of each node; one OS thread drives worker i of every node [default: all cores].
    #[arg(long, global = true)]
    threads: Option<usize>,
    /// Coroutines of each worker, each with one transaction in flight.
    #[arg(long, global = true, default_value_t = 20)]
    coroutines: usize,
    /// Measured time, such as 10s or 500ms.
    #[arg(long, global = true, default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Run about this many transactions instead, without a warm-up.
    #[arg(long, global = true, conflicts_with = "duration")]
    transactions: Option<u64>,
    /// Warm-up time before the measured time.
    #[arg(long, global = true, default_value = "2s", value_parser = parse_duration)]
    warmup: Duration,
    /// Seed of all random draws.
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
    #[command(flatten)]
    processes: Processes,
    /// How to print the report.
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write the report to this file instead of standard output.
    #[arg(long, global = true)]
    output: Option<PathBuf>,
    /// Remove the rule of this name, or inject the fault, to see a check fail.
    #[cfg(feature = "mutants")]
    #[arg(long, global = true)]
    mutant: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Options of workloads that also exist in SQL.
#[derive(Args)]
struct InSql {
    /// Run the transactions as SQL, through prepared statements of sessions in this process.
    #[arg(long)]
    sql: bool,
    #[command(flatten)]
    clients: Clients,
}

/// Options of workloads in SQL.
#[derive(Args)]
struct Clients {
    /// Run the SQL on a server that speaks PostgreSQL's protocol, such as postgres://user:password@host:port/database. Tables
    /// of an earlier run are replaced. Options of clusters have no effect.
    #[arg(long, value_name = "URL", value_parser = parse_server)]
    connect: Option<ServerAddress>,
    /// Sessions, each with one transaction in flight [default: 16; 1 for copy, scan and sum].
    #[arg(long)]
    clients: Option<usize>,
    /// OS threads of the sessions.
    #[arg(long, default_value_t = 1)]
    client_threads: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum OperationArgument {
    /// Read a row by its key.
    Select,
    /// Change a row by its key.
    Update,
    /// COPY 1,000 rows at a time.
    Copy,
    /// Read all rows.
    Scan,
    /// Sum all rows.
    Sum,
}

impl OperationArgument {
    /// The operation, and how many sessions run it by default.
    fn and_sessions(self) -> (Operation, usize) {
        match self {
            Self::Select => (Operation::Select, SESSIONS),
            Self::Update => (Operation::Update, SESSIONS),
            Self::Copy => (Operation::Copy, 1),
            Self::Scan => (Operation::Scan, 1),
            Self::Sum => (Operation::Sum, 1),
        }
    }
}

/// Options of a second table.
#[derive(Args)]
struct SecondTable {
    /// Insert so many rows into a second table, which grows, and measure until all are in it.
    #[arg(long, value_name = "ROWS", conflicts_with_all = ["sql", "connect", "transactions", "duration"])]
    beside: Option<u64>,
    /// Begin with buckets for all rows of the second table.
    #[arg(long, requires = "beside")]
    beside_laid_out: bool,
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
        /// Begin with tables for 1,000 rows, and have them grow before they are loaded.
        #[arg(long, conflicts_with_all = ["sql", "connect"])]
        grown: bool,
        #[command(flatten)]
        second: SecondTable,
        /// Run the same transactions on plain hash maps too, and print the ratio.
        #[arg(long, conflicts_with_all = ["sql", "connect"])]
        floor: bool,
        #[command(flatten)]
        sql: InSql,
    },
    /// SmallBank: bank accounts, 85 % writes.
    #[command(name = "smallbank")]
    SmallBank {
        /// Accounts of the whole cluster [default: 100,000 per worker].
        #[arg(long)]
        accounts: Option<u64>,
        /// Run the same transactions on plain hash maps too, and print the ratio.
        #[arg(long, conflicts_with_all = ["sql", "connect"])]
        floor: bool,
        #[command(flatten)]
        sql: InSql,
    },
    /// Single statements of SQL on a narrow table.
    Sql {
        /// The statement to measure.
        #[arg(value_enum)]
        operation: OperationArgument,
        /// Rows of the table.
        #[arg(long, default_value_t = 100_000)]
        rows: u64,
        /// Bytes of a text in each row, beside two numbers of 8 bytes.
        #[arg(long, default_value_t = 0)]
        filler: usize,
        #[command(flatten)]
        clients: Clients,
    },
    /// The object store O(r, w): r keys, of which w are written on average.
    Objects {
        /// Keys of a transaction.
        #[arg(long, default_value_t = 4)]
        reads: usize,
        /// Keys that are written on average.
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
    /// Withdrawals from pairs of accounts. Without read validation, they would take too much.
    Skew {
        /// Pairs of accounts.
        #[arg(long, default_value_t = 100)]
        pairs: u64,
    },
    /// Scans that count the rows of a group before adding one. Validation covers missing rows, too.
    Ranges {
        /// Groups of rows.
        #[arg(long, default_value_t = 1_000)]
        groups: u64,
    },
    /// RPC echo, without transactions. It takes these common options: threads, thread-per-node, coroutines, duration, warmup,
    /// format and output.
    Rpc(RpcArguments),
    /// Kill a node under TATP, and measure until every partition has committed a write again. It takes these common options:
    /// nodes, replicas, threads, thread-per-node, coroutines, warmup, seed, memory, busy-poll, processes, transport, format and
    /// output.
    Recovery(RecoveryArguments),
}

/// Why the command could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Benchmark(#[from] BenchmarkError),
    #[error(transparent)]
    Processes(#[from] ProcessesError),
    #[error("{0} is for nodes in one process: leave it out, or --processes and --node")]
    OneProcess(&'static str),
    #[error("--transport is for --processes and the RPC echo: leave it out, or add --processes")]
    Transport,
    #[error(
        "recovery starts its processes itself: give --processes, and leave --node and --members out"
    )]
    StartsItself,
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error("cannot write the report to {path}: {source}; choose another --output")]
    Output { path: String, source: std::io::Error },
    #[cfg(feature = "mutants")]
    #[error(transparent)]
    Mutant(#[from] crate::mutant::NoSuchMutant),
}

/// Runs the benchmark and prints its report. Returns whether the data were right.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, CommandError> {
    let common = &arguments.common;
    #[cfg(feature = "mutants")]
    let _mutant = common.mutant.as_deref().map(crate::mutant::named).transpose()?;
    arguments.check_processes()?;
    let is_recovery = matches!(arguments.workload, WorkloadArguments::Recovery(_));
    if common.processes.starts() && !is_recovery {
        return Ok(common.processes.run(common.nodes(), common.threads.unwrap_or(1))?);
    }
    // Each side of an echo prints its own report; in other benchmarks the first process reports for all.
    let is_echo = matches!(arguments.workload, WorkloadArguments::Rpc(_));
    let reports = is_echo || common.processes.is_first();
    let output = reports.then(|| common.open_output()).transpose()?;
    let nodes =
        if is_echo { 2 } else { common.processes.count().unwrap_or_else(|| common.nodes()) };
    let mut settings = common.settings(nodes)?;
    if !is_echo {
        settings.member = common.processes.membership()?;
    }
    let workers = (settings.cluster.threads * settings.cluster.nodes) as u64;
    let report = match &arguments.workload {
        &WorkloadArguments::Tatp { subscribers, uniform, grown, ref second, floor, ref sql } => {
            let tatp = Tatp::new(subscribers, uniform, common.seed)?;
            let tatp = if grown { tatp.grown() } else { tatp };
            if let Some(clients) = sql.clients() {
                let report = with_sql(Benchmark::Tatp(&tatp), &settings, clients, SESSIONS)?;
                return common.finish(output, &report);
            }
            settings.beside = second.rows();
            let floor = floor.then(|| tatp.floor());
            let mut report = tatp.run(&settings)?;
            report.floor = floor.map(|floor| floor.run(&report, &settings));
            report
        }
        &WorkloadArguments::SmallBank { accounts, floor, ref sql } => {
            let bank = SmallBank::new(accounts.unwrap_or(100_000 * workers), common.seed)?;
            if let Some(clients) = sql.clients() {
                let report = with_sql(Benchmark::SmallBank(&bank), &settings, clients, SESSIONS)?;
                return common.finish(output, &report);
            }
            let floor = floor.then(|| bank.floor());
            let mut report = bank.run(&settings)?;
            report.floor = floor.map(|floor| floor.run(&report, &settings));
            report
        }
        WorkloadArguments::Sql { operation, rows, filler, clients } => {
            let (operation, sessions) = operation.and_sessions();
            let statements = SingleStatements::new(operation, *rows, *filler)?;
            with_sql(Benchmark::SingleStatements(&statements), &settings, clients, sessions)?
        }
        &WorkloadArguments::Objects { reads, writes, keys, theta } => {
            let keys = keys.unwrap_or(1_000_000 * workers);
            ObjectStore::new(keys, reads, writes, theta)?.run(&settings)?
        }
        WorkloadArguments::Pairs => Pairs::default().run(&settings)?,
        &WorkloadArguments::Ranges { groups } => Ranges::new(groups)?.run(&settings)?,
        &WorkloadArguments::Skew { pairs } => Skew::new(pairs)?.run(&settings)?,
        WorkloadArguments::Rpc(rpc) => rpc.run(common, settings.cluster.threads)?,
        WorkloadArguments::Recovery(recovery) => {
            let report = recovery.run(common, settings)?;
            common.print(output, || report.to_text(), || report.to_json())?;
            return Ok(report.passed);
        }
    };
    common.finish(output, &report)
}

impl Arguments {
    /// Refuses workloads and options that need all nodes in one process.
    fn check_processes(&self) -> Result<(), CommandError> {
        self.common.processes.check(self.common.nodes.is_some())?;
        let uses_transport = matches!(self.workload, WorkloadArguments::Rpc(_))
            || self.common.processes.starts()
            || self.common.processes.is_member();
        if self.common.processes.transport.is_some() && !uses_transport {
            return Err(CommandError::Transport);
        }
        let refused = match &self.workload {
            _ if !self.common.processes.starts() && !self.common.processes.is_member() => None,
            WorkloadArguments::Rpc(_) if self.common.processes.is_member() => None,
            WorkloadArguments::Recovery(_) if self.common.processes.is_member() => {
                return Err(CommandError::StartsItself);
            }
            _ if self.common.thread_per_node => Some("--thread-per-node"),
            WorkloadArguments::Rpc(_) => Some("rpc"),
            WorkloadArguments::Sql { .. } => Some("sql"),
            WorkloadArguments::Tatp { grown: true, .. } => Some("--grown"),
            WorkloadArguments::Tatp { second, .. } if second.rows().is_some() => Some("--beside"),
            WorkloadArguments::Tatp { floor: true, .. }
            | WorkloadArguments::SmallBank { floor: true, .. } => Some("--floor"),
            WorkloadArguments::Tatp { sql, .. } | WorkloadArguments::SmallBank { sql, .. } => {
                sql.clients().map(|_| "--sql")
            }
            _ => None,
        };
        refused.map_or(Ok(()), |option| Err(CommandError::OneProcess(option)))
    }
}

impl InSql {
    /// The options of SQL, if the workload is to run in SQL.
    fn clients(&self) -> Option<&Clients> {
        (self.sql || self.clients.connect.is_some()).then_some(&self.clients)
    }
}

impl SecondTable {
    /// The rows of the table, if there is one.
    fn rows(&self) -> Option<Beside> {
        self.beside.map(|rows| Beside { rows, is_laid_out: self.beside_laid_out })
    }
}

fn with_sql(
    benchmark: Benchmark<'_>,
    settings: &Settings,
    clients: &Clients,
    sessions: usize,
) -> Result<Report, BenchmarkError> {
    let sql = SqlSettings {
        clients: clients.clients.unwrap_or(sessions),
        client_threads: clients.client_threads,
        limit: settings.limit,
        warmup: settings.warmup,
        seed: settings.seed,
    };
    match &clients.connect {
        Some(server) => gannet_wire_benchmarks::run(benchmark, server, &sql),
        None => benchmark.run_embedded(&settings.cluster, &sql),
    }
}

impl Common {
    fn nodes(&self) -> usize {
        self.nodes.unwrap_or(NODES)
    }

    fn settings(&self, nodes: usize) -> Result<Settings, BenchmarkError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let topology = if self.thread_per_node {
            Topology::ThreadPerWorker
        } else {
            Topology::ThreadPerWorkerNumber
        };
        let one_worker = self.thread_per_node || self.processes.is_member();
        let threads = self.threads.unwrap_or(if one_worker { 1 } else { cores });
        let os_threads = if self.thread_per_node { threads * nodes } else { threads };
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
                nodes,
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
            drains: self.processes.drains(),
            beside: None,
            member: None,
        })
    }

    /// Opens the output before the run, so that an unwritable path costs no run.
    fn open_output(&self) -> Result<Output, CommandError> {
        Ok(match &self.output {
            None => Output { path: PathBuf::from("standard output"), write: Box::new(stdout()) },
            Some(path) => {
                let file = File::create(path).map_err(|source| output_error(path, source))?;
                Output { path: path.clone(), write: Box::new(file) }
            }
        })
    }

    /// Prints the report if this process is to print one. Returns whether the data were right.
    fn finish(&self, output: Option<Output>, report: &Report) -> Result<bool, CommandError> {
        self.print(output, || report.to_text(), || report.to_json())?;
        Ok(report.verify.passed)
    }

    /// Prints a report in the wanted format, if this process is to print one.
    fn print(
        &self,
        output: Option<Output>,
        to_text: impl FnOnce() -> String,
        to_json: impl FnOnce() -> String,
    ) -> Result<(), CommandError> {
        if let Some(Output { path, mut write }) = output {
            let text = match self.format {
                Format::Text => to_text(),
                Format::Json => to_json() + "\n",
            };
            let written = write.write_all(text.as_bytes()).and_then(|()| write.flush());
            unless_left(written).map_err(|source| output_error(&path, source))?;
        }
        Ok(())
    }
}

/// The destination of a report.
struct Output {
    path: PathBuf,
    write: Box<dyn Write>,
}

fn output_error(path: &Path, source: std::io::Error) -> CommandError {
    CommandError::Output { path: path.display().to_string(), source }
}

fn parse_server(text: &str) -> Result<ServerAddress, String> {
    ServerAddress::parse(text).map_err(|error| error.to_string())
}
