//! PRIMARY: apply a unit at the primary, raise the version, release the lock.
//!
//! *Source*: FaSST section 5, step 5.

use gannet_rpc::ResponseWriter;
use gannet_rules::fault;
use gannet_storage::{Applied, BucketAddress, BucketUpdate, Table};

use crate::participant::{Participant, Prepared};
use crate::request::Status;
use crate::view::View;

impl Participant {
    #[inline]
    pub(super) fn primary(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let unit = BucketUpdate::parse_checked(payload);
        let table = self.table(prepared.table);
        let status = applied_at_primary(&self.view, table, prepared.address(), &unit);
        if status != Status::Done {
            self.end("PRIMARY", status, &unit);
        }
        response.push(status as u16);
    }
}

/// The answer to a unit of the bucket at `address`, which is applied at the primary that `view` is of. A duplicate is acknowledged
/// again: the unit is applied.
#[inline]
pub(crate) fn applied_at_primary(
    view: &View,
    table: &Table,
    address: BucketAddress,
    unit: &BucketUpdate<'_>,
) -> Status {
    if fault!(LOSE_LOCK) && unit.base_version == 64 {
        let _ = table.unlock(address, unit.partition, unit.owner);
    }
    match table.apply_at_primary(address, unit) {
        Applied::Applied | Applied::Duplicate => Status::Done,
        Applied::Gap => {
            view.count_gap();
            Status::Gap
        }
    }
}
