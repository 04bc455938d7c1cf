//! What may go wrong in a simulated cluster, when it does in a run, and how often it did.
//!
//! A fault begins after a number of transactions has begun, not at a time. So it strikes transactions in
//! flight, however fast they run. It lasts for a span of virtual time. Each fault draws from a generator of
//! its own: a plan without one of its faults leaves the others as they were.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::simulation::LEASE_NS;

/// A way in which network, nodes or clocks misbehave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// Packets are lost one by one.
    Loss,
    /// Runs of packets on one link are lost.
    Burst,
    /// Packets arrive twice.
    Duplicate,
    /// Packets arrive again up to 10 seconds later.
    LateDuplicate,
    /// Packets are overtaken by later ones.
    Reorder,
    /// Packets take up to 20 milliseconds.
    DelayTail,
    /// Bits of packets change.
    BitFlip,
    /// Packets lose their ends.
    Truncation,
    /// One node does not reach one other.
    OneWayPartition,
    /// One node reaches no other and is not reached.
    FullPartition,
    /// Nodes reach only their neighbours in a ring; of three nodes, in a chain.
    RingPartition,
    /// A node stands still for up to 30 seconds.
    Pause,
    /// A node takes a step only now and then.
    Slow,
    /// A node's clock runs too fast or too slowly, by up to a fifth.
    ClockRate,
    /// A node's clock jumps forward by up to two seconds.
    ClockJump,
    /// The streams between a node and all others break.
    StreamBreak,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 16] = [
        Self::Loss,
        Self::Burst,
        Self::Duplicate,
        Self::LateDuplicate,
        Self::Reorder,
        Self::DelayTail,
        Self::BitFlip,
        Self::Truncation,
        Self::OneWayPartition,
        Self::FullPartition,
        Self::RingPartition,
        Self::Pause,
        Self::Slow,
        Self::ClockRate,
        Self::ClockJump,
        Self::StreamBreak,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Burst => "burst",
            Self::Duplicate => "duplicate",
            Self::LateDuplicate => "late duplicate",
            Self::Reorder => "reorder",
            Self::DelayTail => "delay tail",
            Self::BitFlip => "bit flip",
            Self::Truncation => "truncation",
            Self::OneWayPartition => "one-way partition",
            Self::FullPartition => "full partition",
            Self::RingPartition => "ring partition",
            Self::Pause => "pause",
            Self::Slow => "slow node",
            Self::ClockRate => "clock rate",
            Self::ClockJump => "clock jump",
            Self::StreamBreak => "stream break",
        }
    }

    /// Shortest and longest span, in nanoseconds of virtual time.
    fn span_ns(self) -> (u64, u64) {
        match self {
            Self::Pause => (1_000_000, 30_000_000_000),
            Self::OneWayPartition | Self::FullPartition | Self::RingPartition => {
                (100_000, 200_000_000)
            }
            _ => (100_000, 50_000_000),
        }
    }

    /// Whether it strikes packet by packet, with a probability.
    fn strikes_packets(self) -> bool {
        matches!(
            self,
            Self::Loss
                | Self::Burst
                | Self::Duplicate
                | Self::LateDuplicate
                | Self::Reorder
                | Self::DelayTail
                | Self::BitFlip
                | Self::Truncation
        )
    }
}

/// One fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// It begins once this many transactions have begun.
    pub begins_at: u64,
    /// How long it lasts, in nanoseconds of virtual time.
    pub lasts_ns: u64,
    /// The node that it strikes, or whose packets, where it strikes one.
    pub node: u16,
    /// The other end, where it strikes a link.
    pub peer: u16,
    /// How hard: the share of packets, of steps, or of the clock's rate or range, in thousandths.
    pub permille: u32,
    /// Seed of what it draws.
    pub seed: u64,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, begins_at, lasts_ns, node, peer, permille, .. } = self;
        let ms = *lasts_ns as f64 / 1e6;
        write!(out, "{} of {permille} permille for {ms:.3} ms ", kind.name())?;
        write!(out, "from transaction {begins_at}, node {node}, peer {peer}")
    }
}

/// The faults of one run: each kind with even chances, some of them twice.
#[must_use]
pub fn draw_faults(seed: u64, nodes: u16, transactions: u64) -> Vec<Fault> {
    let mut random = SmallRng::seed_from_u64(seed ^ 0x6661_756c_7473);
    let mut faults = Vec::new();
    for kind in FaultKind::ALL {
        for _ in 0..random.random_range(0..3) {
            let (shortest, longest) = kind.span_ns();
            // Spans of very different length, each order of magnitude alike.
            let magnitude = random.random_range(0.0..(longest as f64 / shortest as f64).ln());
            let stretch = f64::exp(magnitude);
            let node = random.random_range(0..nodes);
            faults.push(Fault {
                kind,
                begins_at: random.random_range(0..transactions.max(1)),
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a span between the two bounds"
                )]
                lasts_ns: (shortest as f64 * stretch) as u64,
                node,
                peer: (node + random.random_range(1..nodes.max(2))) % nodes,
                permille: if kind.strikes_packets() {
                    random.random_range(1..200)
                } else {
                    random.random_range(1..=1000)
                },
                seed: random.random(),
            });
        }
    }
    faults
}

/// So many pauses of members, longer than a lease each.
#[must_use]
pub fn pauses(seed: u64, nodes: u16, transactions: u64, count: u64) -> Vec<Fault> {
    let mut random = SmallRng::seed_from_u64(seed ^ 0x7061_7573_6573);
    let pause = |_| {
        let node = random.random_range(0..nodes);
        Fault {
            kind: FaultKind::Pause,
            begins_at: random.random_range(0..transactions.max(1)),
            lasts_ns: random.random_range(2 * LEASE_NS..20 * LEASE_NS),
            node,
            peer: (node + 1) % nodes,
            permille: 1_000,
            seed: random.random(),
        }
    };
    (0..count).map(pause).collect()
}

/// How often each kind of fault struck while transactions were in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Firings([u64; FaultKind::ALL.len()]);

impl Firings {
    pub(crate) fn count(&mut self, kind: FaultKind) {
        self.0[kind as usize] += 1;
    }

    /// How often `kind` struck.
    #[must_use]
    pub fn of(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn_within_its_bounds() {
        let faults: Vec<_> = (0..100).flat_map(|seed| draw_faults(seed, 5, 1_000)).collect();
        for kind in FaultKind::ALL {
            let of_kind: Vec<_> = faults.iter().filter(|fault| fault.kind == kind).collect();
            assert!(of_kind.len() > 50, "{kind:?} was drawn {} times", of_kind.len());
            let (shortest, longest) = kind.span_ns();
            for fault in of_kind {
                assert!((shortest..=longest).contains(&fault.lasts_ns), "{fault}");
                assert!(fault.node < 5 && fault.peer < 5 && fault.node != fault.peer, "{fault}");
            }
        }
        assert_eq!(draw_faults(3, 5, 10), draw_faults(3, 5, 10));
    }
}
