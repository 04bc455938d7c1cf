//! A node: one arena, the tables in it, and the configuration it knows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gannet_storage::{Arena, Place, StorageError, Table, TableLayout};

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
    /// Updates that a copy here could not apply because an earlier one is missing.
    gaps: AtomicU64,
    /// Requests that named what is not here, or were malformed.
    refused: AtomicU64,
}

impl Node {
    /// A node without tables, with at most `memory_limit_bytes` for those it will have.
    ///
    /// # Errors
    /// [`StorageError::Map`] if the operating system refuses the memory.
    pub fn new(
        id: u16,
        configuration: Arc<Configuration>,
        memory_limit_bytes: usize,
    ) -> Result<Self, StorageError> {
        Ok(Self {
            id,
            configuration,
            arena: Arc::new(Arena::new(memory_limit_bytes)?),
            tables: (0..TABLES_MAX).map(|_| OnceLock::new()).collect(),
            gaps: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        })
    }

    /// Asks for the tags of a bucket here, or for nothing that matters if the place is none.
    #[inline(always)]
    pub(crate) fn prefetch(&self, place: Place) {
        self.arena.prefetch_header(place);
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

    /// Bytes of table memory that it may use.
    #[must_use]
    pub fn limit_bytes(&self) -> usize {
        self.arena.limit_bytes()
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
        let held = |partition: &u16| self.configuration.copies(*partition).contains(&self.id);
        let partitions = 0..self.configuration.partitioning.count();
        let partitions = partitions.filter_map(|p| u16::try_from(p).ok()).filter(held).count();
        let needed = layout.main_bytes(partitions);
        let limit = self.arena.limit_bytes();
        let free = limit.saturating_sub(self.arena.used_bytes());
        if needed > free {
            return Err(StorageError::OutOfMemory { table: name.to_owned(), needed, free, limit });
        }
        Ok(())
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
        let partitioning = self.configuration.partitioning;
        let table = Table::new(name, layout, partitioning, Arc::clone(&self.arena), holds)?;
        let created = self.tables[usize::from(number)].set(table);
        assert!(created.is_ok(), "the cluster hands out each table number once");
        Ok(TableId(number))
    }

    /// Updates that a copy here could not apply because an earlier one is missing.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Relaxed)
    }

    /// Requests that named what is not here, or were malformed.
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
