//! LOCK: lock a key's bucket and read the key, at its primary.

use gannet_rpc::ResponseWriter;
use gannet_storage::{Lock, LockMode};

use crate::participant::Participant;
use crate::request::{KeyRequest, Status, VERSION_BYTES, lock_mode_from_wire};

impl Participant {
    pub(super) fn lock(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((request, table, mode)) = KeyRequest::decode(payload).and_then(|request| {
            Some((request, self.table_of_key(&request)?, lock_mode_from_wire(request.detail)?))
        }) else {
            return self.refuse(response);
        };
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let (status, version, bytes) = match table.lock(request.key, request.owner, mode, value)
            {
                Lock::Granted { version } if mode == LockMode::Insert => {
                    (Status::Granted, version, VERSION_BYTES)
                }
                Lock::Granted { version } => (Status::Granted, version, capacity),
                Lock::Absent { version } => (Status::Absent, version, VERSION_BYTES),
                Lock::Exists { version } => (Status::Exists, version, capacity),
                Lock::Locked => return (Status::Locked as u16, 0),
                Lock::Full => return (Status::Full as u16, 0),
            };
            version_out.copy_from_slice(&version.to_le_bytes());
            (status as u16, bytes)
        });
    }
}
