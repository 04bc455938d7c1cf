//! VALIDATE: has a bucket still the version that was read? Headers only, no values.

use crate::owner::Owner;
use crate::table::{Place, Table};

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
    /// Checks that the bucket at `place` still has `version`, for the transaction `owner`.
    ///
    /// Knows the owner and still compares versions (rule C2).
    #[inline]
    #[must_use]
    pub fn validate(&self, place: Place, version: u64, owner: Owner) -> Validation {
        let bucket = self.bucket(place);
        // The owner first: if it was free, a later writer can only make the version differ, and an
        // earlier one stored its version before it freed the owner.
        let holder = bucket.owner();
        if holder != Owner::FREE && holder != owner {
            Validation::Locked
        } else if bucket.version() == version {
            Validation::Unchanged
        } else {
            Validation::Changed
        }
    }
}
