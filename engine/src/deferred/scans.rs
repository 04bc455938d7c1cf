//! Scans and counts of deferred transactions, with their own changes.
//!
//! *Invariants*: what was scanned, counted or folded is kept until the commit validates it, but for reads of `unshared`.
//! A page that goes on where the last one ended belongs to the same range, and a part of a fold to the span before. An
//! own write stands for the row that was read. A table with own writes is not folded. A transaction that sets barriers
//! sets those of a table before it scans the table.
//!
//! *Source*: `docs/protocol.md`, "Ordered index", "Folds" and "Scan barriers".
//!
//! *Not here*: how ranges are validated, in `transaction/validate`; reads by key, in `deferred`.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use gannet_storage::Direction;

use crate::coordinator::Coordinator;
use crate::deferred::{Deferred, retried};
use crate::fold::FoldRest;
use crate::key_range::{KeyRange, is_inside};
use crate::outcome::Abort;
use crate::rows::Rows;
use crate::table_id::TableId;
use crate::transaction::{FoldPage, RangeObservation, ScanObservation, ScanPage, SpanObservation};

/// Part of a scan's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys and values, in the order of the scan, own changes included.
    pub rows: Rows,
    /// What is left to scan; `None` when the range is exhausted.
    pub rest: Option<KeyRange>,
}

/// Ranges and spans of buckets that a transaction depends on.
#[derive(Default)]
pub(super) struct Scans {
    observed: Vec<ScanObservation>,
    /// Bytes that those take.
    bytes: usize,
    /// The place of the last span of each table and partition.
    last_spans: BTreeMap<(u32, u16), usize>,
}

impl Scans {
    fn push(&mut self, scan: ScanObservation) {
        self.bytes += scan.memory_bytes();
        self.observed.push(scan);
    }

    /// Adds a page of a scan in this direction, to the range before it if it goes on there.
    fn append(&mut self, page: RangeObservation, direction: Direction) {
        let Some(last) = self.observed.last_mut() else {
            return self.push(ScanObservation::Range(page));
        };
        let before = last.memory_bytes();
        let apart = match last {
            ScanObservation::Range(range) => range.append(page, direction),
            ScanObservation::Span(_) => Some(page),
        };
        self.bytes = self.bytes - before + last.memory_bytes();
        if let Some(page) = apart {
            self.push(ScanObservation::Range(page));
        }
    }

    /// Adds a part of a fold, to the part before it if there is one.
    fn append_span(&mut self, part: SpanObservation) {
        let of = (part.table, part.partition);
        let last = self.last_spans.get(&of).and_then(|at| self.observed.get_mut(*at));
        if let Some(ScanObservation::Span(span)) = last
            && span.append(&part)
        {
            return;
        }
        self.last_spans.insert(of, self.observed.len());
        self.push(ScanObservation::Span(part));
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, ScanObservation> {
        self.observed.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.observed.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// The ranges and spans, for validations that share them.
    pub(super) fn into_shared(self) -> Vec<Arc<ScanObservation>> {
        self.observed.into_iter().map(Arc::new).collect()
    }
}

impl Deferred {
    /// The first `limit` rows of a range, or fewer if they are large: one round trip.
    ///
    /// # Errors
    /// As [`Self::get_many`]; [`Misuse::NoSuchTable`](crate::Misuse::NoSuchTable) for a table without order.
    pub fn scan(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Page, Abort> {
        if self.sets_barriers {
            coordinator.set_barrier(table)?;
        }
        self.tidy(coordinator);
        let page = retried(coordinator, self.read_attempts(), |coordinator| {
            coordinator.begin().scan(table, range, direction, limit)
        });
        let ScanPage { rows, complete_to, observations, numbers } = page?;
        self.times.add_scan(coordinator.epoch(), coordinator.version());
        self.observations.extend(observations);
        let scanned = range.up_to(complete_to.clone(), direction);
        let scanned = RangeObservation { table: table.number(), range: scanned, numbers };
        self.scans.append(scanned, direction);
        self.ends_in_latest = false;
        let mut rows =
            self.with_own_writes(table, range, direction, (rows, complete_to.as_deref()));
        let last = if rows.len() > limit {
            rows.truncate(limit);
            rows.last_key().map(<[u8]>::to_vec)
        } else {
            complete_to
        };
        Ok(Page { rest: last.map(|last| range.after(last, direction)), rows })
    }

    /// The number of keys in a range, own changes included: no row is sent.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub fn count(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        range: &KeyRange,
    ) -> Result<u64, Abort> {
        if self.sets_barriers {
            coordinator.set_barrier(table)?;
        }
        let counted = retried(coordinator, self.read_attempts(), |coordinator| {
            coordinator.begin().count(table, range)
        })?;
        let (keys, counted) = counted;
        self.times.add_scan(coordinator.epoch(), coordinator.version());
        self.scans.push(ScanObservation::Range(counted));
        self.ends_in_latest = false;
        let own = self.writes.get(&table).into_iter().flatten();
        let own = own.filter(|(key, _)| is_inside(key, range.bounds()));
        Ok(own.fold(keys, |keys, (_, write)| match (write.existed, &write.value) {
            (true, None) => keys.saturating_sub(1),
            (false, Some(_)) => keys + 1,
            (true, Some(_)) | (false, None) => keys,
        }))
    }

    /// The results of a program on parts of what is left of a table, whose rows this transaction has not written: one round trip. The
    /// parts are all the table when nothing is left.
    ///
    /// # Errors
    /// As [`Self::scan`]; [`Misuse::NoProgram`](crate::Misuse::NoProgram) if a primary does not know the program.
    pub fn fold(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        program: &[u8],
        rest: &mut FoldRest,
    ) -> Result<Vec<Vec<u8>>, Abort> {
        debug_assert!(!self.writes_to(table), "own changes are not in the result");
        if self.sets_barriers {
            coordinator.set_barrier(table)?;
        }
        let page = retried(coordinator, self.read_attempts(), |coordinator| {
            coordinator.begin().fold(table, program, rest)
        });
        let FoldPage { results, spans } = page?;
        self.times.add_scan(coordinator.epoch(), coordinator.version());
        spans.into_iter().for_each(|span| self.scans.append_span(span));
        self.ends_in_latest = false;
        Ok(results)
    }

    /// Depends on what another transaction has scanned in this direction, or folded, too. That one has written nothing.
    pub fn adopt_reads(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        other: Self,
        direction: Direction,
    ) {
        debug_assert!(other.writes.is_empty());
        self.tidy(coordinator);
        self.times.merge(other.times);
        self.observations.extend(other.observations.iter().copied());
        for scan in other.scans.observed {
            match scan {
                ScanObservation::Range(page) => self.scans.append(page, direction),
                ScanObservation::Span(span) => self.scans.append_span(span),
            }
        }
        self.ends_in_latest = false;
    }

    /// Reads rows that no other transaction can reach: commit does not validate them.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn unshared<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let observations = std::mem::take(&mut self.observations);
        let scans = std::mem::take(&mut self.scans);
        let ends_in_latest = self.ends_in_latest;
        let result = read(self);
        (self.observations, self.scans) = (observations, scans);
        self.ends_in_latest = ends_in_latest;
        result
    }

    /// Merges this transaction's changes into rows that are complete up to a key.
    fn with_own_writes(
        &self,
        table: TableId,
        range: &KeyRange,
        direction: Direction,
        (rows, complete_to): (Rows, Option<&[u8]>),
    ) -> Rows {
        let (from, to) = match (direction, complete_to) {
            (_, None) => range.bounds(),
            (Direction::Ascending, Some(last)) => (range.bounds().0, Bound::Included(last)),
            (Direction::Descending, Some(last)) => (Bound::Included(last), range.bounds().1),
        };
        let is_inside = |key: &[u8]| is_inside(key, (from, to));
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let Some(own) = self.writes.get(&table) else { return rows };
        let mut own = own
            .range(first..)
            .take_while(|(key, _)| is_inside(key) || from == Bound::Excluded(key.as_slice()))
            .filter(|(key, _)| is_inside(key))
            .peekable();
        if own.peek().is_none() {
            return rows;
        }
        let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = rows.into_iter().collect();
        for (key, write) in own {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_fold_become_long_spans() {
        let mut scans = Scans::default();
        for first in (0..10_000).step_by(500) {
            for partition in 0..100 {
                let next = first + 500;
                let part = SpanObservation { table: 1, partition, first, next, changes: 2 };
                scans.append_span(part);
            }
        }
        assert_eq!(scans.iter().len(), 300, "three of at most 4,096 buckets for each partition");
        let (mut changes, mut buckets) = (0, 0);
        for scan in scans.iter() {
            let ScanObservation::Span(span) = scan else { panic!("{scan:?}") };
            changes += span.changes;
            buckets += span.next - span.first;
        }
        assert_eq!((changes, buckets), (100 * 20 * 2, 100 * 10_000));
    }

    #[test]
    fn the_bytes_of_scans_are_those_of_each() {
        let page = |from: &[u8], to: &[u8], number| RangeObservation {
            table: 1,
            range: KeyRange {
                from: Bound::Excluded(from.to_vec()),
                to: Bound::Included(to.to_vec()),
            },
            numbers: vec![number; 16],
        };
        let mut scans = Scans::default();
        let pages = [
            page(b"a", b"bb", 7),
            page(b"bb", b"cccc", 7),
            page(b"cccc", b"d", 8),
            page(b"x", b"y", 8),
        ];
        for (page, count) in pages.into_iter().zip([1, 1, 2, 3]) {
            scans.append(page, Direction::Ascending);
            let bytes: usize = scans.iter().map(ScanObservation::memory_bytes).sum();
            assert_eq!((scans.iter().len(), scans.memory_bytes()), (count, bytes));
        }
        let first = ScanObservation::Range(page(b"a", b"cccc", 7));
        assert_eq!(*scans.into_shared()[0], first);
    }
}
