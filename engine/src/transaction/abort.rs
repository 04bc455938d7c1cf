//! Abort: release every lock, leaving versions and rows as they were.
//!
//! *Source*: FaSST section 5, step 1. UNLOCK goes to the buckets whose lock was granted. No other
//! can be held: a request is retransmitted until it is answered, so after execute the coordinator
//! knows the answer to each, and a duplicate of a LOCK that arrives later is dropped by its session.

use gannet_rules::rule;

use crate::commit::{Settled, Stage};
use crate::request::{self, TableRequest, Unlock};
use crate::transaction::Transaction;
use crate::transaction::access_set::{AccessSet, RowState};
use crate::transaction::round::Interrupted;

impl Transaction<'_> {
    /// Aborts the transaction: it releases its locks and has written nothing. Does nothing if it has ended.
    ///
    /// # Panics
    /// Never: an UNLOCK fits a message.
    pub fn abort(&mut self) {
        if !matches!(self.stage(), Stage::PrimariesSent | Stage::Settled(_)) {
            self.reach(Stage::Settled(Settled::Aborted));
            self.doom = None;
            self.release_locks();
        }
    }

    /// Releases every lock that was granted. Those of a transaction that is interrupted are dead, or nobody is left to release them.
    pub(super) fn release_locks(&mut self) {
        let _: Result<(), Interrupted> = self.send_unlocks();
    }

    fn send_unlocks(&mut self) -> Result<(), Interrupted> {
        let Self { set: AccessSet { rows, values, .. }, round, owner, scratch, .. } = self;
        let message = &mut scratch.message;
        round.begin()?;
        for row in rows.iter().filter(|row| row.state == RowState::Granted) {
            if !rule!(UNLOCK_ON_ABORT) {
                continue;
            }
            let request = Unlock {
                table: row.table,
                partition: row.location.partition,
                bucket: row.bucket,
                key: row.key,
                owner: *owner,
            };
            message.clear();
            message.extend_from_slice(&request.encode());
            message.extend_from_slice(&values[row.key_range()]);
            round.request_that_fits(row.primary, request::UNLOCK, message)?;
        }
        if let Some(status) = round.end()? {
            round.fail("UNLOCK", status);
        }
        Ok(())
    }
}
