//! GUARD and UNGUARD: keep locks out of a partition while a transaction reads it.

use gannet_rpc::ResponseWriter;

use crate::participant::Participant;
use crate::request::Status;

impl Participant {
    /// Table and partition are here: `prepare` looked.
    pub(super) fn guard(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, _) = Self::said(payload);
        self.table(request.table).guard(request.detail, request.owner);
        response.push(Status::Done as u16);
    }

    /// As [`Self::guard`].
    pub(super) fn unguard(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, _) = Self::said(payload);
        self.table(request.table).unguard(request.detail, request.owner);
        response.push(Status::Done as u16);
    }
}
