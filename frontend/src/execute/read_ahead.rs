//! Read-ahead: another worker of the statement's node reads the next page of a range while the statement works on the last one.
//!
//! ```text
//! statement   page n ─ asks for n + 1 ─ works on the rows of n ─ takes n + 1 ─▶ ...
//! helper                 └─ reads n + 1, with a transaction of its own ─┘   the statement's depends on what that one has read
//! ```
//! *Invariant*: the statement reads a page itself if its helper has not begun, is silent, or has met an error, which the statement then meets, too.
//! A helper sees no rows that the statement has written: it reads no table with such rows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_engine::{Deferred, Direction, KeyRange, Page, TableId, WorkerId};

use crate::error::Failure;
use crate::execute::Context;

/// A page that a helper is to read.
pub(super) struct ReadAhead {
    slot: Arc<Mutex<Slot>>,
    table: TableId,
    direction: Direction,
}

/// Where the page is.
enum Slot {
    /// No helper has begun.
    Asked,
    /// A helper reads it.
    Reading,
    /// There it is, with what has read it.
    Read(Page, Box<Deferred>),
    /// The statement needs it no more, or reads it itself.
    Over,
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        *lock(&self.slot) = Slot::Over;
    }
}

impl ReadAhead {
    /// Asks another worker for the first `limit` rows of a range; None if there is no other, or if the statement had better read them itself.
    pub(super) fn new(
        (table, range, direction): (TableId, KeyRange, Direction),
        limit: usize,
        context: &Context<'_, '_>,
    ) -> Option<Self> {
        let cluster = &context.resources.database.cluster;
        let workers = cluster.options().threads;
        if workers == 1 || context.transaction.has_barriers || context.has_written(table) {
            return None;
        }
        let worker = (context.coordinator.worker() + 1) % workers;
        let worker = WorkerId { node: usize::from(context.coordinator.node()), worker };
        let ahead = Self { slot: Arc::new(Mutex::new(Slot::Asked)), table, direction };
        let slot = Arc::clone(&ahead.slot);
        let asked = cluster.spawn(worker, move |coordinator| {
            if !begin(&slot) {
                return;
            }
            let mut reads = Deferred::new();
            let page = reads.scan(coordinator, table, &range, direction, limit);
            let mut slot = lock(&slot);
            if matches!(*slot, Slot::Reading) {
                *slot = page.map_or(Slot::Over, |page| Slot::Read(page, Box::new(reads)));
            }
        });
        // A worker whose queue is full does not help.
        asked.is_ok().then_some(ahead)
    }

    /// The page, of which the transaction is a part from now on; None if the statement is to read it itself.
    pub(super) fn page(self, context: &mut Context<'_, '_>) -> Result<Option<Page>, Failure> {
        let mut since_ns = None;
        let (page, reads) = loop {
            match self.taken() {
                Some(Slot::Read(page, reads)) => break (page, reads),
                None if context.wait_for_helper(&mut since_ns)? => {}
                Some(_) | None => return Ok(None),
            }
        };
        if context.has_written(self.table) {
            return Ok(None);
        }
        context.adopt_page(self.table, *reads, self.direction)?;
        Ok(Some(page))
    }

    /// What has become of the page; None while it is read.
    fn taken(&self) -> Option<Slot> {
        let mut slot = lock(&self.slot);
        (!matches!(*slot, Slot::Reading)).then(|| std::mem::replace(&mut *slot, Slot::Over))
    }
}

/// Whether a helper is to read the page.
fn begin(slot: &Mutex<Slot>) -> bool {
    let mut slot = lock(slot);
    let is_asked = matches!(*slot, Slot::Asked);
    if is_asked {
        *slot = Slot::Reading;
    }
    is_asked
}
