//! Cells: the cache lines that rows of heap tables and overflow buckets are made of, and the share of memory of each partition.
//!
//! ```text
//! cell, one cache line:  word 0  link: number of the next cell, 0 = none (low 32) | contents (high 32)
//!                        word 1.. contents
//! ```
//! All cells have one size. A longer row is a chain of cells. So a freed cell serves any row, overflow bucket and table of its
//! partition, and memory is not fragmented.
//!
//! An optimistic reader may still hold a cell that was freed and used again. It may then read any bytes, so every cell number, size
//! and walk along a chain is bounded where it is used. A cell is freed while the sequence of its bucket is odd, so the reader
//! notices the change and reads again. No writer waits for readers: a backup can use a freed cell at once, and its primary
//! relies on that.
//!
//! *Shares* (rule C9): each partition has a share of the limit, which is the same at all of its copies. A primary refuses a lock if its partition's
//! share has no room. A row, or the chain of a bucket, takes equally many cells at every copy. The primary counts a new cell when it grants the lock,
//! before any copy takes it. It gives a cell back after all backups have. So a backup never holds more cells than its primary counts, in whatever
//! order updates arrive, and what a primary grants fits every copy.
//!
//! Cells lie in *chunks*, extents of the arena. A share keeps its chunks while a cell is in use or reserved: it counts the most cells that were at a
//! time, its *peak*, as main buckets and longer overflow buckets cannot lie between cells. When none is in use the chunks are idle, and serve
//! anything again. That moment is a count of zero at the primary, and the backups had theirs before. So the peak of a backup does not exceed that of
//! its primary, but for bulk loads: each copy splits buckets in the order in which rows come there, so by some overflow cells.
//!
//! An entry of an ordered index lies in ordinary memory and is counted in the share as a row's cells are. Free cells keep their
//! memory, so what is counted can be less than what the process has touched.
//!
//! *Not here*: which lines of the arena are handed out (`extents.rs`); what a table gives back when it goes (`give_back.rs`).

use crate::arena::{Arena, LINE_BYTES, LINE_WORDS, Quota};
use crate::extents::Extent;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};
use gannet_rules::rule;
use std::sync::atomic::AtomicUsize;

/// Of a partition's share, one in so many lines is left for the first buckets of tables.
const LEFT_FOR_TABLES: usize = 128;

/// The link in a cell's word 0.
pub(crate) const LINK_MASK: u64 = 0xffff_ffff;
/// Lines of a chunk, while the share has so many.
const CHUNK_LINES: usize = 1024;

/// The memory that a partition may take, and has taken.
pub(crate) struct Share {
    /// In lines. It changes when another node takes a part of what the copies of others may take. Loom does not explore it.
    limit: AtomicUsize,
    lines: Mutex<Lines>,
}

/// What a row or an overflow bucket takes of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) cells: usize,
    /// Bytes of its entry in an ordered index, which lies in ordinary memory.
    pub(crate) index_bytes: usize,
}

impl Need {
    pub(crate) const NOTHING: Self = Self { cells: 0, index_bytes: 0 };

    pub(crate) fn cells(cells: usize) -> Self {
        Self { cells, index_bytes: 0 }
    }
}

/// The lines of a partition.
#[derive(Default)]
struct Lines {
    /// Those of main buckets, and of overflow buckets that are no cells.
    fixed: usize,
    /// Cells, in use or free.
    cells: usize,
    /// Free cells, and the first of their chain.
    free: usize,
    first_free: u64,
    /// Cells reserved by locks.
    reserved: usize,
    /// The most cells in use or reserved at a time, since none was.
    peak: usize,
    /// Bytes of ordered indexes, in use or reserved.
    index_bytes: usize,
    /// What the cells lie in.
    chunks: Vec<Extent>,
    /// Lines at the end of the last chunk that are no cells yet.
    unused: usize,
    /// Chunks without a cell.
    idle: Vec<Extent>,
}

impl Lines {
    /// Cells in use or reserved.
    fn in_use(&self) -> usize {
        self.cells - self.free + self.reserved
    }

    /// Reserves what is needed, if it fits the limit or need not.
    fn reserve(&mut self, need: Need, limit: usize, quota: Quota) -> bool {
        let in_use = self.in_use() + need.cells;
        let index_bytes = self.index_bytes + need.index_bytes;
        let peak = self.peak.max(in_use);
        let taken = self.fixed + peak.max(in_use + index_bytes.div_ceil(LINE_BYTES));
        let has_room = taken <= limit || quota == Quota::Decided;
        if has_room {
            self.reserved += need.cells;
            (self.peak, self.index_bytes) = (peak, index_bytes);
        }
        has_room
    }

    /// Ends a reservation.
    fn release(&mut self, reserved: Need) {
        self.reserved -= reserved.cells;
        self.index_bytes -= reserved.index_bytes;
    }

    /// Makes the chunks idle if no cell is in use or reserved.
    fn settle(&mut self) {
        if self.in_use() == 0 {
            self.idle.append(&mut self.chunks);
            (self.cells, self.free, self.first_free) = (0, 0, 0);
            (self.unused, self.peak) = (0, 0);
        }
    }

    /// Lines that hold something, or are reserved.
    fn used(&self) -> usize {
        self.fixed + self.in_use() + self.index_bytes.div_ceil(LINE_BYTES)
    }

    /// Lines of extents beside idle ones.
    fn held(&self) -> usize {
        self.fixed + self.cells + self.unused
    }

    /// Extents without a cell: the idle chunks, and the rest of the last one.
    fn take_spare(&mut self) -> Vec<Extent> {
        let mut spare = std::mem::take(&mut self.idle);
        if let Some(last) = self.chunks.last_mut().filter(|_| self.unused > 0) {
            spare.push(last.split_off(last.lines - self.unused));
            self.unused = 0;
        }
        spare
    }
}

impl Share {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { limit: AtomicUsize::new(bytes / LINE_BYTES), lines: Mutex::default() }
    }

    /// What has been granted beyond a new limit stays.
    pub(crate) fn set_limit(&self, bytes: usize) {
        self.limit.store(bytes / LINE_BYTES, Ordering::Relaxed);
    }

    /// In lines.
    fn limit(&self) -> usize {
        // Relaxed: it orders nothing.
        self.limit.load(Ordering::Relaxed)
    }

    /// Lines that may be taken by a quota.
    fn limit_of(&self, quota: Quota) -> usize {
        let limit = self.limit();
        match quota {
            Quota::Share | Quota::Decided => limit,
            Quota::WithinShare => limit - limit / LEFT_FOR_TABLES,
        }
    }

    /// What rows may take.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_of(Quota::WithinShare) * LINE_BYTES
    }

    /// Lines that are left for the first buckets of a table.
    pub(crate) fn free_lines(&self) -> usize {
        self.left(&lock(&self.lines), Quota::Share)
    }

    fn left(&self, lines: &Lines, quota: Quota) -> usize {
        self.limit_of(quota).saturating_sub(lines.used().max(lines.fixed + lines.peak))
    }

    /// Lines that hold something, or are reserved.
    pub(crate) fn used_lines(&self) -> usize {
        lock(&self.lines).used()
    }
}

/// The number of the cell behind this one, 0 = none.
#[inline(always)]
pub(crate) fn link_of(cell: &[AtomicU64]) -> u64 {
    // Relaxed: ordered by the sequence protocol of a bucket, or by the lock of the free cells.
    cell[0].load(Ordering::Relaxed) & LINK_MASK
}

/// Links a cell to another, and leaves the rest of word 0 as it is.
pub(crate) fn store_link(cell: &[AtomicU64], link: u64) {
    let word = cell[0].load(Ordering::Relaxed) & !LINK_MASK | link;
    cell[0].store(word, Ordering::Relaxed);
}

impl Arena {
    /// The words of cell `number`; those of line 0, which stay zero, for a number that is none.
    #[inline(always)]
    pub(crate) fn cell(&self, number: u64) -> &[AtomicU64] {
        self.lines(number, LINE_WORDS)
    }

    /// `words` words from line `number` on; as [`Self::cell`].
    #[inline(always)]
    pub(crate) fn lines(&self, number: u64, words: usize) -> &[AtomicU64] {
        let first = (number & LINK_MASK) as usize * LINE_WORDS;
        let is_here = first + words <= self.words_mapped() || !rule!(MAPPED_CELLS);
        self.words(if is_here { first } else { 0 }, words)
    }

    /// The last of `count` cells that are linked to each other.
    fn last_cell(&self, first: u64, count: usize) -> &[AtomicU64] {
        (1..count).fold(self.cell(first), |cell, _| self.cell(link_of(cell)))
    }

    /// Takes consecutive words for a partition, rounded up to whole lines, for main buckets or an overflow bucket that is no cell;
    /// `None` when the quota is used up. They are zero.
    pub(crate) fn allocate_fixed(
        &self,
        partition: u16,
        words: usize,
        quota: Quota,
    ) -> Option<usize> {
        let count = words.div_ceil(LINE_WORDS);
        let share = self.share(partition);
        let mut lines = lock(&share.lines);
        if count > share.left(&lines, quota) && quota != Quota::Decided {
            return None;
        }
        if !lines.idle.is_empty() || lines.held() + count > share.limit() {
            self.give_back(lines.take_spare());
        }
        let extent = self.take_extent(count)?;
        lines.fixed += count;
        Some(extent.first_word())
    }

    /// Takes back extents that [`Self::allocate_fixed`] gave a partition, and gives up its idle chunks.
    pub(crate) fn free_fixed(&self, partition: u16, extents: Vec<Extent>) {
        let count: usize = extents.iter().map(|extent| extent.lines).sum();
        // The memory is there before it is counted as free.
        self.give_back(extents);
        let mut lines = lock(&self.share(partition).lines);
        lines.fixed -= count;
        let idle = std::mem::take(&mut lines.idle);
        drop(lines);
        self.give_back(idle);
    }

    /// Counts extents that [`Self::allocate_fixed`] gave a partition as free. They are handed out again after [`Self::take_retired`].
    pub(crate) fn retire_fixed(&self, partition: u16, extents: Vec<Extent>) {
        let count: usize = extents.iter().map(|extent| extent.lines).sum();
        self.retire(extents);
        let mut lines = lock(&self.share(partition).lines);
        lines.fixed -= count;
    }

    /// Reserves what is needed within a quota of a partition.
    pub(crate) fn reserve(&self, partition: u16, need: Need, quota: Quota) -> bool {
        let share = self.share(partition);
        lock(&share.lines).reserve(need, share.limit_of(quota), quota)
    }

    /// Ends a reservation.
    pub(crate) fn release(&self, partition: u16, reserved: Need) {
        let mut lines = lock(&self.share(partition).lines);
        lines.release(reserved);
        lines.settle();
    }

    /// Allocates a chain of as many cells as are needed, the last without a link, in place of what was reserved: the number of
    /// the first. `None` when the quota is used up; the reservation ends then, too.
    pub(crate) fn allocate(
        &self,
        partition: u16,
        need: Need,
        reserved: Need,
        quota: Quota,
    ) -> Option<u64> {
        let share = self.share(partition);
        let mut lines = lock(&share.lines);
        lines.release(reserved);
        if !lines.reserve(need, share.limit_of(quota), quota) {
            lines.settle();
            return None;
        }
        if rule!(REUSE_FENCE) {
            // Release: pairs with the Acquire fence of a reader of the bucket that a cell was taken
            // from. A reader that sees the new contents of the cell sees that the sequence of that bucket
            // has moved on, which the lock above has made known to this thread.
            fence(Ordering::Release);
        }
        let count = need.cells;
        while lines.free < count {
            if !self.add_cells(&mut lines, share.limit(), count) {
                lines.release(need);
                lines.settle();
                return None;
            }
        }
        let (first, last) = (lines.first_free, self.last_cell(lines.first_free, count));
        // What was reserved is in use now.
        (lines.first_free, lines.free) = (link_of(last), lines.free - count);
        lines.reserved -= count;
        store_link(last, 0);
        Some(first)
    }

    /// Adds free cells until there are `count`, or the chunk ends; `false` when the arena has no more lines.
    fn add_cells(&self, lines: &mut Lines, limit: usize, count: usize) -> bool {
        let missing = count - lines.free;
        if lines.unused == 0 {
            let room = limit.saturating_sub(lines.held());
            let wanted = CHUNK_LINES.min(room).max(missing);
            let Some(chunk) = lines.idle.pop().or_else(|| self.take_some_extent(wanted)) else {
                return false;
            };
            lines.unused = chunk.lines;
            lines.chunks.push(chunk);
        }
        let end_of_chunk = lines.chunks.last().map_or(0, |chunk| chunk.end());
        let (first, added) = (end_of_chunk - lines.unused, missing.min(lines.unused));
        let (first, end) = (first as u64, (first + added) as u64);
        assert!(end <= LINK_MASK, "the arena holds fewer than 2^32 cache lines");
        (first + 1..end).for_each(|number| store_link(self.cell(number - 1), number));
        store_link(self.cell(end - 1), lines.first_free);
        lines.first_free = first;
        (lines.cells, lines.free) = (lines.cells + added, lines.free + added);
        lines.unused -= added;
        true
    }

    /// Takes back what was allocated: cells that are linked to each other, while the sequence of their bucket is odd.
    pub(crate) fn free(&self, partition: u16, first: u64, taken: Need) {
        let last = self.last_cell(first, taken.cells);
        let mut lines = lock(&self.share(partition).lines);
        store_link(last, lines.first_free);
        (lines.first_free, lines.free) = (first, lines.free + taken.cells);
        lines.index_bytes -= taken.index_bytes;
        lines.settle();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn arena(lines: usize) -> Arena {
        Arena::new((lines + 1) * LINE_BYTES, &[lines * LINE_BYTES]).expect("address space")
    }

    /// The numbers of a chain of `count` cells.
    fn numbers(arena: &Arena, first: u64, count: usize) -> Vec<u64> {
        let next = |number: &u64| Some(link_of(arena.cell(*number))).filter(|link| *link != 0);
        let numbers: Vec<u64> = std::iter::successors(Some(first), next).collect();
        assert_eq!(numbers.len(), count);
        numbers
    }

    fn allocate(arena: &Arena, count: usize) -> Option<u64> {
        arena.allocate(0, Need::cells(count), Need::NOTHING, Quota::WithinShare)
    }

    #[test]
    fn cells_serve_every_length_again() {
        let arena = arena(60);
        for round in 0..3 {
            for length in [1, 2, 3, 10, 30, 60] {
                let chains: Vec<u64> = std::iter::from_fn(|| allocate(&arena, length)).collect();
                assert_eq!(chains.len(), 60 / length, "round {round}");
                let mut all: Vec<u64> =
                    chains.iter().flat_map(|first| numbers(&arena, *first, length)).collect();
                all.sort_unstable();
                assert_eq!(all, (1..=60).collect::<Vec<_>>());
                // Every second one first, so that they are mixed.
                let even = chains.iter().step_by(2);
                for first in even.chain(chains.iter().skip(1).step_by(2)) {
                    arena.free(0, *first, Need::cells(length));
                }
                assert_eq!(arena.used_bytes(), LINE_BYTES);
            }
        }
    }

    #[test]
    fn reserved_cells_are_kept_for_their_owner() {
        let arena = arena(10);
        let reserve = |cells| arena.reserve(0, Need::cells(cells), Quota::WithinShare);
        assert!(reserve(4) && !reserve(7));
        let taken = allocate(&arena, 6).unwrap();
        assert_eq!(allocate(&arena, 1), None);
        assert_eq!(arena.allocate_fixed(0, 1, Quota::WithinShare), None);
        let promised = Need::cells(4);
        assert!(arena.allocate(0, promised, promised, Quota::Decided).is_some());
        arena.free(0, taken, Need::cells(6));
        assert!(reserve(6) && !reserve(1));
        arena.release(0, Need::cells(6));
        assert_eq!(arena.allocate_fixed(0, 1, Quota::WithinShare), None, "they stay cells");
        assert!(allocate(&arena, 6).is_some());
    }

    #[test]
    fn a_number_that_is_no_cell_reads_as_zeros() {
        let arena = arena(2);
        assert_eq!(arena.cell(1 << 31)[0].load(Ordering::Relaxed), 0);
    }
}
