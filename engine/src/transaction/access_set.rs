//! The rows that a transaction reads or writes: its read set and its write set, and the ranges that it has scanned.
//!
//! ```text
//! rows    | 0 ... executed .. |       a row of the read set has no lock mode
//! values  | value | key | value | ...  bytes of earlier transactions behind values_used
//! ```
//! Both sets are one list, in the order in which the code has named the rows: so they are requested in that order, and a bucket
//! of both is found by one sort.
//!
//! *Source*: FaSST section 5.
//!
//! *Not here*: requests and their answers, in `execute.rs` and `heap.rs`.

use std::ops::Range;
use std::sync::Arc;

use gannet_storage::{HashedKey, Location, LockMode, padded};

use crate::outcome::{Abort, Misuse, RowProblem};
use crate::row_key::RowKey;
use crate::transaction::ScanObservation;

/// A row of the read or write set, as its transaction names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowId(pub(super) u32);

/// The state of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// Not executed.
    Pending,
    /// The key is there and not locked by this row: a read, or an insert that came too late.
    Found,
    /// The key is not there, and not locked by this row.
    Absent,
    /// The bucket is locked; for update and delete the key is there, for insert it is not.
    Granted,
    /// Locked by another transaction, out of space, or refused: the transaction is doomed.
    Failed,
}

/// A row that a transaction reads or writes.
pub(super) struct Row {
    pub(super) table: u32,
    /// Of the key; of a row that an earlier attempt has executed, the partition alone.
    pub(super) location: Location,
    pub(super) primary: u16,
    /// Once the row is executed, the bucket that has the key.
    pub(super) bucket: u32,
    pub(super) key: u64,
    /// None in the read set.
    pub(super) mode: Option<LockMode>,
    pub(super) state: RowState,
    /// Whether the value is to be written.
    pub(super) written: bool,
    pub(super) version: u64,
    /// Where the value lies in the set's `values`.
    pub(super) value_at: usize,
    pub(super) value_bytes: u32,
    /// Where the key of a heap table lies there; no bytes in a fixed table.
    pub(super) key_at: u32,
    pub(super) key_bytes: u32,
}

const _: () = assert!(size_of::<Row>() == 64, "a row is as large as a cache line");

impl Row {
    /// The key, whose bytes are in the set's `values`.
    #[inline(always)]
    pub(super) fn key<'v>(&self, values: &'v [u8]) -> HashedKey<'v> {
        HashedKey::from_parts(self.key, &values[self.key_range()])
    }

    /// The key of a heap table, in the set's `values`.
    #[inline(always)]
    pub(super) fn key_range(&self) -> Range<usize> {
        self.key_at as usize..(self.key_at + self.key_bytes) as usize
    }

    /// The key, as an outcome names it.
    #[cold]
    pub(super) fn named(&self, values: &[u8]) -> RowKey {
        self.key(values).plain().into()
    }

    /// The value, in the set's `values`.
    #[inline(always)]
    pub(super) fn value_range(&self) -> Range<usize> {
        self.value_at..self.value_at + self.value_bytes as usize
    }

    /// Whether commit changes the row.
    pub(super) fn changes(&self) -> bool {
        self.state == RowState::Granted && (self.written || self.mode == Some(LockMode::Delete))
    }
}

/// The length of a value.
#[inline(always)]
pub(super) fn bytes_of_value(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("values are shorter than 4 GiB")
}

/// The read set and the write set of a transaction.
#[derive(Default)]
pub(super) struct AccessSet {
    pub(super) rows: Vec<Row>,
    /// Rows before this one are executed.
    pub(super) executed: usize,
    /// Rows before this one are executed when the present round of execute has ended.
    pub(super) requested: usize,
    /// Ranges of ordered tables and spans of buckets that were scanned.
    pub(super) scanned: Vec<Arc<ScanObservation>>,
    /// The rows' values, and keys of heap tables; bytes of earlier transactions until they are
    /// overwritten.
    pub(super) values: Vec<u8>,
    /// How much of `values` the present transaction has taken.
    pub(super) values_used: usize,
}

impl AccessSet {
    /// Empties it and keeps its memory.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.scanned.clear();
        self.executed = 0;
        self.values_used = 0;
    }

    /// Takes the next bytes of `values`.
    #[inline(always)]
    pub(super) fn claim(&mut self, bytes: usize) {
        self.values_used += padded(bytes);
        if self.values.len() < self.values_used {
            self.values.resize(self.values_used.next_power_of_two(), 0);
        }
    }

    /// Takes the next bytes of `values` for a copy of `bytes`; where they begin.
    pub(super) fn add_bytes(&mut self, bytes: &[u8]) -> usize {
        let at = self.values_used;
        self.claim(bytes.len());
        self.values[at..at + bytes.len()].copy_from_slice(bytes);
        at
    }

    /// The row that is added next.
    #[inline(always)]
    pub(super) fn next_row(&self) -> RowId {
        RowId(u32::try_from(self.rows.len()).expect("fewer than 2^32 rows"))
    }

    pub(super) fn row(&self, row: RowId) -> Option<&Row> {
        self.rows.get(row.0 as usize)
    }

    /// Whether commit changes a row.
    pub(super) fn changes(&self) -> bool {
        self.rows.iter().any(Row::changes)
    }

    /// The value of a row that was executed; `None` if the key is not there.
    #[inline]
    pub(super) fn value(&self, row: RowId) -> Option<&[u8]> {
        let row = self.row(row)?;
        let is_insert = row.mode == Some(LockMode::Insert) && !row.written;
        let there = match row.state {
            RowState::Found => true,
            RowState::Granted => !is_insert,
            RowState::Pending | RowState::Absent | RowState::Failed => false,
        };
        there.then(|| &self.values[row.value_range()])
    }

    /// The value of a row that is locked for update or insert, to be changed in place; `doom` is what a row that failed ends with.
    pub(super) fn value_mut(&mut self, row: RowId, doom: Abort) -> Result<&mut [u8], Abort> {
        let Some(row) = self.rows.get_mut(row.0 as usize) else {
            return Err(Misuse::NoSuchRow.into());
        };
        let table = row.table;
        let key = || row.named(&self.values);
        let usage = |problem| Err(Misuse::Row { table, key: key(), problem }.into());
        match (row.state, row.mode) {
            (_, None) => usage(RowProblem::InReadSet),
            (_, Some(LockMode::Delete)) => usage(RowProblem::Deleted),
            (RowState::Pending, _) => usage(RowProblem::NotExecuted),
            (RowState::Failed, _) => Err(doom),
            (RowState::Absent, _) => Err(Misuse::NotFound { table, key: key() }.into()),
            (RowState::Found, _) => Err(Misuse::Exists { table, key: key() }.into()),
            (RowState::Granted, Some(LockMode::Update | LockMode::Insert)) => {
                row.written = true;
                Ok(&mut self.values[row.value_range()])
            }
        }
    }
}
