//! Rows that a transaction of SQL has reserved, as FOR UPDATE, and UPDATE and DELETE of rows named by their keys, do; and what it shares with
//! other readers in tables that are contended.
//!
//! *Source*: PostgreSQL 15, SELECT, "The Locking Clause", and section 13.3.2. A reservation is no lock: it ends after
//! `gannet.reservation_timeout`, and the transaction goes on without it.
//!
//! *Invariant*: what is reserved is released when the transaction ends, however that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gannet_engine::{
    Abort, Conflict, Coordinator, KeyRange, Reservations, TableId, TableKey, WaitEnded,
};

use crate::catalog::Table;
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::Context;
use crate::plan::{Access, Reserve, Scan};
use crate::settings;

/// The rows that a transaction has reserved, and what it shares.
#[derive(Default)]
pub(crate) struct Reserved {
    reservations: Reservations,
    /// There once something is reserved.
    database: Option<Arc<Database>>,
}

impl Reserved {
    pub(crate) fn is_empty(&self) -> bool {
        self.reservations.is_empty()
    }

    /// Releases all.
    pub(crate) fn release(&mut self, coordinator: &mut Coordinator<'_>) {
        if !self.is_empty() {
            self.reservations.release(coordinator);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(database) = self.database.take()
            && !self.reservations.is_empty()
        {
            let mut reservations = std::mem::take(&mut self.reservations);
            let release =
                move |coordinator: &mut Coordinator<'_>| reservations.release(coordinator);
            // If no job begins any more, the reservations end by themselves.
            drop(database.cluster.spawn_anywhere(release));
        }
    }
}

/// The error of a statement that its session has cancelled.
pub(super) fn cancelled() -> SqlError {
    SqlError::new("57014", "canceling statement due to user request")
}

impl Context<'_, '_> {
    /// Reserves the rows with some primary keys for a scan that wants that. Which of them are, unless all are.
    ///
    /// # Errors
    /// SQLSTATE 55P03 if others have them, 40P01 for transactions that wait for each other.
    pub(super) fn reserve(
        &mut self,
        scan: &Scan,
        keys: &[TableKey],
    ) -> Result<Option<Vec<bool>>, Failure> {
        let Some(how) = scan.reserves else { return Ok(None) };
        let is_named = matches!(scan.access, Access::Points { .. });
        if how == Reserve::Change && !self.commits && !is_named {
            return Ok(None);
        }
        self.reserve_rows(&scan.table, how, keys)
    }

    /// As [`Self::reserve`], of rows of a table.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub(super) fn reserve_rows(
        &mut self,
        table: &Table,
        how: Reserve,
        keys: &[TableKey],
    ) -> Result<Option<Vec<bool>>, Failure> {
        // A statement on its own mostly meets nobody. If it has, it holds what it has reserved until a run of it commits.
        let is_first = how == Reserve::Change && self.commits && self.attempt == 1;
        if is_first || keys.is_empty() || self.transaction.is_unshared(table.rows()) {
            return Ok(None);
        }
        self.round_trips += 1;
        let time = |name| {
            let value = self.resources.facts.settings.get(name);
            value.and_then(|value| settings::duration(value)).unwrap_or_default()
        };
        let (hold, lock_timeout) = (time(settings::RESERVATION_TIMEOUT), time("lock_timeout"));
        let lock_timeout = (lock_timeout > Duration::ZERO).then_some(lock_timeout);
        let (cancel, coordinator) = (&*self.resources.cancel, &mut *self.coordinator);
        let Reserved { reservations, database } = &mut self.transaction.reserved;
        database.get_or_insert_with(|| Arc::clone(&self.resources.database));
        if let Reserve::NoWait | Reserve::Skip = how {
            let granted = reservations.try_reserve(coordinator, keys, hold)?;
            if how == Reserve::NoWait && granted.contains(&false) {
                return Err(not_free(table).into());
            }
            return Ok(Some(granted));
        }
        let check = |coordinator: &mut Coordinator<'_>| check(coordinator, cancel);
        match reservations.reserve(coordinator, keys, (hold, lock_timeout), check)? {
            None => Ok(None),
            Some(WaitEnded::Timeout) => Err(error_of(WaitEnded::Timeout).into()),
            Some(WaitEnded::Deadlock) => {
                // The others of the ring go on, whether the transaction is kept for a savepoint or not.
                reservations.release(coordinator);
                let conflict = Abort::from(Conflict::Reserved).into();
                Err(if self.commits { conflict } else { error_of(WaitEnded::Deadlock).into() })
            }
        }
    }
}

impl Context<'_, '_> {
    /// Shares a range of primary keys that a transaction of several statements is about to read, if such transactions have lately met conflicts
    /// in the table.
    ///
    /// # Errors
    /// That of an interruption.
    pub(super) fn share(&mut self, table: TableId, range: &KeyRange) -> Result<(), Failure> {
        let contended = &self.resources.database.contended;
        let is_alone = self.commits || self.transaction.is_part;
        if is_alone
            || !contended.has(table, self.coordinator.now_ns())
            || self.transaction.is_unshared(table)
        {
            return Ok(());
        }
        let Reserved { reservations, database } = &mut self.transaction.reserved;
        database.get_or_insert_with(|| Arc::clone(&self.resources.database));
        let is_asked = reservations.share(self.coordinator, table, range)?;
        self.round_trips += u64::from(is_asked);
        Ok(())
    }
}

/// Ends a wait whose session wants that.
fn check(coordinator: &mut Coordinator<'_>, cancel: &AtomicBool) -> Result<(), Failure> {
    // Relaxed: the flag carries nothing but itself.
    if cancel.load(Ordering::Relaxed) || coordinator.is_cancelled() {
        return Err(cancelled().into());
    }
    Ok(())
}

fn not_free(table: &Table) -> SqlError {
    let message = format!("could not obtain lock on row in relation \"{}\"", table.name);
    SqlError::new("55P03", message).with_hint("another transaction has reserved it")
}

fn error_of(ended: WaitEnded) -> SqlError {
    match ended {
        WaitEnded::Timeout => SqlError::new("55P03", "canceling statement due to lock timeout")
            .with_hint("another transaction has reserved a row: run the statement again, or SET lock_timeout"),
        WaitEnded::Deadlock => SqlError::new("40P01", "deadlock detected").with_hint(
            "several transactions wait for rows that others of them have reserved: run this one again",
        ),
    }
}
