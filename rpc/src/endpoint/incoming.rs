//! Requests between the passes over them: parsed and prepared, and not run yet.
//!
//! *Not here*: the passes, in `endpoint.rs`; what preparing a request means, in the user's [`Handler`].

use crate::endpoint::Handler;
use crate::message::{MESSAGE_HEADER_BYTES, Messages, message_bytes};

/// A request of the present batch between the passes.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<P> {
    pub(super) prepared: P,
    /// Where its payload lies among the messages of its packet.
    payload_at: u32,
    payload_bytes: u32,
}

impl<P> Incoming<P> {
    #[inline(always)]
    pub(super) fn payload<'m>(&self, messages: &'m [u8]) -> &'m [u8] {
        &messages[self.payload_at as usize..][..self.payload_bytes as usize]
    }
}

/// Prepares requests to the own node. It is no part of its caller, which mostly prepares requests of others.
#[inline(never)]
pub(super) fn prepare_local<H: Handler>(
    handler: &H,
    messages: &[u8],
    count: u16,
    incoming: &mut Vec<Incoming<H::Prepared>>,
) {
    let prepared = prepare(handler, messages, count, incoming);
    debug_assert!(prepared, "a batch is well-formed");
}

/// Prepares `count` requests; `false`, with none of them left in `incoming`, if they are malformed.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a message is shorter than 4 GiB")]
pub(super) fn prepare<H: Handler>(
    handler: &H,
    messages: &[u8],
    count: u16,
    incoming: &mut Vec<Incoming<H::Prepared>>,
) -> bool {
    let before = incoming.len();
    let mut requests = Messages::new(messages, count);
    let mut payload_at = MESSAGE_HEADER_BYTES as u32;
    for request in requests.by_ref() {
        let prepared = handler.prepare(request.kind, request.payload);
        let payload_bytes = request.payload.len() as u32;
        incoming.push(Incoming { prepared, payload_at, payload_bytes });
        payload_at += message_bytes(request.payload.len()) as u32;
    }
    let well_formed = incoming.len() - before == usize::from(count) && requests.is_at_end();
    if !well_formed {
        incoming.truncate(before);
    }
    well_formed
}
