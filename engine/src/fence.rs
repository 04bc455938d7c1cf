//! The fence: what a worker may not do while its node has no lease.
//!
//! ```text
//! responses and requests ─▶ Fenced ── the lease is held now ─▶ the transport
//! a transaction that logs nothing ─▶ Round::hold_lease ── it is held now, and its reads are confirmed ─▶ its end
//! ```
//! *Invariant*: the clock is read after the data.
//!
//! *Not here*: leases, in `lease`.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use gannet_rpc::{Clock, PacketSender};
use gannet_rules::rule;

use crate::lease::ENDLESS;
use crate::node::Node;

/// A waiting transaction looks again whether there is a lease.
const LOOK_NS: u64 = 500_000;
/// It looks again whether its reads are confirmed: after a part of a round trip between hosts.
const CONFIRMATION_LOOK_NS: u64 = 30_000;

/// Without the rule that the clock is read after the data, it is read once in so many steps.
const CACHED_STEPS: u32 = 1_024;

/// The lease of its node, as a worker sees it.
pub(crate) struct WorkerLease {
    node: Arc<Node>,
    /// That of the lease.
    clock: Rc<dyn Clock>,
    /// That of the worker.
    worker_clock: Rc<dyn Clock>,
    /// A time that is some steps old, for a test that removes a rule.
    cached_ns: Cell<u64>,
    steps: Cell<u32>,
}

impl WorkerLease {
    pub(crate) fn new(node: Arc<Node>, clock: Rc<dyn Clock>, worker_clock: Rc<dyn Clock>) -> Self {
        Self { node, clock, worker_clock, cached_ns: Cell::new(0), steps: Cell::new(0) }
    }

    /// Whether the lease is held now, if no clock stands still. What was read before was right then.
    #[inline(always)]
    pub(crate) fn is_held(&self) -> bool {
        let until_ns = self.node.lease().until_ns();
        until_ns == ENDLESS || self.now_ns() < until_ns || !rule!(LEASES)
    }

    /// Whether a transaction that logs nothing may end now, without a wait for anything.
    #[inline(always)]
    pub(crate) fn suffices(&self) -> bool {
        self.is_held() && !self.node.lease().confirms_reads()
    }

    /// Whether what was read at this time, on the clock of the lease, is right.
    pub(crate) fn is_confirmed(&self, read_ns: u64) -> bool {
        self.node.is_confirmed(read_ns) || !rule!(CONFIRMED_READS)
    }

    /// The time on the clock of the lease.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        if rule!(CLOCK_AFTER_DATA) { self.clock.now_ns() } else { self.cached_ns.get() }
    }

    /// A step of the worker has ended.
    #[inline(always)]
    fn end_step(&self) {
        if !rule!(CLOCK_AFTER_DATA) {
            self.steps.set(self.steps.get().wrapping_add(1));
            if self.steps.get().is_multiple_of(CACHED_STEPS) {
                self.cached_ns.set(self.clock.now_ns());
            }
        }
    }

    /// When to look again, on the worker's clock.
    pub(crate) fn next_look_ns(&self) -> u64 {
        let is_held = self.is_held();
        self.worker_clock.now_ns() + if is_held { CONFIRMATION_LOOK_NS } else { LOOK_NS }
    }
}

/// Sends packets while the lease is held; others wait, or are lost if there is no room for them.
pub(crate) struct Fenced<S> {
    sender: S,
    lease: Rc<WorkerLease>,
    has_packets: bool,
    dropped: u64,
}

impl<S> Fenced<S> {
    pub(crate) fn new(sender: S, lease: Rc<WorkerLease>) -> Self {
        Self { sender, lease, has_packets: false, dropped: 0 }
    }
}

impl<S: PacketSender> PacketSender for Fenced<S> {
    fn mtu(&self) -> usize {
        self.sender.mtu()
    }

    fn wants_checksum(&self) -> bool {
        self.sender.wants_checksum()
    }

    fn retransmit_floor_ns(&self) -> u64 {
        self.sender.retransmit_floor_ns()
    }

    fn loses_by_congestion(&self) -> bool {
        self.sender.loses_by_congestion()
    }

    fn loses_packets(&self) -> bool {
        self.sender.loses_packets()
    }

    fn reconnect(&mut self, node: u16, told: &str) -> Result<(), String> {
        self.sender.reconnect(node, told)
    }

    fn is_full(&self) -> bool {
        self.sender.is_full()
    }

    #[inline(always)]
    fn queue(&mut self, destination: u16, packet: &[u8]) {
        if self.sender.is_full() && !self.lease.is_held() {
            self.dropped += 1;
            return;
        }
        self.has_packets = true;
        self.sender.queue(destination, packet);
    }

    #[inline(always)]
    fn ring_doorbell(&mut self) {
        if !self.has_packets || self.lease.is_held() {
            self.has_packets = false;
            self.sender.ring_doorbell();
        }
        self.lease.end_step();
    }

    fn dropped(&self) -> u64 {
        self.sender.dropped() + self.dropped
    }
}
