//! Reserving: a transaction of a session reserves rows before it reads them, and waits for those that others hold.
//!
//! ```text
//! all rows at once, without waiting ─ all granted ─▶ read
//!         │ one is another's: those behind it are given back
//! in the queue of that row ─ granted ─▶ the rest, again
//!         └ the time is over, or those that wait for each other are a ring
//!
//! a range that is read: while others hold rows of it, for a short time ─▶ read in any case
//! ```
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariants*: a transaction waits for one row at a time. One of a call holds no row behind that in the order of their names, so calls
//! alone do not make a ring. A transaction that waits asks again, and holds up no other when it is gone.
//!
//! At most half of a worker's coroutines wait, so that the holders' next statements run: a further transaction goes on
//! without the row.
//!
//! A reader never fails: it goes on without its range, and its commit tells whether a row has changed. So where transactions wait for each
//! other in a ring, and one of them is about to read, that one goes on.
//!
//! *Not here*: the queues, in `row_reservations`, and ranges, in `shared_ranges`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::holder::Holder;
use crate::key_range::KeyRange;
use crate::outcome::Abort;
use crate::row_reservations::{Asks, RESERVED_KEY_BYTES, Reserved, RowName};
use crate::table_id::{TableId, TableKey};
use crate::transaction::reserve::Wish;

/// Rows that a transaction reserves at most. It goes on without a reservation for others.
const ROWS_MAX: usize = 1_000;
/// Ranges that a transaction shares at most. It reads others without a reservation.
const RANGES_MAX: usize = 100;
/// Between two questions whether a row is free, for each that is before, and beside a part of the time waited; and the longest such time.
const ASK_AGAIN: Duration = Duration::from_micros(20);
const ASK_AGAIN_PART: u64 = 16;
const ASK_AGAIN_MAX: Duration = Duration::from_millis(2);
/// How long a transaction waits for the holders of rows that it is about to read, and how long others wait for it.
const READER_WAITS_NS: u64 = 50_000_000;
const READER_HOLDS: Duration = Duration::from_millis(500);
/// Before a reader's first search for a ring: it ends one at no cost.
const READER_SEARCH_NS: u64 = 300_000;
/// Before the first search for a ring; each further one comes after twice the time, up to the longest.
const SEARCH_NS_MIN: u64 = 2_000_000;
const SEARCH_NS_MAX: u64 = 16_000_000;
/// A ring that is found so often in a row is one: what each question tells may be over.
const FOUND_MIN: u32 = 2;
/// Most transactions that are looked at in a search for a ring.
const RING_MAX: usize = 64;

/// Why a wait for a row has ended without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnded {
    /// The time was over.
    Timeout,
    /// Each of several transactions waits for a row that the next one holds or reads.
    Deadlock,
}

/// A row that was not granted, and how many are before.
#[derive(Clone, Copy)]
struct Behind {
    row: RowName,
    place: usize,
}

/// The rows that a call wants, with their keys.
type Keys<'k> = BTreeMap<RowName, &'k [u8]>;

/// The rows that a transaction has reserved, and the ranges that it has read and shares.
#[derive(Debug, Default)]
pub struct Reservations {
    /// None before the first one.
    holder: Option<Holder>,
    rows: BTreeSet<RowName>,
    /// Those that were asked for.
    ranges: Vec<(TableId, KeyRange)>,
    /// How long it has waited for the holders of rows in ranges.
    waited_ns: u64,
}

impl Reservations {
    /// Whether it has reserved nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ranges.is_empty()
    }

    /// Reserves those of some rows that no other transaction holds or waits for; which. Each is held for `hold` at most, and others may
    /// have it then.
    ///
    /// # Errors
    /// That of an interruption.
    pub fn try_reserve(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[TableKey],
        hold: Duration,
    ) -> Result<Vec<bool>, Abort> {
        let names = names(coordinator, rows);
        let keys: Keys<'_> = names.iter().copied().zip(rows.iter().map(|row| &*row.key)).collect();
        let refused = self.ask(coordinator, &self.missing(&keys), hold, Asks::DespiteReaders)?;
        let is_granted = |name| refused.iter().all(|behind| behind.row != name);
        Ok(names.into_iter().map(is_granted).collect())
    }

    /// Reserves all of some rows, and waits for those that others hold, until `lock_timeout` if there is one. `check` is called now and
    /// then, and may end the wait.
    ///
    /// # Errors
    /// Those of `check`, and that of an interruption.
    pub fn reserve<E: From<Abort>>(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[TableKey],
        (hold, lock_timeout): (Duration, Option<Duration>),
        mut check: impl FnMut(&mut Coordinator<'_>) -> Result<(), E>,
    ) -> Result<Option<WaitEnded>, E> {
        let names = names(coordinator, rows);
        let mut keys: Keys<'_> = names.into_iter().zip(rows.iter().map(|row| &*row.key)).collect();
        let mut missing = self.missing(&keys);
        let timeout_ns = lock_timeout.map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = timeout_ns.map(|timeout| coordinator.now_ns().saturating_add(timeout));
        while !missing.is_empty() {
            let refused = self.ask(coordinator, &missing, hold, Asks::Once)?;
            let Some(first) = refused.first().map(|behind| behind.row) else { break };
            // What is behind it in the order would be held while this one is waited for.
            let later = missing.iter().map(|(row, _)| *row).filter(|row| *row > first);
            self.give_back(coordinator, &later.collect::<Vec<_>>());
            let ended = if coordinator.begin_waiting() {
                let row = (first, keys[&first]);
                let ended = self.wait_for(coordinator, row, (hold, until_ns), &mut check);
                coordinator.end_waiting();
                ended
            } else {
                Ok(None)
            };
            if !matches!(ended, Ok(None)) {
                self.give_back(coordinator, &[first]);
                return ended;
            }
            // It goes on without a row for which too many wait.
            keys.remove(&first);
            missing = self.missing(&keys);
        }
        Ok(None)
    }

    /// Shares a range before it is read: others do not reserve rows of it until this transaction releases all, or half a second later. Waits for
    /// the holders of rows, in all calls up to 50 ms, and goes on then. Whether the range was asked for; else it is a part of what was asked for
    /// before, or there are too many.
    ///
    /// # Errors
    /// That of an interruption.
    pub fn share(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        table: TableId,
        keys: &KeyRange,
    ) -> Result<bool, Abort> {
        let is_known = self.ranges.iter().any(|(of, known)| *of == table && known.covers(keys));
        if is_known || self.ranges.len() >= RANGES_MAX || keys.bytes() > RESERVED_KEY_BYTES {
            return Ok(false);
        }
        // Also if another transaction has a row at one primary, others grant it.
        self.ranges.push((table, keys.clone()));
        let range = (table, keys);
        let may_wait = self.waited_ns < READER_WAITS_NS;
        let is_granted = self.ask_range(coordinator, range, Asks::Once)?;
        if !is_granted && may_wait && coordinator.begin_waiting() {
            let waited = self.wait_to_read(coordinator, range);
            coordinator.end_waiting();
            if !waited? {
                // It is not waited for any more.
                self.ask_range(coordinator, range, Asks::Once)?;
            }
        }
        Ok(true)
    }

    /// Asks for a range; whether it is granted, or as good as that.
    fn ask_range(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        (table, keys): (TableId, &KeyRange),
        asks: Asks,
    ) -> Result<bool, Abort> {
        let holder = *self.holder.get_or_insert_with(|| coordinator.new_holder());
        let wish = Wish { holder, hold_ms: milliseconds(READER_HOLDS), asks };
        let answer = coordinator.begin().share(table, keys, wish)?;
        Ok(!matches!(answer, Reserved::Behind(..)))
    }

    /// Waits for the holders of rows in a range, for a short time; whether they have gone.
    fn wait_to_read(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        range: (TableId, &KeyRange),
    ) -> Result<bool, Abort> {
        let since_ns = coordinator.now_ns();
        let before_ns = self.waited_ns;
        let mut search_ns = READER_SEARCH_NS;
        while !self.ask_range(coordinator, range, Asks::InQueue)? {
            let waited_ns = coordinator.now_ns().saturating_sub(since_ns);
            self.waited_ns = before_ns + waited_ns;
            if self.waited_ns >= READER_WAITS_NS || coordinator.acts_in_vain() {
                return Ok(false);
            }
            if waited_ns >= search_ns {
                search_ns *= 2;
                if self.is_in_ring(coordinator, |_| true)? {
                    return Ok(false);
                }
            }
            coordinator.pause(pause(0, waited_ns));
        }
        Ok(true)
    }

    /// Gives all back.
    pub fn release(&mut self, coordinator: &mut Coordinator<'_>) {
        let rows: Vec<RowName> = std::mem::take(&mut self.rows).into_iter().collect();
        let shared = !std::mem::take(&mut self.ranges).is_empty();
        self.waited_ns = 0;
        if let (Some(holder), true) = (self.holder, shared || !rows.is_empty()) {
            // If another epoch has begun, they have ended with the one before.
            let _ = coordinator.begin().release(&rows, shared, holder);
        }
    }

    /// Those that it has not.
    fn missing<'k>(&self, keys: &Keys<'k>) -> Vec<(RowName, &'k [u8])> {
        let missing = keys.iter().filter(|(name, _)| !self.rows.contains(name));
        let missing = missing.map(|(name, key)| (*name, *key));
        missing.take(ROWS_MAX.saturating_sub(self.rows.len())).collect()
    }

    /// Asks for rows; those that were not granted, in their order.
    fn ask(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[(RowName, &[u8])],
        hold: Duration,
        asks: Asks,
    ) -> Result<Vec<Behind>, Abort> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let holder = *self.holder.get_or_insert_with(|| coordinator.new_holder());
        let hold_ms = milliseconds(hold);
        let answers = coordinator.begin().reserve(rows, Wish { holder, hold_ms, asks })?;
        let mut refused = Vec::new();
        for (&(row, _), answer) in rows.iter().zip(answers) {
            match answer {
                Reserved::Behind(_, place) => refused.push(Behind { row, place }),
                Reserved::Granted => _ = self.rows.insert(row),
                Reserved::Full => {}
            }
        }
        Ok(refused)
    }

    /// Waits in the queue of a row.
    fn wait_for<E: From<Abort>>(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        row: (RowName, &[u8]),
        (hold, until_ns): (Duration, Option<u64>),
        check: &mut impl FnMut(&mut Coordinator<'_>) -> Result<(), E>,
    ) -> Result<Option<WaitEnded>, E> {
        let since_ns = coordinator.now_ns();
        let mut search_after_ns = SEARCH_NS_MIN;
        let mut search_ns = since_ns + search_after_ns;
        let mut found = 0;
        loop {
            check(coordinator)?;
            let refused = self.ask(coordinator, &[row], hold, Asks::InQueue)?;
            let Some(Behind { place, .. }) = refused.first().copied() else { return Ok(None) };
            let now_ns = coordinator.now_ns();
            if until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                return Ok(Some(WaitEnded::Timeout));
            }
            if now_ns >= search_ns {
                search_after_ns = (2 * search_after_ns).min(SEARCH_NS_MAX);
                search_ns = now_ns + search_after_ns;
                // The last of a ring to have become a holder ends.
                let own = self.holder;
                let is_in_ring = self.is_in_ring(coordinator, |it| Some(it) < own)?;
                found = if is_in_ring { found + 1 } else { 0 };
                if found == FOUND_MIN {
                    return Ok(Some(WaitEnded::Deadlock));
                }
            }
            let mut pause = pause(place, now_ns.saturating_sub(since_ns));
            if let Some(until_ns) = until_ns {
                pause = pause.min(Duration::from_nanos(until_ns.saturating_sub(now_ns)));
            }
            coordinator.pause(pause);
        }
    }

    /// Whether this transaction waits for itself, through others for which `passes` is true.
    fn is_in_ring(
        &self,
        coordinator: &mut Coordinator<'_>,
        passes: impl Fn(Holder) -> bool,
    ) -> Result<bool, Abort> {
        let Some(own) = self.holder else { return Ok(false) };
        let (mut seen, mut next) = (BTreeSet::new(), vec![own]);
        while !next.is_empty() && seen.len() < RING_MAX {
            let awaited = coordinator.begin().waits_for(&next)?;
            if awaited.contains(&own) {
                return Ok(true);
            }
            next = awaited.into_iter().filter(|it| passes(*it) && seen.insert(*it)).collect();
        }
        Ok(false)
    }

    fn give_back(&mut self, coordinator: &mut Coordinator<'_>, rows: &[RowName]) {
        rows.iter().for_each(|row| _ = self.rows.remove(row));
        if let (Some(holder), false) = (self.holder, rows.is_empty()) {
            // If another epoch has begun, they have ended with the one before.
            let _ = coordinator.begin().release(rows, false, holder);
        }
    }
}

/// The time until the next question: it grows with the number of those before, and with the time waited.
fn pause(place: usize, waited_ns: u64) -> Duration {
    let place = u32::try_from(place).unwrap_or(u32::MAX);
    let by_place = ASK_AGAIN.saturating_mul(place.saturating_add(1));
    (by_place + Duration::from_nanos(waited_ns / ASK_AGAIN_PART)).min(ASK_AGAIN_MAX)
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn names(coordinator: &Coordinator<'_>, rows: &[TableKey]) -> Vec<RowName> {
    let seed = coordinator.hash_seed();
    rows.iter().map(|row| (row.table.number(), seed.hash(&row.key))).collect()
}
