//! The trait that a workload implements, with its results and errors.
//!
//! *Invariants*: the harness creates the tables, loads the rows on several threads at once, runs transactions, and
//! verifies when no transaction runs any more, in this order. `run_one` runs a transaction once: a conflict is a result.
//! A transaction that has not found its rows has committed, and changed nothing. Equal seeds give equal draws. An error
//! says what to do.
//!
//! *Not here*: SQL, whose workloads implement `SqlWorkload` (`sql`); the loop of the clients (`harness`); counting
//! (`statistics`).

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
    /// The transaction committed and found its rows.
    Qualified,
    /// The transaction committed without finding its rows, so it changed nothing.
    RowsMissing,
    /// The transaction did not commit.
    Aborted(Abort),
}

/// A transaction that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The transaction's type: an index in [`Workload::transactions`].
    pub transaction: usize,
    /// The transaction's result.
    pub result: Result,
    /// A further count of this commit: an index in [`Workload::tallies`].
    pub tally: Option<usize>,
}

/// The name and the counts of a benchmark.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The name on the command line and in reports.
    pub name: &'static str,
    /// The transaction types.
    pub transactions: &'static [&'static str],
    /// Names of further counts of commits.
    pub tallies: &'static [&'static str],
    /// The workload's own settings.
    pub settings: Vec<(&'static str, String)>,
    /// Rows that each transaction copies or scans, if the rate of rows is measured.
    pub rows_each: Option<u64>,
}

impl Profile {
    /// The profile of a workload.
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

    /// Names of further counts of commits, for [`Self::verify`].
    fn tallies(&self) -> &'static [&'static str] {
        &[]
    }

    /// The workload's own settings, for the report.
    fn settings(&self) -> Vec<(&'static str, String)>;

    /// Creates the tables.
    ///
    /// # Errors
    /// If a size is impossible or the memory does not suffice.
    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError>;

    /// Loads share `share` of `shares` of the rows. The harness calls this on `shares` threads at once.
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

    /// Checks the data after the run. No transaction is running; `totals` covers the whole run, with the warm-up. The harness
    /// itself checks that replicas are equal and no lock is held. A check that counts what has committed says so: it is left out if
    /// members have died, as the outcome of their transactions is unknown.
    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check>;
}

/// Why a benchmark cannot run. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The cluster refused its options, a table, or a job.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A row could not be loaded.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A database refused a connection, the tables, or their rows.
    #[error("the database refused a statement of the benchmark: {0}")]
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
        /// The address where they meet.
        place: std::net::SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refused a resource for connections.
    #[error("cannot wait for connections: {0}; close programs or raise the limit of open files")]
    Runtime(std::io::Error),
    /// A process sent malformed statistics.
    #[error("another process sent malformed statistics: {0}; run the same program on all nodes")]
    Exchange(serde_json::Error),
    /// A transaction for an exchange between processes failed.
    #[error("an exchange between the processes failed with {0}; give the nodes more memory")]
    Untold(String),
    /// The node of another process has ended, or the others have removed it.
    #[error(
        "node {0} is gone before the benchmark is done; see its own output for the reason, and run the benchmark again"
    )]
    Gone(u16),
    /// Partitions that are to move do not.
    #[error("partitions do not move, as nodes have no room for them; give the nodes more --memory")]
    Stuck,
    /// A table has not split its buckets for rows that are to come.
    #[error("a table has not grown for {0} rows; give the nodes more --memory")]
    NotGrown(u64),
    /// A transaction that inserts into the second table has failed.
    #[error("the second table has not taken all rows: {0}; give the nodes more --memory")]
    Beside(Abort),
    /// A setting is out of range.
    #[error("{setting} is {value}; use {allowed}")]
    Setting {
        /// Name of the setting.
        setting: &'static str,
        /// The requested value.
        value: String,
        /// The allowed values.
        allowed: String,
    },
}
