//! A table on one node: its name, its layout, and its partitions.
//!
//! ```text
//! key ─ locate ─▶ Location: partition, root, path, tag          the same on every node
//!       address ─▶ BucketAddress: word in the arena, level, tag   on a node that holds the partition
//! ```
//! *Source*: FaSST section 5 (7 to 15 slots in a bucket); the layout of a bucket is in `bucket.rs`.
//!
//! *Invariants*: an address exists only for a bucket that the node holds. The layout is the same on every node.
//!
//! *Not here*: where keys are after buckets were split (`growth.rs`).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::arena::Arena;
use crate::bucket::Bucket;
use crate::crowding::Crowding;
use crate::error::StorageError;
use crate::heap::Heap;
use crate::key::{HashedKey, Key};
use crate::layout::TableLayout;
use crate::location::Location;
use crate::partition::{MainBuckets, Partition};

/// A bucket of a table on one node, and the tag of the key that was looked for. If the bucket has another level by now, the key may be
/// in another bucket.
///
/// `first word of the bucket 48 | level 8 | tag 8`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketAddress(u64);

impl BucketAddress {
    /// No bucket: the arena's first line is never handed out. A unit of such a bucket is a duplicate, and what was read of it has changed.
    pub const NONE: Self = Self(0);

    /// Whether it is [`Self::NONE`].
    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.first_word() == 0
    }

    #[inline(always)]
    pub(crate) fn new(first_word: usize, level: u32) -> Self {
        Self((first_word as u64) << 16 | u64::from(level) << 8)
    }

    /// The same bucket, for a key with this tag.
    #[inline(always)]
    #[must_use]
    pub fn with_tag(self, tag: u8) -> Self {
        Self(self.0 & !0xff | u64::from(tag))
    }

    #[inline(always)]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "it was a usize before; 64-bit hosts do not warn"
    )]
    pub(crate) fn first_word(self) -> usize {
        (self.0 >> 16) as usize
    }

    /// The level that the bucket had when the key was looked for.
    #[inline(always)]
    pub(crate) fn level(self) -> u32 {
        (self.0 >> 8 & 0xff) as u32
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the tag is the low byte")]
    pub(crate) fn tag(self) -> u8 {
        self.0 as u8
    }
}

/// A table on one node: some or all of its partitions, in the node's arena.
///
/// Every operation may be called from any thread. Operations take a [`BucketAddress`], which exists only for
/// buckets that this node holds.
pub struct Table {
    name: String,
    layout: TableLayout,
    pub(crate) arena: Arc<Arena>,
    partitions: Box<[Partition]>,
    /// Of each partition, whether it has too few buckets, or too many.
    pub(crate) crowding: Box<[Crowding]>,
    /// Whether the table is about to be dropped.
    pub(crate) is_leaving: AtomicBool,
}

impl Table {
    /// Allocates the main buckets of the partitions for which `holds` is true.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if they do not fit the arena's limit.
    pub fn new(
        name: &str,
        layout: TableLayout,
        arena: Arc<Arena>,
        holds: impl Fn(u16) -> bool,
    ) -> Result<Self, StorageError> {
        Self::check_memory(name, &layout, &arena, &holds)?;
        let numbers = || (0..=u16::MAX).take(layout.partitioning.count());
        let partitions = numbers().map(|_| Partition::absent()).collect();
        // From here on the table gives back what it has, should the rest not fit.
        let crowding = numbers().map(|_| Crowding::default()).collect();
        let (name, is_leaving) = (name.to_owned(), AtomicBool::new(false));
        let table = Self { name, layout, arena, partitions, crowding, is_leaving };
        for number in numbers().filter(|number| holds(*number)) {
            table.add_partition(number).map_err(|_| table.out_of_memory(&holds))?;
            table.serve_partition(number);
        }
        Ok(table)
    }

    /// Whether the main buckets of the partitions for which `holds` is true fit the shares of those.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if they do not.
    pub fn check_memory(
        name: &str,
        layout: &TableLayout,
        arena: &Arena,
        holds: impl Fn(u16) -> bool,
    ) -> Result<(), StorageError> {
        let mut held = (0..=u16::MAX).take(layout.partitioning.count()).filter(|p| holds(*p));
        if held.all(|partition| layout.partition_words() <= arena.free_words(partition)) {
            Ok(())
        } else {
            Err(out_of_memory(name, layout, arena, &holds))
        }
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The table's layout.
    #[must_use]
    pub fn layout(&self) -> &TableLayout {
        &self.layout
    }

    pub(crate) fn partition(&self, partition: u16) -> Option<&Partition> {
        self.partitions.get(usize::from(partition))
    }

    /// What a partition of a heap table has beside its buckets, if this node holds it.
    pub(crate) fn heap(&self, partition: u16) -> Option<&Heap> {
        self.partition(partition)?.heap()
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The memory limit of the node, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
    }

    /// A key with its hash.
    #[inline]
    #[must_use]
    pub fn hashed<'k>(&self, key: impl Into<Key<'k>>) -> HashedKey<'k> {
        self.layout.partitioning.seed().hashed(key)
    }

    /// Where `key` lives in this table, on any node.
    #[inline(always)]
    #[must_use]
    pub fn locate(&self, key: u64) -> Location {
        self.layout.partitioning.locate(key, self.layout.buckets)
    }

    /// Where `key` lives on this node, if the key's partition is served there.
    #[inline(always)]
    #[must_use]
    pub fn address(&self, key: u64) -> Option<BucketAddress> {
        self.address_of(self.locate(key))
    }

    /// As [`Self::held_address_of`], also beside merges: the copy has all rows of its partition.
    #[must_use]
    pub fn address_to_load(&self, key: u64) -> Option<BucketAddress> {
        let location = self.locate(key);
        let is_held = self.has_partition(location.partition);
        let address = self.held_address_of(location);
        address.or_else(|| is_held.then(|| self.present_address_of(location)))
    }

    /// Where a key with this location lies on this node, if its partition is served there.
    #[inline(always)]
    #[must_use]
    pub fn address_of(&self, location: Location) -> Option<BucketAddress> {
        let partition = self.partition(location.partition)?;
        self.address_among(partition, partition.served_buckets()?, location)
    }

    /// As [`Self::address_of`], if the partition is held or served.
    #[inline(always)]
    #[must_use]
    pub fn held_address_of(&self, location: Location) -> Option<BucketAddress> {
        let partition = self.partition(location.partition)?;
        self.address_among(partition, partition.main_buckets()?, location)
    }

    #[inline(always)]
    fn address_among(
        &self,
        partition: &Partition,
        main_buckets: MainBuckets,
        location: Location,
    ) -> Option<BucketAddress> {
        let address = if main_buckets.has_grown() {
            self.grown_address_of(partition, main_buckets, location)?
        } else {
            self.address_from(partition, main_buckets, location.root)?
        };
        Some(address.with_tag(location.tag))
    }

    /// Where `bucket` of `partition` lies on this node, if its partition is served: for new transactions. [`BucketAddress::NONE`] if there is no
    /// such bucket, perhaps not any more.
    #[inline(always)]
    #[must_use]
    pub fn served_bucket_address(&self, partition: u16, bucket: u32) -> Option<BucketAddress> {
        let partition = self.partition(partition)?;
        let address = self.address_from(partition, partition.served_buckets()?, bucket);
        Some(address.unwrap_or(BucketAddress::NONE))
    }

    /// Where `bucket` of `partition` lies on this node, if there is such a bucket and its partition is held or served: for
    /// transactions that have locked it.
    #[inline(always)]
    #[must_use]
    pub fn bucket_address(&self, partition: u16, bucket: u32) -> Option<BucketAddress> {
        let partition = self.partition(partition)?;
        self.address_from(partition, partition.main_buckets()?, bucket)
    }

    #[inline(always)]
    pub(crate) fn address_from(
        &self,
        partition: &Partition,
        main_buckets: MainBuckets,
        bucket: u32,
    ) -> Option<BucketAddress> {
        if bucket >= self.layout.buckets {
            return self.born_address(partition, bucket);
        }
        let word = main_buckets.first_word() + bucket as usize * self.layout.main_words;
        Some(BucketAddress::new(word, 0))
    }

    /// The error of main buckets of these partitions that do not fit.
    pub(crate) fn out_of_memory(&self, holds: impl Fn(u16) -> bool) -> StorageError {
        out_of_memory(&self.name, &self.layout, &self.arena, holds)
    }

    #[inline(always)]
    pub(crate) fn bucket(&self, address: BucketAddress) -> Bucket<'_> {
        Bucket::new(&self.arena, &self.layout, address.first_word())
    }
}

/// The error of main buckets that do not fit. It counts as free what all held partitions would have if each had as little as the
/// fullest.
fn out_of_memory(
    name: &str,
    layout: &TableLayout,
    arena: &Arena,
    holds: impl Fn(u16) -> bool,
) -> StorageError {
    let held = (0..=u16::MAX).take(layout.partitioning.count()).filter(|p| holds(*p));
    let free: Vec<usize> = held.map(|partition| arena.free_words(partition)).collect();
    StorageError::OutOfMemory {
        table: name.to_owned(),
        needed: layout.main_bytes(free.len()),
        free: free.len() * free.iter().min().unwrap_or(&0) * 8,
        limit: arena.limit_bytes(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::location::Partitioning;

    #[test]
    fn a_table_beyond_the_limit_names_what_is_free() {
        let share = Arena::share_bytes(1 << 20, 16);
        let arena = Arc::new(Arena::new(1 << 20, &[share; 16]).unwrap());
        let partitioning = Partitioning::new(16).unwrap();
        let layout = TableLayout::new("big", 40, 1_000_000, partitioning).unwrap();
        let error = Table::new("big", layout, arena, |_| true).err().unwrap();
        let StorageError::OutOfMemory { needed, free, limit, .. } = error else {
            panic!("{error}");
        };
        assert!(needed > limit && free < limit && limit == 1 << 20);
    }
}
