//! A table: its layout, and its main buckets on one node.
//!
//! ```text
//! key ─ locate ─▶ Location: partition, bucket, tag       the same on every node
//!       address ─▶ BucketAddress: word in the arena, tag   on a node that holds the partition
//! ```
//! *Source*: FaSST section 5 (7 to 15 slots in a bucket); the layout of a bucket is in `bucket.rs`.
//!
//! *Invariants*: an address exists only for a bucket that the node holds. The layout is the same on every node.
//!
//! *Not here*: growth. A table beyond its expected rows has longer chains of overflow buckets.

use std::sync::Arc;

use crate::arena::{Arena, LINE_WORDS, Quota};
use crate::bucket::{
    Bucket, HEADER_WORDS, OVERFLOW_HEADER_WORDS, OVERFLOW_SLOTS_MAX, SLOTS_PER_MAIN_BUCKET,
};
use crate::error::StorageError;
use crate::heap::Heap;
use crate::location::{Location, Partitioning};

/// Largest value of a fixed table, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Bytes of a slot's value in a heap table: the pointer to a row.
const ROW_NUMBER_BYTES: usize = 8;
/// Rows per main bucket at the expected number of rows. A tenth of the rows then lie in overflow buckets, each of which costs two
/// more cache misses. With seven rows it would be a seventh, and a row would take 7 % less memory.
const ROWS_PER_BUCKET: u64 = 6;
/// The same for slots of less than [`SMALL_SLOT_WORDS`], whose headers take a larger share. With seven the memory per row is least:
/// with more, overflow buckets cost more than the main buckets save.
const SMALL_ROWS_PER_BUCKET: u64 = 7;
const SMALL_SLOT_WORDS: usize = 4;
/// Fewest buckets of a table over all its partitions, so that tiny hot tables do not share locks.
const BUCKETS_MIN: u64 = 1024;
/// A main bucket starts at a multiple of this many words, so that its header lies in one cache line.
const MAIN_ALIGNMENT_WORDS: usize = 4;
/// The same where the coarser one would cost a tenth of the memory: values of a word or less. A
/// header may then lie in two cache lines.
const SMALL_ALIGNMENT_WORDS: usize = 2;
/// An overflow bucket holds at least this many slots, unless a single one fills cache lines.
const OVERFLOW_SLOTS_MIN: usize = 2;

/// What a table's keys and values are, and how they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Keys are numbers of 64 bits, values have one size and lie in the slots.
    Fixed,
    /// Keys and values are byte strings, and lie in cells that the slots point to.
    Heap,
    /// A heap table with an ordered index of its keys.
    Ordered,
}

/// The sizes that follow from a table's definition: the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// Bytes of each value of a fixed table; what a slot of a heap table has beside the hash.
    pub value_bytes: usize,
    /// What the keys and values are.
    pub kind: TableKind,
    /// Main buckets per partition.
    pub buckets: u32,
    /// How keys divide over partitions.
    pub(crate) partitioning: Partitioning,
    /// Rises when buckets are split; 0 until a table grows. Units and records contain it.
    pub version: u16,
    pub(crate) slot_words: usize,
    pub(crate) main_words: usize,
    pub(crate) overflow_slots: usize,
    pub(crate) overflow_words: usize,
}

impl TableLayout {
    /// The layout of table `name` for about `rows` values of `value_bytes` in the whole cluster.
    ///
    /// # Errors
    /// [`StorageError::ValueBytes`] or [`StorageError::Rows`] if a size is out of range.
    pub fn new(
        name: &str,
        value_bytes: usize,
        rows: u64,
        partitioning: Partitioning,
    ) -> Result<Self, StorageError> {
        if !(1..=VALUE_BYTES_MAX).contains(&value_bytes) {
            let (table, max) = (name.to_owned(), VALUE_BYTES_MAX);
            return Err(StorageError::ValueBytes { table, bytes: value_bytes, max });
        }
        let partitions = partitioning.count() as u64;
        let slot_words = 1 + value_bytes.div_ceil(8);
        let is_small = slot_words < SMALL_SLOT_WORDS;
        let rows_per_bucket = if is_small { SMALL_ROWS_PER_BUCKET } else { ROWS_PER_BUCKET };
        let buckets = rows.div_ceil(rows_per_bucket).max(BUCKETS_MIN).div_ceil(partitions);
        let buckets = u32::try_from(buckets).map_err(|_| StorageError::Rows {
            table: name.to_owned(),
            rows,
            max: u64::from(u32::MAX) * partitions,
        })?;
        let alignment = if slot_words > 2 { MAIN_ALIGNMENT_WORDS } else { SMALL_ALIGNMENT_WORDS };
        let main_words =
            (HEADER_WORDS + SLOTS_PER_MAIN_BUCKET * slot_words).next_multiple_of(alignment);
        let overflow_min = if slot_words > 2 * LINE_WORDS { 1 } else { OVERFLOW_SLOTS_MIN };
        let overflow_words =
            (OVERFLOW_HEADER_WORDS + overflow_min * slot_words).next_multiple_of(LINE_WORDS);
        let overflow_slots =
            ((overflow_words - OVERFLOW_HEADER_WORDS) / slot_words).min(OVERFLOW_SLOTS_MAX);
        Ok(Self {
            value_bytes,
            kind: TableKind::Fixed,
            buckets,
            partitioning,
            version: 0,
            slot_words,
            main_words,
            overflow_slots,
            overflow_words,
        })
    }

    /// The layout of table `name` with byte strings as keys and values, for about `rows` rows in the whole cluster: of kind
    /// [`TableKind::Heap`].
    ///
    /// # Errors
    /// [`StorageError::Rows`] if there are too many.
    pub fn heap(name: &str, rows: u64, partitioning: Partitioning) -> Result<Self, StorageError> {
        let layout = Self::new(name, ROW_NUMBER_BYTES, rows, partitioning)?;
        Ok(Self { kind: TableKind::Heap, ..layout })
    }

    /// As [`Self::heap`], of kind [`TableKind::Ordered`].
    ///
    /// # Errors
    /// As [`Self::heap`].
    pub fn ordered(
        name: &str,
        rows: u64,
        partitioning: Partitioning,
    ) -> Result<Self, StorageError> {
        Ok(Self { kind: TableKind::Ordered, ..Self::heap(name, rows, partitioning)? })
    }

    /// Bytes of the main buckets of `partitions` partitions.
    #[must_use]
    pub fn main_bytes(&self, partitions: usize) -> usize {
        self.partition_words().saturating_mul(partitions).saturating_mul(8)
    }

    /// Whether overflow buckets are cells, which come back when they are empty.
    pub(crate) fn has_overflow_cells(&self) -> bool {
        self.overflow_words == LINE_WORDS
    }

    fn partition_words(&self) -> usize {
        (self.buckets as usize * self.main_words).next_multiple_of(LINE_WORDS)
    }
}

/// A bucket of a table on one node, and the tag of the key that was looked for.
///
/// `first word of the bucket 56 | tag 8`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketAddress(u64);

impl BucketAddress {
    /// No bucket: the arena's first line is never handed out.
    pub const NONE: Self = Self(0);

    #[inline(always)]
    fn new(first_word: usize) -> Self {
        Self((first_word as u64) << 8)
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
        (self.0 >> 8) as usize
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
    partitioning: Partitioning,
    pub(crate) arena: Arc<Arena>,
    /// First word of each partition's main buckets, if this node holds it.
    partitions: Box<[Option<usize>]>,
    /// What only a heap table has.
    heap: Option<Heap>,
}

impl Table {
    /// Allocates the main buckets of the partitions for which `holds` is true.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if they do not fit the arena's limit.
    pub fn new(
        name: &str,
        layout: TableLayout,
        partitioning: Partitioning,
        arena: Arc<Arena>,
        holds: impl Fn(u16) -> bool,
    ) -> Result<Self, StorageError> {
        Self::check_memory(name, &layout, &arena, &holds)?;
        let numbers = || (0..=u16::MAX).take(partitioning.count());
        let held: Vec<bool> = numbers().map(&holds).collect();
        let words = layout.partition_words();
        let allocate = |partition| {
            let first = arena.allocate_fixed(partition, words, Quota::WithinShare);
            first.ok_or_else(|| out_of_memory(name, &layout, &arena, &holds))
        };
        let partitions = numbers()
            .map(|partition| holds(partition).then(|| allocate(partition)).transpose())
            .collect::<Result<_, _>>()?;
        let heap = match layout.kind {
            TableKind::Fixed => None,
            TableKind::Heap | TableKind::Ordered => Some(Heap::new(layout.kind, &held)),
        };
        Ok(Self { name: name.to_owned(), layout, partitioning, arena, partitions, heap })
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

    pub(crate) fn heap(&self) -> Option<&Heap> {
        self.heap.as_ref()
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The memory limit of the node, in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
    }

    /// Where `key` lives in this table, on any node.
    #[inline(always)]
    #[must_use]
    pub fn locate(&self, key: u64) -> Location {
        self.partitioning.locate(key, self.layout.buckets)
    }

    /// Where `key` lives on this node, if it holds the key's partition.
    #[inline(always)]
    #[must_use]
    pub fn address(&self, key: u64) -> Option<BucketAddress> {
        self.address_of(self.locate(key))
    }

    /// Where a key with this location lies on this node, if it holds the key's partition.
    #[inline(always)]
    #[must_use]
    pub fn address_of(&self, location: Location) -> Option<BucketAddress> {
        let address = self.bucket_address(location.partition, location.bucket)?;
        Some(address.with_tag(location.tag))
    }

    /// Where `bucket` of `partition` lies on this node, if there is such a bucket and it holds it.
    #[inline(always)]
    #[must_use]
    pub fn bucket_address(&self, partition: u16, bucket: u32) -> Option<BucketAddress> {
        let first = (*self.partitions.get(usize::from(partition))?)?;
        let first_word = first + bucket as usize * self.layout.main_words;
        (bucket < self.layout.buckets).then_some(BucketAddress::new(first_word))
    }

    /// The partition of a bucket on this node.
    pub(crate) fn partition_of(&self, address: BucketAddress) -> u16 {
        let has = |first: &usize| {
            (*first..*first + self.layout.partition_words()).contains(&address.first_word())
        };
        let partitions = (0..).zip(&self.partitions);
        let mut held = partitions.filter_map(|(partition, first)| Some((partition, (*first)?)));
        held.find(|(_, first)| has(first))
            .expect("an address is in a partition that the node holds")
            .0
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

    fn layout(value_bytes: usize, rows: u64) -> Result<TableLayout, StorageError> {
        let partitioning = Partitioning::new(16).expect("a power of two");
        TableLayout::new("t", value_bytes, rows, partitioning)
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(matches!(layout(0, 1), Err(StorageError::ValueBytes { .. })));
        assert!(matches!(layout(4097, 1), Err(StorageError::ValueBytes { max: 4096, .. })));
        assert!(matches!(layout(8, u64::MAX), Err(StorageError::Rows { .. })));
        assert_eq!(layout(4096, 1).unwrap().overflow_slots, 1);
        assert_eq!(layout(40, 0).unwrap().buckets, 64);
    }

    #[test]
    fn a_table_beyond_the_limit_names_what_is_free() {
        let share = Arena::share_bytes(1 << 20, 16);
        let arena = Arc::new(Arena::new(1 << 20, &[share; 16]).unwrap());
        let partitioning = Partitioning::new(16).unwrap();
        let layout = layout(40, 1_000_000).unwrap();
        let error = Table::new("big", layout, partitioning, arena, |_| true).err().unwrap();
        let StorageError::OutOfMemory { needed, free, limit, .. } = error else {
            panic!("{error}");
        };
        assert!(needed > limit && free < limit && limit == 1 << 20);
    }
}
