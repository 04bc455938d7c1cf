//! VALIDATE: has a bucket still the version that was read? Headers only.

use gannet_rpc::ResponseWriter;
use gannet_storage::Validation;

use crate::participant::{Participant, Prepared};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn validate(&self, prepared: &Prepared, response: &mut ResponseWriter<'_>) {
        let Prepared { table, place, key: version, owner, .. } = *prepared;
        let status = match self.table(table).validate(place, version, owner) {
            Validation::Unchanged => Status::Done,
            Validation::Changed => Status::Changed,
            Validation::Locked => Status::Locked,
        };
        response.push(status as u16);
    }
}
