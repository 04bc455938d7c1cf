//! LOCK: lock a key's bucket and read the key, at its primary.

use gannet_rpc::ResponseWriter;
use gannet_storage::{Lock, LockMode};

use crate::participant::{Participant, Prepared};
use crate::request::{Status, VERSION_BYTES};

impl Participant {
    #[inline]
    pub(super) fn lock(
        &self,
        prepared: &Prepared,
        mode: LockMode,
        response: &mut ResponseWriter<'_>,
    ) {
        let Prepared { table, place, key, owner, .. } = *prepared;
        let table = self.table(table);
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let lock = table.lock(place, key, owner, mode, value);
            let (status, version, bytes) = match lock {
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
