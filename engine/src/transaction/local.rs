//! Local access: what a transaction does at its own node by a call instead of a request. It reads and locks rows of fixed size,
//! validates buckets, and, unless it is large, stores its record and applies its units.
//!
//! *Invariants*: local rows are read and locked after the requests of their round are answered; they are prefetched in the
//! meantime. Every other local access happens after all answers of the round before, and before any request of the next round is
//! sent. Piggybacked requests never go to the own node, where small units are applied at once.

use gannet_storage::{BucketAddress, BucketUpdate, KEY_BYTES_MAX, Owner, Read, Table, TableKind};

use crate::control::PrefetchQueue;
use crate::participant;
use crate::request::{self, Status};
use crate::table_id::TableId;
use crate::transaction::access_set::Row;
use crate::transaction::{Observation, Transaction};
use crate::view::View;

/// Buckets that are prefetched: more would be gone again when they are needed.
const PREFETCHED_MAX: usize = 16;

/// Rows of a round: they are read and locked without a pause, and should not push each other out of the cache before.
pub(super) const ROWS_MAX: usize = 1024;

/// A row that was read: its value if it is there, and its bucket's version.
pub(crate) type RowRead = (Option<Vec<u8>>, Observation);

impl Transaction<'_> {
    /// Queues prefetches of the first buckets that this transaction changes and this node is a backup of.
    #[inline]
    pub(super) fn prefetch_backups(&self) {
        let rows = self.scratch.held.iter().map(|group| &self.set.rows[group.row as usize]);
        let of_others = rows.filter(|row| row.primary != self.view.id());
        let held_locally = of_others.filter_map(|row| {
            let table = self.view.table(row.table)?;
            Some(table.slot_hint(table.held_address_of(row.location)?))
        });
        self.prefetches.borrow_mut().extend(held_locally.take(PREFETCHED_MAX));
    }

    /// Reads a row of a heap table that can have the key, if its primary is this node and nobody holds it.
    pub(crate) fn read_local(&self, table: TableId, key: &[u8]) -> Option<RowRead> {
        let heap =
            self.view.table(table.0).filter(|table| table.layout().kind != TableKind::Fixed)?;
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return None;
        }
        let row_key = heap.hashed(key);
        let location = heap.locate(row_key.word());
        if self.view.configuration().primary(location.partition) != self.view.id() {
            return None;
        }
        let mut value = Vec::new();
        let (version, value) =
            match heap.read_row(heap.address_of(location)?, row_key, self.owner, &mut value) {
                Read::Found { version } => (version, Some(value)),
                Read::Absent { version } => (version, None),
                Read::Locked => return None,
            };
        let (partition, bucket) = (location.partition, heap.bucket_at(location, version));
        let (table, hash) = (table.0, row_key.word());
        Some((value, Observation { table, partition, bucket, version, hash }))
    }
}

impl Row {
    /// Whether it is executed without a request: its primary is this node, and its value has a fixed size.
    #[inline(always)]
    pub(super) fn is_local(&self, view: &View) -> bool {
        self.primary == view.id() && self.key_bytes == 0
    }

    /// Its table, and the address of its bucket at this node if the partition is served.
    #[inline(always)]
    fn bucket_address<'n>(&self, view: &'n View) -> Option<(&'n Table, BucketAddress)> {
        let table = view.table(self.table).expect("rows were added to tables that exist");
        Some((table, table.address_of(self.location)?))
    }
}

/// Queues a prefetch of a row's bucket, which the worker issues.
#[inline]
pub(super) fn queue_prefetch(view: &View, row: &Row, prefetches: &PrefetchQueue) {
    if let Some((table, address)) = row.bucket_address(view) {
        prefetches.borrow_mut().push(table.slot_hint(address));
    }
}

/// The answer to READ or LOCK of a row; its value goes to `value` if it is there.
#[inline]
pub(super) fn execute(view: &View, row: &Row, owner: Owner, value: &mut [u8]) -> (Status, u64) {
    let Some((table, address)) = row.bucket_address(view) else {
        let is_there = view.configuration().has_table(row.table);
        return (if is_there { Status::Moved } else { Status::Refused }, 0);
    };
    match row.mode {
        None => participant::read_status(table.read(address, row.key, owner, value)),
        Some(mode) => {
            participant::lock_status(table, table.lock(address, row.key, owner, mode, value))
        }
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

/// The answer to VALIDATE_ROWS for rows of a partition whose primary has `table`.
pub(super) fn rows_validated(
    table: Option<&Table>,
    partition: u16,
    rows: impl Iterator<Item = (u32, u64, u64)>,
    owner: Owner,
) -> Status {
    table
        .map_or(Status::Refused, |table| participant::rows_validated(table, partition, rows, owner))
}

/// The answer to BACKUP or PRIMARY for a unit that a transaction of this node has written.
#[inline]
pub(super) fn applied(view: &View, kind: u16, unit: &[u8]) -> Status {
    let unit = BucketUpdate::parse_checked(unit);
    let table = view.table(unit.table).expect("rows were added to tables that exist");
    let address = table.address_to_fill(&unit);
    let address =
        address.expect("a node has the partitions that it holds, and memory for what is decided");
    if kind == request::PRIMARY {
        return participant::applied_at_primary(view, table, address, &unit);
    }
    participant::backed_up(view, table, address, &unit)
}
