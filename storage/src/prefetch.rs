//! Prefetches of a bucket in two stages: the line with the tags, and then the slot that they tell.
//!
//! A slot is prefetched without its table, so that a worker that prefetches for many requests looks up no table for them.
//!
//! *Source*: HERD section 4.1.1, for the two stages.
//!
//! *Not here*: rows that slots point to (`bucket`), and lines of the ordered index.

use std::sync::atomic::Ordering;

use crate::arena::{Arena, LINE_WORDS};
use crate::bucket::{HEADER_WORDS, SEQUENCE, SLOTS_PER_MAIN_BUCKET, TAGS, matching, next_of};
use crate::table::{BucketAddress, Table};

/// The slot of a key: its bucket and tag, and the size of the table's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHint {
    /// The bucket, and the tag of the key.
    pub address: BucketAddress,
    slot_words: u16,
}

impl SlotHint {
    /// A bucket of which no slot is to be prefetched.
    #[inline(always)]
    #[must_use]
    pub const fn of_bucket(address: BucketAddress) -> Self {
        Self { address, slot_words: 0 }
    }

    /// Whether there is a slot to be prefetched.
    #[inline(always)]
    #[must_use]
    pub const fn has_slot(self) -> bool {
        self.slot_words > 0
    }

    /// The same bucket without its slot.
    #[inline(always)]
    #[must_use]
    pub const fn without_slot(self) -> Self {
        Self::of_bucket(self.address)
    }
}

impl Arena {
    /// Prefetches the line with the tags of the bucket at `address`, which mostly has all of its header.
    #[inline(always)]
    pub fn prefetch_header(&self, address: BucketAddress) {
        self.prefetch(address.first_word() + TAGS);
    }

    /// Prefetches the lines that are read after the tags, once those have arrived: the one in which the header begins, and the slot whose
    /// tag matches, or the first overflow bucket when none does. Of [`BucketAddress::NONE`], nothing that matters.
    #[inline(always)]
    pub fn prefetch_slot(&self, hint: SlotHint) {
        let SlotHint { address, slot_words } = hint;
        let (first_word, slot_words) = (address.first_word(), usize::from(slot_words));
        let header = self.words(first_word, HEADER_WORDS);
        self.prefetch(first_word);
        let tags = header[TAGS].load(Ordering::Relaxed);
        let matches = matching(tags, address.tag(), SLOTS_PER_MAIN_BUCKET);
        if matches != 0 {
            let index = (matches.trailing_zeros() / 8) as usize;
            let slot = first_word + HEADER_WORDS + index * slot_words;
            self.prefetch(slot);
            // Often this is the same line: the prefetch costs less than a check.
            self.prefetch(slot + slot_words.min(2 * LINE_WORDS) - 1);
        } else {
            let next = next_of(header[SEQUENCE].load(Ordering::Relaxed));
            if next != 0 {
                self.prefetch_line(next);
            }
        }
    }
}

impl Table {
    /// What [`Arena::prefetch_slot`] needs for the key that `address` was made for.
    #[inline(always)]
    #[must_use]
    pub fn slot_hint(&self, address: BucketAddress) -> SlotHint {
        // A slot has at most a few hundred words (`VALUE_BYTES_MAX`).
        let slot_words = u16::try_from(self.layout().slot_words).unwrap_or(u16::MAX);
        SlotHint { address, slot_words }
    }

    /// Prefetches the tags of a bucket.
    #[inline]
    pub fn prefetch(&self, address: BucketAddress) {
        self.arena.prefetch_header(address);
    }

    /// Prefetches the slot of the key that `address` was made for, once the tags have arrived.
    #[inline]
    pub fn prefetch_slot(&self, address: BucketAddress) {
        self.arena.prefetch_slot(self.slot_hint(address));
    }

    /// Prefetches the first slot that is free at `address`, once the tags have arrived.
    pub fn prefetch_free_slot(&self, address: BucketAddress) {
        self.prefetch_slot(address.with_tag(0));
    }
}
