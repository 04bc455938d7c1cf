//! Two endpoints over a network that loses, duplicates, reorders and damages packets; and invalid packets.
//!
//! All endpoints share one thread, in virtual time. The network is a queue with faults by a seed, or the rings of
//! `memory`. A test fails if a request does not run exactly once, if an answer is wrong, if a refusal is lost, or if an
//! invalid packet runs or is counted by another fault. Three tests fuzz packets, bytes and sessions.
//!
//! *Source*: `docs/architecture.md`, "RPC".
//!
//! *Not here*: when requests are sent again (`losses.rs`), threads (`threads.rs`), sockets (`udp.rs`), and devices (`verbs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod echo;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use echo::Echo;
use gannet_rpc::{
    Contents, Counters, Endpoint, HEADER_BYTES, Handler, Identity, Incoming, Kind, MemoryFabric,
    PacketReceiver, PacketSender, Parking, ResponseWriter, Route,
};

const MTU_BYTES: usize = 1_500;
const STEP_NS: u64 = 10_000;
const COROUTINES: u16 = 200;

/// Packets in flight to each of the two nodes, and their faults.
struct Network {
    queues: [Vec<Vec<u8>>; 2],
    random: u64,
    harm_percent: u64,
}

impl Network {
    fn draw(&mut self, below: u64) -> u64 {
        // Knuth's multiplicative generator.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    fn send(&mut self, destination: u16, packet: &[u8]) {
        let harm = self.harm_percent;
        let mut strikes = || self.draw(100) < harm;
        let (is_lost, is_doubled, is_damaged, is_late) =
            (strikes(), strikes(), strikes(), strikes());
        if is_lost {
            return;
        }
        let mut packet = packet.to_vec();
        if is_damaged {
            let at = usize::try_from(self.draw(packet.len() as u64)).unwrap();
            packet[at] ^= 1;
        }
        let queue = usize::from(destination);
        let place = if is_late { 0 } else { self.queues[queue].len() };
        self.queues[queue].insert(place, packet.clone());
        if is_doubled {
            self.queues[queue].push(packet);
        }
    }
}

struct Sender(Rc<RefCell<Network>>);

impl PacketSender for Sender {
    fn mtu(&self) -> usize {
        MTU_BYTES
    }

    fn wants_checksum(&self) -> bool {
        true
    }

    fn retransmit_floor_ns(&self) -> u64 {
        2 * STEP_NS
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        self.0.borrow_mut().send(destination, packet);
    }

    fn ring_doorbell(&mut self) {}

    fn dropped(&self) -> u64 {
        0
    }
}

struct Receiver {
    network: Rc<RefCell<Network>>,
    node: usize,
    batch: Vec<Vec<u8>>,
}

impl PacketReceiver for Receiver {
    fn poll(&mut self) -> usize {
        self.batch = std::mem::take(&mut self.network.borrow_mut().queues[self.node]);
        self.batch.len()
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.batch[index]
    }

    fn release(&mut self) {
        self.batch.clear();
    }
}

fn identity(node: u16) -> Identity {
    identity_of(node, 2)
}

fn identity_of(node: u16, nodes: usize) -> Identity {
    Identity {
        cluster_id: 1,
        epoch: 1,
        node,
        worker: 0,
        coroutines: COROUTINES,
        incarnations: vec![1; nodes],
    }
}

struct Pair {
    network: Rc<RefCell<Network>>,
    endpoints: Vec<Endpoint<Sender, Receiver>>,
    handlers: [Echo; 2],
    incoming: Vec<Incoming<()>>,
    now_ns: u64,
}

impl Pair {
    fn new(seed: u64, harm_percent: u64) -> Self {
        let network = Network { queues: [Vec::new(), Vec::new()], random: seed, harm_percent };
        let network = Rc::new(RefCell::new(network));
        let endpoints = (0..2)
            .map(|node| {
                let receiver = Receiver {
                    network: Rc::clone(&network),
                    node: usize::from(node),
                    batch: Vec::new(),
                };
                Endpoint::new(identity(node), Sender(Rc::clone(&network)), receiver)
            })
            .collect();
        let (handlers, incoming) = (Default::default(), Vec::new());
        Self { network, endpoints, handlers, incoming, now_ns: 0 }
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        for (endpoint, handler) in self.endpoints.iter_mut().zip(&mut self.handlers) {
            endpoint.receive(handler, &mut self.incoming, self.now_ns);
            endpoint.retransmit(self.now_ns);
        }
    }

    /// Sends payloads of these sizes from node 0 to node 1 in one batch of the last coroutine and
    /// checks the answers.
    fn call(&mut self, number: u8, sizes: &[usize]) {
        let coroutine = COROUTINES - 1;
        let batch = self.endpoints[0].batch(coroutine);
        let payload = |size: usize| -> Vec<u8> {
            let pattern: Vec<_> = (0..=248).map(|at: u8| number.wrapping_add(at)).collect();
            pattern.into_iter().cycle().take(size).collect()
        };
        {
            let mut batch = batch.borrow_mut();
            batch.clear();
            for &size in sizes {
                batch.push(1, 7, &payload(size), size).unwrap();
            }
        }
        self.endpoints[0].submit(coroutine, self.now_ns);
        let mut steps = 0;
        while self.endpoints[0].take_ready().is_none() {
            self.step();
            steps += 1;
            assert!(steps < 1_000_000, "the answer never comes");
        }
        let mut batch = batch.borrow_mut();
        for &size in sizes {
            let answer = batch.next_response(1);
            assert_eq!(answer.kind, 9);
            let expected = payload(size).into_iter().map(|byte| byte.wrapping_add(1));
            assert!(answer.payload.iter().copied().eq(expected), "an answer of {size} bytes");
        }
    }

    fn counters(&self, node: usize) -> Counters {
        self.endpoints[node].counters()
    }
}

#[test]
fn requests_submitted_between_accept_and_run_wait_for_the_next_run() {
    let Pair { mut endpoints, mut handlers, mut incoming, .. } = Pair::new(1, 0);
    let (endpoint, handler) = (&mut endpoints[0], &mut handlers[0]);
    let submit = |endpoint: &mut Endpoint<Sender, Receiver>, coroutine| {
        endpoint.batch(coroutine).borrow_mut().push(0, 7, &[1; 8], 8).unwrap();
        endpoint.submit(coroutine, 0);
    };
    submit(endpoint, 0);
    assert!(endpoint.has_work() && endpoint.accept(handler, &mut incoming, 0));
    submit(endpoint, 1);
    endpoint.run(handler, &incoming);
    assert_eq!([endpoint.take_ready(), endpoint.take_ready()], [Some(0), None]);
    assert!(endpoint.has_work() && endpoint.accept(handler, &mut incoming, 0));
    endpoint.run(handler, &incoming);
    assert_eq!(endpoint.take_ready(), Some(1));
    assert!(!endpoint.has_work() && !endpoint.accept(handler, &mut incoming, 0));
    assert_eq!(handler.handled, 2);
}

#[test]
fn messages_of_every_size_arrive_once_over_a_bad_network() {
    for seed in 0..5 {
        let mut pair = Pair::new(seed, 5);
        let calls: [&[usize]; 8] = [
            &[32],
            &[0, 5, 1_400],
            &[1_444],
            &[1_445, 3],
            &[100; 40],
            &[40_000],
            &[1 << 20],
            &[1_000_000, 17],
        ];
        let mut requests = 0;
        for round in 0..12 {
            for (number, sizes) in (0..).zip(calls) {
                pair.call(number + 7 * round, sizes);
                requests += sizes.len() as u64;
            }
        }
        assert_eq!(pair.handlers[1].handled, requests, "each request ran once");
        let (client, server) = (pair.counters(0), pair.counters(1));
        assert!(client.retransmitted > 0 && client.corrupt > 0 && server.corrupt > 0);
        assert!(
            server.duplicates > 0 && server.continued > 0 && client.continued > 0,
            "{server:?}"
        );
        assert_eq!((client.malformed, server.malformed), (0, 0));
    }
}

#[test]
fn packets_in_flight_are_bounded_by_the_credits() {
    let mut pair = Pair::new(1, 0);
    let payload = [7; 100];
    for coroutine in 0..COROUTINES {
        let batch = pair.endpoints[0].batch(coroutine);
        batch.borrow_mut().push(1, 7, &payload, payload.len()).unwrap();
        pair.endpoints[0].submit(coroutine, pair.now_ns);
    }
    let (mut answered, mut most) = (0, 0);
    while answered < COROUTINES {
        most = most.max(pair.network.borrow().queues[1].len());
        pair.step();
        while pair.endpoints[0].take_ready().is_some() {
            answered += 1;
        }
        assert!(pair.now_ns < 1_000 * STEP_NS, "{answered} answered");
    }
    assert_eq!(most, 64, "packets under way at once");
    assert_eq!(pair.handlers[1].handled, u64::from(COROUTINES));
}

#[test]
fn a_message_larger_than_its_ring_arrives_without_loss() {
    let mut fabric = MemoryFabric::new(2, 1, 16 << 10, 64 << 10);
    let waker = Parking::new().waker();
    let wakers = [waker.clone(), waker.clone()];
    let mut endpoints: Vec<_> = (0..2_u16)
        .map(|node| {
            let (sender, receiver) = fabric.take(usize::from(node), 0, &waker, &wakers);
            Endpoint::new(identity(node), sender, receiver)
        })
        .collect();
    let (mut handlers, mut incoming) = ([Echo::default(), Echo::default()], Vec::new());
    let size = 1 << 20;
    endpoints[0].batch(0).borrow_mut().push(1, 7, &vec![1; size], size).unwrap();
    endpoints[0].submit(0, 0);
    endpoints[0].ring_doorbell();
    let mut now_ms = 0;
    while endpoints[0].take_ready().is_none() {
        now_ms += 1;
        for (endpoint, handler) in endpoints.iter_mut().zip(&mut handlers) {
            endpoint.receive(handler, &mut incoming, now_ms * 1_000_000);
            endpoint.retransmit(now_ms * 1_000_000);
        }
        assert!(now_ms < 2_000, "a MiB takes for ever");
    }
    assert_eq!(handlers[1].handled, 1);
    for endpoint in &endpoints {
        assert!(endpoint.counters().continued > 15, "{:?}", endpoint.counters());
        assert_eq!((endpoint.counters().retransmitted, endpoint.dropped()), (0, 0));
    }
    let batch = endpoints[0].batch(0);
    let mut batch = batch.borrow_mut();
    assert!(batch.next_response(1).payload.iter().eq(vec![2; size].iter()));
    println!("a MiB through a ring of 64 KiB took {now_ms} ms of virtual time");
}

/// Answers with the status in the payload's first byte, and as many bytes.
struct Says;

impl Handler for Says {
    type Prepared = ();

    fn prepare(&self, _: u16, _: &[u8]) {}

    fn prefetch(&self, (): &()) {}

    fn prefetch_next(&self, (): &()) {}

    fn handle(&mut self, (): (), payload: &[u8], response: &mut ResponseWriter<'_>) {
        response.push_with(payload.len() - 1, |out| (payload[0].into(), out.len()));
    }
}

/// The refusal that node 0 finds among the answers of all three nodes. `first` answers before the other remote node,
/// `refuser` answers 7, and all others answer 1; each answer has `bytes` bytes of payload.
fn refusal(refuser: Option<u16>, first: u16, bytes: usize, piggybacks: bool) -> Option<u16> {
    let mut fabric = MemoryFabric::new(3, 1, MTU_BYTES, 64 << 10);
    let waker = Parking::new().waker();
    let wakers = [waker.clone(), waker.clone(), waker.clone()];
    let mut endpoints = [0_u16, 1, 2].map(|node| {
        let (sender, receiver) = fabric.take(usize::from(node), 0, &waker, &wakers);
        Endpoint::new(identity_of(node, 3), sender, receiver)
    });
    let batch = endpoints[0].batch(0);
    if piggybacks {
        // These answers are not read.
        (1..3).for_each(|node| batch.borrow_mut().push(node, 0, &[6], 0).unwrap());
        batch.borrow_mut().piggyback();
    }
    for node in 0..3 {
        let status = if refuser == Some(node) { 7 } else { 1 };
        let payload = vec![status; 1 + bytes];
        batch.borrow_mut().push(node, 0, &payload, bytes).unwrap();
        batch.borrow_mut().push(node, 0, &vec![1; 1 + bytes], bytes).unwrap();
    }
    endpoints[0].submit(0, 0);
    endpoints[0].ring_doorbell();
    let mut incoming = Vec::new();
    for node in [first, 3 - first] {
        for _ in 0..100 {
            endpoints[usize::from(node)].receive(&mut Says, &mut incoming, 0);
            endpoints[0].receive(&mut Says, &mut incoming, 0);
        }
    }
    assert_eq!(endpoints[0].take_ready(), Some(0));
    batch.borrow().first_other_than(1)
}

#[test]
fn no_refusal_is_lost_whoever_refuses_and_answers_first() {
    for first in [1, 2] {
        for bytes in [0, 5 * MTU_BYTES] {
            for piggybacks in [false, true] {
                let refusals =
                    [None, Some(0), Some(1), Some(2)].map(|r| refusal(r, first, bytes, piggybacks));
                assert_eq!(
                    refusals,
                    [None, Some(7), Some(7), Some(7)],
                    "{first} {bytes} {piggybacks}"
                );
            }
        }
    }
}

/// The header of a packet.
struct Header {
    route: Route,
    contents: Contents,
}

impl Header {
    /// Writes the route as the layout of `packet.rs` has it, and the contents.
    fn write(&self, packet: &mut [u8]) {
        let Route { cluster_id, epoch, source, destination, .. } = self.route;
        packet[4..8].copy_from_slice(&cluster_id.to_le_bytes());
        packet[8..12].copy_from_slice(&epoch.to_le_bytes());
        packet[12..14].copy_from_slice(&source.to_le_bytes());
        packet[14..16].copy_from_slice(&destination.to_le_bytes());
        packet[16..20].copy_from_slice(&self.route.source_incarnation.to_le_bytes());
        packet[20..24].copy_from_slice(&self.route.destination_incarnation.to_le_bytes());
        self.contents.write(packet);
    }
}

/// A well-formed packet with one empty request, changed by `change`.
fn packet(change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header {
        route: Route {
            cluster_id: 1,
            epoch: 1,
            source: 0,
            destination: 1,
            source_incarnation: 1,
            destination_incarnation: 1,
        },
        contents: Contents {
            worker: 0,
            coroutine: 0,
            kind: Kind::Request,
            again: false,
            messages: 1,
            sequence: 1,
            fragment: 0,
            fragments: 1,
            message_bytes: 8,
        },
    };
    change(&mut header);
    let mut packet = vec![0; 56];
    header.write(&mut packet);
    seal(&mut packet);
    packet
}

fn seal(packet: &mut [u8]) {
    let crc = crc32c::crc32c(&packet[4..]);
    packet[..4].copy_from_slice(&crc.to_le_bytes());
}

/// The counters of node 1 when it receives `packet` alone, and the number of requests that ran.
fn receive(packet: Vec<u8>) -> (Counters, u64) {
    let mut pair = Pair::new(1, 0);
    pair.network.borrow_mut().queues[1].push(packet);
    pair.step();
    (pair.counters(1), pair.handlers[1].handled)
}

#[test]
fn invalid_packets_are_dropped_and_counted_by_their_fault() {
    assert_eq!(receive(packet(|_| {})).1, 1, "the packet is right but for what is changed");
    type Case = (fn(&mut Header), fn(&Counters) -> u64);
    let cases: [Case; 12] = [
        (|header| header.route.cluster_id = 2, |seen| seen.wrong_cluster),
        (|header| header.route.epoch = 2, |seen| seen.wrong_epoch),
        (|header| header.route.source_incarnation = 2, |seen| seen.wrong_incarnation),
        (|header| header.route.destination_incarnation = 2, |seen| seen.wrong_incarnation),
        (|header| header.route.destination = 0, |seen| seen.wrong_incarnation),
        (|header| header.route.source = 1, |seen| seen.wrong_incarnation),
        (|header| header.route.source = 99, |seen| seen.wrong_incarnation),
        (|header| header.contents.worker = 1, |seen| seen.wrong_incarnation),
        (|header| header.contents.coroutine = COROUTINES, |seen| seen.malformed),
        (|header| header.contents.messages = 2, |seen| seen.malformed),
        (|header| header.contents.message_bytes = 9, |seen| seen.malformed),
        (|header| header.contents.fragment = 1, |seen| seen.malformed),
    ];
    for (index, (change, counter)) in cases.into_iter().enumerate() {
        let (seen, handled) = receive(packet(change));
        assert_eq!((counter(&seen), handled, seen.packets), (1, 0, 1), "case {index}: {seen:?}");
    }
    let mut damaged = packet(|_| {});
    damaged[50] ^= 4;
    assert_eq!(receive(damaged).0.corrupt, 1);
    assert_eq!(receive(Vec::new()).0.corrupt, 1);
}

/// Fuzzes for as many seconds as `GANNET_FUZZ_SECONDS` says, or 3.
macro_rules! fuzz {
    ($input:ty, $check:expr) => {{
        let seconds = std::env::var("GANNET_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
        bolero::check!()
            .with_type::<$input>()
            .with_test_time(Duration::from_secs(seconds.unwrap_or(3)))
            .with_iterations(usize::MAX)
            .for_each($check);
    }};
}

/// The fields of a fuzzed packet; its bytes follow.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Fuzzed {
    kind: u8,
    messages: u8,
    sequence: u8,
    fragment: u8,
    fragments: u8,
    /// The field of the length; None for the true length.
    message_bytes: Option<u32>,
    tail: Vec<u8>,
}

impl Fuzzed {
    fn packet(&self) -> Vec<u8> {
        let mut bytes = packet(|header| {
            let contents = &mut header.contents;
            contents.kind =
                [Kind::Request, Kind::Response, Kind::ContinueRequest, Kind::ContinueResponse]
                    [usize::from(self.kind % 4)];
            contents.messages = (self.messages % 4).into();
            contents.sequence = (self.sequence % 8).into();
            contents.fragment = (self.fragment % 4).into();
            contents.fragments = (self.fragments % 4).into();
            contents.message_bytes =
                self.message_bytes.unwrap_or_else(|| u32::try_from(self.tail.len()).unwrap());
        });
        bytes.truncate(HEADER_BYTES);
        bytes.extend(&self.tail);
        seal(&mut bytes);
        bytes
    }
}

/// Every packet, even one with a right checksum, is dropped and counted, or run.
#[test]
fn fuzz_packets() {
    fuzz!(Vec<Fuzzed>, |packets| {
        let mut pair = Pair::new(1, 0);
        for fuzzed in packets {
            pair.network.borrow_mut().queues[1].push(fuzzed.packet());
            pair.step();
        }
        // Untouched sessions are served as before.
        pair.call(3, &[32, 5_000]);
    });
}

/// Bytes that are not a packet at all.
#[test]
fn fuzz_bytes() {
    fuzz!(Vec<Vec<u8>>, |packets| {
        let mut pair = Pair::new(1, 0);
        for bytes in packets {
            pair.network.borrow_mut().queues[1].push(bytes.clone());
            pair.step();
        }
        let seen = pair.counters(1);
        assert_eq!((seen.corrupt, pair.handlers[1].handled), (packets.len() as u64, 0));
    });
}

/// Messages of one session in any order, duplicated and in fragments. Each message that runs is newer than all before; a
/// reference model says which run.
#[test]
fn fuzz_sessions_against_a_reference() {
    fuzz!(Vec<(u8, u8)>, |steps| {
        const FRAGMENTS: u16 = 3;
        let part = MTU_BYTES - HEADER_BYTES;
        let total = 2 * part + 8;
        let mut pair = Pair::new(1, 0);
        let (mut last, mut expected) = (0, 0);
        let mut gathered: (u64, BTreeSet<u16>) = (0, BTreeSet::new());
        for &(sequence, fragment) in steps {
            let sequence = u64::from(sequence % 16);
            let fragment = u16::from(fragment) % (FRAGMENTS + 1);
            let bytes = if fragment == FRAGMENTS {
                // A message of one packet.
                if sequence > last {
                    (last, expected) = (sequence, expected + 1);
                }
                packet(|header| header.contents.sequence = sequence)
            } else {
                if sequence > last && sequence > gathered.0 {
                    gathered = (sequence, BTreeSet::new());
                }
                if sequence > last && sequence == gathered.0 {
                    gathered.1.insert(fragment);
                    if gathered.1.len() == usize::from(FRAGMENTS) {
                        (last, expected) = (sequence, expected + 1);
                    }
                }
                let mut message = vec![0; total];
                message[4..8].copy_from_slice(&u32::try_from(total - 8).unwrap().to_le_bytes());
                let start = usize::from(fragment) * part;
                let mut bytes = packet(|header| {
                    header.contents.sequence = sequence;
                    header.contents.fragment = fragment;
                    header.contents.fragments = FRAGMENTS;
                    header.contents.message_bytes = u32::try_from(total).unwrap();
                });
                bytes.truncate(HEADER_BYTES);
                bytes.extend(&message[start..total.min(start + part)]);
                seal(&mut bytes);
                bytes
            };
            pair.network.borrow_mut().queues[1].push(bytes);
            pair.step();
            assert_eq!(pair.handlers[1].handled, expected, "after {sequence}, {fragment}");
        }
    });
}

#[test]
fn requests_to_a_node_that_is_given_up_count_as_answered() {
    const STATUS: u16 = 77;
    let mut pair = Pair::new(1, 0);
    let batch = pair.endpoints[0].batch(3);
    batch.borrow_mut().push(0, 5, b"own", 8).unwrap();
    batch.borrow_mut().push(1, 5, b"one", 8).unwrap();
    batch.borrow_mut().push(1, 5, b"two", 8).unwrap();
    pair.endpoints[0].submit(3, pair.now_ns);
    // More than there are credits for.
    for coroutine in 4..COROUTINES {
        pair.endpoints[0].batch(coroutine).borrow_mut().push(1, 5, b"held", 8).unwrap();
        pair.endpoints[0].submit(coroutine, pair.now_ns);
    }
    let late = std::mem::take(&mut pair.network.borrow_mut().queues[1]);
    pair.endpoints[0].give_up_on(1, STATUS);
    let ready: BTreeSet<u16> = std::iter::from_fn(|| pair.endpoints[0].take_ready()).collect();
    assert!(ready.iter().copied().eq(4..COROUTINES), "coroutine 3 waits for its own node");
    pair.endpoints[0].receive(&mut pair.handlers[0], &mut pair.incoming, 0);
    assert_eq!(pair.endpoints[0].take_ready(), Some(3));
    let mut answered = batch.borrow_mut();
    assert_ne!(answered.next_response(0).kind, STATUS);
    for _ in 0..2 {
        let answer = answered.next_response(1);
        assert_eq!((answer.kind, answer.payload), (STATUS, &[][..]));
    }
    answered.clear();
    drop(answered);
    for coroutine in 4..COROUTINES {
        pair.endpoints[0].batch(coroutine).borrow_mut().clear();
    }
    // It answers all the same, too late.
    pair.network.borrow_mut().queues[1] = late;
    (0..10).for_each(|_| pair.step());
    assert_eq!(pair.endpoints[0].take_ready(), None);
    assert_eq!(pair.endpoints[0].open_requests(), 0);
    assert!(pair.endpoints[0].counters().late_responses > 0);
}
