//! Blocks of a heap table's rows: size classes, carved from the arena in chunks and used again.
//!
//! ```text
//! classes, in words:  4, 6, 8, 12, 16, 24, 32, 48, ...      a row wastes at most a third
//! ```
//! A block belongs to its class for ever, so that a reader who still holds the number of a block that
//! was freed and used again reads words of some row of that class, never beyond it; the sequence of
//! its bucket then tells it to read again.
//!
//! *Source*: memcached's slab allocator, without its rebalancing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::arena::{Arena, Quota};

/// Words of the smallest class.
const BLOCK_WORDS_MIN: usize = 4;
/// Classes; the largest has 3 * 2^17 words, more than the largest row.
const CLASSES: usize = 34;
/// Words that a class takes from the arena at once, if its blocks are smaller.
const CHUNK_WORDS: usize = 512;

/// The free blocks of one class.
#[derive(Default)]
struct Class {
    freed: Vec<usize>,
    /// What is left of the last chunk: first word and end.
    chunk: (usize, usize),
}

/// The blocks of one table on one node.
pub(crate) struct Slab {
    classes: Box<[Mutex<Class>]>,
}

/// The class of blocks that hold `words`, and how many words they have.
fn class_of(words: usize) -> (usize, usize) {
    let mut size = BLOCK_WORDS_MIN;
    let mut class = 0;
    while size < words {
        // 4, 6, 8, 12, 16, ...: a half more, then a third more.
        size += if class % 2 == 0 { size / 2 } else { size / 3 };
        class += 1;
    }
    (class, size)
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self { classes: (0..CLASSES).map(|_| Mutex::default()).collect() }
    }

    /// Words of the block that holds `words`.
    pub(crate) fn block_words(words: usize) -> usize {
        class_of(words).1
    }

    fn class(&self, class: usize) -> MutexGuard<'_, Class> {
        // Nothing panics while it is held, so a poisoned lock guards nothing broken.
        self.classes[class].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first word of a free block of at least `words` words, or `None` when the quota is used up.
    pub(crate) fn allocate(&self, arena: &Arena, words: usize, quota: Quota) -> Option<usize> {
        let (class, size) = class_of(words);
        let mut class = self.class(class);
        if let Some(block) = class.freed.pop() {
            return Some(block);
        }
        if class.chunk.0 + size > class.chunk.1 {
            let chunk_words = size.max(CHUNK_WORDS / size * size);
            let first = arena.allocate(chunk_words, quota)?;
            class.chunk = (first, first + chunk_words);
        }
        class.chunk.0 += size;
        Some(class.chunk.0 - size)
    }

    /// Whether a block of `words` words can be had within the limit.
    pub(crate) fn has_room(&self, arena: &Arena, words: usize) -> bool {
        let (class, size) = class_of(words);
        let class = self.class(class);
        !class.freed.is_empty()
            || class.chunk.0 + size <= class.chunk.1
            || arena.used_bytes() + 8 * size.max(CHUNK_WORDS) <= arena.limit_bytes()
    }

    /// Takes back a block that was allocated for `words` words.
    pub(crate) fn free(&self, block: usize, words: usize) {
        self.class(class_of(words).0).freed.push(block);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_third() {
        for words in 1..200_000 {
            let (class, size) = class_of(words);
            assert!(size >= words && class < CLASSES, "{words}: {size}");
            assert!(
                size <= BLOCK_WORDS_MIN || 3 * (words - 1) >= 2 * (size / 2),
                "{words}: {size}"
            );
            assert!(size <= BLOCK_WORDS_MIN || 2 * size <= 3 * words, "{words}: {size}");
        }
    }

    #[test]
    fn blocks_do_not_overlap_and_are_used_again() {
        let arena = Arena::new(64 << 10).unwrap();
        let slab = Slab::new();
        let mut taken = Vec::new();
        while let Some(block) = slab.allocate(&arena, 5, Quota::WithinLimit) {
            taken.push(block);
        }
        assert!(taken.len() > 1_000 && !slab.has_room(&arena, 5));
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] + 6 <= pair[1]));
        slab.free(taken[7], 5);
        assert!(slab.has_room(&arena, 6));
        assert_eq!(slab.allocate(&arena, 6, Quota::WithinLimit), Some(taken[7]));
        assert_eq!(slab.allocate(&arena, 6, Quota::WithinLimit), None);
        assert!(slab.allocate(&arena, 6, Quota::BeyondLimit).is_some());
    }
}
