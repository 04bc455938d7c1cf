//! VALIDATE and VALIDATE_MANY: whether one bucket, or many, still have the versions that were read. Headers only, no values.
//! VALIDATE_ROWS: whether rows are as they were read, though their buckets have changed.
//!
//! *Source*: FaSST section 5, step 2; `docs/protocol.md`, "Conflicts by row".

use gannet_rpc::ResponseWriter;
use gannet_rules::fault;
use gannet_storage::{Owner, Table, Validation};

use crate::participant::{Participant, Prepared};
use crate::request::{Status, Validate, ValidateMany, bucket_versions, row_versions};

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
        let found = self.table(prepared.table).validate(prepared.address(), version, owner);
        response.push(status_of(found) as u16);
    }

    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn validate_many(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, buckets) = Self::decoded::<ValidateMany>(payload);
        let Some(buckets) = bucket_versions(buckets) else { return self.refuse(response) };
        let table = self.table(request.table);
        let status = validated(table, request.partition, buckets, request.owner);
        self.respond(status, response);
    }

    /// `prepare` has checked that this node has the table, with byte-string keys, and is the partition's primary.
    pub(super) fn validate_rows(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, rows) = Self::decoded::<ValidateMany>(payload);
        let Some(rows) = row_versions(rows) else { return self.refuse(response) };
        let table = self.table(request.table);
        self.respond(rows_validated(table, request.partition, rows, request.owner), response);
    }

    fn respond(&self, status: Status, response: &mut ResponseWriter<'_>) {
        if status == Status::Refused {
            return self.refuse(response);
        }
        response.push(status as u16);
    }
}

/// The answer to a validation.
#[inline]
pub(super) fn status_of(found: Validation) -> Status {
    match found {
        Validation::Unchanged => Status::Done,
        Validation::Changed => Status::Changed,
        Validation::Locked => Status::Locked,
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
            let is_held = table.has_partition(partition);
            return if is_held { Status::Moved } else { Status::Refused };
        };
        if fault!(REFUSE_VALIDATION) && version == 64 {
            return Status::Refused;
        }
        match table.validate(address, version, owner) {
            Validation::Unchanged => {}
            found => return status_of(found),
        }
    }
    Status::Done
}

/// Whether rows of a partition, or all rows of a bucket where the hash is 0, are as they were when their buckets had these versions: the
/// first answer that is not so.
pub(crate) fn rows_validated(
    table: &Table,
    partition: u16,
    rows: impl Iterator<Item = (u32, u64, u64)>,
    owner: Owner,
) -> Status {
    if table.served_bucket_address(partition, 0).is_none() {
        return Status::Moved;
    }
    for (bucket, version, hash) in rows {
        let found = if hash == 0 {
            table.validate_whole(partition, bucket, version, owner)
        } else {
            if table.locate(hash).partition != partition {
                return Status::Refused;
            }
            table.validate_row(hash, version, owner)
        };
        if found != Validation::Unchanged {
            return status_of(found);
        }
    }
    Status::Done
}
