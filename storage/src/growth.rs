//! Growth: a table's buckets are split in two, a few at a time, while transactions go on.
//!
//! ```text
//! version, 64 bits:  level 8 | count 56          of a bucket that is not born 0
//! bucket n of level l:  the keys whose root is n % roots and whose path ends in the l bits of n / roots
//! its split:            n and n + roots * 2^l, both of level l + 1
//! ```
//! A *split* is a unit of change on the bucket, which its transaction has locked: base version (l, c) installs (l + 1, c + 1) in both
//! halves, at every copy. So the layout follows from units alone, whatever the order in which splits of different buckets come, and
//! copies with equal versions have equal rows. The level is a part of the version: an observation, and the base of a unit, tell the number
//! of their key's bucket, and a bucket that was split since has another version.
//!
//! The primary splits in the order of the numbers (linear hashing), so that the *extent*, level and first number that is not born,
//! mostly tells where a key is. It is a hint. A thread that finds another level than expected walks from the root
//! (`present_address_of`).
//!
//! The primary takes the memory of the new bucket, and room for the rows that move, before it grants the lock of a split (rule C9). It locks the
//! half that is to be born, too, which keeps that memory.
//!
//! *Source*: Litwin, Linear Hashing (VLDB'80), for the order of the splits and the numbers; `docs/protocol.md`, "Growth".
//!
//! *Invariants*: a child has a larger number than its parent. Counts never fall, also not from one life of a bucket to the next, so they order
//! its versions. No bucket that is locked is split by another transaction, and none behind a scan barrier.
//!
//! *Not here*: how halves are merged again (`shrinking.rs`), and where buckets lie (`chunks.rs`); when a partition has too few buckets
//! (`crowding.rs`); who splits them, in `engine`.

use std::sync::atomic::AtomicU32;

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::bucket_update::{BucketUpdate, UnitKind};
use crate::chunks::{Chunks, ChunksHeld};
use crate::extents::Extent;
use crate::layout::TableLayout;
use crate::location::Location;
use crate::owner::Owner;
use crate::partition::{MainBuckets, Partition};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::table::{BucketAddress, Table};

/// How often a bucket can be split at most: the bits of a path that no root uses.
pub(crate) const LEVEL_MAX: u32 = 28;
pub(crate) const LEVEL_SHIFT: u32 = 56;
/// The level in a version: how often the bucket has been split.
#[inline(always)]
#[must_use]
pub fn level_of(version: u64) -> u32 {
    (version >> LEVEL_SHIFT) as u32
}

/// The count in a version: it rises with each change of the bucket, splits included.
#[inline(always)]
pub(crate) fn count_of(version: u64) -> u64 {
    version & ((1 << LEVEL_SHIFT) - 1)
}

/// Bits of the count that rows keep. A bucket that changes a million times a second has other counts for nine years.
pub(crate) const STAMP_BITS: u32 = 48;

/// What rows and marks keep of a version: its count, which rises with each change of the bucket, splits included.
#[inline(always)]
pub(crate) fn stamp_of(version: u64) -> u64 {
    version & ((1 << STAMP_BITS) - 1)
}

/// The version of both halves of a bucket that had this one.
fn after_split(version: u64) -> u64 {
    version + (1 << LEVEL_SHIFT) + 1
}

/// The version of a bucket and its half, which have these versions, after they are merged.
pub(crate) fn after_merge(version: u64, half_version: u64) -> u64 {
    let level = u64::from(level_of(version).saturating_sub(1));
    level << LEVEL_SHIFT | (count_of(version).max(count_of(half_version)) + 1)
}

/// Which buckets of a partition were born, on one node.
pub(crate) struct Growth {
    /// Level of the buckets that are split next, and the first number that is not born: `level 32 | number 32`.
    extent: AtomicU64,
    pub(crate) chunks: Chunks,
    /// How often a half was merged.
    pub(crate) merges: AtomicU32,
}

impl Growth {
    /// Of a partition with as many buckets as it began with.
    pub(crate) fn new(roots: u32) -> Self {
        Self {
            extent: AtomicU64::new(u64::from(roots)),
            chunks: Chunks::new(roots),
            merges: AtomicU32::new(0),
        }
    }

    /// Level of the buckets that are split next, and the first number that is not born.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "its halves")]
    pub(crate) fn extent(&self) -> (u32, u32) {
        // Acquire: pairs with the Release in change_extent(): the buckets before the number lie in chunks.
        let extent = self.extent.load(Ordering::Acquire);
        ((extent >> 32) as u32, extent as u32)
    }

    /// The first unborn number was born.
    fn extend(&self, (level, next): (u32, u32), roots: u32) {
        let is_last = u64::from(next) + 1 == u64::from(roots) << (level + 1);
        self.change_extent((level, next), (level + u32::from(is_last), next + 1));
    }

    /// The last number that was born has died.
    pub(crate) fn retract(&self, (level, next): (u32, u32), roots: u32) {
        let is_first = u64::from(next) == u64::from(roots) << level;
        self.change_extent((level, next), (level - u32::from(is_first), next - 1));
    }

    fn change_extent(&self, before: (u32, u32), after: (u32, u32)) {
        let extent = |(level, next): (u32, u32)| u64::from(level) << 32 | u64::from(next);
        // Another thread may have noticed it first.
        let _ = self.extent.compare_exchange(
            extent(before),
            extent(after),
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// The first number that is not born.
    pub(crate) fn born(&self) -> u32 {
        self.extent().1
    }

    /// Forgets all chunks; what they took. Nobody uses the partition any more.
    pub(crate) fn clear(&self, layout: &TableLayout) -> Vec<Extent> {
        // Relaxed: as the partition's own word.
        self.extent.store(u64::from(layout.buckets), Ordering::Relaxed);
        self.chunks.clear(layout)
    }
}

/// The bucket that is to be split next, the half that is born then, and the bucket's level.
pub(crate) struct NextSplit {
    pub(crate) bucket: u32,
    pub(crate) child: u32,
    pub(crate) level: u32,
}

/// What the locks of a bucket and of its half found, which are to be split or merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reshaping {
    /// The transaction holds both, and every copy has room for the rows.
    Granted {
        /// The bucket.
        bucket: u32,
        /// Its version, on which the unit is based.
        version: u64,
    },
    /// The partition has buckets enough, or no more than it needs, or is not served here.
    Enough,
    /// Another transaction holds one of both.
    Locked,
    /// The share of the partition's memory is used up.
    Full,
}

impl Table {
    /// The number of the bucket that has a key, if the bucket has this version.
    #[inline]
    #[must_use]
    pub fn bucket_of(&self, key: u64, version: u64) -> u32 {
        self.bucket_at(self.locate(key), version)
    }

    /// As [`Self::bucket_of`], of a key with this location.
    #[inline(always)]
    #[must_use]
    pub fn bucket_at(&self, location: Location, version: u64) -> u32 {
        location.bucket_at(self.layout().buckets, level_of(version).min(LEVEL_MAX))
    }

    /// How many buckets of a partition there are that were split off.
    #[must_use]
    pub fn split_count(&self, partition: u16) -> u32 {
        let growth = self.partition(partition).and_then(Partition::growth);
        growth.map_or(0, |growth| growth.born() - self.layout().buckets)
    }

    /// Where a key of a partition that has grown is, by its extent.
    #[inline]
    pub(crate) fn grown_address_of(
        &self,
        partition: &Partition,
        main: MainBuckets,
        location: Location,
    ) -> Option<BucketAddress> {
        let roots = self.layout().buckets;
        let growth = partition.growth()?;
        let (level, next) = growth.extent();
        let bucket = location.bucket_at(roots, level);
        let is_split = u64::from(bucket) + (u64::from(roots) << level) < u64::from(next);
        let level = level + u32::from(is_split);
        match self.word_of(growth, main, location.bucket_at(roots, level)) {
            Some(word) => Some(BucketAddress::new(word, level)),
            // It was merged since. Only a primary has all buckets.
            None => partition.served_buckets().map(|_| self.present_address_of(location)),
        }
    }

    /// Where a key is now, by the levels of the buckets that have had it. The node has its partition.
    #[cold]
    pub(crate) fn present_address_of(&self, location: Location) -> BucketAddress {
        let partition = self.partition(location.partition).expect("the partition of an address");
        let main = partition.main_buckets().expect("a partition that is used stays");
        // Mostly there already: the thread that walks has seen a split.
        let growth = partition.growth_or_new(self.layout().buckets);
        let (mut number, mut born_at) = (location.root, 0);
        loop {
            let word = self.word_of(growth, main, number);
            let found = word.map(|word| (word, self.version(BucketAddress::new(word, 0))));
            let is_there = |version: u64| number == location.root || version != 0;
            let Some((word, version)) = found.filter(|(_, version)| is_there(*version)) else {
                // It was merged since its bucket was looked at.
                (number, born_at) = (location.root, 0);
                continue;
            };
            let level = level_of(version);
            // The next split at which the key went to the other half.
            match (born_at..level).find(|level| location.path >> level & 1 == 1) {
                Some(split) => {
                    number += self.layout().buckets << split;
                    born_at = split + 1;
                }
                None => return BucketAddress::new(word, level).with_tag(location.tag),
            }
        }
    }

    /// The version of a bucket that nobody writes now.
    pub(crate) fn version(&self, address: BucketAddress) -> u64 {
        let bucket = self.bucket(address);
        bucket.read_consistent(|_| bucket.version())
    }

    /// Between the numbers of the buckets that are split off from one, from this version on.
    pub(crate) fn distance_at(&self, version: u64) -> u32 {
        let distance = u64::from(self.layout().buckets) << level_of(version).min(LEVEL_MAX);
        u32::try_from(distance).unwrap_or(u32::MAX).max(1)
    }

    /// The number of the half that is born when a bucket of this version is split; none where numbers end.
    #[must_use]
    pub fn child_of(&self, bucket: u32, version: u64) -> Option<u32> {
        let level = level_of(version);
        let distance = u64::from(self.layout().buckets) << level.min(LEVEL_MAX);
        let child = u32::try_from(u64::from(bucket) + distance).ok()?;
        (level < LEVEL_MAX && u64::from(bucket) < distance).then_some(child)
    }

    /// Whether a unit is of a bucket that can be, and splits or merges it if that is possible. It looks at the rows of a merge.
    #[inline]
    #[must_use]
    pub fn fits_bucket(&self, unit: &BucketUpdate<'_>) -> bool {
        let level = level_of(unit.base_version);
        let distance = u64::from(self.layout().buckets) << level.min(LEVEL_MAX);
        let is_possible = level <= LEVEL_MAX && u64::from(unit.bucket) < distance;
        is_possible && (unit.kind == UnitKind::Rows || self.fits_shape(unit))
    }

    #[cold]
    fn fits_shape(&self, unit: &BucketUpdate<'_>) -> bool {
        if unit.kind == UnitKind::Merge {
            return self.fits_merge(unit);
        }
        self.child_of(unit.bucket, unit.base_version).is_some()
    }

    /// Prefetches the next buckets that are to be split.
    pub fn prefetch_splits(&self, number: u16, count: u32) {
        let Some(partition) = self.partition(number) else { return };
        let Some(next) = self.next_split(partition, 0) else { return };
        (next.bucket..next.bucket.saturating_add(count))
            .for_each(|bucket| self.prefetch_bucket(number, bucket));
    }

    /// Locks a bucket that is to be split, for `owner`, and takes the memory that a split needs: the next bucket of a partition, or the one
    /// that comes `behind` so many others. It is to be split if more than `behind` are `wanted` ([`Self::splits_wanted`]), or if its locks are
    /// met often.
    pub fn lock_to_split(
        &self,
        partition: u16,
        (behind, wanted): (u32, u32),
        owner: Owner,
    ) -> Reshaping {
        let splitting = self.lock_next(partition, (behind, wanted), owner);
        if matches!(splitting, Reshaping::Granted { .. } | Reshaping::Full) {
            self.note_full(partition, splitting == Reshaping::Full);
        }
        splitting
    }

    fn lock_next(&self, partition: u16, (behind, wanted): (u32, u32), owner: Owner) -> Reshaping {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((of_partition, main)) = self.partition(partition).and_then(served) else {
            return Reshaping::Enough;
        };
        let next = self.next_split(of_partition, behind);
        let is_wanted = |next: &NextSplit| behind < wanted || self.is_hot(partition, next.child);
        let Some(next) = next.filter(is_wanted) else {
            self.expect_no_more(partition);
            return Reshaping::Enough;
        };
        if self.barrier_count(partition) > 0 {
            // The scan that has waited behind it would begin again.
            return Reshaping::Locked;
        }
        let next = self.first_missing(partition, next);
        let Some(bucket) = self.address_from(of_partition, main, next.bucket) else {
            return Reshaping::Locked;
        };
        let chunks = of_partition.growth_or_new(self.layout().buckets).chunks.hold();
        let quota = self.layout().quota;
        let half = self.address_held(&chunks, (partition, next.child), quota);
        let Some(half) = half else { return Reshaping::Full };
        let (bucket, half) = (self.bucket(bucket), self.bucket(half));
        // A half that is locked stays where it is.
        let has_both = self.acquire_both([half, bucket], owner, partition);
        drop(chunks);
        // Pairs with the fence of a bulk load, which begins where no bucket is locked.
        fence(Ordering::SeqCst);
        let is_served = of_partition.served_buckets().is_some();
        let version = bucket.version();
        let splitting = if !has_both || !is_served {
            Reshaping::Locked
        } else if level_of(version) != next.level {
            // It was split before: the extent lags behind.
            self.note_born(partition, next.child);
            Reshaping::Locked
        } else if !self.make_room_for_half((bucket, half), (partition, next.level), quota) {
            Reshaping::Full
        } else {
            self.arena().locks().granted(owner, partition);
            self.arena().locks().granted(owner, partition);
            return Reshaping::Granted { bucket: next.bucket, version };
        };
        if has_both {
            half.release();
            bucket.release();
        }
        self.bury(partition, next.child);
        splitting
    }

    /// What is split in place of the next bucket, if merges beside a split have left a hole: the bucket is not born, or was not split so often.
    fn first_missing(&self, number: u16, next: NextSplit) -> NextSplit {
        let version = self.bucket_address(number, next.bucket).map(|it| self.version(it));
        let is_root = next.bucket < self.layout().buckets;
        let present = version.filter(|version| is_root || *version != 0);
        let found = present.map(|version| (next.bucket, version));
        let born =
            || self.ancestor(number, next.bucket).map(|(bucket, version, _)| (bucket, version));
        let Some((bucket, version)) = found.or_else(born) else { return next };
        if bucket == next.bucket && level_of(version) >= next.level {
            return next;
        }
        let child = self.child_of(bucket, version);
        child.map_or(next, |child| NextSplit { bucket, child, level: level_of(version) })
    }

    /// The bucket that is split when so many before it have been.
    pub(crate) fn next_split(&self, partition: &Partition, behind: u32) -> Option<NextSplit> {
        let roots = self.layout().buckets;
        let extent = partition.growth().map(Growth::extent);
        let (level, next) = extent.unwrap_or((0, roots));
        let child = next.checked_add(behind)?;
        let bucket =
            u32::try_from(u64::from(child).checked_sub(u64::from(roots) << level)?).ok()?;
        let is_possible = self.child_of(bucket, u64::from(level) << LEVEL_SHIFT) == Some(child);
        is_possible.then_some(NextSplit { bucket, child, level })
    }

    /// Has a half that is not born take the rows that will move to it from a bucket that is locked. Whether there is memory.
    pub(crate) fn make_room_for_half(
        &self,
        (bucket, half): (Bucket<'_>, Bucket<'_>),
        (partition, level): (u16, u32),
        quota: Quota,
    ) -> bool {
        let moving = bucket.read_consistent(|sequence| self.moving(bucket, sequence, level));
        half.write(|next| {
            let has_room = half.make_room(next, (moving, partition), quota);
            if !has_room {
                half.trim(next, || partition);
            }
            has_room
        })
    }

    /// The rows of a bucket of this level that the other half gets.
    fn moving(&self, bucket: Bucket<'_>, sequence: u64, level: u32) -> u64 {
        let mut moving = 0;
        bucket.for_each(sequence, |slot| moving += u64::from(self.moves(slot.key(), level)));
        moving
    }

    /// Whether the other half gets a key when its bucket is split that has this level.
    fn moves(&self, key: u64, level: u32) -> bool {
        self.locate(key).path >> level & 1 == 1
    }

    /// Splits a bucket inside its write: installs the unit's next version in both halves.
    pub(crate) fn split(
        &self,
        chunks: &ChunksHeld<'_>,
        bucket: (Bucket<'_>, &mut u64),
        unit: &BucketUpdate<'_>,
    ) {
        let number = (unit.partition, unit.bucket);
        self.split_into(chunks, bucket, number, after_split(unit.base_version));
    }

    /// Splits the bucket with this number inside its write: installs a version of a level that is one more in both halves.
    pub(crate) fn split_into(
        &self,
        chunks: &ChunksHeld<'_>,
        (bucket, next): (Bucket<'_>, &mut u64),
        (partition, number): (u16, u32),
        version: u64,
    ) {
        let level = level_of(version) - 1;
        let child = self.child_of(number, u64::from(level) << LEVEL_SHIFT);
        let child = child.expect("a split of a bucket that can be split");
        let half = self.address_held(chunks, (partition, child), Quota::Decided);
        let half = half.unwrap_or_else(|| {
            panic!(
                "table {}: the memory limit of {} bytes is used up by decided splits, which fit the share of their partition when their \
                 locks were granted",
                self.name(),
                self.limit_bytes()
            )
        });
        let half = self.bucket(half);
        half.write(|half_next| {
            let moving = self.moving(bucket, held(*next), level);
            let has_room = half.make_room(half_next, (moving, partition), Quota::Decided);
            assert!(has_room, "table {}: decided splits fit the memory limit", self.name());
            bucket.move_rows(*next, (half, *half_next), |key| self.moves(key, level));
            half.trim(half_next, || partition);
            half.store_deleted(bucket.deleted());
            half.store_version(version);
        });
        bucket.trim(next, || partition);
        bucket.store_version(version);
        self.note_born(partition, child);
    }

    /// What follows a split at the primary: the half is locked no more.
    pub(crate) fn end_split(&self, unit: &BucketUpdate<'_>) {
        let half = self.child_of(unit.bucket, unit.base_version);
        half.into_iter().for_each(|half| self.release_half(unit, half, true));
    }

    /// Notes that a bucket is born, if it is: threads that look for keys go by the extent.
    pub(crate) fn note_born(&self, number: u16, bucket: u32) {
        let roots = self.layout().buckets;
        let Some(partition) = self.partition(number).filter(|_| bucket >= roots) else { return };
        let (Some(main), Some(growth)) = (partition.main_buckets(), partition.growth()) else {
            return;
        };
        loop {
            let extent = growth.extent();
            let address = self.address_from(partition, main, extent.1);
            // Not consistently: the half is written now.
            if address.is_none_or(|address| self.bucket(address).version() == 0) {
                break;
            }
            growth.extend(extent, roots);
        }
        partition.has_grown();
    }
}
