//! Extents: memory of any length that the arena hands out and takes back.
//!
//! ```text
//! lines:  0 │ 1 ... handed out ... │ free │ handed out │ free │ ... never handed out ...
//!         nobody's                                       next ─┘
//! ```
//! An extent holds the main buckets of a partition, a chunk of cells, or an overflow bucket that is no cell. One that comes back joins
//! its free neighbours. The smallest free extent that is long enough is handed out first.
//!
//! As many lines are handed out as the node's limit says. There are more addresses than that, twice as many if the system has them:
//! what free extents between others are too short for still finds a place, so that a copy has room for each update that was decided. So does
//! what is wanted while others are *retired*: free, but perhaps looked at by a thread still.
//!
//! *Invariants*: no two extents overlap; no two free ones adjoin; free memory is zero.
//!
//! *Not here*: what a partition may take (`cells.rs`), and the memory itself (`arena.rs`).

use std::collections::{BTreeMap, BTreeSet};

use crate::arena::LINE_WORDS;
use crate::cells::LINK_MASK;

/// Consecutive cache lines of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub(crate) first: usize,
    pub(crate) lines: usize,
}

impl Extent {
    /// The extent whose words begin at `first_word`.
    pub(crate) fn of_words(first_word: usize, words: usize) -> Self {
        Self { first: first_word / LINE_WORDS, lines: words.div_ceil(LINE_WORDS) }
    }

    /// The extent whose first line has this number.
    pub(crate) fn of_line(number: u64, words: usize) -> Self {
        Self { first: (number & LINK_MASK) as usize, lines: words.div_ceil(LINE_WORDS) }
    }

    pub(crate) fn first_word(self) -> usize {
        self.first * LINE_WORDS
    }

    pub(crate) fn end(self) -> usize {
        self.first + self.lines
    }

    /// Cuts off all but the first `lines`.
    pub(crate) fn split_off(&mut self, lines: usize) -> Self {
        let rest = Self { first: self.first + lines, lines: self.lines - lines };
        self.lines = lines;
        rest
    }
}

/// Joins extents that adjoin.
pub(crate) fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable();
    extents.dedup_by(|next, before| {
        let adjoins = before.end() == next.first;
        before.lines += if adjoins { next.lines } else { 0 };
        adjoins
    });
    extents
}

/// Which lines of an arena are handed out.
pub(crate) struct Extents {
    /// The first line of those that were never handed out, or came back and joined them.
    next: usize,
    end: usize,
    /// Lines that are handed out, and that may be.
    taken: usize,
    limit: usize,
    /// The free extents before `next`: first line and lines, and the reverse.
    by_first: BTreeMap<usize, usize>,
    by_lines: BTreeSet<(usize, usize)>,
}

impl Extents {
    /// All lines of an arena but line 0. `limit` of them may be handed out, line 0 included.
    pub(crate) fn new(lines: usize, limit: usize) -> Self {
        let (by_first, by_lines) = (BTreeMap::new(), BTreeSet::new());
        Self { next: 1, end: lines, taken: 1, limit, by_first, by_lines }
    }

    /// Hands out lines; `None` at the limit.
    pub(crate) fn take(&mut self, lines: usize) -> Option<Extent> {
        if lines > self.limit - self.taken {
            return None;
        }
        let free = self.by_lines.range((lines, 0)..).next();
        let mut extent = match free {
            Some(&(lines, first)) => self.remove(Extent { first, lines }),
            None if lines <= self.end - self.next => {
                let extent = Extent { first: self.next, lines };
                self.next += lines;
                extent
            }
            None => return None,
        };
        self.taken += lines;
        let rest = extent.split_off(lines);
        if rest.lines > 0 {
            self.insert(rest);
        }
        Some(extent)
    }

    /// Hands out `wanted` lines, or at least one if there are not so many side by side; `None` at the limit.
    pub(crate) fn take_some(&mut self, wanted: usize) -> Option<Extent> {
        let wanted = wanted.min(self.limit - self.taken).max(1);
        let longest = self.by_lines.last().map_or(0, |(lines, _)| *lines);
        self.take(wanted.min(longest.max(self.end - self.next)).max(1))
    }

    /// Takes back what was handed out, or parts of it. Its memory is zero.
    pub(crate) fn give_back(&mut self, extent: Extent) {
        self.taken -= extent.lines;
        let mut joined = extent;
        if let Some((&first, &lines)) = self.by_first.range(..extent.first).next_back() {
            let before = Extent { first, lines };
            assert!(before.end() <= extent.first, "an extent comes back once");
            if before.end() == extent.first {
                self.remove(before);
                joined = Extent { first, lines: lines + joined.lines };
            }
        }
        if let Some((&first, &lines)) = self.by_first.range(extent.first..).next() {
            assert!(extent.end() <= first, "an extent comes back once");
            if first == extent.end() {
                self.remove(Extent { first, lines });
                joined.lines += lines;
            }
        }
        assert!(joined.end() <= self.next, "only what was handed out comes back");
        if joined.end() == self.next {
            self.next = joined.first;
        } else {
            self.insert(joined);
        }
    }

    /// Counts an extent as free that stays where it is until it comes back ([`Self::reclaim`]).
    pub(crate) fn retire(&mut self, extent: Extent) {
        self.taken -= extent.lines;
    }

    /// Takes an extent back that was retired.
    pub(crate) fn reclaim(&mut self, extent: Extent) {
        self.taken += extent.lines;
        self.give_back(extent);
    }

    fn insert(&mut self, Extent { first, lines }: Extent) {
        self.by_first.insert(first, lines);
        self.by_lines.insert((lines, first));
    }

    fn remove(&mut self, extent: Extent) -> Extent {
        self.by_first.remove(&extent.first);
        self.by_lines.remove(&(extent.lines, extent.first));
        extent
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 1_000;

    proptest! {
        #[test]
        fn extents_are_those_of_a_set_of_lines(
            steps in proptest::collection::vec((1_usize..60, any::<prop::sample::Index>(), 0..4_u8), 0..300),
        ) {
            let mut extents = Extents::new(2 * LIMIT, LIMIT);
            let mut taken: Vec<Extent> = Vec::new();
            for (lines, index, kind) in steps {
                let count: usize = taken.iter().map(|extent| extent.lines).sum();
                let has_room = count + lines < LIMIT;
                match kind {
                    0 => match extents.take_some(lines) {
                        Some(extent) => {
                            prop_assert!(extent.lines == lines || !has_room);
                            taken.push(extent);
                        }
                        None => prop_assert_eq!(count, LIMIT - 1),
                    },
                    1 => {
                        let extent = extents.take(lines);
                        prop_assert_eq!(extent.map_or(0, |extent| extent.lines), if has_room { lines } else { 0 });
                        taken.extend(extent);
                    }
                    _ if taken.is_empty() => {}
                    _ => {
                        let mut extent = taken.swap_remove(index.index(taken.len()));
                        // Whole, or its end alone.
                        if kind == 2 && extent.lines > 1 {
                            extents.give_back(extent.split_off(extent.lines / 2));
                            taken.push(extent);
                        } else {
                            extents.give_back(extent);
                        }
                    }
                }
                let mut sorted = taken.clone();
                sorted.sort_unstable();
                let first = Extent { first: 0, lines: 1 };
                let behind = std::iter::once(&first).chain(&sorted);
                prop_assert!(behind.zip(&sorted).all(|(before, next)| before.end() <= next.first));
                prop_assert!(sorted.iter().all(|extent| extent.lines > 0 && extent.end() <= 2 * LIMIT));
            }
            taken.into_iter().for_each(|extent| extents.give_back(extent));
            prop_assert!(extents.by_first.is_empty() && extents.by_lines.is_empty());
            prop_assert_eq!((extents.next, extents.taken), (1, 1));
        }
    }

    #[test]
    fn extents_that_adjoin_are_one() {
        let extent = |first, lines| Extent { first, lines };
        let extents = vec![extent(7, 2), extent(1, 3), extent(4, 3), extent(20, 1)];
        assert_eq!(joined(extents), [extent(1, 8), extent(20, 1)]);
    }

    #[test]
    #[should_panic(expected = "comes back once")]
    fn an_extent_does_not_come_back_twice() {
        let mut extents = Extents::new(100, 100);
        let [first, _] = [(), ()].map(|()| extents.take(10).expect("there is room"));
        extents.give_back(first);
        extents.give_back(first);
    }
}
