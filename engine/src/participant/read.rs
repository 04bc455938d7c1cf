//! READ: version and value of a key, from its primary.

use gannet_rpc::ResponseWriter;
use gannet_storage::Read;

use crate::participant::{Participant, Prepared};
use crate::request::{Status, VERSION_BYTES};

impl Participant {
    #[inline]
    pub(super) fn read(&self, prepared: &Prepared, response: &mut ResponseWriter<'_>) {
        let Prepared { table, place, key, owner, .. } = *prepared;
        let table = self.table(table);
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let read = table.read(place, key, owner, value);
            let (status, version, bytes) = match read {
                Read::Found { version } => (Status::Found, version, capacity),
                Read::Absent { version } => (Status::Absent, version, VERSION_BYTES),
                Read::Locked => return (Status::Locked as u16, 0),
            };
            version_out.copy_from_slice(&version.to_le_bytes());
            (status as u16, bytes)
        });
    }
}
