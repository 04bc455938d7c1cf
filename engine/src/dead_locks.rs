//! The background pass of a worker that frees dead locks: those of earlier epochs.
//!
//! Everybody passes over a dead lock, so a flush leaves the locks of aborted transactions as they are. But a lock word has 14 bits of its
//! epoch, which come around after 16,383 epochs. After each change of the epoch, every worker goes through its share of the node's buckets,
//! a few at a time.
//!
//! *Source*: `docs/protocol.md`, "Membership change".
//!
//! *Invariants*: when a pass is over, no bucket of its partitions has a lock of an epoch before the one in which the pass began.

use crate::view::View;

/// Buckets of one step: a few microseconds where their locks are free.
const BUCKETS_PER_STEP: u32 = 256;
/// Time between two steps, nanoseconds.
const STEP_NS: u64 = 1_000_000;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct DeadLockPass {
    /// When its next step is due; none while no pass is under way.
    due_ns: Option<u64>,
    /// Another epoch has begun since the pass began: a further one follows.
    again: bool,
    /// Table, partition and bucket that it has come to.
    place: (u32, u16, u32),
}

impl DeadLockPass {
    /// Another epoch begins.
    pub(crate) fn begin(&mut self) {
        self.again = self.due_ns.replace(0).is_some();
    }

    /// When the next step is due, in nanoseconds.
    #[inline(always)]
    pub(crate) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Frees the dead locks of the next buckets, among the partitions of worker `number` of `workers`.
    #[cold]
    pub(crate) fn step(&mut self, view: &View, (number, workers): (u16, usize), now_ns: u64) {
        let epoch = view.configuration().epoch;
        let (table_from, partition_from, bucket_from) = self.place;
        let mut left = BUCKETS_PER_STEP;
        for (table_number, table) in view.tables().filter(|(it, _)| *it >= table_from) {
            let held = view.configuration().held_by(view.id());
            for partition in held.filter(|it| usize::from(*it) % workers == usize::from(number)) {
                let from = (table_number, partition);
                if from < (table_from, partition_from) {
                    continue;
                }
                let is_begun = from == (table_from, partition_from);
                let first = if is_begun { bucket_from } else { 0 };
                let end = first.saturating_add(left);
                if table.free_dead_locks(partition, first..end, epoch) {
                    self.place = (table_number, partition, end);
                    self.due_ns = Some(now_ns + STEP_NS);
                    return;
                }
                left -= left.min(table.bucket_count(partition).saturating_sub(first));
            }
        }
        self.place = (0, 0, 0);
        self.due_ns = std::mem::take(&mut self.again).then_some(now_ns + STEP_NS);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Range;
    use std::sync::Arc;

    use gannet_storage::{
        BucketSnapshot, Lock, LockMode, Owner, Partitioning, TableDefinition, TableKind,
        TransactionId,
    };

    use super::*;
    use crate::configuration::{Change, Configuration};
    use crate::node::Node;

    const PARTITIONS: u16 = 4;
    const WORKERS: u16 = 2;

    fn owner(epoch: u32) -> Owner {
        TransactionId { epoch, node: 1, worker: 0, coroutine: 0, counter: 1 }.into()
    }

    /// A view of a node, in epoch 2, with two tables of all partitions.
    fn view() -> View {
        let partitioning = Partitioning::new(PARTITIONS.into()).unwrap();
        let mut configuration = Configuration::new(7, 3, 3, partitioning);
        configuration.members.iter_mut().for_each(|member| member.memory_limit_bytes = 8 << 20);
        let node = Node::new(0, Arc::new(configuration.clone())).unwrap();
        for name in ["a", "b"] {
            let definition = TableDefinition {
                name: name.to_owned(),
                kind: TableKind::Fixed,
                value_bytes: 8,
                rows: 10_000,
                is_system: false,
            };
            configuration = configuration.after(&Change::Create(definition)).unwrap();
        }
        configuration.epoch = 2;
        node.prepare(Arc::new(configuration)).unwrap()
    }

    /// The owners of all buckets that are locked.
    fn owners(view: &View) -> Vec<Owner> {
        let mut snapshot = BucketSnapshot::default();
        let mut owners = Vec::new();
        for (_, table) in view.tables() {
            for (partition, bucket) in (0..PARTITIONS).flat_map(|partition| {
                (0..table.bucket_count(partition)).map(move |it| (partition, it))
            }) {
                table.snapshot(partition, bucket, &mut snapshot);
                owners.extend(Some(snapshot.owner).filter(|owner| *owner != Owner::FREE));
            }
        }
        owners
    }

    /// Locks the buckets of some keys, in all tables.
    fn lock(view: &View, keys: Range<u64>, owner: Owner) {
        for (_, table) in view.tables() {
            for key in keys.clone() {
                let address = table.address(key).unwrap();
                let lock = table.lock(address, key, owner, LockMode::Insert, &mut [0; 8]);
                assert!(matches!(lock, Lock::Granted { .. }));
            }
        }
    }

    #[test]
    fn all_workers_together_free_every_dead_lock_and_no_other() {
        let view = view();
        lock(&view, 0..500, owner(1));
        assert!(owners(&view).len() > 500, "in two tables");
        let mut steps = 0;
        for number in 0..WORKERS {
            let mut pass = DeadLockPass::default();
            assert_eq!(pass.due_ns(), None);
            pass.begin();
            // A lock of this epoch takes the place of a dead one, or of none.
            lock(&view, 400..600, owner(2));
            while let Some(due_ns) = pass.due_ns() {
                pass.step(&view, (number, WORKERS.into()), due_ns);
                steps += 1;
            }
        }
        let buckets: u32 = view.tables().map(|(_, table)| table.layout().buckets).sum();
        assert!(steps >= buckets * u32::from(PARTITIONS) / BUCKETS_PER_STEP, "{steps}");
        let present = Owner::of_epoch(2);
        let owners = owners(&view);
        assert!(!owners.is_empty());
        assert!(owners.iter().all(|owner| owner.is_of_epoch_of(present)), "{owners:?}");
        let mut locked = BTreeSet::new();
        for (number, table) in view.tables() {
            locked.extend((400..600).map(|key| {
                let location = table.locate(key);
                (number, location.partition, location.root)
            }));
        }
        assert_eq!(owners.len(), locked.len());
    }

    #[test]
    fn an_epoch_that_begins_in_a_pass_is_followed_by_another_pass() {
        let view = view();
        let mut pass = DeadLockPass::default();
        pass.begin();
        pass.step(&view, (0, 1), 5);
        assert!(pass.due_ns().is_some());
        // In a bucket that the pass has been at.
        let (_, table) = view.tables().next().unwrap();
        let key = (0..).find(|key| {
            let location = table.locate(*key);
            location.partition == 0 && location.root == 0
        });
        lock(&view, key.unwrap()..key.unwrap() + 1, owner(1));
        pass.begin();
        while let Some(due_ns) = pass.due_ns() {
            pass.step(&view, (0, 1), due_ns);
        }
        assert_eq!(owners(&view), []);
    }
}
