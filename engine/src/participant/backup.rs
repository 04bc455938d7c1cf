//! BACKUP: apply a unit at a backup, by its base version.
//!
//! *Source*: FaSST section 5, step 4. *Invariant*: a unit whose earlier update is missing is counted and never applied. A node whose copy
//! misses one ends.

use gannet_rpc::ResponseWriter;
use gannet_rules::fault;
use gannet_storage::{Applied, BucketAddress, BucketUpdate, Table};

use crate::participant::{Participant, Prepared};
use crate::request::Status;
use crate::view::View;

impl Participant {
    #[inline]
    pub(super) fn backup(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, unit) = (self.table(prepared.table), BucketUpdate::parse_checked(payload));
        let status = backed_up(&self.view, table, prepared.address(), &unit);
        if status != Status::Done {
            self.end("BACKUP", status, &unit);
        }
        response.push(status as u16);
    }
}

/// The answer to a unit of the bucket at `address`, which is applied at the backup that `view` is of.
#[inline]
pub(crate) fn backed_up(
    view: &View,
    table: &Table,
    address: BucketAddress,
    unit: &BucketUpdate<'_>,
) -> Status {
    if fault!(DROP_BACKUP_UPDATES)
        && view.configuration().backups(unit.partition).first() == Some(&view.id())
    {
        return Status::Done;
    }
    if fault!(REFUSE_BACKUP) && unit.base_version == 64 {
        return Status::Refused;
    }
    if fault!(LOSE_BACKUP_UPDATE) && unit.base_version == 64 {
        return Status::Done;
    }
    match table.apply_at_backup(address, unit) {
        Applied::Applied | Applied::Duplicate => Status::Done,
        // Transactions that know of that send it no updates.
        Applied::Gap if view.is_dismissed(unit.partition) => Status::Done,
        // The load has failed, and the table is about to be dropped.
        Applied::Gap if table.is_bulk_loaded(unit.partition) => Status::Done,
        // Its bucket may not be copied yet.
        Applied::Gap
            if view.is_no_copy(unit.partition)
                && view.learning().update(table, (unit, unit.bytes())) =>
        {
            Status::Done
        }
        Applied::Gap => {
            view.count_gap();
            Status::Gap
        }
    }
}
