//! UNLOCK: give a bucket back unchanged.

use gannet_rpc::ResponseWriter;

use crate::participant::{Participant, Prepared};
use crate::request::Status;

impl Participant {
    #[inline]
    pub(super) fn unlock(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, place) = (self.table(prepared.table), prepared.place);
        let owner = Self::said(payload).owner;
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = if table.layout().is_heap {
            table.unlock_row(place, Self::row_key(payload), owner)
        } else {
            table.unlock(place, owner)
        };
        response.push(Status::Done as u16);
    }
}
