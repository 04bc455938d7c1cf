//! Faults begin when so many transactions have begun, and end when their time is over.
//!
//! *Invariants*: what a fault draws comes from its own seed. A fault of a node counts as firing when it begins; the
//! network counts those of its own when they strike a packet. A paused node stands until the last of its pauses is over;
//! its members' thread stands up to two leases longer.
//!
//! *Source*: `docs/simulation.md`, "The simulator".
//!
//! *Not here*: which faults a run has, in `faults.rs`; what the network and the streams do meanwhile, in `network.rs` and
//! `streams.rs`.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::simulation::faults::FaultKind;
use crate::simulation::{LEASE_NS, Simulation};

/// A slow node waits up to this long between two steps.
const SLOW_NS_MAX: u64 = 2_000_000;
/// A clock jumps forward by up to this.
const JUMP_NS_MAX: u64 = 2_000_000_000;

impl Simulation {
    pub(super) fn begin_faults(&mut self, begun: u64) {
        while let Some(fault) = self.planned.pop_if(|fault| fault.begins_at <= begun) {
            let end_ns = self.time.get() + fault.lasts_ns;
            self.trace.note(self.time.get(), || format!("begins: {fault}"));
            self.last_end_ns = self.last_end_ns.max(end_ns);
            self.active.push((end_ns, fault));
            let node = &mut self.nodes[usize::from(fault.node)];
            let mut random = SmallRng::seed_from_u64(fault.seed);
            match fault.kind {
                FaultKind::Pause => {
                    let stood_until_ns = node.stands_until_ns.max(self.time.get());
                    node.stands_until_ns = node.stands_until_ns.max(end_ns);
                    if self.clocks_stand {
                        let rate = self.members.lock().rate_of(usize::from(fault.node));
                        rate.stand(node.stands_until_ns - stood_until_ns);
                    }
                    if self.has_leases {
                        // Its workers often go on before it hears that it was removed.
                        let late_ns = random.random_range(0..2 * LEASE_NS);
                        let until_ns = self.joined_at_ns.get() + end_ns + late_ns;
                        self.members.lock().stand(usize::from(fault.node), until_ns);
                        self.members_due_ns = 0;
                    }
                }
                FaultKind::Slow => {
                    node.step_ns = SLOW_NS_MAX * u64::from(fault.permille) / 1_000;
                }
                FaultKind::StreamBreak => {
                    self.members.lock().break_all(usize::from(fault.node));
                    self.members_due_ns = 0;
                }
                FaultKind::ClockRate => node.clock.set_rate(random.random_range(800..1_200)),
                FaultKind::ClockJump => {
                    node.clock.jump(random.random_range(1..JUMP_NS_MAX));
                }
                FaultKind::OneWayPartition
                | FaultKind::FullPartition
                | FaultKind::RingPartition
                    if self.has_leases =>
                {
                    self.members.lock().cut(fault, self.joined_at_ns.get() + end_ns);
                    self.network.borrow_mut().begin(fault);
                    continue;
                }
                _ => {
                    self.network.borrow_mut().begin(fault);
                    continue;
                }
            }
            self.network.borrow_mut().firings.count(fault.kind);
        }
    }

    pub(super) fn end_faults(&mut self) {
        let now_ns = self.time.get();
        while let Some(index) = self.active.iter().position(|&(end_ns, _)| end_ns <= now_ns) {
            let (_, fault) = self.active.swap_remove(index);
            self.trace.note(now_ns, || format!("ends: {fault}"));
            let node = &mut self.nodes[usize::from(fault.node)];
            match fault.kind {
                FaultKind::Slow => node.step_ns = 0,
                FaultKind::ClockRate => node.clock.set_rate(1_000),
                FaultKind::Pause | FaultKind::ClockJump | FaultKind::StreamBreak => {}
                _ => self.network.borrow_mut().end(&fault),
            }
        }
    }
}
