//! UNLOCK: give a bucket back unchanged.

use gannet_rpc::ResponseWriter;
use gannet_storage::RowKey;

use crate::participant::{Participant, Prepared};
use crate::request::{KeyRequest, Status};

impl Participant {
    #[inline]
    pub(super) fn unlock(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, place) = (self.table(prepared.table), prepared.place);
        let (KeyRequest { key: hash, owner, .. }, key) = Self::said(payload);
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = if table.layout().is_heap {
            table.unlock_row(place, RowKey::with_hash(hash, key), owner)
        } else {
            table.unlock(place, owner)
        };
        response.push(Status::Done as u16);
    }
}
