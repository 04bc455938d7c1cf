//! How many buckets of each partition are locked, so that the end of a primary's role waits for lock holders without a search.
//!
//! ```text
//! counts:  worker 0: partition 0, partition 1, ..   worker 1: ..      one table for all tables of a node
//! ```
//! A lock is counted for the worker that its owner names. That worker alone takes and drops the locks of its owners: worker i of a node
//! exchanges packets with worker i of the others. So a count takes no atomic addition, and no cache line of another worker.
//!
//! *Source*: `docs/protocol.md`, "Hand-over of primaries".
//!
//! *Invariants*: a bucket whose lock was granted is counted once, however many of its keys were locked. Locks of an epoch that has ended
//! count no more: a flush clears all counts.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::owner::Owner;

/// Counts in a cache line.
const LINE_COUNTS: usize = 16;

/// See the module's text.
pub(crate) struct LockCounts {
    counts: Box<[AtomicU32]>,
    /// Partitions, and what fills the last cache line.
    of_worker: usize,
}

impl LockCounts {
    pub(crate) fn new(partitions: usize) -> Self {
        let of_worker = partitions.next_multiple_of(LINE_COUNTS);
        let counts = (0..of_worker * Owner::WORKERS).map(|_| AtomicU32::new(0)).collect();
        Self { counts, of_worker }
    }

    #[inline(always)]
    fn of(&self, owner: Owner, partition: u16) -> &AtomicU32 {
        &self.counts[usize::from(owner.worker()) * self.of_worker + usize::from(partition)]
    }

    /// The owner has got the lock of a bucket.
    #[inline(always)]
    pub(crate) fn granted(&self, owner: Owner, partition: u16) {
        let count = self.of(owner, partition);
        // Relaxed: one thread writes it, and others ask when that thread has said that it grants nothing more.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The owner has dropped it.
    #[inline(always)]
    pub(crate) fn dropped(&self, owner: Owner, partition: u16) {
        let count = self.of(owner, partition);
        // Release: pairs with the Acquire in count(): a thread that sees that no lock is left sees the rows.
        count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Release);
    }

    /// Buckets of a partition that are locked.
    pub(crate) fn count(&self, partition: u16) -> usize {
        let counts = self.counts.iter().skip(usize::from(partition)).step_by(self.of_worker);
        counts.map(|count| count.load(Ordering::Acquire) as usize).sum()
    }

    /// All locks are dead.
    pub(crate) fn clear(&self) {
        // Relaxed: no worker takes a step.
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Applied, Arena, BucketUpdate, BucketUpdateWriter, HashedKey, Lock, LockMode, Partitioning,
        Table, TableDefinition, TableKind, TransactionId, Unlocked,
    };

    fn owner(epoch: u32, worker: u16) -> Owner {
        Owner::from(TransactionId { epoch, node: 3, worker, coroutine: 1, counter: 1 })
    }

    #[test]
    fn a_bucket_counts_once_from_its_first_lock_to_its_last() {
        let partitioning = Partitioning::new(1).unwrap();
        let kind = TableKind::Fixed;
        let definition = TableDefinition {
            name: "t".to_owned(),
            kind,
            value_bytes: 8,
            rows: 0,
            is_system: false,
        };
        let layout = definition.layout(partitioning).unwrap();
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 19]).unwrap());
        let table = Table::new("t", layout, Arc::clone(&arena), |_| true).unwrap();
        let lock = |key: u64, owner| {
            let address = table.address(key).unwrap();
            table.lock(address, key, owner, LockMode::Insert, &mut [0; 8])
        };
        let unlock = |owner| table.unlock(table.address(1).unwrap(), 0, owner);
        // A table for no rows has one bucket.
        assert_eq!(lock(1, owner(1, 2)), Lock::Granted { version: 0 });
        assert_eq!(lock(2, owner(1, 2)), Lock::Granted { version: 0 });
        assert_eq!(lock(1, owner(1, 0)), Lock::Locked);
        assert_eq!(arena.locked_buckets(0), 1);
        assert_eq!(unlock(owner(1, 0)), Unlocked::NotHeld);
        assert_eq!(arena.locked_buckets(0), 1, "of another worker");
        assert_eq!(unlock(owner(1, 2)), Unlocked::Released);
        assert_eq!(unlock(owner(1, 2)), Unlocked::NotHeld);
        assert_eq!(arena.locked_buckets(0), 0);

        lock(1, owner(1, 255));
        let mut unit = Vec::new();
        let mut writer = BucketUpdateWriter::begin(&mut unit, (0, 0, 0), 0, owner(1, 255));
        writer.put(HashedKey::Number(1), &[7; 8]);
        writer.finish();
        for expected in [Applied::Applied, Applied::Duplicate] {
            let unit = BucketUpdate::parse_checked(&unit);
            assert_eq!(table.apply_at_primary(table.address(1).unwrap(), &unit), expected);
            assert_eq!(arena.locked_buckets(0), 0);
        }
        lock(2, owner(1, 0));
        arena.forget_locks();
        assert_eq!(lock(3, owner(2, 1)), Lock::Granted { version: 1 }, "the other one is dead");
        assert_eq!(arena.locked_buckets(0), 1);
    }
}
