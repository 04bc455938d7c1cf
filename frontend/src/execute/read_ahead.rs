//! Read-ahead: another worker of the statement's node reads the next page of a range while the statement works on the last one.
//!
//! ```text
//! statement   page n ─ asks for n + 1 ─ works on the rows of n ─ takes n + 1 ─▶ ...
//! helper                 └─ reads n + 1, with a transaction of its own ─┘   the statement's depends on what that one has read
//! ```
//! *Invariants*: the statement reads a page itself if its helper has not begun, is silent, or has met an error, which the statement then meets, too.
//! A helper sees no rows that the statement has written: no page is asked for, nor taken, of a table with such rows. A range has one job at a time,
//! so those of a busy worker do not fill its queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_engine::{Deferred, Direction, KeyRange, Page, TableId, WorkerId};

use crate::error::Failure;
use crate::execute::Context;

/// Pages that a statement reads before it asks for one. Statements that need few rows end with those.
const PAGES_ALONE: usize = 2;

/// The pages of a range, of which a helper may read the next one.
#[derive(Default)]
pub(super) struct ReadAhead {
    slot: Arc<Mutex<Slot>>,
    /// How many there have been.
    pages: usize,
}

/// Where the next page is.
#[derive(Default)]
enum Slot {
    /// The statement needs none, or reads it itself.
    #[default]
    Idle,
    /// No helper has begun.
    Asked,
    /// A helper reads it.
    Reading,
    /// There it is, with what has read it.
    Read(Page, Box<Deferred>),
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        *lock(&self.slot) = Slot::Idle;
    }
}

impl ReadAhead {
    /// Asks another worker for the first `limit` rows of a range, if there is another, and if the statement had not better read them itself.
    pub(super) fn ask(
        &mut self,
        (table, range, direction): (TableId, KeyRange, Direction),
        limit: usize,
        context: &Context<'_, '_>,
    ) {
        self.pages += 1;
        let cluster = &context.resources.database.cluster;
        let workers = cluster.options().threads;
        let has_job = Arc::strong_count(&self.slot) > 1;
        if workers == 1
            || self.pages < PAGES_ALONE
            || has_job
            || context.transaction.has_barriers
            || context.has_written(table)
        {
            return;
        }
        *lock(&self.slot) = Slot::Asked;
        let worker = (context.coordinator.worker() + 1) % workers;
        let worker = WorkerId { node: usize::from(context.coordinator.node()), worker };
        let slot = Arc::clone(&self.slot);
        // A worker whose queue is full does not help.
        let _ = cluster.spawn(worker, move |coordinator| {
            let Some(reader) = Reader::begin(&slot) else { return };
            let mut reads = Deferred::new();
            if let Ok(page) = reads.scan(coordinator, table, &range, direction, limit) {
                reader.end(page, reads);
            }
        });
    }

    /// The page that was asked for, of which the transaction is a part from now on; None if the statement is to read it itself.
    pub(super) fn take(
        &self,
        (table, direction): (TableId, Direction),
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Page>, Failure> {
        let mut since_ns = None;
        let (page, reads) = loop {
            match self.taken() {
                Some(Slot::Read(page, reads)) => break (page, reads),
                Some(_) => return Ok(None),
                None if context.wait_for_helper(&mut since_ns)? => {}
                None => {
                    *lock(&self.slot) = Slot::Idle;
                    return Ok(None);
                }
            }
        };
        if context.has_written(table) {
            return Ok(None);
        }
        context.adopt_page(table, *reads, direction)?;
        Ok(Some(page))
    }

    /// What has become of the page; None while it is read.
    fn taken(&self) -> Option<Slot> {
        let mut slot = lock(&self.slot);
        (!matches!(*slot, Slot::Reading)).then(|| std::mem::take(&mut *slot))
    }
}

/// A helper that reads a page.
struct Reader<'s>(&'s Mutex<Slot>);

impl<'s> Reader<'s> {
    /// None if the page is not needed any more.
    fn begin(slot: &'s Mutex<Slot>) -> Option<Self> {
        let mut asked = lock(slot);
        matches!(*asked, Slot::Asked).then(|| {
            *asked = Slot::Reading;
            Self(slot)
        })
    }

    fn end(self, page: Page, reads: Deferred) {
        let mut slot = lock(self.0);
        if matches!(*slot, Slot::Reading) {
            *slot = Slot::Read(page, Box::new(reads));
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut slot = lock(self.0);
        if matches!(*slot, Slot::Reading) {
            *slot = Slot::Idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_by_its_helper_or_by_the_statement() {
        let ahead = ReadAhead::default();
        let is_idle = || matches!(*lock(&ahead.slot), Slot::Idle);
        assert!(Reader::begin(&ahead.slot).is_none(), "nothing is asked for");
        // The statement comes first.
        *lock(&ahead.slot) = Slot::Asked;
        assert!(matches!(ahead.taken(), Some(Slot::Asked)));
        assert!(Reader::begin(&ahead.slot).is_none());
        // The helper does, and is interrupted.
        *lock(&ahead.slot) = Slot::Asked;
        let reader = Reader::begin(&ahead.slot).expect("a page is asked for");
        assert!(ahead.taken().is_none());
        drop(reader);
        assert!(is_idle());
        // The helper is given up, and answers late.
        *lock(&ahead.slot) = Slot::Asked;
        let reader = Reader::begin(&ahead.slot).expect("a page is asked for");
        *lock(&ahead.slot) = Slot::Idle;
        reader.end(Page { rows: gannet_engine::Rows::default(), rest: None }, Deferred::new());
        assert!(is_idle());
    }
}
