//! Commit primary: apply each unit at its primary, which releases the lock.
//!
//! *Source*: FaSST section 5, step 5. The coroutine does not wait for the answers: it goes on, and the requests leave with those
//! of its next transaction, in the same packets and before them, so that it reads its own writes without meeting its own lock.
//! It logs nothing before they are answered (rules C6 and C8): the next transaction has sent its reads and locks by then.
//!
//! The result of a job is reported after they are answered. A coroutine waits for them before it sleeps, too.

use crate::commit::Stage;
use crate::request;
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;

/// A longer record's units take packets of their own.
const PIGGYBACKED_BYTES_MAX: usize = 512;

impl Transaction<'_> {
    /// Applies the transaction at the primaries.
    #[inline(always)]
    pub(super) fn commit_primaries(&mut self) -> Result<(), Interrupted> {
        self.send_units(request::PRIMARY)?;
        self.reach(Stage::PrimariesSent);
        self.round.piggyback();
        if self.record.bytes().len() > PIGGYBACKED_BYTES_MAX {
            self.settle()?;
        }
        Ok(())
    }
}
