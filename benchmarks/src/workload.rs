//! What a workload tells the harness.

use gannet_engine::{Abort, Cluster, ClusterError, Coordinator};
use gannet_storage::StorageError;
use rand::SeedableRng;

use crate::check::Check;
use crate::sql::SqlFailure;
use crate::statistics::Totals;

/// The generator that workloads draw from; the same seed gives the same draws.
pub type Random = rand::rngs::SmallRng;

/// A generator for stream `stream` of a run with seed `seed`.
#[must_use]
pub fn seeded(seed: u64, stream: u64) -> Random {
    Random::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// How one transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    /// It committed and found its rows.
    Qualified,
    /// It committed without finding its rows, so it changed nothing.
    RowsMissing,
    /// It did not commit.
    Aborted(Abort),
}

/// One transaction that was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Index of its type in [`Workload::transactions`].
    pub transaction: usize,
    /// How it ended.
    pub result: Result,
    /// Index in [`Workload::tallies`] of something that this commit did.
    pub tally: Option<usize>,
}

/// What a benchmark is called, and what it counts.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name on the command line and in reports.
    pub name: &'static str,
    /// The transaction types.
    pub transactions: &'static [&'static str],
    /// What commits are counted by beyond their type.
    pub tallies: &'static [&'static str],
    /// The workload's own settings.
    pub settings: Vec<(&'static str, String)>,
    /// Rows that each transaction copies or scans, where the rate of rows is what is measured.
    pub rows_each: Option<u64>,
}

impl Profile {
    /// That of a workload.
    #[must_use]
    pub fn of<W: Workload>(workload: &W) -> Self {
        Self {
            name: workload.name(),
            transactions: workload.transactions(),
            tallies: workload.tallies(),
            settings: workload.settings(),
            rows_each: None,
        }
    }
}

/// A benchmark: its tables, its rows, its transactions, and what must hold afterwards.
pub trait Workload: Send + Sync + 'static {
    /// The name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The transaction types.
    fn transactions(&self) -> &'static [&'static str];

    /// What commits are counted by beyond their type, for [`Self::verify`].
    fn tallies(&self) -> &'static [&'static str] {
        &[]
    }

    /// The workload's own settings, for the report.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Creates the tables.
    ///
    /// # Errors
    /// If a size is not possible or the memory does not suffice.
    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError>;

    /// Loads share `share` of `shares` of the rows; called on that many threads at once.
    ///
    /// # Errors
    /// If the rows do not fit.
    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError>;

    /// Draws one transaction and runs it to its end, without retrying it.
    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran;

    /// Whether [`Self::verify`] holds also if members have died: then the outcome of some transactions is unknown.
    fn stands_unknowns(&self) -> bool {
        false
    }

    /// Checks the data after the run, when no transaction is running; `totals` covers the whole run,
    /// warm-up included. The harness itself checks that replicas are equal and no lock is held.
    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check>;
}

/// Why a benchmark could not run. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The cluster refused its options, a table, or a job.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A row could not be loaded.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A database refused a connection, the tables, or their rows.
    #[error("the database refused what the benchmark needs: {0}")]
    Sql(#[from] SqlFailure),
    /// A socket of the RPC echo could not be opened.
    #[error(transparent)]
    Udp(#[from] gannet_rpc::UdpError),
    /// An RDMA device of the RPC echo cannot be used.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Rdma(#[from] gannet_rpc::VerbsError),
    /// Memory could not be shared with the other process of the RPC echo.
    #[error(transparent)]
    SharedMemory(#[from] gannet_rpc::SharedRingsError),
    /// The two processes of an RPC echo did not meet.
    #[error("cannot meet the other process at {place}: {source}; start it with the same --members")]
    Meeting {
        /// Where they meet.
        place: std::net::SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The system refused what connections need.
    #[error("cannot wait for connections: {0}; close programs or raise the limit of open files")]
    Runtime(std::io::Error),
    /// Processes of one benchmark could not understand each other.
    #[error("another process said what is no statistics: {0}; run the same program on all nodes")]
    Exchange(serde_json::Error),
    /// A setting is out of range.
    #[error("{setting} is {value}; use {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// What was requested.
        value: String,
        /// What is possible.
        allowed: String,
    },
}
