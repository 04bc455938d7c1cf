//! The decider's steps towards copies that are missing or in the wrong place, and towards primaries that are spread evenly.
//!
//! ```text
//! copies are missing, or to move ──▶ Learn ─▶ Fill ─▶ Learned, for each learner when it has copied all rows
//! there are more than are wanted ──▶ Dismiss ─▶ Fill: they get no more updates ─▶ Fill: they are given back
//! other primaries are wanted     ──▶ HandOver
//! ```
//! *Invariants*: a learner becomes a backup after it has said that it has all rows. Primaries change, and copies go, when nobody learns. The
//! next step follows when all transactions go by the one before.

use crate::configuration::{Change, Configuration};
use crate::decider::Decider;
use crate::placement;

impl Decider {
    /// The next step. All members go by the configuration.
    pub(super) fn next_step(&mut self, configuration: &Configuration) -> Option<Change> {
        let terms = self.terms?;
        let next = placement::under_way(configuration, &self.copied);
        if next.is_some() {
            return next;
        }
        let Some(change) = self.wanted(configuration) else {
            self.copies_due_ns = None;
            return None;
        };
        // If all nodes are there, none is waited for that may come back. The operator who drains a node waits for the drain.
        let is_drain = configuration.has_drained() && configuration.copies_missing() == 0;
        let is_due = configuration.is_complete() || is_drain;
        let after_ns = if is_due { 0 } else { terms.copies_after_ns() };
        let due_ns = *self.copies_due_ns.get_or_insert(self.now_ns + after_ns);
        if self.now_ns < due_ns {
            return None;
        }
        match &change {
            Change::Learn(copies) if configuration.copies_missing() == 0 => {
                tracing::info!("membership: {} copies of partitions move", copies.len());
            }
            Change::Learn(copies) => {
                tracing::info!("membership: {} copies of partitions are made again", copies.len());
            }
            Change::Dismiss(copies) => {
                tracing::info!("membership: {} copies of partitions are given up", copies.len());
            }
            _ => {}
        }
        Some(change)
    }

    /// What is missing towards the placement, beside the learners that there are.
    fn wanted(&mut self, configuration: &Configuration) -> Option<Change> {
        if self.placed_since == Some(configuration.version) {
            return None;
        }
        if configuration.settled_placement().is_none() {
            let missing = placement::learners(configuration);
            let may_learn = self.now_ns >= self.learns_at_ns && !missing.is_empty();
            return may_learn.then_some(Change::Learn(missing));
        }
        self.copied.clear();
        let changes = placement::next_changes(configuration);
        self.placed_since = changes.is_empty().then_some(configuration.version);
        let may_learn = self.now_ns >= self.learns_at_ns;
        changes.into_iter().find(|change| may_learn || !matches!(change, Change::Learn(_)))
    }
}
