//! What a transaction does at its own node without a request: reads of rows, and the validation of buckets.
//!
//! *Invariants*: what is asked here is asked after all answers of the round before, and answered before any
//! request of the next is sent. A row that another transaction holds is asked for like any other.

use gannet_storage::{Owner, Read, RowKey, Table};

use crate::node::TableId;
use crate::participant;
use crate::request::Status;
use crate::transaction::{Observation, Transaction};

/// A row that was read: its value if it is there, and its bucket's version.
pub(crate) type RowRead = (Option<Vec<u8>>, Observation);

impl Transaction<'_> {
    /// Reads a row of a heap table, if its primary is this node and nobody holds it.
    pub(crate) fn read_here(&self, table: TableId, key: &[u8]) -> Option<RowRead> {
        let heap = self.node.table(table.0).filter(|table| table.layout().is_heap)?;
        let row_key = RowKey::new(key);
        let location = heap.locate(row_key.hash());
        if self.node.configuration().primary(location.partition) != self.node.id() {
            return None;
        }
        let mut value = Vec::new();
        let (version, value) =
            match heap.read_row(heap.place_of(location)?, row_key, self.owner, &mut value) {
                Read::Found { version } => (version, Some(value)),
                Read::Absent { version } => (version, None),
                Read::Locked => return None,
            };
        let (partition, bucket) = (location.partition, location.bucket);
        Some((value, Observation { table: table.0, partition, bucket, version }))
    }
}

/// The answer to VALIDATE or VALIDATE_MANY for buckets of a partition whose primary has `table`.
pub(super) fn validated(
    table: Option<&Table>,
    partition: u16,
    buckets: impl Iterator<Item = (u32, u64)>,
    owner: Owner,
) -> Status {
    table.map_or(Status::Refused, |table| participant::validated(table, partition, buckets, owner))
}
