//! The requests of clients and the answers of a node, encoded by `postcard`.
//!
//! *Invariants*: a change of these types is a change of the protocol, whose version is in `link/mod.rs`. Each request but
//! `Leave` has an answer. The writes of a request belong to the transaction before its operation does. A client hears of
//! conflicts as `Locked`, `Changed` or `Reconfigured`, and of an abort without an `AbortCode` by its text alone.
//!
//! *Not here*: seal, frames and numbers of messages (`link`); sessions (`sessions.rs`, `conversation.rs`); what is done
//! for a request (`gateway.rs`).

use std::ops::Bound;

use gannet_storage::Direction;
use serde::{Deserialize, Serialize};

use crate::key_range::KeyRange;
use crate::outcome::{Abort, Conflict, Failure, Misuse};
use crate::rows::KeyValue;
use crate::token::{Token, TokenOutcome, TokenRefusal};

/// Names a session of a client; nobody guesses it.
pub(super) type SessionId = [u8; 16];

/// What a client says first on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opening {
    /// The session whose connection broke, and the number of the last answer that was heard; none for a new session.
    pub(super) resumes: Option<(SessionId, u64)>,
}

/// What a node says to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Welcome {
    /// A session has begun.
    Begun {
        /// The session.
        session: SessionId,
        /// The tables that clients may use.
        tables: Vec<TableEntry>,
    },
    /// The session goes on. The node has heard the requests up to this number.
    Resumed {
        /// Number of a request.
        heard: u64,
    },
    /// There is no such session.
    Forgotten,
    /// There are as many clients as the node takes.
    Full,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    /// Whether it is the first of its transaction: one that was left open before is forgotten.
    pub(super) begins: bool,
    /// What the transaction has written since the request before.
    pub(super) writes: Vec<Write>,
    pub(super) operation: Operation,
}

/// A key and what it is set to; `None` removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Write {
    pub(super) table: u32,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
    /// Whether the transaction knows if the key is there.
    pub(super) was_read: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Operation {
    /// Nothing: the writes are many.
    Write,
    /// The values of keys, or of the first of them if they are large.
    Get { table: u32, keys: Vec<Vec<u8>> },
    /// The first rows of a range.
    Scan { table: u32, range: Range, is_descending: bool, limit: u32 },
    /// What is kept of a transaction under a token. If it is not decided, this transaction may become it.
    ReadToken(Token),
    /// Commit what was written.
    Commit,
    /// Commit what was written, and with it the result that is kept under a token. The transaction has read the token before.
    CommitOnce { token: Token, result: Vec<u8> },
    /// Decide a token, in a transaction of its own.
    Decide(Token),
    /// Write nothing, and tell whether all reads were valid.
    GiveUp,
    /// End the session. There is no answer.
    Leave,
}

impl Operation {
    /// Number of the table that it reads.
    pub(super) fn table(&self) -> Option<u32> {
        match self {
            Self::Get { table, .. } | Self::Scan { table, .. } => Some(*table),
            Self::Write
            | Self::ReadToken(_)
            | Self::Commit
            | Self::CommitOnce { .. }
            | Self::Decide(_)
            | Self::GiveUp
            | Self::Leave => None,
        }
    }

    /// Whether the outcome of the client's transaction is unknown if the answer is lost.
    pub(super) fn commits(&self) -> bool {
        matches!(self, Self::Commit | Self::CommitOnce { .. })
    }
}

/// Where a scan begins and ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Range(Bound<Vec<u8>>, Bound<Vec<u8>>);

impl From<KeyRange> for Range {
    fn from(KeyRange { from, to }: KeyRange) -> Self {
        Self(from, to)
    }
}

impl From<Range> for KeyRange {
    fn from(Range(from, to): Range) -> Self {
        Self { from, to }
    }
}

pub(super) fn direction(is_descending: bool) -> Direction {
    if is_descending { Direction::Descending } else { Direction::Ascending }
}

/// A table that clients may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TableEntry {
    pub(super) name: String,
    pub(super) number: u32,
    /// Bytes of a value; none if it has byte strings in order.
    pub(super) value_bytes: Option<u32>,
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Of the first keys, at least of one.
    Values(Vec<Option<Vec<u8>>>),
    /// Rows, and what is left of the range.
    Page(Vec<KeyValue>, Option<Range>),
    /// It is written, committed, or was valid.
    Done,
    /// The result under a token; none if it is not decided.
    Token(Option<Vec<u8>>),
    /// A token is decided.
    Outcome(TokenOutcome),
    Aborted(AbortCode),
    /// The node is busy, and has forgotten the transaction.
    Busy,
    /// The cluster has halted.
    Halted(String),
    /// The cluster has halted while the transaction committed.
    Unknown(String),
    /// The request is impossible.
    Refused(String),
}

impl From<Abort> for Answer {
    fn from(abort: Abort) -> Self {
        match (AbortCode::of(abort), abort) {
            (Some(code), _) => Self::Aborted(code),
            (None, Abort::Failure(Failure::Halted | Failure::Revoked)) => {
                Self::Halted(abort.to_string())
            }
            (None, Abort::Failure(Failure::Unknown)) => Self::Unknown(abort.to_string()),
            (None, _) => Self::Refused(abort.to_string()),
        }
    }
}

/// An [`Abort`] that a client can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AbortCode {
    Locked,
    Changed,
    Reconfigured,
    TableFull { table: u32 },
    TooLarge { bytes: u64, max: u64 },
    NoSuchTable { table: u32 },
    TooManyRows { table: u32, max: u64 },
    Token(TokenRefusal),
    Lost { partition: u16 },
}

impl AbortCode {
    fn of(abort: Abort) -> Option<Self> {
        match abort {
            Abort::Conflict(conflict) => Some(match conflict {
                Conflict::Locked | Conflict::Barrier | Conflict::Reserved => Self::Locked,
                Conflict::Changed => Self::Changed,
                Conflict::Reconfigured => Self::Reconfigured,
            }),
            Abort::Misuse(misuse) => Self::of_misuse(misuse),
            Abort::Failure(Failure::TableFull { table }) => Some(Self::TableFull { table }),
            Abort::Failure(Failure::Lost { partition }) => Some(Self::Lost { partition }),
            Abort::Failure(
                Failure::Refused
                | Failure::Disconnected
                | Failure::Halted
                | Failure::Revoked
                | Failure::Unknown,
            )
            | Abort::Requested
            | Abort::Cancelled => None,
        }
    }

    fn of_misuse(misuse: Misuse) -> Option<Self> {
        Some(match misuse {
            Misuse::TooLarge { bytes, max } => {
                Self::TooLarge { bytes: bytes as u64, max: max as u64 }
            }
            Misuse::NoSuchTable { table } => Self::NoSuchTable { table },
            Misuse::TooManyRows { table, max } => Self::TooManyRows { table, max: max as u64 },
            Misuse::Token(refusal) => Self::Token(refusal),
            // A client looks at its keys and values itself, and reads before it writes.
            Misuse::NotFound { .. }
            | Misuse::Exists { .. }
            | Misuse::ValueBytes { .. }
            | Misuse::Row { .. }
            | Misuse::NoSuchRow
            | Misuse::NoProgram { .. }
            | Misuse::LoadEnded { .. }
            | Misuse::Ended
            | Misuse::CommitsItself => return None,
        })
    }
}

impl From<AbortCode> for Abort {
    fn from(code: AbortCode) -> Self {
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        match code {
            AbortCode::Locked => Conflict::Locked.into(),
            AbortCode::Changed => Conflict::Changed.into(),
            AbortCode::Reconfigured => Conflict::Reconfigured.into(),
            AbortCode::TableFull { table } => Failure::TableFull { table }.into(),
            AbortCode::TooLarge { bytes, max } => {
                Misuse::TooLarge { bytes: size(bytes), max: size(max) }.into()
            }
            AbortCode::NoSuchTable { table } => Misuse::NoSuchTable { table }.into(),
            AbortCode::TooManyRows { table, max } => {
                Misuse::TooManyRows { table, max: size(max) }.into()
            }
            AbortCode::Token(refusal) => refusal.into(),
            AbortCode::Lost { partition } => Failure::Lost { partition }.into(),
        }
    }
}
