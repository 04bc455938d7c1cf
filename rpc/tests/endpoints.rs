//! Two endpoints over a network that loses, doubles, reorders and damages packets; and packets that
//! nobody should send.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::rc::Rc;

use gannet_rpc::{
    Contents, Counters, Endpoint, Handler, Identity, Incoming, Kind, PacketHeader, PacketReceiver,
    PacketSender, ResponseWriter, Route,
};
use proptest::prelude::*;

const MTU_BYTES: usize = 1_500;
const STEP_NS: u64 = 10_000;
const COROUTINES: u16 = 2;

/// Packets under way to each of the two nodes, and what happens to them.
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

/// Answers with the payload, every byte raised by one, and counts.
#[derive(Default)]
struct Echo {
    handled: u64,
}

impl Handler for Echo {
    type Prepared = ();

    fn prepare(&self, _: u16, _: &[u8]) {}

    fn prefetch_next(&self, (): &()) {}

    fn handle(&mut self, (): (), payload: &[u8], response: &mut ResponseWriter<'_>) {
        self.handled += 1;
        response.push_with(payload.len(), |out| {
            for (answer, asked) in out.iter_mut().zip(payload) {
                *answer = asked.wrapping_add(1);
            }
            (9, payload.len())
        });
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
                let identity = Identity {
                    cluster_id: 1,
                    epoch: 1,
                    node,
                    worker: 0,
                    coroutines: COROUTINES,
                    incarnations: vec![1; 2],
                };
                let receiver = Receiver {
                    network: Rc::clone(&network),
                    node: usize::from(node),
                    batch: Vec::new(),
                };
                Endpoint::new(identity, Sender(Rc::clone(&network)), receiver)
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
fn messages_of_every_size_arrive_once_over_a_bad_network() {
    for seed in 0..5 {
        let mut pair = Pair::new(seed, 5);
        let calls: [&[usize]; 7] =
            [&[32], &[0, 5, 1_400], &[1_444], &[1_445, 3], &[100; 40], &[40_000], &[1 << 20, 17]];
        let mut requests = 0;
        for round in 0..3 {
            for (number, sizes) in (0..).zip(calls) {
                pair.call(number + 7 * round, sizes);
                requests += sizes.len() as u64;
            }
        }
        assert_eq!(pair.handlers[1].handled, requests, "each request ran once");
        let (client, server) = (pair.counters(0), pair.counters(1));
        assert!(client.retransmitted > 0 && client.corrupt > 0 && server.corrupt > 0);
        assert!(server.duplicates > 0, "{server:?}");
        assert_eq!((client.malformed, server.malformed), (0, 0));
    }
}

/// A well-formed packet with one empty request, changed by `change`.
fn packet(change: impl FnOnce(&mut PacketHeader)) -> Vec<u8> {
    let mut header = PacketHeader {
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
    let crc = crc32c::crc32c(&packet[4..]);
    packet[..4].copy_from_slice(&crc.to_le_bytes());
    packet
}

/// What node 1 counts when it receives `packet` alone, and whether it ran anything.
fn receive(packet: Vec<u8>) -> (Counters, u64) {
    let mut pair = Pair::new(1, 0);
    pair.network.borrow_mut().queues[1].push(packet);
    pair.step();
    (pair.counters(1), pair.handlers[1].handled)
}

#[test]
fn strangers_are_dropped_and_counted_by_what_is_wrong() {
    assert_eq!(receive(packet(|_| {})).1, 1, "the packet is right but for what is changed");
    type Case = (fn(&mut PacketHeader), fn(&Counters) -> u64);
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

proptest! {
    /// Whatever arrives, with a right checksum even, is dropped and counted, or run: nothing else.
    #[test]
    fn arbitrary_packets_do_no_harm(
        packets in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..120), any::<bool>(), 0_u64..4, 0_u16..4, 0_u16..4, any::<u32>()),
            1..20),
    ) {
        let mut pair = Pair::new(1, 0);
        for (tail, keep_header, sequence, fragment, fragments, message_bytes) in packets {
            let mut bytes = packet(|header| {
                header.contents.sequence = sequence;
                header.contents.fragment = fragment;
                header.contents.fragments = fragments;
                header.contents.message_bytes =
                    if keep_header { u32::try_from(tail.len()).unwrap() } else { message_bytes };
            });
            bytes.truncate(48);
            bytes.extend(tail);
            let crc = crc32c::crc32c(&bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            pair.network.borrow_mut().queues[1].push(bytes);
            pair.step();
        }
        // Sessions that nobody meddled with are served as before.
        pair.call(3, &[32, 5_000]);
    }
}
