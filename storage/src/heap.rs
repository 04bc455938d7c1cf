//! Heap tables: byte-string keys and values of any length, in chains of cells that the slots point to.
//!
//! ```text
//! slot:  hash of the key (1 word) | number of the first cell (low 32), how many cells (16), key bytes (high 16)
//! cell:  link, of the last one the bytes that it holds (low 32 of word 0) | 60 bytes of the row
//! row:   stamp, 6 bytes | key | value
//! ```
//! The *stamp* tells the version of the bucket at which the row was last written (`growth.rs`, `stamp_of`). So a row is valid that
//! shares its bucket with one that has changed (`validate.rs`).
//!
//! A bucket is the same as in a fixed table: same header, same locks, same units. The hash of a key stands
//! where a fixed table has the key. Two keys with one hash are told apart by their bytes.
//!
//! An *ordered* heap table has an index of its keys beside each partition (`ordered_index.rs`).
//!
//! *Source*: MICA's circular log and lossless mode (NSDI'14, section 4.3) point from the slot to the
//! item in the same way. FaSST has fixed tables only.

use std::cell::Cell;

use gannet_rules::rule;

use crate::arena::{Arena, LINE_BYTES, Quota};
use crate::bucket::{Bucket, Slot, held};
use crate::bulk_load::BulkLoad;
use crate::cells::{LINK_MASK, Need, link_of};
use crate::growth::STAMP_BITS;
use crate::key::{HashedKey, KEY_BYTES_MAX};
use crate::layout::TableKind;
use crate::location::Location;
use crate::lock::{Lock, LockMode};
use crate::ordered_index::OrderedIndex;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::read::Read;
use crate::reservations::Reservations;
use crate::scan_barrier::ScanBarriers;
use crate::sync::Ordering;
use crate::table::{BucketAddress, Table};
use crate::unlock::Unlocked;

/// Largest value of a heap table, in bytes.
pub const HEAP_VALUE_BYTES_MAX: usize = 1 << 20;

/// What a partition of a heap table has beside its buckets, on one node.
pub(crate) struct Heap {
    reservations: Reservations,
    bulk_load: BulkLoad,
    /// Of an ordered table.
    order: Option<(OrderedIndex, ScanBarriers)>,
}

/// Bytes of a cell before its row's: the link.
const CELL_LINK_BYTES: usize = 4;
/// Bytes of a row in a cell.
const CELL_ROW_BYTES: usize = LINE_BYTES - CELL_LINK_BYTES;
/// Bytes of a row before its key.
const STAMP_BYTES: usize = STAMP_BITS as usize / 8;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;
const CELLS_MAX: usize =
    (STAMP_BYTES + KEY_BYTES_MAX + HEAP_VALUE_BYTES_MAX).div_ceil(CELL_ROW_BYTES);

/// A row in its cells.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    arena: &'a Arena,
    /// Number of the first cell.
    first: u64,
    cells: usize,
    key_bytes: usize,
}

impl<'a> Row<'a> {
    /// The row that a slot points to. The slot may be torn: the sizes are in their bounds in any case.
    pub(crate) fn of(arena: &'a Arena, slot: &Slot<'_>) -> Self {
        let word = slot.value_word();
        let (cells, key_bytes) = ((word >> 32 & 0xffff) as usize, (word >> 48) as usize);
        Self {
            arena,
            first: word & LINK_MASK,
            cells: cells.min(CELLS_MAX),
            key_bytes: key_bytes.min(KEY_BYTES_MAX),
        }
    }

    /// What a slot holds of the row.
    fn slot_word(self) -> u64 {
        self.first | (self.cells as u64) << 32 | (self.key_bytes as u64) << 48
    }

    /// The bytes of each cell, and how many of them are the row's, behind the link.
    fn parts(self) -> impl Iterator<Item = ([u8; LINE_BYTES], usize)> {
        let mut number = self.first;
        (1..=self.cells).map(move |count| {
            let cell = self.arena.cell(number);
            number = link_of(cell);
            let held = if count < self.cells { CELL_ROW_BYTES } else { (number & 0x3f) as usize };
            let held = held.min(CELL_ROW_BYTES);
            let mut bytes = [0; LINE_BYTES];
            let words = &cell[..(CELL_LINK_BYTES + held).div_ceil(8)];
            for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
                // Relaxed: ordered by the sequence protocol of the bucket, as every word of a slot.
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            (bytes, held)
        })
    }

    /// Appends the key.
    pub(crate) fn copy_key(self, out: &mut Vec<u8>) {
        let (mut skip, mut rest) = (STAMP_BYTES, self.key_bytes);
        for (bytes, held) in self.parts() {
            let taken = rest.min(held.saturating_sub(skip));
            out.extend_from_slice(&bytes[CELL_LINK_BYTES + skip..][..taken]);
            (skip, rest) = (0, rest - taken);
            if rest == 0 {
                break;
            }
        }
    }

    /// Appends the value.
    pub(crate) fn copy_value(self, out: &mut Vec<u8>) {
        let mut skip = STAMP_BYTES + self.key_bytes;
        for (bytes, held) in self.parts() {
            let skipped = skip.min(held);
            out.extend_from_slice(&bytes[CELL_LINK_BYTES..][skipped..held]);
            skip -= skipped;
        }
    }

    /// Appends key and value, as one.
    pub(crate) fn copy(self, out: &mut Vec<u8>) {
        let mut skip = STAMP_BYTES;
        for (bytes, held) in self.parts() {
            out.extend_from_slice(&bytes[CELL_LINK_BYTES..][skip.min(held)..held]);
            skip = 0;
        }
    }

    /// When it was last written.
    pub(crate) fn stamp(self) -> u64 {
        let cell = self.arena.cell(self.first);
        let [low, high] = [0, 1].map(|at: usize| u128::from(cell[at].load(Ordering::Relaxed)));
        let stamp = (low | high << u64::BITS) >> (8 * CELL_LINK_BYTES);
        u64::try_from(stamp & u128::from(STAMP_MASK)).expect("48 bits")
    }

    /// Sets when it was last written; inside the write of its bucket.
    fn store_stamp(self, stamp: u64) {
        const SHIFT: usize = 8 * CELL_LINK_BYTES;
        let cell = self.arena.cell(self.first);
        let mask = u128::from(STAMP_MASK) << SHIFT;
        let [low, high] = [0, 1].map(|at: usize| u128::from(cell[at].load(Ordering::Relaxed)));
        let words = (low | high << u64::BITS) & !mask | u128::from(stamp) << SHIFT & mask;
        for (word, bytes) in cell.iter().zip(words.to_le_bytes().as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
    }

    /// Number of the first cell.
    pub(crate) fn first(self) -> u64 {
        self.first
    }

    pub(crate) fn cells(self) -> usize {
        self.cells
    }

    pub(crate) fn key_bytes(self) -> usize {
        self.key_bytes
    }

    fn has_key(self, key: &[u8]) -> bool {
        let (mut skip, mut rest) = (STAMP_BYTES, key);
        self.key_bytes == key.len()
            && self.parts().any(|(bytes, held)| {
                let (compared, behind) = rest.split_at(rest.len().min(held.saturating_sub(skip)));
                let is_same = bytes[CELL_LINK_BYTES + skip..].starts_with(compared);
                (skip, rest) = (0, if is_same { behind } else { &[0] });
                rest.is_empty()
            })
    }

    /// Writes stamp, key and value into a chain of as many cells as they take, the first of which is `first`.
    fn store(
        (arena, first): (&'a Arena, u64),
        stamp: u64,
        mut key: &[u8],
        mut value: &[u8],
    ) -> Self {
        let (cells, key_bytes) = (cells_of(key.len(), value.len()), key.len());
        let stamp = stamp.to_le_bytes();
        let mut at = CELL_LINK_BYTES + STAMP_BYTES;
        let mut number = first;
        for count in 1..=cells {
            let cell = arena.cell(number);
            number = link_of(cell);
            let mut bytes = [0; LINE_BYTES];
            bytes[CELL_LINK_BYTES..at].copy_from_slice(&stamp[..at - CELL_LINK_BYTES]);
            let mut append = |part: &[u8]| {
                let taken = part.len().min(LINE_BYTES - at);
                bytes[at..at + taken].copy_from_slice(&part[..taken]);
                at += taken;
                taken
            };
            key = &key[append(key)..];
            value = &value[append(value)..];
            let held = at - CELL_LINK_BYTES;
            at = CELL_LINK_BYTES;
            let link = if count < cells { number } else { held as u64 };
            bytes[..CELL_LINK_BYTES].copy_from_slice(&link.to_le_bytes()[..CELL_LINK_BYTES]);
            for (word, bytes) in cell.iter().zip(bytes.chunks_exact(8)) {
                let bytes = bytes.try_into().expect("chunks_exact(8) yields 8 bytes");
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        }
        Self { arena, first, cells, key_bytes }
    }
}

/// Cells of a row.
fn cells_of(key_bytes: usize, value_bytes: usize) -> usize {
    (STAMP_BYTES + key_bytes + value_bytes).div_ceil(CELL_ROW_BYTES)
}

impl Heap {
    pub(crate) fn new(partition: u16, kind: TableKind) -> Self {
        let is_ordered = kind == TableKind::Ordered;
        let order = is_ordered.then(|| (OrderedIndex::new(), ScanBarriers::new()));
        let (reservations, bulk_load) = (Reservations::new(partition), BulkLoad::default());
        Self { reservations, bulk_load, order }
    }

    pub(crate) fn bulk_load(&self) -> &BulkLoad {
        &self.bulk_load
    }

    pub(crate) fn index(&self) -> Option<&OrderedIndex> {
        self.order.as_ref().map(|(index, _)| index)
    }

    pub(crate) fn barriers(&self) -> Option<&ScanBarriers> {
        self.order.as_ref().map(|(_, barriers)| barriers)
    }

    /// Forgets all keys, what locks have reserved, and a bulk load.
    pub(crate) fn clear(&self, arena: &Arena) {
        self.reservations.release_all(arena);
        self.bulk_load.clear();
        if let Some((index, barriers)) = &self.order {
            index.clear();
            barriers.clear();
        }
    }

    /// Forgets the keys of some leaves of the index. Whether there are further ones.
    pub(crate) fn forget_leaves(&self, count: usize) -> bool {
        self.order.as_ref().is_some_and(|(index, _)| index.forget_leaves(count))
    }

    /// Ends what transactions of other epochs than that of `present` have left: reservations, pending entries of the index, notes of
    /// keys that leave it, and scan barriers.
    fn end_dead(&self, arena: &Arena, present: Owner) {
        let rows = if rule!(DEAD_RESERVATIONS) {
            self.reservations.release_dead(arena, present)
        } else {
            Vec::new()
        };
        if let Some((index, barriers)) = &self.order {
            // Each pending entry has a reservation.
            let rows = rows.iter().filter(|_| rule!(DEAD_ENTRIES));
            rows.for_each(|(owner, key)| index.remove_pending(key, *owner));
            index.end_dead(present);
            if rule!(DEAD_BARRIERS) {
                barriers.keep_epoch_of(present);
            }
        }
    }

    pub(crate) fn find<'a>(
        arena: &'a Arena,
        bucket: Bucket<'a>,
        sequence: u64,
        tag: u8,
        key: HashedKey<'_>,
    ) -> Option<(Slot<'a>, Row<'a>)> {
        let slot = bucket.find_where(sequence, tag, key.word(), |slot| {
            Row::of(arena, slot).has_key(key.bytes())
        })?;
        let row = Row::of(arena, &slot);
        Some((slot, row))
    }
}

impl Table {
    /// Ends what transactions of other epochs than `epoch` have left beside lock words, which are dead by themselves. The units of
    /// those that are committed have been applied. Its time grows with the locks that were held, and not with the rows.
    pub fn end_dead(&self, epoch: u32) {
        let present = Owner::of_epoch(epoch);
        for heap in
            (0..=u16::MAX).map_while(|number| self.partition(number)).filter_map(Partition::heap)
        {
            heap.end_dead(self.arena(), present);
        }
    }

    /// What a new row takes.
    pub(crate) fn need_of(&self, key: HashedKey<'_>, value_bytes: usize) -> Need {
        let cells = cells_of(key.bytes().len(), value_bytes);
        let index_bytes = match self.layout().kind {
            TableKind::Fixed | TableKind::Heap => 0,
            TableKind::Ordered => OrderedIndex::entry_bytes(key.bytes().len()),
        };
        Need { cells, index_bytes }
    }

    fn heap_of(&self, partition: u16) -> &Heap {
        self.heap(partition).expect("an address is in a partition that the node holds")
    }

    /// Reads a row of a heap table, whose key lives at `address`; appends its value to `out`.
    ///
    /// As [`Table::read`].
    pub fn read_row(
        &self,
        address: BucketAddress,
        key: HashedKey<'_>,
        reader: Owner,
        out: &mut Vec<u8>,
    ) -> Read {
        let start = out.len();
        self.read_with(address, key.word(), reader, |bucket, sequence| {
            out.truncate(start);
            let found = Heap::find(self.arena(), bucket, sequence, address.tag(), key);
            found.map(|(_, row)| row.copy_value(out)).is_some()
        })
    }

    /// Locks the bucket of a row of a heap table; as [`Table::lock`], without the value.
    ///
    /// `value_bytes` is the size of the value that the transaction is about to write. For an insert
    /// into an ordered table the key becomes pending.
    pub fn lock_row(
        &self,
        address: BucketAddress,
        key: HashedKey<'_>,
        owner: Owner,
        (mode, value_bytes): (LockMode, usize),
    ) -> Lock {
        let (arena, row) = (self.arena(), (owner, key));
        let Heap { reservations, order, .. } = self.heap_of(self.locate(key.word()).partition);
        let cells = cells_of(key.bytes().len(), value_bytes);
        let quota = self.layout().quota;
        let cells_before = Cell::new(0);
        let is_reserved = Cell::new(false);
        let has_room = || {
            let needs_none = mode == LockMode::Delete || cells_before.get() == cells;
            let need = match mode {
                LockMode::Insert => self.need_of(key, value_bytes),
                LockMode::Update | LockMode::Delete => Need::cells(cells),
            };
            is_reserved.set(!needs_none && reservations.reserve(arena, (need, quota), row));
            needs_none || is_reserved.get()
        };
        let lock =
            self.lock_with(address, (owner, key.word()), mode, has_room, |bucket, sequence| {
                let found = Heap::find(arena, bucket, sequence, address.tag(), key);
                cells_before.set(found.as_ref().map_or(0, |(_, row)| row.cells));
                found.is_some()
            });
        if is_reserved.get() && !matches!(lock, Lock::Granted { .. }) {
            reservations.release(arena, row);
        }
        if let (Some((index, _)), Lock::Granted { .. }) = (order, lock) {
            match mode {
                LockMode::Insert => index.add_pending(key.bytes(), owner),
                LockMode::Delete => index.add_leaving(key.bytes(), owner),
                LockMode::Update => {}
            }
        }
        lock
    }

    /// Releases the bucket of a row of any table that was locked and not written; as [`Table::unlock`].
    pub fn unlock_row(&self, address: BucketAddress, key: HashedKey<'_>, owner: Owner) -> Unlocked {
        let partition = self.locate(key.word()).partition;
        if let Some(heap) = self.heap(partition) {
            if let Some(index) = heap.index() {
                index.remove_pending(key.bytes(), owner);
                index.remove_leaving(key.bytes(), owner);
            }
            heap.reservations.release(self.arena(), (owner, key));
        }
        self.unlock(address, partition, owner)
    }

    /// Writes a row inside the write of its bucket; a replica does not refuse it.
    pub(crate) fn put_row(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        (owner, key): (Owner, HashedKey<'_>),
        (stamp, value): (u64, &[u8]),
        quota: Quota,
    ) -> bool {
        let row = (owner, key);
        let location = self.locate(key.word());
        let (arena, heap) = (self.arena(), self.heap_of(location.partition));
        let reservations = &heap.reservations;
        let need = self.need_of(key, value.len());
        if let Some((slot, before)) = Heap::find(arena, bucket, held(*next), location.tag, key) {
            if before.cells == need.cells {
                reservations.release(arena, row);
                Row::store((arena, before.first), stamp, key.bytes(), value);
                return true;
            }
            // Its key is in the index already.
            let need = Need::cells(need.cells);
            let Some(first) = reservations.allocate(arena, need, quota, row) else { return false };
            let stored = Row::store((arena, first), stamp, key.bytes(), value);
            slot.store_value_word(stored.slot_word());
            arena.free(location.partition, before.first, Need::cells(before.cells));
            return true;
        }
        let first = reservations.allocate(arena, need, quota, row);
        first.is_some_and(|first| {
            self.add_row((bucket, next), key, (stamp, value), (first, need), quota)
        })
    }

    /// Adds a row that is not there, inside the write of its bucket, in the cells that were allocated for it. If there is no memory for a slot,
    /// they are freed.
    pub(crate) fn add_row(
        &self,
        (bucket, next): (Bucket<'_>, &mut u64),
        key: HashedKey<'_>,
        (stamp, value): (u64, &[u8]),
        (first, need): (u64, Need),
        quota: Quota,
    ) -> bool {
        let Location { partition, tag, .. } = self.locate(key.word());
        let added = Row::store((self.arena(), first), stamp, key.bytes(), value);
        let slot_word = added.slot_word().to_le_bytes();
        if !bucket.insert(next, tag, key.word(), &slot_word, quota) {
            self.arena().free(partition, first, need);
            return false;
        }
        if let Some(index) = self.heap_of(partition).index() {
            index.add_applied(key.bytes());
        }
        true
    }

    /// Removes a row inside the write of its bucket, which notes the stamp of that.
    ///
    /// Other rows with the same hash are marked as if they were written: observations name the hash alone.
    pub(crate) fn remove_row(
        &self,
        bucket: Bucket<'_>,
        next: u64,
        (owner, key): (Owner, HashedKey<'_>),
        stamp: u64,
    ) {
        let location = self.locate(key.word());
        let (arena, heap) = (self.arena(), self.heap_of(location.partition));
        heap.reservations.release(arena, (owner, key));
        let Some((slot, row)) = Heap::find(arena, bucket, held(next), location.tag, key) else {
            return;
        };
        bucket.clear(next, &slot);
        bucket.store_deleted(stamp);
        if rule!(ONE_HASH) {
            bucket.find_where(held(next), location.tag, key.word(), |slot| {
                Row::of(arena, slot).store_stamp(stamp);
                false
            });
        }
        let index_bytes = self.need_of(key, 0).index_bytes;
        arena.free(location.partition, row.first, Need { cells: row.cells, index_bytes });
        if let Some(index) = heap.index() {
            index.remove(key.bytes());
        }
    }
}
