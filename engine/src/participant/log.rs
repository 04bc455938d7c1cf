//! LOG and LOG_PART: store a commit record in the slot of its coroutine, whole or in parts.
//!
//! *Source*: FaSST section 5, step 3. *Invariant*: a record is acknowledged when all of it is stored (rule C4).

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::{self, Status};

impl Participant {
    pub(super) fn log(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        match self.log.borrow_mut().store(payload) {
            // A duplicate is acknowledged again: the record is there.
            Ok(_) => response.push(Status::Done as u16),
            Err(_) => self.refuse(response),
        }
    }

    pub(super) fn log_part(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some(part) = request::decode_part(payload) else { return self.refuse(response) };
        match self.log.borrow_mut().store_part(&part) {
            Ok(_) => response.push(Status::Done as u16),
            Err(_) => self.refuse(response),
        }
    }
}
