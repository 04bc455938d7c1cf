//! Sending requests, for the first time and again.
//!
//! *Invariant*: a request is sent again until it is answered.
//!
//! *Not here*: which requests are lost, in `loss_detection.rs` and `round_trip.rs`; which wait for credits, in `peer.rs`.

use crate::buffer::Buffer;
use crate::endpoint::reassembly::queue_lane;
use crate::endpoint::{Endpoint, NOT_SENT};
use crate::fragments::queue_message;
use crate::packet::{ContentsWords, HEADER_BYTES, seal};
use crate::peer::{Cause, Peer};
use crate::request_batch::Lane;
use crate::transport::{PacketReceiver, PacketSender};

impl<S: PacketSender, R: PacketReceiver> Endpoint<S, R> {
    /// Sends every request again that is lost, as later ones were answered, or that has been unanswered for too long. Whether it was
    /// time to look.
    #[inline]
    pub fn retransmit(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_due_ns;
        if is_due {
            self.retransmit_due(now_ns);
        }
        is_due
    }

    #[cold]
    fn retransmit_due(&mut self, now_ns: u64) {
        let Self { identity, sender, batches, counters, peers, scratch, .. } = self;
        let mut next_due_ns = u64::MAX;
        for (coroutine, batch) in (0..).zip(batches) {
            let mut batch = batch.borrow_mut();
            if batch.unanswered == 0 {
                continue;
            }
            let sequence = batch.sequence;
            for index in 0..batch.destinations().len() {
                let destination = batch.destinations()[index];
                let lane = batch.lane(destination);
                let is_under_way = !lane.answered && lane.sent_at_ns != NOT_SENT;
                if destination == identity.node || !is_under_way {
                    continue;
                }
                let peer = &mut peers[usize::from(destination)];
                let (mut due_ns, cause) = peer.due(lane);
                if due_ns <= now_ns {
                    lane.attempts += 1;
                    lane.seemed_lost |= cause != Cause::Probe;
                    if !peer.lose(coroutine, lane.packets, (cause, now_ns)) {
                        lane.sent_at_ns = NOT_SENT;
                        continue;
                    }
                    let worker = identity.worker;
                    let packet = Request { worker, coroutine, sequence, destination };
                    due_ns = packet.send_again(sender, scratch, peer, lane, now_ns);
                    counters.retransmitted += 1;
                }
                next_due_ns = next_due_ns.min(due_ns);
            }
        }
        self.next_due_ns = next_due_ns;
        self.sender.ring_doorbell();
    }
}

/// A message of requests to one node.
pub(super) struct Request {
    pub(super) worker: u16,
    pub(super) coroutine: u16,
    pub(super) sequence: u64,
    pub(super) destination: u16,
}

impl Request {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "a message is shorter than 4 GiB")]
    fn contents(&self, lane: &Lane) -> ContentsWords {
        let batch = (self.worker, self.coroutine, self.sequence);
        let message_bytes = (lane.request.len() - HEADER_BYTES) as u32;
        ContentsWords::request(batch, lane.requests, message_bytes)
    }

    /// Queues the requests of `lane`; when they are to be sent again.
    #[inline(always)]
    pub(super) fn send<S: PacketSender>(
        &self,
        sender: &mut S,
        scratch: &mut Buffer,
        peer: &mut Peer,
        lane: &mut Lane,
        now_ns: u64,
    ) -> u64 {
        (lane.sent_at_ns, lane.number) = (now_ns, peer.number(lane.packets));
        (lane.attempts, lane.seemed_lost) = (0, false);
        lane.next_fragment = 0;
        let contents = self.contents(lane);
        let packet = lane.request.as_mut_slice();
        peer.route.write(packet);
        queue_message(sender, scratch, self.destination, packet, contents);
        peer.due(lane).0
    }

    /// Queues what the destination has not answered of `lane`; when that is to be sent again.
    #[cold]
    pub(super) fn send_again<S: PacketSender>(
        &self,
        sender: &mut S,
        scratch: &mut Buffer,
        peer: &mut Peer,
        lane: &mut Lane,
        now_ns: u64,
    ) -> u64 {
        (lane.sent_at_ns, lane.number) = (now_ns, peer.number(lane.packets));
        let contents = self.contents(lane).again();
        let packet = lane.request.as_mut_slice();
        contents.write(packet);
        if sender.wants_checksum() {
            seal(packet);
        }
        queue_lane(sender, scratch, (peer, self.destination), contents.into(), lane);
        peer.due(lane).0
    }
}
