//! Crowding: when a partition of a table has too few buckets, or too many.
//!
//! ```text
//! LOCK for an insert into a chain with two overflow buckets ─┐ every so often: has a sample of the buckets too many rows? ─┐
//! LOCK of a partition with few buckets, refused ─────────────┴ every so often ─────────────────────────────────────────────┼▶ noted
//! PRIMARY that removes rows ─────────────────────────────────  every so often: has a sample too few rows? ─────────────────┘
//! ```
//! The notes are for the job of the engine that splits and merges buckets. They are hints: a note that comes late or is lost
//! costs time alone, and the next one follows.
//!
//! *Invariants*: nothing is allocated, and no lock is taken.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::growth::{Growth, NextSplit};
use crate::partition::{MainBuckets, Partition};
use crate::table::Table;

/// Refused locks for which one more bucket is split, in a table that has few.
const MEETINGS: u32 = 4;
/// Of the inserts into long chains, for each bucket, after how many a sample of the buckets is looked at: at the number of rows that they
/// are meant for a tenth of the inserts are such.
const BUCKETS_PER_LOOK: u32 = 16;
/// Growth begins at so many rows of those that the buckets are meant for, and ends at so many: a sample of a partition that was laid out
/// for its rows is not taken for a crowded one.
const BEGINS_PERCENT: u64 = 125;
const ENDS_PERCENT: u64 = 100;
/// Splits are late when more are wanted than this part of the buckets that are there.
const LATE_PART: u32 = 4;
/// Buckets are merged while a partition has fewer rows than so many percent of those that they are meant for. Growth begins far from that.
const SPARSE_PERCENT: u64 = 40;
/// Removals between two looks, at least; a power of two.
const REMOVALS_PER_LOOK: u32 = 64;
/// Buckets from whose rows those of a partition are estimated.
const SAMPLED: u32 = 64;
/// Where buckets are split for rows that are expected, they are split for rows that may follow, too: an eighth of those that the present
/// buckets are meant for, but no more than eight times as many as are expected. So most of the transactions that follow meet no splits.
const FOLLOWING: u32 = 8;

/// How crowded a partition is.
#[derive(Default)]
pub(crate) struct Crowding {
    /// Inserts into long chains since the last look.
    long: AtomicU32,
    /// Locks that were refused, less those for which a bucket was split.
    met: AtomicU32,
    /// Rows that a transaction is about to insert.
    expected: AtomicU32,
    /// Updates that have removed rows, and how many of them had by the last look.
    removed: AtomicU32,
    looked_at: AtomicU32,
    /// The number of buckets that was asked for, in place of what the rows need; 0 = none.
    asked: AtomicU32,
    /// Whether the last bucket that was to be split found no memory.
    is_full: AtomicBool,
    /// Whether the last look has found too few rows.
    is_sparse: AtomicBool,
    is_noted: AtomicBool,
}

impl Table {
    fn crowding(&self, partition: u16) -> &Crowding {
        &self.crowding[usize::from(partition)]
    }

    /// The partitions that have too few buckets, or too many, each once.
    pub fn take_crowded(&self) -> impl Iterator<Item = u16> {
        let numbered = (0..).zip(&self.crowding);
        // Relaxed: the thread that notes a partition sets the node's flag afterwards.
        let taken = numbered.filter(|(_, it)| {
            it.is_noted.load(Ordering::Relaxed) && it.is_noted.swap(false, Ordering::Relaxed)
        });
        taken.map(|(number, _)| number)
    }

    /// Notes that a partition has too few buckets, or too many.
    pub fn note_crowded(&self, partition: u16) {
        if !self.crowding(partition).is_noted.swap(true, Ordering::Relaxed) {
            self.arena().note_crowded();
        }
    }

    /// Notes that a row was inserted into a long chain.
    #[cold]
    pub(crate) fn note_long(&self, number: u16) {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else { return };
        let Some(next) = self.next_split(partition, 0) else { return };
        let long = &self.crowding(number).long;
        // Relaxed: a count.
        if long.fetch_add(1, Ordering::Relaxed) < next.child / BUCKETS_PER_LOOK {
            return;
        }
        long.store(0, Ordering::Relaxed);
        if self.is_crowded((partition, main), number, &next, BEGINS_PERCENT) {
            self.note_crowded(number);
        }
    }

    /// Notes that an update has removed rows.
    #[inline]
    pub(crate) fn note_removed(&self, number: u16) {
        let removed = &self.crowding(number).removed;
        // Relaxed, and in two steps: a hint, which may lose some.
        let count = removed.load(Ordering::Relaxed).wrapping_add(1);
        removed.store(count, Ordering::Relaxed);
        if count.is_multiple_of(REMOVALS_PER_LOOK) {
            self.look_for_merges(number, count);
        }
    }

    /// Updates that have removed rows of a partition.
    #[must_use]
    pub fn removals(&self, number: u16) -> u32 {
        self.crowding(number).removed.load(Ordering::Relaxed)
    }

    /// Whether a number of buckets is asked for.
    #[must_use]
    pub fn is_asked(&self, number: u16) -> bool {
        self.crowding(number).asked.load(Ordering::Relaxed) > 0
    }

    #[cold]
    fn look_for_merges(&self, number: u16, removed: u32) {
        let born = self.partition(number).and_then(Partition::growth).map(Growth::born);
        let crowding = self.crowding(number);
        let since = removed.wrapping_sub(crowding.looked_at.load(Ordering::Relaxed));
        let Some(born) = born.filter(|born| since >= born / BUCKETS_PER_LOOK) else { return };
        crowding.looked_at.store(removed, Ordering::Relaxed);
        let fewer = |met: u32| met.checked_sub(1);
        if self.layout().spreads(born)
            && crowding.met.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
        {
            // Its few buckets would be split again.
            return;
        }
        crowding.is_sparse.store(true, Ordering::Relaxed);
        if self.merges_wanted(number) > 0 {
            self.note_crowded(number);
        }
    }

    /// How many buckets of a partition are to be merged into others for the rows that it has, or is about to get.
    #[must_use]
    pub fn merges_wanted(&self, number: u16) -> u32 {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else { return 0 };
        let (roots, born) = (self.layout().buckets, self.born_end(number));
        let asked = self.crowding(number).asked.load(Ordering::Relaxed);
        if asked > 0 {
            return born.saturating_sub(asked.max(roots));
        }
        let is_sparse = &self.crowding(number).is_sparse;
        if born <= roots || !is_sparse.load(Ordering::Relaxed) {
            return 0;
        }
        let Some(next) = self.next_split(partition, 0) else { return 0 };
        let wanted = self.buckets_wanted((partition, main), number, &next, SPARSE_PERCENT);
        let wanted = born.saturating_sub(u32::try_from(wanted).unwrap_or(u32::MAX).max(roots));
        if wanted == 0 {
            is_sparse.store(false, Ordering::Relaxed);
        }
        wanted
    }

    /// No halves are merged until further rows have gone.
    pub fn want_no_merges(&self, number: u16) {
        self.crowding(number).is_sparse.store(false, Ordering::Relaxed);
    }

    /// Asks for so many buckets of a partition, in place of as many as its rows need; 0 ends that.
    pub fn want_buckets(&self, number: u16, buckets: u32) {
        self.crowding(number).asked.store(buckets, Ordering::Relaxed);
        self.note_crowded(number);
    }

    /// Notes that a transaction is about to insert so many rows into a partition. Whether buckets are split for them first.
    pub fn expect_rows(&self, number: u16, rows: u32) -> bool {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else { return false };
        let Some(next) = self.next_split(partition, 0) else { return false };
        if self.barrier_count(number) > 0 {
            // No bucket is split behind it.
            return false;
        }
        // What has been removed before makes room for these.
        self.want_no_merges(number);
        // Relaxed: a hint.
        self.crowding(number).expected.fetch_max(rows, Ordering::Relaxed);
        let is_crowded = self.is_crowded((partition, main), number, &next, ENDS_PERCENT);
        if is_crowded {
            let following = self.rows_that_may_follow(rows, next.child);
            self.crowding(number).expected.fetch_max(following, Ordering::Relaxed);
            self.note_crowded(number);
        } else {
            self.expect_no_more(number);
        }
        is_crowded && !self.crowding(number).is_full.load(Ordering::Relaxed)
    }

    /// For how many rows buckets are split where so many are expected of a partition with so many buckets.
    fn rows_that_may_follow(&self, rows: u32, buckets: u32) -> u32 {
        let meant = u64::from(buckets) * self.layout().rows_per_bucket / u64::from(FOLLOWING);
        let meant = u32::try_from(meant).unwrap_or(u32::MAX);
        rows.max(meant.min(rows.saturating_mul(FOLLOWING)))
    }

    /// Notes whether a bucket that was to be split has found memory. Rows go on into overflow buckets if not.
    pub(crate) fn note_full(&self, number: u16, is_full: bool) {
        let crowding = self.crowding(number);
        if crowding.is_full.load(Ordering::Relaxed) != is_full {
            crowding.is_full.store(is_full, Ordering::Relaxed);
        }
    }

    /// There are buckets enough for the rows that were expected.
    pub(crate) fn expect_no_more(&self, number: u16) {
        self.crowding(number).expected.store(0, Ordering::Relaxed);
    }

    /// Notes that the lock of a bucket was refused.
    #[cold]
    pub(crate) fn note_met(&self, number: u16) {
        let growth = self.partition(number).and_then(Partition::growth);
        let buckets = growth.map_or(self.layout().buckets, Growth::born);
        if self.layout().spreads(buckets)
            && self.crowding(number).met.fetch_add(1, Ordering::Relaxed) + 1 >= MEETINGS
        {
            self.note_crowded(number);
        }
    }

    /// Whether so many locks of a partition with few buckets were met that one more bucket is split. They count once.
    pub(crate) fn is_hot(&self, number: u16, buckets: u32) -> bool {
        let met = &self.crowding(number).met;
        let fewer = |met: u32| met.checked_sub(MEETINGS);
        self.layout().spreads(buckets)
            && met.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok()
    }

    /// How many buckets of a partition are to be split for the rows that it has, or is about to get.
    #[must_use]
    pub fn splits_wanted(&self, number: u16) -> u32 {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else { return 0 };
        let Some(next) = self.next_split(partition, 0) else { return 0 };
        let asked = self.crowding(number).asked.load(Ordering::Relaxed);
        if asked > 0 {
            return asked.saturating_sub(next.child);
        }
        let wanted = self.buckets_wanted((partition, main), number, &next, ENDS_PERCENT);
        u32::try_from(wanted.saturating_sub(next.child.into())).unwrap_or(u32::MAX)
    }

    /// Whether so many splits are wanted that the chains of a partition become long.
    #[must_use]
    pub fn is_late(&self, number: u16, splits: u32) -> bool {
        let growth = self.partition(number).and_then(Partition::growth);
        let buckets = growth.map_or(self.layout().buckets, Growth::born);
        splits > buckets / LATE_PART
    }

    /// Whether a partition has, or is about to get, more than so many percent of the rows that its buckets are meant for.
    fn is_crowded(
        &self,
        of_partition: (&Partition, MainBuckets),
        number: u16,
        next: &NextSplit,
        percent: u64,
    ) -> bool {
        self.buckets_wanted(of_partition, number, next, percent) > next.child.into()
    }

    /// How many buckets are meant for the rows that a partition has, or is about to get, as far as the next that are split tell, if each may
    /// have so many percent of its rows.
    fn buckets_wanted(
        &self,
        (partition, main): (&Partition, MainBuckets),
        number: u16,
        &NextSplit { bucket, level, .. }: &NextSplit,
        percent: u64,
    ) -> u64 {
        let begun = u64::from(self.layout().buckets) << level;
        let end = u64::from(bucket.saturating_add(SAMPLED)).min(begun);
        let mut sample = (0_u64, 0_u64);
        for number in bucket..u32::try_from(end).unwrap_or(u32::MAX) {
            let Some(address) = self.address_from(partition, main, number) else { continue };
            let bucket = self.bucket(address);
            sample.0 += bucket.read_consistent(|sequence| bucket.rows(sequence));
            sample.1 += 1;
        }
        let (rows, sampled) = sample;
        let expected = u64::from(self.crowding(number).expected.load(Ordering::Relaxed));
        let rows = u128::from(rows) * u128::from(begun) + u128::from(expected * sampled);
        let meant = u128::from(percent * self.layout().rows_per_bucket * sampled);
        u64::try_from((100 * rows).div_ceil(meant.max(1))).unwrap_or(u64::MAX)
    }
}
