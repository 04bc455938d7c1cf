//! The room of a bucket: free slots, reservations, and the chain of overflow buckets, which grows and shrinks at its end.
//!
//! *Source*: rule C9 in `docs/protocol.md`.
//!
//! *Invariants*: a chain is as long as its rows and its reservations need, at every copy. Where there are overflow buckets, rows lie without
//! gaps.

use crate::arena::{LINE_WORDS, Quota};
use crate::bucket::{
    Bucket, OVERFLOW_NEXT, OVERFLOW_TAGS, SEQUENCE_MASK, Slot, Slots, TAGS, held, matching,
};
use crate::cells::{LINK_MASK, Need, link_of, store_link};
use crate::sync::Ordering;

const RESERVED_SHIFT: u32 = 56;
/// The main bucket's count of reserved slots where the first overflow bucket has the whole count.
const RESERVED_MORE: u64 = 0xff;

impl<'a> Bucket<'a> {
    /// Reserves one more free slot, for `key`, for the transaction that holds the lock; inside [`Self::write`].
    ///
    /// Returns `false`, with nothing reserved, if there is none and `quota` is used up.
    pub(crate) fn reserve(&self, next: &mut u64, key: u64, quota: Quota) -> bool {
        let reserved = self.reserved(*next);
        if self.free_slots(*next) <= reserved
            && !self.extend(next, (1, self.layout.partitioning.partition(key)), quota)
        {
            return false;
        }
        self.store_reserved(*next, reserved + 1);
        true
    }

    /// Ends the reservations of the present lock, and frees the cells at the chain's end that hold no row; inside
    /// [`Self::write`]. Only a reservation or a row that was removed leaves such a cell: otherwise the chain is not walked.
    #[inline(always)]
    pub(crate) fn end_reservation(
        &self,
        next: &mut u64,
        has_removed: bool,
        partition: impl FnOnce() -> u16,
    ) {
        let has_reserved = self.words[TAGS].load(Ordering::Relaxed) >> RESERVED_SHIFT != 0;
        if !has_reserved && !has_removed {
            return;
        }
        self.trim(next, partition);
        self.store_reserved(0, 0);
    }

    /// Frees the cells at the chain's end that hold no row; inside [`Self::write`].
    pub(crate) fn trim(&self, next: &mut u64, partition: impl FnOnce() -> u16) {
        if *next == 0 || !self.layout.has_overflow_cells() {
            return;
        }
        let is_empty = |number| self.overflow(number)[OVERFLOW_TAGS].load(Ordering::Relaxed) == 0;
        let numbers = self.overflow_numbers(held(*next));
        let empty = numbers.skip_while(|number| !is_empty(*number));
        let (first, count) = empty.fold((0, 0), |(first, count), number| {
            (if count == 0 { number } else { first }, count + 1)
        });
        if count == 0 {
            return;
        }
        match self.overflow_numbers(held(*next)).take_while(|number| *number != first).last() {
            Some(last) => store_link(self.overflow(last), 0),
            None => *next = 0,
        }
        self.arena.free(partition(), first, Need::cells(count));
    }

    fn reserved(&self, next: u64) -> u64 {
        match self.words[TAGS].load(Ordering::Relaxed) >> RESERVED_SHIFT {
            RESERVED_MORE => self.overflow(next)[OVERFLOW_NEXT].load(Ordering::Relaxed) >> 32,
            reserved => reserved,
        }
    }

    fn store_reserved(&self, next: u64, reserved: u64) {
        if reserved >= RESERVED_MORE {
            // So many slots were found free that there is an overflow bucket. Its count is read only while the main bucket says "more".
            let first = &self.overflow(next)[OVERFLOW_NEXT];
            first.store(
                first.load(Ordering::Relaxed) & LINK_MASK | reserved << 32,
                Ordering::Relaxed,
            );
        }
        let tags = self.words[TAGS].load(Ordering::Relaxed) & !(RESERVED_MORE << RESERVED_SHIFT);
        self.words[TAGS]
            .store(tags | reserved.min(RESERVED_MORE) << RESERVED_SHIFT, Ordering::Relaxed);
    }

    fn free_slots(&self, next: u64) -> u64 {
        let empty = |slots: Slots<'a>| {
            let tags = slots.tags.load(Ordering::Relaxed);
            u64::from(matching(tags, 0, slots.count).count_ones())
        };
        self.all_slots(held(next)).map(empty).sum()
    }

    /// Links so many more overflow buckets to the end of the chain; inside [`Self::write`]. `false` if the quota is used up.
    pub(crate) fn extend(
        &self,
        next: &mut u64,
        (count, partition): (usize, u16),
        quota: Quota,
    ) -> bool {
        if self.layout.has_overflow_cells() {
            let cells = self.arena.allocate(partition, Need::cells(count), Need::NOTHING, quota);
            return cells.map(|first| self.link(next, first, count)).is_some();
        }
        (0..count).all(|_| {
            let word = self.arena.allocate_fixed(partition, self.layout.overflow_words, quota);
            word.map(|word| self.link(next, (word / LINE_WORDS) as u64, 1)).is_some()
        })
    }

    /// Links overflow buckets to the end of the chain, which are linked to each other, and empties them.
    fn link(&self, next: &mut u64, first: u64, count: usize) {
        let mut number = first;
        for behind in (0..count).rev() {
            assert!(number <= SEQUENCE_MASK, "the arena holds fewer than 2^32 cache lines");
            let header = self.overflow(number);
            number = if behind > 0 { link_of(header) } else { 0 };
            header[OVERFLOW_NEXT].store(number, Ordering::Relaxed);
            header[OVERFLOW_TAGS].store(0, Ordering::Relaxed);
        }
        match self.overflow_numbers(held(*next)).last() {
            Some(last) => store_link(self.overflow(last), first),
            None => *next = first,
        }
    }

    /// Has so many slots free, with overflow buckets if need be; inside [`Self::write`]. `false` if the quota is used up.
    pub(crate) fn make_room(
        &self,
        next: &mut u64,
        (rows, partition): (u64, u16),
        quota: Quota,
    ) -> bool {
        let missing = rows.saturating_sub(self.free_slots(*next));
        let count = missing.div_ceil(self.layout.overflow_slots as u64);
        let count = usize::try_from(count).expect("fewer rows than bytes");
        count == 0 || self.extend(next, (count, partition), quota)
    }

    /// Whether rows lie in a second overflow bucket, or may: a look at that is another cache miss. Inside [`Self::write`].
    #[inline(always)]
    pub(crate) fn is_long(&self, next: u64) -> bool {
        next != 0 && link_of(self.overflow(next)) != 0
    }

    /// Moves the rows whose keys `moves` to another bucket, which has room; inside [`Self::write`] of both. Those that stay lie without
    /// gaps afterwards.
    pub(crate) fn move_rows(
        &self,
        next: u64,
        (to, to_next): (Self, u64),
        moves: impl Fn(u64) -> bool,
    ) {
        let mut behind = self.slots(next);
        let mut moved = to.slots(to_next).filter(|slot| slot.tag() == 0);
        for slot in self.slots(next).filter(|slot| slot.tag() != 0) {
            let place = if moves(slot.key()) { moved.next() } else { behind.next() };
            let place =
                place.expect("the other bucket has room, and this one has the row's own slot");
            if !place.is(&slot) {
                place.take_over(&slot);
            }
        }
    }

    /// All slots, in their order.
    fn slots(&self, next: u64) -> impl Iterator<Item = Slot<'a>> {
        let bucket = *self;
        let of =
            move |slots: Slots<'a>| (0..slots.count).map(move |index| bucket.slot(slots, index));
        self.all_slots(held(next)).flat_map(of)
    }
}
