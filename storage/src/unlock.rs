//! UNLOCK: release the lock of a bucket when a transaction aborts.
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
}
