//! A worker's endpoint: sends its coroutines' batches, runs requests of others, collects responses.
//!
//! ```text
//! receive():  poll ─ prefetch pass ─ second prefetch pass ─ run handlers ─ one doorbell
//! submit():   header per destination ─ queue          requests to the own node: a direct call
//! ```
//! Requests to the worker's own node take no packet: the handler reads them in the batch and writes
//! the response there, in the same passes as those that arrived, so that their cache misses overlap.
//!
//! *Source*: FaSST sections 4.1 to 4.3; HERD section 4.1.1 for the two prefetch stages.
//!
//! *Invariants*: a request is retransmitted until it is answered, never abandoned (a LOCK that timed
//! out may have been granted); a request runs once per session and sequence number.
//!
//! *Not here*: BUSY, for requests that take longer than a batch, of which there are none yet; STALE
//! answers; credits.

use std::cell::RefCell;
use std::rc::Rc;

use crate::buffer::Buffer;
use crate::fragments::{Gathered, queue_again, queue_message};
use crate::message::{MESSAGE_HEADER_BYTES, Messages, ResponseWriter, message_bytes};
use crate::mutant::{Mutant, active};
use crate::packet::{Contents, HEADER_BYTES, Kind, Route, RouteWords, is_intact};
use crate::request_batch::RequestBatch;
use crate::round_trip::RoundTrip;
use crate::session::{Admission, Session};
use crate::transport::{PacketReceiver, PacketSender};

/// Packets of a batch that there is room for before the list grows.
const PACKETS_EXPECTED: usize = 64;
/// What runs requests. The user's side of the endpoint.
pub trait Handler {
    /// A request that was parsed, and where it leads.
    type Prepared: Copy;

    /// Parses a request and asks for the memory that it will touch first.
    fn prepare(&self, kind: u16, payload: &[u8]) -> Self::Prepared;

    /// Asks for what it will touch next, once that has arrived.
    fn prefetch_next(&self, prepared: &Self::Prepared);

    /// Runs a request and appends exactly one message to `response`.
    fn handle(
        &mut self,
        prepared: Self::Prepared,
        payload: &[u8],
        response: &mut ResponseWriter<'_>,
    );
}

/// A request of the present batch between the passes.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<P> {
    prepared: P,
    /// Where its payload lies among the messages of its packet.
    payload_at: u32,
    payload_bytes: u32,
}

/// Who an endpoint is, and whom it talks to.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Cluster that packets must name.
    pub cluster_id: u32,
    /// Epoch that packets must name.
    pub epoch: u32,
    /// Own node.
    pub node: u16,
    /// Own worker; the peers' too.
    pub worker: u16,
    /// Coroutines of every worker of the cluster.
    pub coroutines: u16,
    /// Incarnation of each node.
    pub incarnations: Vec<u32>,
}

/// What an endpoint has seen; each counter only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received, whatever became of them.
    pub packets: u64,
    /// Requests run.
    pub requests: u64,
    /// Packets that were too short, of unknown kind, or malformed inside: dropped.
    pub malformed: u64,
    /// Packets whose checksum was wrong: dropped.
    pub corrupt: u64,
    /// Packets of another cluster: dropped.
    pub wrong_cluster: u64,
    /// Packets of another epoch: dropped.
    pub wrong_epoch: u64,
    /// Packets of or for another incarnation, node or worker: dropped.
    pub wrong_incarnation: u64,
    /// Requests run before: their response was sent again, or they were dropped as older.
    pub duplicates: u64,
    /// Responses nobody waits for: dropped.
    pub late_responses: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            requests: self.requests + other.requests,
            malformed: self.malformed + other.malformed,
            corrupt: self.corrupt + other.corrupt,
            wrong_cluster: self.wrong_cluster + other.wrong_cluster,
            wrong_epoch: self.wrong_epoch + other.wrong_epoch,
            wrong_incarnation: self.wrong_incarnation + other.wrong_incarnation,
            duplicates: self.duplicates + other.duplicates,
            late_responses: self.late_responses + other.late_responses,
            retransmitted: self.retransmitted + other.retransmitted,
        }
    }
}

/// A message of requests that passed all checks and whose requests are prepared.
struct Arrived {
    at: MessageAt,
    source: u16,
    contents: Contents,
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
    /// By node.
    round_trips: Vec<RoundTrip>,
    /// Where fragments are built.
    scratch: Buffer,
    /// By node: the route that its packets must have.
    expected_routes: Vec<RouteWords>,
    /// By node: the route of packets to it.
    routes: Vec<RouteWords>,
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
        let round_trip = RoundTrip::new(sender.retransmit_floor_ns());
        let numbers = 0..u16::try_from(nodes).expect("nodes are numbered with 16 bits");
        let route = |source, destination| RouteWords::from(identity.route(source, destination));
        Self {
            batches: (0..coroutines).map(|_| batch()).collect(),
            sessions: (0..nodes * coroutines).map(|_| Session::default()).collect(),
            expected_routes: numbers.clone().map(|node| route(node, identity.node)).collect(),
            routes: numbers.map(|node| route(identity.node, node)).collect(),
            arrived: Vec::with_capacity(PACKETS_EXPECTED),
            local: Vec::with_capacity(coroutines),
            local_running: Vec::with_capacity(coroutines),
            ready: Vec::with_capacity(coroutines),
            counters: Counters::default(),
            next_due_ns: u64::MAX,
            round_trips: vec![round_trip; nodes],
            scratch: Buffer::default(),
            identity,
            sender,
            receiver,
        }
    }

    /// The batch that `coroutine` fills and this endpoint sends.
    #[must_use]
    pub fn batch(&self, coroutine: u16) -> Rc<RefCell<RequestBatch>> {
        Rc::clone(&self.batches[usize::from(coroutine)])
    }

    /// What the endpoint has seen.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
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

    /// Queues `coroutine`'s batch; it leaves with the next doorbell.
    ///
    /// # Panics
    /// If the batch is empty: the coroutine would never be resumed.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "messages are shorter than the MTU, nodes fewer than 2^16"
    )]
    pub fn submit(&mut self, coroutine: u16, now_ns: u64) {
        let Self { identity, sender, batches, local, routes, round_trips, scratch, .. } = self;
        let mut batch = batches[usize::from(coroutine)].borrow_mut();
        let batch = &mut *batch;
        assert!(!batch.is_empty(), "a coroutine suspends on a batch with requests");
        batch.sequence += 1;
        batch.unanswered = batch.destinations.len() as u16;
        for index in 0..batch.destinations.len() {
            let destination = batch.destinations[index];
            if destination == identity.node {
                local.push(coroutine);
                continue;
            }
            let sequence = batch.sequence;
            let lane = batch.lane(destination);
            lane.sent_at_ns = now_ns;
            lane.attempts = 0;
            let due_ns = now_ns + round_trips[usize::from(destination)].timeout_ns(0);
            self.next_due_ns = self.next_due_ns.min(due_ns);
            let packet = lane.request.as_mut_slice();
            routes[usize::from(destination)].write(packet);
            let contents = Contents {
                worker: identity.worker,
                coroutine,
                kind: Kind::Request,
                messages: lane.requests,
                sequence,
                fragment: 0,
                fragments: 1,
                message_bytes: (packet.len() - HEADER_BYTES) as u32,
            };
            queue_message(sender, scratch, destination, packet, contents);
        }
    }

    /// Sends what was queued.
    #[inline]
    pub fn ring_doorbell(&mut self) {
        self.sender.ring_doorbell();
    }

    /// Receives one batch of packets and runs its requests and those to the own node.
    ///
    /// Returns whether there was anything to do. Responses leave with one doorbell. `incoming` is
    /// scratch space, kept by the caller so that it is allocated once.
    pub fn receive<H: Handler>(
        &mut self,
        handler: &mut H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
        now_ns: u64,
    ) -> bool {
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
            let prepared = prepare(handler, messages, lane.requests, incoming);
            debug_assert!(prepared, "a batch is well-formed");
        }
        for index in 0..packets {
            let Some((source, contents)) = self.check(index) else { continue };
            match (contents.kind, contents.fragments) {
                (Kind::Request, 1) => {
                    let messages = &self.receiver.packet(index)[HEADER_BYTES..];
                    if prepare(handler, messages, contents.messages, incoming) {
                        self.arrived.push(Arrived {
                            at: MessageAt::Packet(index),
                            source,
                            contents,
                        });
                    } else {
                        self.counters.malformed += 1;
                    }
                }
                (Kind::Response, 1) => self.take_response(index, source, &contents, now_ns),
                (Kind::Request, _) => {
                    self.gather_request(index, source, contents, handler, incoming)
                }
                (Kind::Response, _) => self.gather_response(index, source, &contents),
            }
        }
        for request in incoming.iter() {
            handler.prefetch_next(&request.prepared);
        }
        let mut incoming = incoming.iter();
        self.run_local(handler, &mut incoming);
        self.run_arrived(handler, &mut incoming);
        self.receiver.release();
        self.sender.ring_doorbell();
        true
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
            let requests = incoming.take(usize::from(packet.contents.messages));
            self.run_requests(handler, &packet, requests);
        }
        self.arrived = arrived;
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a response is shorter than the MTU")]
    fn run_requests<'i, H: Handler>(
        &mut self,
        handler: &mut H,
        arrived: &Arrived,
        requests: impl Iterator<Item = &'i Incoming<H::Prepared>>,
    ) where
        H::Prepared: 'i,
    {
        let Self { identity, sender, receiver, sessions, counters, routes, scratch, .. } = self;
        let Arrived { at, source, contents } = *arrived;
        let session = &mut sessions[identity.session(source, contents.coroutine)];
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
                counters.requests += u64::from(contents.messages);
                let messages = response.messages();
                let packet = packet.as_mut_slice();
                let message_bytes = (packet.len() - HEADER_BYTES) as u32;
                routes[usize::from(source)].write(packet);
                let (kind, fragment, fragments) = (Kind::Response, 0, 1);
                let contents =
                    Contents { kind, messages, message_bytes, fragment, fragments, ..contents };
                queue_message(sender, scratch, source, packet, contents);
            }
            Admission::Resend => {
                counters.duplicates += 1;
                requests.for_each(drop);
                queue_again(sender, scratch, source, session.response.as_slice());
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

    /// Adds a fragment of requests to its session's assembly; prepares them when they are complete.
    #[cold]
    fn gather_request<H: Handler>(
        &mut self,
        index: usize,
        source: u16,
        contents: Contents,
        handler: &H,
        incoming: &mut Vec<Incoming<H::Prepared>>,
    ) {
        let Self { identity, sender, receiver, sessions, counters, scratch, arrived, .. } = self;
        let session = &mut sessions[identity.session(source, contents.coroutine)];
        match session.known(contents.sequence) {
            Admission::Run => {}
            Admission::Resend => {
                // Once for all fragments that come again.
                if contents.fragment + 1 == contents.fragments {
                    counters.duplicates += 1;
                    queue_again(sender, scratch, source, session.response.as_slice());
                }
                return;
            }
            Admission::Drop => return counters.duplicates += 1,
        }
        let assembly = session.assembly.get_or_insert_default();
        let part = &receiver.packet(index)[HEADER_BYTES..];
        match assembly.add(&contents, part, sender.mtu() - HEADER_BYTES) {
            Gathered::Complete => {
                if prepare(handler, assembly.messages(), contents.messages, incoming) {
                    arrived.push(Arrived { at: MessageAt::Assembly, source, contents });
                } else {
                    counters.malformed += 1;
                    assembly.take();
                }
            }
            Gathered::Partial => {}
            Gathered::Malformed => counters.malformed += 1,
        }
    }

    /// Adds a fragment of responses to their lane's assembly.
    #[cold]
    fn gather_response(&mut self, index: usize, source: u16, contents: &Contents) {
        let Self { sender, receiver, batches, counters, ready, .. } = self;
        let mut batch = batches[usize::from(contents.coroutine)].borrow_mut();
        let sequence = batch.sequence;
        let lane = batch.lane(source);
        if contents.sequence != sequence || !lane.awaits(contents.messages) {
            counters.late_responses += 1;
            return;
        }
        let assembly = lane.assembly.get_or_insert_default();
        let part = &receiver.packet(index)[HEADER_BYTES..];
        match assembly.add(contents, part, sender.mtu() - HEADER_BYTES) {
            Gathered::Complete => {
                let messages = assembly.messages();
                let well_formed = Messages::are_well_formed(messages, contents.messages);
                if well_formed {
                    lane.response.claim(messages.len()).copy_from_slice(messages);
                }
                assembly.take();
                if !well_formed {
                    counters.malformed += 1;
                    return;
                }
                lane.answered = true;
                batch.unanswered -= 1;
                if batch.unanswered == 0 {
                    ready.push(contents.coroutine);
                }
            }
            Gathered::Partial => {}
            Gathered::Malformed => counters.malformed += 1,
        }
    }

    #[inline(always)]
    fn take_response(&mut self, index: usize, source: u16, contents: &Contents, now_ns: u64) {
        let mut batch = self.batches[usize::from(contents.coroutine)].borrow_mut();
        let sequence = batch.sequence;
        let lane = batch.lane(source);
        if contents.sequence != sequence || !lane.awaits(contents.messages) {
            self.counters.late_responses += 1;
            return;
        }
        let messages = &self.receiver.packet(index)[HEADER_BYTES..];
        if !Messages::are_well_formed(messages, contents.messages) {
            self.counters.malformed += 1;
            return;
        }
        lane.response.claim(messages.len()).copy_from_slice(messages);
        lane.answered = true;
        if lane.attempts == 0 {
            let took_ns = now_ns.saturating_sub(lane.sent_at_ns);
            self.round_trips[usize::from(source)].sample(took_ns);
        }
        batch.unanswered -= 1;
        if batch.unanswered == 0 {
            self.ready.push(contents.coroutine);
        }
    }

    /// Sender and contents of packet `index`, if it is meant for this endpoint and its header is
    /// as it must be.
    #[inline(always)]
    fn check(&mut self, index: usize) -> Option<(u16, Contents)> {
        let Self { identity, sender, receiver, counters, expected_routes, .. } = self;
        let packet = receiver.packet(index);
        if sender.wants_checksum() && !is_intact(packet) && !active(Mutant::SkipChecksum) {
            counters.corrupt += 1;
            return None;
        }
        let (Some(route), Some(contents)) = (RouteWords::parse(packet), Contents::parse(packet))
        else {
            counters.malformed += 1;
            return None;
        };
        let source = route.source();
        if expected_routes.get(usize::from(source)) != Some(&route)
            || contents.worker != identity.worker
            || source == identity.node
        {
            identity.count_stranger(packet, counters);
            return None;
        }
        // Of a message in fragments its assembly checks the sizes.
        let well_formed = contents.coroutine < identity.coroutines
            && contents.fragment < contents.fragments
            && (contents.fragments > 1
                || contents.message_bytes as usize == packet.len() - HEADER_BYTES);
        if !well_formed {
            counters.malformed += 1;
            return None;
        }
        Some((source, contents))
    }

    /// Sends every request again that has been unanswered for too long.
    #[inline]
    pub fn retransmit(&mut self, now_ns: u64) {
        if now_ns >= self.next_due_ns {
            self.retransmit_due(now_ns);
        }
    }

    #[cold]
    fn retransmit_due(&mut self, now_ns: u64) {
        let Self { identity, sender, batches, counters, round_trips, scratch, .. } = self;
        let mut next_due_ns = u64::MAX;
        for batch in batches {
            let mut batch = batch.borrow_mut();
            if batch.unanswered == 0 {
                continue;
            }
            for index in 0..batch.destinations.len() {
                let destination = batch.destinations[index];
                let lane = batch.lane(destination);
                if destination == identity.node || lane.answered {
                    continue;
                }
                let round_trip = round_trips[usize::from(destination)];
                if lane.sent_at_ns + round_trip.timeout_ns(lane.attempts) <= now_ns {
                    lane.sent_at_ns = now_ns;
                    lane.attempts += 1;
                    queue_again(sender, scratch, destination, lane.request.as_slice());
                    counters.retransmitted += 1;
                }
                let due_ns = lane.sent_at_ns + round_trip.timeout_ns(lane.attempts);
                next_due_ns = next_due_ns.min(due_ns);
            }
        }
        self.next_due_ns = next_due_ns;
        self.sender.ring_doorbell();
    }

    /// When [`Self::retransmit`] has something to look at, if any request may be unanswered.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        (self.next_due_ns != u64::MAX).then_some(self.next_due_ns)
    }
}

impl Identity {
    /// The number of a session.
    #[inline(always)]
    fn session(&self, source: u16, coroutine: u16) -> usize {
        usize::from(source) * usize::from(self.coroutines) + usize::from(coroutine)
    }

    fn route(&self, source: u16, destination: u16) -> Route {
        Route {
            cluster_id: self.cluster_id,
            epoch: self.epoch,
            source,
            destination,
            source_incarnation: self.incarnations[usize::from(source)],
            destination_incarnation: self.incarnations[usize::from(destination)],
        }
    }

    /// Counts a packet that is not from a peer to this endpoint, by what is wrong with it.
    #[cold]
    fn count_stranger(&self, packet: &[u8], counters: &mut Counters) {
        let counter = match Route::parse(packet) {
            None => &mut counters.malformed,
            Some(route) if route.cluster_id != self.cluster_id => &mut counters.wrong_cluster,
            Some(route) if route.epoch != self.epoch => &mut counters.wrong_epoch,
            Some(_) => &mut counters.wrong_incarnation,
        };
        *counter += 1;
    }
}

impl<P> Incoming<P> {
    #[inline(always)]
    fn payload<'m>(&self, messages: &'m [u8]) -> &'m [u8] {
        &messages[self.payload_at as usize..][..self.payload_bytes as usize]
    }
}

/// Prepares `count` requests; `false`, with none of them left in `incoming`, if they are malformed.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "messages are shorter than the MTU")]
fn prepare<H: Handler>(
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
