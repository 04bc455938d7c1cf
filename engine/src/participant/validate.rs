//! VALIDATE: has a bucket, or have many, still the version that was read? Headers only.

use gannet_rpc::ResponseWriter;
use gannet_storage::mutant::{Mutant, active};
use gannet_storage::{Owner, Table, Validation};

use crate::participant::{Participant, Prepared};
use crate::request::{KeyRequest, Status, bucket_versions};

impl Participant {
    #[inline]
    pub(super) fn validate(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (KeyRequest { key: version, owner, .. }, _) = Self::said(payload);
        if active(Mutant::RefuseValidation) && version == 64 {
            return self.refuse(response);
        }
        let status = match self.table(prepared.table).validate(prepared.place, version, owner) {
            Validation::Unchanged => Status::Done,
            Validation::Changed => Status::Changed,
            Validation::Locked => Status::Locked,
        };
        response.push(status as u16);
    }

    /// Table and partition are here: `prepare` looked.
    pub(super) fn validate_many(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, buckets) = Self::said(payload);
        let Some(buckets) = bucket_versions(buckets) else { return self.refuse(response) };
        let table = self.table(request.table);
        let status = validated(table, request.detail, buckets, request.owner);
        if status == Status::Refused {
            return self.refuse(response);
        }
        response.push(status as u16);
    }
}

/// Whether buckets of a partition still have versions: the first answer that is not so.
pub(crate) fn validated(
    table: &Table,
    partition: u16,
    buckets: impl Iterator<Item = (u32, u64)>,
    owner: Owner,
) -> Status {
    for (bucket, version) in buckets {
        let Some(place) = table.bucket_place(partition, bucket) else { return Status::Refused };
        if active(Mutant::RefuseValidation) && version == 64 {
            return Status::Refused;
        }
        match table.validate(place, version, owner) {
            Validation::Unchanged => {}
            Validation::Changed => return Status::Changed,
            Validation::Locked => return Status::Locked,
        }
    }
    Status::Done
}
