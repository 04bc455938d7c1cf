//! One mapping per node that all its tables live in; the memory fence of this crate.
//!
//! Facts that the unsafe code rests on:
//! - the mapping is private, anonymous, page-aligned and zeroed, and lives exactly as long as the
//!   `Arena` that owns it;
//! - nothing reads or writes it but through the `[AtomicU64]` that [`Arena::words`] hands out, for
//!   which all-zero bytes are a valid value and shared access from any thread is allowed;
//! - a prefetch has no effect on memory whatever its address.
//!
//! Memory is handed out in 64-byte lines by a bump pointer and never taken back: buckets are never
//! freed (`recovery.md`). The mapping is longer than the limit, because a backup allocates beyond
//! its limit rather than refuse an update that is already decided; untouched pages cost nothing.
#![allow(unsafe_code, reason = "the fence around the node's memory; see the facts above")]

use crate::bucket::TAGS;
use crate::error::StorageError;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::table::Place;

/// Bytes in the unit of allocation: one cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Words in a cache line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES / 8;
/// Address space mapped per byte of memory limit; see the module's text.
const OVERCOMMIT: usize = 2;

/// Which allocations the memory limit holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// Refuse at the memory limit: main buckets, and a primary granting a lock for insert.
    WithinLimit,
    /// Go beyond it: a replica applying an update that is already decided.
    BeyondLimit,
}

/// A node's memory: 64-bit atomic words, allocated in cache lines, freed all at once.
pub struct Arena {
    memory: Memory,
    /// The next free word. Only grows.
    next_word: AtomicUsize,
    limit_words: usize,
}

impl Arena {
    /// Maps memory for a node that may use `limit_bytes` of it; pages are touched when first used.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the address space.
    pub fn new(limit_bytes: usize) -> Result<Self, StorageError> {
        let bytes = limit_bytes.saturating_mul(OVERCOMMIT).next_multiple_of(LINE_BYTES);
        let memory = Memory::map(bytes).map_err(|source| StorageError::Map { bytes, source })?;
        // The first line is never handed out, so that line 0 can mean "no overflow bucket".
        Ok(Self {
            memory,
            next_word: AtomicUsize::new(LINE_WORDS),
            limit_words: (limit_bytes / 8).max(LINE_WORDS),
        })
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_words * 8
    }

    /// Bytes handed out so far.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        // Relaxed: a statistic, ordered by nothing.
        self.next_word.load(Ordering::Relaxed) * 8
    }

    /// `count` consecutive words from word `first`, zero until first written.
    ///
    /// # Panics
    /// If they lie outside the arena: a bucket address that no allocation returned.
    #[inline(always)]
    pub(crate) fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        &self.memory.words()[first..first + count]
    }

    /// Reserves `words` consecutive words, rounded up to whole lines; `None` when the quota is used up.
    pub(crate) fn allocate(&self, words: usize, quota: Quota) -> Option<usize> {
        let words = words.next_multiple_of(LINE_WORDS);
        let end = match quota {
            Quota::WithinLimit => self.limit_words,
            Quota::BeyondLimit => self.memory.words().len(),
        };
        // Relaxed: the reservation itself publishes nothing; the words are zero since the mapping,
        // and whoever links them does so with a release store.
        self.next_word
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                next.checked_add(words).filter(|&after| after <= end)
            })
            .ok()
    }

    /// Asks the processor to fetch what is looked at first of the bucket at `place`: the line with its tags, and mostly
    /// all of its header.
    #[inline(always)]
    pub fn prefetch_header(&self, place: Place) {
        self.prefetch(place.first_word() + TAGS);
    }

    /// Asks the processor to fetch the cache line of `word`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, word: usize) {
        self.memory.prefetch(word);
    }
}

#[cfg(not(loom))]
struct Memory {
    /// Owns the mapping; dropped with it.
    _mapping: memmap2::MmapMut,
    first: *const AtomicU64,
    words: usize,
}

// SAFETY: `first` points into the mapping that the same value owns, and the memory is only accessed
// as atomics, which any thread may do through a shared reference.
#[cfg(not(loom))]
unsafe impl Send for Memory {}
// SAFETY: as for Send.
#[cfg(not(loom))]
unsafe impl Sync for Memory {}

#[cfg(not(loom))]
impl Memory {
    fn map(bytes: usize) -> std::io::Result<Self> {
        let mapping = memmap2::MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        // Without huge pages the tables work as well, slower: a random access misses the TLB too.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(memmap2::Advice::HugePage);
        Ok(Self { first: mapping.as_ptr().cast(), words: bytes / 8, _mapping: mapping })
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `words` * 8 bytes from `first`, page-aligned, initialised to
        // zero, alive as long as `self`, and accessed as atomics only.
        unsafe { std::slice::from_raw_parts(self.first, self.words) }
    }

    #[inline(always)]
    fn prefetch(&self, word: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.first.wrapping_add(word).cast::<i8>();
            // SAFETY: a prefetch is a hint and does not access memory, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }
}

/// Under loom, words that its scheduler can see.
#[cfg(loom)]
struct Memory {
    words: Box<[AtomicU64]>,
}

#[cfg(loom)]
impl Memory {
    #[expect(clippy::unnecessary_wraps, reason = "the signature of the mapping it stands for")]
    fn map(bytes: usize) -> std::io::Result<Self> {
        Ok(Self { words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect() })
    }

    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn prefetch(&self, _word: usize) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn limit_holds_back_primaries_and_not_replicas() {
        let arena = Arena::new(4 * LINE_BYTES).unwrap();
        assert_eq!(arena.allocate(1, Quota::WithinLimit), Some(LINE_WORDS));
        assert_eq!(arena.allocate(2 * LINE_WORDS, Quota::WithinLimit), Some(2 * LINE_WORDS));
        assert_eq!(arena.allocate(1, Quota::WithinLimit), None);
        assert_eq!(arena.allocate(1, Quota::BeyondLimit), Some(4 * LINE_WORDS));
        assert_eq!(arena.used_bytes(), 5 * LINE_BYTES);
    }
}
