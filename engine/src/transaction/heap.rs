//! Rows of heap tables in a transaction: byte-string keys, values of any length, and observations that
//! were made before.
//!
//! *Source*: FaSST section 5.2.1, for tables that it does not have.

use gannet_storage::{HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Location, LockMode, TableKind, padded};

use crate::configuration::NOBODY;
use crate::outcome::{Abort, Conflict, Failure, Misuse, RowProblem};
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::access_set::{Row, RowId, RowState, bytes_of_value};
use crate::view::View;

/// What commit does to a row of a heap table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Adds a row that is not there.
    Insert(&'a [u8]),
    /// Gives a row that is there another value.
    Update(&'a [u8]),
    /// Removes a row that is there.
    Delete,
}

impl<'a> Change<'a> {
    /// How the row is locked, and the value that it gets, if any.
    pub(crate) fn parts(self) -> (LockMode, Option<&'a [u8]>) {
        match self {
            Self::Insert(value) => (LockMode::Insert, Some(value)),
            Self::Update(value) => (LockMode::Update, Some(value)),
            Self::Delete => (LockMode::Delete, None),
        }
    }
}

/// A row as a transaction saw it, found or absent: by the version of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Observation {
    /// Number of the table.
    pub(crate) table: u32,
    /// Partition of the bucket.
    pub(crate) partition: u16,
    /// The bucket.
    pub(crate) bucket: u32,
    /// Its version.
    pub(crate) version: u64,
    /// Hash of the row's key in a table with byte-string keys; 0 stands for all rows of the bucket.
    pub(crate) hash: u64,
}

impl Observation {
    /// The same of all rows of the bucket.
    pub(crate) fn of_bucket(self) -> Self {
        Self { hash: 0, ..self }
    }
}

impl Transaction<'_> {
    /// Adds a row of a heap table to those that the next [`Self::execute`] locks and commit changes.
    ///
    /// If the row is not as `change` wants it, execute fails with [`Conflict::Changed`]: read it before.
    /// A key may be in the write set once.
    pub fn add_row_to_write_set(
        &mut self,
        table: TableId,
        key: &[u8],
        change: Change<'_>,
    ) -> RowId {
        let (mode, value) = change.parts();
        let value = value.unwrap_or_default();
        if value.len() > HEAP_VALUE_BYTES_MAX {
            let (expected, found) = (HEAP_VALUE_BYTES_MAX, value.len());
            self.doom(Misuse::ValueBytes { table: table.0, expected, found });
            return RowId(u32::MAX);
        }
        let value_at = self.set.add_bytes(value);
        let row = self.add_row(table, key, Some(mode), value.len());
        if let Some(row) = self.set.rows.get_mut(row.0 as usize) {
            row.value_at = value_at;
            row.written = mode != LockMode::Delete;
        }
        row
    }

    /// Adds a key of any table to those that the next [`Self::execute`] reads.
    pub(crate) fn add_any_to_read_set(&mut self, table: TableId, key: &[u8]) -> RowId {
        match self.number(table, key) {
            Some(number) => self.add_to_read_set(table, number),
            None => self.add_to_read_set(table, key),
        }
    }

    /// The number that is the key of a row in a table of fixed values, out of its bytes, little-endian.
    pub(crate) fn number(&self, table: TableId, key: &[u8]) -> Option<u64> {
        self.view.table(table.0).filter(|table| table.layout().kind == TableKind::Fixed)?;
        key.try_into().ok().map(u64::from_le_bytes)
    }

    /// Locks rows of tables with fixed values and gives them their values; none to those that are deleted. Commit tells
    /// if that is not possible, because they are not as they were read.
    pub(crate) fn put_numbered(&mut self, rows: &[(RowId, Option<&[u8]>)]) {
        if rows.is_empty() || self.execute().is_err() {
            return;
        }
        for (row, value) in rows {
            let put = match value {
                Some(value) => self.put(*row, value),
                None if self.set.rows[row.0 as usize].state == RowState::Granted => Ok(()),
                None => Err(Conflict::Changed.into()),
            };
            match put {
                Ok(()) => {}
                Err(Abort::Misuse(Misuse::NotFound { .. } | Misuse::Exists { .. })) => {
                    self.doom(Conflict::Changed);
                }
                Err(abort) => self.doom(abort),
            }
        }
    }

    pub(super) fn add_row(
        &mut self,
        table: TableId,
        key: &[u8],
        mode: Option<LockMode>,
        value_bytes: usize,
    ) -> RowId {
        let row = self.set.next_row();
        let refused = match self.view.kept_table(table.0) {
            None => Some(Misuse::NoSuchTable { table: table.0 }),
            Some(found) if found.layout().kind == TableKind::Fixed => {
                let problem = RowProblem::IsBytes;
                Some(Misuse::Row { table: table.0, key: key.into(), problem })
            }
            Some(_) if !(1..=KEY_BYTES_MAX).contains(&key.len()) => {
                let problem = RowProblem::KeyBytes;
                Some(Misuse::Row { table: table.0, key: key.into(), problem })
            }
            Some(_) => None,
        };
        let found = self.view.kept_table(table.0).map(|found| {
            let hash = found.hashed(key).word();
            (hash, found.locate(hash))
        });
        let (Some((hash, location)), None) = (found, refused) else {
            self.doom(refused.unwrap_or(Misuse::NoSuchTable { table: table.0 }));
            return RowId(u32::MAX);
        };
        let primary = self.view.configuration().primary(location.partition);
        if primary == NOBODY {
            self.doom(Failure::Lost { partition: location.partition });
            return RowId(u32::MAX);
        }
        let key_at = self.set.add_bytes(key);
        self.set.rows.push(Row {
            table: table.0,
            location,
            primary,
            bucket: location.root,
            key: hash,
            mode,
            state: RowState::Pending,
            written: false,
            version: 0,
            value_at: 0,
            value_bytes: bytes_of_value(value_bytes),
            key_at: u32::try_from(key_at).expect("a transaction is smaller than 4 GiB"),
            key_bytes: u32::try_from(key.len()).expect("keys were found to be short"),
        });
        row
    }

    /// Adds to the read set what an earlier attempt of the same transaction has read: commit fails
    /// with [`Conflict::Changed`] if it is not so any more. Before any row that is to be executed.
    ///
    /// # Panics
    /// If there are rows that are not executed.
    pub(crate) fn observe(&mut self, observation: Observation) {
        assert_eq!(self.set.executed, self.set.rows.len(), "observations come before other rows");
        let Observation { table, partition, bucket, version, hash } = observation;
        let primary = self.view.configuration().primary(partition);
        if primary == NOBODY {
            return self.doom(Failure::Lost { partition });
        }
        if self.view.kept_table(table).is_none() {
            return self.doom(Conflict::Changed);
        }
        self.set.rows.push(Row {
            table,
            location: Location::in_partition(partition),
            primary,
            bucket,
            key: hash,
            mode: None,
            state: RowState::Found,
            written: false,
            version,
            value_at: 0,
            value_bytes: 0,
            key_at: 0,
            key_bytes: 0,
        });
        self.set.executed += 1;
    }

    /// What was seen of a row that was executed.
    pub(crate) fn observation(&self, row: RowId) -> Option<Observation> {
        let row = self.set.row(row)?;
        let is_known = matches!(row.state, RowState::Found | RowState::Absent | RowState::Granted);
        is_known.then(|| row.observation(&self.view))
    }

    /// Whether a transaction has read rows with stamps, which are valid though their buckets have changed.
    #[cold]
    pub(super) fn stamped_reads(&self) -> Vec<Observation> {
        let reads = self.set.rows.iter().filter(|row| {
            row.mode.is_none()
                && matches!(row.state, RowState::Found | RowState::Absent)
                && self.view.has_stamps(row.table)
        });
        reads.map(|row| row.observation(&self.view)).collect()
    }
}

impl Row {
    fn observation(&self, view: &View) -> Observation {
        let Self { table, location: Location { partition, .. }, bucket, version, key, .. } = *self;
        let hash = if view.has_stamps(table) { key } else { 0 };
        Observation { table, partition, bucket, version, hash }
    }
}

/// Takes the answer for a row of a heap table; whether the transaction can go on.
pub(super) fn take_answer(
    row: &mut Row,
    answer: &[u8],
    (values, used): (&mut Vec<u8>, &mut usize),
) -> bool {
    if row.mode.is_none() {
        row.value_at = *used;
        row.value_bytes = bytes_of_value(answer.len());
        *used += padded(answer.len());
        if values.len() < *used {
            values.resize(used.next_power_of_two(), 0);
        }
        values[row.value_at..row.value_at + answer.len()].copy_from_slice(answer);
        return true;
    }
    // What a transaction wants to change it has read before: another has been faster.
    row.state == RowState::Granted
}
