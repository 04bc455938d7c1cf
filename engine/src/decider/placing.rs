//! The decider's steps towards copies that are missing, and towards primaries that are spread evenly.
//!
//! ```text
//! copies are missing  ──▶ Learn ─▶ Fill ─▶ Learned, for each learner when it has copied all rows
//! all copies are there ──▶ Rebalance
//! ```
//! *Invariant*: a learner becomes a backup after it has said that it has all rows. Primaries change when nobody learns.

use crate::configuration::{Change, Configuration, Learner};
use crate::decider::Decider;
use crate::placement;

impl Decider {
    /// The next step. All members go by the configuration.
    pub(super) fn next_step(&mut self, configuration: &Configuration) -> Option<Change> {
        let terms = self.terms?;
        let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
        let mut learners = partitions.flat_map(|partition| {
            configuration.learners(partition).iter().map(move |learner| (partition, learner))
        });
        let mut waits = false;
        let learned = learners.find(|(partition, learner)| {
            waits |= !learner.fills;
            self.copied.contains(&(*partition, learner.node, learner.since)) && learner.fills
        });
        if let Some((partition, &Learner { node, since, .. })) = learned {
            return Some(Change::Learned { partition, node, since });
        }
        if waits || configuration.changes_log_groups() {
            return Some(Change::Fill);
        }
        let Some(change) = self.wanted(configuration) else {
            self.copies_due_ns = None;
            return None;
        };
        // If all nodes are there, none is waited for that may come back.
        let after_ns = if configuration.is_complete() { 0 } else { terms.copies_after_ns() };
        let due_ns = *self.copies_due_ns.get_or_insert(self.now_ns + after_ns);
        if self.now_ns < due_ns {
            return None;
        }
        if let Change::Learn(missing) = &change {
            tracing::info!("membership: {} copies of partitions are made again", missing.len());
        }
        Some(change)
    }

    /// What is missing towards the placement, beside the learners that there are.
    fn wanted(&mut self, configuration: &Configuration) -> Option<Change> {
        let missing = placement::learners(configuration);
        if !missing.is_empty() {
            return Some(Change::Learn(missing));
        }
        configuration.settled_placement()?;
        self.copied.clear();
        let primaries = placement::primaries(configuration);
        (!primaries.is_empty()).then_some(Change::Rebalance(primaries))
    }
}
