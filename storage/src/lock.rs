//! LOCK: lock a key's bucket and read the key, in one step.
//!
//! *Source*: FaSST section 5, step 1; section 5.2.1 for the modes.
//!
//! *Invariants*: a request that is not granted leaves the bucket as it was. A lock for insert has reserved the memory that the row
//! needs (rule C9).

use crate::arena::Quota;
use crate::bucket::Bucket;
use crate::owner::Owner;
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// What the transaction will do with the key (FaSST section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Overwrite a value that is there.
    Update,
    /// Add a key that is not there; space is reserved with the lock.
    Insert,
    /// Remove a key that is there.
    Delete,
}

/// What a lock request found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// The transaction holds the bucket; for update and delete the value was copied.
    Granted {
        /// Version of the bucket.
        version: u64,
    },
    /// For update and delete: there is no such key. Not locked by this request.
    Absent {
        /// Version of the bucket, for validation.
        version: u64,
    },
    /// For insert: the key is there already, its value was copied. Not locked by this request.
    Exists {
        /// Version of the bucket, for validation.
        version: u64,
    },
    /// Another transaction holds the bucket.
    Locked,
    /// The share of the partition's memory is used up, for an insert or a longer row. Not locked by this request.
    Full,
}

impl Table {
    /// Locks the bucket of `key`, which lives at `address`, for `owner` and reads the key.
    ///
    /// A bucket that `owner` holds already, through another of its keys, is granted again and still
    /// reserves space for an insert (`docs/protocol.md`).
    pub fn lock(
        &self,
        address: BucketAddress,
        key: u64,
        owner: Owner,
        mode: LockMode,
        out: &mut [u8],
    ) -> Lock {
        let bucket = self.bucket(address);
        self.lock_with(
            bucket,
            (owner, key),
            mode,
            || true,
            |sequence| {
                bucket.find(sequence, address.tag(), key).map(|slot| slot.copy_value(out)).is_some()
            },
        )
    }

    /// Locks, reads, and reserves a slot for an insert. `copy` reads: it gets the sequence word and returns whether the key is
    /// there. `has_room` returns whether there is memory beside the slots.
    #[inline(always)]
    pub(crate) fn lock_with(
        &self,
        bucket: Bucket<'_>,
        (owner, key): (Owner, u64),
        mode: LockMode,
        has_room: impl Fn() -> bool,
        copy: impl FnMut(u64) -> bool,
    ) -> Lock {
        let held_before = match bucket.acquire(owner) {
            Ok(()) => false,
            Err(holder) if holder == owner => true,
            Err(holder) if holder.excludes(owner) || !bucket.take_over(holder, owner) => {
                return Lock::Locked;
            }
            Err(_) => {
                // The slots that were reserved under the dead lock.
                let partition = || self.locate(key).partition;
                bucket.write(|next| bucket.end_reservation(next, false, partition));
                false
            }
        };
        let found = bucket.read_consistent(copy);
        let version = bucket.version();
        let lock = match (mode, found) {
            (LockMode::Update | LockMode::Delete, true) if has_room() => Lock::Granted { version },
            (LockMode::Update | LockMode::Delete, true) => Lock::Full,
            (LockMode::Update | LockMode::Delete, false) => Lock::Absent { version },
            (LockMode::Insert, true) => Lock::Exists { version },
            (LockMode::Insert, false) => {
                let is_reserved = !rule!(C9_RESERVATION)
                    || (has_room()
                        && bucket.write(|next| bucket.reserve(next, key, Quota::WithinShare)));
                if is_reserved { Lock::Granted { version } } else { Lock::Full }
            }
        };
        if !held_before && !matches!(lock, Lock::Granted { .. }) {
            bucket.release();
        }
        lock
    }
}
