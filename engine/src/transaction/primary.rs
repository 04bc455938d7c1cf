//! Commit primary: apply each unit at its primary, which releases the lock.
//!
//! *Source*: FaSST section 5, step 5. The transaction is reported committed when all have answered,
//! so that a client that reads its own write does not meet its own lock (rule C6).

use crate::request;
use crate::transaction::Transaction;

impl Transaction<'_> {
    /// Applies the transaction at the primaries.
    pub(super) fn commit_primaries(&mut self) {
        self.apply_units(request::PRIMARY);
    }
}
