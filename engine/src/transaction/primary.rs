//! Commit primary: apply each unit at its primary, which releases the lock.
//!
//! *Source*: FaSST section 5, step 5. The coroutine does not wait for the answers: it goes on, and the requests leave with those
//! of its next transaction, in the same packets and before them, so that it reads its own writes without meeting its own lock.
//! It logs nothing before they are answered (rules C6 and C8): the next transaction has sent its reads and locks by then.
//!
//! Who waits for a job is told when they are answered; a coroutine that sleeps or ends its job waits for them, too.

use crate::request;
use crate::transaction::Transaction;

/// A longer record's units take packets of their own.
const CARRIED_BYTES_MAX: usize = 512;

impl Transaction<'_> {
    /// Applies the transaction at the primaries.
    pub(super) fn commit_primaries(&mut self) {
        self.ask_for_units(request::PRIMARY);
        self.round.carry();
        if self.record.len() > CARRIED_BYTES_MAX {
            self.settle();
        }
    }
}
