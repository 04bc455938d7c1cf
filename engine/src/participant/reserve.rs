//! RESERVE, RELEASE_ROW and WAITS_FOR: reservations of rows at their primary.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".

use gannet_rpc::ResponseWriter;

use crate::answer::{PLACE_BYTES, encode_place};
use crate::participant::Participant;
use crate::request::{OfHolder, Reserve, Status, TableRequest};
use crate::row_reservations::{Holder, Reserved};

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn reserve(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Reserve { table, hold_ms, waits, hash, owner } = Self::decoded(payload).0;
        let time = (self.clock.now_ns(), u64::from(hold_ms) * 1_000_000);
        let reservations = self.view.reservations();
        match reservations.reserve((table, hash), Holder(owner.0), time, waits == 1) {
            Reserved::Granted => response.push(Status::Done as u16),
            Reserved::Full => response.push(Status::Full as u16),
            Reserved::Behind(other, place) => push_place((other, place), response),
        }
    }

    pub(super) fn release_row(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((OfHolder { table, hash, owner }, [])) = OfHolder::decode(payload) else {
            return self.refuse(response);
        };
        self.view.reservations().release((table, hash), Holder(owner.0));
        response.push(Status::Done as u16);
    }

    pub(super) fn waits_for(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((OfHolder { owner, .. }, [])) = OfHolder::decode(payload) else {
            return self.refuse(response);
        };
        let now_ns = self.clock.now_ns();
        match self.view.reservations().waits_for(Holder(owner.0), now_ns) {
            Some(other) => push_place((other, 0), response),
            None => response.push(Status::Done as u16),
        }
    }
}

fn push_place((other, place): (Holder, usize), response: &mut ResponseWriter<'_>) {
    response.push_with(PLACE_BYTES, |out| {
        out.copy_from_slice(&encode_place(other, place));
        (Status::Locked as u16, PLACE_BYTES)
    });
}
