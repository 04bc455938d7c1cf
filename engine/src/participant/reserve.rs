//! RESERVE, SHARE, RELEASE_ROW, RELEASE_SHARED and WAITS_FOR: reservations of rows and ranges at their primaries.
//!
//! *Source*: `docs/protocol.md`, "Row reservations".

use gannet_rpc::ResponseWriter;

use crate::answer::{encode_awaited, encode_place};
use crate::holder::Holder;
use crate::participant::Participant;
use crate::request::{OfHolder, ReleaseRow, Reserve, Share, Status, TableRequest};
use crate::row_reservations::{Asks, RESERVED_KEY_BYTES, Reserved};
use crate::scan_page::decode_shape;

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn reserve(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, key) = Self::decoded(payload);
        let Reserve { table, hold_ms, waits, hash, owner } = request;
        let (row, time) = (((table, hash), key), self.hold(hold_ms));
        let reservations = self.view.reservations();
        push_reserved(
            reservations.reserve(row, Holder(owner.0), time, Asks::from_wire(waits)),
            response,
        );
    }

    pub(super) fn share(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let share = Share::decode(payload);
        let share = share.filter(|(_, rest)| rest.len() <= 2 * RESERVED_KEY_BYTES);
        let range = share.and_then(|(it, rest)| Some((it, decode_shape(it.shape, rest)?.0)));
        let Some((Share { table, hold_ms, waits, owner, .. }, bounds)) = range else {
            return self.refuse(response);
        };
        let (range, time) = ((table, bounds), self.hold(hold_ms));
        let reservations = self.view.reservations();
        push_reserved(
            reservations.share(range, Holder(owner.0), time, Asks::from_wire(waits)),
            response,
        );
    }

    /// When a hold begins, and how long it is, in nanoseconds.
    fn hold(&self, hold_ms: u32) -> (u64, u64) {
        (self.clock.now_ns(), u64::from(hold_ms) * 1_000_000)
    }

    pub(super) fn release_row(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((ReleaseRow { table, hash, owner }, [])) = ReleaseRow::decode(payload) else {
            return self.refuse(response);
        };
        self.view.reservations().release((table, hash), Holder(owner.0));
        response.push(Status::Done as u16);
    }

    pub(super) fn release_shared(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((OfHolder { owner }, [])) = OfHolder::decode(payload) else {
            return self.refuse(response);
        };
        self.view.reservations().release_shared(Holder(owner.0));
        response.push(Status::Done as u16);
    }

    pub(super) fn waits_for(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let Some((OfHolder { owner }, [])) = OfHolder::decode(payload) else {
            return self.refuse(response);
        };
        let now_ns = self.clock.now_ns();
        let awaited = self.view.reservations().waits_for(Holder(owner.0), now_ns);
        push_bytes(Status::Done, &encode_awaited(&awaited), response);
    }
}

fn push_reserved(reserved: Reserved, response: &mut ResponseWriter<'_>) {
    match reserved {
        Reserved::Granted => response.push(Status::Done as u16),
        Reserved::Full => response.push(Status::Full as u16),
        Reserved::Behind(other, place) => {
            push_bytes(Status::Locked, &encode_place(other, place), response);
        }
    }
}

fn push_bytes(status: Status, bytes: &[u8], response: &mut ResponseWriter<'_>) {
    response.push_with(bytes.len(), |out| {
        out.copy_from_slice(bytes);
        (status as u16, bytes.len())
    });
}
