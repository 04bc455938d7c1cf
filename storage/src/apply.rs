//! Applying a unit: a transaction's changes to one bucket, at its primary and at its backups.
//!
//! *Invariants*: a unit is applied once, however often it arrives. The version is stored before the lock is released. A copy
//! does not refuse a unit for want of memory: the lock has reserved it (rule C9).
//!
//! *Source*: FaSST section 5, steps 4 and 5; the version rule is `docs/protocol.md`, "Unit of change".

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::arena::Quota;
use crate::bucket::{Bucket, held};
use crate::bucket_update::{BucketUpdate, Item};
use crate::growth::stamp_of;
use crate::heap::Row;
use crate::key::Key;
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
        let bucket = self.bucket(address);
        // Checked under the sequence, so that of two threads with the same unit one finds it applied.
        bucket.write(|next| {
            if bucket.owner() != unit.owner || bucket.version() != unit.base_version {
                // Only a unit that was applied has raised the version.
                let is_applied = bucket.version() > unit.base_version;
                return if is_applied { Applied::Duplicate } else { Applied::Gap };
            }
            self.install(bucket, next, unit, false);
            // After the version, so that whoever sees the bucket free sees the version too.
            bucket.release();
            self.arena().locks().dropped(unit.owner, unit.partition);
            Applied::Applied
        })
    }

    /// Applies a unit of the bucket at `address` at a backup, which knows no locks: by version alone.
    pub fn apply_at_backup(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        let bucket = self.bucket(address);
        bucket.write(|next| match bucket.version().cmp(&unit.base_version) {
            Ordering::Greater if rule!(BASE_VERSION) => Applied::Duplicate,
            Ordering::Less if rule!(BASE_VERSION) => Applied::Gap,
            _ => {
                self.install(bucket, next, unit, false);
                Applied::Applied
            }
        })
    }

    /// Makes a bucket what it is at another copy: the unit has all its rows, and the version below. The bucket stays as it is if its own
    /// version is not lower.
    pub fn apply_copy(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        let bucket = self.bucket(address);
        bucket.write(|next| {
            if bucket.version() > unit.base_version {
                return Applied::Duplicate;
            }
            let stale = self.keys_beside(bucket, held(*next), unit);
            for (word, bytes) in &stale {
                self.take_out(bucket, *next, (unit.owner, Key::from_parts(*word, bytes)), 0);
            }
            if self.layout().kind == TableKind::Fixed {
                self.install(bucket, next, unit, !stale.is_empty());
            } else {
                self.install_copy(bucket, next, unit, !stale.is_empty());
            }
            Applied::Applied
        })
    }

    /// As [`Self::apply_copy`], of a bucket that may not be born at this copy.
    pub fn fill_bucket(&self, address: BucketAddress, unit: &BucketUpdate<'_>) -> Applied {
        let applied = self.apply_copy(address, unit);
        self.note_born(unit.partition, unit.bucket);
        applied
    }

    /// The keys of a bucket that a unit does not write.
    fn keys_beside(
        &self,
        bucket: Bucket<'_>,
        sequence: u64,
        unit: &BucketUpdate<'_>,
    ) -> Vec<(u64, Vec<u8>)> {
        let mut keys = Vec::new();
        bucket.for_each(sequence, |slot| {
            let mut bytes = Vec::new();
            if self.layout().kind != TableKind::Fixed {
                Row::of(self.arena(), slot).copy_key(&mut bytes);
            }
            keys.push((slot.key(), bytes));
        });
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

    /// Writes a row inside the write of its bucket; whether there was room.
    pub(crate) fn put(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        (owner, key): (Owner, Key<'_>),
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
    fn take_out(&self, bucket: Bucket<'_>, next: u64, (owner, key): (Owner, Key<'_>), stamp: u64) {
        match self.layout().kind {
            TableKind::Fixed => bucket.remove(next, self.locate(key.word()).tag, key.word()),
            TableKind::Heap | TableKind::Ordered => {
                self.remove_row(bucket, next, (owner, key), stamp);
            }
        }
    }

    /// Applies the changes of a unit, and raises the version. Whether rows were removed before.
    fn install(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        unit: &BucketUpdate<'_>,
        mut has_removed: bool,
    ) {
        if unit.splits {
            return self.split(bucket, next, unit);
        }
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
                    let (stamp, value) = value.split_first_chunk().expect("a copied row's stamp");
                    let stamped = (u64::from_le_bytes(*stamp), value);
                    self.put_decided(bucket, next, (unit.owner, key), stamped);
                }
                Item::Delete { key } => bucket.store_deleted(key.word()),
            }
        }
        bucket.end_reservation(next, has_removed, || unit.partition);
        bucket.store_version(unit.base_version + 1);
    }

    /// Writes a row that is decided: there is memory for it.
    fn put_decided(
        &self,
        bucket: Bucket<'_>,
        next: &mut u64,
        row: (Owner, Key<'_>),
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
