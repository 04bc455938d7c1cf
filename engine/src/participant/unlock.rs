//! UNLOCK: give a bucket back unchanged.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::{KeyRequest, Status};

impl Participant {
    pub(super) fn unlock(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((request, table)) = KeyRequest::decode(payload)
            .and_then(|request| Some((request, self.table_of_bucket(&request)?)))
        else {
            return self.refuse(response);
        };
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = table.unlock(request.detail, request.bucket, request.owner);
        response.push(Status::Done as u16);
    }
}
