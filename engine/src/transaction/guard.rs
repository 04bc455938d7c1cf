//! Guard: keep locks out of a table at all its primaries, for a transaction whose reads were overtaken again and again.
//!
//! A guard belongs to a coordinator rather than to a transaction: it outlasts attempts that fail, and whoever held locks
//! when it was set is through by the next one. Guards are not logged; those of a node that has gone mean nothing.
//!
//! *Source*: `architecture.md`, "Transactions".

use gannet_storage::Owner;

use crate::node::TableId;
use crate::outcome::Abort;
use crate::request::{self, KeyRequest, Status};
use crate::transaction::Transaction;

/// A table that a coordinator guards.
pub(crate) struct Guard {
    pub(crate) table: TableId,
    owner: Owner,
}

impl Transaction<'_> {
    /// Asks the primaries to guard a table.
    ///
    /// # Errors
    /// [`Abort::NoSuchTable`] for a table without order.
    pub(crate) fn set_guard(&mut self, table: TableId) -> Result<Guard, Abort> {
        let guard = Guard { table, owner: self.owner };
        let is_ordered = self.node.table(table.0).is_some_and(|table| table.is_ordered());
        if is_ordered && self.ask_partitions(request::GUARD, &guard).is_none() {
            return Ok(guard);
        }
        Err(Abort::NoSuchTable { table: table.0 })
    }

    /// Gives a guard back.
    pub(crate) fn release_guard(&mut self, guard: &Guard) {
        // A guard that stayed would keep everybody out for ever.
        if let Some(status) = self.ask_partitions(request::UNGUARD, guard) {
            self.round.fail("UNGUARD", status);
        }
    }

    /// The first answer that was not `Done`, if any.
    fn ask_partitions(&mut self, kind: u16, guard: &Guard) -> Option<Status> {
        let Self { node, round, .. } = self;
        let Guard { table, owner } = *guard;
        let configuration = node.configuration();
        round.begin();
        for partition in 0..configuration.partitioning.count() {
            let detail = u16::try_from(partition).expect("at most 4096 partitions");
            let request = KeyRequest { table: table.0, detail, bucket: 0, key: 0, owner };
            round
                .request(configuration.primary(detail), kind, &request.encode())
                .expect("a request without a key fits a message");
        }
        round.end()
    }
}
