//! LOCK: lock a key's bucket and read the key, in one step.
//!
//! *Source*: FaSST section 5, step 1; section 5.2.1 for the modes.
//!
//! *Invariants*: a request that is not granted leaves the bucket as it was. A lock for insert has reserved the memory that the row
//! needs (rule C9).

use crate::bucket::Bucket;
use crate::growth::level_of;
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

/// When a transaction took the lock of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Now,
    /// For another of its keys.
    Before,
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
        self.lock_with(
            address,
            (owner, key),
            mode,
            || true,
            |bucket, sequence| {
                bucket.find(sequence, address.tag(), key).map(|slot| slot.copy_value(out)).is_some()
            },
        )
    }

    /// Locks, reads, and reserves a slot for an insert. `copy` reads: it gets the bucket and its sequence word and returns whether the
    /// key is there. `has_room` returns whether there is memory beside the slots.
    #[inline(always)]
    pub(crate) fn lock_with(
        &self,
        mut address: BucketAddress,
        (owner, key): (Owner, u64),
        mode: LockMode,
        has_room: impl Fn() -> bool,
        mut copy: impl FnMut(Bucket<'_>, u64) -> bool,
    ) -> Lock {
        let (bucket, held_before) = loop {
            let bucket = self.bucket(address);
            let partition = || self.locate(key).partition;
            let Some(acquired) = self.acquire(bucket, owner, partition) else {
                self.note_met(partition());
                return Lock::Locked;
            };
            // Nobody splits it while it is locked.
            if level_of(bucket.version()) == address.level() || !rule!(SPLIT_BUCKETS) {
                break (bucket, acquired == Acquired::Before);
            }
            if acquired == Acquired::Now {
                bucket.release();
            }
            address = self.present_address_of(self.locate(key));
        };
        let found = bucket.read_consistent(|sequence| copy(bucket, sequence));
        let version = bucket.version();
        let lock = match (mode, found) {
            (LockMode::Update | LockMode::Delete, true) if has_room() => Lock::Granted { version },
            (LockMode::Update | LockMode::Delete, true) => Lock::Full,
            (LockMode::Update | LockMode::Delete, false) => Lock::Absent { version },
            (LockMode::Insert, true) => Lock::Exists { version },
            (LockMode::Insert, false) => {
                let is_reserved =
                    !rule!(C9_RESERVATION) || (has_room() && self.reserve(bucket, key));
                if is_reserved { Lock::Granted { version } } else { Lock::Full }
            }
        };
        match lock {
            _ if held_before => {}
            Lock::Granted { .. } => self.arena().locks().granted(owner, self.locate(key).partition),
            _ => bucket.release(),
        }
        lock
    }

    /// Takes the lock of a bucket, also one that is dead; none if another transaction has it.
    #[inline(always)]
    pub(crate) fn acquire(
        &self,
        bucket: Bucket<'_>,
        owner: Owner,
        partition: impl FnOnce() -> u16,
    ) -> Option<Acquired> {
        match bucket.acquire(owner) {
            Ok(()) => Some(Acquired::Now),
            Err(holder) if holder == owner => Some(Acquired::Before),
            Err(holder) if holder.excludes(owner) || !bucket.take_over(holder, owner) => None,
            Err(_) => {
                // The slots that were reserved under the dead lock, and the room for rows that a split or a merge was to bring.
                bucket.write(|next| bucket.end_reservation(next, true, partition));
                Some(Acquired::Now)
            }
        }
    }

    /// Takes the locks of a bucket and a half of it, none of which `owner` has; whether both were free.
    pub(crate) fn acquire_both(
        &self,
        [first, second]: [Bucket<'_>; 2],
        owner: Owner,
        partition: u16,
    ) -> bool {
        if self.acquire(first, owner, || partition) != Some(Acquired::Now) {
            return false;
        }
        let has_both = self.acquire(second, owner, || partition) == Some(Acquired::Now);
        if !has_both {
            first.release();
        }
        has_both
    }

    /// Reserves a slot for an insert; whether there is room.
    fn reserve(&self, bucket: Bucket<'_>, key: u64) -> bool {
        let (is_reserved, is_long) = bucket
            .write(|next| (bucket.reserve(next, key, self.layout().quota), bucket.is_long(*next)));
        if is_long {
            self.note_long(self.locate(key).partition);
        }
        is_reserved
    }
}
