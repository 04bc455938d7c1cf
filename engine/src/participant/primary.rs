//! PRIMARY: apply a unit at the primary, raise the version, release the lock.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::Status;

impl Participant {
    pub(super) fn primary(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((table, unit)) = self.unit(payload) else {
            return self.refuse(response);
        };
        // A duplicate is acknowledged again: the unit is applied.
        let _ = table.apply_at_primary(&unit);
        response.push(Status::Done as u16);
    }
}
