//! UNLOCK: release the lock of a bucket that was not written.
//!
//! *Source*: FaSST section 5, step 1, for a transaction that aborts.

use gannet_rpc::ResponseWriter;
use gannet_storage::HashedKey;

use crate::participant::{Participant, Prepared};
use crate::request::{Status, Unlock};

impl Participant {
    #[inline]
    pub(super) fn unlock(
        &self,
        prepared: &Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    ) {
        let (table, address) = (self.table(prepared.table), prepared.address());
        let (Unlock { key: word, owner, .. }, bytes) = Self::decoded(payload);
        // One that does not hold the bucket changes nothing, and is acknowledged all the same.
        let _ = table.unlock_row(address, HashedKey::from_parts(word, bytes), owner);
        response.push(Status::Done as u16);
    }
}
