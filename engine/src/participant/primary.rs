//! PRIMARY: apply a unit at the primary, raise the version, release the lock.

use gannet_rpc::ResponseWriter;
use gannet_storage::{BucketUpdate, Place};

use crate::participant::Participant;
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn primary(
        &self,
        table: u16,
        place: Place,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let unit = BucketUpdate::parse_checked(payload);
        // A duplicate is acknowledged again: the unit is applied.
        let _ = self.table(table).apply_at_primary(place, &unit);
        response.push(Status::Done as u16);
    }
}
