//! What clients requested and what they were answered, in the order in which it happened.

use std::sync::{Mutex, PoisonError};

use gannet_engine::Abort;

use crate::workload::Result;

/// One operation of a transaction, with what it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Appended `value` to the list `key`.
    Append {
        /// The list.
        key: u64,
        /// A value that is appended once in a history.
        value: u64,
    },
    /// Read the list `key`.
    ReadList {
        /// The list.
        key: u64,
        /// Its elements; none if there is no such list yet.
        elements: Vec<u64>,
    },
    /// Wrote `value` to the register `key`.
    Write {
        /// The register.
        key: u64,
        /// A value that is written once in a history, not 0.
        value: u64,
    },
    /// Read the register `key`.
    ReadRegister {
        /// The register.
        key: u64,
        /// Its value; 0 at the start.
        value: u64,
    },
}

/// What a client was told about its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has happened.
    Committed,
    /// It has not.
    Aborted,
    /// It may have.
    Unknown,
}

impl Fate {
    /// What the result of a transaction says.
    pub(crate) fn of(result: Result) -> Self {
        match result {
            Result::Qualified | Result::RowsMissing => Self::Committed,
            Result::Aborted(Abort::Unknown) => Self::Unknown,
            Result::Aborted(_) => Self::Aborted,
        }
    }
}

/// A transaction of a history. Positions rise with real time and are taken once.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Position of its start.
    pub invoked: u64,
    /// Position of its end.
    pub completed: u64,
    /// What the client was told.
    pub fate: Fate,
    /// What it did, in this order; of one that did not commit, what it would have written.
    pub operations: Vec<Operation>,
}

#[derive(Default)]
struct Log {
    position: u64,
    transactions: Vec<Recorded>,
}

/// A history being recorded, by any number of clients.
#[derive(Default)]
pub struct History(Mutex<Log>);

/// A transaction under way. If its client is dropped before it is told how the transaction has ended, that is unknown.
pub(crate) struct Recording<'h> {
    history: &'h History,
    invoked: u64,
    /// What it does.
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

    /// Records the start of a transaction; its position.
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

    /// The transactions that have ended, in the order of their ends.
    #[must_use]
    pub fn transactions(&self) -> Vec<Recorded> {
        self.with(|log| log.transactions.clone())
    }

    fn with<T>(&self, use_log: impl FnOnce(&mut Log) -> T) -> T {
        // Nothing panics while it is held.
        use_log(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
