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
//! mostly tells where a key is. It is a hint. Whoever finds another level than expected walks from the root (`present_address_of`).
//!
//! New buckets lie in chunks, whose first words are in a directory of doubling segments: one more load than without growth. A chunk's memory
//! is fixed lines of its partition's share. The primary takes it, and room for the rows that move, before it grants the lock of a split
//! (rule C9).
//!
//! *Source*: Litwin, Linear Hashing (VLDB'80), for the order of the splits and the numbers; `docs/protocol.md`, "Growth".
//!
//! *Invariants*: a child has a larger number than its parent. Levels never fall. No bucket that is locked is split by another transaction,
//! and none behind a scan barrier.
//!
//! *Not here*: when a partition has too few buckets (`crowding.rs`); who splits them, in `engine`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::bucket_update::BucketUpdate;
use crate::crowding::ENDS_PERCENT;
use crate::extents::Extent;
use crate::layout::TableLayout;
use crate::location::Location;
use crate::lock::Acquired;
use crate::owner::Owner;
use crate::partition::{MainBuckets, Partition};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::table::{BucketAddress, Table};

/// Buckets of a chunk. Loom has few words.
const CHUNK_BUCKETS: u32 = if cfg!(loom) { 1 } else { 32 };
/// Segments of the directory: the last ends behind the largest number.
const SEGMENTS: usize = 28;
/// How often a bucket can be split at most: the bits of a path that no root uses.
const LEVEL_MAX: u32 = 28;
const LEVEL_SHIFT: u32 = 56;
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

/// Which buckets of a partition were born, on one node.
pub(crate) struct Growth {
    /// Level of the buckets that are split next, and the first number that is not born: `level 32 | number 32`.
    extent: AtomicU64,
    /// All numbers in chunks are smaller.
    end: AtomicU32,
    /// The first words of the chunks; segment s has 2^s of them.
    segments: [OnceLock<Box<[AtomicUsize]>>; SEGMENTS],
    /// Held while a chunk is added.
    adding: Mutex<()>,
}

impl Growth {
    /// Of a partition with as many buckets as it began with.
    pub(crate) fn new(roots: u32) -> Self {
        Self {
            extent: AtomicU64::new(u64::from(roots)),
            end: AtomicU32::new(roots),
            segments: [const { OnceLock::new() }; SEGMENTS],
            adding: Mutex::new(()),
        }
    }

    /// Level of the buckets that are split next, and the first number that is not born.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "its halves")]
    fn extent(&self) -> (u32, u32) {
        // Acquire: pairs with the Release in extend(): the buckets before the number lie in chunks.
        let extent = self.extent.load(Ordering::Acquire);
        ((extent >> 32) as u32, extent as u32)
    }

    /// The first unborn number was born.
    fn extend(&self, (level, next): (u32, u32), roots: u32) {
        let is_last = u64::from(next) + 1 == u64::from(roots) << (level + 1);
        let extent = |(level, next): (u32, u32)| u64::from(level) << 32 | u64::from(next);
        let after = extent((level + u32::from(is_last), next + 1));
        // Another thread may have noticed it first.
        let _ = self.extent.compare_exchange(
            extent((level, next)),
            after,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// First word of a chunk.
    #[inline(always)]
    fn chunk(&self, index: u32) -> Option<usize> {
        let (segment, at) = place_of(index);
        // Acquire: pairs with the Release in add_chunk(): the memory is zero.
        let word = self.segments[segment].get()?[at].load(Ordering::Acquire);
        (word != 0).then_some(word)
    }

    fn add_chunk(&self, index: u32, first_word: usize, end: u32) {
        let (segment, at) = place_of(index);
        let empty = || (0..1_usize << segment).map(|_| AtomicUsize::new(0)).collect();
        self.segments[segment].get_or_init(empty)[at].store(first_word, Ordering::Release);
        // Release: pairs with the Acquire in end(): the chunk is there.
        self.end.fetch_max(end, Ordering::Release);
    }

    /// The first number that is not born.
    pub(crate) fn born(&self) -> u32 {
        self.extent().1
    }

    /// All numbers in chunks are smaller.
    fn end(&self) -> u32 {
        // Acquire: pairs with the Release in add_chunk().
        self.end.load(Ordering::Acquire)
    }

    /// Forgets all chunks; what they took. Nobody uses the partition any more.
    pub(crate) fn clear(&self, layout: &TableLayout) -> Vec<Extent> {
        // Relaxed: as the partition's own word.
        self.extent.store(u64::from(layout.buckets), Ordering::Relaxed);
        self.end.store(layout.buckets, Ordering::Relaxed);
        let chunks = self.segments.iter().filter_map(OnceLock::get).flatten();
        let words = chunks.map(|word| word.swap(0, Ordering::Relaxed)).filter(|word| *word != 0);
        words.map(|word| Extent::of_words(word, chunk_words(layout))).collect()
    }
}

/// Segment and place of a chunk in the directory.
#[inline(always)]
fn place_of(chunk: u32) -> (usize, usize) {
    let segment = (chunk + 1).ilog2();
    (segment as usize, (chunk + 1 - (1 << segment)) as usize)
}

fn chunk_words(layout: &TableLayout) -> usize {
    CHUNK_BUCKETS as usize * layout.main_words
}

/// The bucket that is to be split next, the half that is born then, and the bucket's level.
pub(crate) struct NextSplit {
    pub(crate) bucket: u32,
    pub(crate) child: u32,
    pub(crate) level: u32,
}

/// What the lock of a bucket that is to be split found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Splitting {
    /// The transaction holds the bucket, and every copy has room for its halves.
    Granted {
        /// The bucket.
        bucket: u32,
        /// Its version, on which the unit is based.
        version: u64,
    },
    /// The partition has buckets enough, or is not served here.
    Enough,
    /// Another transaction holds the bucket.
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

    /// One more than the largest number of a bucket that this node has of a partition. Some before may not be born.
    #[must_use]
    pub fn bucket_count(&self, partition: u16) -> u32 {
        let growth = self.partition(partition).and_then(Partition::growth);
        growth.map_or(self.layout().buckets, Growth::end)
    }

    /// Bytes of the main buckets of a partition.
    #[must_use]
    pub fn bucket_bytes(&self, partition: u16) -> usize {
        let born = self.bucket_count(partition) - self.layout().buckets;
        let chunks = born.div_ceil(CHUNK_BUCKETS) as usize;
        self.layout().main_bytes(1) + chunks * chunk_words(self.layout()) * 8
    }

    /// How often buckets of a partition were split.
    #[must_use]
    pub fn split_count(&self, partition: u16) -> u32 {
        let growth = self.partition(partition).and_then(Partition::growth);
        growth.map_or(0, |growth| growth.born() - self.layout().buckets)
    }

    /// Where a bucket is that was not there when the table was created.
    #[cold]
    pub(crate) fn born_address(&self, partition: &Partition, bucket: u32) -> Option<BucketAddress> {
        Some(BucketAddress::new(self.born_word(partition, bucket)?, 0))
    }

    #[inline(always)]
    fn born_word(&self, partition: &Partition, bucket: u32) -> Option<usize> {
        let born = bucket - self.layout().buckets;
        let chunk = partition.growth()?.chunk(born / CHUNK_BUCKETS)?;
        Some(chunk + (born % CHUNK_BUCKETS) as usize * self.layout().main_words)
    }

    /// First word of a bucket of any number, if there is memory for it.
    #[inline(always)]
    fn word_of(&self, partition: &Partition, main: MainBuckets, bucket: u32) -> Option<usize> {
        if bucket < self.layout().buckets {
            Some(main.first_word() + bucket as usize * self.layout().main_words)
        } else {
            self.born_word(partition, bucket)
        }
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
        let (level, next) = partition.growth()?.extent();
        let bucket = location.bucket_at(roots, level);
        let is_split = u64::from(bucket) + (u64::from(roots) << level) < u64::from(next);
        let level = level + u32::from(is_split);
        let word = self.word_of(partition, main, location.bucket_at(roots, level))?;
        Some(BucketAddress::new(word, level))
    }

    /// Where a key is now, by the levels of the buckets that have had it. The node has its partition.
    #[cold]
    pub(crate) fn present_address_of(&self, location: Location) -> BucketAddress {
        let partition = self.partition(location.partition).expect("the partition of an address");
        let main = partition.main_buckets().expect("a partition that is used stays");
        let (mut number, mut born_at) = (location.root, 0);
        loop {
            let word = self.word_of(partition, main, number);
            let word = word.expect("both halves of a bucket that was split have memory");
            let level = self.level(BucketAddress::new(word, 0));
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

    /// The level of a bucket; 0 of one that is not born.
    fn level(&self, address: BucketAddress) -> u32 {
        let bucket = self.bucket(address);
        bucket.read_consistent(|_| level_of(bucket.version()))
    }

    /// The number of the half that is born when a bucket of this version is split; none where numbers end.
    #[must_use]
    pub fn child_of(&self, bucket: u32, version: u64) -> Option<u32> {
        let level = level_of(version);
        let distance = u64::from(self.layout().buckets) << level.min(LEVEL_MAX);
        let child = u32::try_from(u64::from(bucket) + distance).ok()?;
        (level < LEVEL_MAX && u64::from(bucket) < distance).then_some(child)
    }

    /// Whether a unit is of a bucket that can be, and splits it if that is possible.
    #[must_use]
    pub fn fits_bucket(&self, unit: &BucketUpdate<'_>) -> bool {
        let level = level_of(unit.base_version);
        let distance = u64::from(self.layout().buckets) << level.min(LEVEL_MAX);
        let is_possible = level <= LEVEL_MAX && u64::from(unit.bucket) < distance;
        is_possible && (!unit.splits || self.child_of(unit.bucket, unit.base_version).is_some())
    }

    /// Where a bucket is that may not be born at this copy, whose memory is taken then. None if the node does not have the partition,
    /// or no memory is left.
    #[inline]
    #[must_use]
    pub fn address_to_fill(&self, partition: u16, bucket: u32) -> Option<BucketAddress> {
        self.bucket_address(partition, bucket)
            .or_else(|| self.take_chunk(partition, bucket, Quota::Decided))
    }

    /// As [`Self::address_to_fill`], within this quota.
    #[cold]
    fn take_chunk(&self, number: u16, bucket: u32, quota: Quota) -> Option<BucketAddress> {
        let (partition, roots) = (self.partition(number)?, self.layout().buckets);
        let main = partition.main_buckets()?;
        if bucket >= roots {
            let growth = partition.growth_or_new(roots);
            let index = (bucket - roots) / CHUNK_BUCKETS;
            let _adding = lock(&growth.adding);
            if growth.chunk(index).is_none() {
                let words = chunk_words(self.layout());
                let word = self.arena().allocate_fixed(number, words, quota)?;
                let end = u64::from(roots) + u64::from(index + 1) * u64::from(CHUNK_BUCKETS);
                growth.add_chunk(index, word, u32::try_from(end).unwrap_or(u32::MAX));
            }
        }
        self.address_from(partition, main, bucket)
    }

    /// Locks the next bucket of a partition that is to be split, for `owner`, or the one that is so many behind it; and takes the memory
    /// that a split needs.
    pub fn lock_to_split(&self, partition: u16, behind: u32, owner: Owner) -> Splitting {
        let splitting = self.lock_next(partition, behind, owner);
        if matches!(splitting, Splitting::Granted { .. } | Splitting::Full) {
            self.note_full(partition, splitting == Splitting::Full);
        }
        splitting
    }

    fn lock_next(&self, partition: u16, behind: u32, owner: Owner) -> Splitting {
        let served = |it| Some((it, Partition::served_buckets(it)?));
        let Some((of_partition, main)) = self.partition(partition).and_then(served) else {
            return Splitting::Enough;
        };
        if self.barrier_count(partition) > 0 {
            // The scan that has waited behind it would begin again.
            return Splitting::Locked;
        }
        let next = self.next_split(of_partition, behind);
        let is_wanted = |next: &NextSplit| {
            self.is_crowded((of_partition, main), partition, next, ENDS_PERCENT)
                || self.is_hot(partition, next.child)
        };
        let Some(next) = next.filter(is_wanted) else {
            self.expect_no_more(partition);
            return Splitting::Enough;
        };
        let Some(half) = self.take_chunk(partition, next.child, self.layout().quota) else {
            return Splitting::Full;
        };
        let Some(bucket) = self.address_from(of_partition, main, next.bucket) else {
            return Splitting::Enough;
        };
        let (bucket, half) = (self.bucket(bucket), self.bucket(half));
        let acquired = self.acquire(bucket, owner, || partition);
        if acquired != Some(Acquired::Now) {
            return Splitting::Locked;
        }
        let version = bucket.version();
        let splitting = if level_of(version) != next.level {
            // It was split before: the extent lags behind.
            self.note_born(partition, next.child);
            Splitting::Locked
        } else if !self.make_room_for_half((bucket, half), (partition, next.level)) {
            Splitting::Full
        } else {
            self.arena().locks().granted(owner, partition);
            return Splitting::Granted { bucket: next.bucket, version };
        };
        bucket.release();
        splitting
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
    fn make_room_for_half(
        &self,
        (bucket, half): (Bucket<'_>, Bucket<'_>),
        (partition, level): (u16, u32),
    ) -> bool {
        let moving = bucket.read_consistent(|sequence| self.moving(bucket, sequence, level));
        half.write(|next| {
            let has_room = half.make_room(next, (moving, partition), self.layout().quota);
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
    pub(crate) fn split(&self, bucket: Bucket<'_>, next: &mut u64, unit: &BucketUpdate<'_>) {
        let (level, version) = (level_of(unit.base_version), after_split(unit.base_version));
        let child = self.child_of(unit.bucket, unit.base_version);
        let child = child.expect("a split of a bucket that can be split");
        let half = self.address_to_fill(unit.partition, child).unwrap_or_else(|| {
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
            let has_room = half.make_room(half_next, (moving, unit.partition), Quota::Decided);
            assert!(has_room, "table {}: decided splits fit the memory limit", self.name());
            bucket.move_rows(*next, (half, *half_next), |key| self.moves(key, level));
            half.trim(half_next, || unit.partition);
            half.store_deleted(bucket.deleted());
            half.store_version(version);
        });
        bucket.trim(next, || unit.partition);
        bucket.store_version(version);
        self.note_born(unit.partition, child);
    }

    /// Notes that a bucket is born, if it is: whoever looks for keys goes by that.
    pub(crate) fn note_born(&self, number: u16, bucket: u32) {
        let roots = self.layout().buckets;
        let Some(partition) = self.partition(number).filter(|_| bucket >= roots) else { return };
        let (Some(main), Some(growth)) = (partition.main_buckets(), partition.growth()) else {
            return;
        };
        loop {
            let extent = growth.extent();
            let address = self.address_from(partition, main, extent.1);
            if address.is_none_or(|address| self.version(address) == 0) {
                break;
            }
            growth.extend(extent, roots);
        }
        partition.has_grown();
    }

    fn version(&self, address: BucketAddress) -> u64 {
        self.bucket(address).version()
    }
}
