//! Blocks of a heap table's rows: size classes, carved from the arena in chunks and used again.
//!
//! ```text
//! classes, in words:  4, 6, 8, 12, 16, 24, 32, 48, ...      a row wastes at most a third
//! ```
//! A block belongs to its class for ever, so that a reader who still holds the number of a block that
//! was freed and used again reads words of some row of that class, never beyond it; the sequence of
//! its bucket then tells it to read again.
//!
//! A lock for a row that needs another block *reserves* one (rule C9): blocks of its class are set
//! aside within the memory limit, and are given to nobody else until the row is written or unlocked.
//!
//! *Source*: memcached's slab allocator, without its rebalancing.

use std::collections::BTreeMap;

use crate::arena::{Arena, Quota};
use crate::mutant::{Mutant, active};
use crate::owner::Owner;
use crate::sync::{Mutex, MutexGuard, Ordering, fence, lock};

/// Words of the smallest class.
const BLOCK_WORDS_MIN: usize = 4;
/// Classes; the largest has 3 * 2^17 words, more than the largest row.
const CLASSES: usize = 34;
/// Words that a class takes from the arena at once, if its blocks are smaller.
const CHUNK_WORDS: usize = if cfg!(loom) { 8 } else { 512 };

/// The free blocks of one class.
#[derive(Default)]
struct Class {
    freed: Vec<usize>,
    /// What is left of the last chunk: first word and end.
    chunk: (usize, usize),
    /// Blocks among these that are reserved.
    reserved: usize,
}

/// By owner and hash of the key: the class of the block that is reserved for the row.
type Reservations = BTreeMap<(Owner, u64), usize>;

/// The blocks of one table on one node.
pub(crate) struct Slab {
    classes: Box<[Mutex<Class>]>,
    /// By hash, so that threads seldom meet.
    reservations: Box<[Mutex<Reservations>]>,
}

/// Parts of the reservations, each with a lock of its own.
const SHARDS: usize = 16;

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

impl Class {
    /// Blocks of `size` words that can be had without the arena.
    fn blocks(&self, size: usize) -> usize {
        self.freed.len() + (self.chunk.1 - self.chunk.0) / size
    }

    /// Takes another chunk from the arena; `false` when the quota is used up.
    fn extend(&mut self, arena: &Arena, size: usize, quota: Quota) -> bool {
        let chunk_words = size.max(CHUNK_WORDS / size * size);
        let Some(first) = arena.allocate(chunk_words, quota) else { return false };
        let rest = self.chunk.0..self.chunk.1;
        self.freed.extend(rest.step_by(size));
        self.chunk = (first, first + chunk_words);
        true
    }
}

impl Slab {
    pub(crate) fn new() -> Self {
        Self {
            classes: (0..CLASSES).map(|_| Mutex::default()).collect(),
            reservations: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Words of the block that holds `words`.
    pub(crate) fn block_words(words: usize) -> usize {
        class_of(words).1
    }

    fn class(&self, class: usize) -> MutexGuard<'_, Class> {
        lock(&self.classes[class])
    }

    fn reservations(&self, hash: u64) -> MutexGuard<'_, Reservations> {
        let shard = usize::try_from(hash % SHARDS as u64).expect("less than SHARDS");
        lock(&self.reservations[shard])
    }

    /// The first word of a block of at least `words` words: the one that is reserved for the row, or
    /// a free one. `None` when the quota is used up.
    pub(crate) fn allocate(
        &self,
        arena: &Arena,
        words: usize,
        quota: Quota,
        row: (Owner, u64),
    ) -> Option<usize> {
        let (number, size) = class_of(words);
        let reserved = self.reservations(row.1).remove(&row);
        if let Some(other) = reserved.filter(|&class| class != number) {
            self.class(other).reserved -= 1;
        }
        let mut class = self.class(number);
        if reserved == Some(number) {
            class.reserved -= 1;
        }
        if class.blocks(size) <= class.reserved && !class.extend(arena, size, quota) {
            return None;
        }
        if let Some(block) = class.freed.pop() {
            if !active(Mutant::NoReuseFence) {
                // Release: pairs with the Acquire fence of a reader of the bucket that the block was
                // taken from. Who sees what is written into the block now sees that the sequence of
                // that bucket has moved on, which the lock above has made known to this thread.
                fence(Ordering::Release);
            }
            return Some(block);
        }
        class.chunk.0 += size;
        Some(class.chunk.0 - size)
    }

    /// Sets a block of `words` words aside for the row of `owner` whose key has this hash, if the
    /// limit allows; a row that has one already changes it.
    pub(crate) fn reserve(&self, arena: &Arena, words: usize, (owner, hash): (Owner, u64)) -> bool {
        let (number, size) = class_of(words);
        {
            let mut class = self.class(number);
            let is_full = class.blocks(size) <= class.reserved;
            if is_full && !class.extend(arena, size, Quota::WithinLimit) {
                return false;
            }
            class.reserved += 1;
        }
        let before = self.reservations(hash).insert((owner, hash), number);
        if let Some(before) = before {
            self.class(before).reserved -= 1;
        }
        true
    }

    /// Gives up what was reserved for a row, if anything.
    pub(crate) fn release(&self, (owner, hash): (Owner, u64)) {
        let class = self.reservations(hash).remove(&(owner, hash));
        if let Some(class) = class {
            self.class(class).reserved -= 1;
        }
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
        let row = (Owner(1), 1);
        while let Some(block) = slab.allocate(&arena, 5, Quota::WithinLimit, row) {
            taken.push(block);
        }
        assert!(taken.len() > 1_000);
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] + 6 <= pair[1]));
        slab.free(taken[7], 5);
        assert_eq!(slab.allocate(&arena, 6, Quota::WithinLimit, row), Some(taken[7]));
        assert_eq!(slab.allocate(&arena, 6, Quota::WithinLimit, row), None);
        assert!(slab.allocate(&arena, 6, Quota::BeyondLimit, row).is_some());
    }

    #[test]
    fn what_is_reserved_is_there_for_its_owner() {
        let arena = Arena::new(64 << 10).unwrap();
        let slab = Slab::new();
        let rows = |owner| (0..).map(move |hash| (Owner(owner), hash));
        let reserved = rows(1).take_while(|&row| slab.reserve(&arena, 5, row)).count();
        assert!(reserved > 1_000);
        assert!(!slab.reserve(&arena, 5, (Owner(2), 7)), "the limit is reached");
        let other = slab.allocate(&arena, 5, Quota::WithinLimit, (Owner(2), 7));
        assert_eq!(other, None, "all are set aside");
        slab.release((Owner(2), 7));
        assert!(!slab.reserve(&arena, 5, (Owner(2), 7)), "it had none to give up");
        // One owner gives up a row, and another gets its block.
        slab.release((Owner(1), 7));
        slab.release((Owner(1), 7));
        assert!(slab.reserve(&arena, 5, (Owner(2), 7)));
        assert!(!slab.reserve(&arena, 5, (Owner(2), 8)));
        // Whoever has reserved gets a block, each of them another.
        let rows = rows(1).take(reserved).filter(|row| row.1 != 7).chain([(Owner(2), 7)]);
        let mut taken: Vec<_> =
            rows.map(|row| slab.allocate(&arena, 5, Quota::WithinLimit, row).unwrap()).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), reserved);
    }
}
