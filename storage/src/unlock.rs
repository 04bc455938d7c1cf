//! UNLOCK: give a bucket back unchanged when a transaction aborts.

use crate::mutant::{Mutant, active};
use crate::owner::Owner;
use crate::table::{Place, Table};

/// What an unlock found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlocked {
    /// The transaction held the bucket, and no longer does.
    Released,
    /// It did not: the lock was refused, or this is a duplicate.
    NotHeld,
}

impl Table {
    /// Releases the bucket at `place` if `owner` holds it; version and rows stay as they were.
    pub fn unlock(&self, place: Place, owner: Owner) -> Unlocked {
        let bucket = self.bucket(place);
        // Checked under the sequence, so that of two threads with the same request one finds it done,
        // and does not free the lock of whoever came next.
        bucket.write(|next| {
            if bucket.owner() != owner {
                return Unlocked::NotHeld;
            }
            bucket.end_reservation(next, false, || self.partition_of(place));
            if active(Mutant::AbortBumpsVersion) {
                bucket.store_version(bucket.version() + 1);
            }
            bucket.release();
            Unlocked::Released
        })
    }
}
