//! FOLD: the rows of consecutive buckets of a heap table, each bucket as it was at one moment, and what tells whether they have changed.
//!
//! ```text
//! buckets  n, n + 1, ... of a partition ──▶ rows, in no order │ changes: the sum of the buckets' counts
//! ```
//! Counts of buckets never fall (`growth.rs`). So the sum over some buckets is the same as long as each of them is: their rows are as they
//! were. A split raises the count of the bucket that rows leave, and that bucket is in the span if its rows were folded. A merge raises that of
//! both: rows go to a bucket that was folded before, which has changed then.
//!
//! *Source*: `docs/protocol.md`, "Folds".
//!
//! *Not here*: what is computed of the rows, which is the caller's.

use gannet_rules::rule;

use crate::arena::LINE_WORDS;
use crate::growth::count_of;
use crate::heap::Row;
use crate::owner::Owner;
use crate::table::Table;
use crate::validate::Validation;

/// Buckets between the prefetch of a bucket's header and its rows, and between that of its rows and their use.
const BUCKETS_AHEAD: u32 = 8;

/// Scratch space for the rows of a bucket; used again and again.
#[derive(Default)]
pub struct FoldedBucket {
    bytes: Vec<u8>,
    /// Of each row where its value begins, and where it ends.
    ends: Vec<(usize, usize)>,
}

impl FoldedBucket {
    /// The keys and values.
    pub fn rows(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        let rows = self.ends.iter().zip(starts);
        rows.map(|(&(value, end), start)| (&self.bytes[start..value], &self.bytes[value..end]))
    }

    /// How many rows there are.
    #[must_use]
    pub fn row_count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Consecutive buckets that were folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoldedSpan {
    /// The first bucket that was not.
    pub next: u32,
    /// By which [`Table::validate_span`] tells whether they have changed.
    pub changes: u64,
    /// Whether a bucket that another transaction holds comes next.
    pub is_next_locked: bool,
}

impl Table {
    /// Visits buckets of `partition` of a table with byte-string keys from `first` on, for the transaction `reader`, until there are no
    /// more, or one is held by another transaction, or `visit`, which gets the rows of each bucket, wants no more.
    ///
    /// A partition that this node does not hold has no rows.
    pub fn fold(
        &self,
        partition: u16,
        first: u32,
        reader: Owner,
        rows: &mut FoldedBucket,
        mut visit: impl FnMut(&FoldedBucket) -> bool,
    ) -> FoldedSpan {
        let mut span = FoldedSpan { next: first, changes: 0, is_next_locked: false };
        let end = if self.has_partition(partition) { self.bucket_count(partition) } else { 0 };
        for bucket in first..end.min(first.saturating_add(2 * BUCKETS_AHEAD)) {
            self.prefetch_bucket(partition, bucket);
        }
        for bucket in first..end.min(first.saturating_add(BUCKETS_AHEAD)) {
            self.prefetch_rows(partition, bucket);
        }
        while span.next < end {
            self.prefetch_bucket(partition, span.next.saturating_add(2 * BUCKETS_AHEAD));
            self.prefetch_rows(partition, span.next.saturating_add(BUCKETS_AHEAD));
            self.prefetch_chain(partition, span.next.saturating_add(BUCKETS_AHEAD / 2));
            let Some(count) = self.copy_bucket(partition, span.next, reader, rows) else {
                span.is_next_locked = true;
                break;
            };
            span.changes = span.changes.wrapping_add(count);
            span.next += 1;
            if !visit(rows) {
                break;
            }
        }
        span
    }

    /// Whether buckets of `partition` that were folded are as they were, for the transaction `owner`.
    #[must_use]
    pub fn validate_span(
        &self,
        partition: u16,
        (first, next): (u32, u32),
        changes: u64,
        owner: Owner,
    ) -> Validation {
        let mut found: u64 = 0;
        for number in first..next {
            self.prefetch_bucket(partition, number.saturating_add(2 * BUCKETS_AHEAD));
            let Some(address) = self.bucket_address(partition, number) else {
                found = found.wrapping_add(self.count_at(partition, number));
                continue;
            };
            let bucket = self.bucket(address);
            // The owner first: a writer that has freed the bucket has stored its version before.
            if bucket.owner().excludes(owner) {
                return Validation::Locked;
            }
            found = found.wrapping_add(match count_of(bucket.version()) {
                0 => self.count_at(partition, number),
                count => count,
            });
        }
        if found == changes || !rule!(FOLDED_CHANGES) {
            Validation::Unchanged
        } else {
            Validation::Changed
        }
    }

    /// Copies the rows of a bucket; its count. None if another transaction holds the bucket.
    fn copy_bucket(
        &self,
        partition: u16,
        number: u32,
        reader: Owner,
        rows: &mut FoldedBucket,
    ) -> Option<u64> {
        let FoldedBucket { bytes, ends } = rows;
        let Some(address) = self.bucket_address(partition, number) else {
            bytes.clear();
            ends.clear();
            return Some(self.count_at(partition, number));
        };
        let bucket = self.bucket(address);
        let count = bucket.read_consistent(|sequence| {
            bytes.clear();
            ends.clear();
            if bucket.owner().excludes(reader) {
                return None;
            }
            bucket.for_each(sequence, |slot| {
                let row = Row::of(self.arena(), slot);
                let start = bytes.len();
                row.copy(bytes);
                // A torn row may have fewer bytes than its key should.
                ends.push((bytes.len().min(start + row.key_bytes()), bytes.len()));
            });
            Some(count_of(bucket.version()))
        });
        match count {
            // It is not born: it counts as the bucket that has its keys.
            Some(0) => {
                let count = self.count_at(partition, number);
                let is_born = bucket.read_consistent(|_| bucket.version()) != 0;
                if is_born {
                    self.copy_bucket(partition, number, reader, rows)
                } else {
                    Some(count)
                }
            }
            count => count,
        }
    }

    /// Prefetches the lines of a main bucket, if there is one of that number.
    pub(crate) fn prefetch_bucket(&self, partition: u16, number: u32) {
        if let Some(address) = self.bucket_address(partition, number) {
            let first = address.first_word();
            for word in (first..first + self.layout().main_words).step_by(LINE_WORDS) {
                self.arena().prefetch(word);
            }
        }
    }

    /// Prefetches the rows of a main bucket that has arrived, and its first overflow bucket.
    fn prefetch_rows(&self, partition: u16, number: u32) {
        if let Some(address) = self.bucket_address(partition, number) {
            self.bucket(address).prefetch_rows();
        }
    }

    /// Prefetches the rows of a first overflow bucket that has arrived.
    fn prefetch_chain(&self, partition: u16, number: u32) {
        if let Some(address) = self.bucket_address(partition, number) {
            self.bucket(address).prefetch_overflow_rows();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::changing_rows::{OWNER, Rows};
    use crate::{HashSeed, Lock, LockMode};

    /// The keys of a table that are folded in spans of so many buckets, and the spans.
    fn folded(table: &Table, buckets: usize) -> (Vec<Vec<u8>>, Vec<(u32, FoldedSpan)>) {
        let (mut keys, mut spans) = (Vec::new(), Vec::new());
        let (mut rows, mut first) = (FoldedBucket::default(), 0);
        while first < table.bucket_count(0) {
            let mut left = buckets;
            let span = table.fold(0, first, OWNER, &mut rows, |rows| {
                keys.extend(rows.rows().map(|(key, _)| key.to_vec()));
                left -= 1;
                left > 0
            });
            spans.push((first, span));
            first = span.next;
        }
        (keys, spans)
    }

    proptest! {
        #[test]
        fn folds_have_each_row_once_and_are_valid_until_one_changes(
            changes in proptest::collection::vec((0_usize..16, 0_u8..7), 0..60),
            seen_at in 0_usize..60,
            buckets in 1_usize..5,
        ) {
            let mut rows = Rows::new();
            let mut changes = (1..).zip(changes);
            for (step, (key, kind)) in changes.by_ref().take(seen_at) {
                rows.change(key, kind, step);
            }
            let (mut keys, spans) = folded(&rows.table, buckets);
            let there = rows.keys.iter().zip(&rows.is_there).filter(|(_, is_there)| **is_there);
            let expected: BTreeSet<Vec<u8>> = there.map(|(key, _)| key.clone()).collect();
            keys.sort();
            prop_assert!(keys.iter().eq(&expected));
            let versions = |rows: &Rows| -> Vec<u64> {
                (0..rows.keys.len()).map(|key| rows.address(key).2).collect()
            };
            let before = versions(&rows);
            for (step, (key, kind)) in changes {
                rows.change(key, kind, step);
            }
            let are_valid = spans.iter().all(|(first, span)| {
                let found = rows.table.validate_span(0, (*first, span.next), span.changes, OWNER);
                found == Validation::Unchanged
            });
            prop_assert_eq!(are_valid, before == versions(&rows));
        }
    }

    #[test]
    fn a_bucket_that_another_transaction_holds_ends_a_span() {
        let mut rows = Rows::new();
        rows.change(0, 1, 1);
        let (_, spans) = folded(&rows.table, 1);
        let other = Owner(OWNER.0 + 1);
        let (key, address) = (&rows.keys[0], rows.address(0).0);
        let locked =
            rows.table.lock_row(address, HashSeed::ZERO.hashed(key), other, (LockMode::Update, 4));
        assert!(matches!(locked, Lock::Granted { .. }));
        let fold = |reader| rows.table.fold(0, 0, reader, &mut FoldedBucket::default(), |_| true);
        let FoldedSpan { next, is_next_locked, .. } = fold(OWNER);
        assert_eq!((next, is_next_locked), (0, true));
        assert!(!fold(other).is_next_locked);
        let (first, span) = spans[0];
        let validated = rows.table.validate_span(0, (first, span.next), span.changes, OWNER);
        assert_eq!(validated, Validation::Locked);
    }
}
