//! Retransmission in virtual time: requests with lost packets are sent again soon, and delayed ones are not.
//!
//! Two endpoints share one thread; the test decides when each packet arrives, if at all. A test fails if a request runs
//! twice or never, if a lost one takes more round trips than its repetition needs, if random losses take most of the
//! rate, or if many requests are repeated without a loss.
//!
//! *Source*: `rpc/src/loss_detection.rs`, after RFC 8985, and `docs/architecture.md`, "RPC".
//!
//! *Not here*: losses by congestion (`incast.rs`), and damaged packets (`endpoints.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod echo;

use std::cell::RefCell;
use std::rc::Rc;

use echo::Echo;
use gannet_rpc::{Contents, Endpoint, Identity, Incoming, Kind, PacketReceiver, PacketSender};

const COROUTINES: u16 = 32;
const STEP_NS: u64 = 5_000;
/// The delay from one node to the other.
const WAY_NS: u64 = 50_000;
/// The minimum timeout, of twenty round trips.
const TIMEOUT_NS: u64 = 2_000_000;

/// When a packet arrives that is sent now, if it does.
type Fate = Box<dyn FnMut(&Contents, u64) -> Option<u64>>;

struct Network {
    /// By destination: arrival times, in the order of sending.
    under_way: [Vec<(u64, Vec<u8>)>; 2],
    fate: Fate,
    now_ns: u64,
}

struct Half {
    network: Rc<RefCell<Network>>,
    node: usize,
    batch: Vec<Vec<u8>>,
}

impl PacketSender for Half {
    fn mtu(&self) -> usize {
        1_400
    }

    fn wants_checksum(&self) -> bool {
        true
    }

    fn retransmit_floor_ns(&self) -> u64 {
        TIMEOUT_NS
    }

    fn loses_by_congestion(&self) -> bool {
        true
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        let mut network = self.network.borrow_mut();
        let now_ns = network.now_ns;
        if let Some(at_ns) = (network.fate)(&Contents::parse(packet).unwrap(), now_ns) {
            network.under_way[usize::from(destination)].push((at_ns, packet.to_vec()));
        }
    }

    fn ring_doorbell(&mut self) {}

    fn dropped(&self) -> u64 {
        0
    }
}

impl PacketReceiver for Half {
    fn poll(&mut self) -> usize {
        let mut network = self.network.borrow_mut();
        let now_ns = network.now_ns;
        let mut arrived: Vec<_> =
            network.under_way[self.node].extract_if(.., |(at_ns, _)| *at_ns <= now_ns).collect();
        arrived.sort_by_key(|(at_ns, _)| *at_ns);
        self.batch = arrived.into_iter().map(|(_, packet)| packet).collect();
        self.batch.len()
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.batch[index]
    }

    fn release(&mut self) {
        self.batch.clear();
    }
}

/// Coroutines of node 0, one of which sends a request to node 1 in every step.
struct Pair {
    network: Rc<RefCell<Network>>,
    endpoints: Vec<Endpoint<Half, Half>>,
    handlers: [Echo; 2],
    incoming: Vec<Incoming<()>>,
    free: Vec<u16>,
    sent: u64,
}

impl Pair {
    /// A pair whose round trips are known.
    fn new() -> Self {
        let fate: Fate = Box::new(|_, now_ns| Some(now_ns + WAY_NS));
        let under_way = [Vec::new(), Vec::new()];
        let network = Rc::new(RefCell::new(Network { under_way, fate, now_ns: 0 }));
        let half = |node| Half { network: Rc::clone(&network), node, batch: Vec::new() };
        let endpoint = |node: u16| {
            let incarnations = vec![1; 2];
            let (cluster_id, epoch, worker, coroutines) = (1, 1, 0, COROUTINES);
            let identity = Identity { cluster_id, epoch, node, worker, coroutines, incarnations };
            Endpoint::new(identity, half(node.into()), half(node.into()))
        };
        let endpoints = [0, 1].map(endpoint).into();
        let (handlers, incoming, free) =
            (Default::default(), Vec::new(), (0..COROUTINES).collect());
        let mut pair = Self { network, endpoints, handlers, incoming, free, sent: 0 };
        pair.send_for(4_000);
        pair.finish();
        assert_eq!(pair.sent_again(), 0);
        pair
    }

    fn now_ns(&self) -> u64 {
        self.network.borrow().now_ns
    }

    fn sent_again(&self) -> u64 {
        self.endpoints[0].counters().retransmitted
    }

    fn set_fate(&self, fate: impl FnMut(&Contents, u64) -> Option<u64> + 'static) {
        self.network.borrow_mut().fate = Box::new(fate);
    }

    /// Sends a request, if a coroutine is free.
    fn send(&mut self) -> Option<u16> {
        let coroutine = self.free.pop()?;
        let batch = self.endpoints[0].batch(coroutine);
        batch.borrow_mut().clear();
        batch.borrow_mut().push(1, 7, &[7; 32], 32).unwrap();
        let now_ns = self.now_ns();
        self.endpoints[0].submit(coroutine, now_ns);
        self.sent += 1;
        Some(coroutine)
    }

    /// Advances time. Coroutines whose requests were answered are free again.
    fn step(&mut self) {
        self.network.borrow_mut().now_ns += STEP_NS;
        let now_ns = self.now_ns();
        for (endpoint, handler) in self.endpoints.iter_mut().zip(&mut self.handlers) {
            endpoint.receive(handler, &mut self.incoming, now_ns);
            endpoint.retransmit(now_ns);
        }
        while let Some(coroutine) = self.endpoints[0].take_ready() {
            self.free.insert(0, coroutine);
        }
    }

    fn send_for(&mut self, steps: u64) {
        for _ in 0..steps {
            self.send();
            self.step();
        }
    }

    /// Waits for all answers.
    fn finish(&mut self) {
        let start_ns = self.now_ns();
        while self.free.len() < usize::from(COROUTINES) {
            self.step();
            assert!(self.now_ns() - start_ns < 1_000_000_000, "an answer never comes");
        }
        assert_eq!(self.handlers[1].handled, self.sent, "each request ran once");
        assert_eq!(self.endpoints[0].open_requests(), 0);
    }

    /// Loses the next packet of this kind, of a request that is sent now, and `others` after it. Returns how long the request
    /// takes to be answered.
    fn lose(&mut self, kind: Kind, others: u64) -> u64 {
        let lost = *self.free.last().unwrap();
        let mut is_lost = false;
        self.set_fate(move |contents, now_ns| {
            let strikes = !is_lost && (contents.kind, contents.coroutine) == (kind, lost);
            is_lost |= strikes;
            (!strikes).then_some(now_ns + WAY_NS)
        });
        let start_ns = self.now_ns();
        self.send();
        for step in 0.. {
            if step < others {
                self.send();
            }
            self.step();
            if self.free.contains(&lost) {
                break;
            }
            assert!(step < 100_000, "the answer never comes");
        }
        let took_ns = self.now_ns() - start_ns;
        self.finish();
        took_ns
    }
}

#[test]
fn a_lost_request_is_sent_again_after_a_round_trip_if_later_ones_are_answered() {
    for kind in [Kind::Request, Kind::Response] {
        let mut pair = Pair::new();
        // No loss is taken for a delay.
        for losses in 1..=10 {
            let took_ns = pair.lose(kind, 1);
            // Two round trips, a safety margin of a quarter, and a few steps.
            let most_ns = 2 * (2 * WAY_NS) + WAY_NS / 2 + 8 * STEP_NS;
            assert!(took_ns <= most_ns, "{kind:?}: loss {losses} took {took_ns} ns");
            assert_eq!(pair.sent_again(), losses, "{kind:?}");
        }
    }
}

#[test]
fn a_last_lost_request_is_sent_again_as_a_probe() {
    for kind in [Kind::Request, Kind::Response] {
        let mut pair = Pair::new();
        let took_ns = pair.lose(kind, 0);
        // Two round trips as a safety margin, and the probe's.
        assert!(took_ns <= 3 * (2 * WAY_NS) + 8 * STEP_NS, "{kind:?}: {took_ns} ns");
        assert_eq!(pair.sent_again(), 1, "{kind:?}");
    }
}

/// Requests answered within 200 ms, if so many packets of a thousand are lost.
fn answered_at(permille: u64) -> u64 {
    let mut pair = Pair::new();
    let mut random = 1_u64;
    pair.set_fate(move |_, now_ns| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((random >> 33) % 1_000 >= permille).then_some(now_ns + WAY_NS)
    });
    let handled = pair.handlers[1].handled;
    pair.send_for(40_000);
    let answered = pair.handlers[1].handled - handled;
    pair.finish();
    println!("{permille} of 1,000 lost: {answered} answered, {} sent again", pair.sent_again());
    answered
}

#[test]
fn random_losses_do_not_take_most_of_the_rate() {
    let [without, few, many] = [0, 10, 100].map(answered_at);
    assert!(few * 2 >= without && many * 5 >= without, "{without}, {few}, {many}");
}

#[test]
fn delayed_requests_are_sent_again_only_as_probes() {
    // Sometimes all packets are delayed for half of the timeout, as if a thread waited for its core.
    let mut pair = Pair::new();
    let period_ns = 4 * TIMEOUT_NS;
    pair.set_fate(move |_, now_ns| {
        let begins_ns = now_ns / period_ns * period_ns;
        Some((now_ns + WAY_NS).max(begins_ns + TIMEOUT_NS / 2))
    });
    let pauses = 10;
    pair.send_for(pauses * period_ns / STEP_NS);
    pair.finish();
    let again = pair.sent_again();
    assert!((pauses..=3 * pauses).contains(&again), "{again} of {} in {pauses} pauses", pair.sent);
}

#[test]
fn reordered_packets_are_soon_not_taken_for_lost() {
    let mut pair = Pair::new();
    let mut random = 1_u64;
    // Knuth's multiplicative generator. Round trips take one to three ways.
    pair.set_fate(move |_, now_ns| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        Some(now_ns + WAY_NS / 2 + (random >> 33) % WAY_NS)
    });
    pair.send_for(2_000);
    let (sent, again) = (pair.sent, pair.sent_again());
    pair.send_for(20_000);
    pair.finish();
    let (sent, again) = (pair.sent - sent, pair.sent_again() - again);
    println!("{again} of {sent} requests were sent again, and none was lost");
    assert!(again * 500 < sent, "{again} of {sent}");
}
