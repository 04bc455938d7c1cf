//! From rows to buckets: versions and locks belong to buckets, so all later phases work on them.
//!
//! Rule C2: all observations of one bucket by one transaction must agree, whether they were reads or
//! locks, and in whatever round of execute they were made. Where rows have stamps, observations that differ are doubtful, and are
//! validated by row. A transaction that locks nothing does not compare them: each is validated, and of two observations that differ
//! at least one is no longer valid, or is validated by row.

use std::hint::select_unpredictable;
use std::ops::Range;

use gannet_rules::rule;
use gannet_storage::Partitioning;

use crate::by_number::{SLOTS_MAX, slot_of};
use crate::outcome::{Abort, Conflict, Misuse, RowProblem};
use crate::transaction::access_set::{AccessSet, Row, RowState};
use crate::transaction::{Scratch, Transaction};
use crate::view::View;

/// The rows of one bucket: a range of `Scratch::order`, which is empty where nothing is to be locked.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketGroup {
    start: usize,
    end: usize,
    /// One of its rows. All have the same bucket, and the version of the bucket as it was locked if it was.
    pub(super) row: u32,
}

impl BucketGroup {
    fn new(Range { start, end }: Range<usize>, row: u32) -> Self {
        Self { start, end, row }
    }

    /// The group's part of `order`.
    pub(super) fn range(self) -> Range<usize> {
        self.start..self.end
    }
}

impl Row {
    /// Table, partition and bucket, in one number that orders by them. The slot stands for the table: a transaction with rows of two
    /// tables of one slot has rows of a table that was dropped, and does not come so far.
    #[inline(always)]
    fn bucket_id(&self) -> u64 {
        const PARTITION_BITS: u32 = Partitioning::PARTITIONS_MAX.ilog2();
        const { assert!(SLOTS_MAX.ilog2() + PARTITION_BITS + u32::BITS <= u64::BITS) };
        let slot = slot_of(self.table) as u64;
        (slot << PARTITION_BITS | u64::from(self.location.partition)) << u32::BITS
            | u64::from(self.bucket)
    }

    #[inline(always)]
    fn is_observed(&self) -> bool {
        matches!(self.state, RowState::Found | RowState::Absent | RowState::Granted)
    }
}

impl Transaction<'_> {
    /// Sorts the rows that were answered into groups of one bucket each: those of the buckets that this transaction holds, and of
    /// those that it has only read.
    ///
    /// # Errors
    /// [`Conflict::Changed`] if two observations of a bucket differ, [`Misuse::Row`] for a key that is
    /// in the write set twice.
    pub(super) fn group_buckets(&mut self) -> Result<(), Abort> {
        let AccessSet { rows, values, .. } = &self.set;
        let Scratch { order, held, read, are_doubtful, .. } = &mut self.scratch;
        *are_doubtful = false;
        order.clear();
        held.clear();
        read.clear();
        let observed = rows.iter().zip(0..).filter(|(row, _)| row.is_observed());
        if rows.iter().all(|row| row.mode.is_none()) {
            let mut last = None;
            for (row, index) in observed {
                let seen = Some((row.bucket_id(), row.version));
                if seen != last {
                    read.push(BucketGroup::new(0..0, index));
                }
                last = seen;
            }
            return Ok(());
        }
        order.extend(observed.map(|(row, index)| (row.bucket_id(), index)));
        if order.len() > 1 {
            order.sort_unstable();
        }
        let same = |a: &(u64, u32), b: &(u64, u32)| a.0 == b.0 && rule!(ONE_UNIT);
        let mut start = 0;
        for bucket in order.chunk_by(same) {
            let mut differ = false;
            for end in 2..=bucket.len() {
                differ |= check_row(rows, values, &bucket[..end], &self.view)?;
            }
            let end = start + bucket.len();
            // Without a branch: the processor could not predict which rows are locked.
            let holds = |row: u32| rows[row as usize].state == RowState::Granted;
            let is_held = bucket.iter().fold(false, |is_held, &(_, row)| is_held | holds(row));
            let mut first = bucket[0].1;
            if differ {
                *are_doubtful = true;
                // A unit is based on the version that the lock returned, and on none that was read before.
                let locked = bucket.iter().map(|(_, row)| *row).find(|row| holds(*row));
                first = locked.filter(|_| rule!(GRANTED_BASE)).unwrap_or(first);
            }
            let groups = select_unpredictable(is_held, &mut *held, &mut *read);
            groups.push(BucketGroup::new(start..end, first));
            start = end;
        }
        Ok(())
    }
}

/// Checks the last row of a group against those before it: whether it differs from one, and is to be validated by row. Keys of heap
/// tables, which lie in `values`, may have one hash.
fn check_row(
    rows: &[Row],
    values: &[u8],
    group: &[(u64, u32)],
    view: &View,
) -> Result<bool, Abort> {
    let Some((&(_, last), before)) = group.split_last() else { return Ok(false) };
    let last = &rows[last as usize];
    let mut differs = false;
    for &(_, other) in before {
        let other = &rows[other as usize];
        if other.version != last.version && rule!(C2) {
            if !view.has_stamps(last.table) {
                return Err(Conflict::Changed.into());
            }
            differs = true;
        }
        let is_same_key =
            || other.key == last.key && values[other.key_range()] == values[last.key_range()];
        if last.mode.is_some() && other.mode.is_some() && is_same_key() {
            let (key, problem) = (last.named(values), RowProblem::AddedTwice);
            return Err(Misuse::Row { table: last.table, key, problem }.into());
        }
    }
    Ok(differs)
}
