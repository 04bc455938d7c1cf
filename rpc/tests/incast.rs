//! Many senders that wait for each other, and one slower receiver: its rate of answers, with windows that follow losses
//! and with fixed windows, in virtual time.
//!
//! All endpoints share one thread. The receiver takes 4 packets in a step, and the network loses packets beyond a queue
//! of 64. The test fails if windows that follow losses give less than 0.4 of the receiver's capacity, or need more than
//! 0.3 repetitions for each answer. It fails, too, if fixed windows do not collapse: then the receiver was not overrun.
//!
//! *Not here*: how far a loss shrinks a window (the unit tests in `rpc/src/window.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use gannet_rpc::{
    Endpoint, Handler, Identity, Incoming, PacketReceiver, PacketSender, ResponseWriter,
};

const CLIENTS: u16 = 16;
const COROUTINES: u16 = 48;
const STEP_NS: u64 = 10_000;
/// Packets that the network queues for the receiver; further ones are lost.
const QUEUE_PACKETS: usize = 64;
/// Packets that the receiver takes in a step: its capacity.
const PACKETS_PER_STEP: usize = 4;
const ROUNDS: u64 = 60;
/// Upper bound for the steps of a run.
const STEPS_MAX: u64 = 100_000_000;

/// Packets on their way, by destination; node 0 is the receiver.
type Queues = Rc<RefCell<Vec<VecDeque<Vec<u8>>>>>;

struct Sender {
    queues: Queues,
    follows_losses: bool,
    dropped: u64,
}

impl PacketSender for Sender {
    fn mtu(&self) -> usize {
        1_400
    }

    fn wants_checksum(&self) -> bool {
        false
    }

    fn retransmit_floor_ns(&self) -> u64 {
        2_000_000
    }

    fn loses_by_congestion(&self) -> bool {
        self.follows_losses
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        let queue = &mut self.queues.borrow_mut()[usize::from(destination)];
        if destination == 0 && queue.len() == QUEUE_PACKETS {
            self.dropped += 1;
        } else {
            queue.push_back(packet.to_vec());
        }
    }

    fn ring_doorbell(&mut self) {}

    fn dropped(&self) -> u64 {
        self.dropped
    }
}

struct Receiver {
    queues: Queues,
    node: usize,
    batch: Vec<Vec<u8>>,
}

impl PacketReceiver for Receiver {
    fn poll(&mut self) -> usize {
        let queue = &mut self.queues.borrow_mut()[self.node];
        let count = if self.node == 0 { queue.len().min(PACKETS_PER_STEP) } else { queue.len() };
        self.batch = queue.drain(..count).collect();
        count
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.batch[index]
    }

    fn release(&mut self) {
        self.batch.clear();
    }
}

struct Echo;

impl Handler for Echo {
    type Prepared = ();

    fn prepare(&self, _: u16, _: &[u8]) {}

    fn prefetch(&self, (): &()) {}

    fn prefetch_next(&self, (): &()) {}

    fn handle(&mut self, (): (), _: &[u8], response: &mut ResponseWriter<'_>) {
        response.push(1);
    }
}

/// In each round every coroutine of every client sends a request to node 0, and waits for all others. Returns the answers as
/// a share of node 0's capacity, and the retransmitted packets per answer.
fn run(follows_losses: bool) -> (f64, f64) {
    let nodes = CLIENTS + 1;
    let queues: Queues = Rc::new(RefCell::new(vec![VecDeque::new(); usize::from(nodes)]));
    let mut endpoints: Vec<_> = (0..nodes)
        .map(|node| {
            let (cluster_id, epoch, worker, incarnations) = (1, 1, 0, vec![1; usize::from(nodes)]);
            let coroutines = COROUTINES;
            let identity = Identity { cluster_id, epoch, node, worker, coroutines, incarnations };
            let sender = Sender { queues: Rc::clone(&queues), follows_losses, dropped: 0 };
            let (queues, node) = (Rc::clone(&queues), usize::from(node));
            Endpoint::new(identity, sender, Receiver { queues, node, batch: Vec::new() })
        })
        .collect();
    let each_round = u64::from(CLIENTS) * u64::from(COROUTINES);
    let mut incoming: Vec<Incoming<()>> = Vec::new();
    let (mut steps, mut random) = (0, 1_u64);
    for _ in 0..ROUNDS {
        for endpoint in &mut endpoints[1..] {
            for coroutine in 0..COROUTINES {
                let batch = endpoint.batch(coroutine);
                batch.borrow_mut().clear();
                batch.borrow_mut().push(0, 1, &[7; 32], 0).unwrap();
                endpoint.submit(coroutine, steps * STEP_NS);
            }
        }
        let mut answered = 0;
        while answered < each_round {
            steps += 1;
            assert!(steps < STEPS_MAX, "{answered} of {each_round} answered");
            for (node, endpoint) in endpoints.iter_mut().enumerate() {
                // The order must not decide which client is served, so a client runs in about every second step. Knuth's
                // multiplicative generator.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if node > 0 && random >> 63 == 0 {
                    continue;
                }
                endpoint.receive(&mut Echo, &mut incoming, steps * STEP_NS);
                while endpoint.take_ready().is_some() {
                    answered += 1;
                }
                endpoint.retransmit(steps * STEP_NS);
            }
        }
    }
    let requests = ROUNDS * each_round;
    assert_eq!(endpoints[0].counters().requests, requests, "each ran once");
    assert!(endpoints.iter().all(|endpoint| endpoint.open_requests() == 0), "credits came back");
    let again: u64 = endpoints.iter().map(|endpoint| endpoint.counters().retransmitted).sum();
    let goodput = requests as f64 / (steps * PACKETS_PER_STEP as u64) as f64;
    (goodput, again as f64 / requests as f64)
}

#[test]
fn an_incast_does_not_collapse() {
    let (goodput, again) = run(true);
    println!("windows that follow losses: {goodput:.3} of the capacity, {again:.3} sent again");
    let (fixed_goodput, fixed_again) = run(false);
    println!("fixed windows: {fixed_goodput:.3} of the capacity, {fixed_again:.3} sent again");
    assert!(goodput > 0.4 && again < 0.3, "{goodput} answered, {again} sent again");
    assert!(fixed_goodput < 0.02 && fixed_again > 1.0, "the receiver was not overrun");
}
