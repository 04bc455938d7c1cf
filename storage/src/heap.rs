//! Heap tables: byte-string keys and values of any length, in blocks that the slots point into.
//!
//! ```text
//! slot:   hash of the key (1 word) | first word of the block (1 word)
//! block:  word 0: key bytes (low 32) | value bytes (high 32)
//!         word 1..: key, padded to words | value, padded to words
//! ```
//! A bucket is what it is in a fixed table: same header, same locks, same units. The hash takes the
//! place of the key; two keys with one hash are told apart by their bytes.
//!
//! An *ordered* heap table has an index of its keys beside each partition (`ordered_index.rs`).
//!
//! *Source*: MICA's circular log and lossless mode (NSDI'14, section 4.3) point from the slot to the
//! item in the same way. FaSST has fixed tables only.

use std::cell::Cell;

use crate::arena::{Arena, Quota};
use crate::bucket::{Bucket, Slot};
use crate::guard::Guards;
use crate::lock::{Lock, LockMode};
use crate::ordered_index::{LeafChange, LeafVersion, OrderedIndex};
use crate::owner::Owner;
use crate::read::Read;
use crate::slab::Slab;
use crate::sync::Ordering;
use crate::table::{Place, Table};
use crate::unlock::Unlocked;

/// Largest key of a heap table, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;
/// Largest value of a heap table, in bytes.
pub const HEAP_VALUE_BYTES_MAX: usize = 1 << 20;

/// A key of a heap table and its hash, which stands for it where a fixed table has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowKey<'a> {
    hash: u64,
    bytes: &'a [u8],
}

impl<'a> RowKey<'a> {
    /// Hashes a key (XXH3, 64 bits).
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { hash: xxhash_rust::xxh3::xxh3_64(bytes), bytes }
    }

    /// A key whose hash is known, because it was compared when the key came in.
    #[must_use]
    pub fn with_hash(hash: u64, bytes: &'a [u8]) -> Self {
        debug_assert_eq!(hash, Self::new(bytes).hash, "the hash is that of the key");
        Self { hash, bytes }
    }

    /// What [`Table::locate`] takes.
    #[must_use]
    pub fn hash(self) -> u64 {
        self.hash
    }

    /// The key.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// What a heap table has beside its buckets on one node.
pub(crate) struct Heap {
    slab: Slab,
    /// By partition: what those that this node holds have in an ordered table.
    ordered: Box<[Option<(OrderedIndex, Guards)>]>,
}

/// A row in its block.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    arena: &'a Arena,
    first_word: usize,
    key_bytes: usize,
    value_bytes: usize,
}

impl<'a> Block<'a> {
    /// The block that a slot points to. Its sizes are those of some row of its class at any time.
    #[expect(clippy::cast_possible_truncation, reason = "an arena is shorter than usize::MAX")]
    pub(crate) fn of(arena: &'a Arena, slot: &Slot<'_>) -> Self {
        let first_word = slot.value_word() as usize;
        let sizes = arena.words(first_word, 1)[0].load(Ordering::Relaxed);
        let (key_bytes, value_bytes) = (sizes as u32 as usize, (sizes >> 32) as usize);
        Self { arena, first_word, key_bytes, value_bytes }
    }

    fn words(self) -> usize {
        block_words(self.key_bytes, self.value_bytes)
    }

    /// Whether a row of `words` words takes a block of the same class.
    fn holds(self, words: usize) -> bool {
        Slab::block_words(self.words()) == Slab::block_words(words)
    }

    fn copy(self, skip_bytes: usize, bytes: usize, out: &mut Vec<u8>) {
        let words =
            self.arena.words(self.first_word + 1 + skip_bytes.div_ceil(8), bytes.div_ceil(8));
        let start = out.len();
        out.reserve(8 * words.len());
        // Relaxed: ordered by the sequence protocol of the bucket, as every word of a slot.
        out.extend(words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
        out.truncate(start + bytes);
    }

    /// Appends the key.
    pub(crate) fn copy_key(self, out: &mut Vec<u8>) {
        self.copy(0, self.key_bytes, out);
    }

    /// Appends the value.
    pub(crate) fn copy_value(self, out: &mut Vec<u8>) {
        self.copy(self.key_bytes, self.value_bytes, out);
    }

    pub(crate) fn key_bytes(self) -> usize {
        self.key_bytes
    }

    fn has_key(self, key: &[u8]) -> bool {
        self.key_bytes == key.len() && {
            let words = self.arena.words(self.first_word + 1, key.len().div_ceil(8));
            let stored = words.iter().map(|word| word.load(Ordering::Relaxed));
            stored.eq(padded_words(key))
        }
    }

    fn store(arena: &Arena, first_word: usize, key: &[u8], value: &[u8]) {
        let words = arena.words(first_word, block_words(key.len(), value.len()));
        let sizes = key.len() as u64 | (value.len() as u64) << 32;
        let contents = std::iter::once(sizes).chain(padded_words(key)).chain(padded_words(value));
        for (word, content) in words.iter().zip(contents) {
            word.store(content, Ordering::Relaxed);
        }
    }
}

fn block_words(key_bytes: usize, value_bytes: usize) -> usize {
    1 + key_bytes.div_ceil(8) + value_bytes.div_ceil(8)
}

/// The bytes as little-endian words, the last one filled up with zeros.
fn padded_words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

impl Heap {
    /// `is_ordered`: by partition, whether its keys are in order.
    pub(crate) fn new(is_ordered: impl Iterator<Item = bool>) -> Self {
        let ordered = |is_ordered: bool| is_ordered.then(|| (OrderedIndex::new(), Guards::new()));
        Self { slab: Slab::new(), ordered: is_ordered.map(ordered).collect() }
    }

    pub(crate) fn index(&self, partition: u16) -> Option<&OrderedIndex> {
        self.ordered.get(usize::from(partition))?.as_ref().map(|(index, _)| index)
    }

    pub(crate) fn guards(&self, partition: u16) -> Option<&Guards> {
        self.ordered.get(usize::from(partition))?.as_ref().map(|(_, guards)| guards)
    }

    fn find<'a>(
        arena: &'a Arena,
        bucket: Bucket<'a>,
        sequence: u64,
        tag: u8,
        key: RowKey<'_>,
    ) -> Option<(Slot<'a>, Block<'a>)> {
        let slot = bucket.find_where(sequence, tag, key.hash, |slot| {
            Block::of(arena, slot).has_key(key.bytes)
        })?;
        let block = Block::of(arena, &slot);
        Some((slot, block))
    }
}

impl Table {
    fn heap_of(&self) -> &Heap {
        self.heap().expect("rows with byte-string keys are asked of heap tables alone")
    }

    /// Whether this is a heap table, and its keys are in order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.layout().is_ordered
    }

    /// Reads a row of a heap table, whose key lives at `place`; appends its value to `out`.
    ///
    /// As [`Table::read`].
    pub fn read_row(
        &self,
        place: Place,
        key: RowKey<'_>,
        reader: Owner,
        out: &mut Vec<u8>,
    ) -> Read {
        let bucket = self.bucket(place);
        let start = out.len();
        self.read_with(bucket, reader, |sequence| {
            out.truncate(start);
            let found = Heap::find(self.arena(), bucket, sequence, place.tag(), key);
            found.map(|(_, block)| block.copy_value(out)).is_some()
        })
    }

    /// Locks the bucket of a row of a heap table; as [`Table::lock`], without the value.
    ///
    /// `value_bytes` is the size of the value that the transaction is about to write. For an insert
    /// into an ordered table the key becomes pending, and the leaf that took it is returned.
    pub fn lock_row(
        &self,
        place: Place,
        key: RowKey<'_>,
        owner: Owner,
        (mode, value_bytes): (LockMode, usize),
    ) -> (Lock, Option<LeafChange>) {
        let bucket = self.bucket(place);
        let (arena, heap, row) = (self.arena(), self.heap_of(), (owner, key.hash));
        let words = block_words(key.bytes.len(), value_bytes);
        let block_before = Cell::new(None);
        let is_reserved = Cell::new(false);
        let has_room = || {
            let needs_none = mode == LockMode::Delete
                || block_before.get().is_some_and(|block: Block<'_>| block.holds(words));
            is_reserved.set(!needs_none && heap.slab.reserve(arena, words, row));
            needs_none || is_reserved.get()
        };
        let lock = self.lock_with(bucket, owner, mode, has_room, |sequence| {
            let found = Heap::find(arena, bucket, sequence, place.tag(), key);
            block_before.set(found.as_ref().map(|(_, block)| *block));
            found.is_some()
        });
        if is_reserved.get() && !matches!(lock, Lock::Granted { .. }) {
            heap.slab.release(row);
        }
        let is_insert = mode == LockMode::Insert && matches!(lock, Lock::Granted { .. });
        let index = if is_insert { heap.index(self.locate(key.hash).partition) } else { None };
        (lock, index.map(|index| index.add_pending(key.bytes, owner)))
    }

    /// Releases the bucket of a row that was locked and not written; as [`Table::unlock`].
    pub fn unlock_row(&self, place: Place, key: RowKey<'_>, owner: Owner) -> Unlocked {
        let heap = self.heap_of();
        if let Some(index) = heap.index(self.locate(key.hash).partition) {
            index.remove_pending(key.bytes, owner);
        }
        heap.slab.release((owner, key.hash));
        self.unlock(place, owner)
    }

    /// Whether a leaf of `partition` is as a scan saw it; no for a partition that is not here.
    #[must_use]
    pub fn is_leaf_unchanged(&self, partition: u16, seen: LeafVersion) -> bool {
        let index = self.heap().and_then(|heap| heap.index(partition));
        index.is_some_and(|index| index.is_unchanged(seen))
    }

    /// Writes a row inside the write of its bucket; a replica does not refuse it.
    pub(crate) fn put_row(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        (owner, key): (Owner, RowKey<'_>),
        value: &[u8],
        quota: Quota,
    ) -> bool {
        let row = (owner, key.hash);
        let location = self.locate(key.hash);
        let (arena, heap) = (self.arena(), self.heap_of());
        let words = block_words(key.bytes.len(), value.len());
        if let Some((slot, block)) = Heap::find(arena, bucket, *next << 32, location.tag, key) {
            if block.holds(words) {
                Block::store(arena, block.first_word, key.bytes, value);
                return true;
            }
            let Some(first) = heap.slab.allocate(arena, words, quota, row) else { return false };
            Block::store(arena, first, key.bytes, value);
            slot.store_value_word(first as u64);
            heap.slab.free(block.first_word, block.words());
            return true;
        }
        let Some(first) = heap.slab.allocate(arena, words, quota, row) else { return false };
        Block::store(arena, first, key.bytes, value);
        if !bucket.insert(next, location.tag, key.hash, &(first as u64).to_le_bytes(), quota) {
            heap.slab.free(first, words);
            return false;
        }
        if let Some(index) = heap.index(location.partition) {
            index.add_applied(key.bytes);
        }
        true
    }

    /// Removes a row inside the write of its bucket.
    pub(crate) fn remove_row(&self, bucket: Bucket<'_>, next: u64, key: RowKey<'_>) {
        let location = self.locate(key.hash);
        let (arena, heap) = (self.arena(), self.heap_of());
        let Some((slot, block)) = Heap::find(arena, bucket, next << 32, location.tag, key) else {
            return;
        };
        slot.clear();
        heap.slab.free(block.first_word, block.words());
        if let Some(index) = heap.index(location.partition) {
            index.remove(key.bytes);
        }
    }
}
