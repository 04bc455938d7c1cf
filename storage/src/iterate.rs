//! Snapshots of a table, bucket by bucket: for verification, for learners that copy a partition, and for merges.
//!
//! *Invariants*: a snapshot is one moment of its bucket. A locked bucket is read in its old version: a snapshot is no
//! transaction. Rows come by ascending key, those of a heap table by their hash, so that equal buckets give equal
//! snapshots at all copies. A bucket that is not born has version 0 and no rows.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again", step 3, for `write_copy`.
//!
//! *Not here*: a copy that is installed (`apply.rs`), and folds of many buckets (`fold.rs`).

use std::collections::BTreeSet;

use crate::bucket_update::BucketUpdateWriter;
use crate::heap::{Heap, Row};
use crate::key::HashedKey;
use crate::layout::TableKind;
use crate::ordered_index::OrderedIndex;
use crate::owner::Owner;
use crate::table::Table;

/// One bucket as it was at one moment: the old version, if a transaction holds it.
///
/// Filled by [`Table::snapshot`], again and again, so that iterating allocates only while it grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSnapshot {
    /// Logical version.
    pub version: u64,
    /// The owner of the lock.
    pub owner: Owner,
    /// Stamp of the last deletion.
    deleted: u64,
    rows: Vec<SnapshotRow>,
    values: Vec<u8>,
}

/// A row of a snapshot: its key, and where its value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SnapshotRow {
    key: u64,
    start: usize,
    end: usize,
    /// Of the value's bytes, how many are the key of a heap table's row.
    key_bytes: usize,
    /// When a heap table's row was last written.
    stamp: u64,
}

impl Default for BucketSnapshot {
    fn default() -> Self {
        let (rows, values) = (Vec::new(), Vec::new());
        Self { version: 0, owner: Owner::FREE, deleted: 0, rows, values }
    }
}

impl BucketSnapshot {
    /// The rows, by ascending key; of a heap table the hash, and key and value as one.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        self.rows.iter().map(|row| (row.key, &self.values[row.start..row.end]))
    }

    /// The keys and values of a heap table's bucket.
    pub fn heap_rows(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.rows.iter().map(|row| self.values[row.start..row.end].split_at(row.key_bytes))
    }

    /// Writes what [`Table::apply_copy`] makes the same bucket of at another copy; the bucket was changed before. `number` is the table's.
    ///
    /// In a heap table the value of each row begins with the row's stamp, in 8 bytes, and an item that removes a key without bytes has the
    /// stamp of the last deletion in the place of a hash.
    ///
    /// # Panics
    /// If it has version 0.
    pub fn write_copy(
        &self,
        table: &Table,
        (number, partition, bucket): (u32, u16, u32),
        out: &mut Vec<u8>,
    ) {
        let address = (number, partition, bucket);
        let base_version = self.version.checked_sub(1).expect("a bucket that was changed");
        let mut unit = BucketUpdateWriter::begin(out, address, base_version, Owner::FREE);
        self.write_rows(table, &mut unit);
        if table.layout().kind != TableKind::Fixed {
            unit.delete(HashedKey::from_parts(self.deleted, &[]));
        }
        unit.finish();
    }

    /// Adds the rows to a unit, in a heap table each with its stamp before its value.
    pub(crate) fn write_rows(&self, table: &Table, unit: &mut BucketUpdateWriter<'_>) {
        if table.layout().kind == TableKind::Fixed {
            return self.rows().for_each(|(key, value)| unit.put(HashedKey::Number(key), value));
        }
        let mut stamped = Vec::new();
        for (row, (key, value)) in self.rows.iter().zip(self.heap_rows()) {
            stamped.clear();
            stamped.extend_from_slice(&row.stamp.to_le_bytes());
            stamped.extend_from_slice(value);
            unit.put(table.hashed(key), &stamped);
        }
    }

    /// Stamp of the last deletion.
    pub(crate) fn deleted(&self) -> u64 {
        self.deleted
    }

    /// Whether both have the same version and the same rows, byte for byte, and the same stamps.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        let stamps = |it: &Self| it.rows.iter().map(|row| row.stamp).collect::<Vec<_>>();
        (self.version, self.deleted) == (other.version, other.deleted)
            && self.rows().eq(other.rows())
            && stamps(self) == stamps(other)
    }
}

impl Table {
    /// Makes `snapshot` a consistent copy of `bucket` of `partition`. One that is not born has version 0 and no rows.
    ///
    /// # Panics
    /// If this node does not hold the partition.
    pub fn snapshot(&self, partition: u16, bucket: u32, snapshot: &mut BucketSnapshot) {
        let Some(address) = self.bucket_address(partition, bucket) else {
            assert!(self.has_partition(partition), "a partition that this node holds");
            (snapshot.version, snapshot.owner, snapshot.deleted) = (0, Owner::FREE, 0);
            return snapshot.rows.clear();
        };
        let bucket = self.bucket(address);
        let BucketSnapshot { version, owner, deleted, rows, values } = snapshot;
        bucket.read_consistent(|sequence| {
            rows.clear();
            values.clear();
            bucket.for_each(sequence, |slot| {
                let (key, start) = (slot.key(), values.len());
                let (key_bytes, stamp) = match self.layout().kind {
                    TableKind::Fixed => {
                        values.resize(start + self.layout().value_bytes, 0);
                        slot.copy_value(&mut values[start..]);
                        (0, 0)
                    }
                    TableKind::Heap | TableKind::Ordered => {
                        let row = Row::of(self.arena(), slot);
                        row.copy(values);
                        (row.key_bytes(), row.stamp())
                    }
                };
                rows.push(SnapshotRow { key, start, end: values.len(), key_bytes, stamp });
            });
            *deleted = bucket.deleted();
            *version = bucket.version();
            *owner = bucket.owner();
        });
        rows.sort_unstable_by(|a, b| {
            let value = |row: &SnapshotRow| &values[row.start..row.end];
            a.key.cmp(&b.key).then_with(|| value(a).cmp(value(b)))
        });
    }

    /// Keys in the index of `partition`, and the bytes that they take; none of a table without index, or where this node does not hold it.
    #[must_use]
    pub fn index_memory(&self, partition: u16) -> (usize, usize) {
        let index = self.heap(partition).and_then(Heap::index);
        index.map_or((0, 0), OrderedIndex::memory)
    }

    /// Keys of `partition` that are in the table or in its index and not in both, and keys that are
    /// pending: none, when no transaction runs.
    ///
    /// # Panics
    /// If this node does not hold the partition.
    #[must_use]
    pub fn index_differences(&self, partition: u16) -> usize {
        let Some(index) = self.heap(partition).and_then(Heap::index) else { return 0 };
        let mut rows = BTreeSet::new();
        let mut snapshot = BucketSnapshot::default();
        for bucket in 0..self.bucket_count(partition) {
            self.snapshot(partition, bucket, &mut snapshot);
            rows.extend(snapshot.heap_rows().map(|(key, _)| Box::<[u8]>::from(key)));
        }
        let entries = index.entries();
        let pending = entries.iter().filter(|(_, owner)| owner.is_some()).count();
        let indexed: BTreeSet<_> = entries.into_iter().map(|(key, _)| key).collect();
        pending + rows.symmetric_difference(&indexed).count()
    }
}
