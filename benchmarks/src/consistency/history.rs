//! Histories: the requests of clients and the answers to them, in the order in which they happened.
//!
//! *Invariants*: a position is taken once, and positions rise with real time. A transaction without an answer is recorded as
//! unknown.
//!
//! *Not here*: the checkers of histories.

use std::sync::{Mutex, PoisonError};

use gannet_engine::{Abort, Failure};

use crate::workload::Result;

/// One operation of a transaction, with the value that it read or wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// An append of `value` to the list `key`.
    Append {
        /// The list.
        key: u64,
        /// The value, which occurs once in a history.
        value: u64,
    },
    /// A read of the list `key`.
    ReadList {
        /// The list.
        key: u64,
        /// The list's elements; none if the list does not exist yet.
        elements: Vec<u64>,
    },
    /// A write of `value` to the register `key`.
    Write {
        /// The register.
        key: u64,
        /// The value, which is not 0 and occurs once in a history.
        value: u64,
    },
    /// A read of the register `key`.
    ReadRegister {
        /// The register.
        key: u64,
        /// The register's value; 0 at the start.
        value: u64,
    },
}

/// What a client learned about its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The transaction has committed.
    Committed,
    /// The transaction has not committed.
    Aborted,
    /// The transaction may have committed.
    Unknown,
}

impl Fate {
    /// The fate that a transaction's result tells.
    pub(crate) fn of(result: Result) -> Self {
        match result {
            Result::Qualified | Result::RowsMissing => Self::Committed,
            Result::Aborted(Abort::Failure(Failure::Unknown)) => Self::Unknown,
            Result::Aborted(_) => Self::Aborted,
        }
    }
}

/// A transaction of a history.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Position of its start.
    pub invoked: u64,
    /// Position of its end.
    pub completed: u64,
    /// What the client learned.
    pub fate: Fate,
    /// The transaction's operations, in order; without a commit, those that it would have done.
    pub operations: Vec<Operation>,
}

#[derive(Default)]
struct Log {
    position: u64,
    transactions: Vec<Recorded>,
}

/// A history under construction, by any number of clients.
#[derive(Default)]
pub struct History(Mutex<Log>);

/// A transaction in progress. Dropping this before the transaction has ended records its fate as unknown.
pub(crate) struct Recording<'h> {
    history: &'h History,
    invoked: u64,
    /// The operations so far.
    pub(crate) operations: Vec<Operation>,
    fate: Fate,
}

impl Recording<'_> {
    /// Records the end of the transaction.
    pub(crate) fn complete(mut self, fate: Fate) {
        self.fate = fate;
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let operations = std::mem::take(&mut self.operations);
        self.history.complete(self.invoked, self.fate, operations);
    }
}

impl History {
    /// Records the start of a transaction.
    pub(crate) fn record(&self) -> Recording<'_> {
        let (invoked, operations) = (self.invoke(), Vec::new());
        Recording { history: self, invoked, operations, fate: Fate::Unknown }
    }

    /// Records the start of a transaction, and returns its position.
    pub fn invoke(&self) -> u64 {
        self.with(|log| {
            log.position += 1;
            log.position
        })
    }

    /// Records the end of the transaction that started at `invoked`.
    pub fn complete(&self, invoked: u64, fate: Fate, operations: Vec<Operation>) {
        self.with(|log| {
            log.position += 1;
            let completed = log.position;
            log.transactions.push(Recorded { invoked, completed, fate, operations });
        });
    }

    /// The ended transactions, in the order of their ends.
    #[must_use]
    pub fn transactions(&self) -> Vec<Recorded> {
        self.with(|log| log.transactions.clone())
    }

    fn with<T>(&self, use_log: impl FnOnce(&mut Log) -> T) -> T {
        // No code panics while it holds this lock.
        use_log(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
