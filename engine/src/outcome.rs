//! Outcomes: how a transaction ends, and why it aborts.
//!
//! ```text
//! conflict   another transaction, or another epoch, was faster    the same transaction again
//! misuse     the transaction cannot commit as it is written       its code is changed
//! failure    the cluster, or the node, cannot commit it           the cluster is looked after, or another node asked
//! requested, cancelled                                            its code, or the waiter of its job, wanted it
//! ```
//! A full table is a failure: the transaction is right, and the same one commits when there is room.
//!
//! *Invariant*: an aborted transaction has written nothing and holds no lock, unless its outcome is unknown.

use std::any::Any;

use gannet_rpc::TooLarge;
use gannet_storage::KEY_BYTES_MAX;

use crate::row_key::RowKey;
use crate::token::TokenRefusal;

/// Why a transaction did not commit. Nothing of it was written and it holds no lock, but after [`Failure::Unknown`].
///
/// An outcome rather than an error; it travels as the `Err` of a `Result` all the same, so that `?`
/// leaves a transaction's code at the first step that cannot succeed any more. Its class tells what to do: run the transaction
/// again, change it, or look after the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Abort {
    /// Another transaction, or a change of the membership, came in between. Retry.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// It cannot commit as it is written. Change it.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// The cluster, or this node of it, cannot commit it now.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// The transaction was aborted by its own code.
    #[error("aborted by the application")]
    Requested,
    /// The waiter of its job has cancelled it.
    #[error("the transaction was cancelled; run it again")]
    Cancelled,
}

/// It is part of what each step of a transaction returns.
const ABORT_BYTES_MAX: usize = 24;
const _: () = assert!(size_of::<Abort>() <= ABORT_BYTES_MAX);

/// The same transaction may succeed when it is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Another transaction held a bucket that this one read or wanted to lock. Retry.
    #[error("a row is locked by another transaction; retry")]
    Locked,
    /// A row that this one wanted to lock is in a table with a scan barrier, which a transaction has set that was overtaken too
    /// often. Retry, after a while.
    #[error("a transaction that reads keeps others from changing the table; retry")]
    Barrier,
    /// Another transaction has reserved a row that this one wanted to lock. Retry, after a while, or reserve the row.
    #[error("a row is reserved by another transaction; retry")]
    Reserved,
    /// What this transaction has read has changed since. Retry.
    #[error("a row that was read has changed since; retry")]
    Changed,
    /// The membership has changed before the transaction was decided, or another node has become primary of a row. Retry.
    #[error("while the transaction ran a node was lost, or rows got another primary; retry")]
    Reconfigured,
}

/// Another run of the same transaction would not help: its code has to change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// A row to update or delete is not there.
    #[error("table {table} has no row with key {key}; insert it first")]
    NotFound {
        /// Number of the table.
        table: u32,
        /// The key.
        key: RowKey,
    },
    /// A row to insert is there already.
    #[error("table {table} already has a row with key {key}; update it instead")]
    Exists {
        /// Number of the table.
        table: u32,
        /// The key.
        key: RowKey,
    },
    /// A primary does not know the program of a fold.
    #[error(
        "a node cannot fold table {table}: it does not know the program; set the same programs in every process"
    )]
    NoProgram {
        /// Number of the table.
        table: u32,
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
        table: u32,
        /// Most rows of a bucket.
        max: usize,
    },
    /// A bulk load is used that has ended, or has failed.
    #[error(
        "the bulk load of table {table} has ended, or has failed; drop the table and load another one, or insert the rows by transactions"
    )]
    LoadEnded {
        /// Number of the table.
        table: u32,
    },
    /// A value of the wrong size was given for a row.
    #[error(
        "table {table} has values of {expected} bytes and was given {found}; pad or cut the value"
    )]
    ValueBytes {
        /// Number of the table.
        table: u32,
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
        table: u32,
    },
    /// A key was used in a way that its table, or the read or write set which it is in, does not allow.
    #[error("key {key} of table {table}: {problem}")]
    Row {
        /// Number of the table.
        table: u32,
        /// The key.
        key: RowKey,
        /// What is wrong, and what to do.
        problem: RowProblem,
    },
    /// A [`crate::RowId`] of another transaction, or of a row that was refused.
    #[error("no such row in this transaction; add it to the write set")]
    NoSuchRow,
    /// A transaction was used after it had ended.
    #[error("the transaction has ended; begin another")]
    Ended,
    /// A closure that is committed when it returns has tried to commit.
    #[error(
        "a closure that runs as a transaction is committed when it returns; return Ok, or begin one with Coordinator::begin"
    )]
    CommitsItself,
    /// The token that the transaction was run under is decided, or cannot have this result.
    #[error(transparent)]
    Token(#[from] TokenRefusal),
}

/// What is wrong with the use of a key, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowProblem {
    /// A number was given for a byte string.
    #[error(
        "the table's keys are byte strings; give one, or call add_row_to_write_set in place of add_to_write_set"
    )]
    IsNumber,
    /// A byte string was given for a number.
    #[error(
        "the table's keys are numbers; give a u64, or call add_to_write_set in place of add_row_to_write_set"
    )]
    IsBytes,
    /// The key, or a bound of a scan, is empty or too long.
    #[error("keys have 1 to {KEY_BYTES_MAX} bytes; give one of such a size")]
    KeyBytes,
    /// It is to be changed.
    #[error("is in the read set; add it to the write set to change it")]
    InReadSet,
    /// It is to be changed.
    #[error("is to be deleted and takes no value")]
    Deleted,
    /// It is to be changed.
    #[error("was not executed; call execute before writing it")]
    NotExecuted,
    /// It is added once more.
    #[error("is in the write set twice; add each key once")]
    AddedTwice,
}

/// The cluster, or this node of it, cannot commit the transaction now, whatever it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// No space for an insert: a partition has used up its share of a node's memory limit. The transaction is none the worse: it may
    /// commit when rows were deleted or the operator has raised the limit.
    #[error(
        "table {table} is full: a partition has used up its share of a node's memory limit; delete rows or raise the limit"
    )]
    TableFull {
        /// Number of the table.
        table: u32,
    },
    /// A node refused what no node refuses, before the commit was decided. This is a bug of Gannet: do not run the transaction
    /// again.
    #[error(
        "a node refused to answer for what the transaction had read. This is a bug of Gannet; nothing was written"
    )]
    Refused,
    /// The node of a [`crate::RemoteTransaction`] does not answer any more.
    #[error("the node does not answer any more")]
    Disconnected,
    /// All nodes that had a copy of the row's partition have ended. The transaction has written nothing. Transactions that need
    /// rows of other partitions only commit.
    #[error(
        "the rows of partition {partition} are lost: all nodes that had a copy have ended; start the cluster again"
    )]
    Lost {
        /// The partition.
        partition: u16,
    },
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
            Self::Conflict(_) => true,
            Self::Misuse(_) | Self::Failure(_) | Self::Requested | Self::Cancelled => false,
        }
    }
}

impl From<TooLarge> for Abort {
    fn from(TooLarge { bytes, max }: TooLarge) -> Self {
        Misuse::TooLarge { bytes, max }.into()
    }
}

impl From<TokenRefusal> for Abort {
    fn from(refusal: TokenRefusal) -> Self {
        Misuse::Token(refusal).into()
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
    /// as the bound allows and may be tried again; a misuse will stand, and a failure until the cluster is mended.
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
            Self::Unknown => panic!("{}", Failure::Unknown),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a value that is no text".to_owned())
}
