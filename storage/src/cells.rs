//! Cells: cache lines that rows of heap tables and overflow buckets are made of, and what a partition takes of the memory.
//!
//! ```text
//! cell, one cache line:  word 0  link: number of the next cell, 0 = none (low 32) | its holder's (high 32)
//!                        word 1.. its holder's
//! ```
//! All cells are of one size, and whatever needs more is a chain of them. So a cell that was freed serves any row, overflow
//! bucket and table of its partition, and memory has no gaps that nothing fits.
//!
//! An optimistic reader may still hold a cell that was freed and used again. What it then finds may be anything: each number
//! of a cell, size and way along a chain is bounded where it is used. A cell is freed while the sequence of its bucket is
//! odd; so the reader notices that it was, and reads again. Nothing waits for readers: a backup can use a freed cell at
//! once, as its primary has counted on.
//!
//! *Shares* (rule C9): each partition has a share of the limit, the same at all of its copies, and a primary refuses a lock
//! that its partition's share has no room for. A row or a chain of a bucket takes as many cells at every copy, a new one
//! is counted at the primary when its lock is granted, before a copy takes it, and one that goes is given back at the
//! primary last. So a backup never holds more cells than its primary counts, whatever the order of updates, and what a
//! primary grants fits every copy.
//!
//! *Not here*: lines that are never freed, main buckets and longer overflow buckets: `arena.rs`. They cannot lie in cells
//! that became free, so the most cells that a partition ever counted stay with it.

use crate::arena::{Arena, LINE_BYTES, LINE_WORDS, Quota};
use crate::mutant::{Mutant, active};
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};

/// The link in a cell's word 0.
pub(crate) const LINK_MASK: u64 = 0xffff_ffff;

/// What a partition may take, and has taken.
pub(crate) struct Share {
    limit: usize,
    lines: Mutex<Lines>,
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
    /// Cells promised to locks.
    reserved: usize,
    /// The most cells that were ever in use or promised at a time.
    peak: usize,
}

impl Lines {
    /// The peak if `more` cells were in use or promised.
    fn peak_with(&self, more: usize) -> usize {
        self.peak.max(self.cells - self.free + self.reserved + more)
    }
}

impl Share {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { limit: bytes / LINE_BYTES, lines: Mutex::default() }
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit * LINE_BYTES
    }

    /// Lines that are left, free cells apart.
    pub(crate) fn free_lines(&self) -> usize {
        let lines = lock(&self.lines);
        self.limit.saturating_sub(lines.fixed + lines.peak)
    }

    /// Lines that hold something.
    pub(crate) fn used_lines(&self) -> usize {
        let lines = lock(&self.lines);
        lines.fixed + lines.cells - lines.free
    }

    /// What `take` gives, `count` lines that are never freed; `None` when the quota is used up.
    pub(crate) fn take_fixed(
        &self,
        count: usize,
        quota: Quota,
        take: impl FnOnce() -> Option<usize>,
    ) -> Option<usize> {
        let mut lines = lock(&self.lines);
        let fixed = lines.fixed.checked_add(count)?;
        if fixed.checked_add(lines.peak)? > self.limit && quota == Quota::WithinShare {
            return None;
        }
        let taken = take()?;
        lines.fixed = fixed;
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

    /// Promises `count` cells within the share of a partition.
    pub(crate) fn reserve_cells(&self, partition: u16, count: usize) -> bool {
        let share = self.share(partition);
        let mut lines = lock(&share.lines);
        let peak = lines.peak_with(count);
        let has_room = lines.fixed + peak <= share.limit;
        if has_room {
            (lines.peak, lines.reserved) = (peak, lines.reserved + count);
        }
        has_room
    }

    /// Forgets a promise.
    pub(crate) fn release_cells(&self, partition: u16, count: usize) {
        lock(&self.share(partition).lines).reserved -= count;
    }

    /// A chain of `count` cells, the last without a link, in place of `reserved` ones that were promised; the number of the
    /// first. `None` when the quota is used up: the promise is forgotten then, too.
    pub(crate) fn allocate_cells(
        &self,
        partition: u16,
        count: usize,
        reserved: usize,
        quota: Quota,
    ) -> Option<u64> {
        let share = self.share(partition);
        let mut lines = lock(&share.lines);
        lines.reserved -= reserved;
        let peak = lines.peak_with(count);
        if lines.fixed + peak > share.limit && quota == Quota::WithinShare {
            return None;
        }
        if lines.free < count {
            let fresh = count - lines.free;
            let first = self.bump(fresh * LINE_WORDS)? / LINE_WORDS;
            let (first, end) = (first as u64, (first + fresh) as u64);
            assert!(end <= LINK_MASK, "the arena holds fewer than 2^32 cache lines");
            (first + 1..end).for_each(|number| store_link(self.cell(number - 1), number));
            store_link(self.cell(end - 1), lines.first_free);
            (lines.cells, lines.free) = (lines.cells + fresh, count);
            lines.first_free = first;
        }
        let (first, last) = (lines.first_free, self.last_cell(lines.first_free, count));
        (lines.first_free, lines.free, lines.peak) = (link_of(last), lines.free - count, peak);
        if !active(Mutant::NoReuseFence) {
            // Release: pairs with the Acquire fence of a reader of the bucket that a cell was taken
            // from. Who sees what is written into the cell now sees that the sequence of that bucket
            // has moved on, which the lock above has made known to this thread.
            fence(Ordering::Release);
        }
        store_link(last, 0);
        Some(first)
    }

    /// Takes back `count` cells that are linked to each other; while the sequence of their bucket is odd.
    pub(crate) fn free_cells(&self, partition: u16, first: u64, count: usize) {
        let last = self.last_cell(first, count);
        let mut lines = lock(&self.share(partition).lines);
        store_link(last, lines.first_free);
        (lines.first_free, lines.free) = (first, lines.free + count);
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
        arena.allocate_cells(0, count, 0, Quota::WithinShare)
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
                    arena.free_cells(0, *first, length);
                }
                assert_eq!(arena.used_bytes(), LINE_BYTES);
            }
        }
    }

    #[test]
    fn promised_cells_are_kept_for_whom_they_were_promised_to() {
        let arena = arena(10);
        assert!(arena.reserve_cells(0, 4) && !arena.reserve_cells(0, 7));
        let taken = allocate(&arena, 6).unwrap();
        assert_eq!(allocate(&arena, 1), None);
        assert_eq!(arena.allocate(0, 1, Quota::WithinShare), None);
        assert!(arena.allocate_cells(0, 4, 4, Quota::Decided).is_some());
        arena.free_cells(0, taken, 6);
        assert!(arena.reserve_cells(0, 6) && !arena.reserve_cells(0, 1));
        arena.release_cells(0, 6);
        assert_eq!(arena.allocate(0, 1, Quota::WithinShare), None, "they stay cells");
        assert!(allocate(&arena, 6).is_some());
    }

    #[test]
    fn a_number_that_is_no_cell_reads_as_zeros() {
        let arena = arena(2);
        assert_eq!(arena.cell(1 << 31)[0].load(Ordering::Relaxed), 0);
    }
}
