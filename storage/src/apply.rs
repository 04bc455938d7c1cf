//! Applying a unit: a transaction's changes to one bucket, at its primary and at its backups.
//!
//! *Invariants*: a unit is applied once, however often it arrives. The version is stored before the lock is released. A copy
//! does not refuse a unit for want of memory: the lock has reserved it (rule C9).
//!
//! *Source*: FaSST section 5, steps 4 and 5; the version rule is `docs/protocol.md`, "Unit of change".

use std::collections::BTreeSet;

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::bucket_update::{BucketUpdate, Item, UnitKind};
use crate::growth::{count_of, stamp_of};
use crate::heap::Row;
use crate::key::HashedKey;
use crate::layout::TableKind;
use crate::owner::Owner;
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// What applying a unit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The bucket had the unit's base version and now has the next.
    Applied,
    /// The unit was applied before.
    Duplicate,
    /// An earlier unit is missing at this copy, or the lock under which a primary was to apply this one.
    Gap,
}

impl Table {
    /// Applies a unit of the bucket at `address` at its primary and releases the lock: once, however often it arrives.
    pub fn apply_at_primary(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        if unit.kind != UnitKind::Rows || address.is_none() {
            return self.apply_shape(address, unit, true);
        }
        let bucket = self.bucket(address);
        // Checked under the sequence, so that of two threads with the same unit one finds it applied.
        let has_removed = bucket.write(|next| {
            if bucket.owner() != unit.owner || bucket.version() != unit.base_version {
                return None;
            }
            let has_removed = self.install(bucket, next, unit, false);
            // After the version, so that a thread that sees the bucket free sees the version too.
            self.release(bucket, unit);
            Some(has_removed)
        });
        match has_removed {
            Some(has_removed) => {
                if has_removed {
                    self.note_removed(unit.partition);
                }
                Applied::Applied
            }
            None => self.why_not(unit),
        }
    }

    /// Applies a unit of the bucket at `address` at a backup, which knows no locks: by version alone.
    pub fn apply_at_backup(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        if unit.kind != UnitKind::Rows || address.is_none() {
            return self.apply_shape(address, unit, false);
        }
        let bucket = self.bucket(address);
        let is_applied = bucket.write(|next| {
            let is_base = bucket.version() == unit.base_version || !rule!(BASE_VERSION);
            if is_base {
                self.install(bucket, next, unit, false);
            }
            is_base
        });
        if is_applied { Applied::Applied } else { self.why_not(unit) }
    }

    /// Why a unit was not applied.
    #[cold]
    fn why_not(&self, unit: &BucketUpdate<'_>) -> Applied {
        // Only a unit that was applied has raised the count.
        if self.is_duplicate(unit) { Applied::Duplicate } else { Applied::Gap }
    }

    /// As [`Self::apply_at_primary`] or [`Self::apply_at_backup`], of a unit that splits its bucket, or merges its half, or whose bucket was merged.
    #[cold]
    fn apply_shape(
        &self,
        address: BucketAddress,
        unit: &BucketUpdate<'_>,
        is_primary: bool,
    ) -> Applied {
        if address.is_none() {
            return Applied::Duplicate;
        }
        let partition = self.partition(unit.partition).expect("the partition of an address");
        // Before the sequence of the bucket.
        let chunks = partition.growth_or_new(self.layout().buckets).chunks.hold();
        let bucket = self.bucket(address);
        let is_applied = bucket.write(|next| {
            let is_base = bucket.version() == unit.base_version;
            let is_due = match is_primary {
                true => is_base && bucket.owner() == unit.owner,
                false => is_base || !rule!(BASE_VERSION),
            };
            if is_due && unit.kind == UnitKind::Merge {
                self.merge((bucket, next), unit);
            } else if is_due {
                self.split(&chunks, (bucket, next), unit);
            }
            if is_due && is_primary {
                self.release(bucket, unit);
            }
            is_due
        });
        drop(chunks);
        if !is_applied {
            return self.why_not(unit);
        }
        if unit.kind == UnitKind::Merge {
            self.end_merge(unit, is_primary);
        } else if is_primary {
            self.end_split(unit);
        }
        Applied::Applied
    }

    /// Frees the lock of the bucket of a unit.
    #[inline(always)]
    fn release(&self, bucket: Bucket<'_>, unit: &BucketUpdate<'_>) {
        bucket.release();
        self.arena().locks().dropped(unit.owner, unit.partition);
    }

    /// Makes a bucket what it is at another copy: the unit has all its rows, and the version below. The bucket stays as it is if its own
    /// version is not lower.
    pub fn apply_copy(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        let bucket = self.bucket(address);
        bucket.write(|next| {
            if count_of(bucket.version()) > unit.order() {
                return Applied::Duplicate;
            }
            let stale = self.keys_beside(bucket, held(*next), unit);
            for (word, bytes) in &stale {
                self.take_out(bucket, *next, (unit.owner, HashedKey::from_parts(*word, bytes)), 0);
            }
            if self.layout().kind == TableKind::Fixed {
                self.install(bucket, next, unit, !stale.is_empty());
            } else {
                self.install_copy(bucket, next, unit, !stale.is_empty());
            }
            Applied::Applied
        })
    }

    /// As [`Self::apply_copy`], of a bucket that may not be born at this copy. Halves of it that this node has from before, and the primary
    /// has not, are dead afterwards. None if the node does not have the partition, or no memory is left.
    pub fn fill_bucket(&self, unit: &BucketUpdate<'_>) -> Option<Applied> {
        let (number, version) = (unit.partition, unit.base_version + 1);
        let partition = self.partition(number)?;
        // Held to the end, so that no split or merge comes in between.
        let chunks = partition.growth_or_new(self.layout().buckets).chunks.hold();
        if self.was_merged(number, unit.bucket, count_of(version)) {
            return Some(Applied::Duplicate);
        }
        // Before the rows of the copy come to the index.
        let ended = self.end_halves(number, (unit.bucket, version), unit.owner);
        let address = self.address_held(&chunks, (number, unit.bucket), Quota::Decided)?;
        let applied = self.apply_copy(address, unit);
        drop(chunks);
        self.note_born(number, unit.bucket);
        self.forget_halves(number, ended);
        Some(applied)
    }

    /// The keys of a bucket that a unit does not write.
    fn keys_beside(
        &self,
        bucket: Bucket<'_>,
        sequence: u64,
        unit: &BucketUpdate<'_>,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut keys = self.keys_of(bucket, sequence);
        if keys.is_empty() {
            // As most buckets are that are filled.
            return keys;
        }
        let key_of = |item: Item<'_>| match item {
            Item::Put { key, .. } | Item::Delete { key } => (key.word(), key.bytes().to_vec()),
        };
        let written: BTreeSet<_> = unit.items().map(key_of).collect();
        keys.retain(|key| !written.contains(key));
        keys
    }

    /// The keys of a bucket.
    pub(crate) fn keys_of(&self, bucket: Bucket<'_>, sequence: u64) -> Vec<(u64, Vec<u8>)> {
        let mut keys = Vec::new();
        bucket.for_each(sequence, |slot| {
            let mut bytes = Vec::new();
            if self.layout().kind != TableKind::Fixed {
                Row::of(self.arena(), slot).copy_key(&mut bytes);
            }
            keys.push((slot.key(), bytes));
        });
        keys
    }

    /// Writes a row inside the write of its bucket; whether there was room.
    #[inline(always)]
    pub(crate) fn put(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        (owner, key): (Owner, HashedKey<'_>),
        (stamp, value): (u64, &[u8]),
        quota: Quota,
    ) -> bool {
        match self.layout().kind {
            TableKind::Fixed => {
                bucket.put(next, self.locate(key.word()).tag, key.word(), value, quota)
            }
            TableKind::Heap | TableKind::Ordered => {
                self.put_row(bucket, next, (owner, key), (stamp, value), quota)
            }
        }
    }

    /// Takes a row out inside the write of its bucket.
    pub(crate) fn take_out(
        &self,
        bucket: Bucket<'_>,
        next: u64,
        (owner, key): (Owner, HashedKey<'_>),
        stamp: u64,
    ) {
        match self.layout().kind {
            TableKind::Fixed => bucket.remove(next, self.locate(key.word()).tag, key.word()),
            TableKind::Heap | TableKind::Ordered => {
                self.remove_row(bucket, next, (owner, key), stamp);
            }
        }
    }

    /// Applies the changes of a unit of rows, and raises the version. `has_removed` says whether rows were removed before. Whether some are now.
    fn install(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        unit: &BucketUpdate<'_>,
        mut has_removed: bool,
    ) -> bool {
        let stamp = stamp_of(unit.base_version + 1);
        for item in unit.items() {
            has_removed |= matches!(item, Item::Delete { .. });
            match item {
                Item::Put { key, value } => {
                    self.put_decided(bucket, next, (unit.owner, key), (stamp, value));
                }
                Item::Delete { key } => self.take_out(bucket, *next, (unit.owner, key), stamp),
            }
        }
        bucket.end_reservation(next, has_removed, || unit.partition);
        bucket.store_version(unit.base_version + 1);
        has_removed
    }

    /// As [`Self::install`], of a copy of a bucket with byte-string keys: its rows have their stamps, and the bucket has its mark.
    fn install_copy(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        unit: &BucketUpdate<'_>,
        has_removed: bool,
    ) {
        for item in unit.items() {
            match item {
                Item::Put { key, value } => {
                    let stamped = self.stamped(value);
                    self.put_decided(bucket, next, (unit.owner, key), stamped);
                }
                Item::Delete { key } => bucket.store_deleted(key.word()),
            }
        }
        bucket.end_reservation(next, has_removed, || unit.partition);
        bucket.store_version(unit.base_version + 1);
    }

    /// Writes a row that is decided: there is memory for it.
    #[inline]
    pub(crate) fn put_decided(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        row: (Owner, HashedKey<'_>),
        stamped: (u64, &[u8]),
    ) {
        let is_stored = self.put(bucket, next, row, stamped, Quota::Decided);
        assert!(
            is_stored,
            "table {}: the memory limit of {} bytes is used up by decided updates, which fit the share of their partition when their \
             locks were granted",
            self.name(),
            self.limit_bytes()
        );
    }
}
