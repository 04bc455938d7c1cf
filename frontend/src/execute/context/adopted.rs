//! What transactions of other workers, the helpers, have read for a running statement: its commit depends on that from
//! then on.
//!
//! *Invariants*: a helper has written nothing. Its reads are charged to the statement, and need no validation where no
//! other transaction can reach the table. After two seconds without an answer the statement does the helper's work
//! itself.
//!
//! *Source*: `docs/protocol.md`, "Folds", for shares and pages.
//!
//! *Not here*: what they read (`execute/fold/shares`, `execute/read_ahead`).

use std::time::Duration;

use gannet_engine::{Deferred, Direction, TableId};

use crate::error::Failure;
use crate::execute::context::Context;

/// How long a statement waits for a helper before it looks again.
const HELPER_WAIT: Duration = Duration::from_micros(20);
/// How long helpers may answer nothing.
const HELPER_SILENCE_NS: u64 = 2_000_000_000;

impl Context<'_, '_> {
    /// Waits for a helper a moment. Since `since_ns`, which the first call sets, the helper has not answered. If this lasts, the result is false:
    /// the helper may wait for a silent node for ever, and the statement had better do the work, and wait for that node, itself.
    pub(in crate::execute) fn wait_for_helper(
        &mut self,
        since_ns: &mut Option<u64>,
    ) -> Result<bool, Failure> {
        self.check_cancel()?;
        let now_ns = self.coordinator.now_ns();
        if now_ns.saturating_sub(*since_ns.get_or_insert(now_ns)) > HELPER_SILENCE_NS {
            *since_ns = None;
            return Ok(false);
        }
        self.wait(HELPER_WAIT);
        Ok(true)
    }

    /// What primaries have computed of a table for a helper. The commit depends on that, or `own` does, if there is such a transaction.
    pub(in crate::execute) fn adopt_fold(
        &mut self,
        (results, reads): (Vec<Vec<u8>>, Box<Deferred>),
        own: Option<&mut Deferred>,
    ) -> Result<Vec<Vec<u8>>, Failure> {
        self.check_cancel()?;
        self.round_trips += 1;
        let Self { coordinator, transaction, .. } = self;
        let deferred = own.unwrap_or(&mut transaction.deferred);
        // A fold has no direction.
        deferred.adopt_reads(coordinator, *reads, Direction::Ascending);
        self.charge_transaction()?;
        Ok(results)
    }

    /// A helper has read a page of a range of a table, in this direction. The commit depends on that, unless no other transaction can reach the
    /// table.
    pub(in crate::execute) fn adopt_page(
        &mut self,
        table: TableId,
        reads: Deferred,
        direction: Direction,
    ) -> Result<(), Failure> {
        self.begin_range(table)?;
        let is_unshared = self.transaction.is_unshared(table);
        let Self { coordinator, transaction, .. } = self;
        let adopt = |deferred: &mut Deferred| {
            deferred.adopt_reads(coordinator, reads, direction);
            Ok(())
        };
        let deferred = &mut transaction.deferred;
        if is_unshared { deferred.unshared(adopt) } else { adopt(deferred) }?;
        self.charge_transaction()
    }
}
