//! Reserving: a transaction of a session reserves rows before it reads them, and waits for those that others hold.
//!
//! ```text
//! all rows at once, without waiting ─ all granted ─▶ read
//!         │ one is another's: those behind it are given back
//! in the queue of that row ─ granted ─▶ the rest, again
//!         └ the time is over, or those that wait for each other are a ring
//! ```
//! *Source*: `docs/protocol.md`, "Row reservations".
//!
//! *Invariants*: a transaction waits for one row at a time. One of a call holds no row behind that in the order of their names, so calls
//! alone do not make a ring. A transaction that waits asks again, and holds up no other when it is gone.
//!
//! At most half of a worker's coroutines wait, so that the holders' next statements run: a further transaction goes on
//! without the row.
//!
//! *Not here*: the queues, in `row_reservations`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::outcome::Abort;
use crate::row_reservations::{Holder, Reserved, RowName};
use crate::table_id::TableKey;
use crate::transaction::reserve::Wish;

/// Rows that a transaction reserves at most. It goes on without a reservation for others.
const ROWS_MAX: usize = 1_000;
/// Between two questions whether a row is free, for each that is before; and the longest such time.
const ASK_AGAIN: Duration = Duration::from_micros(20);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(2);
/// Before the first search for a ring; each further one comes after twice the time, up to the longest.
const SEARCH_NS_MIN: u64 = 2_000_000;
const SEARCH_NS_MAX: u64 = 16_000_000;
/// A ring that is found so often in a row is one: what each question tells may be over.
const FOUND_MIN: u32 = 2;
/// The longest ring that is searched for.
const RING_MAX: usize = 64;

/// Why a wait for a row has ended without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnded {
    /// The time was over.
    Timeout,
    /// Each of several transactions waits for a row that the next one holds.
    Deadlock,
}

/// A row that was not granted: its holder, and how many are before.
#[derive(Clone, Copy)]
struct Behind {
    row: RowName,
    holder: Holder,
    place: usize,
}

/// The rows that a transaction has reserved.
#[derive(Debug, Default)]
pub struct Reservations {
    /// None before the first one.
    holder: Option<Holder>,
    rows: BTreeSet<RowName>,
}

impl Reservations {
    /// Whether it has reserved nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
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
        let names: Vec<RowName> = names(coordinator, rows);
        let missing = self.missing(&names);
        let refused = self.ask(coordinator, &missing, hold, false)?;
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
        let mut names: Vec<RowName> = names(coordinator, rows);
        let mut missing = self.missing(&names);
        let timeout_ns = lock_timeout.map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = timeout_ns.map(|timeout| coordinator.now_ns().saturating_add(timeout));
        while !missing.is_empty() {
            let refused = self.ask(coordinator, &missing, hold, false)?;
            let Some(first) = refused.first().map(|behind| behind.row) else { break };
            // What is behind it in the order would be held while this one is waited for.
            let later: Vec<RowName> = missing.into_iter().filter(|row| *row > first).collect();
            self.give_back(coordinator, &later);
            let ended = if coordinator.begin_waiting() {
                let ended = self.wait_for(coordinator, first, (hold, until_ns), &mut check);
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
            names.retain(|row| *row != first);
            missing = self.missing(&names);
        }
        Ok(None)
    }

    /// Gives all back.
    pub fn release(&mut self, coordinator: &mut Coordinator<'_>) {
        let rows: Vec<RowName> = std::mem::take(&mut self.rows).into_iter().collect();
        self.give_back(coordinator, &rows);
    }

    /// Those that it has not, in order, each once.
    fn missing(&self, names: &[RowName]) -> Vec<RowName> {
        let missing: BTreeSet<RowName> =
            names.iter().filter(|name| !self.rows.contains(name)).copied().collect();
        missing.into_iter().take(ROWS_MAX.saturating_sub(self.rows.len())).collect()
    }

    /// Asks for rows; those that were not granted, in their order.
    fn ask(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        rows: &[RowName],
        hold: Duration,
        waits: bool,
    ) -> Result<Vec<Behind>, Abort> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let holder = *self.holder.get_or_insert_with(|| coordinator.new_holder());
        let hold_ms = u32::try_from(hold.as_millis()).unwrap_or(u32::MAX);
        let answers = coordinator.begin().reserve(rows, Wish { holder, hold_ms, waits })?;
        let mut refused = Vec::new();
        for (&row, answer) in rows.iter().zip(answers) {
            match answer {
                Reserved::Behind(holder, place) => refused.push(Behind { row, holder, place }),
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
        row: RowName,
        (hold, until_ns): (Duration, Option<u64>),
        check: &mut impl FnMut(&mut Coordinator<'_>) -> Result<(), E>,
    ) -> Result<Option<WaitEnded>, E> {
        let mut search_after_ns = SEARCH_NS_MIN;
        let mut search_ns = coordinator.now_ns() + search_after_ns;
        let mut found = 0;
        loop {
            check(coordinator)?;
            let refused = self.ask(coordinator, &[row], hold, true)?;
            let Some(Behind { holder: other, place, .. }) = refused.first().copied() else {
                return Ok(None);
            };
            let now_ns = coordinator.now_ns();
            if until_ns.is_some_and(|until_ns| now_ns >= until_ns) {
                return Ok(Some(WaitEnded::Timeout));
            }
            if now_ns >= search_ns {
                search_after_ns = (2 * search_after_ns).min(SEARCH_NS_MAX);
                search_ns = now_ns + search_after_ns;
                found = if self.is_last_of_ring(coordinator, other)? { found + 1 } else { 0 };
                if found == FOUND_MIN {
                    return Ok(Some(WaitEnded::Deadlock));
                }
            }
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            let mut pause = ASK_AGAIN.saturating_mul(place.saturating_add(1)).min(ASK_AGAIN_MAX);
            if let Some(until_ns) = until_ns {
                pause = pause.min(Duration::from_nanos(until_ns.saturating_sub(now_ns)));
            }
            coordinator.pause(pause);
        }
    }

    /// Whether this transaction, which waits for `other`, is in a ring of which it is the last to have become a holder: one of them ends.
    fn is_last_of_ring(
        &self,
        coordinator: &mut Coordinator<'_>,
        mut other: Holder,
    ) -> Result<bool, Abort> {
        let Some(own) = self.holder else { return Ok(false) };
        let mut last = own;
        for _ in 0..RING_MAX {
            if other == own {
                return Ok(last == own);
            }
            last = last.max(other);
            match coordinator.begin().waits_for(other)? {
                Some(next) => other = next,
                None => break,
            }
        }
        Ok(false)
    }

    fn give_back(&mut self, coordinator: &mut Coordinator<'_>, rows: &[RowName]) {
        rows.iter().for_each(|row| _ = self.rows.remove(row));
        if let (Some(holder), false) = (self.holder, rows.is_empty()) {
            // If another epoch has begun, they have ended with the one before.
            let _ = coordinator.begin().release_rows(rows, holder);
        }
    }
}

fn names(coordinator: &Coordinator<'_>, rows: &[TableKey]) -> Vec<RowName> {
    let seed = coordinator.hash_seed();
    rows.iter().map(|row| (row.table.number(), seed.hash(&row.key))).collect()
}
