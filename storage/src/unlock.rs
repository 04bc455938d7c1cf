//! UNLOCK: release the lock of a bucket when a transaction aborts, and the locks that dead transactions have left.
//!
//! *Source*: FaSST section 5, step 1.
//!
//! *Invariants*: versions and rows stay as they were. Only the owner's lock is released, and only once.

use std::ops::Range;

use crate::owner::Owner;
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// What an unlock found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// The transaction held the bucket, and no longer does.
    Released,
    /// It did not: the lock was refused, or this is a duplicate.
    NotHeld,
}

impl Table {
    /// Releases the bucket at `address` in `partition` if `owner` holds it; version and rows stay as they were.
    pub fn unlock(&self, address: BucketAddress, partition: u16, owner: Owner) -> Unlocked {
        if address.is_none() {
            return Unlocked::NotHeld;
        }
        let bucket = self.bucket(address);
        // Checked under the sequence, so that of two threads with the same request one finds it done,
        // and does not free the lock of the next owner.
        bucket.write(|next| {
            if bucket.owner() != owner {
                return Unlocked::NotHeld;
            }
            bucket.end_reservation(next, false, || partition);
            if !rule!(VERSION_ON_ABORT) {
                bucket.store_version(bucket.version() + 1);
            }
            bucket.release();
            self.arena().locks().dropped(owner, partition);
            Unlocked::Released
        })
    }

    /// Frees the locks that transactions of other epochs than `epoch` have left in some buckets of a partition, and the slots that
    /// were reserved under them. Any thread may do that while others use the table. Whether there are buckets behind these.
    pub fn free_dead_locks(&self, partition: u16, buckets: Range<u32>, epoch: u32) -> bool {
        let present = Owner::of_epoch(epoch);
        let end = buckets.end.min(self.bucket_count(partition));
        for number in buckets.start..end {
            let Some(address) = self.bucket_address(partition, number) else { continue };
            let bucket = self.bucket(address);
            let dead = bucket.owner();
            if dead == Owner::FREE || dead.is_of_epoch_of(present) {
                continue;
            }
            bucket.write(|next| {
                // A transaction that takes the lock over after this look reserves nothing before the sequence is free again.
                if bucket.owner() == dead {
                    // It may have room for rows that a split or a merge was to bring.
                    bucket.end_reservation(next, true, || partition);
                    // Should another transaction take the lock over meanwhile, it has it.
                    let _: bool = bucket.take_over(dead, Owner::FREE);
                }
            });
            if bucket.version() == 0 {
                // It was to be split off, or to be merged.
                self.bury(partition, number);
            }
        }
        buckets.end < self.bucket_count(partition)
    }
}
