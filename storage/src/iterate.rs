//! Iterating over a table bucket by bucket, for verification, copies and checkpoints.

use crate::owner::Owner;
use crate::table::Table;

/// One bucket as it was at one moment: the old version, if a transaction holds it.
///
/// Filled by [`Table::snapshot`], again and again, so that iterating allocates only while it grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketSnapshot {
    /// Logical version.
    pub version: u64,
    /// Who held the lock.
    pub owner: Owner,
    /// Keys, ascending, and where the value of each starts.
    keys: Vec<(u64, usize)>,
    values: Vec<u8>,
    value_bytes: usize,
}

impl Default for BucketSnapshot {
    fn default() -> Self {
        Self {
            version: 0,
            owner: Owner::FREE,
            keys: Vec::new(),
            values: Vec::new(),
            value_bytes: 0,
        }
    }
}

impl BucketSnapshot {
    /// The rows, by ascending key.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (u64, &[u8])> {
        self.keys.iter().map(|&(key, at)| (key, &self.values[at..at + self.value_bytes]))
    }

    /// Whether both have the same version and the same rows, byte for byte.
    #[must_use]
    pub fn equals(&self, other: &Self) -> bool {
        self.version == other.version && self.rows().eq(other.rows())
    }
}

impl Table {
    /// Makes `snapshot` a consistent copy of `bucket` of `partition`.
    ///
    /// # Panics
    /// If this node does not hold it.
    pub fn snapshot(&self, partition: u16, bucket: u32, snapshot: &mut BucketSnapshot) {
        let place = self.bucket_place(partition, bucket).expect("a bucket that this node holds");
        let bucket = self.bucket(place);
        let BucketSnapshot { version, owner, keys, values, value_bytes } = snapshot;
        *value_bytes = self.layout().value_bytes;
        bucket.read_consistent(|sequence| {
            keys.clear();
            values.clear();
            bucket.for_each(sequence, |slot| {
                let at = values.len();
                keys.push((slot.key(), at));
                values.resize(at + *value_bytes, 0);
                slot.copy_value(&mut values[at..]);
            });
            *version = bucket.version();
            *owner = bucket.owner();
        });
        keys.sort_unstable();
    }
}
