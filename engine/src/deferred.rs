//! A transaction that reads now and locks when it commits.
//!
//! ```text
//! statement:  get_many, scan ─ versions and leaf counters are kept      put, delete ─ kept here
//! commit:     observe all that was kept ─ lock what is written ─ validate ─ log ─ backup ─ primary
//! ```
//! An interactive session must hold neither locks nor a coroutine while a person thinks. It owns its
//! read and write set as a [`Deferred`], which each statement takes along into the coroutine that
//! runs it. Nothing that was read is sure before commit: it fails if any of it has changed.
//!
//! *Source*: `architecture.md`, "Transactions": lock mode *at commit*; the commit is FaSST's, section 5.

use std::collections::BTreeMap;
use std::ops::Bound;

use gannet_storage::Direction;

use crate::coordinator::Coordinator;
use crate::node::TableId;
use crate::outcome::Abort;
use crate::transaction::{Change, KeyRange, LeafObservation, Observation, ScanPage};

/// Attempts to read what others are changing, before the conflict is reported.
const READ_ATTEMPTS_MAX: u32 = 20;

/// A key and its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Part of a scan's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys and values, in the order of the scan, own changes included.
    pub rows: Vec<KeyValue>,
    /// What is left to scan; `None` when the range is exhausted.
    pub rest: Option<KeyRange>,
}

/// Changes up to a moment, to go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

/// The last change of a key.
#[derive(Clone, Debug)]
struct Write {
    /// Whether the key was there before this transaction.
    existed: bool,
    /// The value it is given; `None` removes it.
    value: Option<Vec<u8>>,
}

/// A write that another has replaced, to go back to.
struct Undo {
    table: TableId,
    key: Vec<u8>,
    before: Option<Write>,
}

/// Reads with the versions seen, and writes to be; belongs to a session, not to a coroutine.
#[derive(Default)]
pub struct Deferred {
    observations: Vec<Observation>,
    leaves: Vec<LeafObservation>,
    /// Whether each key that was read and not written is there.
    existed: BTreeMap<(TableId, Vec<u8>), bool>,
    writes: BTreeMap<(TableId, Vec<u8>), Write>,
    undo: Vec<Undo>,
    written_bytes: usize,
}

impl Deferred {
    /// A transaction that has read and written nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The values of some keys, in their order, own changes included: one round trip.
    ///
    /// # Errors
    /// [`Abort::Locked`] if another transaction holds a row for long, [`Abort::Usage`] for a key that
    /// is not possible.
    pub fn get_many(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        keys: &[Vec<u8>],
    ) -> Result<Vec<Option<Vec<u8>>>, Abort> {
        let own: Vec<Option<&Write>> =
            keys.iter().map(|key| self.writes.get(&(table, key.clone()))).collect();
        let read = retried(coordinator, |coordinator| {
            let transaction = coordinator.begin();
            let others = keys.iter().zip(&own).filter(|(_, own)| own.is_none());
            let rows: Vec<_> =
                others.map(|(key, _)| transaction.add_row_to_read_set(table, key)).collect();
            transaction.execute()?;
            let value = |row| transaction.value(row).map(<[u8]>::to_vec);
            let values: Vec<_> = rows.iter().map(|&row| value(row)).collect();
            let seen = rows.iter().filter_map(|&row| transaction.observation(row));
            Ok((values, seen.collect::<Vec<_>>()))
        });
        let (values, seen) = read?;
        let mut values = values.into_iter();
        let mut found = Vec::with_capacity(keys.len());
        let mut existed = Vec::new();
        for (key, own) in keys.iter().zip(own) {
            found.push(match own {
                Some(write) => write.value.clone(),
                None => {
                    let value = values.next().flatten();
                    existed.push((key.clone(), value.is_some()));
                    value
                }
            });
        }
        self.observations.extend(seen);
        self.existed.extend(existed.into_iter().map(|(key, there)| ((table, key), there)));
        Ok(found)
    }

    /// The first `limit` rows of a range, or fewer if they are large: one round trip.
    ///
    /// # Errors
    /// As [`Self::get_many`]; [`Abort::NoSuchTable`] for a table without order.
    pub fn scan(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Abort> {
        let page = retried(coordinator, |coordinator| {
            coordinator.begin().scan(table, range, direction, limit)
        });
        let ScanPage { rows, complete_to, observations, leaves } = page?;
        self.observations.extend(observations);
        self.leaves.extend(leaves);
        let there = rows.iter().map(|(key, _)| ((table, key.clone()), true));
        self.existed.extend(there);
        let mut rows =
            self.with_own_writes(table, range, direction, (rows, complete_to.as_deref()));
        let last = if rows.len() > limit {
            rows.truncate(limit);
            rows.last().map(|(key, _)| key.clone())
        } else {
            complete_to
        };
        Ok(Page { rest: last.map(|last| range.after(last, direction)), rows })
    }

    /// Lays this transaction's changes over rows that are complete up to a key.
    fn with_own_writes(
        &self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        (rows, complete_to): (Vec<KeyValue>, Option<&[u8]>),
    ) -> Vec<KeyValue> {
        let (from, to) = match (direction, complete_to) {
            (_, None) => range.bounds(),
            (Direction::Ascending, Some(last)) => (range.bounds().0, Bound::Included(last)),
            (Direction::Descending, Some(last)) => (Bound::Included(last), range.bounds().1),
        };
        let is_inside = |key: &[u8]| {
            let after = match from {
                Bound::Included(from) => key >= from,
                Bound::Excluded(from) => key > from,
                Bound::Unbounded => true,
            };
            let before = match to {
                Bound::Included(to) => key <= to,
                Bound::Excluded(to) => key < to,
                Bound::Unbounded => true,
            };
            after && before
        };
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let own = self.writes.range((table, first)..);
        let mut own = own
            .take_while(|((of, key), _)| {
                *of == table && (is_inside(key) || from == Bound::Excluded(key.as_slice()))
            })
            .filter(|((_, key), _)| is_inside(key))
            .peekable();
        if own.peek().is_none() {
            return rows;
        }
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = rows.into_iter().collect();
        for ((_, key), write) in own {
            match &write.value {
                Some(value) => merged.insert(key.clone(), value.clone()),
                None => merged.remove(key),
            };
        }
        match direction {
            Direction::Ascending => merged.into_iter().collect(),
            Direction::Descending => merged.into_iter().rev().collect(),
        }
    }

    /// Sets a key at commit. The key must have been read by this transaction before.
    ///
    /// # Panics
    /// If it has not.
    pub fn put(&mut self, table: TableId, key: Vec<u8>, value: Vec<u8>) {
        self.write(table, key, Some(value));
    }

    /// Removes a key at commit. The key must have been read by this transaction before.
    ///
    /// # Panics
    /// If it has not.
    pub fn delete(&mut self, table: TableId, key: Vec<u8>) {
        self.write(table, key, None);
    }

    fn write(&mut self, table: TableId, key: Vec<u8>, value: Option<Vec<u8>>) {
        let name = (table, key);
        let before = self.writes.get(&name);
        let existed =
            before.map(|write| write.existed).or_else(|| self.existed.get(&name).copied());
        let existed = existed.expect("a key is read before it is written");
        self.written_bytes += name.1.len() + value.as_ref().map_or(0, Vec::len);
        let before = self.writes.insert(name.clone(), Write { existed, value });
        self.undo.push(Undo { table, key: name.1, before });
    }

    /// Where [`Self::rollback_to`] goes back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.undo.len())
    }

    /// Forgets the changes made since; what was read stays read.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        for Undo { table, key, before } in self.undo.drain(savepoint.0.min(self.undo.len())..).rev()
        {
            let name = (table, key);
            let after = match before {
                Some(write) => self.writes.insert(name.clone(), write),
                None => self.writes.remove(&name),
            };
            let value = after.and_then(|write| write.value);
            self.written_bytes -= name.1.len() + value.map_or(0, |value| value.len());
        }
    }

    /// Bytes of keys and values that were written, those that were written again included.
    #[must_use]
    pub fn written_bytes(&self) -> usize {
        self.written_bytes
    }

    /// Forgets what was to be written, and tells whether what was read is valid. Empty afterwards.
    ///
    /// # Errors
    /// The conflict because of which it is not.
    pub fn give_up(&mut self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        self.writes.clear();
        self.commit(coordinator)
    }

    /// Locks what is written, validates what was read, and commits. Empty afterwards, whatever the
    /// result.
    ///
    /// # Errors
    /// Why nothing was written; [`Abort::is_conflict`] tells whether to run the transaction again.
    pub fn commit(&mut self, coordinator: &mut Coordinator<'_>) -> Result<(), Abort> {
        let Self { mut observations, leaves, writes, .. } = std::mem::take(self);
        observations.sort_unstable();
        observations.dedup();
        let transaction = coordinator.begin();
        observations.into_iter().for_each(|seen| transaction.observe(seen));
        leaves.into_iter().for_each(|leaf| transaction.observe_leaf(leaf));
        for ((table, key), write) in &writes {
            let change = match (write.existed, &write.value) {
                (true, Some(value)) => Change::Update(value),
                (false, Some(value)) => Change::Insert(value),
                (true, None) => Change::Delete,
                (false, None) => continue,
            };
            transaction.add_row_to_write_set(*table, key, change);
        }
        transaction.commit()
    }
}

/// Runs `read`, and again while another transaction holds what it needs.
fn retried<'s, T>(
    coordinator: &mut Coordinator<'s>,
    mut read: impl FnMut(&mut Coordinator<'s>) -> Result<T, Abort>,
) -> Result<T, Abort> {
    let is_conflict = |abort: &Abort| abort.is_conflict();
    coordinator.retried(READ_ATTEMPTS_MAX, is_conflict, |coordinator, _| read(coordinator))
}
