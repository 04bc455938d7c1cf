//! VALIDATE: has a bucket still the version that was read? Headers only.

use gannet_rpc::ResponseWriter;
use gannet_storage::Validation;

use crate::participant::Participant;
use crate::request::{KeyRequest, Status};

impl Participant {
    pub(super) fn validate(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((request, table)) = KeyRequest::decode(payload)
            .and_then(|request| Some((request, self.table_of_bucket(&request)?)))
        else {
            return self.refuse(response);
        };
        let version = request.key;
        let status = match table.validate(request.detail, request.bucket, version, request.owner) {
            Validation::Unchanged => Status::Done,
            Validation::Changed => Status::Changed,
            Validation::Locked => Status::Locked,
        };
        response.push(status as u16);
    }
}
