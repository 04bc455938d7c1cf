//! Reassembly of messages in fragments at an endpoint, and requests for the next fragments.
//!
//! *Invariants*: a message is prepared only when it is complete. A receiver requests the next window once for each window.
//!
//! *Not here*: the layout of fragments, in `fragments.rs`.

use crate::buffer::Buffer;
use crate::endpoint::{Arrived, Endpoint, Handler, Incoming, MessageAt, NOT_SENT, prepare};
use crate::fragments::{Added, ends_window, queue_window};
use crate::packet::{Contents, ContentsWords, HEADER_BYTES, Kind, seal};
use crate::peer::Peer;
use crate::request_batch::Lane;
use crate::session::Admission;
use crate::statuses::Statuses;
use crate::transport::{PacketReceiver, PacketSender};

impl<S: PacketSender, R: PacketReceiver> Endpoint<S, R> {
    /// Takes a packet that holds no whole message.
    #[cold]
    pub(super) fn take_part<H: Handler>(
        &mut self,
        index: usize,
        (source, words): (u16, ContentsWords),
        handler: &H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
        now_ns: u64,
    ) {
        let contents = Contents::from(words);
        match contents.kind {
            Kind::Request => {
                self.reassemble_request(index, source, (words, contents), handler, incoming)
            }
            Kind::Response => self.reassemble_response(index, source, &contents, now_ns),
            Kind::ContinueRequest => self.continue_request(source, &contents, now_ns),
            Kind::ContinueResponse => self.continue_response(source, &contents),
        }
    }

    /// Adds a fragment of requests to its session's assembly; prepares them when they are complete.
    fn reassemble_request<H: Handler>(
        &mut self,
        index: usize,
        source: u16,
        (words, contents): (ContentsWords, Contents),
        handler: &H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
    ) {
        let Self {
            identity, sender, receiver, sessions, counters, scratch, arrived, peers, ..
        } = self;
        let session = &mut sessions[identity.session(source, contents.coroutine)];
        match session.known(contents.sequence) {
            Admission::Run => {}
            Admission::Resend => {
                // Once for all fragments that come again.
                if ends_window(&contents) {
                    counters.duplicates += 1;
                    session.queue_again(sender, scratch, source, contents.again);
                }
                return;
            }
            Admission::Drop => return counters.duplicates += 1,
        }
        let assembly = session.assembly.get_or_insert_default();
        let part = &receiver.packet(index)[HEADER_BYTES..];
        match assembly.add(&contents, part, sender.mtu() - HEADER_BYTES) {
            Added::Complete => {
                if prepare(handler, assembly.messages(), contents.messages, incoming) {
                    let at = MessageAt::Assembly;
                    arrived.push(Arrived { at, source, contents: words });
                } else {
                    counters.malformed += 1;
                    assembly.take();
                }
            }
            Added::Partial | Added::Known => {
                if let (true, Some(next)) =
                    (ends_window(&contents), assembly.first_missing(contents.sequence))
                {
                    let kind = Kind::ContinueRequest;
                    let peer = &peers[usize::from(source)];
                    queue_continue(sender, scratch, (peer, source), kind, next, contents);
                }
            }
            Added::Malformed => counters.malformed += 1,
        }
    }

    /// Adds a fragment of responses to their lane's assembly.
    fn reassemble_response(&mut self, index: usize, source: u16, contents: &Contents, now_ns: u64) {
        let Self { sender, receiver, batches, counters, ready, peers, scratch, .. } = self;
        let mut batch = batches[usize::from(contents.coroutine)].borrow_mut();
        let sequence = batch.sequence;
        let lane = batch.lane(source);
        if contents.sequence != sequence || !lane.awaits(contents.messages) {
            counters.late_responses += 1;
            return;
        }
        let assembly = lane.assembly.get_or_insert_default();
        let part = &receiver.packet(index)[HEADER_BYTES..];
        let added = assembly.add(contents, part, sender.mtu() - HEADER_BYTES);
        match added {
            Added::Complete => {
                let messages = assembly.messages();
                let statuses = Statuses::of(messages, lane.requests, lane.piggybacked_requests);
                if statuses.is_some() {
                    lane.response.claim(messages.len()).copy_from_slice(messages);
                }
                assembly.take();
                let Some(statuses) = statuses else {
                    counters.malformed += 1;
                    return;
                };
                lane.answered = true;
                let peer = &mut peers[usize::from(source)];
                if lane.seemed_lost {
                    peer.learn(contents.again);
                }
                if lane.sent_at_ns == NOT_SENT {
                    peer.find(contents.coroutine, lane.packets);
                }
                let is_held = peer.give_back(lane.packets);
                batch.statuses = batch.statuses.and(statuses);
                batch.unanswered -= 1;
                if batch.unanswered == 0 {
                    ready.push(contents.coroutine);
                }
                drop(batch);
                if is_held {
                    self.send_held(source, now_ns);
                }
            }
            Added::Partial | Added::Known => {
                if let (true, Some(next)) =
                    (ends_window(contents), assembly.first_missing(sequence))
                {
                    let peer = &mut peers[usize::from(source)];
                    if added == Added::Partial {
                        if lane.seemed_lost {
                            peer.learn(contents.again);
                        }
                        if lane.sent_at_ns == NOT_SENT {
                            peer.find(contents.coroutine, lane.packets);
                        }
                        (lane.sent_at_ns, lane.attempts, lane.seemed_lost) = (now_ns, 0, false);
                        lane.number = peer.number(lane.packets);
                    }
                    let kind = Kind::ContinueResponse;
                    queue_continue(sender, scratch, (peer, source), kind, next, *contents);
                }
            }
            Added::Malformed => counters.malformed += 1,
        }
    }

    /// A node has all fragments of the requests before this one: sends the next window.
    fn continue_request(&mut self, source: u16, contents: &Contents, now_ns: u64) {
        let Self { sender, batches, counters, peers, scratch, .. } = self;
        let mut batch = batches[usize::from(contents.coroutine)].borrow_mut();
        let sequence = batch.sequence;
        let lane = batch.lane(source);
        let is_awaited = contents.sequence == sequence && lane.awaits(lane.requests);
        if !is_awaited || contents.fragment <= lane.next_fragment {
            counters.late_responses += 1;
            return;
        }
        counters.continued += 1;
        lane.next_fragment = contents.fragment;
        let peer = &mut peers[usize::from(source)];
        if lane.sent_at_ns == NOT_SENT {
            peer.find(contents.coroutine, lane.packets);
        }
        (lane.sent_at_ns, lane.attempts, lane.seemed_lost) = (now_ns, 0, false);
        lane.number = peer.number(lane.packets);
        queue_window(sender, scratch, source, lane.request.as_slice(), lane.next_fragment);
    }

    /// A node has all fragments of the responses before this one: sends the next window.
    fn continue_response(&mut self, source: u16, contents: &Contents) {
        let Self { identity, sender, sessions, counters, scratch, .. } = self;
        let session = &sessions[identity.session(source, contents.coroutine)];
        if session.known(contents.sequence) != Admission::Resend {
            counters.duplicates += 1;
            return;
        }
        counters.continued += 1;
        queue_window(sender, scratch, source, session.response.as_slice(), contents.fragment);
    }
}

/// Queues the repetition of an unanswered lane: a request for the rest of its response, if part of it has arrived, or else the
/// present window of its requests.
#[cold]
pub(super) fn queue_lane<S: PacketSender>(
    sender: &mut S,
    scratch: &mut Buffer,
    to: (&Peer, u16),
    contents: Contents,
    lane: &Lane,
) {
    let assembly = lane.assembly.as_ref();
    match assembly.and_then(|assembly| assembly.first_missing(contents.sequence)) {
        Some(next) if next > 0 => {
            queue_continue(sender, scratch, to, Kind::ContinueResponse, next, contents);
        }
        _ => queue_window(sender, scratch, to.1, lane.request.as_slice(), lane.next_fragment),
    }
}

/// Queues a packet that requests fragment `next` and those behind it.
fn queue_continue<S: PacketSender>(
    sender: &mut S,
    scratch: &mut Buffer,
    (peer, destination): (&Peer, u16),
    kind: Kind,
    next: u16,
    contents: Contents,
) {
    scratch.clear();
    let packet = scratch.claim(HEADER_BYTES);
    peer.route.write(packet);
    let (fragments, message_bytes) = (next.saturating_add(1), 0);
    Contents { kind, messages: 0, fragment: next, fragments, message_bytes, ..contents }
        .write(packet);
    if sender.wants_checksum() {
        seal(packet);
    }
    sender.queue(destination, packet);
}
