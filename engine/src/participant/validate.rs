//! VALIDATE: has a bucket still the version that was read? Headers only.

use gannet_rpc::ResponseWriter;
use gannet_storage::Validation;

use crate::participant::{Participant, Target};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn validate(&self, target: Target, response: &mut ResponseWriter<'_>) {
        let Target { request, place } = target;
        let version = request.key;
        let status = match self.table(request.table).validate(place, version, request.owner) {
            Validation::Unchanged => Status::Done,
            Validation::Changed => Status::Changed,
            Validation::Locked => Status::Locked,
        };
        response.push(status as u16);
    }
}
