//! Scan barriers: while a partition has one, no further row of it is locked. So a transaction can finish whose reads
//! writers have overtaken several times.
//!
//! A barrier keeps out locks that are requested after it; what was locked before stays locked until its transaction ends. Any
//! number of readers may set one at the same time. What is read behind a barrier is validated like everything else: barriers
//! serve progress, and correctness never depends on one.
//!
//! *Source*: `docs/protocol.md`, "Scan barriers". All of a partition, rather than the buckets that were scanned, because inserts
//! have to be kept out too, because rows of other ranges share the buckets, and because a scan may touch a million rows.

use crate::owner::Owner;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use crate::table::Table;

/// The barriers of a partition.
pub(crate) struct ScanBarriers {
    /// How many there are: what every lock looks at.
    count: AtomicUsize,
    owners: Mutex<Vec<Owner>>,
}

impl ScanBarriers {
    pub(crate) fn new() -> Self {
        Self { count: AtomicUsize::new(0), owners: Mutex::new(Vec::new()) }
    }

    /// Ends the barriers of other epochs than that of `present`.
    pub(crate) fn keep_epoch_of(&self, present: Owner) {
        self.change(|owners| owners.retain(|owner| owner.is_of_epoch_of(present)));
    }

    /// Ends all barriers.
    pub(crate) fn clear(&self) {
        self.change(Vec::clear);
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Owner>)) {
        let mut owners = lock(&self.owners);
        change(&mut owners);
        // Relaxed: it protects nothing. A lock that misses a new barrier counts as granted before it.
        self.count.store(owners.len(), Ordering::Relaxed);
    }
}

impl Table {
    fn barriers(&self, partition: u16) -> Option<&ScanBarriers> {
        self.heap(partition)?.barriers()
    }

    /// Sets a barrier of `owner`, who gives it back with [`Self::release_barrier`].
    ///
    /// Does nothing for a partition that this node does not hold, or a table without order.
    pub fn set_barrier(&self, partition: u16, owner: Owner) {
        if let Some(barriers) = self.barriers(partition) {
            barriers.change(|owners| owners.push(owner));
        }
    }

    /// Gives an owner's barrier of a partition back.
    pub fn release_barrier(&self, partition: u16, owner: Owner) {
        if let Some(barriers) = self.barriers(partition) {
            barriers.change(|owners| owners.retain(|other| *other != owner));
        }
    }

    /// Ends all barriers of a partition. A transaction that has set a barrier may release it later, or at another node:
    /// nothing is found there.
    pub(crate) fn end_barriers(&self, partition: u16) {
        self.barriers(partition).iter().for_each(|barriers| barriers.clear());
    }

    /// How many barriers a partition has: with any, its rows must not be locked.
    #[inline]
    #[must_use]
    pub fn barrier_count(&self, partition: u16) -> usize {
        // Relaxed: as in change().
        self.barriers(partition).map_or(0, |barriers| barriers.count.load(Ordering::Relaxed))
    }
}
