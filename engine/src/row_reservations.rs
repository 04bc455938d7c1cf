//! Row reservations: at the primary of a row, a queue of the transactions that want to change it one after the other.
//!
//! ```text
//! row ─▶ holder, until its hold ends          asks ─▶ waiting, in the order in which they came ─▶ holder ─▶ releases
//! ```
//! A reservation serves progress and never correctness, as a scan barrier does: it locks nothing, is not logged, and a transaction that
//! commits validates all the same. It ends with its holder's release, with its hold, with the epoch, and with the node. Nobody is told that a row
//! has become free: those that wait ask again, and one that does not for a while has lost its place.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariants*: a row has one holder at most, and a bounded queue. Rows whose holds are over are forgotten when others are reserved.
//!
//! *Not here*: what SQL reserves, in `frontend`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use gannet_storage::Owner;
use parking_lot::Mutex;

/// A row: its table, and the hash of its key.
pub(crate) type RowName = (u32, u64);

/// A holder of reservations: a transaction of a session, as long as its node is a member. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder(pub(crate) u64);

impl From<Holder> for Owner {
    /// The holder, in the place of an owner in a request.
    fn from(holder: Holder) -> Self {
        Self(holder.0)
    }
}

/// Rows whose queues are looked after together.
const SHARDS: usize = 16;
/// Most that wait for a row.
const WAITING_MAX: usize = 1_000;
/// Most rows of a shard with a holder.
const ROWS_MAX: usize = 16 << 10;
/// One that waits and has not asked for so long has gone.
const SILENCE_NS: u64 = 100_000_000;

/// What a row was reserved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// The transaction holds the row.
    Granted,
    /// Another one does, and so many are before this one.
    Behind(Holder, usize),
    /// There is no place in the queue.
    Full,
}

#[derive(Default)]
struct Row {
    /// The holder, and when its hold ends.
    held: Option<(Holder, u64)>,
    /// Those that wait, each with the time when it last asked.
    waiting: VecDeque<(Holder, u64)>,
}

impl Row {
    /// Ends a hold that is over, and forgets those that have gone.
    fn refresh(&mut self, now_ns: u64) {
        self.held = self.held.filter(|(_, until_ns)| now_ns < *until_ns);
        self.waiting.retain(|(_, asked_ns)| now_ns < asked_ns.saturating_add(SILENCE_NS));
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
    /// The row that each of those waits for that have a place in a queue, or had one: a transaction waits for one row at a time.
    waits: Mutex<BTreeMap<Holder, RowName>>,
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

    /// Whether rows may be reserved.
    #[inline(always)]
    pub(crate) fn are_there(&self) -> bool {
        // Relaxed: a LOCK that misses a reservation which is made at the same time was before it.
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Whether a row is held, or is waited for.
    pub(crate) fn is_reserved(&self, row: RowName, now_ns: u64) -> bool {
        let mut shard = self.shard(row).lock();
        let Some(found) = shard.rows.get_mut(&row) else { return false };
        found.refresh(now_ns);
        !found.is_free()
    }

    fn shard(&self, (table, hash): RowName) -> &Mutex<Shard> {
        let [byte, ..] = (hash ^ u64::from(table)).to_le_bytes();
        &self.shards[usize::from(byte) % SHARDS]
    }

    /// Reserves a row for a time, if it is free and nobody is before the holder. One that `waits` has a place in the queue from then on, as
    /// long as it asks again. To reserve a row that one holds lengthens the hold.
    pub(crate) fn reserve(
        &self,
        row: RowName,
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
        waits: bool,
    ) -> Reserved {
        let mut shard = self.shard(row).lock();
        let before = shard.rows.len();
        let reserved = self.reserve_in(&mut shard, row, holder, (now_ns, hold_ns), waits);
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
        row: RowName,
        holder: Holder,
        (now_ns, hold_ns): (u64, u64),
        waits: bool,
    ) -> Reserved {
        shard.sweep(now_ns);
        if shard.rows.len() >= ROWS_MAX && !shard.rows.contains_key(&row) {
            return Reserved::Full;
        }
        let name = row;
        let row = shard.rows.entry(name).or_default();
        row.refresh(now_ns);
        let place = row.waiting.iter().position(|(it, _)| *it == holder);
        let is_next = place.unwrap_or(row.waiting.len()) == 0;
        match row.held {
            Some((other, _)) if other != holder => {}
            None if !is_next => {}
            _ => {
                row.held = Some((holder, now_ns.saturating_add(hold_ns)));
                if place.is_some() {
                    row.waiting.retain(|(it, _)| *it != holder);
                    self.waits.lock().remove(&holder);
                }
                return Reserved::Granted;
            }
        }
        // A row that is free is the first one's that waits.
        let before = place.unwrap_or(row.waiting.len());
        let other = row.held.map_or_else(|| row.waiting[0].0, |(other, _)| other);
        match place {
            Some(place) => row.waiting[place].1 = now_ns,
            None if !waits => {}
            None if row.waiting.len() == WAITING_MAX => return Reserved::Full,
            None => {
                row.waiting.push_back((holder, now_ns));
                self.waits.lock().insert(holder, name);
            }
        }
        Reserved::Behind(other, before)
    }

    /// Ends a reservation, or a wait for one.
    pub(crate) fn release(&self, row: RowName, holder: Holder) {
        let mut shard = self.shard(row).lock();
        let mut waits = self.waits.lock();
        if waits.get(&holder) == Some(&row) {
            waits.remove(&holder);
        }
        drop(waits);
        let Some(found) = shard.rows.get_mut(&row) else { return };
        found.held = found.held.filter(|(it, _)| *it != holder);
        found.waiting.retain(|(it, _)| *it != holder);
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
        self.waits.lock().clear();
    }

    /// The holder of the row that another one waits for here.
    pub(crate) fn waits_for(&self, holder: Holder, now_ns: u64) -> Option<Holder> {
        let row = *self.waits.lock().get(&holder)?;
        let mut shard = self.shard(row).lock();
        let found = shard.rows.get_mut(&row)?;
        found.refresh(now_ns);
        let waits = found.waiting.iter().any(|(it, _)| *it == holder);
        found.held.filter(|_| waits).map(|(other, _)| other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: RowName = (1, 7);
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
            self.reservations.reserve(ROW, Holder(holder), (self.now_ns, HOLD_NS), waits)
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
        assert_eq!([1, 2, 3].map(|it| waits(&queue, it)), [None, Some(Holder(1)), None]);
        queue.reservations.release(ROW, Holder(1));
        assert_eq!(waits(&queue, 2), None, "it is about to get the row");
        assert!(queue.reservations.is_reserved(ROW, queue.now_ns));
        queue.reserve(2, true);
        queue.reserve(3, true);
        assert_eq!([2, 3].map(|it| waits(&queue, it)), [None, Some(Holder(2))]);
        queue.now_ns += SILENCE_NS;
        assert_eq!(waits(&queue, 3), None, "it has gone");
        queue.reservations.release(ROW, Holder(2));
        assert_eq!(queue.rows(), 0);
        queue.reservations.release(ROW, Holder(3));
        assert!(queue.reservations.waits.lock().is_empty(), "nothing is left of one that has gone");
    }

    #[test]
    fn rows_that_nobody_releases_are_forgotten() {
        let reservations = RowReservations::default();
        let rows = |number: u64| (1, number);
        for number in 0..100_000_u64 {
            // Each is held for a millionth of a second.
            let time = (number * 1_000, 1_000);
            let reserved = reservations.reserve(rows(number), Holder(number), time, true);
            assert_eq!(reserved, Reserved::Granted);
        }
        let left: usize = reservations.shards.iter().map(|shard| shard.lock().rows.len()).sum();
        assert!(left <= 2 * SHARDS * SHARDS, "{left} rows");
        reservations.clear();
        assert!(!reservations.are_there());
        let full = (0..2 * (SHARDS * ROWS_MAX) as u64).filter(|&number| {
            let reserved = reservations.reserve(rows(number), Holder(1), (0, HOLD_NS), true);
            reserved == Reserved::Full
        });
        assert_eq!(full.count(), SHARDS * ROWS_MAX);
    }
}
