//! Outcomes: how a transaction ends, and why it aborts.
//!
//! *Invariant*: an aborted transaction has written nothing and holds no lock, unless its outcome is unknown.

use std::any::Any;

use gannet_rpc::TooLarge;

/// Why a transaction did not commit. Nothing of it was written and it holds no lock, but after [`Abort::Unknown`].
///
/// An outcome rather than an error; it travels as the `Err` of a `Result` all the same, so that `?`
/// leaves a transaction's code at the first step that cannot succeed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    /// Another transaction held a bucket that this one read or wanted to lock. Retry.
    #[error("a row is locked by another transaction; retry")]
    Locked,
    /// A row that this one wanted to lock is in a table with a scan barrier, which a transaction has set that was overtaken too
    /// often. Retry, after a while.
    #[error("a transaction that reads keeps others from changing the table; retry")]
    Barrier,
    /// A bucket that this transaction read has changed since. Retry.
    #[error("a row that was read has changed since; retry")]
    Changed,
    /// The membership has changed before the transaction was decided. Retry.
    #[error("a node was lost while the transaction ran, and another epoch has begun; retry")]
    Reconfigured,
    /// A row to update or delete is not there.
    #[error("table {table} has no row with key {key}; insert it first")]
    NotFound {
        /// Number of the table.
        table: u16,
        /// The key.
        key: u64,
    },
    /// A row to insert is there already.
    #[error("table {table} already has a row with key {key}; update it instead")]
    Exists {
        /// Number of the table.
        table: u16,
        /// The key.
        key: u64,
    },
    /// No space for an insert: the memory limit of a node is reached.
    #[error(
        "table {table} is full: a node's memory limit is reached; delete rows or raise the limit"
    )]
    TableFull {
        /// Number of the table.
        table: u16,
    },
    /// The transaction's changes do not fit a commit record.
    #[error(
        "the transaction's changes take {bytes} bytes and a commit record at most {max}; split it"
    )]
    TooLarge {
        /// Bytes of the record.
        bytes: usize,
        /// Largest record.
        max: usize,
    },
    /// More rows of one bucket are changed than a unit of the commit record has room for.
    #[error(
        "the transaction changes more than {max} rows of one bucket of table {table}; split it"
    )]
    TooManyRows {
        /// Number of the table.
        table: u16,
        /// Most rows of a bucket.
        max: usize,
    },
    /// A value of the wrong size was given for a row.
    #[error(
        "table {table} has values of {expected} bytes and was given {found}; pad or cut the value"
    )]
    ValueBytes {
        /// Number of the table.
        table: u16,
        /// The table's value size.
        expected: usize,
        /// The size given.
        found: usize,
    },
    /// A table of another cluster, or none.
    #[error(
        "there is no table number {table} in this cluster; use the id that create_table returned"
    )]
    NoSuchTable {
        /// Number of the table.
        table: u16,
    },
    /// A row was used in a way that the read or write set which it is in does not allow.
    #[error("key {key} of table {table}: {problem}")]
    Usage {
        /// Number of the table.
        table: u16,
        /// The key.
        key: u64,
        /// What is wrong, and what to do.
        problem: &'static str,
    },
    /// A node refused what no node refuses, before the commit was decided. This is a bug of Gannet: do not run the transaction
    /// again.
    #[error(
        "a node refused to answer for what the transaction had read. This is a bug of Gannet; nothing was written"
    )]
    Refused,
    /// The transaction was aborted by its own code.
    #[error("aborted by the application")]
    Requested,
    /// Whoever waited for it has cancelled it.
    #[error("the transaction was cancelled; run it again")]
    Cancelled,
    /// The node of a [`crate::RemoteTransaction`] does not answer any more.
    #[error("the node does not answer any more")]
    Disconnected,
    /// The cluster has halted, before the transaction logged anything.
    #[error("the cluster has halted; the transaction has written nothing")]
    Halted,
    /// The node that ran the transaction is no member any more. The transaction has written nothing; run it at another node.
    #[error(
        "the node is no member any more; the transaction has written nothing, run it at another node"
    )]
    Revoked,
    /// The cluster has halted while the transaction was logged: it may have committed. Do not run it again.
    #[error("the cluster has halted while the transaction committed; whether it has is unknown")]
    Unknown,
}

impl Abort {
    /// Whether the same transaction may succeed when it is run again.
    #[must_use]
    pub fn is_conflict(self) -> bool {
        match self {
            Self::Locked | Self::Barrier | Self::Changed | Self::Reconfigured => true,
            Self::NotFound { .. }
            | Self::Exists { .. }
            | Self::TableFull { .. }
            | Self::TooLarge { .. }
            | Self::TooManyRows { .. }
            | Self::ValueBytes { .. }
            | Self::NoSuchTable { .. }
            | Self::Usage { .. }
            | Self::Refused
            | Self::Requested
            | Self::Cancelled
            | Self::Disconnected
            | Self::Halted
            | Self::Revoked
            | Self::Unknown => false,
        }
    }
}

impl From<TooLarge> for Abort {
    fn from(TooLarge { bytes, max }: TooLarge) -> Self {
        Self::TooLarge { bytes, max }
    }
}

/// How a closure run as a transaction ended; see [`crate::Coordinator::run`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a transaction may have aborted"]
pub enum Outcome<T, E> {
    /// It is committed, and this is what it returned. Outside of its job its changes are on every copy; `Transaction::commit`
    /// says where they are inside.
    Committed(T),
    /// It could not commit; nothing was written. After [`Abort::is_conflict`] it was retried as often
    /// as the bound allows and may be tried again; the other reasons will stand.
    Aborted(Abort),
    /// It returned an error, its own or an [`Abort`] that it passed on, and what it had read was still
    /// valid; nothing was written.
    Failed(E),
    /// It panicked with this message, and what it had read was still valid; nothing was written.
    Panicked(String),
    /// The cluster has halted while it committed: whether it is committed is unknown. It must not be run again blindly.
    Unknown,
}

impl<T, E: std::fmt::Debug> Outcome<T, E> {
    /// The result of a transaction that the caller knows must commit.
    ///
    /// # Panics
    /// If it did not.
    pub fn committed(self) -> T {
        match self {
            Self::Committed(value) => value,
            Self::Aborted(abort) => panic!("the transaction aborted: {abort}"),
            Self::Failed(error) => panic!("the transaction failed: {error:?}"),
            Self::Panicked(message) => panic!("the transaction panicked: {message}"),
            Self::Unknown => panic!("{}", Abort::Unknown),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
