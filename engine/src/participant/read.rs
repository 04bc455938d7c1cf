//! READ: version and value of a key, from its primary.
//!
//! *Invariants*: the version is that of the key's bucket, also if the key is absent. A bucket that another transaction of
//! the epoch holds answers `Locked`, without a version. A response with more than 1 MiB answers `Postponed` to further
//! rows of any length.
//!
//! *Source*: FaSST section 5, step 1; `docs/protocol.md`, "Locked buckets".
//!
//! *Not here*: reads that lock (`lock.rs`), and reads of the own node (`transaction/local.rs`).

use gannet_rpc::ResponseWriter;
use gannet_storage::{HashedKey, Read, TableKind};

use crate::participant::{Participant, Prepared};
use crate::request::{self, RESPONSE_BYTES_MAX, Status, VERSION_BYTES};

impl Participant {
    #[inline]
    pub(super) fn read(
        &mut self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, address) = (self.table(prepared.table), prepared.address());
        if table.layout().kind != TableKind::Fixed {
            return self.read_row(prepared, payload, response);
        }
        let request::Read { key, owner, .. } = Self::decoded(payload).0;
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let read = table.read(address, key, owner, value);
            let bytes = match read {
                Read::Found { .. } => capacity,
                Read::Absent { .. } => VERSION_BYTES,
                Read::Locked => 0,
            };
            let (status, version) = read_status(read);
            version_out.copy_from_slice(&version.to_le_bytes());
            (status as u16, bytes)
        });
    }

    fn read_row(&mut self, prepared: &Prepared, payload: &[u8], response: &mut ResponseWriter<'_>) {
        if response.bytes() > RESPONSE_BYTES_MAX {
            return response.push(Status::Postponed as u16);
        }
        let mut value = std::mem::take(&mut self.value);
        value.clear();
        let (request::Read { key: hash, owner, .. }, bytes) = Self::decoded(payload);
        let (table, key) = (self.table(prepared.table), HashedKey::from_parts(hash, bytes));
        let read = table.read_row(prepared.address(), key, owner, &mut value);
        let (status, version) = read_status(read);
        let bytes = VERSION_BYTES + value.len();
        response.push_with(bytes, |out| {
            let (version_out, value_out) = out.split_at_mut(VERSION_BYTES);
            version_out.copy_from_slice(&version.to_le_bytes());
            value_out.copy_from_slice(&value);
            (status as u16, bytes)
        });
        self.value = value;
    }
}

/// The answer to a READ, and the bucket's version if it has one.
#[inline(always)]
pub(crate) fn read_status(read: Read) -> (Status, u64) {
    match read {
        Read::Found { version } => (Status::Found, version),
        Read::Absent { version } => (Status::Absent, version),
        Read::Locked => (Status::Locked, 0),
    }
}
