//! READ: version and value of a key.
//!
//! *Source*: FaSST section 5, step 1.
//!
//! *Invariants*: a bucket that another transaction holds is refused. Version and value are of one moment. A bucket that was split since
//! the key was looked for is not read.

use crate::bucket::Bucket;
use crate::growth::level_of;
use crate::owner::Owner;
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// What a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// The key is there; its value was copied.
    Found {
        /// Version of the bucket.
        version: u64,
    },
    /// The key is not there; the version validates the absence.
    Absent {
        /// Version of the bucket.
        version: u64,
    },
    /// Another transaction holds the bucket.
    Locked,
}

impl Table {
    /// Reads `key`, which lives at `address`, for the transaction `reader`; copies its value to `out`.
    ///
    /// A bucket locked by another transaction is refused, not served in its old version: that would
    /// let two single-key reads see the new x and then the old y (FaSST section 5, step 1).
    #[inline]
    pub fn read(&self, address: BucketAddress, key: u64, reader: Owner, out: &mut [u8]) -> Read {
        self.read_with(address, key, reader, |bucket, sequence| {
            let slot = bucket.find(sequence, address.tag(), key);
            slot.map(|slot| slot.copy_value(out)).is_some()
        })
    }

    /// Reads with `copy`, which gets the bucket and its sequence word and returns whether the key is there.
    #[inline(always)]
    pub(crate) fn read_with(
        &self,
        mut address: BucketAddress,
        key: u64,
        reader: Owner,
        mut copy: impl FnMut(Bucket<'_>, u64) -> bool,
    ) -> Read {
        loop {
            let bucket = self.bucket(address);
            let read = bucket.read_consistent(|sequence| {
                let owner = bucket.owner();
                if owner.excludes(reader) && rule!(LOCKED_BUCKETS) {
                    return Some(Read::Locked);
                }
                let version = bucket.version();
                if level_of(version) != address.level() && rule!(SPLIT_BUCKETS) {
                    return None;
                }
                let is_there = copy(bucket, sequence);
                Some(if is_there { Read::Found { version } } else { Read::Absent { version } })
            });
            match read {
                Some(read) => return read,
                None => address = self.present_address_of(self.locate(key)),
            }
        }
    }
}
