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
//! *Shares* (rule C9): each partition has a share of the limit, which is the same at all of its copies. A primary refuses a lock
//! if its partition's share has no room. A row, or the chain of a bucket, takes equally many cells at every copy. The primary
//! counts a new cell when it grants the lock, before any copy takes it. It gives a cell back after all backups have. So a backup
//! never holds more cells than its primary counts, in whatever order updates arrive, and what a primary grants fits every copy.
//!
//! An entry of an ordered index lies in ordinary memory and is counted in the share as a row's cells are. Free cells keep their
//! memory, so what is counted can be less than what the process has touched.
//!
//! *Not here*: lines that are never freed, in `arena.rs`: main buckets and longer overflow buckets. They cannot lie in free cells,
//! so a partition keeps the most cells that it ever counted.

use crate::arena::{Arena, LINE_BYTES, LINE_WORDS, Quota};
use crate::mutant::{Mutant, active};
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};

/// The link in a cell's word 0.
pub(crate) const LINK_MASK: u64 = 0xffff_ffff;

/// The memory that a partition may take, and has taken.
pub(crate) struct Share {
    limit: usize,
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
    /// Those that are never freed.
    fixed: usize,
    /// Cells taken from the arena, in use or free.
    cells: usize,
    /// Free cells, and the first of their chain.
    free: usize,
    first_free: u64,
    /// Cells reserved by locks.
    reserved: usize,
    /// The most cells that were ever in use or reserved at a time.
    peak: usize,
    /// Bytes of ordered indexes, in use or reserved.
    index_bytes: usize,
}

impl Lines {
    /// Reserves what is needed, if it fits the limit or need not.
    fn reserve(&mut self, need: Need, limit: usize, quota: Quota) -> bool {
        let reserved = self.reserved + need.cells;
        let in_use = self.cells - self.free + reserved;
        let index_bytes = self.index_bytes + need.index_bytes;
        let peak = self.peak.max(in_use);
        let taken = self.fixed + peak.max(in_use + index_bytes.div_ceil(LINE_BYTES));
        let has_room = taken <= limit || quota == Quota::Decided;
        if has_room {
            (self.reserved, self.peak, self.index_bytes) = (reserved, peak, index_bytes);
        }
        has_room
    }

    fn release(&mut self, reserved: Need) {
        self.reserved -= reserved.cells;
        self.index_bytes -= reserved.index_bytes;
    }

    /// Lines that hold something, or are reserved.
    fn used(&self) -> usize {
        let index_lines = self.index_bytes.div_ceil(LINE_BYTES);
        self.fixed + self.cells - self.free + self.reserved + index_lines
    }
}

impl Share {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { limit: bytes / LINE_BYTES, lines: Mutex::default() }
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit * LINE_BYTES
    }

    /// Lines that are left for what is never freed.
    pub(crate) fn free_lines(&self) -> usize {
        self.left(&lock(&self.lines))
    }

    fn left(&self, lines: &Lines) -> usize {
        self.limit.saturating_sub(lines.used().max(lines.fixed + lines.peak))
    }

    /// Lines that hold something, or are reserved.
    pub(crate) fn used_lines(&self) -> usize {
        lock(&self.lines).used()
    }

    /// What `take` gives, `count` lines that are never freed; `None` when the quota is used up.
    pub(crate) fn take_fixed(
        &self,
        count: usize,
        quota: Quota,
        take: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let mut lines = lock(&self.lines);
        if count > self.left(&lines) && quota == Quota::WithinShare {
            return None;
        }
        let taken = take()?;
        lines.fixed += count;
        Some(taken)
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
        let is_here = first + words <= self.words_mapped() || active(Mutant::TrustTornNumbers);
        self.words(if is_here { first } else { 0 }, words)
    }

    /// The last of `count` cells that are linked to each other.
    fn last_cell(&self, first: u64, count: usize) -> &[AtomicU64] {
        (1..count).fold(self.cell(first), |cell, _| self.cell(link_of(cell)))
    }

    /// Reserves what is needed within the share of a partition.
    pub(crate) fn reserve(&self, partition: u16, need: Need) -> bool {
        let share = self.share(partition);
        lock(&share.lines).reserve(need, share.limit, Quota::WithinShare)
    }

    /// Ends a reservation.
    pub(crate) fn release(&self, partition: u16, reserved: Need) {
        lock(&self.share(partition).lines).release(reserved);
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
        if !lines.reserve(need, share.limit, quota) {
            return None;
        }
        let count = need.cells;
        if lines.free < count {
            let fresh = count - lines.free;
            let Some(first) = self.bump(fresh * LINE_WORDS) else {
                lines.release(need);
                return None;
            };
            let first = first / LINE_WORDS;
            let (first, end) = (first as u64, (first + fresh) as u64);
            assert!(end <= LINK_MASK, "the arena holds fewer than 2^32 cache lines");
            (first + 1..end).for_each(|number| store_link(self.cell(number - 1), number));
            store_link(self.cell(end - 1), lines.first_free);
            (lines.cells, lines.free) = (lines.cells + fresh, count);
            lines.first_free = first;
        }
        let (first, last) = (lines.first_free, self.last_cell(lines.first_free, count));
        // What was reserved is in use now.
        (lines.first_free, lines.free) = (link_of(last), lines.free - count);
        lines.reserved -= count;
        if !active(Mutant::NoReuseFence) {
            // Release: pairs with the Acquire fence of a reader of the bucket that a cell was taken
            // from. A reader that sees the new contents of the cell sees that the sequence of that bucket
            // has moved on, which the lock above has made known to this thread.
            fence(Ordering::Release);
        }
        store_link(last, 0);
        Some(first)
    }

    /// Takes back what was allocated: cells that are linked to each other, while the sequence of their bucket is odd.
    pub(crate) fn free(&self, partition: u16, first: u64, taken: Need) {
        let last = self.last_cell(first, taken.cells);
        let mut lines = lock(&self.share(partition).lines);
        store_link(last, lines.first_free);
        (lines.first_free, lines.free) = (first, lines.free + taken.cells);
        lines.index_bytes -= taken.index_bytes;
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
        let reserve = |cells| arena.reserve(0, Need::cells(cells));
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
