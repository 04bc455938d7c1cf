//! One mapping per node that all its tables live in; the memory fence of this crate.
//!
//! Facts that the unsafe code rests on:
//! - the mapping is private, anonymous, page-aligned and zeroed, and lives exactly as long as the
//!   `Arena` that owns it;
//! - nothing reads or writes it but through the `[AtomicU64]` that [`Arena::words`] hands out, for
//!   which all-zero bytes are a valid value and shared access from any thread is allowed;
//! - a prefetch has no effect on memory whatever its address;
//! - the system replaces whole pages that are given back to it by pages of zeros, which are valid values like others.
//!
//! Memory is handed out and taken back in extents of 64-byte lines (`extents.rs`). Lines that rows and overflow buckets take and give
//! back one by one are cells (`cells.rs`).
#![allow(unsafe_code, reason = "the fence around the node's memory; see the facts above")]

use crate::cells::Share;
use crate::error::StorageError;
use crate::extents::{Extent, Extents, joined};
use crate::lock_counts::LockCounts;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Bytes in the unit of allocation: one cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Words in a cache line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES / 8;

/// Which allocations the share of a partition holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// Refuse when the share is used up: for the first buckets of a table.
    Share,
    /// Refuse when the share is used up but for a little that is left for new tables: for a primary that grants a lock for insert, and for
    /// further buckets. So a table can be emptied by another one in its place when rows have taken all memory.
    WithinShare,
    /// Go beyond it, within the node's limit: for a copy that applies an update that is already decided. What a primary has
    /// granted exceeds no share.
    Decided,
}

/// As long as it is there, a thread that is no worker looks at buckets.
pub struct Loading<'a>(&'a AtomicUsize);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Memory that is free, and not handed out yet.
pub struct Retired(Vec<Extent>);

impl Retired {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A node's memory: 64-bit atomic words, allocated in cache lines.
pub struct Arena {
    memory: Memory,
    extents: Mutex<Extents>,
    limit_words: usize,
    shares: Box<[Share]>,
    /// Extents that are free, and that threads may still look at.
    retired: Mutex<Vec<Extent>>,
    /// Threads beside the workers that load rows, and so may look at extents that are retired.
    loading: AtomicUsize,
    /// Whether a table may have too few buckets, or too many, or extents are retired. Loom does not explore it.
    has_crowded: AtomicBool,
    /// Tables that leave, and have not given all their memory back.
    pub(crate) leaving: AtomicUsize,
    locks: LockCounts,
}

impl Arena {
    /// Maps memory for a node that may use `limit_bytes` of it, with a share for each partition in bytes; pages are touched when
    /// first used.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the address space.
    pub fn new(limit_bytes: usize, share_bytes: &[usize]) -> Result<Self, StorageError> {
        // A multiple would lie beyond the address space, and is refused by the system.
        let bytes = limit_bytes.checked_next_multiple_of(LINE_BYTES).unwrap_or(usize::MAX);
        let bytes = bytes.max(LINE_BYTES);
        let memory = Memory::map(bytes).map_err(|source| StorageError::Map { bytes, source })?;
        let lines = memory.words().len() / LINE_WORDS;
        Ok(Self {
            memory,
            extents: Mutex::new(Extents::new(lines, bytes / LINE_BYTES)),
            limit_words: (limit_bytes / 8).max(LINE_WORDS),
            shares: share_bytes.iter().map(|bytes| Share::new(*bytes)).collect(),
            retired: Mutex::new(Vec::new()),
            loading: AtomicUsize::new(0),
            has_crowded: AtomicBool::new(false),
            leaving: AtomicUsize::new(0),
            locks: LockCounts::new(share_bytes.len()),
        })
    }

    /// Bytes that each of `copies` copies of partitions has, on a node with this limit.
    #[must_use]
    pub fn share_bytes(limit_bytes: usize, copies: usize) -> usize {
        limit_bytes.saturating_sub(LINE_BYTES) / copies.max(1) / LINE_BYTES * LINE_BYTES
    }

    /// Bytes of data that certainly fit, if they spread evenly: the smallest share times the number of partitions.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        let smallest = self.shares.iter().map(Share::limit_bytes).min();
        smallest.unwrap_or(0) * self.shares.len()
    }

    /// By partition: the bytes that it may take from now on.
    pub fn set_shares(&self, share_bytes: &[usize]) {
        self.shares.iter().zip(share_bytes).for_each(|(share, bytes)| share.set_limit(*bytes));
    }

    /// Bytes that a partition has taken.
    #[must_use]
    pub fn used_bytes_of(&self, partition: u16) -> usize {
        self.share(partition).used_lines() * LINE_BYTES
    }

    /// What a partition may take, and has taken.
    pub(crate) fn share(&self, partition: u16) -> &Share {
        &self.shares[usize::from(partition)]
    }

    /// Words that the share of a partition has left for main buckets.
    pub(crate) fn free_words(&self, partition: u16) -> usize {
        self.share(partition).free_lines() * LINE_WORDS
    }

    /// A table may have too few buckets, or too many, or memory is retired.
    pub(crate) fn note_crowded(&self) {
        // Release: pairs with the Acquire in take_crowded(): the table is noted.
        self.has_crowded.store(true, Ordering::Release);
    }

    /// Whether a table may have too few buckets, or too many, or memory is retired.
    #[inline(always)]
    #[must_use]
    pub fn has_crowded(&self) -> bool {
        // Relaxed: a worker that acts on it calls take_crowded() first.
        self.has_crowded.load(Ordering::Relaxed)
    }

    /// As [`Self::has_crowded`], since the last call.
    #[must_use]
    pub fn take_crowded(&self) -> bool {
        self.has_crowded.swap(false, Ordering::AcqRel)
    }

    /// The locks of all tables.
    #[inline(always)]
    pub(crate) fn locks(&self) -> &LockCounts {
        &self.locks
    }

    /// Buckets of a partition that are locked, in all tables. Of a partition that is leaving no further ones are, once each worker has begun
    /// another step.
    #[must_use]
    pub fn locked_buckets(&self, partition: u16) -> usize {
        self.locks.count(partition)
    }

    /// All locks are dead, as another epoch begins. No worker takes a step.
    pub fn forget_locks(&self) {
        self.locks.clear();
    }

    /// The memory limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.limit_words * 8
    }

    /// Bytes that hold something now.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        (1 + self.shares.iter().map(Share::used_lines).sum::<usize>()) * LINE_BYTES
    }

    /// Words of the mapping.
    #[inline(always)]
    pub(crate) fn words_mapped(&self) -> usize {
        self.memory.words().len()
    }

    /// `count` consecutive words from word `first`, zero until first written.
    ///
    /// # Panics
    /// If they lie outside the arena: a bucket address that no allocation returned.
    #[inline(always)]
    pub(crate) fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        &self.memory.words()[first..first + count]
    }

    /// Hands out lines side by side; `None` at the limit. They are zero.
    pub(crate) fn take_extent(&self, lines: usize) -> Option<Extent> {
        lock(&self.extents).take(lines)
    }

    /// Hands out `wanted` lines side by side, or at least one; `None` at the limit.
    pub(crate) fn take_some_extent(&self, wanted: usize) -> Option<Extent> {
        lock(&self.extents).take_some(wanted)
    }

    /// Takes extents back, and makes them zero.
    pub(crate) fn give_back(&self, extents: Vec<Extent>) {
        if extents.is_empty() {
            return;
        }
        let extents = joined(extents);
        // Release: pairs with the Acquire fence of a reader that still holds a cell of these: a reader that sees a zero sees
        // that the sequence of its bucket has moved on.
        fence(Ordering::Release);
        for extent in &extents {
            self.memory.clear(extent.first_word(), extent.lines * LINE_WORDS);
        }
        let mut free = lock(&self.extents);
        extents.into_iter().for_each(|extent| free.give_back(extent));
    }

    /// Counts extents as free. They are made zero, and may be handed out, when the caller of [`Self::take_retired`] gives
    /// them back.
    pub(crate) fn retire(&self, extents: Vec<Extent>) {
        let mut known = lock(&self.extents);
        extents.iter().for_each(|extent| known.retire(*extent));
        drop(known);
        lock(&self.retired).extend(extents);
        self.note_crowded();
    }

    /// The memory of dead buckets. No thread finds a way to it any more; one may be looking at it still.
    #[must_use]
    pub fn take_retired(&self) -> Retired {
        Retired(std::mem::take(&mut *lock(&self.retired)))
    }

    /// A thread that is no worker begins to look at buckets, until the value is dropped.
    #[must_use]
    pub fn begin_loading(&self) -> Loading<'_> {
        // SeqCst: it is counted before it looks for addresses.
        self.loading.fetch_add(1, Ordering::SeqCst);
        Loading(&self.loading)
    }

    /// Whether a thread that is no worker may look at memory that was retired before.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.loading.load(Ordering::SeqCst) > 0
    }

    /// Has what [`Self::take_retired`] gave wait on.
    pub fn put_back(&self, retired: Retired) {
        lock(&self.retired).extend(retired.0);
    }

    /// Takes it back, when each worker has begun another step since it was retired.
    pub fn reclaim(&self, retired: Retired) {
        let extents = joined(retired.0);
        // Release: as in give_back().
        fence(Ordering::Release);
        for extent in &extents {
            self.memory.clear(extent.first_word(), extent.lines * LINE_WORDS);
        }
        let mut free = lock(&self.extents);
        extents.into_iter().for_each(|extent| free.reclaim(extent));
    }

    /// Prefetches line `number`, wherever it is.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a hint, wherever it points")]
    pub(crate) fn prefetch_line(&self, number: u64) {
        self.prefetch((number as usize).wrapping_mul(LINE_WORDS));
    }

    /// Prefetches the cache line of `word`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, word: usize) {
        self.memory.prefetch(word);
    }
}

/// What the offset and length of memory are multiples of that is given back to the system: a multiple of any page's size.
#[cfg(not(loom))]
const PAGE_BYTES: usize = 64 << 10;

#[cfg(not(loom))]
struct Memory {
    /// Dropped with the value that points into it.
    mapping: memmap2::MmapMut,
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
    /// Maps twice as many bytes, or as many if the system refuses that (`extents.rs`).
    fn map(bytes: usize) -> std::io::Result<Self> {
        let map = |bytes| memmap2::MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
        let mapping = map(bytes.saturating_mul(2)).or_else(|_| map(bytes))?;
        // Without huge pages the tables work as well, slower: a random access misses the TLB too.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(memmap2::Advice::HugePage);
        Ok(Self { first: mapping.as_ptr().cast(), words: mapping.len() / 8, mapping })
    }

    /// Makes words zero. Whole pages of them go back to the system.
    fn clear(&self, first: usize, words: usize) {
        let (start, end) = (first * 8, (first + words) * 8);
        let mut pages = start.next_multiple_of(PAGE_BYTES)..end / PAGE_BYTES * PAGE_BYTES;
        if pages.is_empty() || !self.discard(pages.start, pages.len()) {
            pages = end..end;
        }
        let edges = [start..pages.start, pages.end..end];
        let words = edges.into_iter().flat_map(|edge| &self.words()[edge.start / 8..edge.end / 8]);
        // Relaxed: as every word; the thread that gets the memory next takes the lock of the extents.
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Gives pages back to the system, which makes them zero; `false` if it does not.
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn discard(&self, offset: usize, bytes: usize) -> bool {
        // SAFETY: offset and bytes are multiples of 64 KiB, and so of the page's size on these processors: the call changes no byte
        // outside the range, which lies in the mapping. It changes the range to zeros, as stores would: the memory is accessed as
        // atomics alone, which may change at any time.
        let given = unsafe {
            self.mapping.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, bytes)
        };
        given.is_ok()
    }

    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    fn discard(&self, _offset: usize, _bytes: usize) -> bool {
        let _ = &self.mapping;
        false
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds `words` * 8 bytes from `first`, page-aligned, initialised to
        // zero, alive as long as `self`, and accessed as atomics only.
        unsafe { std::slice::from_raw_parts(self.first, self.words) }
    }

    #[inline(always)]
    fn prefetch(&self, word: usize) {
        prefetch_line(self.first.wrapping_add(word).addr());
    }
}

/// Prefetches the cache line at an address.
#[inline(always)]
pub fn prefetch_line(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = std::ptr::without_provenance(address);
        // SAFETY: a prefetch is a hint and does not access memory, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
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

    fn clear(&self, first: usize, words: usize) {
        let words = &self.words[first..first + words];
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn prefetch(&self, _word: usize) {}
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_zero_and_its_pages_are_the_systems() {
        let bytes = 1 << 20;
        let arena = Arena::new(4 * bytes, &[4 * bytes]).unwrap();
        let lines = bytes / LINE_BYTES;
        // Two extents that begin and end within pages, and a neighbour on each side.
        let extents = [3, lines, 7, lines, 3].map(|lines| arena.take_extent(lines).unwrap());
        let words = |extent: Extent| arena.words(extent.first_word(), extent.lines * LINE_WORDS);
        for extent in extents {
            words(extent).iter().for_each(|word| word.store(7, Ordering::Relaxed));
        }
        arena.give_back(vec![extents[3], extents[1]]);
        for (extent, expected) in extents.into_iter().zip([7, 0, 7, 0, 7]) {
            assert!(words(extent).iter().all(|word| word.load(Ordering::Relaxed) == expected));
        }
        assert_eq!(arena.take_extent(lines), Some(extents[1]));
    }

    #[test]
    fn shares_hold_back_primaries_and_limits_everybody() {
        let arena = Arena::new(5 * LINE_BYTES, &[2 * LINE_BYTES, LINE_BYTES]).unwrap();
        assert_eq!(arena.allocate_fixed(0, 1, Quota::WithinShare), Some(LINE_WORDS));
        assert_eq!(arena.allocate_fixed(0, 2 * LINE_WORDS, Quota::WithinShare), None);
        assert_eq!(arena.free_words(0), LINE_WORDS);
        assert_eq!(arena.allocate_fixed(0, LINE_WORDS, Quota::WithinShare), Some(2 * LINE_WORDS));
        assert_eq!(arena.allocate_fixed(0, 1, Quota::WithinShare), None, "its share is used up");
        assert_eq!(arena.allocate_fixed(1, 1, Quota::WithinShare), Some(3 * LINE_WORDS));
        assert_eq!(arena.allocate_fixed(1, 1, Quota::WithinShare), None);
        assert_eq!(arena.allocate_fixed(1, 1, Quota::Decided), Some(4 * LINE_WORDS));
        assert_eq!(arena.used_bytes(), 5 * LINE_BYTES);
        assert_eq!(arena.allocate_fixed(0, 1, Quota::Decided), None, "the limit is reached");
    }

    #[test]
    fn shares_of_all_copies_fit_the_limit() {
        for (limit, copies) in [(0, 1), (63, 1), (1 << 20, 0), (1 << 20, 7), (1_000_001, 16)] {
            let all = Arena::share_bytes(limit, copies) * copies;
            assert!(all + LINE_BYTES <= limit.max(LINE_BYTES), "{limit} {copies}");
        }
    }
}
