//! Row reservations: at the primary of a row, a queue of the transactions that want to change it one after the other.
//!
//! ```text
//! row ─▶ holder, until its hold ends          asks ─▶ waiting, in the order in which they came ─▶ holder ─▶ releases
//! range ─▶ its readers (`shared_ranges`)      a row of a range waits for the readers, a range for the holders of its rows
//! ```
//! A reservation serves progress and never correctness, as a scan barrier does: it locks nothing, is not logged, and a
//! transaction that commits validates all the same. It ends with its holder's release, with its hold, with the epoch, and
//! with the node. Nobody is told that a row has become free: those that wait ask again, and one that does not for a while
//! has lost its place.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariants*: a row has one holder at most, and a bounded queue. Rows whose holds are over are forgotten when others are reserved. A row
//! gets no holder while another transaction reads a range with the row, and a range no reader while another transaction holds one of its rows.
//!
//! *Not here*: what SQL reserves, in `frontend`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::holder::Holder;
use crate::key_range::{KeyRange, is_inside};
use crate::scan_page::Bounds;
use crate::shared_ranges::{Added, SharedRanges};

/// A row: its table, and the hash of its key.
pub(crate) type RowName = (u32, u64);

/// Rows whose queues are looked after together.
const SHARDS: usize = 16;
/// Most that wait for a row.
const WAITING_MAX: usize = 1_000;
/// Most rows of a shard with a holder.
const ROWS_MAX: usize = 16 << 10;
/// One that waits and has not asked for so long has gone.
const SILENCE_NS: u64 = 100_000_000;
/// Readers of ranges let those pass that have waited for one of the rows for so long.
const OVERDUE_NS: u64 = 10_000_000;
/// Most reserved rows of a table that are looked at for a range, which is not shared if there are more.
const LOOKED_AT_MAX: usize = 1_000;
/// Bytes of a key by which a range is known to have a row, and most bytes of a range's bounds.
pub(crate) const RESERVED_KEY_BYTES: usize = 256;
/// Most holders that a wait is for, in an answer.
pub(crate) const AWAITED_MAX: usize = 32;

/// How a transaction asks for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Asks {
    /// It goes on without the row.
    Once = 0,
    /// It has a place in the queue from then on, as long as it asks again.
    InQueue = 1,
    /// As `Once`, whether others read the row or not.
    DespiteReaders = 2,
}

impl Asks {
    /// The field of a RESERVE or SHARE.
    pub(crate) fn from_wire(waits: u16) -> Self {
        match waits {
            1 => Self::InQueue,
            2 => Self::DespiteReaders,
            _ => Self::Once,
        }
    }
}

/// What a transaction wants to reserve here.
enum Wanted {
    Row(RowName),
    /// A range of a table, and when it was last asked for.
    Range(u32, KeyRange, u64),
}

/// What a row or a range was reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// The transaction holds the row, or reads the range.
    Granted,
    /// Another one does, and so many are before this one.
    Behind(Holder, usize),
    /// There is no place in the queue.
    Full,
}

#[derive(Default)]
struct Row {
    key: Box<[u8]>,
    /// The holder, and when its hold ends.
    held: Option<(Holder, u64)>,
    waiting: VecDeque<Waiter>,
}

/// A transaction that waits for a row.
struct Waiter {
    holder: Holder,
    since_ns: u64,
    /// When it last asked.
    asked_ns: u64,
}

impl Row {
    /// Ends a hold that is over, and forgets those that have gone.
    fn refresh(&mut self, now_ns: u64) {
        self.held = self.held.filter(|(_, until_ns)| now_ns < *until_ns);
        self.waiting.retain(|it| now_ns < it.asked_ns.saturating_add(SILENCE_NS));
    }

    /// The first of those that wait, if it has waited for long.
    fn overdue(&self, now_ns: u64) -> Option<Holder> {
        let first = self.waiting.front();
        let overdue = first.filter(|it| now_ns >= it.since_ns.saturating_add(OVERDUE_NS));
        overdue.map(|it| it.holder)
    }

    fn is_free(&self) -> bool {
        self.held.is_none() && self.waiting.is_empty()
    }
}

#[derive(Default)]
struct Shard {
    rows: BTreeMap<RowName, Row>,
    /// The number of rows at which those that are free are forgotten next, and the time when that was done last.
    swept_at: usize,
    swept_ns: u64,
}

impl Shard {
    /// Forgets rows whose holds are over, if there are many.
    fn sweep(&mut self, now_ns: u64) {
        let is_full = self.rows.len() >= ROWS_MAX && now_ns > self.swept_ns + SILENCE_NS;
        if is_full || self.rows.len() >= self.swept_at.max(SHARDS) {
            self.rows.retain(|_, row| {
                row.refresh(now_ns);
                !row.is_free()
            });
            (self.swept_at, self.swept_ns) = (2 * self.rows.len(), now_ns);
        }
    }
}

/// The reservations of a node, as primary.
#[derive(Default)]
pub(crate) struct RowReservations {
    shards: [Mutex<Shard>; SHARDS],
    shared: SharedRanges,
    /// What each transaction waits for, or has waited for: one row or range at a time.
    waits: Mutex<BTreeMap<Holder, Wanted>>,
    /// How many rows the shards have.
    count: AtomicUsize,
    /// Of this node as the place where transactions run.
    last_holder: AtomicU64,
}

impl RowReservations {
    /// A holder of this node that was none before.
    pub(crate) fn new_holder(&self, node: u16) -> Holder {
        // Relaxed: a number that is used once.
        let number = self.last_holder.fetch_add(1, Ordering::Relaxed) + 1;
        Holder(u64::from(node) << 48 | number)
    }

    /// Whether rows may be reserved, or ranges shared.
    #[inline(always)]
    pub(crate) fn are_there(&self) -> bool {
        // Relaxed: a LOCK that misses a reservation which is made at the same time was before it.
        self.count.load(Ordering::Relaxed) > 0 || self.shared.are_there()
    }

    /// Whether a row is held, or is waited for.
    pub(crate) fn is_reserved(&self, row: RowName, now_ns: u64) -> bool {
        let mut shard = self.shard(row).lock();
        let Some(found) = shard.rows.get_mut(&row) else { return false };
        found.refresh(now_ns);
        !found.is_free()
    }

    /// Whether a row is in a range that is shared.
    pub(crate) fn is_read(&self, (table, _): RowName, key: &[u8], now_ns: u64) -> bool {
        !self.shared.holders(table, key, now_ns).is_empty()
    }

    fn shard(&self, (table, hash): RowName) -> &Mutex<Shard> {
        let [byte, ..] = (hash ^ u64::from(table)).to_le_bytes();
        &self.shards[usize::from(byte) % SHARDS]
    }

    /// Reserves a row for a time, if it is free, no other transaction reads it, and none is before the holder. To reserve a row that one holds
    /// lengthens the hold.
    pub(crate) fn reserve(
        &self,
        (row, key): (RowName, &[u8]),
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
        asks: Asks,
    ) -> Reserved {
        let mut shard = self.shard(row).lock();
        let before = shard.rows.len();
        let reserved = self.reserve_in(&mut shard, (row, key), holder, (now_ns, hold_ns), asks);
        self.count_change(before, shard.rows.len());
        reserved
    }

    /// The rows of a shard have become more or fewer.
    fn count_change(&self, before: usize, after: usize) {
        // Relaxed: as in are_there().
        self.count.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    fn reserve_in(
        &self,
        shard: &mut Shard,
        (name, key): (RowName, &[u8]),
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
        asks: Asks,
    ) -> Reserved {
        shard.sweep(now_ns);
        if shard.rows.len() >= ROWS_MAX && !shard.rows.contains_key(&name) {
            return Reserved::Full;
        }
        let row =
            shard.rows.entry(name).or_insert_with(|| Row { key: key.into(), ..Row::default() });
        row.refresh(now_ns);
        let place = row.waiting.iter().position(|it| it.holder == holder);
        let before = place.unwrap_or(row.waiting.len());
        let other = match row.held {
            Some((other, _)) if other == holder => None,
            Some((other, _)) => Some(other),
            None => {
                let readers = match asks {
                    Asks::DespiteReaders => Vec::new(),
                    Asks::Once | Asks::InQueue => self.shared.holders(name.0, key, now_ns),
                };
                // Transactions in the queue wait for this reader, so the reader goes first.
                let is_next = before == 0 || readers.contains(&holder);
                let reader = readers.into_iter().find(|it| *it != holder);
                if is_next { reader } else { Some(row.waiting[0].holder) }
            }
        };
        let Some(other) = other else {
            row.held = Some((holder, now_ns.saturating_add(hold_ns)));
            if place.is_some() {
                row.waiting.retain(|it| it.holder != holder);
                self.waits.lock().remove(&holder);
            }
            return Reserved::Granted;
        };
        match place {
            Some(place) => row.waiting[place].asked_ns = now_ns,
            None if asks != Asks::InQueue && row.is_free() => _ = shard.rows.remove(&name),
            None if asks != Asks::InQueue => {}
            None if row.waiting.len() == WAITING_MAX => return Reserved::Full,
            None => {
                row.waiting.push_back(Waiter { holder, since_ns: now_ns, asked_ns: now_ns });
                self.waits.lock().insert(holder, Wanted::Row(name));
            }
        }
        Reserved::Behind(other, before)
    }

    /// Adds a reader of a range for a time, if no other transaction holds one of the rows or has waited long for one. A reader in the queue is
    /// known to wait until it asks again.
    pub(crate) fn share(
        &self,
        (table, bounds): (u32, Bounds<'_>),
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
        asks: Asks,
    ) -> Reserved {
        // Before the rows are looked at: one that is reserved later waits for this reader.
        let reserved = match self.shared.add(table, bounds, holder, (now_ns, hold_ns)) {
            Added::Before => Reserved::Granted,
            Added::Full => Reserved::Full,
            Added::Now => match self.writers((table, bounds), (holder, 1), now_ns).as_deref() {
                None => Reserved::Full,
                Some([]) => Reserved::Granted,
                Some([other, ..]) => Reserved::Behind(*other, 0),
            },
        };
        if reserved != Reserved::Granted {
            self.shared.take_back(table, bounds, holder);
        }
        let mut all_waits = self.waits.lock();
        all_waits.remove(&holder);
        if asks == Asks::InQueue && matches!(reserved, Reserved::Behind(..)) {
            all_waits.insert(holder, Wanted::Range(table, KeyRange::of(bounds), now_ns));
        }
        reserved
    }

    /// The other transactions that a reader of a range waits for; none if more rows of the table are reserved than are looked at. `own` is 1
    /// if the range is among those of the reader already, else 0.
    fn writers(
        &self,
        (table, bounds): (u32, Bounds<'_>),
        (reader, own): (Holder, usize),
        now_ns: u64,
    ) -> Option<Vec<Holder>> {
        let (mut writers, mut looked_at) = (Vec::new(), 0);
        // Each is locked, though it may be empty: so one that is reserving a row now has seen the range, or its row is seen.
        for shard in &self.shards {
            let mut shard = shard.lock();
            for (_, row) in shard.rows.range_mut((table, 0)..=(table, u64::MAX)) {
                looked_at += 1;
                if looked_at > LOOKED_AT_MAX {
                    return None;
                }
                if !is_inside(&row.key, bounds) {
                    continue;
                }
                row.refresh(now_ns);
                // A transaction in the queue of a row that the reader has read before waits for the reader.
                let waits_for_others = || {
                    let readers = self.shared.holders(table, &row.key, now_ns);
                    readers.iter().filter(|it| **it == reader).count() <= own
                };
                let overdue = || row.overdue(now_ns).filter(|_| waits_for_others());
                let writer = row.held.map(|(holder, _)| holder).or_else(overdue);
                writers.extend(writer.filter(|it| *it != reader));
            }
        }
        Some(writers)
    }

    /// Ends what a reader of ranges reads, and its wait for one.
    pub(crate) fn release_shared(&self, holder: Holder) {
        let mut waits = self.waits.lock();
        if matches!(waits.get(&holder), Some(Wanted::Range(..))) {
            waits.remove(&holder);
        }
        drop(waits);
        self.shared.release(holder);
    }

    /// Ends a reservation, or a wait for one.
    pub(crate) fn release(&self, row: RowName, holder: Holder) {
        let mut shard = self.shard(row).lock();
        let mut waits = self.waits.lock();
        if matches!(waits.get(&holder), Some(Wanted::Row(wanted)) if *wanted == row) {
            waits.remove(&holder);
        }
        drop(waits);
        let Some(found) = shard.rows.get_mut(&row) else { return };
        found.held = found.held.filter(|(it, _)| *it != holder);
        found.waiting.retain(|it| it.holder != holder);
        if found.is_free() {
            shard.rows.remove(&row);
            self.count_change(1, 0);
        }
    }

    /// Forgets all, as another epoch begins.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            self.count_change(shard.rows.len(), 0);
            *shard = Shard::default();
        }
        self.shared.clear();
        self.waits.lock().clear();
    }

    /// The transactions that a holder waits for here, at most [`AWAITED_MAX`].
    pub(crate) fn waits_for(&self, holder: Holder, now_ns: u64) -> Vec<Holder> {
        let waits = self.waits.lock();
        let mut awaited = match waits.get(&holder) {
            None => Vec::new(),
            Some(&Wanted::Row(row)) => {
                drop(waits);
                self.awaited_for_row(row, holder, now_ns)
            }
            Some(Wanted::Range(_, _, asked_ns))
                if now_ns >= asked_ns.saturating_add(SILENCE_NS) =>
            {
                Vec::new()
            }
            Some(Wanted::Range(table, range, _)) => {
                let (table, range) = (*table, range.clone());
                drop(waits);
                self.writers((table, range.bounds()), (holder, 0), now_ns).unwrap_or_default()
            }
        };
        awaited.sort_unstable();
        awaited.dedup();
        awaited.truncate(AWAITED_MAX);
        awaited
    }

    fn awaited_for_row(&self, row: RowName, holder: Holder, now_ns: u64) -> Vec<Holder> {
        let mut shard = self.shard(row).lock();
        let Some(found) = shard.rows.get_mut(&row) else { return Vec::new() };
        found.refresh(now_ns);
        if found.waiting.iter().all(|it| it.holder != holder) {
            return Vec::new();
        }
        // The holder of the row has the row to itself, if it has not passed the readers.
        let mut awaited = match found.held {
            Some((other, _)) => vec![other],
            None => self.shared.holders(row.0, &found.key, now_ns),
        };
        awaited.retain(|other| *other != holder);
        awaited
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;

    const ROW: RowName = (1, 7);
    const KEY: &[u8] = b"k";
    const HOLD_NS: u64 = 5_000_000_000;

    struct Queue {
        reservations: RowReservations,
        now_ns: u64,
    }

    impl Queue {
        fn new() -> Self {
            Self { reservations: RowReservations::default(), now_ns: 1 }
        }

        fn reserve(&self, holder: u64, waits: bool) -> Reserved {
            let time = (self.now_ns, HOLD_NS);
            let asks = if waits { Asks::InQueue } else { Asks::Once };
            self.reservations.reserve((ROW, KEY), Holder(holder), time, asks)
        }

        fn rows(&self) -> usize {
            self.reservations.shards.iter().map(|shard| shard.lock().rows.len()).sum()
        }
    }

    #[test]
    fn those_that_wait_get_the_row_in_their_order() {
        let queue = Queue::new();
        assert_eq!(queue.reserve(1, true), Reserved::Granted);
        assert_eq!(queue.reserve(2, true), Reserved::Behind(Holder(1), 0));
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(1), 1));
        assert_eq!(queue.reserve(4, false), Reserved::Behind(Holder(1), 2));
        assert_eq!(queue.reserve(1, true), Reserved::Granted);
        queue.reservations.release(ROW, Holder(1));
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(2), 1));
        assert_eq!(queue.reserve(4, false), Reserved::Behind(Holder(2), 2));
        assert_eq!(queue.reserve(2, true), Reserved::Granted);
        queue.reservations.release(ROW, Holder(3));
        queue.reservations.release(ROW, Holder(2));
        assert_eq!((queue.rows(), queue.reservations.are_there()), (0, false));
        assert_eq!(queue.reserve(4, false), Reserved::Granted);
    }

    #[test]
    fn a_hold_ends_and_whoever_is_silent_has_lost_its_place() {
        let mut queue = Queue::new();
        assert_eq!(queue.reserve(1, true), Reserved::Granted);
        assert_eq!(queue.reserve(2, true), Reserved::Behind(Holder(1), 0));
        queue.now_ns += SILENCE_NS;
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(1), 0));
        assert_eq!(queue.reserve(2, true), Reserved::Behind(Holder(1), 1));
        queue.now_ns = HOLD_NS;
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(1), 0));
        queue.now_ns += 1;
        assert_eq!(queue.reserve(3, true), Reserved::Granted);
        // The first holder releases what is another's by now.
        queue.reservations.release(ROW, Holder(1));
        assert_eq!(queue.reserve(2, true), Reserved::Behind(Holder(3), 0));
    }

    #[test]
    fn it_is_known_for_whom_each_waits() {
        let mut queue = Queue::new();
        let waits =
            |queue: &Queue, holder| queue.reservations.waits_for(Holder(holder), queue.now_ns);
        queue.reserve(1, true);
        queue.reserve(2, true);
        queue.reserve(3, false);
        assert_eq!([1, 2, 3].map(|it| waits(&queue, it)), [vec![], vec![Holder(1)], vec![]]);
        queue.reservations.release(ROW, Holder(1));
        assert_eq!(waits(&queue, 2), [], "it is about to get the row");
        assert!(queue.reservations.is_reserved(ROW, queue.now_ns));
        queue.reserve(2, true);
        queue.reserve(3, true);
        assert_eq!([2, 3].map(|it| waits(&queue, it)), [vec![], vec![Holder(2)]]);
        queue.now_ns += SILENCE_NS;
        assert_eq!(waits(&queue, 3), [], "it has gone");
        queue.reservations.release(ROW, Holder(2));
        assert_eq!(queue.rows(), 0);
        queue.reservations.release(ROW, Holder(3));
        assert!(queue.reservations.waits.lock().is_empty(), "nothing is left of one that has gone");
    }

    #[test]
    fn readers_and_holders_of_rows_wait_for_each_other() {
        let mut queue = Queue::new();
        let share = |queue: &Queue, holder, bounds: (Bound<&[u8]>, Bound<&[u8]>)| {
            let time = (queue.now_ns, HOLD_NS);
            queue.reservations.share((ROW.0, bounds), Holder(holder), time, Asks::InQueue)
        };
        let waits =
            |queue: &Queue, holder| queue.reservations.waits_for(Holder(holder), queue.now_ns);
        let around = (Bound::Included(&b"a"[..]), Bound::Excluded(&b"z"[..]));
        let beside = (Bound::Excluded(KEY), Bound::Unbounded);
        assert_eq!(share(&queue, 1, around), Reserved::Granted);
        assert!(queue.reservations.is_read(ROW, KEY, queue.now_ns));
        assert!(!queue.reservations.is_reserved(ROW, queue.now_ns));
        assert_eq!(queue.reserve(1, true), Reserved::Granted, "a reader may change its rows");
        assert_eq!(share(&queue, 2, around), Reserved::Behind(Holder(1), 0));
        assert_eq!(share(&queue, 3, beside), Reserved::Granted, "the row is not in the range");
        assert_eq!(share(&queue, 1, around), Reserved::Granted);
        assert_eq!([1, 2, 3].map(|it| waits(&queue, it)), [vec![], vec![Holder(1)], vec![]]);
        queue.reservations.release(ROW, Holder(1));
        assert_eq!(share(&queue, 2, around), Reserved::Granted);
        // A row that is read by two has no holder until both have gone, also if one of them wants it.
        assert_eq!(queue.reserve(3, false), Reserved::Behind(Holder(1), 0));
        assert_eq!(queue.rows(), 0, "one that does not wait leaves nothing behind");
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(1), 0));
        assert_eq!(queue.reserve(2, true), Reserved::Behind(Holder(1), 1));
        assert_eq!(waits(&queue, 3), [Holder(1), Holder(2)]);
        assert_eq!(waits(&queue, 2), [Holder(1)]);
        let time = (queue.now_ns, HOLD_NS);
        let despite =
            |row| queue.reservations.reserve((row, KEY), Holder(6), time, Asks::DespiteReaders);
        assert_eq!(despite((ROW.0, 8)), Reserved::Granted);
        assert_eq!(despite(ROW), Reserved::Behind(Holder(3), 2), "others wait for it");
        queue.reservations.release((ROW.0, 8), Holder(6));
        queue.reservations.release_shared(Holder(1));
        assert_eq!(queue.reserve(3, true), Reserved::Behind(Holder(2), 0));
        assert_eq!(
            queue.reserve(2, true),
            Reserved::Granted,
            "the first one waits for this reader"
        );
        queue.reservations.release(ROW, Holder(2));
        queue.reservations.release_shared(Holder(2));
        // Further readers wait for a row that has been waited for long.
        assert_eq!(share(&queue, 4, around), Reserved::Granted);
        queue.now_ns += OVERDUE_NS;
        assert_eq!(share(&queue, 5, around), Reserved::Behind(Holder(3), 0));
        assert_eq!(share(&queue, 4, around), Reserved::Granted, "it is read by this one already");
        assert_eq!([waits(&queue, 5), waits(&queue, 4)], [vec![Holder(3)], vec![]]);
        queue.now_ns += SILENCE_NS;
        assert_eq!(waits(&queue, 5), [], "it has gone");
        queue.reservations.clear();
        assert!(!queue.reservations.are_there());
        assert!(queue.reservations.waits.lock().is_empty());
    }

    #[test]
    fn rows_that_nobody_releases_are_forgotten() {
        let reservations = RowReservations::default();
        let rows = |number: u64| (1, number);
        for number in 0..100_000_u64 {
            // Each is held for a millionth of a second.
            let time = (number * 1_000, 1_000);
            let reserved =
                reservations.reserve((rows(number), KEY), Holder(number), time, Asks::InQueue);
            assert_eq!(reserved, Reserved::Granted);
        }
        let left: usize = reservations.shards.iter().map(|shard| shard.lock().rows.len()).sum();
        assert!(left <= 2 * SHARDS * SHARDS, "{left} rows");
        reservations.clear();
        assert!(!reservations.are_there());
        let full = (0..2 * (SHARDS * ROWS_MAX) as u64).filter(|&number| {
            let reserved =
                reservations.reserve((rows(number), KEY), Holder(1), (0, HOLD_NS), Asks::InQueue);
            reserved == Reserved::Full
        });
        assert_eq!(full.count(), SHARDS * ROWS_MAX);
    }
}
