//! Shrinking: halves of buckets of a partition that has few rows are merged again, a few at a time, while transactions go on.
//!
//! ```text
//! bucket n       (l + 1, a) ─┐                     (l, max(a, b) + 1)   with the rows of both, which keep their stamps
//! its last half  (l + 1, b) ─┴─ one unit, of n ─▶  not born
//! ```
//! A *merge* is a unit of change on bucket n, which its transaction has locked together with the half. The merged bucket takes a version above
//! both, and the larger of both deletion marks: what was observed of either of them is validated by row. The unit has the rows of the
//! half. A copy whose half has version b moves its own, which are the same, and takes no memory for them. A learner, whose half may not be
//! copied, takes them from the unit: the half will not be copied any more.
//!
//! The primary merges in the reverse order of the splits, the half with the largest number first.
//!
//! *Source*: `docs/protocol.md`, "Shrinking".
//!
//! *Invariants*: no bucket that is locked is merged by another transaction, and none behind a scan barrier. A partition keeps its roots.
//!
//! *Not here*: when a partition has too many buckets (`crowding.rs`); what becomes of the memory (`chunks.rs`).

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::bucket_update::{BucketUpdate, BucketUpdateWriter, Half, Item};
use crate::chunks::CHUNK_BUCKETS;
use crate::growth::{LEVEL_MAX, LEVEL_SHIFT, Reshaping, after_merge, count_of, level_of};
use crate::iterate::BucketSnapshot;
use crate::key::HashedKey;
use crate::layout::TableKind;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::sync::Ordering;
use crate::table::Table;
use gannet_rules::rule;

/// No bucket changes so often: the count of the merged bucket would not fit.
const COUNT_MAX: u64 = (1 << LEVEL_SHIFT) - 1;
/// Bytes of the stamp that a row of a heap table has before its value, where it goes to another copy.
const STAMP_BYTES: usize = 8;

/// The half that is to be merged next, the bucket that it was split off from, and the level of both.
struct NextMerge {
    bucket: u32,
    half: u32,
    level: u32,
}

impl Table {
    /// How often halves of buckets of a partition were merged here.
    #[must_use]
    pub fn merge_count(&self, partition: u16) -> u32 {
        let growth = self.partition(partition).and_then(Partition::growth);
        growth.map_or(0, |growth| growth.merges.load(Ordering::Acquire))
    }

    /// The number of the half that a bucket of this version was split into last.
    #[must_use]
    pub fn half_of(&self, bucket: u32, version: u64) -> Option<u32> {
        let level = level_of(version).checked_sub(1).filter(|level| *level < LEVEL_MAX)?;
        let distance = u64::from(self.layout().buckets) << level;
        let half = u32::try_from(u64::from(bucket) + distance).ok()?;
        (u64::from(bucket) < distance).then_some(half)
    }

    /// Whether a unit can merge a half into its bucket, and its rows are of the merged bucket.
    pub(crate) fn fits_merge(&self, unit: &BucketUpdate<'_>) -> bool {
        let half = unit.half();
        let are_halves = level_of(half.version) == level_of(unit.base_version)
            && count_of(half.version) < COUNT_MAX
            && self.half_of(unit.bucket, unit.base_version).is_some();
        let version = after_merge(unit.base_version, half.version);
        let stamp_bytes = if self.layout().kind == TableKind::Fixed { 0 } else { STAMP_BYTES };
        let is_row = |item: Item<'_>| {
            let Item::Put { key, value } = item else { return false };
            let location = self.locate(key.word());
            let place = (location.partition, self.bucket_at(location, version));
            let fits = value.get(stamp_bytes..).is_some_and(|value| self.fits(key, value));
            fits && place == (unit.partition, unit.bucket)
        };
        let mut items = unit.items();
        are_halves && items.by_ref().all(is_row) && items.is_at_end()
    }

    /// Locks the half of a partition that is to be merged next, or the one that comes `behind` so many others, and its bucket, for `owner`; and
    /// takes the room that the rows need.
    pub fn lock_to_merge(&self, number: u16, behind: u32, owner: Owner) -> Reshaping {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((partition, main)) = self.partition(number).and_then(served) else {
            return Reshaping::Enough;
        };
        if self.barrier_count(number) > 0 {
            // The scan that has waited behind it would begin again.
            return Reshaping::Locked;
        }
        let Some(merge) = self.next_merge(number, behind) else { return Reshaping::Enough };
        let merge = self.last_split_of(number, merge);
        let address = |bucket| self.address_from(partition, main, bucket);
        let (Some(bucket), Some(half)) = (address(merge.bucket), address(merge.half)) else {
            self.note_dead(number);
            return Reshaping::Locked;
        };
        let (bucket, half) = (self.bucket(bucket), self.bucket(half));
        if !self.acquire_both([half, bucket], owner, number) {
            return Reshaping::Locked;
        }
        let (version, half_version) = (bucket.version(), half.version());
        let merging = if level_of(version) != merge.level || level_of(half_version) != merge.level {
            // The extent is ahead of what was merged, or behind what was split.
            self.note_dead(number);
            self.note_born(number, merge.half);
            Reshaping::Locked
        } else if !self.make_room_for_rows((bucket, half), number, self.layout().quota) {
            Reshaping::Full
        } else {
            self.arena().locks().granted(owner, number);
            self.arena().locks().granted(owner, number);
            return Reshaping::Granted { bucket: merge.bucket, version };
        };
        half.release();
        bucket.release();
        merging
    }

    /// Frees the locks that [`Self::lock_to_merge`] has got for `owner`.
    pub fn unlock_merge(&self, partition: u16, (bucket, version): (u32, u64), owner: Owner) {
        for number in self.half_of(bucket, version).into_iter().chain([bucket]) {
            if let Some(address) = self.bucket_address(partition, number) {
                self.bucket(address).write(|next| self.bucket(address).trim(next, || partition));
                let _ = self.unlock(address, partition, owner);
            }
        }
    }

    /// The half that is merged when so many behind it have been.
    fn next_merge(&self, number: u16, behind: u32) -> Option<NextMerge> {
        let roots = self.layout().buckets;
        let half = self.born_end(number).checked_sub(behind.checked_add(1)?)?;
        let split = half.checked_div(roots)?.checked_ilog2()?;
        Some(NextMerge { bucket: half - (roots << split), half, level: split + 1 })
    }

    /// One more than the largest number of a bucket that is born. Merges beside a split may have left out some before it.
    pub(crate) fn born_end(&self, number: u16) -> u32 {
        let growth = self.partition(number).and_then(Partition::growth);
        let Some(growth) = growth else { return self.layout().buckets };
        let is_born = |bucket: &u32| {
            let address = self.bucket_address(number, *bucket);
            address.is_some_and(|address| self.version(address) != 0)
        };
        let born = growth.born();
        let last = (born..self.bucket_count(number)).rev().find(is_born);
        last.map_or(born, |last| last + 1)
    }

    /// Where the bucket or the half was split further, as the extent lags behind, the half of that split.
    fn last_split_of(&self, number: u16, mut merge: NextMerge) -> NextMerge {
        let version = |bucket| self.bucket_address(number, bucket).map(|it| self.version(it));
        while let Some((bucket, version)) = [merge.half, merge.bucket]
            .into_iter()
            .filter_map(|bucket| Some((bucket, version(bucket)?)))
            .find(|(_, version)| level_of(*version) > merge.level)
        {
            let Some(half) = self.half_of(bucket, version) else { break };
            merge = NextMerge { bucket, half, level: level_of(version) };
        }
        merge
    }

    /// Has a bucket take the rows of a half; both are locked, or nobody locks them. Whether there is memory.
    fn make_room_for_rows(
        &self,
        (bucket, half): (Bucket<'_>, Bucket<'_>),
        partition: u16,
        quota: Quota,
    ) -> bool {
        let rows = half.read_consistent(|sequence| half.rows(sequence));
        bucket.write(|next| {
            let has_room = bucket.make_room(next, (rows, partition), quota);
            if !has_room {
                bucket.trim(next, || partition);
            }
            has_room
        })
    }

    /// Appends the unit that merges the half of a bucket into it. The transaction has locked both.
    ///
    /// # Panics
    /// If the bucket of that version was never split.
    pub fn write_merge(
        &self,
        (table, partition, bucket): (u32, u16, u32),
        version: u64,
        owner: Owner,
        (snapshot, out): (&mut BucketSnapshot, &mut Vec<u8>),
    ) {
        let half = self.half_of(bucket, version).expect("a bucket that was split");
        self.snapshot(partition, half, snapshot);
        let unit = BucketUpdateWriter::begin(out, (table, partition, bucket), version, owner);
        let half = Half { version: snapshot.version, deleted: snapshot.deleted() };
        let mut unit = unit.merge(half);
        snapshot.write_rows(self, &mut unit);
        unit.finish();
    }

    /// Merges the half of a bucket inside the bucket's write: installs the unit's next version.
    pub(crate) fn merge(&self, (bucket, next): (Bucket<'_>, &mut u64), unit: &BucketUpdate<'_>) {
        let Half { version: half_version, deleted } = unit.half();
        let version = after_merge(unit.base_version, half_version);
        let number = self.half_of(unit.bucket, unit.base_version);
        let number = number.expect("a merge of a bucket that was split");
        let half = self.bucket_address(unit.partition, number);
        let has_moved = half.is_some_and(|half| {
            let half = self.bucket(half);
            half.write(|half_next| {
                let moves = half.version() == half_version;
                if moves {
                    let rows = (half.rows(held(*half_next)), unit.partition);
                    let has_room = bucket.make_room(next, rows, Quota::Decided);
                    assert!(has_room, "table {}: decided merges fit the memory limit", self.name());
                    half.move_rows(*half_next, (bucket, *next), |_| true);
                    self.end_bucket((half, half_next), unit.partition, unit.owner);
                }
                moves
            })
        });
        if !has_moved {
            // As in a copy: before the rows come to the index.
            let _ended = self.end_halves(unit.partition, (unit.bucket, version), unit.owner);
            for item in unit.items() {
                let Item::Put { key, value } = item else { continue };
                let stamped = self.stamped(value);
                self.put_decided(bucket, next, (unit.owner, key), stamped);
            }
        }
        bucket.trim(next, || unit.partition);
        if rule!(MERGED_MARKS) {
            bucket.store_deleted(bucket.deleted().max(deleted));
        }
        let is_above = rule!(MERGED_VERSION);
        let next_version = unit.base_version + 1 - (1 << LEVEL_SHIFT);
        bucket.store_version(if is_above { version } else { next_version });
    }

    /// The stamp and the value of a row that a unit has as it is at another copy.
    pub(crate) fn stamped<'v>(&self, value: &'v [u8]) -> (u64, &'v [u8]) {
        if self.layout().kind == TableKind::Fixed {
            return (0, value);
        }
        let (stamp, value) = value.split_first_chunk().expect("a copied row's stamp");
        (u64::from_le_bytes(*stamp), value)
    }

    /// Has a bucket be not born, and takes out the rows that it has left; inside its write.
    fn end_bucket(&self, (bucket, next): (Bucket<'_>, &mut u64), partition: u16, owner: Owner) {
        for (word, bytes) in self.keys_of(bucket, held(*next)) {
            self.take_out(bucket, *next, (owner, HashedKey::from_parts(word, &bytes)), 0);
        }
        bucket.trim(next, || partition);
        bucket.store_deleted(0);
        bucket.store_version(0);
    }

    /// What follows a merge of the half of a bucket: its lock is free, and it is forgotten.
    pub(crate) fn end_merge(&self, unit: &BucketUpdate<'_>, is_primary: bool) {
        let Some(number) = self.half_of(unit.bucket, unit.base_version) else { return };
        if let Some(growth) = self.partition(unit.partition).and_then(Partition::growth) {
            // Release: a validation that sees another count has perhaps missed rows. The count rises before the half's lock
            // is released, on which `validate_whole` relies.
            growth.merges.fetch_add(1, Ordering::Release);
        }
        self.release_half(unit, number, is_primary);
        self.forget_halves(unit.partition, vec![number]);
    }

    /// Frees the lock of a half that is split off or merged by a unit. At a primary it is counted.
    pub(crate) fn release_half(&self, unit: &BucketUpdate<'_>, half: u32, is_primary: bool) {
        let half = self.bucket_address(unit.partition, half).map(|half| self.bucket(half));
        if let Some(half) = half.filter(|half| half.owner() == unit.owner) {
            half.release();
            if is_primary {
                self.arena().locks().dropped(unit.owner, unit.partition);
            }
        }
    }

    /// Ends the halves of a bucket that were split off from it later than it had this version, as far as their own counts are no larger: they were
    /// merged, or never were at the primary. Inside the write of the bucket, or before it, while the chunks are held. All that may be
    /// forgotten.
    pub(crate) fn end_halves(
        &self,
        number: u16,
        (bucket, version): (u32, u64),
        owner: Owner,
    ) -> Vec<u32> {
        let distance = self.distance_at(version) as usize;
        let halves = (bucket..self.bucket_count(number)).step_by(distance).skip(1);
        let ends = |half: &u32| {
            let Some(address) = self.bucket_address(number, *half) else { return false };
            let half = self.bucket(address);
            half.write(|next| {
                let present = half.version();
                if present != 0 && count_of(present) <= count_of(version) {
                    self.end_bucket((half, next), number, owner);
                }
                half.version() == 0
            })
        };
        halves.filter(ends).collect()
    }

    /// Looks for keys no more in halves that are not born, and gives their memory back where no bucket of their chunks is.
    pub(crate) fn forget_halves(&self, number: u16, halves: Vec<u32>) {
        if !halves.is_empty() {
            self.note_dead(number);
        }
        halves.into_iter().for_each(|half| self.bury(number, half));
    }

    /// Gives back the memory of all chunks of a partition that have no bucket that is born.
    pub fn bury_dead(&self, number: u16) {
        for bucket in
            (self.layout().buckets..self.bucket_count(number)).step_by(CHUNK_BUCKETS as usize)
        {
            self.bury(number, bucket);
        }
    }

    /// The nearest bucket that is born among those that a bucket was split off from, its version, and at which of its splits.
    pub(crate) fn ancestor(&self, number: u16, bucket: u32) -> Option<(u32, u64, u32)> {
        let roots = self.layout().buckets;
        let mut child = bucket;
        loop {
            let split = child.checked_div(roots)?.checked_ilog2()?;
            child -= roots << split;
            let version = self.bucket_address(number, child).map(|address| self.version(address));
            match version {
                Some(version) if version != 0 || child < roots => {
                    return Some((child, version, split));
                }
                _ => {}
            }
        }
    }

    /// The count of a bucket's version, or, of one that is not born, of the bucket that has its keys. It never falls: a bucket that is merged,
    /// or born, has a larger one than that before.
    pub(crate) fn count_at(&self, number: u16, bucket: u32) -> u64 {
        let present = self.bucket_address(number, bucket).map(|address| self.version(address));
        let present = present.filter(|version| *version != 0);
        let ancestor = || self.ancestor(number, bucket).map(|(_, version, _)| version);
        present.or_else(ancestor).map_or(0, count_of)
    }

    /// Whether a unit was applied, or is of a bucket that has been merged since.
    #[must_use]
    pub fn is_duplicate(&self, unit: &BucketUpdate<'_>) -> bool {
        let (number, bucket, order) = (unit.partition, unit.bucket, unit.order());
        let is_applied = |address| count_of(self.version(address)) > order;
        self.bucket_address(number, bucket).is_some_and(is_applied)
            || self.was_merged(number, bucket, order)
    }

    /// Whether a unit with a base version of this count is of an earlier life of a bucket, which has been merged since: it is not born, and the
    /// bucket that has its keys has that count, or a larger one. Units of its next life will have larger ones.
    #[cold]
    #[must_use]
    pub fn was_merged(&self, number: u16, bucket: u32, count: u64) -> bool {
        let is_born = |address| self.version(address) != 0;
        if bucket < self.layout().buckets
            || self.bucket_address(number, bucket).is_some_and(is_born)
        {
            return false;
        }
        // One that is to be copied, or that a split which is to come has been split off, is not merged.
        let ancestor = self.ancestor(number, bucket);
        ancestor.is_some_and(|(_, version, split)| {
            level_of(version) <= split && count <= count_of(version)
        })
    }

    /// Whether a bucket was split off, perhaps by several splits, from one that was copied, later than it had the level of the copy.
    #[must_use]
    pub fn is_split_off(&self, copy: &BucketUpdate<'_>, bucket: u32) -> bool {
        let between = bucket.checked_sub(copy.bucket).filter(|between| *between > 0);
        let distance = self.distance_at(copy.base_version);
        between.is_some_and(|between| between.is_multiple_of(distance))
    }

    /// Notes that the last buckets are dead, as far as they are: threads that look for keys go by the extent.
    pub(crate) fn note_dead(&self, number: u16) {
        let roots = self.layout().buckets;
        let Some(partition) = self.partition(number) else { return };
        let (Some(main), Some(growth)) = (partition.main_buckets(), partition.growth()) else {
            return;
        };
        loop {
            let extent = growth.extent();
            if extent.1 <= roots {
                return;
            }
            let address = self.address_from(partition, main, extent.1 - 1);
            if address.is_some_and(|address| self.bucket(address).version() != 0) {
                return;
            }
            growth.retract(extent, roots);
        }
    }
}
