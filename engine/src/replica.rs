//! The part of a member in changes of the configuration: the steps that the rounds of a change call, and that members
//! implement.
//!
//! ```text
//! change             prepare ─┬─ adopt ─ has_adopted                     (check_room before, if members take more partitions)
//!                             └─ abandon
//! hand-over          prepare ─ begin_hand_over ─ has_no_lock_holders ─┬─ adopt ─ count_hand_over
//!                                                                     └─ undo_hand_over ─ abandon
//! membership change  stop ─ records ─ flush ─ begin_epoch ─ has_adopted
//! ```
//! *Invariants*: one change is prepared at a time. `has_no_lock_holders`, `has_adopted` and `records` are asked until all
//! workers have come so far. A hand-over is undone only if it is certain not to be decided.
//!
//! *Source*: `docs/protocol.md`, "Hand-over of primaries" and "Membership change".
//!
//! *Not here*: what the members of a process do, in `local_members`; when they do it, in `change` and
//! `membership_change`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::configuration::Configuration;

/// Commit records, as log slots have them.
pub(crate) type Records = BTreeSet<Vec<u8>>;

/// What a member does for a change.
pub(crate) trait Replica {
    /// Its part of a configuration, which nobody uses yet.
    type Prepared;

    /// Makes its part.
    ///
    /// # Errors
    /// Why it cannot.
    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Self::Prepared, String>;

    /// Whether what it has would have room in a configuration that gives its nodes more partitions.
    ///
    /// # Errors
    /// Why it has not.
    fn check_room(&self, configuration: &Configuration) -> Result<(), String>;

    /// What was prepared last is not made.
    fn abandon(&mut self);

    /// Serves nobody any more at the partitions that have another primary in a configuration that was prepared.
    fn begin_hand_over(&mut self, configuration: &Configuration);

    /// Whether no bucket of these is locked any more.
    fn has_no_lock_holders(&self) -> bool;

    /// Serves them again, as the hand-over is certain not to be decided.
    fn undo_hand_over(&mut self);

    /// It has handed partitions over, and has served nobody there for some time.
    fn count_hand_over(&mut self, unserved: Duration);

    /// Goes by it.
    fn adopt(&mut self, prepared: Self::Prepared);

    /// Whether all its coroutines go by what was adopted last.
    fn has_adopted(&self) -> bool;

    /// Stops its workers for an epoch that is prepared.
    fn stop(&mut self, configuration: &Arc<Configuration>);

    /// The records that it has of the last active epoch; none until its workers have stopped.
    fn records(&self) -> Option<Records>;

    /// Applies the records of all members.
    ///
    /// # Errors
    /// Why it cannot.
    fn flush(&mut self, records: &Records) -> Result<(), String>;

    /// Has its workers begin the epoch.
    fn begin_epoch(&mut self, configuration: &Arc<Configuration>);
}
