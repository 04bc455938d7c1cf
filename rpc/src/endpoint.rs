//! A worker's endpoint: sends its coroutines' batches, runs requests of others, collects responses.
//!
//! ```text
//! accept():   poll ─ parse: take answers, prepare requests ─ first prefetch pass
//! run():      second prefetch pass ─ run handlers ─ queue responses
//! submit():   header per destination ─ queue          requests to the own node: a direct call
//! ```
//! Between `accept` and `run` a worker resumes its coroutines; meanwhile the lines of the first prefetch pass arrive.
//!
//! Requests to the worker's own node take no packet: the handler reads them in the batch and writes
//! the response there, in the same passes as those that arrived, so that their cache misses overlap.
//!
//! *Source*: FaSST sections 4.1 to 4.3; HERD section 4.1.1 for the two prefetch stages.
//!
//! *Invariants*: a request is retransmitted until it is answered, never abandoned (a LOCK that timed
//! out may have been granted); a request runs once per session and sequence number.
//!
//! *Not here*: what a request means, in the user's [`Handler`]; answers to packets of another epoch, which are dropped.

mod incoming;
mod reassembly;
mod requests;

use std::cell::RefCell;
use std::rc::Rc;

use crate::buffer::Buffer;
use crate::counters::Counters;
use crate::endpoint::incoming::{prepare, prepare_local};
use crate::endpoint::requests::Request;
use crate::fragments::{packets_of, queue_message};
use crate::identity::Identity;
use crate::loss_detection::LossDetection;
use crate::message::{Messages, ResponseWriter};
use crate::packet::{ContentsWords, HEADER_BYTES, Kind, RouteWords, is_intact};
use crate::peer::Peer;
use crate::request_batch::RequestBatch;
use crate::round_trip::RoundTrip;
use crate::session::{Admission, Session};
use crate::statuses::Statuses;
use crate::transport::{PacketReceiver, PacketSender, Refused};
use crate::window::Window;
use gannet_rules::rule;

pub use crate::endpoint::incoming::Incoming;

/// Packets of a batch that there is room for before the list grows.
const PACKETS_EXPECTED: usize = 64;
/// The send time of a request that waits for credits, for the first time or after it seemed lost.
pub(crate) const NOT_SENT: u64 = u64::MAX;

/// Runs requests: the user's side of the endpoint.
pub trait Handler {
    /// A request that was parsed, and where it leads.
    type Prepared: Copy;

    /// Parses a request.
    fn prepare(&self, kind: u16, payload: &[u8]) -> Self::Prepared;

    /// Prefetches the memory that the request will touch first.
    fn prefetch(&self, prepared: &Self::Prepared);

    /// Prefetches what it will touch next, once that has arrived.
    fn prefetch_next(&self, prepared: &Self::Prepared);

    /// Runs a request and appends exactly one message to `response`.
    fn handle(
        &mut self,
        prepared: Self::Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    );
}

/// A packet that passed all checks.
struct Checked {
    source: u16,
    contents: ContentsWords,
    /// Whether it is a message, and no fragment.
    is_whole: bool,
}

/// A message of requests that passed all checks and whose requests are prepared.
struct Arrived {
    at: MessageAt,
    source: u16,
    contents: ContentsWords,
}

/// Where the requests of a message lie.
#[derive(Clone, Copy)]
enum MessageAt {
    /// In this packet of the batch.
    Packet(usize),
    /// In its session's assembly.
    Assembly,
}

/// One worker's side of the RPC layer; see the module's text.
pub struct Endpoint<S, R> {
    identity: Identity,
    sender: S,
    receiver: R,
    /// By coroutine.
    batches: Vec<Rc<RefCell<RequestBatch>>>,
    /// By node, then coroutine.
    sessions: Vec<Session>,
    arrived: Vec<Arrived>,
    /// Coroutines whose batch has requests to the own node.
    local: Vec<u16>,
    local_running: Vec<u16>,
    ready: Vec<u16>,
    counters: Counters,
    /// No request is due to be sent again before this.
    next_due_ns: u64,
    /// Where fragments are built.
    scratch: Buffer,
    /// By node, the own one included.
    peers: Vec<Peer>,
}

impl<S: PacketSender, R: PacketReceiver> Endpoint<S, R> {
    /// An endpoint over one worker's halves of a transport.
    ///
    /// # Panics
    /// If the identity names more than 65,535 nodes.
    #[must_use]
    pub fn new(identity: Identity, sender: S, receiver: R) -> Self {
        let nodes = identity.incarnations.len();
        let coroutines = usize::from(identity.coroutines);
        let batch = || Rc::new(RefCell::new(RequestBatch::new(nodes)));
        Self {
            batches: (0..coroutines).map(|_| batch()).collect(),
            sessions: (0..nodes * coroutines).map(|_| Session::default()).collect(),
            peers: peers_of(&identity, &sender),
            arrived: Vec::with_capacity(PACKETS_EXPECTED),
            local: Vec::with_capacity(coroutines),
            local_running: Vec::with_capacity(coroutines),
            ready: Vec::with_capacity(coroutines),
            counters: Counters::default(),
            next_due_ns: u64::MAX,
            scratch: Buffer::default(),
            identity,
            sender,
            receiver,
        }
    }

    /// Goes by another epoch: packets of the epoch before are dropped from now on, and its requests are given up. No coroutine may
    /// wait for their answers. Sessions go on with their sequence numbers, but for those of nodes that come back.
    ///
    /// # Panics
    /// If requests were accepted and have not run, or if there are other nodes or coroutines than before.
    pub fn adopt(&mut self, identity: Identity) {
        self.batches.iter().for_each(|batch| batch.borrow_mut().give_up());
        self.local.clear();
        self.ready.clear();
        self.next_due_ns = u64::MAX;
        self.peers = peers_of(&identity, &self.sender);
        self.admit_incarnations(identity);
    }

    /// Goes by other incarnations of nodes in the same epoch: their sessions begin anew. Nothing is under way to such a node.
    ///
    /// # Panics
    /// As [`Self::adopt`], and if the epoch is another one.
    pub fn admit(&mut self, identity: Identity) {
        assert_eq!(identity.epoch, self.identity.epoch, "another epoch is adopted");
        let peers = peers_of(&identity, &self.sender).into_iter().enumerate();
        let is_new = |node: usize| identity.incarnations[node] != self.identity.incarnations[node];
        for (node, peer) in peers.filter(|(node, _)| is_new(*node)) {
            self.peers[node] = peer;
        }
        self.admit_incarnations(identity);
    }

    fn admit_incarnations(&mut self, identity: Identity) {
        let has_run = self.arrived.is_empty() && self.local_running.is_empty();
        assert!(has_run, "identities change between two steps");
        let size = |of: &Identity| (of.incarnations.len(), of.coroutines);
        assert_eq!(
            size(&identity),
            size(&self.identity),
            "nodes and coroutines have their numbers"
        );
        let coroutines = usize::from(identity.coroutines);
        let both = identity.incarnations.iter().zip(&self.identity.incarnations);
        for (node, _) in both.enumerate().filter(|(_, (new, known))| new != known) {
            // A process that comes back counts its messages from the beginning.
            self.sessions[node * coroutines..][..coroutines].fill_with(Session::default);
        }
        self.identity = identity;
    }

    /// A node is gone that is to answer nothing any more: each request to it counts as answered with `status`, without a payload.
    #[cold]
    pub fn give_up_on(&mut self, node: u16, status: u16) {
        // Nothing is under way to it, and nobody is held.
        if let Some(peer) = peers_of(&self.identity, &self.sender).into_iter().nth(node.into()) {
            self.peers[usize::from(node)] = peer;
        }
        for (coroutine, batch) in (0..).zip(&self.batches) {
            if batch.borrow_mut().answer_all(node, status) {
                self.ready.push(coroutine);
            }
        }
    }

    /// The nodes of which another incarnation is known than this identity has.
    #[must_use]
    pub fn others_than(&self, identity: &Identity) -> Vec<u16> {
        let both = identity.incarnations.iter().zip(&self.identity.incarnations);
        let differ = (0..).zip(both).filter(|(_, (new, known))| new != known);
        differ.map(|(node, _)| node).collect()
    }

    /// The sending half.
    pub fn sender_mut(&mut self) -> &mut S {
        &mut self.sender
    }

    /// Drops the packets that have come: nobody works in the present epoch any more, and what belongs to the next one is sent again.
    pub fn discard(&mut self) {
        if self.receiver.poll() > 0 {
            self.receiver.release();
        }
    }

    /// The batch that `coroutine` fills and this endpoint sends.
    #[must_use]
    pub fn batch(&self, coroutine: u16) -> Rc<RefCell<RequestBatch>> {
        Rc::clone(&self.batches[usize::from(coroutine)])
    }

    /// Nodes that have answered nothing for so long, although they were asked again and again.
    pub fn silent_nodes(&self, now_ns: u64, for_ns: u64) -> impl Iterator<Item = u16> {
        let peers = (0..).zip(&self.peers);
        peers.filter(move |(_, peer)| peer.is_silent(now_ns, for_ns)).map(|(node, _)| node)
    }

    /// Counts the silence of all nodes from now on: this one could not hear them.
    pub fn forgive(&mut self) {
        self.peers.iter_mut().for_each(Peer::forgive);
    }

    /// What the endpoint has seen.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let Refused { foreign, unauthentic } = self.receiver.refused();
        Counters { foreign, unauthentic, ..self.counters }
    }

    /// The receiving half.
    #[must_use]
    pub fn receiver(&self) -> &R {
        &self.receiver
    }

    /// Packets that the transport found no room for.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.sender.dropped()
    }

    /// Takes a coroutine whose batch is completely answered.
    #[inline]
    pub fn take_ready(&mut self) -> Option<u16> {
        self.ready.pop()
    }

    /// The coroutine that [`Self::take_ready`] takes next.
    #[inline]
    #[must_use]
    pub fn next_ready(&self) -> Option<u16> {
        self.ready.last().copied()
    }

    /// Queues `coroutine`'s batch. It leaves with the next doorbell. Messages to a node without credits are held, and follow when
    /// answers arrive.
    ///
    /// # Panics
    /// If the batch is empty: the coroutine would never be resumed.
    #[inline]
    pub fn submit(&mut self, coroutine: u16, now_ns: u64) {
        let Self { identity, sender, batches, local, peers, scratch, next_due_ns, .. } = self;
        let mut batch = batches[usize::from(coroutine)].borrow_mut();
        let batch = &mut *batch;
        batch.send();
        for index in 0..batch.destinations().len() {
            let destination = batch.destinations()[index];
            if destination == identity.node {
                local.push(coroutine);
                continue;
            }
            let sequence = batch.sequence;
            let lane = batch.lane(destination);
            lane.packets = packets_of(lane.request.len(), sender.mtu());
            let peer = &mut peers[usize::from(destination)];
            if peer.admit(coroutine, lane.packets) {
                let packet = Request { worker: identity.worker, coroutine, sequence, destination };
                let due_ns = packet.send(sender, scratch, peer, lane, now_ns);
                *next_due_ns = due_ns.min(*next_due_ns);
            } else {
                (lane.sent_at_ns, lane.attempts) = (NOT_SENT, 0);
                lane.seemed_lost = false;
            }
        }
    }

    /// Sends the messages that were held for want of credits, as far as there are credits now.
    #[cold]
    fn send_held(&mut self, destination: u16, now_ns: u64) {
        let Self { identity, sender, batches, counters, peers, scratch, next_due_ns, .. } = self;
        let peer = &mut peers[usize::from(destination)];
        let packets =
            |coroutine: u16| batches[usize::from(coroutine)].borrow_mut().lane(destination).packets;
        while let Some(coroutine) = peer.release(packets) {
            let mut batch = batches[usize::from(coroutine)].borrow_mut();
            let sequence = batch.sequence;
            let lane = batch.lane(destination);
            let packet = Request { worker: identity.worker, coroutine, sequence, destination };
            let due_ns = if lane.attempts == 0 {
                packet.send(sender, scratch, peer, lane, now_ns)
            } else {
                counters.retransmitted += 1;
                packet.send_again(sender, scratch, peer, lane, now_ns)
            };
            *next_due_ns = due_ns.min(*next_due_ns);
        }
    }

    /// Sends the packets that were queued.
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.sender.ring_doorbell();
    }

    /// Receives one batch of packets, takes its answers, and runs its requests and those to the own node, in one go:
    /// [`Self::accept`], [`Self::run`] and a doorbell. Returns whether there was anything to do.
    pub fn receive<H: Handler>(
        &mut self,
        handler: &mut H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
        now_ns: u64,
    ) -> bool {
        let accepted = self.accept(handler, incoming, now_ns);
        if accepted {
            self.run(handler, incoming);
            self.ring_doorbell();
        }
        accepted
    }

    /// Receives one batch of packets, takes its answers, and prefetches what its requests, and those to the own node, touch first.
    ///
    /// Returns whether there was anything to do; then [`Self::run`] follows before anything is received again. `incoming` is
    /// scratch space, kept by the caller so that it is allocated once.
    pub fn accept<H: Handler>(
        &mut self,
        handler: &H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
        now_ns: u64,
    ) -> bool {
        debug_assert!(
            self.local_running.is_empty() && self.arrived.is_empty(),
            "run() comes first"
        );
        let packets = self.receiver.poll();
        std::mem::swap(&mut self.local, &mut self.local_running);
        if packets == 0 && self.local_running.is_empty() {
            return false;
        }
        self.counters.packets += packets as u64;
        incoming.clear();
        for &coroutine in &self.local_running {
            let mut batch = self.batches[usize::from(coroutine)].borrow_mut();
            let lane = batch.lane(self.identity.node);
            let messages = &lane.request.as_slice()[HEADER_BYTES..];
            prepare_local(handler, messages, lane.requests, incoming);
        }
        for index in 0..packets {
            let Some(Checked { source, contents, is_whole }) = self.check(index) else { continue };
            if is_whole && contents.is(Kind::Response) {
                self.take_response(index, source, contents, now_ns);
            } else if is_whole && contents.is(Kind::Request) {
                let messages = &self.receiver.packet(index)[HEADER_BYTES..];
                if prepare(handler, messages, contents.messages(), incoming) {
                    self.arrived.push(Arrived { at: MessageAt::Packet(index), source, contents });
                } else {
                    self.counters.malformed += 1;
                }
            } else {
                self.take_part(index, (source, contents), handler, incoming, now_ns);
            }
        }
        // Each may miss the TLB. Prefetches that follow each other closely wait for their pages at the same time.
        for request in incoming.iter() {
            handler.prefetch(&request.prepared);
        }
        true
    }

    /// Runs the requests that were accepted; the responses leave with the next doorbell.
    pub fn run<H: Handler>(&mut self, handler: &mut H, incoming: &[Incoming<H::Prepared>]) {
        for request in incoming {
            handler.prefetch_next(&request.prepared);
        }
        let mut incoming = incoming.iter();
        self.run_local(handler, &mut incoming);
        self.run_arrived(handler, &mut incoming);
        debug_assert!(incoming.next().is_none(), "each request is part of a message");
        self.receiver.release();
    }

    fn run_local<'i, H: Handler>(
        &mut self,
        handler: &mut H,
        incoming: &mut impl Iterator<Item = &'i Incoming<H::Prepared>>,
    ) where
        H::Prepared: 'i,
    {
        for coroutine in self.local_running.drain(..) {
            let mut batch = self.batches[usize::from(coroutine)].borrow_mut();
            let lane = batch.lane(self.identity.node);
            let messages = &lane.request.as_slice()[HEADER_BYTES..];
            let mut response = ResponseWriter::new(&mut lane.response);
            for request in incoming.take(usize::from(lane.requests)) {
                handler.handle(request.prepared, request.payload(messages), &mut response);
            }
            self.counters.requests += u64::from(lane.requests);
            lane.answered = true;
            // Unknown: few rounds whose answers are statuses alone have requests to the own node.
            batch.statuses = Statuses::UNKNOWN;
            batch.unanswered -= 1;
            if batch.unanswered == 0 {
                self.ready.push(coroutine);
            }
        }
    }

    fn run_arrived<'i, H: Handler>(
        &mut self,
        handler: &mut H,
        incoming: &mut impl Iterator<Item = &'i Incoming<H::Prepared>>,
    ) where
        H::Prepared: 'i,
    {
        let mut arrived = std::mem::take(&mut self.arrived);
        for packet in arrived.drain(..) {
            let requests = incoming.take(usize::from(packet.contents.messages()));
            self.run_requests(handler, &packet, requests);
        }
        self.arrived = arrived;
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a message is shorter than 4 GiB")]
    fn run_requests<'i, H: Handler>(
        &mut self,
        handler: &mut H,
        arrived: &Arrived,
        requests: impl Iterator<Item = &'i Incoming<H::Prepared>>,
    ) where
        H::Prepared: 'i,
    {
        let Self { identity, sender, receiver, sessions, counters, peers, scratch, .. } = self;
        let Arrived { at, source, contents } = *arrived;
        let session = &mut sessions[identity.session(source, contents.coroutine())];
        match session.admit(contents.sequence) {
            Admission::Run => {
                let Session { response: packet, assembly, .. } = session;
                packet.claim(HEADER_BYTES);
                let mut response = ResponseWriter::new(packet);
                let messages = match (at, &assembly) {
                    (MessageAt::Assembly, Some(assembly)) => assembly.messages(),
                    (MessageAt::Assembly, None) => &[],
                    (MessageAt::Packet(index), _) => &receiver.packet(index)[HEADER_BYTES..],
                };
                for request in requests {
                    handler.handle(request.prepared, request.payload(messages), &mut response);
                }
                counters.requests += u64::from(contents.messages());
                let packet = packet.as_mut_slice();
                debug_assert!(
                    Messages::are_well_formed(&packet[HEADER_BYTES..], contents.messages()),
                    "each request has one answer"
                );
                let contents = contents.response((packet.len() - HEADER_BYTES) as u32);
                peers[usize::from(source)].route.write(packet);
                queue_message(sender, scratch, source, packet, contents);
            }
            Admission::Resend => {
                counters.duplicates += 1;
                requests.for_each(drop);
                session.queue_again(sender, scratch, source, contents.is_again());
            }
            Admission::Drop => {
                counters.duplicates += 1;
                requests.for_each(drop);
            }
        }
        if let (MessageAt::Assembly, Some(assembly)) = (at, &mut session.assembly) {
            assembly.take();
        }
    }

    #[inline(always)]
    fn take_response(&mut self, index: usize, source: u16, contents: ContentsWords, now_ns: u64) {
        let mut batch = self.batches[usize::from(contents.coroutine())].borrow_mut();
        let sequence = batch.sequence;
        let lane = batch.lane(source);
        if contents.sequence != sequence || !lane.awaits(contents.messages()) {
            self.counters.late_responses += 1;
            return;
        }
        let messages = &self.receiver.packet(index)[HEADER_BYTES..];
        let Some(statuses) = Statuses::of(messages, lane.requests, lane.piggybacked_requests)
        else {
            self.counters.malformed += 1;
            return;
        };
        lane.response.claim(messages.len()).copy_from_slice(messages);
        lane.answered = true;
        let peer = &mut self.peers[usize::from(source)];
        if lane.seemed_lost {
            peer.learn(contents.is_again());
        }
        if lane.sent_at_ns == NOT_SENT {
            peer.find(contents.coroutine(), lane.packets);
        } else if RoundTrip::times(sequence) && lane.attempts == 0 {
            peer.sample(now_ns.saturating_sub(lane.sent_at_ns));
        }
        let is_held = peer.give_back(lane.packets);
        // Of those that were sent several times it is not known which one was answered.
        if lane.sent_at_ns != NOT_SENT && lane.attempts == u32::from(contents.is_again()) {
            let has_gap = peer.answered(lane.number, now_ns.saturating_sub(lane.sent_at_ns));
            if has_gap {
                self.next_due_ns = now_ns;
            }
        }
        batch.statuses = batch.statuses.and(statuses);
        batch.unanswered -= 1;
        if batch.unanswered == 0 {
            self.ready.push(contents.coroutine());
        }
        drop(batch);
        if is_held {
            self.send_held(source, now_ns);
        }
    }

    /// What packet `index` is, if it is meant for this endpoint and its header is as it must be.
    #[inline(always)]
    fn check(&mut self, index: usize) -> Option<Checked> {
        let Self { identity, sender, receiver, counters, peers, .. } = self;
        let packet = receiver.packet(index);
        if sender.wants_checksum() && !is_intact(packet) && rule!(CHECKSUM) {
            counters.corrupt += 1;
            return None;
        }
        let (Some(route), Some(contents)) =
            (RouteWords::parse(packet), ContentsWords::parse(packet))
        else {
            counters.malformed += 1;
            return None;
        };
        let route = if rule!(EPOCH_OF_PACKETS) { route } else { route.in_epoch(identity.epoch) };
        let source = route.source();
        if peers.get(usize::from(source)).is_none_or(|peer| peer.expected != route)
            || contents.worker() != identity.worker
            || source == identity.node
        {
            identity.count_stranger(packet, counters);
            return None;
        }
        // Of a message in fragments its assembly checks the sizes.
        let is_whole = contents.is_one_packet(packet.len() - HEADER_BYTES);
        if contents.coroutine() >= identity.coroutines || !(is_whole || contents.is_fragment()) {
            counters.malformed += 1;
            return None;
        }
        Some(Checked { source, contents, is_whole })
    }

    /// Requests that are unanswered, held or piggybacked, and credits that are out: none when nothing runs.
    #[must_use]
    pub fn open_requests(&self) -> usize {
        let of_batch = |batch: &RequestBatch| {
            usize::from(batch.unanswered) + usize::from(batch.has_piggybacked())
        };
        let unanswered = self.batches.iter().map(|batch| of_batch(&batch.borrow()));
        let credits = self.peers.iter().map(Peer::open);
        unanswered.chain(credits).sum::<usize>() + self.ready.len()
    }

    /// Whether [`Self::accept`] would find something to do at once, packets apart.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.local.is_empty()
    }

    /// When [`Self::retransmit`] has something to look at, if any request may be unanswered.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        (self.next_due_ns != u64::MAX).then_some(self.next_due_ns)
    }
}

/// The state of each node, before anything is sent to it in the epoch of `identity`.
fn peers_of<S: PacketSender>(identity: &Identity, sender: &S) -> Vec<Peer> {
    let round_trip = RoundTrip::new(sender.retransmit_floor_ns());
    let window = Window::new(sender.loses_by_congestion());
    let losses = LossDetection::new(sender.loses_packets());
    let nodes =
        u16::try_from(identity.incarnations.len()).expect("nodes are numbered with 16 bits");
    let route = |source, destination| RouteWords::from(identity.route(source, destination));
    let peer = |node| {
        let (expected, to) = (route(node, identity.node), route(identity.node, node));
        Peer::new(expected, to, round_trip, window, losses, usize::from(identity.coroutines))
    };
    (0..nodes).map(peer).collect()
}
