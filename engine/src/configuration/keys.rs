//! Where rows lie, by their keys.
//!
//! *Not here*: how keys are hashed, in crate `storage`.

use crate::configuration::Configuration;

impl Configuration {
    /// The primary of the row with that key in tables with fixed values, as [`Self::primary`].
    #[inline]
    #[must_use]
    pub fn primary_of_key(&self, key: u64) -> u16 {
        self.primary(self.partitioning.partition(key))
    }

    /// The partition of the row with that key in heap tables.
    #[must_use]
    pub fn partition_of_row(&self, key: &[u8]) -> u16 {
        self.partitioning.partition(self.partitioning.seed().hash(key))
    }

    /// The primary of the row with that key in heap tables, as [`Self::primary`].
    #[must_use]
    pub fn primary_of_row(&self, key: &[u8]) -> u16 {
        self.primary(self.partition_of_row(key))
    }

    /// A key of a heap table that starts with `prefix` and lies in `partition`: for rows of which there
    /// is one in each partition, so that every transaction can have one near.
    ///
    /// # Panics
    /// If there is no such partition.
    #[must_use]
    pub fn row_key_in(&self, partition: u16, prefix: &[u8]) -> Vec<u8> {
        assert!(usize::from(partition) < self.primaries.len(), "there is no such partition");
        let keys = (0_u32..).map(|number| [prefix, &number.to_be_bytes()].concat());
        let lies_there = |key: &Vec<u8>| self.partition_of_row(key) == partition;
        keys.into_iter().find(lies_there).expect("keys spread over all partitions")
    }
}
