//! A node's part in the hand-over of partitions to other primaries: whom it serves, and when nobody holds locks any more.
//!
//! ```text
//! begin_hand_over ─▶ requests are refused (MOVED) ─▶ each worker has begun another step, and no bucket is locked ─▶ publish: a backup
//!                                                                       undo_hand_over, if it is not decided ─▶ it is served again
//! ```
//! *Source*: `docs/protocol.md`, "Hand-over of primaries".
//!
//! *Invariants*: a partition that is being handed over is served again only when that is certain not to be decided, or by a later view. Of
//! a view, the partitions are served whose primary the node is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_rules::rule;
use gannet_storage::Table;

use crate::configuration::{Configuration, TableEntry};
use crate::node::Node;
use crate::view::View;

/// Looks at the locks between two looks at what else there is to do.
const LOOKS: usize = 100;
/// Buckets of a partition of a table that is not dropped at once.
const LARGE_BUCKETS: u32 = 64;

/// Large tables that were dropped.
#[derive(Default)]
pub(super) struct Dropped {
    /// Those that no worker has taken yet.
    waiting: Vec<Arc<Table>>,
    /// How many have not given all back.
    open: usize,
}

impl Node {
    /// Has the tables of a view serve the partitions whose primary the node is, and no others. The tables of the configuration before, if
    /// there is one, do so already where partitions are placed as before.
    pub(super) fn serve(&self, view: &View, before: Option<&Configuration>) {
        let configuration = view.configuration();
        match before.filter(|before| configuration.is_placed_as(before)) {
            Some(before) => self.serve_tables(view, configuration.tables_since(before)),
            None => self.serve_tables(view, configuration.tables()),
        }
    }

    /// Keeps large tables that a view has no more: a worker gives back their memory in small steps, and no last owner all of it at once.
    pub(super) fn keep_dropped(&self, before: &View, view: &View) {
        let configuration = view.configuration();
        for (number, _) in before.configuration().tables_since(configuration) {
            let gone = before.shared_tables().get(number);
            let partitions = (0..).take(configuration.partitioning.count());
            let is_large = |table: &&Arc<Table>| {
                partitions.clone().any(|it| table.bucket_count(it) > LARGE_BUCKETS)
            };
            let gone = gone.filter(|_| view.table(number).is_none()).filter(is_large);
            if let Some(gone) = gone {
                let mut dropped = self.lock_dropped();
                dropped.waiting.push(Arc::clone(gone));
                dropped.open += 1;
            }
        }
    }

    /// Whether a worker is to begin to give the memory of dropped tables back.
    pub(crate) fn has_dropped(&self) -> bool {
        !self.lock_dropped().waiting.is_empty()
    }

    /// Whether memory of dropped tables is not given back yet.
    pub(crate) fn gives_back_dropped(&self) -> bool {
        self.lock_dropped().open > 0
    }

    /// A worker has given back the memory of one.
    pub(crate) fn end_dropped(&self) {
        self.lock_dropped().open -= 1;
    }

    /// One of those, which nobody uses any more.
    pub(crate) fn take_dropped(&self) -> Option<Arc<Table>> {
        let waiting = &mut self.lock_dropped().waiting;
        // What the other owners did last is seen then.
        let unused = waiting.iter_mut().position(|table| Arc::get_mut(table).is_some())?;
        Some(waiting.swap_remove(unused))
    }

    fn lock_dropped(&self) -> MutexGuard<'_, Dropped> {
        // Nothing panics while it is held.
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_tables<'t>(&self, view: &View, tables: impl Iterator<Item = (u32, &'t TableEntry)>) {
        let configuration = view.configuration();
        for (number, entry) in tables {
            let Some(table) = view.table(number) else { continue };
            let is_found = !entry.is_leaving;
            if entry.is_leaving {
                table.leave();
            }
            for partition in configuration.held_by(self.id) {
                let is_copy = !view.is_no_copy(partition);
                let is_primary = configuration.primary(partition) == self.id;
                if is_found && is_copy && (is_primary || !rule!(MOVED)) {
                    table.serve_partition(partition);
                } else {
                    table.leave_partition(partition);
                }
            }
        }
    }

    /// Begins to hand over the partitions that have another primary in a configuration: nobody is served any more. If the node is no member
    /// of it, its workers begin no job any more.
    pub(crate) fn begin_hand_over(&self, next: &Configuration) {
        let view = self.view();
        let present = view.configuration();
        let own = next.moved_since(present).filter(|it| present.primary(*it) == self.id);
        let own: Vec<u16> = own.collect();
        // By most changes nothing moves, and there may be many tables.
        if !own.is_empty() && rule!(MOVED) {
            for (_, table) in view.tables() {
                own.iter().for_each(|partition| table.leave_partition(*partition));
            }
        }
        let parts = !next.is_member(self.id) && present.is_member(self.id);
        // Relaxed: the addition below publishes it.
        self.parts.store(parts, Ordering::Relaxed);
        let is_any = !own.is_empty() || parts;
        *self.lock_handing_over() = own;
        if is_any {
            // Release: pairs with the Acquire in hand_overs(): a worker that sees the new count serves nobody.
            self.hand_overs.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether it is about to be no member any more: workers begin no job, and those that have begun end.
    pub(crate) fn parts(&self) -> bool {
        self.parts.load(Ordering::Relaxed)
    }

    /// How often it has begun to hand partitions over, or to part, which workers look at in each step.
    #[inline(always)]
    pub(crate) fn hand_overs(&self) -> u64 {
        self.hand_overs.load(Ordering::Acquire)
    }

    /// Begins a round: each worker says so when it begins another step.
    pub(crate) fn begin_round(&self) -> u64 {
        self.hand_overs.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Whether each worker that takes steps has begun one since that round began.
    pub(crate) fn has_begun_steps(&self, round: u64) -> bool {
        let workers = self.lock_workers();
        workers.iter().all(|state| state.adopted.is_none() || state.hand_overs >= round)
    }

    /// A worker has begun a step since the node has begun to hand partitions over, or to part, for that time. If it parts, no coroutine of the
    /// worker has a job.
    pub(crate) fn serves_nobody(&self, worker: u16, hand_overs: u64) {
        self.change_worker(worker, |state| state.hand_overs = hand_overs);
    }

    /// Waits until no bucket is locked of the partitions that it is handing over, and, if it parts, until it has no transactions; at most for
    /// a time. Whether that is so.
    pub(crate) fn wait_for_lock_holders(&self, at_most: Duration) -> bool {
        let partitions = self.lock_handing_over().clone();
        if partitions.is_empty() && !self.parts() {
            return true;
        }
        let hand_overs = self.hand_overs();
        let has_begun_step = self.wait_for_workers(at_most, |state| {
            state.adopted.is_none() || state.hand_overs >= hand_overs
        });
        let is_free = || {
            let locked = partitions.iter().map(|partition| self.arena.locked_buckets(*partition));
            !rule!(LOCKS_FINISH) || locked.sum::<usize>() == 0
        };
        let looks = if at_most.is_zero() { 1 } else { LOOKS };
        has_begun_step
            && (0..looks).any(|look| {
                if look > 0 {
                    std::thread::yield_now();
                }
                is_free()
            })
    }

    /// The hand-over is certain not to be decided.
    pub(crate) fn undo_hand_over(&self) {
        self.parts.store(false, Ordering::Relaxed);
        let partitions = std::mem::take(&mut *self.lock_handing_over());
        if !partitions.is_empty() {
            self.serve(&self.view(), None);
        }
    }

    /// Another view follows, which says what is served. Whether partitions are not served that the view before has the node serve.
    pub(super) fn end_hand_over(&self, before: &Configuration, next: &View) -> bool {
        self.parts.store(false, Ordering::Relaxed);
        let own = std::mem::take(&mut *self.lock_handing_over());
        let has_moved = |partition: &&u16| {
            next.configuration().was_handed_over_since(before.version, **partition)
        };
        self.changes.count_handed_over(own.iter().filter(has_moved).count() as u64);
        !own.is_empty()
    }

    fn lock_handing_over(&self) -> MutexGuard<'_, Vec<u16>> {
        // Nothing panics while it is held.
        self.handing_over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gannet_storage::{Partitioning, TableDefinition, TableKind};

    use super::*;
    use crate::configuration::Change;

    /// A node with a table, and the present configuration.
    fn node() -> (Node, Configuration) {
        let mut first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        first.members.iter_mut().for_each(|member| member.memory_limit_bytes = 64 << 20);
        let node = Node::new(0, Arc::new(first.clone())).unwrap();
        let next = first.after(&Change::Create(definition("t"))).unwrap();
        go_by(&node, &next);
        (node, next)
    }

    fn definition(name: &str) -> TableDefinition {
        let kind = TableKind::Ordered;
        TableDefinition { name: name.to_owned(), kind, value_bytes: 0, rows: 9, is_system: false }
    }

    fn go_by(node: &Node, configuration: &Configuration) {
        let view = node.prepare(Arc::new(configuration.clone())).unwrap();
        node.publish(view);
    }

    fn served(node: &Node) -> Vec<u16> {
        served_of(node, 0)
    }

    fn served_of(node: &Node, table: u32) -> Vec<u16> {
        let view = node.view();
        let table = view.table(table).unwrap();
        (0..4).filter(|partition| table.served_bucket_address(*partition, 0).is_some()).collect()
    }

    #[test]
    fn a_node_serves_what_it_is_primary_of_and_does_not_hand_over() {
        let (node, present) = node();
        assert_eq!(served(&node), [0, 3]);
        let hand_over = Change::HandOver(vec![(3, 1), (1, 0)]);
        let next = present.after(&hand_over).unwrap();
        node.begin_hand_over(&next);
        assert_eq!((served(&node), node.hand_overs()), (vec![0], 1));
        node.undo_hand_over();
        assert_eq!(served(&node), [0, 3]);
        node.begin_hand_over(&next);
        go_by(&node, &next);
        assert_eq!(served(&node), [0, 1]);
        assert_eq!(node.changes().read().handed_over, 1);
        // It comes back.
        go_by(&node, &next.after(&Change::HandOver(vec![(3, 0)])).unwrap());
        assert_eq!(served(&node), [0, 1, 3]);
    }

    #[test]
    fn what_is_handed_over_is_not_served_while_an_epoch_is_prepared() {
        let (node, present) = node();
        node.begin_hand_over(&present.after(&Change::HandOver(vec![(3, 1)])).unwrap());
        let prepared = present.after(&Change::Revoke(1)).unwrap();
        go_by(&node, &prepared);
        assert_eq!(served(&node), [0], "workers may still take a step");
        go_by(&node, &prepared.after(&Change::Activate).unwrap());
        assert_eq!(served(&node), [0, 3], "the hand-over was not decided");
    }

    #[test]
    fn tables_that_come_and_go_leave_the_others_served() {
        let (node, first) = node();
        // So many that the last is in another part than the first.
        let create = |before: Configuration, number: usize| {
            before.after(&Change::Create(definition(&number.to_string()))).unwrap()
        };
        let present = (0..300).fold(first, create);
        go_by(&node, &present);
        let created = present.after(&Change::Create(definition("u"))).unwrap();
        let (other, _) = created.table_named("u").unwrap();
        node.begin_hand_over(&present.after(&Change::HandOver(vec![(3, 1)])).unwrap());
        assert_eq!(served(&node), [0]);
        go_by(&node, &created);
        assert_eq!(served(&node), [0, 3], "the hand-over was not decided");
        assert_eq!(served_of(&node, other), [0, 3]);
        let left = created.after(&Change::Leave(other)).unwrap();
        go_by(&node, &left);
        assert_eq!((served(&node), served_of(&node, other)), (vec![0, 3], vec![]));
        go_by(&node, &left.after(&Change::Remove(other)).unwrap());
        assert_eq!(served(&node), [0, 3]);
        assert!(node.view().table(other).is_none());
    }

    #[test]
    fn a_node_that_is_to_part_goes_on_if_another_epoch_comes_before() {
        let (node, present) = node();
        node.begin_hand_over(&present.after(&Change::Revoke(0)).unwrap());
        assert!(node.parts() && node.wait_for_lock_holders(Duration::ZERO));
        go_by(&node, &present.after(&Change::Revoke(1)).unwrap());
        assert!(!node.parts());
    }
}
