//! What a transaction does at its own node without a request: reads of rows, and the validation of buckets.
//!
//! *Invariants*: what is asked here is asked after all answers of the round before, and answered before any
//! request of the next is sent. A row that another transaction holds is asked for like any other.

use gannet_storage::{Owner, Read, RowKey, Table, Validation};

use crate::node::TableId;
use crate::outcome::Abort;
use crate::request::Status;
use crate::transaction::{Observation, Row, Transaction};

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

    /// Tells whether what was observed is still so, of rows that this transaction does not lock.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn revalidate(
        &mut self,
        observations: impl IntoIterator<Item = Observation>,
    ) -> Result<(), Abort> {
        observations.into_iter().for_each(|seen| self.observe(seen));
        let valid = self.group_buckets().and_then(|()| self.validate_observed());
        self.abort();
        valid
    }
}

/// The answer to VALIDATE for the bucket of a row whose primary has `table`.
pub(super) fn validated(table: Option<&Table>, row: &Row, owner: Owner) -> Status {
    let place =
        table.and_then(|table| Some((table, table.bucket_place(row.partition, row.bucket)?)));
    match place.map(|(table, place)| table.validate(place, row.version, owner)) {
        Some(Validation::Unchanged) => Status::Done,
        Some(Validation::Changed) => Status::Changed,
        Some(Validation::Locked) => Status::Locked,
        None => Status::Refused,
    }
}
