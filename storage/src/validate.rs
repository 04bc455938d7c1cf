//! VALIDATE: has a bucket still the version that was read? Headers only, no values.

use crate::owner::Owner;
use crate::table::Table;

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
    /// Checks that `bucket` of `partition` still has `version`, for the transaction `owner`.
    ///
    /// Knows the owner and still compares versions (rule C2).
    #[inline]
    #[must_use]
    pub fn validate(&self, partition: u16, bucket: u32, version: u64, owner: Owner) -> Validation {
        let bucket = self.bucket(partition, bucket);
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

    /// Asks for the header of a bucket that will be validated or unlocked.
    #[inline]
    pub fn prefetch_header(&self, partition: u16, bucket: u32) {
        self.prefetch_word(self.bucket_word(partition, bucket));
    }
}
