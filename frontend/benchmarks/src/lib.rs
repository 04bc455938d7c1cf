//! Workloads in SQL, each on each kind of database.
//!
//! ```text
//! Benchmark (single statements, TATP, SmallBank) × database ─┬─ embedded   sessions of a cluster in this process
//!                                                            └─ any other that has connections
//! ```
//!
//! *Not here*: the statements of a workload, and the harness that runs and verifies them (`gannet_benchmarks::sql`); connections to a server
//! (`gannet_wire_benchmarks`).
#![forbid(unsafe_code)]

mod embedded;

use gannet_benchmarks::sql::{SingleStatements, SqlConnector, SqlSettings, run_sql};
use gannet_benchmarks::{BenchmarkError, Report};
use gannet_engine::ClusterOptions;
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

use embedded::Embedded;

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

impl Benchmark<'_> {
    /// Runs it in sessions of a cluster of its own, in this process, and verifies its data.
    ///
    /// # Errors
    /// [`BenchmarkError`] if the cluster cannot be opened, or the workload cannot run.
    pub fn run_embedded(
        self,
        options: &ClusterOptions,
        settings: &SqlSettings,
    ) -> Result<Report, BenchmarkError> {
        self.run_on(&Embedded::open(options)?, settings)
    }

    /// Runs it on a database, and verifies its data.
    ///
    /// # Errors
    /// [`BenchmarkError`] if the workload cannot run.
    pub fn run_on<C: SqlConnector>(
        self,
        database: &C,
        settings: &SqlSettings,
    ) -> Result<Report, BenchmarkError> {
        match self {
            Self::SingleStatements(statements) => run_sql(statements, database, settings),
            Self::Tatp(tatp) => run_sql(tatp, database, settings),
            Self::SmallBank(bank) => run_sql(bank, database, settings),
        }
    }
}
