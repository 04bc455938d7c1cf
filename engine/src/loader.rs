//! Loading a table's first rows onto all their copies, before any transaction runs.
//!
//! Rows are gathered and written in batches: the buckets of a batch are prefetched before the first
//! is touched, so that their cache misses overlap (HERD section 4.1.1).

use std::sync::Arc;

use gannet_rules::rule;
use gannet_storage::{BucketAddress, HashedKey, Key, StorageError};

use crate::cluster::Cluster;
use crate::table_id::TableId;
use crate::view::View;

/// Rows written together.
const BATCH_ROWS: usize = 32;

struct PendingRow {
    table: TableId,
    /// Number or hash of the key.
    key: u64,
    /// Where its bytes begin, with the value behind them.
    at: usize,
    key_bytes: usize,
    value_bytes: usize,
}

impl PendingRow {
    fn parts<'b>(&self, bytes: &'b [u8]) -> (HashedKey<'b>, &'b [u8]) {
        let bytes = &bytes[self.at..self.at + self.key_bytes + self.value_bytes];
        let (key, value) = bytes.split_at(self.key_bytes);
        (HashedKey::from_parts(self.key, key), value)
    }
}

/// Adds rows to a cluster; several threads may load at once, each with a loader of its own.
///
/// Of a cluster of processes each process adds all rows, and keeps those that its node holds.
///
/// Call [`Self::finish`]: rows still gathered are lost with the loader. If a node is lost before that, the load has failed as a whole:
/// drop the table, and load all rows again.
#[must_use = "rows are only there after finish()"]
pub struct Loader<'c> {
    cluster: &'c Cluster,
    /// Of the nodes of this process.
    views: Vec<Arc<View>>,
    /// The version of the placement in which it has begun; none if copies were being made.
    placement: Option<u64>,
    rows: Vec<PendingRow>,
    /// Their keys and values.
    bytes: Vec<u8>,
    /// Each row of the batch on each node of this process that holds it, by the numbers of both.
    copies: Vec<(usize, BucketAddress, usize)>,
}

impl Cluster {
    /// A loader for the first rows, before any transaction runs.
    pub fn loader(&self) -> Loader<'_> {
        Loader::new(self)
    }
}

impl<'c> Loader<'c> {
    fn new(cluster: &'c Cluster) -> Self {
        let views = cluster.nodes().iter().map(|node| node.view()).collect();
        let placement = cluster.configuration().settled_placement();
        Self { cluster, views, placement, rows: Vec::new(), bytes: Vec::new(), copies: Vec::new() }
    }

    /// Adds a row: its key is a number, or the bytes of a key of an ordered table.
    ///
    /// # Errors
    /// [`StorageError::Exists`], [`StorageError::Full`] or [`StorageError::Lost`], for this row or an earlier one;
    /// [`StorageError::MembersChanged`] if a copy has come or gone since the load began, or is being made;
    /// [`StorageError::RowBytes`], [`StorageError::LongValue`] or [`StorageError::KeyKind`] for a row that the table cannot have.
    ///
    /// # Panics
    /// If the table is of another cluster, or was dropped.
    pub fn add<'k>(
        &mut self,
        table: TableId,
        key: impl Into<Key<'k>>,
        value: &[u8],
    ) -> Result<(), StorageError> {
        if self.present().table(table.number()).is_none() {
            // It was created after the loader.
            self.flush()?;
            self.views = self.cluster.nodes().iter().map(|node| node.view()).collect();
        }
        let found = self.present().table(table.number()).expect("the table is of this cluster");
        let key = found.hashed(key);
        found.check_row(key, value)?;
        let (at, key_bytes, value_bytes) = (self.bytes.len(), key.bytes().len(), value.len());
        self.bytes.extend_from_slice(key.bytes());
        self.bytes.extend_from_slice(value);
        self.rows.push(PendingRow { table, key: key.word(), at, key_bytes, value_bytes });
        if self.rows.len() == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    fn present(&self) -> &View {
        present(&self.views)
    }

    /// Writes the rows still gathered.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn finish(mut self) -> Result<(), StorageError> {
        self.flush()
    }

    /// Whether the rows of the whole load went to the same members.
    fn check_members(&self) -> Result<(), StorageError> {
        let placement = self.cluster.configuration().settled_placement();
        let is_same = placement.is_some() && placement == self.placement;
        if is_same || !rule!(LOAD_IN_ONE_EPOCH) {
            Ok(())
        } else {
            Err(StorageError::MembersChanged)
        }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.check_members()?;
        self.write_rows()?;
        // One may have been lost meanwhile.
        self.check_members()
    }

    fn write_rows(&mut self) -> Result<(), StorageError> {
        let Self { cluster, views, rows, bytes, copies, .. } = self;
        let configuration = present(views).configuration();
        let _loading: Vec<_> = views.iter().map(|view| view.begin_loading()).collect();
        let table = |node: usize, row: &PendingRow| {
            let table = views[node].table(row.table.number());
            table.expect("a row was added to a table that is there")
        };
        for (index, row) in rows.iter().enumerate() {
            let partition = configuration.partitioning.partition(row.key);
            if configuration.is_lost(partition) {
                return Err(StorageError::Lost { partition });
            }
            for &copy in configuration.copies(partition) {
                let Some(node) = cluster.local_index(usize::from(copy)) else { continue };
                let table = table(node, row);
                let address = table.address_to_load(row.key);
                let address = address.expect("a node holds the copies assigned to it");
                table.prefetch(address);
                copies.push((node, address, index));
            }
        }
        for &(node, address, index) in copies.iter() {
            table(node, &rows[index]).prefetch_free_slot(address);
        }
        for (node, address, index) in copies.drain(..) {
            let (key, value) = rows[index].parts(bytes);
            let table = table(node, &rows[index]);
            table.load(address, key, value)?;
            table.mark_loaded(address);
        }
        rows.clear();
        bytes.clear();
        Ok(())
    }
}

/// The latest view. A node that was killed gets no later ones.
fn present(views: &[Arc<View>]) -> &View {
    let latest = views.iter().max_by_key(|view| view.configuration().version);
    latest.expect("a process has a node")
}
