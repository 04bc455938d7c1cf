//! VALIDATE: whether a bucket still has the version that was read, and where it has not, whether a row in it is as it was read; and
//! whether keys have come to a range, or gone.
//!
//! *Source*: FaSST section 5, step 2; `docs/protocol.md`, "Conflicts by row".
//!
//! *Invariant*: the owner is known and the versions are compared all the same (rule C2).

use std::cell::Cell;
use std::ops::Bound;

use crate::bucket::Bucket;
use crate::growth::{level_of, stamp_of};
use crate::heap::{Heap, Row};
use crate::layout::TableKind;
use crate::owner::Owner;
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// Halves of a bucket, born since it was read, that one validation looks at.
const HALVES_MAX: usize = 64;

/// What a validation found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// All is as it was read, and no other transaction holds it.
    Unchanged,
    /// What was read has changed.
    Changed,
    /// Another transaction holds the bucket, or is about to add a key to the range or to remove one.
    Locked,
}

impl Table {
    /// Checks that the bucket at `address` still has `version`, for the transaction `owner`.
    ///
    /// Knows the owner and still compares versions (rule C2).
    #[inline]
    #[must_use]
    pub fn validate(&self, address: BucketAddress, version: u64, owner: Owner) -> Validation {
        if address.is_none() {
            // It was merged into another bucket.
            return Validation::Changed;
        }
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

    /// Checks, for the transaction `owner`, that the rows with this hash in a table with byte-string keys are as they were when their
    /// bucket had `version`: each that is there was last written at that version or before; if none is there, nothing was deleted
    /// from the bucket later.
    ///
    /// A key that has come and gone since is noticed. Where no row is there, so is the deletion of another row of the bucket.
    #[must_use]
    pub fn validate_row(&self, hash: u64, version: u64, owner: Owner) -> Validation {
        let location = self.locate(hash);
        let Some(mut address) = self.held_address_of(location) else { return Validation::Changed };
        loop {
            let found = self.validate_rows(address, owner, |bucket, sequence| {
                // Halves have the same version: the level tells first whether this is the key's bucket.
                if level_of(bucket.version()) != address.level() && rule!(SPLIT_BUCKETS) {
                    return None;
                }
                let is_there = Cell::new(false);
                let newer = bucket.find_where(sequence, address.tag(), hash, |slot| {
                    is_there.set(true);
                    self.is_newer(Row::of(self.arena(), slot), version)
                });
                let is_gone = !is_there.get() && is_marked(bucket, version);
                Some(newer.is_none() && !is_gone)
            });
            match found {
                Some(found) => return found,
                None => address = self.present_address_of(location),
            }
        }
    }

    /// As [`Self::validate_row`], of all rows that a bucket had when it had `version`: of none of them was any written or deleted since.
    #[must_use]
    pub fn validate_whole(
        &self,
        partition: u16,
        bucket: u32,
        version: u64,
        owner: Owner,
    ) -> Validation {
        let roots = self.layout().buckets;
        let distance = self.distance_at(version) as usize;
        // First, and again at the end: a merge meanwhile may move rows to a bucket that was looked at, or is not. A half that is free after its merge
        // shows the count.
        let merges = self.merge_count(partition);
        let is_born = |it: &BucketAddress| self.version(*it) != 0;
        let address = |bucket| self.bucket_address(partition, bucket);
        if bucket >= roots && address(bucket).filter(is_born).is_none() && rule!(MERGED_BUCKETS) {
            // Its rows are in the bucket that it was split off from.
            return Validation::Changed;
        }
        // Rows move to halves with larger numbers, which are looked at later, also if these are born meanwhile.
        let halves = (bucket..u32::MAX).step_by(distance);
        for (number, half) in halves.enumerate() {
            if half >= self.bucket_count(partition) {
                break;
            }
            if number == HALVES_MAX {
                return Validation::Changed;
            }
            let Some(address) = address(half) else { continue };
            let found = self.validate_rows(address, owner, |bucket, sequence| {
                let mut is_newer = is_marked(bucket, version);
                bucket.for_each(sequence, |slot| {
                    is_newer |= self.is_newer(Row::of(self.arena(), slot), version);
                });
                Some(!is_newer)
            });
            match found {
                None | Some(Validation::Unchanged) => {}
                Some(found) => return found,
            }
        }
        let is_settled = self.merge_count(partition) == merges;
        if is_settled { Validation::Unchanged } else { Validation::Changed }
    }

    /// Checks that no key of a range has come or gone since a scan of the transaction `owner` began at this number of the index.
    #[must_use]
    pub fn validate_range(
        &self,
        partition: u16,
        range: (Bound<&[u8]>, Bound<&[u8]>),
        number: u64,
        owner: Owner,
    ) -> Validation {
        let index = self.heap(partition).and_then(Heap::index);
        index.map_or(Validation::Changed, |index| index.validate(range, number, owner))
    }

    fn is_newer(&self, row: Row<'_>, version: u64) -> bool {
        row.stamp() > stamp_of(version) && rule!(ROW_VERSIONS)
    }

    /// Looks at a bucket that no other transaction holds. `are_unchanged` gets it with its sequence word, and says nothing of a bucket that
    /// has not the rows any more.
    fn validate_rows(
        &self,
        address: BucketAddress,
        owner: Owner,
        mut are_unchanged: impl FnMut(Bucket<'_>, u64) -> Option<bool>,
    ) -> Option<Validation> {
        debug_assert_ne!(
            self.layout().kind,
            TableKind::Fixed,
            "rows of fixed tables have no stamps"
        );
        let bucket = self.bucket(address);
        bucket.read_consistent(|sequence| {
            // The owner first: a writer that has freed the bucket has written its rows before.
            if bucket.owner().excludes(owner) {
                return Some(Validation::Locked);
            }
            let unchanged = are_unchanged(bucket, sequence)?;
            Some(if unchanged { Validation::Unchanged } else { Validation::Changed })
        })
    }
}

/// Whether rows were deleted from a bucket after this version.
fn is_marked(bucket: Bucket<'_>, version: u64) -> bool {
    bucket.deleted() > stamp_of(version) && rule!(DELETION_MARKS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::HashSeed;
    use crate::changing_rows::{OWNER, Rows};

    proptest! {
        #[test]
        fn a_row_is_valid_until_it_changes(
            changes in proptest::collection::vec((0_usize..16, 0_u8..7), 1..60),
            seen_at in 0_usize..60,
        ) {
            let mut rows = Rows::new();
            let mut seen = Vec::new();
            for (step, (key, kind)) in (1..).zip(changes) {
                if seen.is_empty() && step > seen_at {
                    seen = (0..rows.keys.len()).map(|key| rows.address(key)).collect();
                }
                rows.change(key, kind, step);
            }
            for (key, &(_, bucket, version)) in seen.iter().enumerate() {
                let hash = HashSeed::ZERO.hashed(&rows.keys[key]).word();
                let found = rows.table.validate_row(hash, version, OWNER);
                let whole = rows.table.validate_whole(0, bucket, version, OWNER);
                let is_unchanged = rows.changed[key] <= seen_at;
                // The deletion of another key counts where the row is not there; so does each change of one with the same hash.
                let mut later = rows.deletions.iter().filter(|(step, _)| *step > seen_at);
                let is_rival = |other: usize| {
                    other != key && HashSeed::ZERO.hashed(&rows.keys[other]).word() == hash
                };
                let has_rival = (0..rows.keys.len()).any(|it| is_rival(it) && rows.changed[it] > seen_at);
                let has_merged = rows.merged > seen_at;
                let may_be_marked =
                    later.next().is_some() || has_merged && !rows.deletions.is_empty();
                let may_fail = !rows.is_there[key] && may_be_marked || has_rival;
                prop_assert!(is_unchanged || found == Validation::Changed, "{}", key);
                prop_assert!(!is_unchanged || may_fail || found == Validation::Unchanged, "{}", key);
                let all_unchanged = rows.changed.iter().all(|step| *step <= seen_at);
                prop_assert!(!all_unchanged || has_merged || whole == Validation::Unchanged);
                prop_assert!(is_unchanged || whole == Validation::Changed);
            }
        }
    }
}
