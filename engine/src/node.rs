//! A node: its memory, its present view, and which version of the configuration each of its workers goes by.
//!
//! *Invariants*: versions of views only rise. A worker is counted from the moment that it has its first view.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use gannet_storage::{Arena, StorageError, Table};

use crate::configuration::{Configuration, TableEntry};
use crate::view::{NodeCounts, View};

/// A table of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableId(pub(crate) u16);

impl TableId {
    /// Its number, as it stands in messages and records; from 0, in the order of creation.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

/// What all workers of a node share.
pub struct Node {
    id: u16,
    arena: Arc<Arena>,
    counts: Arc<NodeCounts>,
    view: ArcSwap<View>,
    /// Version of the configuration in `view`.
    version: AtomicU64,
    /// By worker: the version that all its coroutines have come to; none before the worker is there.
    adopted: Mutex<Vec<Option<u64>>>,
    adoption: Condvar,
}

impl Node {
    /// A node without tables. Its memory limit bounds its tables; the limits of all members give the share of each partition.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the memory.
    ///
    /// # Panics
    /// If the node is no member.
    pub fn new(id: u16, configuration: Arc<Configuration>) -> Result<Self, StorageError> {
        let limits_bytes = configuration.memory_limits_bytes();
        let limit_bytes = limits_bytes[usize::from(id)];
        let shares = shares(&configuration, &limits_bytes);
        let arena = Arc::new(Arena::new(limit_bytes, &shares)?);
        let counts = Arc::<NodeCounts>::default();
        let version = AtomicU64::new(configuration.version);
        let tables = Box::default();
        let view = View::new(id, configuration, Arc::clone(&arena), tables, Arc::clone(&counts));
        let (adopted, adoption) = (Mutex::default(), Condvar::new());
        let view = ArcSwap::from_pointee(view);
        Ok(Self { id, arena, counts, view, version, adopted, adoption })
    }

    /// The node's number.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The configuration and the tables that the node has.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// Version of the configuration in [`Self::view`].
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Acquire: pairs with the Release in publish(). The view of this version is there.
        self.version.load(Ordering::Acquire)
    }

    /// Whether the new tables of a later configuration would fit.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if one does not, and that of a definition with which no table is possible.
    pub(crate) fn check_memory(&self, configuration: &Configuration) -> Result<(), StorageError> {
        let present = self.view.load();
        let holds = |partition| configuration.copies(partition).contains(&self.id);
        for (number, TableEntry { definition, .. }) in configuration.tables() {
            if present.table(number).is_none() {
                let layout = definition.layout(configuration.partitioning)?;
                Table::check_memory(&definition.name, &layout, &self.arena, holds)?;
            }
        }
        Ok(())
    }

    /// The view of a later configuration: the tables that are there already, and new ones. Nobody uses it yet; a view that is
    /// dropped gives the memory of its new tables back.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if a new table does not fit.
    pub(crate) fn prepare(&self, configuration: Arc<Configuration>) -> Result<View, StorageError> {
        let present = self.view.load();
        let holds = |partition| configuration.copies(partition).contains(&self.id);
        let mut tables = Vec::new();
        for (number, TableEntry { definition, .. }) in configuration.tables() {
            let index = usize::from(number);
            let there = present.shared_tables().get(index).cloned().flatten();
            let table = match there {
                Some(table) => table,
                None => {
                    let layout = definition.layout(configuration.partitioning)?;
                    let arena = Arc::clone(&self.arena);
                    Arc::new(Table::new(&definition.name, layout, arena, holds)?)
                }
            };
            tables.resize(index + 1, None);
            tables[index] = Some(table);
        }
        let (arena, counts) = (Arc::clone(&self.arena), Arc::clone(&self.counts));
        Ok(View::new(self.id, configuration, arena, tables.into(), counts))
    }

    /// Has the node's workers adopt a view of a later version.
    ///
    /// # Panics
    /// If its version is not later: whoever decides on configurations numbers them.
    pub(crate) fn publish(&self, view: View) {
        let version = view.configuration().version;
        assert!(version > self.version(), "versions of configurations only rise");
        let configuration = view.configuration();
        for (number, _) in configuration.tables().filter(|(_, table)| table.is_leaving) {
            let table = view.table(number).expect("a view has the tables of its configuration");
            configuration.held_by(self.id).for_each(|partition| table.leave_partition(partition));
        }
        self.view.store(Arc::new(view));
        // Release: pairs with the Acquire in version().
        self.version.store(version, Ordering::Release);
    }

    /// A worker, and all its coroutines, go by this version.
    pub(crate) fn adopted(&self, worker: u16, version: u64) {
        let (mut adopted, worker) = (self.lock_adopted(), usize::from(worker));
        if adopted.len() <= worker {
            adopted.resize(worker + 1, None);
        }
        adopted[worker] = Some(version);
        self.adoption.notify_all();
    }

    /// A worker has ended, and is waited for no longer.
    pub(crate) fn worker_ended(&self, worker: u16) {
        if let Some(version) = self.lock_adopted().get_mut(usize::from(worker)) {
            *version = None;
        }
        self.adoption.notify_all();
    }

    /// Waits until every worker that runs goes by this version, or a later one; at most for a time. Whether they do.
    pub(crate) fn wait_for_adoption(&self, version: u64, at_most: Duration) -> bool {
        let is_behind = |adopted: &mut Vec<Option<u64>>| {
            adopted.iter().flatten().any(|adopted| *adopted < version)
        };
        let waited = self.adoption.wait_timeout_while(self.lock_adopted(), at_most, is_behind);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn lock_adopted(&self) -> MutexGuard<'_, Vec<Option<u64>>> {
        // Nothing panics while it is held.
        self.adopted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of table memory in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// Bytes of main buckets, which tables take when they are created. They count in [`Self::used_bytes`] even while they are
    /// empty; the system gives memory only to those that were touched.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        let view = self.view.load();
        let held = view.configuration().held_by(self.id).count();
        view.tables().map(|(_, table)| table.layout().main_bytes(held)).sum()
    }

    /// Bytes of table memory that it may use.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
    }

    /// Bytes of data that all nodes together have room for, a copy of each partition counted, as far as it spreads evenly. The
    /// same on every node.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.arena.capacity_bytes()
    }

    /// Updates that a copy on this node could not apply because an earlier one is missing.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.counts.gaps.load(Ordering::Relaxed)
    }

    /// Requests that named a table, partition or bucket that this node does not have, or were malformed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.counts.refused.load(Ordering::Relaxed)
    }
}

/// By partition, the bytes that each of its copies may take (rule C9): a node divides its limit evenly among the copies that it
/// holds, and the smallest of these shares is what all copies of the partition have. So what fits a primary fits its backups.
fn shares(configuration: &Configuration, limit_bytes: &[usize]) -> Vec<usize> {
    let partitions = || (0..=u16::MAX).take(configuration.partitioning.count());
    let mut copies_held = vec![0; limit_bytes.len()];
    for copy in partitions().flat_map(|partition| configuration.copies(partition)) {
        copies_held[usize::from(*copy)] += 1;
    }
    let share = |copy: &u16| {
        let node = usize::from(*copy);
        Arena::share_bytes(limit_bytes[node], copies_held[node])
    };
    let smallest = |partition| configuration.copies(partition).iter().map(share).min();
    partitions().map(|partition| smallest(partition).expect("a partition has a primary")).collect()
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    #[test]
    fn a_partition_has_the_smallest_share_of_its_copies() {
        // Node n holds partitions n - 1 and n of each round of five: 4 + 3 of 16 on node 0, as it begins one round more.
        let configuration = Configuration::new(7, 5, 2, Partitioning::new(16).unwrap());
        let mebibytes = [70, 70, 6, 70, 70].map(|limit: usize| limit << 20);
        let shares = shares(&configuration, &mebibytes);
        for (partition, share) in (0..).zip(&shares) {
            let is_small = configuration.copies(partition).contains(&2);
            assert_eq!(*share <= 1 << 20, is_small, "{partition}: {share}");
        }
        for node in 0..5_u16 {
            let holds = |partition| configuration.copies(partition).contains(&node);
            let all: usize = (0..).zip(&shares).filter(|(p, _)| holds(*p)).map(|(_, s)| s).sum();
            assert!(all < mebibytes[usize::from(node)], "node {node}: {all}");
        }
    }
}
