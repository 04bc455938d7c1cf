//! VALIDATE and VALIDATE_MANY: whether one bucket, or many, still have the versions that were read. Headers only, no values.
//!
//! *Source*: FaSST section 5, step 2.

use gannet_rpc::ResponseWriter;
use gannet_rules::fault;
use gannet_storage::{Owner, Table, Validation};

use crate::participant::{Participant, Prepared};
use crate::request::{Status, Validate, ValidateMany, bucket_versions};

impl Participant {
    #[inline]
    pub(super) fn validate(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let Validate { version, owner, .. } = Self::decoded(payload).0;
        if fault!(REFUSE_VALIDATION) && version == 64 {
            return self.refuse(response);
        }
        let status = match self.table(prepared.table).validate(prepared.address, version, owner) {
            Validation::Unchanged => Status::Done,
            Validation::Changed => Status::Changed,
            Validation::Locked => Status::Locked,
        };
        response.push(status as u16);
    }

    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn validate_many(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, buckets) = Self::decoded::<ValidateMany>(payload);
        let Some(buckets) = bucket_versions(buckets) else { return self.refuse(response) };
        let table = self.table(request.table);
        let status = validated(table, request.partition, buckets, request.owner);
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
        let Some(address) = table.served_bucket_address(partition, bucket) else {
            let is_held = table.bucket_address(partition, bucket).is_some();
            return if is_held { Status::Moved } else { Status::Refused };
        };
        if fault!(REFUSE_VALIDATION) && version == 64 {
            return Status::Refused;
        }
        match table.validate(address, version, owner) {
            Validation::Unchanged => {}
            Validation::Changed => return Status::Changed,
            Validation::Locked => return Status::Locked,
        }
    }
    Status::Done
}
