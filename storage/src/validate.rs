//! VALIDATE: whether a bucket still has the version that was read. It reads headers and no values.
//!
//! *Source*: FaSST section 5, step 2.
//!
//! *Invariant*: the owner is known and the versions are compared all the same (rule C2).

use crate::owner::Owner;
use crate::table::{BucketAddress, Table};

/// What a validation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Same version, and not locked by another transaction.
    Unchanged,
    /// Another version.
    Changed,
    /// Another transaction holds the bucket.
    Locked,
}

impl Table {
    /// Checks that the bucket at `address` still has `version`, for the transaction `owner`.
    ///
    /// Knows the owner and still compares versions (rule C2).
    #[inline]
    #[must_use]
    pub fn validate(&self, address: BucketAddress, version: u64, owner: Owner) -> Validation {
        let bucket = self.bucket(address);
        // The owner first: if it was free, a later writer can only make the version differ, and an
        // earlier one stored its version before it freed the owner.
        let holder = bucket.owner();
        if holder.excludes(owner) {
            Validation::Locked
        } else if bucket.version() == version {
            Validation::Unchanged
        } else {
            Validation::Changed
        }
    }
}
