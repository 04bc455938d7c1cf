//! Scan barriers: keep new locks out of a table at all its primaries, for a transaction whose reads were overtaken again and
//! again.
//!
//! A barrier belongs to a coordinator rather than to a transaction: it outlasts attempts that fail. The transactions that held
//! locks when it was set have ended by the next attempt. Barriers are not logged; those of a node that has gone mean nothing.
//!
//! *Source*: `docs/protocol.md`, "Scan barriers"; `docs/architecture.md`, "Transactions".

use gannet_storage::{Owner, TableKind};

use crate::configuration::NOBODY;
use crate::outcome::{Abort, Conflict, Misuse};
use crate::request::{self, Barrier, Status, TableRequest};
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;

/// A barrier that a coordinator has set on a table.
pub(crate) struct ScanBarrier {
    pub(crate) table: TableId,
    owner: Owner,
}

impl Transaction<'_> {
    /// Sets a barrier on a table, at the primaries of all its partitions.
    ///
    /// # Errors
    /// [`Misuse::NoSuchTable`] for a table without order; [`Conflict::Reconfigured`] if another node becomes primary of a partition;
    /// [`crate::Failure::Lost`] if a partition is lost; that of an interruption.
    pub(crate) fn set_barrier(&mut self, table: TableId) -> Result<ScanBarrier, Abort> {
        self.check_all_partitions()?;
        let barrier = ScanBarrier { table, owner: self.owner };
        let is_ordered = self
            .view
            .kept_table(table.0)
            .is_some_and(|table| table.layout().kind == TableKind::Ordered);
        let no_such_table = Misuse::NoSuchTable { table: table.0 };
        if !is_ordered {
            return Err(no_such_table.into());
        }
        let Some(status) = self.send_to_primaries(request::SET_BARRIER, &barrier)? else {
            return Ok(barrier);
        };
        // Others have set it.
        self.release_barrier(&barrier);
        let is_moved = status == Status::Moved;
        Err(if is_moved { Conflict::Reconfigured.into() } else { no_such_table.into() })
    }

    /// Releases a barrier, unless the cluster has halted.
    pub(crate) fn release_barrier(&mut self, barrier: &ScanBarrier) {
        // A barrier that stayed would keep all writers out for ever.
        if let Ok(Some(status)) = self.send_to_primaries(request::RELEASE_BARRIER, barrier) {
            self.round.fail("RELEASE_BARRIER", status);
        }
    }

    /// The first answer that was not `Done`, if any. A partition that is lost keeps no barrier.
    fn send_to_primaries(
        &mut self,
        kind: u16,
        barrier: &ScanBarrier,
    ) -> Result<Option<Status>, Interrupted> {
        let Self { view, round, .. } = self;
        let ScanBarrier { table, owner } = *barrier;
        let configuration = view.configuration();
        round.begin()?;
        for partition in 0..configuration.partitioning.count() {
            let partition = u16::try_from(partition).expect("at most 4096 partitions");
            let request = Barrier { table: table.0, partition, owner };
            let primary = configuration.primary(partition);
            if primary == NOBODY {
                continue;
            }
            round.request_that_fits(primary, kind, &request.encode())?;
        }
        round.end()
    }
}
