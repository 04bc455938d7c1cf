//! Crowding: when a partition of a table has too few buckets.
//!
//! ```text
//! LOCK for an insert into a chain with two overflow buckets ─┐ every so often: has a sample of the buckets too many rows? ─┐
//! LOCK of a partition with few buckets, refused ─────────────┴ every so often ─────────────────────────────────────────────┴▶ noted
//! ```
//! What is noted is for whoever splits buckets. It is a hint: a note that comes late or is lost costs time alone, and the next one follows.
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
pub(crate) const ENDS_PERCENT: u64 = 100;
/// Buckets from whose rows those of a partition are estimated.
const SAMPLED: u32 = 64;

/// How crowded a partition is.
#[derive(Default)]
pub(crate) struct Crowding {
    /// Inserts into long chains since the last look.
    long: AtomicU32,
    /// Locks that were refused, less those for which a bucket was split.
    met: AtomicU32,
    /// Rows that a transaction is about to insert.
    expected: AtomicU32,
    /// Whether the last bucket that was to be split found no memory.
    is_full: AtomicBool,
    is_noted: AtomicBool,
}

impl Table {
    fn crowding(&self, partition: u16) -> &Crowding {
        &self.crowding[usize::from(partition)]
    }

    /// The partitions that have too few buckets, each once.
    pub fn take_crowded(&self) -> impl Iterator<Item = u16> {
        let numbered = (0..).zip(&self.crowding);
        // Relaxed: whoever notes one sets the node's flag after it.
        let taken = numbered.filter(|(_, it)| {
            it.is_noted.load(Ordering::Relaxed) && it.is_noted.swap(false, Ordering::Relaxed)
        });
        taken.map(|(number, _)| number)
    }

    /// Notes that a partition has too few buckets.
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

    /// Notes that a transaction is about to insert so many rows into a partition. Whether buckets are split for them first.
    pub fn expect_rows(&self, number: u16, rows: u32) -> bool {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else { return false };
        let Some(next) = self.next_split(partition, 0) else { return false };
        // Relaxed: a hint.
        self.crowding(number).expected.fetch_max(rows, Ordering::Relaxed);
        let is_crowded = self.is_crowded((partition, main), number, &next, ENDS_PERCENT);
        if is_crowded {
            self.note_crowded(number);
        } else {
            self.expect_no_more(number);
        }
        is_crowded && !self.crowding(number).is_full.load(Ordering::Relaxed)
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

    /// Whether a partition has, or is about to get, more than so many percent of the rows that its buckets are meant for, as far as the
    /// next that are split tell.
    pub(crate) fn is_crowded(
        &self,
        (partition, main): (&Partition, MainBuckets),
        number: u16,
        &NextSplit { bucket, child: buckets, level }: &NextSplit,
        percent: u64,
    ) -> bool {
        let begun = u64::from(self.layout().buckets) << level;
        let end = u64::from(bucket.saturating_add(SAMPLED)).min(begun);
        let mut sample = (0_u64, 0_u64);
        for number in bucket..u32::try_from(end).unwrap_or(u32::MAX) {
            let Some(address) = self.address_from(partition, main, number) else { continue };
            let bucket = self.bucket(address);
            sample.0 += bucket.read_consistent(|sequence| {
                let mut rows = 0;
                bucket.for_each(sequence, |_| rows += 1);
                rows
            });
            sample.1 += 1;
        }
        let (rows, sampled) = sample;
        let expected = u64::from(self.crowding(number).expected.load(Ordering::Relaxed));
        let rows = u128::from(rows) * u128::from(begun) + u128::from(expected * sampled);
        100 * rows
            > u128::from(percent * self.layout().rows_per_bucket * sampled) * u128::from(buckets)
    }
}
