//! A coroutine's batch of requests, coalesced per destination, and the responses to it.
//!
//! ```text
//! lane of a destination:  request  | room for a packet header | message | message | ...
//!                         response | message | message | ...
//! ```
//! A worker allocates a batch per coroutine once; its buffers grow to what the workload needs.
//!
//! *Piggybacked* requests do not leave by themselves. They wait for the coroutine's next requests, and leave before them in the same
//! messages. Their answers have no payload, and the coroutine only checks their statuses.
//!
//! *Source*: FaSST section 4.2.

use crate::buffer::Buffer;
use crate::fragments::{Assembly, BATCH_BYTES_MAX, MESSAGE_BYTES_MAX};
use crate::message::{Message, Messages, append, message_bytes};
use crate::packet::HEADER_BYTES;
use crate::statuses::Statuses;

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
    /// How many of the requests are piggybacked, which are the first ones, and their bytes with the room for the packet header.
    pub(crate) piggybacked_requests: u16,
    piggybacked_bytes: usize,
    /// Upper bound on the bytes of the responses.
    response_bytes: usize,
    pub(crate) response: Buffer,
    pub(crate) answered: bool,
    /// Where the next response starts: behind those to what was piggybacked, which have no payload.
    cursor: usize,
    /// Packets of the request under way: what it takes of the destination's credits.
    pub(crate) packets: usize,
    /// The first fragment of the request that the destination has not got yet, as far as is known.
    pub(crate) next_fragment: u16,
    pub(crate) sent_at_ns: u64,
    /// Number of the last of its packets among all to the destination.
    pub(crate) number: u64,
    /// How often the request was sent again.
    pub(crate) attempts: u32,
    /// Whether it was sent again because it seemed lost, at least once.
    pub(crate) seemed_lost: bool,
    /// The responses that are being put together, once there were some in fragments.
    pub(crate) assembly: Option<Box<Assembly>>,
}

/// Requests of one coroutine that are sent together; see the module's picture.
pub struct RequestBatch {
    lanes: Vec<Lane>,
    /// Destinations with requests: the first `used`. There is room for one more than there are nodes, so that the next one is
    /// written without a check whether it is new.
    destinations: Box<[u16]>,
    used: usize,
    pub(crate) sequence: u64,
    pub(crate) unanswered: u16,
    /// Of the responses that have arrived.
    pub(crate) statuses: Statuses,
    /// Whether there are piggybacked requests that have not been sent.
    has_piggybacked: bool,
    /// Whether what was sent last held piggybacked requests.
    sent_piggybacked: bool,
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
            destinations: vec![0; nodes + 1].into(),
            used: 0,
            sequence: 0,
            unanswered: 0,
            statuses: Statuses::NONE,
            has_piggybacked: false,
            sent_piggybacked: false,
        }
    }

    /// Forgets the requests and responses of the last batch, but for piggybacked requests that have not been sent.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert_eq!(self.unanswered, 0, "a batch is answered before the next one");
        if self.has_piggybacked {
            self.clear_but_piggybacked();
        } else {
            self.clear_all();
        }
    }

    /// Forgets all requests, those included that are not answered or are piggybacked.
    pub(crate) fn give_up(&mut self) {
        (self.unanswered, self.has_piggybacked, self.sent_piggybacked) = (0, false, false);
        self.statuses = Statuses::NONE;
        self.clear_all();
    }

    #[inline(always)]
    fn clear_all(&mut self) {
        for &destination in &self.destinations[..self.used] {
            let lane = &mut self.lanes[usize::from(destination)];
            lane.request.clear();
            lane.requests = 0;
            (lane.piggybacked_requests, lane.piggybacked_bytes) = (0, 0);
            lane.response_bytes = 0;
            lane.response.clear();
            lane.cursor = 0;
            lane.answered = false;
        }
        self.used = 0;
    }

    fn clear_but_piggybacked(&mut self) {
        let mut kept = 0;
        for index in 0..self.used {
            let destination = self.destinations[index];
            let lane = self.lane(destination);
            lane.request.truncate(lane.piggybacked_bytes);
            lane.requests = lane.piggybacked_requests;
            lane.response_bytes = usize::from(lane.piggybacked_requests) * message_bytes(0);
            if lane.requests > 0 {
                self.destinations[kept] = destination;
                kept += 1;
            }
        }
        self.used = kept;
    }

    /// Turns the requests that were added into piggybacked ones: they are sent with the next requests, before them. A response with
    /// a payload is malformed.
    #[inline]
    pub fn piggyback(&mut self) {
        for &destination in &self.destinations[..self.used] {
            let lane = &mut self.lanes[usize::from(destination)];
            (lane.piggybacked_requests, lane.piggybacked_bytes) =
                (lane.requests, lane.request.len());
            lane.cursor = usize::from(lane.requests) * message_bytes(0);
            debug_assert_eq!(lane.response_bytes, lane.cursor, "no response has a payload");
        }
        self.has_piggybacked = !self.is_empty();
    }

    /// Whether there are piggybacked requests that have not been sent.
    #[inline(always)]
    #[must_use]
    pub fn has_piggybacked(&self) -> bool {
        self.has_piggybacked
    }

    /// Gives the batch its number, on its way out.
    #[inline(always)]
    pub(crate) fn send(&mut self) {
        assert!(!self.is_empty(), "a coroutine suspends on a batch with requests");
        self.sequence += 1;
        self.unanswered = u16::try_from(self.used).expect("nodes are fewer than 2^16");
        self.statuses = Statuses::NONE;
        (self.sent_piggybacked, self.has_piggybacked) = (self.has_piggybacked, false);
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Destinations with requests.
    #[inline(always)]
    pub(crate) fn destinations(&self) -> &[u16] {
        &self.destinations[..self.used]
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
        // No branch: the processor could not predict which destinations are new.
        self.destinations[self.used] = destination;
        self.used += usize::from(lane.requests == 0);
        lane.request.begin_at(HEADER_BYTES);
        append(&mut lane.request, payload.len(), |out| {
            out.copy_from_slice(payload);
            (kind, payload.len())
        });
        lane.requests += 1;
        lane.response_bytes = response;
        Ok(())
    }

    /// The next response of `destination`, in the order of the requests to it, but for those that were piggybacked.
    ///
    /// # Panics
    /// If there are no more: the endpoint checked that every request is answered.
    #[inline]
    pub fn next_response(&mut self, destination: u16) -> Message<'_> {
        let lane = &mut self.lanes[usize::from(destination)];
        let message = Messages::new(&lane.response.as_slice()[lane.cursor..], 1).next();
        let message = message.expect("the endpoint checked that each request has a response");
        lane.cursor += message_bytes(message.payload.len());
        message
    }

    /// The status of the first response that has not `status`, by destination and in the order of
    /// the requests to each; for responses without a payload.
    #[inline]
    #[must_use]
    pub fn first_other_than(&self, status: u16) -> Option<u16> {
        if self.statuses.are_all(status) {
            return None;
        }
        self.statuses().find(|&found| found != status)
    }

    /// The statuses of the responses, but for those to what was piggybacked.
    pub fn statuses(&self) -> impl Iterator<Item = u16> {
        self.destinations().iter().flat_map(|&destination| {
            let lane = &self.lanes[usize::from(destination)];
            Messages::new(lane.response.as_slice(), lane.requests)
                .skip(usize::from(lane.piggybacked_requests))
                .map(|response| response.kind)
        })
    }

    /// The first status other than this one among the responses to what was piggybacked.
    #[inline]
    #[must_use]
    pub fn first_piggybacked_other_than(&self, status: u16) -> Option<u16> {
        if self.sent_piggybacked { self.piggybacked_other_than(status) } else { None }
    }

    fn piggybacked_other_than(&self, status: u16) -> Option<u16> {
        self.destinations().iter().find_map(|&destination| {
            let lane = &self.lanes[usize::from(destination)];
            Messages::new(lane.response.as_slice(), lane.piggybacked_requests)
                .map(|response| response.kind)
                .find(|&found| found != status)
        })
    }

    /// Answers what was sent to a destination, and is not answered, with a status. Whether the batch is answered by that.
    #[cold]
    pub(crate) fn answer_all(&mut self, destination: u16, status: u16) -> bool {
        let is_sent = self.unanswered > 0;
        let lane = &mut self.lanes[usize::from(destination)];
        if !is_sent || lane.answered || lane.requests == 0 {
            return false;
        }
        for _ in 0..lane.requests {
            append(&mut lane.response, 0, |_| (status, 0));
        }
        lane.answered = true;
        self.statuses = self.statuses.and(Statuses::UNKNOWN);
        self.unanswered -= 1;
        self.unanswered == 0
    }

    /// The requests that were sent to a destination and are not answered.
    pub fn unanswered(&self, destination: u16) -> impl Iterator<Item = Message<'_>> {
        let lane = &self.lanes[usize::from(destination)];
        let is_answered = self.unanswered == 0 || lane.answered;
        let requests = if is_answered { 0 } else { lane.requests };
        Messages::new(lane.request.as_slice().get(HEADER_BYTES..).unwrap_or_default(), requests)
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
        assert_eq!(batch.destinations(), [1, 0]);
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(batch.push(1, 7, &too_much[8..], 0), Ok(()));
        assert_eq!(batch.push(1, 7, &[0; 8], 0), refused(MESSAGE_BYTES_MAX + 16, max));
    }

    #[test]
    fn piggybacked_requests_leave_with_the_next_requests() {
        let mut batch = RequestBatch::new(3);
        let requests = |batch: &mut RequestBatch, destination| {
            let lane = batch.lane(destination);
            let messages = &lane.request.as_slice()[HEADER_BYTES..];
            let kinds = Messages::new(messages, lane.requests).map(|message| message.kind);
            kinds.collect::<Vec<_>>()
        };
        for (destination, kind) in [(1, 10), (1, 11), (2, 12)] {
            batch.push(destination, kind, &[7; 20], 0).unwrap();
        }
        batch.piggyback();
        // A batch that is cleared before it was sent keeps them.
        for given_up in 0..2 {
            batch.clear();
            assert!(batch.has_piggybacked() && batch.destinations() == [1, 2], "{given_up}");
            batch.push(0, 20, &[], 8).unwrap();
            batch.push(1, 21, &[7; 20], 8).unwrap();
        }
        assert_eq!(requests(&mut batch, 0), [20]);
        assert_eq!(requests(&mut batch, 1), [10, 11, 21]);
        assert_eq!(requests(&mut batch, 2), [12]);
        batch.send();
        assert!(!batch.has_piggybacked());
        for (destination, statuses) in [(0, &[1][..]), (1, &[9, 9, 1]), (2, &[9])] {
            let lane = batch.lane(destination);
            for &status in statuses {
                append(&mut lane.response, 0, |_| (status, 0));
            }
        }
        batch.unanswered = 0;
        assert_eq!(
            batch.first_other_than(1),
            None,
            "piggybacked requests have a query of their own"
        );
        assert_eq!(batch.first_piggybacked_other_than(9), None);
        assert_eq!(batch.first_piggybacked_other_than(1), Some(9));
        assert_eq!([0, 1].map(|destination| batch.next_response(destination).kind), [1, 1]);
        batch.clear();
        assert!(batch.is_empty());
        batch.push(1, 30, &[], 0).unwrap();
        batch.send();
        append(&mut batch.lane(1).response, 0, |_| (3, 0));
        assert_eq!(batch.first_piggybacked_other_than(9), None, "nothing was piggybacked");
        assert_eq!(batch.next_response(1).kind, 3);
    }
}
