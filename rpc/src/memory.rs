//! The `memory` transport: rings between peer threads of nodes in one process.
//!
//! One ring per direction and pair of nodes, for each worker: worker i of a node talks only to
//! worker i of the others. A doorbell is one release store per destination of the batch. Where two
//! peers are driven by different OS threads it also wakes a thread that sleeps.

use crate::parking::Waker;
use crate::ring::{Consumer, ConsumerSet, Producer, ring};
use crate::transport::{PacketReceiver, PacketSender};

/// Most packets received in one batch: what the prefetch passes keep in flight.
const BATCH_MAX: usize = 64;
/// Only a full ring loses packets, and only a thread that does not run delays them.
const RETRANSMIT_FLOOR_NS: u64 = 5_000_000;
/// A ring holds at least this many of the largest packets.
const PACKETS_PER_RING_MIN: usize = 4;

/// All rings of a process, until its workers take their ends.
pub struct MemoryFabric {
    nodes: usize,
    mtu: usize,
    /// By (source, destination, worker).
    producers: Vec<Option<Producer>>,
    consumers: Vec<Option<Consumer>>,
    workers: usize,
}

impl MemoryFabric {
    /// Rings of `ring_bytes` (a power of two) for `nodes` nodes of `workers` workers each.
    ///
    /// # Panics
    /// If a ring would not hold a few packets of `mtu` bytes.
    #[must_use]
    pub fn new(nodes: usize, workers: usize, mtu: usize, ring_bytes: usize) -> Self {
        assert!(
            ring_bytes >= PACKETS_PER_RING_MIN * mtu,
            "a ring holds a few of the largest packets"
        );
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for index in 0..nodes * nodes * workers {
            let (source, destination) = (index / workers / nodes, index / workers % nodes);
            let ends = (source != destination).then(|| ring(ring_bytes)).unzip();
            producers.push(ends.0);
            consumers.push(ends.1);
        }
        Self { nodes, mtu, producers, consumers, workers }
    }

    /// Takes the ends of worker `worker` of `node`. `wakers` are those of its peers, by node.
    ///
    /// # Panics
    /// If they were taken before.
    pub fn take(
        &mut self,
        node: usize,
        worker: usize,
        own_waker: &Waker,
        wakers: &[Waker],
    ) -> (MemorySender, MemoryReceiver) {
        let index = |source: usize, destination: usize| {
            (source * self.nodes + destination) * self.workers + worker
        };
        let lanes = (0..self.nodes)
            .map(|peer| {
                let producer = self.producers[index(node, peer)].take();
                assert!(producer.is_some() || peer == node, "each worker's ends are taken once");
                let waker = &wakers[peer];
                let waker = (!waker.wakes_same_thread(own_waker)).then(|| waker.clone());
                SendLane { producer, waker, queued: false }
            })
            .collect();
        let consumers = (0..self.nodes)
            .filter_map(|peer| self.consumers[index(peer, node)].take())
            .collect::<Vec<_>>();
        let sender =
            MemorySender { lanes, rung: Vec::with_capacity(self.nodes), mtu: self.mtu, dropped: 0 };
        let receiver = MemoryReceiver { consumers: ConsumerSet::new(consumers.into_iter()) };
        (sender, receiver)
    }
}

struct SendLane {
    /// None for the worker's own node.
    producer: Option<Producer>,
    /// Only where another OS thread drives the peer.
    waker: Option<Waker>,
    /// Whether the present batch has packets for it.
    queued: bool,
}

/// The sending ends of one worker.
pub struct MemorySender {
    lanes: Vec<SendLane>,
    /// Destinations of the present batch.
    rung: Vec<u16>,
    mtu: usize,
    dropped: u64,
}

impl PacketSender for MemorySender {
    fn mtu(&self) -> usize {
        self.mtu
    }

    fn wants_checksum(&self) -> bool {
        false
    }

    fn retransmit_floor_ns(&self) -> u64 {
        RETRANSMIT_FLOOR_NS
    }

    #[inline]
    fn queue(&mut self, destination: u16, packet: &[u8]) {
        let lane = &mut self.lanes[usize::from(destination)];
        let producer = lane.producer.as_mut().expect("a node sends no packet to itself");
        if !producer.push(packet) {
            self.dropped += 1;
        } else if !lane.queued {
            lane.queued = true;
            self.rung.push(destination);
        }
    }

    #[inline]
    fn ring_doorbell(&mut self) {
        for destination in self.rung.drain(..) {
            let lane = &mut self.lanes[usize::from(destination)];
            lane.queued = false;
            if let Some(producer) = &mut lane.producer {
                producer.publish();
            }
            if let Some(waker) = &lane.waker {
                waker.wake();
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// The receiving ends of one worker.
pub struct MemoryReceiver {
    consumers: ConsumerSet,
}

impl PacketReceiver for MemoryReceiver {
    #[inline]
    fn poll(&mut self) -> usize {
        self.consumers.poll(BATCH_MAX)
    }

    #[inline(always)]
    fn packet(&self, index: usize) -> &[u8] {
        self.consumers.packet(index)
    }

    #[inline]
    fn release(&mut self) {
        self.consumers.release();
    }

    fn has_packets(&self) -> bool {
        self.consumers.has_packets()
    }
}
