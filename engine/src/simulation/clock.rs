//! A node's clock: virtual time, seen at a wrong rate or after a jump forward.
//!
//! *Invariant*: the clock never goes back, whatever is set.
//!
//! *Not here*: which clocks are wrong, and when: faults of the run set them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_rpc::Clock;

/// One in the rate's unit.
const PERMILLE: i128 = 1_000;

/// Nanoseconds of virtual time since the simulation began, shared by all who read it.
pub(crate) type VirtualTime = Rc<Cell<u64>>;

/// A node's view of virtual time.
pub(crate) struct NodeClock {
    time: VirtualTime,
    /// Where this clock stood at `since_ns` of virtual time.
    at_since_ns: Cell<u64>,
    since_ns: Cell<u64>,
    /// Nanoseconds that it counts in a microsecond.
    rate_permille: Cell<u32>,
}

impl NodeClock {
    pub(crate) fn new(time: VirtualTime) -> Self {
        let (at_since_ns, since_ns) = (Cell::new(0), Cell::new(0));
        Self { time, at_since_ns, since_ns, rate_permille: Cell::new(1_000) }
    }

    /// Lets the clock run at `permille` thousandths of the right rate from now on.
    pub(crate) fn set_rate(&self, permille: u32) {
        self.set(self.now_ns());
        self.rate_permille.set(permille.max(1));
    }

    /// Moves the clock forward by `by_ns`.
    pub(crate) fn jump(&self, by_ns: u64) {
        self.set(self.now_ns().saturating_add(by_ns));
    }

    fn set(&self, to_ns: u64) {
        self.at_since_ns.set(to_ns);
        self.since_ns.set(self.time.get());
    }

    /// The virtual time at which this clock will show `local_ns`.
    pub(crate) fn virtual_ns(&self, local_ns: u64) -> u64 {
        let left = i128::from(local_ns) - i128::from(self.at_since_ns.get());
        let rate = i128::from(self.rate_permille.get());
        let stretched = (left * PERMILLE + rate - 1).div_euclid(rate);
        u64::try_from(i128::from(self.since_ns.get()) + stretched).unwrap_or(0)
    }
}

impl Clock for NodeClock {
    fn now_ns(&self) -> u64 {
        let passed = i128::from(self.time.get() - self.since_ns.get());
        let counted = passed * i128::from(self.rate_permille.get()) / PERMILLE;
        u64::try_from(i128::from(self.at_since_ns.get()) + counted).unwrap_or(u64::MAX)
    }
}

/// How a member's clock runs, by which it counts leases. No such clock is set.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    /// Nanoseconds that it counts in a microsecond.
    permille: u32,
    /// For how long it has stood still.
    stood_ns: Arc<AtomicU64>,
}

impl Rate {
    pub(crate) fn new(permille: u32) -> Self {
        Self { permille, stood_ns: Arc::default() }
    }

    /// What the clock shows at a virtual time.
    pub(crate) fn local_ns(&self, virtual_ns: u64) -> u64 {
        Self::scaled(virtual_ns, self.permille, 1_000).saturating_sub(self.stood_ns())
    }

    /// The first virtual time at which the clock shows this.
    pub(crate) fn virtual_ns(&self, local_ns: u64) -> u64 {
        Self::scaled(local_ns.saturating_add(self.stood_ns()), 1_000, self.permille)
    }

    /// The clock stands still for so much virtual time, during which nobody reads it.
    pub(crate) fn stand(&self, virtual_ns: u64) {
        let counted_ns = u128::from(virtual_ns) * u128::from(self.permille) / 1_000;
        let counted_ns = u64::try_from(counted_ns).unwrap_or(u64::MAX);
        // Relaxed: a simulation has one thread.
        self.stood_ns.fetch_add(counted_ns, Ordering::Relaxed);
    }

    fn stood_ns(&self) -> u64 {
        self.stood_ns.load(Ordering::Relaxed)
    }

    /// Rounded up, as a deadline must have come when it is handled.
    fn scaled(ns: u64, by: u32, of: u32) -> u64 {
        let scaled = (u128::from(ns) * u128::from(by)).div_ceil(u128::from(of));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Virtual time as a member counts it, leases among it: it begins before that of the workers.
pub(super) struct MembersClock {
    time: VirtualTime,
    ahead_ns: VirtualTime,
    rate: Rate,
}

impl MembersClock {
    pub(super) fn new(time: VirtualTime, ahead_ns: VirtualTime, rate: Rate) -> Self {
        Self { time, ahead_ns, rate }
    }
}

impl Clock for MembersClock {
    fn now_ns(&self) -> u64 {
        self.rate.local_ns(self.time.get() + self.ahead_ns.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_met_at_every_rate() {
        let time = VirtualTime::default();
        let clock = NodeClock::new(Rc::clone(&time));
        for (rate, jump) in [(1_000, 0), (800, 5), (1_199, 1_000_000), (1_000, 7)] {
            clock.set_rate(rate);
            clock.jump(jump);
            let local = clock.now_ns() + 12_345;
            let due = clock.virtual_ns(local);
            assert!(due > time.get());
            time.set(due - 1);
            assert!(clock.now_ns() < local, "at rate {rate}");
            time.set(due);
            assert!(clock.now_ns() >= local, "at rate {rate}");
        }
    }
}
