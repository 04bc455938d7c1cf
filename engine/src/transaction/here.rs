//! What a transaction does at its own node without a request: it reads and locks rows of fixed size, validates buckets, and,
//! unless it is large, stores its record and applies its units.
//!
//! *Invariants*: rows are read and locked when the requests of their round are answered; their memory arrives in the
//! meantime. What else is asked here is asked after all answers of the round before, and answered before any
//! request of the next is sent. Requests that are carried are never to this node, where small units are applied
//! at once.

use gannet_storage::{BucketUpdate, Owner, Place, Read, RowKey, Table};

use crate::node::{Node, TableId};
use crate::participant;
use crate::request::{self, Status};
use crate::transaction::{Observation, Row, Transaction};
use crate::worker::Ahead;

/// Buckets that are prefetched: more would be gone again when they are needed.
const PREFETCHED_MAX: usize = 16;

/// Rows of a round: they are read and locked without a pause, and should not push each other out of the cache before.
pub(super) const ROWS_MAX: usize = 1024;

/// A row that was read: its value if it is there, and its bucket's version.
pub(crate) type RowRead = (Option<Vec<u8>>, Observation);

impl Transaction<'_> {
    /// Lets the worker ask for the first buckets that this transaction changes and this node is a backup of.
    #[inline]
    pub(super) fn look_ahead_to_backups(&self) {
        let rows = self.held.iter().map(|group| &self.rows[group.row as usize]);
        let of_others = rows.filter(|row| row.primary != self.node.id());
        let held_here = of_others
            .filter_map(|row| Some((row.table, self.node.table(row.table)?.place(row.key)?)));
        self.ahead.borrow_mut().extend(held_here.take(PREFETCHED_MAX));
    }

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

impl Row {
    /// Whether it is executed without a request: its primary is this node, and its value has a fixed size.
    #[inline(always)]
    pub(super) fn is_here(&self, node: &Node) -> bool {
        self.primary == node.id() && self.key_bytes == 0
    }

    /// Its table and its place, which are here.
    #[inline(always)]
    fn place<'n>(&self, node: &'n Node) -> (&'n Table, Place) {
        let table = node.table(self.table).expect("rows were added to tables that exist");
        (table, table.place(self.key).expect("a primary has its partitions"))
    }
}

/// Lets the worker ask for a row's bucket.
#[inline]
pub(super) fn look_ahead(node: &Node, row: &Row, ahead: &Ahead) {
    let (_, place) = row.place(node);
    ahead.borrow_mut().push((row.table, place));
}

/// The answer to READ or LOCK of a row; its value goes to `value` if it is there.
#[inline]
pub(super) fn execute(node: &Node, row: &Row, owner: Owner, value: &mut [u8]) -> (Status, u64) {
    let (table, place) = row.place(node);
    match row.mode {
        None => participant::read_status(table.read(place, row.key, owner, value)),
        Some(mode) => participant::lock_status(table.lock(place, row.key, owner, mode, value)),
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

/// The answer to BACKUP or PRIMARY for a unit that a transaction of this node has written.
#[inline]
pub(super) fn applied(node: &Node, kind: u16, unit: &[u8]) -> Status {
    let unit = BucketUpdate::parse_checked(unit);
    let table = node.table(unit.table).expect("rows were added to tables that exist");
    let place = table.bucket_place(unit.partition, unit.bucket);
    let place = place.expect("a node has the partitions that it holds");
    if kind == request::PRIMARY {
        return participant::applied_at_primary(node, table, place, &unit);
    }
    participant::backed_up(node, table, place, &unit)
}
