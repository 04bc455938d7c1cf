//! LOG: keep a commit record in the slot of its coroutine.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::Status;

impl Participant {
    pub(super) fn log(&mut self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match self.log.store(payload) {
            // A duplicate is acknowledged again: the record is there.
            Ok(_) => response.push(Status::Done as u16),
            Err(_) => self.refuse(response),
        }
    }
}
