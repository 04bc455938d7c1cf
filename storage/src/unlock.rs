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
        if bucket.owner() != owner {
            return Unlocked::NotHeld;
        }
        if bucket.has_reserved() {
            bucket.write(|_| bucket.clear_reserved());
        }
        if active(Mutant::AbortBumpsVersion) {
            bucket.write(|_| bucket.store_version(bucket.version() + 1));
        }
        bucket.release();
        Unlocked::Released
    }
}
