//! The `simulated` transport: packets in virtual time, struck by the faults of the run.
//!
//! *Invariants*: a packet arrives at the virtual time that was drawn when it was sent. All draws come from the seed and from the
//! generator of each fault.
//!
//! *Not here*: which faults a run has, in `faults.rs`.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use gannet_rpc::{PacketReceiver, PacketSender};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::cluster::MTU_BYTES;
use crate::simulation::clock::VirtualTime;
use crate::simulation::faults::{Fault, FaultKind, Firings};

/// Fastest and slowest way of an unharmed packet, in nanoseconds.
const DELAY_NS: std::ops::Range<u64> = 5_000..25_000;
/// Least timeout: a few round trips.
const RETRANSMIT_FLOOR_NS: u64 = 100_000;
/// A duplicate follows its packet within this.
const DUPLICATE_NS_MAX: u64 = 100_000;
/// A late duplicate follows within this.
const LATE_NS_MAX: u64 = 10_000_000_000;
/// A packet that is overtaken is late by up to this.
const REORDER_NS_MAX: u64 = 100_000;
/// A packet in the tail of the delays takes up to this.
const TAIL_NS_MAX: u64 = 20_000_000;
/// Most packets of a burst of losses.
const BURST_PACKETS_MAX: u32 = 30;
/// Packets that wait at a worker before further ones are lost, as in a socket's buffer.
const INBOX_PACKETS_MAX: usize = 4_096;

/// Largest packets of networks: the least that IPv4 promises, Ethernet's, jumbo frames, ours.
const MTUS_BYTES: [usize; 4] = [576, 1_500, 9_000, MTU_BYTES];

/// A worker of a node.
pub(crate) type Address = (u16, u16);

struct InFlight {
    source: u16,
    to: Address,
    packet: Vec<u8>,
}

/// A fault that has begun and not ended.
struct Active {
    fault: Fault,
    random: SmallRng,
    /// Packets of a burst that are still to be lost.
    burst_left: u32,
}

/// All links of a simulated cluster.
pub(crate) struct Network {
    time: VirtualTime,
    nodes: u16,
    mtu: usize,
    random: SmallRng,
    /// By arrival and a serial number that parts equals; what arrives is in `slots`.
    arrivals: BinaryHeap<Reverse<(u64, u64, usize)>>,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
    serial: u64,
    active: Vec<Active>,
    pub(crate) firings: Firings,
}

impl Network {
    pub(crate) fn new(time: VirtualTime, nodes: u16, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        Self {
            time,
            nodes,
            mtu: MTUS_BYTES[random.random_range(0..MTUS_BYTES.len())],
            random,
            arrivals: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            active: Vec::new(),
            firings: Firings::default(),
        }
    }

    /// Lets a fault of the network begin.
    pub(crate) fn begin(&mut self, fault: Fault) {
        let random = SmallRng::seed_from_u64(fault.seed);
        self.active.push(Active { fault, random, burst_left: 0 });
    }

    /// Lets it end.
    pub(crate) fn end(&mut self, fault: &Fault) {
        self.active.retain(|active| active.fault != *fault);
    }

    /// When the next packet arrives.
    pub(crate) fn next_arrival_ns(&self) -> Option<u64> {
        self.arrivals.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes a packet that has arrived by now: its sender, its receiver, its bytes.
    pub(crate) fn take_arrived(&mut self) -> Option<(u16, Address, Vec<u8>)> {
        let Reverse((at, _, slot)) = *self.arrivals.peek()?;
        if at > self.time.get() {
            return None;
        }
        self.arrivals.pop();
        self.free.push(slot);
        let InFlight { source, to, packet } = self.slots[slot].take()?;
        Some((source, to, packet))
    }

    fn send(&mut self, source: u16, to: Address, packet: &[u8]) {
        let mut packet = packet.to_vec();
        let mut delay = self.random.random_range(DELAY_NS);
        let mut copies = Vec::new();
        let Self { active, firings, nodes, .. } = self;
        for active in active {
            let Active { fault, random, burst_left } = active;
            if fault.cuts(source, to.0, *nodes) {
                firings.count(fault.kind);
                return;
            }
            let is_struck = random.random_range(0..1000) < fault.permille;
            let is_hit = match fault.kind {
                FaultKind::Burst => {
                    fault.is_on_link(source, to.0) && (is_struck || *burst_left > 0)
                }
                _ => is_struck,
            };
            if !is_hit {
                continue;
            }
            match fault.kind {
                FaultKind::Loss => {
                    firings.count(fault.kind);
                    return;
                }
                FaultKind::Burst => {
                    if *burst_left == 0 {
                        *burst_left = random.random_range(2..=BURST_PACKETS_MAX);
                        firings.count(fault.kind);
                    }
                    *burst_left -= 1;
                    return;
                }
                FaultKind::Duplicate => copies.push(random.random_range(1..DUPLICATE_NS_MAX)),
                FaultKind::LateDuplicate => copies.push(random.random_range(1..LATE_NS_MAX)),
                FaultKind::Reorder => delay += random.random_range(1..REORDER_NS_MAX),
                FaultKind::DelayTail => delay += random.random_range(1..TAIL_NS_MAX),
                FaultKind::BitFlip => {
                    if packet.is_empty() {
                        continue;
                    }
                    let at = random.random_range(0..packet.len());
                    packet[at] ^= 1 << random.random_range(0..8);
                }
                FaultKind::Truncation => {
                    let end = random.random_range(0..=packet.len().saturating_sub(1));
                    packet.truncate(end);
                }
                _ => continue,
            }
            firings.count(fault.kind);
        }
        for later in copies {
            self.launch(source, to, packet.clone(), delay + later);
        }
        self.launch(source, to, packet, delay);
    }

    fn launch(&mut self, source: u16, to: Address, packet: Vec<u8>, delay_ns: u64) {
        let in_flight = Some(InFlight { source, to, packet });
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = in_flight;
                slot
            }
            None => {
                self.slots.push(in_flight);
                self.slots.len() - 1
            }
        };
        self.serial += 1;
        self.arrivals.push(Reverse((self.time.get() + delay_ns, self.serial, slot)));
    }
}

impl Fault {
    /// Whether it keeps all packets from `source` to `destination` from arriving.
    pub(super) fn cuts(&self, source: u16, destination: u16, nodes: u16) -> bool {
        match self.kind {
            FaultKind::OneWayPartition => self.is_on_link(source, destination),
            FaultKind::FullPartition => source == self.node || destination == self.node,
            FaultKind::RingPartition => {
                let apart = source.abs_diff(destination);
                apart != 1 && (nodes <= 3 || apart != nodes - 1)
            }
            _ => false,
        }
    }

    fn is_on_link(&self, source: u16, destination: u16) -> bool {
        (source, destination) == (self.node, self.peer)
    }
}

/// A worker's packets that have arrived and were not received.
#[derive(Default)]
pub(crate) struct Inbox(Vec<Vec<u8>>);

impl Inbox {
    /// Adds a packet, or loses it if there are too many.
    pub(crate) fn push(&mut self, packet: Vec<u8>) {
        if self.0.len() < INBOX_PACKETS_MAX {
            self.0.push(packet);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The sending half of a simulated worker's transport.
pub(crate) struct SimulatedSender {
    pub(crate) network: Rc<RefCell<Network>>,
    pub(crate) source: Address,
}

impl PacketSender for SimulatedSender {
    fn mtu(&self) -> usize {
        self.network.borrow().mtu
    }

    fn wants_checksum(&self) -> bool {
        true
    }

    fn retransmit_floor_ns(&self) -> u64 {
        RETRANSMIT_FLOOR_NS
    }

    /// As over sockets, so that what follows from it is simulated.
    fn loses_packets(&self) -> bool {
        true
    }

    fn queue(&mut self, destination: u16, packet: &[u8]) {
        let (source, worker) = self.source;
        self.network.borrow_mut().send(source, (destination, worker), packet);
    }

    fn ring_doorbell(&mut self) {}

    fn dropped(&self) -> u64 {
        0
    }
}

/// The receiving half of a simulated worker's transport.
pub(crate) struct SimulatedReceiver {
    inbox: Rc<RefCell<Inbox>>,
    batch: Vec<Vec<u8>>,
}

impl PacketReceiver for SimulatedReceiver {
    fn poll(&mut self) -> usize {
        std::mem::swap(&mut self.batch, &mut self.inbox.borrow_mut().0);
        self.batch.len()
    }

    fn packet(&self, index: usize) -> &[u8] {
        &self.batch[index]
    }

    fn release(&mut self) {
        self.batch.clear();
    }
}

impl SimulatedReceiver {
    pub(crate) fn new(inbox: Rc<RefCell<Inbox>>) -> Self {
        Self { inbox, batch: Vec::new() }
    }
}
