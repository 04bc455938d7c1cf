//! A coroutine's batch of requests, coalesced per destination, and the responses to it.
//!
//! ```text
//! lane of a destination:  request  | room for a packet header | message | message | ...
//!                         response | message | message | ...
//! ```
//! A worker allocates a batch per coroutine once; its buffers grow to what the workload needs.
//!
//! *Source*: FaSST section 4.2.

use crate::buffer::Buffer;
use crate::fragments::{Assembly, BATCH_BYTES_MAX, MESSAGE_BYTES_MAX};
use crate::message::{Message, Messages, append, message_bytes};
use crate::packet::HEADER_BYTES;

/// Requests for one destination exceed the largest message, or their responses would.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{bytes} bytes for one node exceed the largest message of {max} bytes; use fewer keys at once"
)]
pub struct TooLarge {
    /// Bytes of the message.
    pub bytes: usize,
    /// Largest possible message.
    pub max: usize,
}

/// Requests to and responses from one destination.
#[derive(Default)]
pub(crate) struct Lane {
    /// Room for the packet header, then the requests.
    pub(crate) request: Buffer,
    pub(crate) requests: u16,
    /// Upper bound on the bytes of the responses.
    response_bytes: usize,
    pub(crate) response: Buffer,
    pub(crate) answered: bool,
    /// Where the next response starts.
    cursor: usize,
    /// Packets of the request under way: what it takes of the destination's credits.
    pub(crate) packets: usize,
    /// The first fragment of the request that the destination has not got yet, as far as is known.
    pub(crate) next_fragment: u16,
    pub(crate) sent_at_ns: u64,
    /// How often the request was sent again.
    pub(crate) attempts: u32,
    /// The responses that are being put together, once there were some in fragments.
    pub(crate) assembly: Option<Box<Assembly>>,
}

/// Requests of one coroutine that are sent together; see the module's picture.
pub struct RequestBatch {
    lanes: Vec<Lane>,
    /// Destinations with requests.
    pub(crate) destinations: Vec<u16>,
    pub(crate) sequence: u64,
    pub(crate) unanswered: u16,
}

impl Lane {
    /// Whether it waits for as many responses.
    #[inline(always)]
    pub(crate) fn awaits(&self, responses: u16) -> bool {
        !self.answered && self.requests == responses && responses > 0
    }
}

impl RequestBatch {
    /// An empty batch for a cluster of `nodes` nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self {
            lanes: (0..nodes).map(|_| Lane::default()).collect(),
            destinations: Vec::with_capacity(nodes),
            sequence: 0,
            unanswered: 0,
        }
    }

    /// Forgets the requests and responses of the last batch.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert_eq!(self.unanswered, 0, "a batch is answered before the next one");
        for &destination in &self.destinations {
            let lane = &mut self.lanes[usize::from(destination)];
            lane.request.clear();
            lane.requests = 0;
            lane.response_bytes = 0;
            lane.response.clear();
            lane.cursor = 0;
            lane.answered = false;
        }
        self.destinations.clear();
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// Adds a request of `kind` to `destination`, whose response takes at most `response_bytes`.
    ///
    /// # Errors
    /// [`TooLarge`], with nothing added, if the destination's requests or responses exceed 1 MiB, or
    /// this request alone [`MESSAGE_BYTES_MAX`].
    #[inline(always)]
    pub fn push(
        &mut self,
        destination: u16,
        kind: u16,
        payload: &[u8],
        response_bytes: usize,
    ) -> Result<(), TooLarge> {
        let lane = &mut self.lanes[usize::from(destination)];
        let max = if lane.requests == 0 { MESSAGE_BYTES_MAX } else { BATCH_BYTES_MAX };
        let request_bytes = lane.request.len().saturating_sub(HEADER_BYTES);
        let request = request_bytes + message_bytes(payload.len());
        let response = lane.response_bytes + message_bytes(response_bytes);
        let bytes = request.max(response);
        if bytes > max || lane.requests == u16::MAX {
            return Err(TooLarge { bytes, max });
        }
        if lane.requests == 0 {
            self.destinations.push(destination);
            lane.request.claim(HEADER_BYTES);
        }
        append(&mut lane.request, payload.len(), |out| {
            out.copy_from_slice(payload);
            (kind, payload.len())
        });
        lane.requests += 1;
        lane.response_bytes = response;
        Ok(())
    }

    /// The next response of `destination`, in the order of the requests to it.
    ///
    /// # Panics
    /// If there are no more: the endpoint checked that every request is answered.
    #[inline]
    pub fn next_response(&mut self, destination: u16) -> Message<'_> {
        let lane = &mut self.lanes[usize::from(destination)];
        let message = Messages::new(&lane.response.as_slice()[lane.cursor..], 1)
            .next()
            .expect("the endpoint checked that there is a response to each request");
        lane.cursor += message_bytes(message.payload.len());
        message
    }

    /// The status of the first response that has not `status`, by destination and in the order of
    /// the requests to each; for responses without a payload.
    #[inline]
    #[must_use]
    pub fn first_other_than(&self, status: u16) -> Option<u16> {
        self.destinations.iter().find_map(|&destination| {
            let lane = &self.lanes[usize::from(destination)];
            Messages::new(lane.response.as_slice(), lane.requests)
                .map(|response| response.kind)
                .find(|&found| found != status)
        })
    }

    #[inline]
    pub(crate) fn lane(&mut self, destination: u16) -> &mut Lane {
        &mut self.lanes[usize::from(destination)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_takes_no_more_than_a_message() {
        let mut batch = RequestBatch::new(2);
        let too_much = vec![0; MESSAGE_BYTES_MAX];
        let refused = |bytes, max| Err(TooLarge { bytes, max });
        let alone = refused(MESSAGE_BYTES_MAX + 8, MESSAGE_BYTES_MAX);
        assert_eq!(batch.push(1, 7, &too_much, 0), alone);
        assert!(batch.is_empty());
        let max = BATCH_BYTES_MAX;
        assert_eq!(batch.push(1, 7, &[0; 8], max - 32), Ok(()));
        assert_eq!(batch.push(1, 7, &[0; 8], 24), refused(max + 8, max));
        assert_eq!(batch.push(1, 7, &[0; 8], 16), Ok(()));
        assert_eq!(batch.push(0, 7, &[0; 8], 24), Ok(()));
        assert_eq!(batch.destinations, [1, 0]);
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.push(1, 7, &too_much[8..], 0), Ok(()));
        assert_eq!(batch.push(1, 7, &[0; 8], 0), refused(MESSAGE_BYTES_MAX + 16, max));
    }
}
