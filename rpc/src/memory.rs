//! The `memory` transport: rings between peer threads of nodes in one process, or in several on one host.
//!
//! Each worker has one ring per direction and pair of nodes: worker i of a node talks only to
//! worker i of the others. A doorbell is one release store per destination of the batch. Where two
//! peers are driven by different OS threads it also wakes a thread that sleeps.
//!
//! The rings that lead to a node lie in a segment of memory that is the node's own:
//!
//! ```text
//! header, 128 bytes | a word to sleep at per worker, 128 bytes each | rings, by worker and source
//! ```
//!
//! *Not here*: how processes find each other's segments, in `shared`.

mod shared;

use std::sync::Arc;

use crate::memory::shared::Finder;
use crate::parking::Waker;
use crate::ring::memory::{CONTROL_BYTES, LINE_BYTES, Segment, SharedWord};
use crate::ring::{Consumer, ConsumerSet, Producer, ring_in};
use crate::transport::{PacketReceiver, PacketSender, Port, Refused};

pub use shared::{SharedRings, SharedRingsError};

/// Most packets received in one batch: what the prefetch passes keep in flight.
const BATCH_MAX: usize = 64;
/// Only a full ring loses packets, and only a thread that does not run delays them.
const RETRANSMIT_FLOOR_NS: u64 = 5_000_000;
/// A ring holds at least this many of the largest packets.
const PACKETS_PER_RING_MIN: usize = 4;

/// How many nodes and workers there are, and the sizes of their packets and rings.
#[derive(Clone, Copy, Debug)]
struct Shape {
    nodes: usize,
    workers: usize,
    mtu: usize,
    ring_bytes: usize,
}

impl Shape {
    /// # Panics
    /// If a ring would not hold a few packets of `mtu` bytes.
    fn new(nodes: usize, workers: usize, mtu: usize, ring_bytes: usize) -> Self {
        assert!(
            ring_bytes >= PACKETS_PER_RING_MIN * mtu,
            "a ring holds a few of the largest packets"
        );
        Self { nodes, workers, mtu, ring_bytes }
    }

    /// Bytes of a node's segment.
    fn segment_bytes(&self) -> usize {
        self.ring_at(self.workers, 0)
    }

    /// Where worker `worker` sleeps.
    fn word(&self, segment: &Arc<Segment>, worker: usize) -> SharedWord {
        SharedWord::new(segment, (1 + worker) * LINE_BYTES)
    }

    fn ring_at(&self, worker: usize, source: usize) -> usize {
        let before = worker * self.nodes + source;
        (1 + self.workers) * LINE_BYTES + before * (CONTROL_BYTES + self.ring_bytes)
    }

    /// The ends of the ring that leads from `source` to worker `worker` of the segment's node.
    fn ring(&self, segment: &Arc<Segment>, worker: usize, source: usize) -> (Producer, Consumer) {
        ring_in(segment, self.ring_at(worker, source), self.ring_bytes)
    }
}

/// All rings of a process that holds all nodes, until its workers take their ends.
pub struct MemoryFabric {
    shape: Shape,
    /// By (source, destination, worker).
    producers: Vec<Option<Producer>>,
    consumers: Vec<Option<Consumer>>,
}

impl MemoryFabric {
    /// Rings of `ring_bytes` (a power of two) for `nodes` nodes of `workers` workers each.
    ///
    /// # Panics
    /// If a ring would not hold a few packets of `mtu` bytes, or the system has no memory.
    #[must_use]
    pub fn new(nodes: usize, workers: usize, mtu: usize, ring_bytes: usize) -> Self {
        let shape = Shape::new(nodes, workers, mtu, ring_bytes);
        let segment = |_| Segment::private(shape.segment_bytes()).expect("memory for the rings");
        let segments: Vec<_> = (0..nodes).map(segment).collect();
        let (mut producers, mut consumers) = (Vec::new(), Vec::new());
        for index in 0..nodes * nodes * workers {
            let (source, destination) = (index / workers / nodes, index / workers % nodes);
            let ring = || shape.ring(&segments[destination], index % workers, source);
            let ends = (source != destination).then(ring).unzip();
            producers.push(ends.0);
            consumers.push(ends.1);
        }
        Self { shape, producers, consumers }
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
    ) -> MemoryPort {
        let Shape { nodes, workers, mtu, .. } = self.shape;
        let index =
            |source: usize, destination: usize| (source * nodes + destination) * workers + worker;
        let lanes = (0..nodes)
            .map(|peer| {
                let producer = self.producers[index(node, peer)].take();
                assert!(producer.is_some() || peer == node, "each worker's ends are taken once");
                let waker = &wakers[peer];
                let waker = (!waker.wakes_same_thread(own_waker)).then(|| waker.clone());
                SendLane { producer, waker, queued: false }
            })
            .collect();
        let consumers = (0..nodes).filter_map(|peer| self.consumers[index(peer, node)].take());
        (MemorySender::new(lanes, mtu), MemoryReceiver { consumers: ConsumerSet::new(consumers) })
    }
}

/// Both halves of one worker's transport.
pub type MemoryPort = (MemorySender, MemoryReceiver);

impl Port for MemoryPort {
    type Sender = MemorySender;
    type Receiver = MemoryReceiver;

    const POLL_IS_SYSTEM_CALL: bool = false;

    fn split(self) -> Self {
        self
    }
}

struct SendLane {
    /// None for the worker's own node, and for a node that is not there.
    producer: Option<Producer>,
    /// Only where another OS thread drives the peer.
    waker: Option<Waker>,
    /// Whether the present batch has packets for it.
    queued: bool,
}

/// The sending ends of one worker.
pub struct MemorySender {
    lanes: Vec<SendLane>,
    /// How it finds the memory of other processes, if nodes are processes.
    finder: Option<Finder>,
    /// Destinations of the present batch.
    rung: Vec<u16>,
    mtu: usize,
    dropped: u64,
}

impl MemorySender {
    fn new(lanes: Vec<SendLane>, mtu: usize) -> Self {
        Self { rung: Vec::with_capacity(lanes.len()), lanes, finder: None, mtu, dropped: 0 }
    }
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

    #[inline(always)]
    fn queue(&mut self, destination: u16, packet: &[u8]) {
        let lane = &mut self.lanes[usize::from(destination)];
        // A process that has come back may have ended before its memory was found.
        if !lane.producer.as_mut().is_some_and(|producer| producer.push(packet)) {
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

    fn reconnect(&mut self, node: u16, told: &str) -> Result<(), String> {
        if let Some(finder) = &self.finder {
            let lane = finder.lane(usize::from(node), told).map_err(|error| error.to_string())?;
            self.lanes[usize::from(node)] = lane;
        }
        Ok(())
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

    fn refused(&self) -> Refused {
        Refused { foreign: self.consumers.broken() as u64, ..Refused::default() }
    }
}
