//! Loading a table's first rows, before any transaction runs.
//!
//! *Invariants*: loading takes no lock and sends no message. Versions stay 0 until `mark_loaded`, so copies that were loaded with the
//! same rows are equal.

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::error::StorageError;
use crate::growth::level_of;
use crate::heap::{HEAP_VALUE_BYTES_MAX, Heap};
use crate::key::HashedKey;
use crate::layout::TableKind;
use crate::owner::Owner;
use crate::table::{BucketAddress, Table};

impl Table {
    /// Whether the table can have this key, and its hash is right.
    #[inline(always)]
    #[must_use]
    pub fn fits_key(&self, key: HashedKey<'_>) -> bool {
        self.layout().partitioning.seed().fits(key, self.layout().kind)
    }

    /// Whether the table can have a row with this key and value.
    #[inline]
    #[must_use]
    pub fn fits(&self, key: HashedKey<'_>, value: &[u8]) -> bool {
        let layout = self.layout();
        let value_fits = match layout.kind {
            TableKind::Fixed => value.len() == layout.value_bytes,
            TableKind::Heap | TableKind::Ordered => value.len() <= HEAP_VALUE_BYTES_MAX,
        };
        value_fits && self.fits_key(key)
    }

    /// As [`Self::fits`], with the reason.
    ///
    /// # Errors
    /// [`StorageError::KeyKind`], [`StorageError::RowBytes`] or [`StorageError::LongValue`] for a row that it cannot have.
    pub fn check_row(&self, key: HashedKey<'_>, value: &[u8]) -> Result<(), StorageError> {
        if self.fits(key, value) {
            return Ok(());
        }
        let (table, kind, found) = (self.name().to_owned(), self.layout().kind, value.len());
        if !self.fits_key(key) {
            let expected = match kind {
                TableKind::Fixed => "numbers of 64 bits",
                TableKind::Heap | TableKind::Ordered => "1 to 4,096 bytes",
            };
            return Err(StorageError::KeyKind { table, expected, found: key.plain().to_string() });
        }
        Err(match kind {
            TableKind::Fixed => {
                StorageError::RowBytes { table, expected: self.layout().value_bytes, found }
            }
            TableKind::Heap | TableKind::Ordered => {
                StorageError::LongValue { table, found, max: HEAP_VALUE_BYTES_MAX }
            }
        })
    }

    /// Adds a row whose key lives at `address` to this replica; several threads may load at once.
    ///
    /// Versions stay as they are, so replicas that were loaded with the same rows are equal. [`Self::mark_loaded`] follows.
    ///
    /// # Errors
    /// As [`Self::check_row`]; [`StorageError::Exists`] for a key that is there, [`StorageError::Full`] at the memory limit.
    pub fn load<'k>(
        &self,
        address: BucketAddress,
        key: impl Into<HashedKey<'k>>,
        value: &[u8],
    ) -> Result<(), StorageError> {
        let key = key.into();
        self.check_row(key, value)?;
        let bucket = self.bucket(address);
        let loaded = bucket.write(|next| {
            // Where transactions have run before, the bucket may have been split since.
            if level_of(bucket.version()) != address.level() {
                return None;
            }
            Some(self.load_into((bucket, next), address.tag(), key, value))
        });
        loaded.unwrap_or_else(|| {
            self.load(self.present_address_of(self.locate(key.word())), key, value)
        })
    }

    /// Adds a row to a bucket, inside the bucket's write.
    fn load_into(
        &self,
        (bucket, next): (Bucket<'_>, &mut u64),
        tag: u8,
        key: HashedKey<'_>,
        value: &[u8],
    ) -> Result<(), StorageError> {
        if self.holds(bucket, held(*next), tag, key) {
            let (table, key) = (self.name().to_owned(), key.plain().to_string());
            return Err(StorageError::Exists { table, key });
        }
        if self.put(bucket, next, (Owner::FREE, key), (0, value), Quota::WithinShare) {
            Ok(())
        } else {
            let (table, limit) = (self.name().to_owned(), self.limit_bytes());
            Err(StorageError::Full { table, limit })
        }
    }

    /// Gives a bucket version 1 that rows were loaded into and nothing has changed: a copy of a partition is made of the buckets with a
    /// higher version than 0.
    pub fn mark_loaded(&self, address: BucketAddress) {
        let bucket = self.bucket(address);
        // One that was split off had a higher version, and may be merged by now.
        if bucket.version() == 0 && address.level() == 0 {
            bucket.write(|_| {
                if bucket.version() == 0 {
                    bucket.store_version(1);
                }
            });
        }
    }

    fn holds(&self, bucket: Bucket<'_>, sequence: u64, tag: u8, key: HashedKey<'_>) -> bool {
        match self.layout().kind {
            TableKind::Fixed => bucket.find(sequence, tag, key.word()).is_some(),
            TableKind::Heap | TableKind::Ordered => {
                Heap::find(self.arena(), bucket, sequence, tag, key).is_some()
            }
        }
    }
}
