//! UNLOCK: give a bucket back unchanged.

use gannet_rpc::ResponseWriter;

use crate::participant::{Participant, Prepared};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn unlock(&self, prepared: &Prepared, response: &mut ResponseWriter<'_>) {
        let Prepared { table, place, owner, .. } = *prepared;
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = self.table(table).unlock(place, owner);
        response.push(Status::Done as u16);
    }
}
