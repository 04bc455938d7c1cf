//! Chunks: where the buckets lie that were born after a table was created.
//!
//! ```text
//! directory, doubling segments:  the first word of each chunk of 32 buckets, 0 = it is not there
//! ```
//! One more load than without growth. A chunk's memory is fixed lines of its partition's share. When all its buckets are dead, the memory is
//! counted as free at once, at every copy, and handed out again when no thread can look at it any more (`Arena::take_retired`).
//!
//! *Invariant*: a bucket that is born, or locked, stays where it is.
//!
//! *Not here*: which buckets are born (`growth.rs`) and die (`shrinking.rs`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::arena::Quota;
use crate::bucket::Bucket;
use crate::bucket_update::BucketUpdate;
use crate::extents::Extent;
use crate::growth::Growth;
use crate::layout::TableLayout;
use crate::owner::Owner;
use crate::partition::{MainBuckets, Partition};
use crate::sync::{Mutex, MutexGuard, Ordering, lock};
use crate::table::{BucketAddress, Table};

/// Buckets of a chunk. Loom has few words.
pub(crate) const CHUNK_BUCKETS: u32 = if cfg!(loom) { 1 } else { 32 };
/// Segments of the directory: the last ends behind the largest number.
const SEGMENTS: usize = 28;

/// The directory of a partition's chunks.
pub(crate) struct Chunks {
    /// All numbers in chunks are smaller.
    end: AtomicU32,
    segments: [OnceLock<Box<[AtomicUsize]>>; SEGMENTS],
    /// Held while a chunk comes or goes, and while a bucket is born that nobody has locked.
    changing: Mutex<()>,
}

/// Held, no chunk comes or goes.
pub(crate) type ChunksHeld<'c> = MutexGuard<'c, ()>;

impl Chunks {
    pub(crate) fn new(roots: u32) -> Self {
        Self {
            end: AtomicU32::new(roots),
            segments: [const { OnceLock::new() }; SEGMENTS],
            changing: Mutex::new(()),
        }
    }

    pub(crate) fn hold(&self) -> ChunksHeld<'_> {
        lock(&self.changing)
    }

    /// All numbers in chunks are smaller.
    pub(crate) fn end(&self) -> u32 {
        // Acquire: pairs with the Release in set_end().
        self.end.load(Ordering::Acquire)
    }

    /// First word of a chunk.
    #[inline(always)]
    fn chunk(&self, index: u32) -> Option<usize> {
        let (segment, at) = place_of(index);
        // Acquire: pairs with the Release in store(): the memory has its first contents.
        let word = self.segments[segment].get()?[at].load(Ordering::Acquire);
        (word != 0).then_some(word)
    }

    fn store(&self, index: u32, word: usize) {
        let (segment, at) = place_of(index);
        let empty = || (0..1_usize << segment).map(|_| AtomicUsize::new(0)).collect();
        self.segments[segment].get_or_init(empty)[at].store(word, Ordering::Release);
    }

    /// Makes the end that of the last chunk that is there, of which `index` has come or gone.
    fn set_end(&self, roots: u32, index: u32) {
        let ends_at = |chunks: u64| {
            let end = u64::from(roots) + chunks * u64::from(CHUNK_BUCKETS);
            u32::try_from(end).unwrap_or(u32::MAX)
        };
        let mut chunks = (self.end() - roots).div_ceil(CHUNK_BUCKETS).max(index + 1);
        while chunks > 0 && self.chunk(chunks - 1).is_none() {
            chunks -= 1;
        }
        // Release: pairs with the Acquire in end(): the chunks are there.
        self.end.store(ends_at(chunks.into()), Ordering::Release);
    }

    /// Forgets all; what they took. Nobody uses the partition any more.
    pub(crate) fn clear(&self, layout: &TableLayout) -> Vec<Extent> {
        // Relaxed: as the partition's own word.
        self.end.store(layout.buckets, Ordering::Relaxed);
        let chunks = self.segments.iter().filter_map(OnceLock::get).flatten();
        let words = chunks.map(|word| word.swap(0, Ordering::Relaxed));
        words
            .filter(|word| *word != 0)
            .map(|word| Extent::of_words(word, chunk_words(layout)))
            .collect()
    }
}

/// Segment and place of a chunk in the directory.
#[inline(always)]
fn place_of(chunk: u32) -> (usize, usize) {
    let segment = (chunk + 1).ilog2();
    (segment as usize, (chunk + 1 - (1 << segment)) as usize)
}

fn chunk_words(layout: &TableLayout) -> usize {
    CHUNK_BUCKETS as usize * layout.main_words
}

impl Table {
    /// One more than the largest number of a bucket that this node has of a partition. Some before may not be born.
    #[must_use]
    pub fn bucket_count(&self, partition: u16) -> u32 {
        let growth = self.partition(partition).and_then(Partition::growth);
        growth.map_or(self.layout().buckets, |growth| growth.chunks.end())
    }

    /// Bytes of the main buckets of a partition.
    #[must_use]
    pub fn bucket_bytes(&self, partition: u16) -> usize {
        let born = self.bucket_count(partition) - self.layout().buckets;
        let chunks = born.div_ceil(CHUNK_BUCKETS) as usize;
        self.layout().main_bytes(1) + chunks * chunk_words(self.layout()) * 8
    }

    /// Where a bucket is that was not there when the table was created.
    #[cold]
    pub(crate) fn born_address(&self, partition: &Partition, bucket: u32) -> Option<BucketAddress> {
        Some(BucketAddress::new(self.born_word(partition.growth()?, bucket)?, 0))
    }

    #[inline(always)]
    fn born_word(&self, growth: &Growth, bucket: u32) -> Option<usize> {
        let born = bucket - self.layout().buckets;
        let chunk = growth.chunks.chunk(born / CHUNK_BUCKETS)?;
        Some(chunk + (born % CHUNK_BUCKETS) as usize * self.layout().main_words)
    }

    /// First word of a bucket of any number of a partition that has grown, if there is memory for it.
    #[inline(always)]
    pub(crate) fn word_of(&self, growth: &Growth, main: MainBuckets, bucket: u32) -> Option<usize> {
        if bucket < self.layout().buckets {
            Some(main.first_word() + bucket as usize * self.layout().main_words)
        } else {
            self.born_word(growth, bucket)
        }
    }

    /// Where the bucket of a unit is, which may not be born at this copy: its memory is taken then. [`BucketAddress::NONE`] if the bucket was
    /// merged since. None if the node does not have the partition, or no memory is left.
    #[inline]
    #[must_use]
    pub fn address_to_fill(&self, unit: &BucketUpdate<'_>) -> Option<BucketAddress> {
        self.bucket_address(unit.partition, unit.bucket).or_else(|| self.unborn_address(unit))
    }

    #[cold]
    fn unborn_address(&self, unit: &BucketUpdate<'_>) -> Option<BucketAddress> {
        if self.was_merged(unit.partition, unit.bucket, unit.order()) {
            return Some(BucketAddress::NONE);
        }
        let growth = self.partition(unit.partition)?.growth_or_new(self.layout().buckets);
        let chunks = growth.chunks.hold();
        self.address_held(&chunks, (unit.partition, unit.bucket), Quota::Decided)
    }

    /// Where a bucket is, whose chunk is taken within this quota if it is not there. It stays there while the chunks are held.
    pub(crate) fn address_held(
        &self,
        _held: &ChunksHeld<'_>,
        (number, bucket): (u16, u32),
        quota: Quota,
    ) -> Option<BucketAddress> {
        let (partition, roots) = (self.partition(number)?, self.layout().buckets);
        let main = partition.main_buckets()?;
        if let Some(born) = bucket.checked_sub(roots) {
            let (chunks, index) = (&partition.growth()?.chunks, born / CHUNK_BUCKETS);
            if chunks.chunk(index).is_none() {
                let words = chunk_words(self.layout());
                let word = self.arena().allocate_fixed(number, words, quota)?;
                chunks.store(index, word);
                chunks.set_end(roots, index);
            }
        }
        self.address_from(partition, main, bucket)
    }

    /// The buckets of the chunk that begins with this word.
    fn buckets_of(&self, word: usize) -> impl Iterator<Item = Bucket<'_>> {
        let words = self.layout().main_words;
        (0..CHUNK_BUCKETS as usize)
            .map(move |number| self.bucket(BucketAddress::new(word + number * words, 0)))
    }

    /// Counts the memory of a bucket's chunk as free, if none of its buckets is born or locked.
    pub(crate) fn bury(&self, number: u16, bucket: u32) {
        let roots = self.layout().buckets;
        let Some(born) = bucket.checked_sub(roots) else { return };
        let Some(growth) = self.partition(number).and_then(Partition::growth) else { return };
        let (chunks, index) = (&growth.chunks, born / CHUNK_BUCKETS);
        let _held = chunks.hold();
        let Some(word) = chunks.chunk(index) else { return };
        let is_used = |bucket: Bucket<'_>| bucket.version() != 0 || bucket.owner() != Owner::FREE;
        if self.buckets_of(word).any(is_used) {
            return;
        }
        chunks.store(index, 0);
        chunks.set_end(roots, index);
        let mut extents = vec![Extent::of_words(word, chunk_words(self.layout()))];
        self.buckets_of(word).for_each(|bucket| {
            bucket.write(|next| {
                self.empty_bucket(number, bucket, &mut extents);
                *next = 0;
            });
        });
        self.arena().retire_fixed(number, extents);
    }
}
