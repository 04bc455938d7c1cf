//! Tables that grow and shrink while transactions go on, whatever rows they have.
//!
//! *Source*: `docs/simulation.md`, "Tables that grow and shrink".
//!
//! *Not here*: when tables do so by themselves, which is by their rows (crate `storage`).

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::configuration::Configuration;
use crate::simulation::Simulation;

/// Keeps these draws apart from others of the same seed.
const STREAM: u64 = 0x5a4e_0000;
/// Most reshapes of a run.
const RESHAPES_MAX: usize = 12;
/// Buckets that a partition gets at most.
const BORN_MAX: u32 = 40;

/// The reshapes of a simulation.
pub(super) struct Reshapes {
    /// After how many transactions those begin that are still to come, the last one first.
    planned: Vec<u64>,
    /// Whether primaries split buckets of new tables as soon as they have heard of them.
    is_eager: bool,
    /// By node: the tables that it was last seen with.
    seen: Vec<Arc<Configuration>>,
    random: SmallRng,
}

impl Reshapes {
    pub(super) fn none() -> Self {
        let random = SmallRng::seed_from_u64(STREAM);
        Self { planned: Vec::new(), is_eager: false, seen: Vec::new(), random }
    }
}

impl Simulation {
    /// Plans reshapes for a run of so many transactions.
    pub fn plan_reshapes(&mut self, seed: u64, transactions: u64) {
        let mut random = SmallRng::seed_from_u64(seed ^ STREAM);
        let count = random.random_range(0..=RESHAPES_MAX);
        let mut planned: Vec<u64> =
            (0..count).map(|_| random.random_range(0..=transactions)).collect();
        planned.sort_unstable_by_key(|begins_at| std::cmp::Reverse(*begins_at));
        let is_eager = random.random_bool(0.5);
        self.reshapes = Reshapes { planned, is_eager, seen: Vec::new(), random };
    }

    /// Asks for more buckets of each table that has come to a node, whatever others have heard of the table.
    fn reshape_new_tables(&mut self) {
        let Reshapes { seen, random, .. } = &mut self.reshapes;
        let nodes = self.cluster.nodes();
        let unseen = nodes.iter().skip(seen.len()).map(|node| node.view().shared_configuration());
        seen.extend(unseen);
        for (node, seen) in nodes.iter().zip(seen) {
            let view = node.view();
            let configuration = view.configuration();
            if configuration.version == seen.version {
                continue;
            }
            for (number, _) in configuration.tables_since(seen) {
                let new = view.table(number).filter(|_| seen.table(number).is_none());
                for partition in (0..).take(configuration.partitioning.count()) {
                    let more = random.random_range(0..BORN_MAX);
                    new.inspect(|it| it.want_buckets(partition, it.layout().buckets + more));
                }
            }
            *seen = view.shared_configuration();
        }
    }

    /// Asks for other numbers of buckets of some partitions, if the time of a reshape has come.
    pub(super) fn reshape_tables(&mut self, begun: u64) {
        if self.reshapes.is_eager {
            self.reshape_new_tables();
        }
        let Reshapes { planned, random, .. } = &mut self.reshapes;
        if planned.last().is_none_or(|begins_at| *begins_at > begun) {
            return;
        }
        planned.pop();
        let nodes = self.cluster.nodes();
        let partitions = self.cluster.configuration().partitioning.count();
        let tables: Vec<u32> = self.cluster.view().tables().map(|(number, _)| number).collect();
        for table in tables {
            for partition in (0..=u16::MAX).take(partitions) {
                // By its rows, as few as can be, or some number between that and more than it has.
                let kind = random.random_range(0..4_u8);
                let more = random.random_range(0..BORN_MAX);
                if kind == 0 {
                    continue;
                }
                for node in &nodes {
                    let view = node.view();
                    let Some(table) = view.table(table) else { continue };
                    let roots = table.layout().buckets;
                    let asked = match kind {
                        1 => 0,
                        2 => roots,
                        _ => roots.saturating_add(more),
                    };
                    table.want_buckets(partition, asked);
                }
            }
        }
    }

    /// How often halves of buckets were merged, at the copies that nodes have now.
    #[must_use]
    pub fn merges(&self) -> u64 {
        let mut merges = 0;
        for node in self.cluster.nodes() {
            let view = node.view();
            for (_, table) in view.tables() {
                let partitions = (0..=u16::MAX).take(view.configuration().partitioning.count());
                merges += partitions.map(|it| u64::from(table.merge_count(it))).sum::<u64>();
            }
        }
        merges
    }
}
