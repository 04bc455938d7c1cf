//! UNLOCK: give a bucket back unchanged.

use gannet_rpc::ResponseWriter;

use crate::participant::{Participant, Target};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn unlock(&self, target: Target, response: &mut ResponseWriter<'_>) {
        let Target { request, place } = target;
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = self.table(request.table).unlock(place, request.owner);
        response.push(Status::Done as u16);
    }
}
