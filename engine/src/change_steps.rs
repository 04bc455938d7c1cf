//! The lines in the log about a change of the membership: one for each step, with the time that it took.
//!
//! ```text
//! decider        removal decided ─▶ all have stopped ─▶ flushed ─▶ leases over ─▶ active ─▶ all work in the epoch
//! other members  removed, and the epoch prepared ───────────────────────────────▶ the epoch begins
//! ```
//! *Invariant*: times are those that the caller tells, and nothing depends on a line.
//!
//! *Not here*: the steps, in `decider` and `change`; how a loss is noticed, in `members`.

use std::collections::BTreeSet;

use crate::change_message::Loss;
use crate::configuration::{Configuration, Phase};

/// Milliseconds between two times in nanoseconds.
fn ms(from_ns: u64, to_ns: u64) -> f64 {
    to_ns.saturating_sub(from_ns) as f64 / 1e6
}

/// The steps as the decider sees them.
#[derive(Debug, Default)]
pub(crate) struct DeciderSteps {
    epoch: u32,
    /// Whether a member is removed, as far as is known.
    removes: bool,
    /// When the removal was decided, or the other primaries.
    decided_ns: u64,
    /// When the present step began.
    step_ns: u64,
}

impl DeciderSteps {
    fn begin(&mut self, (epoch, removes): (u32, bool), now_ns: u64) {
        (self.epoch, self.removes) = (epoch, removes);
        (self.decided_ns, self.step_ns) = (now_ns, now_ns);
    }

    /// The removal of a node is decided. It is not known how the node was lost if an earlier decider has begun its removal.
    pub(crate) fn removal_decided(
        &mut self,
        node: u16,
        how: Option<Loss>,
        epoch: u32,
        now_ns: u64,
    ) {
        self.begin((epoch, true), now_ns);
        let how = match how {
            Some(Loss::Silent) => ", which was suspected,",
            Some(Loss::Gone) => ", whose process has ended,",
            Some(Loss::Left) => ", which has left,",
            None => "",
        };
        tracing::info!(
            "membership: the removal of node {node}{how} is decided, and epoch {epoch} is prepared"
        );
    }

    /// Backups become primaries.
    pub(crate) fn rebalance_decided(&mut self, primaries: usize, epoch: u32, now_ns: u64) {
        self.begin((epoch, false), now_ns);
        tracing::info!(
            "membership: backups become primaries of {primaries} partitions, and epoch {epoch} is prepared"
        );
    }

    /// This decider goes on with an epoch that an earlier one has prepared.
    pub(crate) fn goes_on(&mut self, epoch: u32, now_ns: u64) {
        self.begin((epoch, true), now_ns);
        tracing::info!(
            "membership: this node goes on with epoch {epoch}, which an earlier decider has prepared"
        );
    }

    /// All members have stopped, and have told their records.
    pub(crate) fn stopped(&mut self, records: usize, now_ns: u64) {
        let (epoch, ms) = (self.epoch, ms(self.decided_ns, now_ns));
        self.step_ns = now_ns;
        tracing::info!(
            "membership: all members have stopped for epoch {epoch} {ms:.1} ms after the decision, with {records} records"
        );
    }

    /// All members have applied the records.
    pub(crate) fn flushed(&mut self, records: usize, now_ns: u64) {
        let (epoch, ms) = (self.epoch, ms(self.step_ns, now_ns));
        tracing::info!("membership: {records} records are flushed for epoch {epoch} in {ms:.1} ms");
    }

    /// The leases are over of the members that were removed.
    pub(crate) fn leases_over(&self, now_ns: u64) {
        if !self.removes {
            return;
        }
        let (epoch, ms) = (self.epoch, ms(self.decided_ns, now_ns));
        tracing::info!(
            "membership: the leases of removed nodes are over for epoch {epoch} {ms:.1} ms after the decision"
        );
    }

    /// The epoch is decided to be active.
    pub(crate) fn active(&self, now_ns: u64) {
        let (epoch, ms) = (self.epoch, ms(self.decided_ns, now_ns));
        tracing::info!("membership: epoch {epoch} is active {ms:.1} ms after the decision");
    }

    /// All members work in the epoch.
    pub(crate) fn ended(&self, now_ns: u64) {
        let (epoch, ms) = (self.epoch, ms(self.decided_ns, now_ns));
        tracing::info!(
            "membership: all members work in epoch {epoch} {ms:.1} ms after the decision"
        );
    }
}

/// The steps as another member sees them.
#[derive(Debug, Default)]
pub(crate) struct MemberSteps {
    prepared_ns: u64,
}

impl MemberSteps {
    /// The member goes by `present`, and has gone by `before`.
    pub(crate) fn follow(&mut self, before: &Configuration, present: &Configuration, now_ns: u64) {
        let epoch = present.epoch;
        if epoch > before.epoch {
            self.prepared_ns = now_ns;
            let known: BTreeSet<_> = before.removed().collect();
            let removed = present.removed().filter(|removed| !known.contains(removed));
            let removed: Vec<_> = removed.collect();
            for (node, _) in &removed {
                tracing::info!("membership: node {node} is removed, and epoch {epoch} is prepared");
            }
            if removed.is_empty() {
                tracing::info!(
                    "membership: backups become primaries, and epoch {epoch} is prepared"
                );
            }
        }
        if present.phase == Phase::Active && present.last_active_epoch > before.last_active_epoch {
            let ms = ms(self.prepared_ns, now_ns);
            tracing::info!("membership: epoch {epoch} begins {ms:.1} ms after it was prepared");
        }
    }
}
