//! PRIMARY: apply a unit at the primary, raise the version, release the lock.

use gannet_rpc::ResponseWriter;
use gannet_storage::BucketUpdate;

use crate::participant::{Participant, Prepared};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn primary(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let unit = BucketUpdate::parse_checked(payload);
        // A duplicate is acknowledged again: the unit is applied.
        let _ = self.table(prepared.table).apply_at_primary(prepared.place, &unit);
        response.push(Status::Done as u16);
    }
}
