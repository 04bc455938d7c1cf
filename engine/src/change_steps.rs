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
use std::time::Duration;

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
    /// When the removal was decided.
    decided_ns: u64,
    /// When the present step began.
    step_ns: u64,
    /// When a decision went to the manager's log.
    decides_ns: u64,
}

impl DeciderSteps {
    fn begin(&mut self, epoch: u32, now_ns: u64) {
        self.epoch = epoch;
        (self.decided_ns, self.step_ns) = (now_ns, now_ns);
    }

    /// A decision goes to the manager's log.
    pub(crate) fn decides(&mut self, now_ns: u64) {
        self.decides_ns = now_ns;
    }

    /// Backups become primaries.
    pub(crate) fn hand_over_decided(&self, primaries: usize, now_ns: u64) {
        let ms = ms(self.decides_ns, now_ns);
        tracing::info!(
            "membership: backups become primaries of {primaries} partitions, which the manager's log has taken in {ms:.2} ms"
        );
    }

    /// The removal of a node is decided. It is not known how the node was lost if an earlier decider has begun its removal.
    pub(crate) fn removal_decided(
        &mut self,
        node: u16,
        how: Option<Loss>,
        epoch: u32,
        now_ns: u64,
    ) {
        self.begin(epoch, now_ns);
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

    /// This decider goes on with an epoch that an earlier one has prepared.
    pub(crate) fn goes_on(&mut self, epoch: u32, now_ns: u64) {
        self.begin(epoch, now_ns);
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
    /// When the member has begun to hand partitions over.
    hands_over_ns: Option<u64>,
}

impl MemberSteps {
    /// The member serves nobody any more at the partitions that it hands over.
    pub(crate) fn hands_over(&mut self, now_ns: u64) {
        self.hands_over_ns = Some(now_ns);
    }

    /// Node `node` goes by `present`, and has gone by `before`. If it has handed partitions over, for how long it has served nobody there.
    pub(crate) fn handed_over(
        &mut self,
        node: usize,
        before: &Configuration,
        present: &Configuration,
        now_ns: u64,
    ) -> Option<Duration> {
        let is_own = |it: &u16| usize::from(before.primary(*it)) == node;
        let partitions = present.moved_since(before).filter(is_own).count();
        let since_ns = self.hands_over_ns.take().filter(|_| partitions > 0)?;
        let ms = ms(since_ns, now_ns);
        tracing::info!(
            "membership: this node has handed {partitions} partitions over, and has served nobody there for {ms:.2} ms"
        );
        Some(Duration::from_nanos(now_ns.saturating_sub(since_ns)))
    }

    /// The member goes by `present`, and has gone by `before`.
    pub(crate) fn follow(&mut self, before: &Configuration, present: &Configuration, now_ns: u64) {
        let epoch = present.epoch;
        if epoch > before.epoch {
            self.prepared_ns = now_ns;
            let known: BTreeSet<_> = before.removed().collect();
            let removed = present.removed().filter(|removed| !known.contains(removed));
            for (node, _) in removed {
                tracing::info!("membership: node {node} is removed, and epoch {epoch} is prepared");
            }
        }
        if present.phase == Phase::Active && present.last_active_epoch > before.last_active_epoch {
            let ms = ms(self.prepared_ns, now_ns);
            tracing::info!("membership: epoch {epoch} begins {ms:.1} ms after it was prepared");
        }
    }
}
