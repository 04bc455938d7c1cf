//! Nodes of a cluster of two or three, each an endpoint over a queue pair.
//!
//! Nodes with even numbers are on the device rx0, and the others on rx1. The nodes of a `Pair` share the thread of the
//! test. A call fails the test if an answer is wrong, or does not come within a minute.

use std::process::Command;

use gannet_rpc::{
    Clock, Counters, Endpoint, Identity, Incoming, MonotonicClock, Port, VerbsOptions, VerbsPort,
    VerbsReceiver, VerbsSender,
};

use crate::echo::Echo;

pub(crate) const COROUTINES: u16 = 20;
/// Longest wait for an answer.
pub(crate) const GIVE_UP_NS: u64 = 60_000_000_000;

/// Node `node` of `nodes`, on rx0 if it is even and on rx1 if it is odd.
pub(crate) fn options(node: u16, nodes: usize) -> VerbsOptions {
    let device = Some(format!("rx{}", node % 2));
    VerbsOptions { node, worker: 0, nodes, device, port: None, gid: None, mtu: None, key: None }
}

pub(crate) fn identity(node: u16, nodes: usize) -> Identity {
    Identity {
        cluster_id: 1,
        epoch: 1,
        node,
        worker: 0,
        coroutines: COROUTINES,
        incarnations: vec![1; nodes],
    }
}

/// Runs a command of the guest, which must succeed.
pub(crate) fn run(program: &str, arguments: &str) {
    let status = Command::new(program).args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "{program} {arguments}: {status}");
}

/// One node with its endpoint, handler and port.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint<VerbsSender, VerbsReceiver>,
    pub(crate) handler: Echo,
    incoming: Vec<Incoming<()>>,
}

impl Node {
    pub(crate) fn new(identity: Identity, port: VerbsPort) -> Self {
        let (sender, receiver) = port.split();
        let endpoint = Endpoint::new(identity, sender, receiver);
        Self { endpoint, handler: Echo::default(), incoming: Vec::new() }
    }

    /// Returns whether there was work.
    pub(crate) fn step(&mut self, now_ns: u64) -> bool {
        let progressed = self.endpoint.receive(&mut self.handler, &mut self.incoming, now_ns);
        self.endpoint.retransmit(now_ns);
        progressed
    }

    /// Sends a batch of payloads of these sizes to another node.
    pub(crate) fn submit(&mut self, coroutine: u16, to: u16, sizes: &[usize], now_ns: u64) {
        let batch = self.endpoint.batch(coroutine);
        batch.borrow_mut().clear();
        for (fill, &size) in (0..).zip(sizes) {
            batch.borrow_mut().push(to, 7, &vec![fill; size], size).unwrap();
        }
        self.endpoint.submit(coroutine, now_ns);
        self.endpoint.ring_doorbell();
    }

    /// Checks the answers to a batch of payloads of these sizes.
    pub(crate) fn check(&self, coroutine: u16, from: u16, sizes: &[usize]) {
        let batch = self.endpoint.batch(coroutine);
        let mut batch = batch.borrow_mut();
        for (fill, &size) in (0_u8..).zip(sizes) {
            assert!(
                batch.next_response(from).payload == vec![fill + 1; size],
                "the answer is wrong"
            );
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        self.endpoint.counters()
    }
}

/// Two nodes on this thread.
pub(crate) struct Pair {
    pub(crate) nodes: [Node; 2],
    pub(crate) clock: MonotonicClock,
}

/// Opens the ports of a cluster, and exchanges their addresses.
pub(crate) fn connected<const N: usize>(options: [VerbsOptions; N]) -> [VerbsPort; N] {
    let mut ports = options.map(|options| VerbsPort::open(&options).unwrap());
    let addresses = ports.each_ref().map(|port| Some(port.address()));
    ports.iter_mut().for_each(|port| port.connect(&addresses).unwrap());
    ports
}

impl Pair {
    pub(crate) fn new(change: impl Fn(&mut VerbsOptions)) -> Self {
        let options = [0, 1].map(|node| {
            let mut options = options(node, 2);
            change(&mut options);
            options
        });
        let mut node = 0..;
        let nodes =
            connected(options).map(|port| Node::new(identity(node.next().unwrap(), 2), port));
        Self { nodes, clock: MonotonicClock::new() }
    }

    pub(crate) fn step(&mut self) {
        let now_ns = self.clock.now_ns();
        for node in &mut self.nodes {
            node.step(now_ns);
        }
        // This processor does the device's work, too.
        std::thread::yield_now();
    }

    /// Node 0 sends a batch from every coroutine to node 1 and checks the answers.
    pub(crate) fn call(&mut self, sizes: &[usize]) {
        self.call_and(sizes, |_| {});
    }

    pub(crate) fn call_and(&mut self, sizes: &[usize], mut meanwhile: impl FnMut(&mut Self)) {
        let start_ns = self.clock.now_ns();
        for coroutine in 0..COROUTINES {
            self.nodes[0].submit(coroutine, 1, sizes, start_ns);
        }
        let mut answered = 0;
        while answered < COROUTINES {
            meanwhile(self);
            self.step();
            while let Some(coroutine) = self.nodes[0].endpoint.take_ready() {
                answered += 1;
                self.nodes[0].check(coroutine, 1, sizes);
            }
            let took_ns = self.clock.now_ns() - start_ns;
            let seen = self.nodes.each_ref().map(Node::counters);
            assert!(took_ns < GIVE_UP_NS, "{answered} answered: {seen:?}");
        }
    }
}
