//! Workloads in SQL: the same harness around sessions of a database instead of coroutines of a cluster.
//!
//! ```text
//! SqlWorkload (tatp, smallbank, single)        SqlConnector (a cluster in this process, a server)
//!        └──────────── run_sql: tables ─ load ─ warm up ─ measure ─ verify ─ Report ──────┘
//! ```
//!
//! A workload runs its statements through a [`SqlConnection`], and does not know the database behind it.
//!
//! *Invariants*: a statement that fails with a conflict ends its transaction, which counts as aborted. Any other failure ends
//! the run, and fails its verification.
//!
//! *Not here*: connections, which need SQL or a network (`frontend/benchmarks`).

mod harness;
mod single;

use std::future::Future;

use gannet_engine::{Abort, Conflict};

pub use harness::{SqlSettings, run_sql};
pub use single::{Operation, SingleStatements, copy_data};

use crate::check::Check;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Profile, Ran, Random, Result as Outcome};

/// A parameter of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlValue {
    /// SMALLINT, INTEGER or BIGINT, as the statement requires.
    Integer(i64),
    /// TEXT, VARCHAR or CHAR.
    Text(String),
}

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (SQLSTATE {code})")]
pub struct SqlFailure {
    /// SQLSTATE, five characters; 08006 if the connection was lost.
    pub code: String,
    /// The message.
    pub message: String,
}

impl SqlFailure {
    /// The abort behind this failure, if the same transaction may succeed when it is run again.
    #[must_use]
    pub fn conflict(&self) -> Option<Abort> {
        match self.code.as_str() {
            "40001" => Some(Conflict::Changed.into()),
            // A deadlock in PostgreSQL.
            "40P01" => Some(Conflict::Locked.into()),
            _ => None,
        }
    }
}

/// The rows of a query.
pub trait SqlRows {
    /// The number of rows.
    fn count(&self) -> usize;

    /// An integer column of a row, both counted from 0.
    ///
    /// # Panics
    /// If there is no such row or column, or its value is NULL or no integer: the query is the workload's own.
    fn integer(&self, row: usize, column: usize) -> i64;

    /// A text column of a row, both counted from 0.
    ///
    /// # Panics
    /// As [`Self::integer`].
    fn text(&self, row: usize, column: usize) -> &str;
}

/// A session of a database. Queries and changes are prepared when they are first run.
///
/// The futures need not be `Send`: a connection stays on its thread.
pub trait SqlConnection {
    /// The rows of queries.
    type Rows: SqlRows;

    /// Runs a statement once, without parameters and without preparing it.
    fn run(&mut self, sql: &str) -> impl Future<Output = Result<(), SqlFailure>>;

    /// Runs a statement that returns rows.
    fn query(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> impl Future<Output = Result<Self::Rows, SqlFailure>>;

    /// Runs a statement that changes rows or the session. Returns the number of changed rows.
    fn change(
        &mut self,
        sql: &'static str,
        parameters: &[SqlValue],
    ) -> impl Future<Output = Result<u64, SqlFailure>>;

    /// Runs a COPY FROM STDIN with this data, cut anywhere. Returns the number of rows.
    fn copy(
        &mut self,
        sql: &str,
        chunks: impl Iterator<Item = Vec<u8>>,
    ) -> impl Future<Output = Result<u64, SqlFailure>>;
}

/// A source of connections.
pub trait SqlConnector: Sync {
    /// The connections.
    type Connection: SqlConnection;

    /// Runs a future of the connections on this thread.
    ///
    /// # Errors
    /// [`BenchmarkError::Runtime`] if the thread cannot wait for futures.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T, BenchmarkError>;

    /// Opens a connection at the isolation level SERIALIZABLE.
    fn connect(&self) -> impl Future<Output = Result<Self::Connection, SqlFailure>>;

    /// The database behind the connections, for the report.
    fn target(&self) -> Target;

    /// Checks that no statement can make. All connections are closed by then.
    fn verify(&self) -> Vec<Check> {
        Vec::new()
    }
}

/// The database behind connections.
#[derive(Clone, Debug)]
pub struct Target {
    /// Settings that reproduce the database.
    pub settings: Vec<(&'static str, String)>,
    /// The database's place and kind, in words.
    pub topology: String,
    /// How durable commits are.
    pub durability: &'static str,
    /// OS threads of the database in this process; None if it runs elsewhere, perhaps on all cores of this machine.
    pub threads: Option<usize>,
    /// Table memory of all copies, if known.
    pub memory_bytes: Option<u64>,
    /// Copies of each row, if known.
    pub copies: Option<usize>,
    /// Bytes that a key takes in the ordered index of one copy, if known.
    pub index_bytes_per_key: Option<f64>,
}

/// A benchmark in SQL.
pub trait SqlWorkload: Send + Sync {
    /// The benchmark's name, counts and settings.
    fn profile(&self) -> Profile;

    /// Statements that create the tables, empty; tables of an earlier run are dropped.
    fn schema(&self) -> Vec<String>;

    /// Loads the rows. Returns their number.
    fn load(
        &self,
        connection: &mut impl SqlConnection,
    ) -> impl Future<Output = Result<u64, SqlFailure>>;

    /// Bytes of the values of the loaded rows, keys included, if the report is to tell what memory they take.
    fn payload_bytes(&self) -> Option<u64> {
        None
    }

    /// Draws one transaction and runs it to its end, without retrying it. An `Err` is a failure other than a conflict.
    fn run_one(
        &self,
        connection: &mut impl SqlConnection,
        random: &mut Random,
    ) -> impl Future<Output = Result<Ran, SqlFailure>>;

    /// Checks the data after the run. No transaction is running; `totals` covers the whole run.
    fn verify(
        &self,
        connection: &mut impl SqlConnection,
        totals: &Totals,
    ) -> impl Future<Output = Result<Vec<Check>, SqlFailure>>;
}

/// Runs `body` between BEGIN and COMMIT, or ROLLBACK if it fails.
///
/// # Errors
/// The failure, which may be a conflict.
pub async fn in_transaction<C: SqlConnection, T>(
    connection: &mut C,
    body: impl AsyncFnOnce(&mut C) -> Result<T, SqlFailure>,
) -> Result<T, SqlFailure> {
    connection.change("BEGIN", &[]).await?;
    let result = body(connection).await;
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    connection.change(end, &[]).await?;
    result
}

impl Ran {
    /// The result of a transaction in SQL: whether it found its rows, or why it failed.
    ///
    /// # Errors
    /// The failure, unless it is a conflict.
    pub fn of(transaction: usize, outcome: Result<bool, SqlFailure>) -> Result<Self, SqlFailure> {
        let result = match outcome {
            Ok(true) => Outcome::Qualified,
            Ok(false) => Outcome::RowsMissing,
            Err(failure) => Outcome::Aborted(failure.conflict().ok_or(failure)?),
        };
        Ok(Self { transaction, result, tally: None })
    }
}
