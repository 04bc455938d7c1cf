//! For tests: the rows of one table, which change by units, as at a backup.

use std::sync::Arc;

use crate::growth::level_of;
use crate::heap::keys_with_one_hash;
use crate::{
    Applied, Arena, BucketAddress, BucketUpdate, BucketUpdateWriter, Key, Owner, Partitioning,
    Table, TableLayout,
};

pub(crate) const OWNER: Owner = Owner(1 << Owner::EPOCH_SHIFT | 1);

/// A table of one bucket, which is split now and then, and what has become of its keys.
pub(crate) struct Rows {
    pub(crate) table: Table,
    pub(crate) keys: Vec<Vec<u8>>,
    /// Of each key, whether it is there.
    pub(crate) is_there: Vec<bool>,
    /// Of each key, the step of its last change; and the steps of the deletions.
    pub(crate) changed: Vec<usize>,
    pub(crate) deletions: Vec<(usize, usize)>,
}

impl Rows {
    pub(crate) fn new() -> Self {
        let partitioning = Partitioning::new(1).expect("a power of two");
        let layout = TableLayout::heap("rows", 0, partitioning).expect("sizes in range");
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 20]).expect("address space"));
        let table = Table::new("rows", layout, arena, |_| true).expect("it fits");
        let mut keys: Vec<_> = (0..14_u8).map(|number| vec![number; 70]).collect();
        keys.extend(keys_with_one_hash(7).map(Vec::from));
        let (is_there, changed) = (vec![false; keys.len()], vec![0; keys.len()]);
        Self { table, keys, is_there, changed, deletions: Vec::new() }
    }

    pub(crate) fn address(&self, key: usize) -> (BucketAddress, u32, u64) {
        let location = self.table.locate(Key::hashed(&self.keys[key]).word());
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

    /// Adds the key, writes it again, removes it, or splits its bucket.
    pub(crate) fn change(&mut self, key: usize, kind: u8, step: usize) {
        if kind == 0 {
            let (_, bucket, version) = self.address(key);
            if level_of(version) < 3 && self.table.child_of(bucket, version).is_some() {
                self.apply(key, |unit| unit.split());
            }
            return;
        }
        if kind < 4 {
            self.apply(key, |mut unit| {
                unit.put(Key::hashed(&self.keys[key]), &vec![kind; usize::from(kind) * 30]);
                unit.finish();
            });
            self.is_there[key] = true;
        } else if self.is_there[key] {
            self.apply(key, |mut unit| {
                unit.delete(Key::hashed(&self.keys[key]));
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
