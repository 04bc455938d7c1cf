//! From a key to its partition, main bucket and tag.
//!
//! ```text
//! hash of the key, 64 bits:  partition (top bits) | root, by multiply-shift | path (bits 8 to 39) | tag (low 7 bits)
//! ```
//! The *root* is the bucket that the key has in a table that has not grown. The *path* says which half of a bucket has the key when
//! the bucket is split (`growth.rs`): its lowest bit counts at the first split.
//!
//! The table takes no part in the hash, so that rows of several tables with the same key have the
//! same primary (SmallBank's savings and checking of one account).

use serde::{Deserialize, Serialize};

use crate::key::HashSeed;

/// Where a key lives: the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Partition of the key.
    pub partition: u16,
    /// Main bucket within the partition, before any is split.
    pub root: u32,
    /// Which halves have the key when buckets are split.
    pub(crate) path: u32,
    /// Fingerprint kept in the header of the bucket; never 0.
    pub tag: u8,
}

impl Location {
    /// Of no key of a partition.
    #[must_use]
    pub fn in_partition(partition: u16) -> Self {
        Self { partition, root: 0, path: 0, tag: 0 }
    }

    /// The bucket of the key, if it has been split so often that it has this level, in a table that began with `roots` buckets.
    #[inline(always)]
    pub(crate) fn bucket_at(self, roots: u32, level: u32) -> u32 {
        self.root + roots * (self.path & ((1 << level) - 1))
    }
}

/// How the key space is divided: a power of two of partitions, the same for all tables, and the seed of the hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partitioning {
    partition_bits: u32,
    seed: HashSeed,
}

impl Partitioning {
    /// Largest number of partitions.
    pub const PARTITIONS_MAX: usize = 1 << 12;

    /// As many partitions as there can be.
    pub(crate) const MOST: Self =
        Self { partition_bits: Self::PARTITIONS_MAX.trailing_zeros(), seed: HashSeed::ZERO };

    /// `partitions` partitions and a seed that everybody knows, or `None` unless that is a power of two up to [`Self::PARTITIONS_MAX`].
    #[must_use]
    pub fn new(partitions: usize) -> Option<Self> {
        (partitions.is_power_of_two() && partitions <= Self::PARTITIONS_MAX)
            .then(|| Self { partition_bits: partitions.trailing_zeros(), seed: HashSeed::ZERO })
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(self, seed: HashSeed) -> Self {
        Self { seed, ..self }
    }

    /// The seed of the hashes of byte-string keys.
    #[inline(always)]
    #[must_use]
    pub fn seed(self) -> HashSeed {
        self.seed
    }

    /// Number of partitions.
    #[must_use]
    pub fn count(self) -> usize {
        1 << self.partition_bits
    }

    /// The partition of `key`.
    #[inline]
    #[must_use]
    pub fn partition(self, key: u64) -> u16 {
        self.locate(key, 1).partition
    }

    /// The location of `key` in a table that begins with `buckets` main buckets per partition.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each value is shifted or masked to fit")]
    pub fn locate(self, key: u64, buckets: u32) -> Location {
        let hash = mix(key);
        // Two shifts, because a shift by 64 is undefined for one partition.
        let partition = (hash >> (63 - self.partition_bits) >> 1) as u16;
        let within = hash << self.partition_bits;
        Location {
            partition,
            root: ((u128::from(within) * u128::from(buckets)) >> 64) as u32,
            path: (hash >> 8) as u32,
            tag: hash as u8 | 0x80,
        }
    }
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
#[inline]
fn mix(key: u64) -> u64 {
    let x = (key ^ (key >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_spread_evenly() {
        let partitioning = Partitioning::new(16).unwrap();
        let mut counts = vec![[0_u32; 64]; 16];
        let keys = 16 * 64 * 100;
        for key in 0..keys {
            let location = partitioning.locate(key, 64);
            assert_eq!(location.partition, partitioning.partition(key));
            counts[usize::from(location.partition)][location.root as usize] += 1;
        }
        // 100 expected per bucket, standard deviation 10: seven of those leave no room for chance.
        assert!(counts.iter().flatten().all(|&count| (30..170).contains(&count)), "{counts:?}");
    }

    #[test]
    fn partitions_are_a_power_of_two() {
        assert!(Partitioning::new(0).is_none());
        assert!(Partitioning::new(3).is_none());
        assert!(Partitioning::new(8192).is_none());
        let one = Partitioning::new(1).unwrap();
        assert_eq!((one.count(), one.partition(u64::MAX)), (1, 0));
    }
}
