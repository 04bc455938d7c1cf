//! A node's part in a flush: the records that it has, and their units at its copies.
//!
//! *Invariants*: no worker takes a step meanwhile. Units are applied by the counts of their base versions, so the order
//! of records does not matter, and a split comes before changes of its halves. A unit that was applied before is a
//! duplicate: a flush may be repeated. A missing update is an error at a copy; at a learner the unit waits, and at a
//! dismissed copy the unit is passed over. The records are kept for a further change before the next epoch.
//!
//! *Source*: `docs/protocol.md`, "Membership change".
//!
//! *Not here*: the messages and their order, in `membership_change`; commits that are settled by the ids, in `worker`.

use std::collections::BTreeSet;
use std::sync::Arc;

use gannet_rules::rule;
use gannet_storage::{Applied, BucketUpdate, CommitRecord};

use crate::configuration::Configuration;
use crate::node::{FlushError, Flushed, Node};

impl Node {
    /// The records of the last active epoch that this node has: those of its log slots, when all workers have stopped, and those that
    /// an earlier flush of the same epoch has brought.
    pub(crate) fn records(&self) -> BTreeSet<Vec<u8>> {
        let flushed = self.flushed.load();
        let is_same = flushed.epoch == self.view.load().configuration().last_active_epoch;
        let of_flush = flushed.records.iter().filter(|_| is_same).cloned();
        let workers = self.lock_workers();
        workers.iter().flat_map(|worker| worker.records.iter().cloned()).chain(of_flush).collect()
    }

    /// Applies the units of records at the copies that this node has in its present view, and ends what other transactions of their
    /// epoch have left. No worker takes a step meanwhile.
    ///
    /// # Errors
    /// Why this node cannot go on: a record is damaged, or a copy misses an earlier update.
    pub(crate) fn flush(&self, records: &BTreeSet<Vec<u8>>) -> Result<(), FlushError> {
        let own = if rule!(ALL_RECORDS) { None } else { Some(self.records()) };
        let records = own.as_ref().unwrap_or(records);
        let view = self.view();
        let mut units = Vec::new();
        let mut ids = BTreeSet::new();
        for record in records {
            let is_intact = CommitRecord::is_intact(record);
            let record = CommitRecord::parse(record).ok().filter(|_| is_intact);
            let record = record.ok_or(FlushError::Damaged)?;
            ids.insert(record.id);
            for unit in record.units() {
                units.push(unit.map_err(|_| FlushError::Damaged)?);
            }
        }
        // Units of one bucket in their order.
        units.sort_by_key(BucketUpdate::order);
        for unit in units.into_iter().filter(|_| rule!(FLUSHED_UNITS)) {
            let updated = view.configuration().updated(unit.partition);
            let table = view.table(unit.table).filter(|_| updated.contains(&self.id));
            // A table that was removed has no transactions left that matter.
            let Some(table) = table else { continue };
            let address = table.address_to_fill(&unit);
            let address =
                address.filter(|_| table.fits_bucket(&unit)).ok_or(FlushError::Damaged)?;
            let mut is_gap = table.apply_at_backup(address, &unit) == Applied::Gap;
            if is_gap && view.is_no_copy(unit.partition) {
                is_gap = !view.is_dismissed(unit.partition)
                    && !self.learning.update(table, (&unit, unit.bytes()));
            }
            if is_gap {
                view.count_gap();
                let (table, partition) = (unit.table, unit.partition);
                return Err(FlushError::Gap { table, partition, bucket: unit.bucket });
            }
        }
        let Configuration { epoch, last_active_epoch, .. } = *view.configuration();
        view.tables().for_each(|(_, table)| table.end_dead(epoch));
        self.arena.forget_locks();
        self.reservations.clear();
        let records = records.iter().cloned().collect();
        self.flushed.store(Arc::new(Flushed { epoch: last_active_epoch, ids, records }));
        Ok(())
    }

    /// What the last flush has found.
    pub(crate) fn flushed(&self) -> Arc<Flushed> {
        self.flushed.load_full()
    }
}
