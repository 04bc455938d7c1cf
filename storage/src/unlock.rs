//! UNLOCK: release the lock of a bucket when a transaction aborts, and the locks that dead transactions have left.
//!
//! *Source*: FaSST section 5, step 1.
//!
//! *Invariants*: versions and rows stay as they were. Only the owner's lock is released, and only once.

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
    /// Releases the bucket at `address` if `owner` holds it; version and rows stay as they were.
    pub fn unlock(&self, address: BucketAddress, owner: Owner) -> Unlocked {
        let bucket = self.bucket(address);
        // Checked under the sequence, so that of two threads with the same request one finds it done,
        // and does not free the lock of whoever came next.
        bucket.write(|next| {
            if bucket.owner() != owner {
                return Unlocked::NotHeld;
            }
            bucket.end_reservation(next, false, || self.partition_of(address));
            if !rule!(VERSION_ON_ABORT) {
                bucket.store_version(bucket.version() + 1);
            }
            bucket.release();
            Unlocked::Released
        })
    }

    /// Frees the locks that transactions of other epochs than `epoch` have left, and the slots that were reserved under them. Its
    /// time grows with the buckets.
    pub fn free_dead_locks(&self, epoch: u32) {
        let present = Owner::of_epoch(epoch);
        for partition in 0..=u16::MAX {
            let Some(state) = self.partition(partition) else { break };
            let Some(first_word) = state.first_word() else { continue };
            let addresses = (0..).map_while(|bucket| self.address_from(first_word, bucket));
            for bucket in addresses.map(|address| self.bucket(address)) {
                let dead = bucket.owner();
                let is_dead = dead != Owner::FREE && !dead.is_of_epoch_of(present);
                // Should another transaction take the lock over meanwhile, it has it.
                if is_dead && bucket.take_over(dead, present) {
                    bucket.write(|next| bucket.end_reservation(next, false, || partition));
                    bucket.release();
                }
            }
        }
    }
}
