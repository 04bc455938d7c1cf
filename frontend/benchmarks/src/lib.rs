//! Workloads in SQL, each on each kind of database.
//!
//! ```text
//! run ─ Benchmark (single statements, TATP, SmallBank) × Backend ─┬─ embedded   sessions of a cluster in this process
//!                                                                 └─ wire       connections to a server
//! ```
//!
//! *Not here*: the statements of a workload, and the harness that runs and verifies them (`gannet_benchmarks::sql`).
#![forbid(unsafe_code)]

mod embedded;
mod wire;

use gannet_benchmarks::sql::{SingleStatements, SqlSettings, SqlWorkload, run_sql};
use gannet_benchmarks::{BenchmarkError, Report};
use gannet_engine::ClusterOptions;
use gannet_shell::ServerAddress;
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

use embedded::Embedded;
use wire::Server;

/// A workload, with its settings.
#[derive(Clone, Copy)]
pub enum Benchmark<'w> {
    /// Statements on their own.
    SingleStatements(&'w SingleStatements),
    /// TATP.
    Tatp(&'w Tatp),
    /// SmallBank.
    SmallBank(&'w SmallBank),
}

/// The database that a workload runs on.
#[derive(Clone, Copy)]
pub enum Backend<'t> {
    /// A cluster of its own, in this process.
    Embedded(&'t ClusterOptions),
    /// A server of Gannet or PostgreSQL.
    Server(&'t ServerAddress),
}

/// Runs a workload, and verifies its data.
///
/// # Errors
/// [`BenchmarkError`] if the workload cannot run.
pub fn run(
    benchmark: Benchmark<'_>,
    backend: Backend<'_>,
    settings: &SqlSettings,
) -> Result<Report, BenchmarkError> {
    match benchmark {
        Benchmark::SingleStatements(statements) => run_on(backend, statements, settings),
        Benchmark::Tatp(tatp) => run_on(backend, tatp, settings),
        Benchmark::SmallBank(bank) => run_on(backend, bank, settings),
    }
}

fn run_on<W: SqlWorkload>(
    backend: Backend<'_>,
    workload: &W,
    settings: &SqlSettings,
) -> Result<Report, BenchmarkError> {
    match backend {
        Backend::Embedded(options) => run_sql(workload, &Embedded::open(options)?, settings),
        Backend::Server(address) => run_sql(workload, &Server::new(address)?, settings),
    }
}
