//! Members that are drained, and that hold their share again, while transactions go on.
//!
//! *Source*: `docs/simulation.md`, "Members that are drained".
//!
//! *Invariant*: a drain that is refused, or whose proposer dies, is none. The run goes on.
//!
//! *Not here*: what follows from it, in `placement` and `decider`.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::configuration::Change;
use crate::simulation::Simulation;

/// Keeps these draws apart from others of the same seed.
const STREAM: u64 = 0xd4a1_9000;
/// Most drains of a run.
const DRAINS_MAX: usize = 3;

/// When a member is drained, or holds its share again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// The member.
    pub node: u16,
    /// Whether it is drained.
    pub is_drained: bool,
    /// After this many transactions have begun.
    pub begins_at: u64,
    /// Whether all that followed from the ones before is to have ended, too. When no transactions are left, that is enough.
    pub in_turn: bool,
}

/// The drains of a simulation.
#[derive(Default)]
pub(super) struct Drains {
    /// Those that are still to come, the last one first.
    planned: Vec<Drain>,
    /// The proposer of the last one, and the number of the proposal, until it is answered.
    open: Option<(usize, u64)>,
    proposed: u64,
}

impl Drain {
    /// So many drains of members one after the other, each of which ends before the next begins.
    #[must_use]
    pub fn cycles(seed: u64, nodes: u16, transactions: u64, count: u64) -> Vec<Self> {
        let mut random = SmallRng::seed_from_u64(seed ^ STREAM);
        let cycle = |number: u64| {
            let node = random.random_range(0..nodes);
            [(true, 2 * number), (false, 2 * number + 1)].map(|(is_drained, step)| {
                let begins_at = transactions * step / (2 * count);
                Self { node, is_drained, begins_at, in_turn: true }
            })
        };
        (0..count).flat_map(cycle).collect()
    }

    /// The drains of a run, in every other one: of some members, and their ends for most.
    #[must_use]
    pub fn draw(seed: u64, nodes: u16, transactions: u64) -> Vec<Self> {
        let mut random = SmallRng::seed_from_u64(seed ^ STREAM);
        let mut drains = Vec::new();
        if random.random_bool(0.5) {
            return drains;
        }
        for _ in 0..random.random_range(1..=DRAINS_MAX) {
            let node = random.random_range(0..nodes);
            let begins_at = random.random_range(0..=transactions / 2);
            drains.push(Self { node, is_drained: true, begins_at, in_turn: false });
            if random.random_bool(0.6) {
                let begins_at = random.random_range(begins_at..=transactions);
                drains.push(Self { node, is_drained: false, begins_at, in_turn: false });
            }
        }
        drains
    }
}

impl std::fmt::Display for Drain {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, begins_at, is_drained, .. } = self;
        let what = if *is_drained { "is drained" } else { "is to hold its share" };
        write!(out, "node {node} {what} from transaction {begins_at}")
    }
}

impl Simulation {
    /// Plans drains of members.
    pub fn plan_drains(&mut self, mut drains: Vec<Drain>) {
        drains.sort_by_key(|drain| drain.begins_at);
        drains.reverse();
        self.drains.planned = drains;
    }

    /// Has members propose the drains whose time has come.
    pub(super) fn drain_members(&mut self, begun: u64) {
        while !self.awaits_answer()
            && let Some(next) = self.drains.planned.last()
        {
            let proposer = self.nodes.iter().position(|node| !node.has_ended);
            let is_due = match next.in_turn {
                false => next.begins_at <= begun,
                true => (next.begins_at <= begun || self.is_idle()) && self.is_placed(),
            };
            let Some(proposer) = proposer.filter(|_| is_due) else { return };
            let Some(drain) = self.drains.planned.pop() else { return };
            let Drain { node, is_drained, .. } = drain;
            self.trace.note(self.time.get(), || format!("drains: {drain}"));
            let change = Change::Drain { node, is_drained };
            let number = self.members.lock().propose(proposer, change);
            self.drains.open = number.map(|number| (proposer, number));
            self.members_due_ns = 0;
            self.drains.proposed += 1;
        }
    }

    /// Whether drains are still to come that follow each other, or one is to be decided, and a member lives.
    pub(super) fn awaits_drains(&self) -> bool {
        let has_living = self.nodes.iter().any(|node| !node.has_ended);
        let are_planned = self.drains.planned.iter().any(|drain| drain.in_turn);
        has_living && (are_planned || self.drains.open.is_some())
    }

    /// Whether the last proposal is still to be answered, and its proposer lives.
    fn awaits_answer(&mut self) -> bool {
        let members = &self.members;
        let ended = |node: usize| self.nodes[node].has_ended;
        self.drains.open.take_if(|(proposer, number)| {
            ended(*proposer) || members.lock().take_answer(*proposer, *number).is_some()
        });
        self.drains.open.is_some()
    }

    /// Bytes that members still have for partitions that they hold no more.
    #[must_use]
    pub fn bytes_of_others(&self) -> usize {
        let dead = self.dead();
        let nodes = self.cluster.nodes();
        let living = nodes.iter().filter(|node| !dead.contains(&usize::from(node.id())));
        let of_others = living.map(|node| {
            let configuration = node.view().shared_configuration();
            let held: BTreeSet<u16> = configuration.held_by(node.id()).collect();
            let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
            let others = partitions.filter(|partition| !held.contains(partition));
            others.map(|partition| node.used_bytes_of(partition)).sum::<usize>()
        });
        of_others.sum()
    }

    /// Copies that nodes have given up, as others have them.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.cluster.members.iter().map(|member| member.node().copies_given_up()).sum()
    }

    /// Drains and their ends that were proposed.
    #[must_use]
    pub fn drains(&self) -> u64 {
        self.drains.proposed
    }
}
