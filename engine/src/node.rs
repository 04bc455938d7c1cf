//! A node: one arena, the tables in it, and its configuration. All workers of the node share it.
//!
//! *Invariants*: tables are numbered in the order of their creation, and never removed. Every node of a cluster has the same tables,
//! and of each the partitions that the configuration assigns to it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gannet_storage::{Arena, BucketAddress, StorageError, Table, TableLayout};

use crate::configuration::Configuration;

/// Largest number of tables.
const TABLES_MAX: usize = 256;

/// A table of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableId(pub(crate) u16);

impl TableId {
    /// Its number, as it stands in messages and records; from 0, in the order of creation.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

/// What all workers of a node share.
pub struct Node {
    id: u16,
    configuration: Arc<Configuration>,
    arena: Arc<Arena>,
    /// By table number; filled in order, never emptied.
    tables: Box<[OnceLock<Table>]>,
    /// Updates that a copy on this node could not apply because an earlier one is missing.
    gaps: AtomicU64,
    /// Requests that named a table, partition or bucket that this node does not have, or were malformed.
    refused: AtomicU64,
}

impl Node {
    /// A node without tables. `memory_limit_bytes` has the limits of all nodes: that of this node bounds its tables, and the limits of
    /// all nodes give the share of each partition.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the memory.
    ///
    /// # Panics
    /// If there is no limit for this node or for one that holds a partition.
    pub fn new(
        id: u16,
        configuration: Arc<Configuration>,
        memory_limit_bytes: &[usize],
    ) -> Result<Self, StorageError> {
        let limit_bytes = memory_limit_bytes[usize::from(id)];
        let shares = shares(&configuration, memory_limit_bytes);
        Ok(Self {
            id,
            configuration,
            arena: Arc::new(Arena::new(limit_bytes, &shares)?),
            tables: (0..TABLES_MAX).map(|_| OnceLock::new()).collect(),
            gaps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Prefetches the tags of a bucket; of no bucket that matters for [`BucketAddress::NONE`].
    #[inline(always)]
    pub(crate) fn prefetch(&self, address: BucketAddress) {
        self.arena.prefetch_header(address);
    }

    /// The node's number.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// The configuration that the node is in.
    #[inline]
    #[must_use]
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Bytes of table memory in use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.arena.used_bytes()
    }

    /// Bytes of main buckets, which tables take for good when they are created. They count in [`Self::used_bytes`] even while they are
    /// empty; the system gives memory only to those that were touched.
    #[must_use]
    pub fn reserved_bytes(&self) -> usize {
        let partitions = 0..self.configuration.partitioning.count();
        let partitions = partitions.filter_map(|partition| u16::try_from(partition).ok());
        let holds = |partition: &u16| self.configuration.copies(*partition).contains(&self.id);
        let held = partitions.filter(holds).count();
        let tables = self.tables.iter().filter_map(OnceLock::get);
        tables.map(|table| table.layout().main_bytes(held)).sum()
    }

    /// Bytes of table memory that it may use.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
    }

    /// Bytes of data that all nodes together have room for, a copy of each partition counted, as far as it spreads evenly. The
    /// same on every node.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.arena.capacity_bytes()
    }

    /// The table with number `table`.
    #[inline]
    #[must_use]
    pub fn table(&self, table: u16) -> Option<&Table> {
        self.tables.get(usize::from(table))?.get()
    }

    /// The first free table number.
    pub(crate) fn next_table(&self) -> Option<u16> {
        let free = self.tables.iter().position(|table| table.get().is_none())?;
        u16::try_from(free).ok()
    }

    /// Whether this node's part of a table with this layout would fit.
    pub(crate) fn check_memory(
        &self,
        name: &str,
        layout: &TableLayout,
    ) -> Result<(), StorageError> {
        let holds = |partition| self.configuration.copies(partition).contains(&self.id);
        Table::check_memory(name, layout, &self.arena, holds)
    }

    /// Creates this node's part of a table; every node of a cluster creates the same one.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if it does not fit.
    ///
    /// # Panics
    /// If there is a table with that number.
    pub fn create_table(
        &self,
        number: u16,
        name: &str,
        layout: TableLayout,
    ) -> Result<TableId, StorageError> {
        let holds = |partition| self.configuration.copies(partition).contains(&self.id);
        let table = Table::new(name, layout, Arc::clone(&self.arena), holds)?;
        let created = self.tables[usize::from(number)].set(table);
        assert!(created.is_ok(), "the cluster hands out each table number once");
        Ok(TableId(number))
    }

    /// Updates that a copy on this node could not apply because an earlier one is missing.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }

    /// Requests that named a table, partition or bucket that this node does not have, or were malformed.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    // Relaxed: both are statistics, ordered by nothing.
    pub(crate) fn count_gap(&self) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// By partition, the bytes that each of its copies may take (rule C9): a node divides its limit evenly among the copies that it
/// holds, and the smallest of these shares is what all copies of the partition have. So what fits a primary fits its backups.
fn shares(configuration: &Configuration, limit_bytes: &[usize]) -> Vec<usize> {
    let partitions = || (0..=u16::MAX).take(configuration.partitioning.count());
    let mut copies_held = vec![0; limit_bytes.len()];
    for copy in partitions().flat_map(|partition| configuration.copies(partition)) {
        copies_held[usize::from(*copy)] += 1;
    }
    let share = |copy: &u16| {
        let node = usize::from(*copy);
        Arena::share_bytes(limit_bytes[node], copies_held[node])
    };
    let smallest = |partition| configuration.copies(partition).iter().map(share).min();
    partitions().map(|partition| smallest(partition).expect("a partition has a primary")).collect()
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    #[test]
    fn a_partition_has_the_smallest_share_of_its_copies() {
        // Node n holds partitions n - 1 and n of each round of five: 4 + 3 of 16 on node 0, as it begins one round more.
        let configuration = Configuration::new(7, 5, 2, Partitioning::new(16).unwrap());
        let mebibytes = [70, 70, 6, 70, 70].map(|limit: usize| limit << 20);
        let shares = shares(&configuration, &mebibytes);
        for (partition, share) in (0..).zip(&shares) {
            let is_small = configuration.copies(partition).contains(&2);
            assert_eq!(*share <= 1 << 20, is_small, "{partition}: {share}");
        }
        for node in 0..5_u16 {
            let holds = |partition| configuration.copies(partition).contains(&node);
            let all: usize = (0..).zip(&shares).filter(|(p, _)| holds(*p)).map(|(_, s)| s).sum();
            assert!(all < mebibytes[usize::from(node)], "node {node}: {all}");
        }
    }
}
