//! Guards: while a partition has one, none of its rows is locked, so that a transaction whose reads writers have overtaken
//! again and again gets through.
//!
//! A guard keeps out locks that are asked for after it; what was locked before stays locked until its transaction ends. Any
//! number of readers may guard at the same time. What is read under a guard is validated like everything else: guards are
//! for progress, correctness never depends on one.
//!
//! *Source*: `architecture.md`, "Transactions". All of a partition, rather than the buckets that were scanned, because inserts
//! have to be kept out too, because rows of other ranges share the buckets, and because a scan may touch a million rows.

use crate::owner::Owner;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use crate::table::Table;

/// The guards of a partition.
pub(crate) struct Guards {
    /// How many there are: what every lock looks at.
    count: AtomicUsize,
    owners: Mutex<Vec<Owner>>,
}

impl Guards {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), owners: Mutex::new(Vec::new()) }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Owner>)) {
        let mut owners = lock(&self.owners);
        change(&mut owners);
        // Relaxed: it protects nothing. A lock that misses a new guard is as one before it.
        self.count.store(owners.len(), Ordering::Relaxed);
    }
}

impl Table {
    fn guards(&self, partition: u16) -> Option<&Guards> {
        self.heap()?.guards(partition)
    }

    /// Guards a partition for `owner`, who gives it back with [`Self::unguard`].
    ///
    /// Does nothing for a partition that this node does not hold, or a table without order.
    pub fn guard(&self, partition: u16, owner: Owner) {
        if let Some(guards) = self.guards(partition) {
            guards.change(|owners| owners.push(owner));
        }
    }

    /// Gives an owner's guard of a partition back.
    pub fn unguard(&self, partition: u16, owner: Owner) {
        if let Some(guards) = self.guards(partition) {
            guards.change(|owners| owners.retain(|other| *other != owner));
        }
    }

    /// How many guards a partition has: with any, its rows must not be locked.
    #[inline]
    #[must_use]
    pub fn guard_count(&self, partition: u16) -> usize {
        // Relaxed: as in change().
        self.guards(partition).map_or(0, |guards| guards.count.load(Ordering::Relaxed))
    }
}
