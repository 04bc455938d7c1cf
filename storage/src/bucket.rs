//! The layout of a bucket in words, and the two protocols that protect it.
//!
//! ```text
//! main bucket, one per bucket index                 overflow bucket, chained from a main bucket
//! word 0   version: level 8 (`growth.rs`) | count,      word 0   next (low 32) | of the first: reserved (high 32)
//!          one more per transaction that wrote it   word 1   tags, one byte per slot
//! word 1   owner: lock word, 0 = free               word 2.. slots
//! word 2   sequence (low 32) | next (high 32)
//! word 3   tags of slots 0..7 | reserved (high 8)   slot: key (1 word), value (value_words)
//! word 4.. slots 0..7                               tag 0 = the slot is empty
//! last     of a heap table: stamp of the last deletion
//! ```
//! `next` is the number of the overflow bucket's first cache line in the arena, 0 = none. The header
//! of the main bucket covers the whole chain. `reserved` counts slots promised to inserts under the
//! present lock. From 255 on the main bucket holds 255 for "more", and the first overflow bucket has the count.
//!
//! *Logical lock* (`owner`): held by a transaction from LOCK to commit or abort.
//! *Physical sequence* (`sequence`): odd while words of the chain are being changed in place. A
//! reader copies words and repeats if the sequence moved; a writer takes it from even to odd, so
//! that two writers exclude each other whatever the logical lock says (a backup has none).
//!
//! *Source*: FaSST figure 5; the sequence protocol is the one of crossbeam-utils `atomic/seq_lock.rs`
//! (Boehm, Can seqlocks get along with programming language memory models?, section 4), here with
//! every word an atomic, so that a torn copy is discarded rather than undefined.
//!
//! Where there are overflow buckets, rows lie without gaps: the last row moves into the slot of a row that is removed. So a chain
//! is as long as its rows and its reservations need, at every copy. An overflow bucket of one line is a cell (`cells.rs`), and is
//! freed when it is empty. A longer one stays until the table goes.
//!
//! *Invariants*: the buckets that a table began with are freed with it alone; a chain grows and shrinks at its end, in a write; counts of versions never fall.

use crate::arena::{Arena, Quota};
use crate::cells::{LINK_MASK, link_of};
use crate::layout::{TableKind, TableLayout};
use crate::owner::Owner;
use crate::sync::{AtomicU64, Ordering, fence, spin_loop};
use gannet_rules::rule;

/// Slots in a main bucket (FaSST section 5: 7 to 15).
pub const SLOTS_PER_MAIN_BUCKET: usize = 7;
/// Words of a main bucket's header.
pub(crate) const HEADER_WORDS: usize = 4;
/// Words of an overflow bucket's header.
pub(crate) const OVERFLOW_HEADER_WORDS: usize = 2;
/// Most slots in an overflow bucket: one tag byte each.
pub(crate) const OVERFLOW_SLOTS_MAX: usize = 7;

const VERSION: usize = 0;
const OWNER: usize = 1;
pub(crate) const SEQUENCE: usize = 2;
pub(crate) const TAGS: usize = 3;
/// Its low half is the link of the cell that the overflow bucket is.
pub(crate) const OVERFLOW_NEXT: usize = 0;
pub(crate) const OVERFLOW_TAGS: usize = 1;

pub(crate) const SEQUENCE_MASK: u64 = 0xffff_ffff;

/// Bit 7 of each of the first `slots` bytes whose tag equals `tag`; exact.
#[inline(always)]
pub(crate) fn matching(tags: u64, tag: u8, slots: usize) -> u64 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let x = tags ^ (LOW * u64::from(tag));
    let zero_bytes = !(((x & SEVEN) + SEVEN) | x | SEVEN);
    zero_bytes & (u64::MAX >> (64 - 8 * slots))
}

/// The number of the overflow bucket that a sequence word links to.
#[inline(always)]
pub(crate) fn next_of(sequence_word: u64) -> u64 {
    sequence_word >> 32
}

/// The sequence word of a writer, which has changed the number of the first overflow bucket or not.
#[inline(always)]
pub(crate) fn held(next: u64) -> u64 {
    next << 32 | 1
}

/// A slot that holds, or can take, a key.
pub(crate) struct Slot<'a> {
    tags: &'a AtomicU64,
    index: u32,
    /// Key and value words.
    words: &'a [AtomicU64],
}

impl Slot<'_> {
    /// The key stored in the slot.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        // Relaxed: ordered by the sequence protocol, as every word of a slot.
        self.words[0].load(Ordering::Relaxed)
    }

    /// The first word of the value.
    pub(crate) fn value_word(&self) -> u64 {
        self.words[1].load(Ordering::Relaxed)
    }

    /// Replaces the first word of the value; inside [`Bucket::write`].
    pub(crate) fn store_value_word(&self, word: u64) {
        self.words[1].store(word, Ordering::Relaxed);
    }

    /// Takes the contents of another slot, and empties that. If both are the same slot, it is only emptied.
    pub(crate) fn take_over(&self, other: &Self) {
        for (to, from) in self.words.iter().zip(other.words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.store_tag(other.tag());
        other.store_tag(0);
    }

    /// Whether both are the same slot.
    pub(crate) fn is(&self, other: &Self) -> bool {
        std::ptr::eq(self.words, other.words)
    }

    pub(crate) fn tag(&self) -> u8 {
        self.tags.load(Ordering::Relaxed).to_le_bytes()[self.index as usize]
    }

    /// Copies the value's bytes, or as many as `out` takes.
    #[inline(always)]
    pub(crate) fn copy_value(&self, out: &mut [u8]) {
        let mut words = self.words[1..].iter();
        let (chunks, rest) = out.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(words.by_ref()) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if let (false, Some(word)) = (rest.is_empty(), words.next()) {
            let bytes = word.load(Ordering::Relaxed).to_le_bytes();
            rest.copy_from_slice(&bytes[..rest.len()]);
        }
    }

    fn store_value(&self, value: &[u8]) {
        let mut words = self.words[1..].iter();
        let (chunks, rest) = value.as_chunks::<8>();
        for (chunk, word) in chunks.iter().zip(words.by_ref()) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if let (false, Some(word)) = (rest.is_empty(), words.next()) {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
    }

    fn store_tag(&self, tag: u8) {
        let shift = 8 * self.index;
        let others = self.tags.load(Ordering::Relaxed) & !(0xff << shift);
        self.tags.store(others | u64::from(tag) << shift, Ordering::Relaxed);
    }
}

/// A main bucket and its chain.
#[derive(Clone, Copy)]
pub(crate) struct Bucket<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) layout: &'a TableLayout,
    /// The main bucket's words.
    pub(crate) words: &'a [AtomicU64],
}

impl<'a> Bucket<'a> {
    /// The bucket whose main bucket starts at `first_word`.
    #[inline(always)]
    pub(crate) fn new(arena: &'a Arena, layout: &'a TableLayout, first_word: usize) -> Self {
        Self { arena, layout, words: arena.words(first_word, layout.main_words) }
    }

    /// The lock word.
    #[inline(always)]
    pub(crate) fn owner(&self) -> Owner {
        if cfg!(loom) {
            // Loom knows sequential consistency of fences, not of accesses.
            fence(Ordering::SeqCst);
        }
        // Acquire, in SeqCst: pairs with the Release in release(), so that a thread that sees the
        // bucket free also sees the version and the words that its last owner stored. SeqCst: pairs with
        // acquire(). Of two transactions that each lock one bucket and then validate the other's, one
        // must see the other's lock, or both commit on reads that the other's write makes stale.
        Owner(self.words[OWNER].load(Ordering::SeqCst))
    }

    /// Takes the lock for `owner`; the error is the owner that has it.
    #[inline(always)]
    pub(crate) fn acquire(&self, owner: Owner) -> Result<(), Owner> {
        // SeqCst: as in owner().
        let taken = self.words[OWNER].compare_exchange(
            Owner::FREE.0,
            owner.0,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        if cfg!(loom) {
            fence(Ordering::SeqCst);
        }
        taken.map(|_| ()).map_err(Owner)
    }

    /// Takes the lock of an owner of another epoch, which is dead; whether it still was that one's.
    #[cold]
    pub(crate) fn take_over(&self, dead: Owner, owner: Owner) -> bool {
        // SeqCst: as in acquire().
        let word = &self.words[OWNER];
        word.compare_exchange(dead.0, owner.0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Frees the lock word; the caller holds the lock.
    #[inline(always)]
    pub(crate) fn release(&self) {
        // Release: pairs with the Acquire in owner() and acquire().
        self.words[OWNER].store(Owner::FREE.0, Ordering::Release);
    }

    /// The logical version.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Relaxed: read after owner()'s Acquire or inside the sequence protocol.
        self.words[VERSION].load(Ordering::Relaxed)
    }

    /// Runs `copy` until it saw the chain unchanged from its first load to its last.
    ///
    /// `copy` gets the sequence word, for [`Self::find`], and may see torn data: its result is
    /// discarded then. Writers hold the sequence for the copying of one unit, so the wait is short.
    #[inline(always)]
    pub(crate) fn read_consistent<T>(&self, mut copy: impl FnMut(u64) -> T) -> T {
        loop {
            // Acquire: pairs with the Release in write(): the words of the last finished write.
            let before = self.words[SEQUENCE].load(Ordering::Acquire);
            if before & 1 == 0 || !rule!(SEQUENCE_CHECK) {
                let copied = copy(before);
                if rule!(READ_FENCE) {
                    // Acquire fence: pairs with the Release fence in write(): if any word copied
                    // belongs to a later write, the load below sees that write's odd sequence.
                    fence(Ordering::Acquire);
                }
                if self.words[SEQUENCE].load(Ordering::Relaxed) == before || !rule!(SEQUENCE_CHECK)
                {
                    return copied;
                }
            }
            spin_loop();
        }
    }

    /// Runs `change` with the physical sequence held; no other writer runs meanwhile.
    ///
    /// `change` gets the number of the first overflow bucket (0 = none) and may set it.
    #[inline(always)]
    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut u64) -> T) -> T {
        let before = loop {
            let word = self.words[SEQUENCE].load(Ordering::Relaxed);
            // Acquire: pairs with the Release at the end of the previous writer.
            if word & 1 == 0
                && self.words[SEQUENCE]
                    .compare_exchange_weak(word, word | 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                break word;
            }
            spin_loop();
        };
        if rule!(WRITE_FENCE) {
            // Release fence: pairs with the Acquire fence in read_consistent().
            fence(Ordering::Release);
        }
        let mut next = next_of(before);
        let result = change(&mut next);
        let sequence = (before + 2) & SEQUENCE_MASK;
        // Release: pairs with the Acquire at the top of read_consistent() and of write().
        self.words[SEQUENCE].store(sequence | next << 32, Ordering::Release);
        result
    }

    /// As a writer's sequence word, of a bucket that nobody reads or writes any more.
    pub(crate) fn last_sequence(&self) -> u64 {
        held(next_of(self.words[SEQUENCE].load(Ordering::Relaxed)))
    }

    /// How many rows there are.
    pub(crate) fn rows(&self, sequence_word: u64) -> u64 {
        let mut rows = 0;
        self.for_each(sequence_word, |_| rows += 1);
        rows
    }

    /// The stamp of the version that deleted a row from the bucket last; 0 in a fixed table.
    pub(crate) fn deleted(&self) -> u64 {
        self.deleted_word().map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets it; inside [`Self::write`].
    pub(crate) fn store_deleted(&self, stamp: u64) {
        if let Some(word) = self.deleted_word() {
            word.store(stamp, Ordering::Relaxed);
        }
    }

    fn deleted_word(&self) -> Option<&AtomicU64> {
        self.words.last().filter(|_| self.layout.kind != TableKind::Fixed)
    }

    /// Sets the version; inside [`Self::write`].
    pub(crate) fn store_version(&self, version: u64) {
        self.words[VERSION].store(version, Ordering::Relaxed);
    }

    /// The slot that holds `key`, searched from the main bucket along the chain.
    #[inline(always)]
    pub(crate) fn find(&self, sequence_word: u64, tag: u8, key: u64) -> Option<Slot<'a>> {
        self.find_where(sequence_word, tag, key, |_| true)
    }

    /// As [`Self::find`]: the first slot with that key that `is_meant` accepts.
    #[inline(always)]
    pub(crate) fn find_where(
        &self,
        sequence_word: u64,
        tag: u8,
        key: u64,
        is_meant: impl Fn(&Slot<'a>) -> bool,
    ) -> Option<Slot<'a>> {
        if let Some(slot) = self.find_in(self.main_slots(), tag, key, &is_meant) {
            return Some(slot);
        }
        if next_of(sequence_word) == 0 {
            return None;
        }
        self.overflow_buckets(sequence_word)
            .find_map(|overflow| self.find_in(overflow, tag, key, &is_meant))
    }

    /// Writes `value` under `key`, overwriting or inserting; inside [`Self::write`].
    ///
    /// Returns `false`, with nothing changed, if no slot is free and `quota` is used up.
    pub(crate) fn put(
        &self,
        next: &mut u64,
        tag: u8,
        key: u64,
        value: &[u8],
        quota: Quota,
    ) -> bool {
        if let Some(slot) = self.find(held(*next), tag, key) {
            slot.store_value(value);
            return true;
        }
        self.insert(next, tag, key, value, quota)
    }

    /// Writes `value` under `key` into a free slot; inside [`Self::write`], for a key that is not there.
    ///
    /// Returns `false`, with nothing changed, if no slot is free and `quota` is used up.
    #[inline]
    pub(crate) fn insert(
        &self,
        next: &mut u64,
        tag: u8,
        key: u64,
        value: &[u8],
        quota: Quota,
    ) -> bool {
        let Some(slot) = self.free_slot(*next).or_else(|| {
            self.extend(next, (1, self.layout.partitioning.partition(key)), quota)
                .then(|| self.free_slot(*next).expect("a bucket was added"))
        }) else {
            return false;
        };
        slot.words[0].store(key, Ordering::Relaxed);
        slot.store_value(value);
        slot.store_tag(tag);
        true
    }

    /// Empties the slot of `key`, if there is one; inside [`Self::write`].
    pub(crate) fn remove(&self, next: u64, tag: u8, key: u64) {
        if let Some(slot) = self.find(held(next), tag, key) {
            self.clear(next, &slot);
        }
    }

    /// Empties a slot, into which the last row of the chain moves if it has overflow buckets; inside [`Self::write`].
    pub(crate) fn clear(&self, next: u64, slot: &Slot<'a>) {
        let last =
            self.overflow_buckets(held(next)).filter_map(|slots| self.last_taken(slots)).last();
        match last {
            Some(last) => slot.take_over(&last),
            None => slot.store_tag(0),
        }
    }

    /// Calls `visit` for each slot that holds a key.
    pub(crate) fn for_each(&self, sequence_word: u64, mut visit: impl FnMut(&Slot<'a>)) {
        for slots in self.all_slots(sequence_word) {
            let tags = slots.tags.load(Ordering::Relaxed);
            for index in 0..slots.count {
                if tags >> (8 * index) & 0xff != 0 {
                    visit(&self.slot(slots, index));
                }
            }
        }
    }

    /// Prefetches the row that the slot whose tag matches points to, once the slot has arrived.
    #[inline(always)]
    pub(crate) fn prefetch_row(&self, tag: u8) {
        let slots = self.main_slots();
        let matches = matching(slots.tags.load(Ordering::Relaxed), tag, slots.count);
        if matches != 0 {
            let slot = self.slot(slots, (matches.trailing_zeros() / 8) as usize);
            let first = slot.value_word() & LINK_MASK;
            self.arena.prefetch_line(first);
            // The second cell mostly lies behind the first.
            self.arena.prefetch_line(first + 1);
        }
    }

    /// Prefetches the rows that the main bucket's slots point to, and the first overflow bucket, once the main bucket has arrived.
    pub(crate) fn prefetch_rows(&self) {
        self.prefetch_rows_of(self.main_slots());
        let next = next_of(self.words[SEQUENCE].load(Ordering::Relaxed));
        if next != 0 {
            self.arena.prefetch_line(next);
        }
    }

    /// Prefetches the rows that the slots of the first overflow bucket point to, once it has arrived.
    pub(crate) fn prefetch_overflow_rows(&self) {
        let next = next_of(self.words[SEQUENCE].load(Ordering::Relaxed));
        if next != 0 {
            self.prefetch_rows_of(self.overflow_slots(self.overflow(next)));
        }
    }

    fn prefetch_rows_of(&self, slots: Slots<'a>) {
        let tags = slots.tags.load(Ordering::Relaxed);
        for index in (0..slots.count).filter(|index| tags >> (8 * index) & 0xff != 0) {
            let first = self.slot(slots, index).value_word() & LINK_MASK;
            self.arena.prefetch_line(first);
            // The second cell mostly lies behind the first.
            self.arena.prefetch_line(first + 1);
        }
    }

    /// The numbers of the overflow buckets. The iterator ends when the bucket has changed since `sequence_word`: the link of a cell
    /// that was freed since may lead anywhere.
    #[inline(always)]
    pub(crate) fn overflow_numbers(&self, sequence_word: u64) -> impl Iterator<Item = u64> {
        let bucket = *self;
        let numbered = |number: u64| (number != 0).then_some(number);
        std::iter::successors(numbered(next_of(sequence_word)), move |number| {
            let link = link_of(bucket.overflow(*number));
            // Acquire fence: pairs with the Release fence in write(), as in read_consistent().
            fence(Ordering::Acquire);
            let is_same = sequence_word & 1 != 0
                || bucket.words[SEQUENCE].load(Ordering::Relaxed) == sequence_word;
            (is_same || !rule!(UNCHANGED_CHAIN)).then_some(link).and_then(numbered)
        })
    }

    /// The overflow buckets, as [`Self::overflow_numbers`].
    #[inline(always)]
    pub(crate) fn overflow_buckets(&self, sequence_word: u64) -> impl Iterator<Item = Slots<'a>> {
        let slots = |number| self.overflow_slots(self.overflow(number));
        self.overflow_numbers(sequence_word).map(slots)
    }

    /// The main bucket's slots and those of the overflow buckets.
    #[inline(always)]
    pub(crate) fn all_slots(&self, sequence_word: u64) -> impl Iterator<Item = Slots<'a>> {
        std::iter::once(self.main_slots()).chain(self.overflow_buckets(sequence_word))
    }

    fn free_slot(&self, next: u64) -> Option<Slot<'a>> {
        let first_empty = |slots: Slots<'a>| {
            let empty = matching(slots.tags.load(Ordering::Relaxed), 0, slots.count);
            (empty != 0).then(|| self.slot(slots, (empty.trailing_zeros() / 8) as usize))
        };
        let in_main = first_empty(self.main_slots());
        in_main.or_else(|| self.overflow_buckets(held(next)).find_map(first_empty))
    }

    /// The last slot of a bucket that holds a row.
    fn last_taken(&self, slots: Slots<'a>) -> Option<Slot<'a>> {
        let tags = slots.tags.load(Ordering::Relaxed);
        let last = (0..slots.count).rev().find(|index| tags >> (8 * index) & 0xff != 0);
        last.map(|index| self.slot(slots, index))
    }

    #[inline(always)]
    fn main_slots(&self) -> Slots<'a> {
        Slots {
            tags: &self.words[TAGS],
            words: &self.words[HEADER_WORDS..],
            count: SLOTS_PER_MAIN_BUCKET,
        }
    }

    #[inline]
    pub(crate) fn overflow(&self, number: u64) -> &'a [AtomicU64] {
        self.arena.lines(number, self.layout.overflow_words)
    }

    #[inline]
    pub(crate) fn overflow_slots(&self, overflow: &'a [AtomicU64]) -> Slots<'a> {
        Slots {
            tags: &overflow[OVERFLOW_TAGS],
            words: &overflow[OVERFLOW_HEADER_WORDS..],
            count: self.layout.overflow_slots,
        }
    }

    #[inline(always)]
    fn find_in(
        &self,
        slots: Slots<'a>,
        tag: u8,
        key: u64,
        is_meant: &impl Fn(&Slot<'a>) -> bool,
    ) -> Option<Slot<'a>> {
        let mut matches = matching(slots.tags.load(Ordering::Relaxed), tag, slots.count);
        while matches != 0 {
            let slot = self.slot(slots, (matches.trailing_zeros() / 8) as usize);
            if slot.key() == key && is_meant(&slot) {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fewer than 8 slots")]
    pub(crate) fn slot(&self, slots: Slots<'a>, index: usize) -> Slot<'a> {
        let first = index * self.layout.slot_words;
        let words = &slots.words[first..first + self.layout.slot_words];
        Slot { tags: slots.tags, index: index as u32, words }
    }
}

/// The slots of one bucket, main or overflow.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) tags: &'a AtomicU64,
    words: &'a [AtomicU64],
    pub(crate) count: usize,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn matching_is_exact() {
        let tags = 0x0080_8100_8081_0080;
        assert_eq!(matching(tags, 0x80, 7), 0x0080_0000_8000_0080);
        assert_eq!(matching(tags, 0x81, 7), 0x0000_8000_0080_0000);
        assert_eq!(matching(tags, 0, 7).count_ones(), 2);
        assert_eq!(matching(tags, 0, 1), 0);
    }
}
