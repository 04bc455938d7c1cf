//! Loading a table's first rows onto all their copies, before any transaction runs.
//!
//! Rows are gathered and written in batches: the buckets of a batch are asked for before the first
//! is touched, so that their cache misses overlap (HERD section 4.1.1).

use gannet_storage::{Place, StorageError, Table};

use crate::cluster::Cluster;
use crate::node::TableId;

/// Rows written together.
const BATCH_ROWS: usize = 32;

struct PendingRow {
    table: TableId,
    key: u64,
    value_at: usize,
    value_bytes: usize,
}

/// Adds rows to a cluster; several threads may load at once, each with a loader of its own.
///
/// Of a cluster of processes each process adds all rows, and keeps those that its node holds.
///
/// Call [`Self::finish`]: rows still gathered are lost with the loader.
#[must_use = "rows are only there after finish()"]
pub struct Loader<'c> {
    cluster: &'c Cluster,
    rows: Vec<PendingRow>,
    values: Vec<u8>,
    /// Each row of the batch on each node that holds it.
    copies: Vec<(&'c Table, Place, usize)>,
}

impl<'c> Loader<'c> {
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        Self { cluster, rows: Vec::new(), values: Vec::new(), copies: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`StorageError::Exists`] or [`StorageError::Full`], for this row or an earlier one;
    /// [`StorageError::RowBytes`] if the value does not have the table's size.
    ///
    /// # Panics
    /// If the table is of another cluster.
    pub fn add(&mut self, table: TableId, key: u64, value: &[u8]) -> Result<(), StorageError> {
        let (value_at, value_bytes) = (self.values.len(), value.len());
        let definition = self.cluster.definition(table);
        let expected = definition.layout().value_bytes;
        if value_bytes != expected {
            let table = definition.name().to_owned();
            return Err(StorageError::RowBytes { table, expected, found: value_bytes });
        }
        self.values.extend_from_slice(value);
        self.rows.push(PendingRow { table, key, value_at, value_bytes });
        if self.rows.len() == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    /// Writes the rows still gathered.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn finish(mut self) -> Result<(), StorageError> {
        self.flush()
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let Self { cluster, rows, values, copies } = self;
        let configuration = cluster.configuration();
        for (index, row) in rows.iter().enumerate() {
            let partition = configuration.partitioning.partition(row.key);
            for &copy in configuration.copies(partition) {
                let Some(node) = cluster.node(usize::from(copy)) else { continue };
                let table = node.table(row.table.number());
                let table = table.expect("a table id comes from create_table");
                let place = table.place(row.key).expect("a node holds the copies assigned to it");
                table.prefetch(place);
                copies.push((table, place, index));
            }
        }
        for (table, place, _) in copies.iter() {
            table.prefetch_free_slot(*place);
        }
        for (table, place, index) in copies.drain(..) {
            let PendingRow { key, value_at, value_bytes, .. } = rows[index];
            table.load(place, key, &values[value_at..value_at + value_bytes])?;
        }
        rows.clear();
        values.clear();
        Ok(())
    }
}
