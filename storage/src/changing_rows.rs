//! For tests: the rows of one table, which change by units, as at a backup.
//!
//! *Invariants*: the table has one partition and one root. There are 16 keys, of which two have one hash. A change is a
//! step, with a number from 1: 0 splits the bucket of a key, 1 to 3 write the key with values of different lengths, 4 and
//! 5 remove it, 6 merges its bucket. Each unit must apply; a change that is not possible is none.
//!
//! *Not here*: the tests, in `fold.rs` and `validate.rs`; locks and primaries.

use std::sync::Arc;

use crate::growth::level_of;
use crate::{
    Applied, Arena, BucketAddress, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashSeed,
    Owner, Partitioning, Table, TableLayout,
};

pub(crate) const OWNER: Owner = Owner(1 << Owner::EPOCH_SHIFT | 1);

/// A table of one bucket, whose halves are split and merged now and then, and what has become of its keys.
pub(crate) struct Rows {
    pub(crate) table: Table,
    pub(crate) keys: Vec<Vec<u8>>,
    /// Of each key, whether it is there.
    pub(crate) is_there: Vec<bool>,
    /// Of each key, the step of its last change; and the steps of the deletions.
    pub(crate) changed: Vec<usize>,
    pub(crate) deletions: Vec<(usize, usize)>,
    /// The step of the last merge.
    pub(crate) merged: usize,
}

impl Rows {
    pub(crate) fn new() -> Self {
        let partitioning = Partitioning::new(1).expect("a power of two");
        let layout = TableLayout::heap("rows", 0, partitioning).expect("sizes in range");
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 20]).expect("address space"));
        let table = Table::new("rows", layout, arena, |_| true).expect("it fits");
        let mut keys: Vec<_> = (0..14_u8).map(|number| vec![number; 70]).collect();
        keys.extend(HashSeed::ZERO.keys_with_one_hash(7).map(Vec::from));
        let (is_there, changed) = (vec![false; keys.len()], vec![0; keys.len()]);
        Self { table, keys, is_there, changed, deletions: Vec::new(), merged: 0 }
    }

    pub(crate) fn address(&self, key: usize) -> (BucketAddress, u32, u64) {
        let location = self.table.locate(HashSeed::ZERO.hashed(&self.keys[key]).word());
        let address = self.table.present_address_of(location);
        let version = self.table.bucket(address).version();
        (address, self.table.bucket_at(location, version), version)
    }

    fn apply(&self, key: usize, write: impl FnOnce(BucketUpdateWriter<'_>)) {
        let (address, bucket, version) = self.address(key);
        let mut bytes = Vec::new();
        write(BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, OWNER));
        let unit = BucketUpdate::parse_checked(&bytes);
        assert_eq!(self.table.apply_at_backup(address, &unit), Applied::Applied);
    }

    /// Merges the bucket of a key and its other half, if that was not split further. Whether it was done.
    fn merge(&self, key: usize) -> bool {
        let (_, bucket, version) = self.address(key);
        let Some(level) = level_of(version).checked_sub(1) else { return false };
        // The table has one root.
        let parent = bucket & !(1 << level);
        let half = self.table.half_of(parent, version).expect("it was split");
        let at = |bucket| self.table.bucket_address(0, bucket).expect("it was split");
        let versions = [parent, half].map(|bucket| self.table.bucket(at(bucket)).version());
        if versions.iter().any(|it| level_of(*it) != level_of(version)) {
            return false;
        }
        let mut bytes = Vec::new();
        let out = (&mut BucketSnapshot::default(), &mut bytes);
        self.table.write_merge((0, 0, parent), versions[0], OWNER, out);
        let unit = BucketUpdate::parse_checked(&bytes);
        assert_eq!(self.table.apply_at_backup(at(parent), &unit), Applied::Applied);
        true
    }

    /// Splits the bucket of the key, adds it, writes it again, removes it, or merges its bucket.
    pub(crate) fn change(&mut self, key: usize, kind: u8, step: usize) {
        if kind == 0 {
            let (_, bucket, version) = self.address(key);
            if level_of(version) < 3 && self.table.child_of(bucket, version).is_some() {
                self.apply(key, |unit| unit.split());
            }
            return;
        }
        if kind == 6 {
            self.merged = if self.merge(key) { step } else { self.merged };
            return;
        }
        if kind < 4 {
            self.apply(key, |mut unit| {
                unit.put(
                    HashSeed::ZERO.hashed(&self.keys[key]),
                    &vec![kind; usize::from(kind) * 30],
                );
                unit.finish();
            });
            self.is_there[key] = true;
        } else if self.is_there[key] {
            self.apply(key, |mut unit| {
                unit.delete(HashSeed::ZERO.hashed(&self.keys[key]));
                unit.finish();
            });
            self.is_there[key] = false;
            self.deletions.push((step, key));
        } else {
            return;
        }
        self.changed[key] = step;
    }
}
