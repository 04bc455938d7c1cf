//! The pass of a worker that gives back the memory of partitions that its node has no part of any more, and of tables that were dropped.
//!
//! ```text
//! a view without the partition is adopted ─ all older views are gone ─▶ buckets are emptied, a few at a time ─▶ Freed, to the decider
//! a view without the table is adopted     ─ all older views are gone ─▶ buckets are emptied, a few at a time
//! ```
//! The holder of a view may use its tables and partitions. So nothing is given back before all views are gone in which the
//! node has the partition: those of other workers, of coroutines, and of threads that load rows or compare copies.
//!
//! *Source*: `docs/protocol.md`, "Copies that move".
//!
//! *Not here*: which copies are given up, in `placement`; what a partition is made of, in crate `storage`.

use std::sync::Arc;

use gannet_storage::Table;

use crate::node::Node;
use crate::view::View;

/// Buckets of one step: some tens of microseconds where they are full.
const BUCKETS_PER_STEP: u32 = 256;
/// Leaves of an index of one step.
const LEAVES_PER_STEP: usize = 32;
/// Time between two steps, nanoseconds.
const STEP_NS: u64 = 200_000;
/// The same while older views are used.
const WAIT_NS: u64 = 1_000_000;

/// See the module's text.
#[derive(Default)]
pub(crate) struct GivingBack {
    /// When its next step is due; none while there is nothing to give back.
    due_ns: Option<u64>,
    /// The next bucket of the partition and the table that it has come to.
    bucket: u32,
    /// A table that was dropped, and the partition of it that it has come to.
    dropped: Option<(Arc<Table>, u16)>,
}

impl GivingBack {
    /// Another view is adopted.
    pub(crate) fn begin(&mut self) {
        self.due_ns = Some(self.due_ns.unwrap_or(0));
    }

    /// When the next step is due, in nanoseconds.
    #[inline(always)]
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Gives back a little, of the partitions of worker `number` of `workers`.
    #[cold]
    pub(crate) fn step(
        &mut self,
        node: &Node,
        view: &View,
        (number, workers): (u16, usize),
        now_ns: u64,
    ) {
        let dropped = self.dropped.take().or_else(|| node.take_dropped().map(|table| (table, 0)));
        if let Some((table, partition)) = dropped {
            let partitions = view.configuration().partitioning.count();
            self.dropped = self.give_back((table, partition), partitions);
            if self.dropped.is_none() {
                node.end_dropped();
            }
            self.due_ns = Some(now_ns + STEP_NS);
            return;
        }
        if node.has_dropped() {
            self.due_ns = Some(now_ns + WAIT_NS);
            return;
        }
        let configuration = view.configuration();
        let is_mine = |partition: &u16| usize::from(*partition) % workers == usize::from(number);
        let mut partitions =
            (0..=u16::MAX).take(configuration.partitioning.count()).filter(is_mine);
        let is_used = |partition| configuration.is_held_by(partition, view.id());
        let next = partitions.find_map(|partition| {
            let mut tables = view.tables().map(|(_, table)| table);
            let table = tables.find(|table| table.has_partition(partition))?;
            (!is_used(partition)).then_some((partition, table))
        });
        let Some((partition, table)) = next else {
            let own = configuration.dismissed().filter(|(_, it)| it.node == view.id());
            let own = own.filter(|(partition, it)| is_mine(partition) && it.is_returned());
            own.for_each(|(partition, it)| node.learning().note((partition, it.since)));
            (self.due_ns, self.bucket) = (None, 0);
            return;
        };
        if !node.is_only_view(view) {
            self.due_ns = Some(now_ns + WAIT_NS);
            return;
        }
        self.due_ns = Some(now_ns + STEP_NS);
        let end = self.bucket.saturating_add(BUCKETS_PER_STEP);
        node.unless_prepared(partition, || {
            self.bucket = if table.empty_buckets(partition, self.bucket..end) {
                end
            } else {
                table.remove_partition(partition);
                node.count_given_up();
                0
            };
        });
    }

    /// Gives back a little of a table that was dropped. The rest, if there is some.
    fn give_back(
        &mut self,
        (table, partition): (Arc<Table>, u16),
        partitions: usize,
    ) -> Option<(Arc<Table>, u16)> {
        if usize::from(partition) == partitions {
            return None;
        }
        let end = self.bucket.saturating_add(BUCKETS_PER_STEP);
        if table.empty_buckets(partition, self.bucket..end) {
            self.bucket = end;
        } else if !table.forget_leaves(partition, LEAVES_PER_STEP) {
            self.bucket = 0;
            table.remove_partition(partition);
            return Some((table, partition + 1));
        } else {
            self.bucket = u32::MAX;
        }
        Some((table, partition))
    }
}
