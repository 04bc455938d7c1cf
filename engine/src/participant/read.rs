//! READ: version and value of a key, from its primary.

use gannet_rpc::ResponseWriter;
use gannet_storage::Read;

use crate::participant::Participant;
use crate::request::{KeyRequest, Status, VERSION_BYTES};

impl Participant {
    pub(super) fn read(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((request, table)) = KeyRequest::decode(payload)
            .and_then(|request| Some((request, self.table_of_key(&request)?)))
        else {
            return self.refuse(response);
        };
        let capacity = VERSION_BYTES + table.layout().value_bytes;
        response.push_with(capacity, |out| {
            let (version_out, value) = out.split_at_mut(VERSION_BYTES);
            let (status, version, bytes) = match table.read(request.key, request.owner, value) {
                Read::Found { version } => (Status::Found, version, capacity),
                Read::Absent { version } => (Status::Absent, version, VERSION_BYTES),
                Read::Locked => return (Status::Locked as u16, 0),
            };
            version_out.copy_from_slice(&version.to_le_bytes());
            (status as u16, bytes)
        });
    }
}
