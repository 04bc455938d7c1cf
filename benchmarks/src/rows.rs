//! Visits to all rows of a table, for the checks after a run.
//!
//! *Invariants*: no transaction runs meanwhile. A partition is visited once: at its primary, or at another copy if the
//! primary is in another process. `for_each_primary` leaves the latter partitions out. Partitions that are lost are
//! passed over. Rows come partition by partition, and in the order of their keys only where the function says so.
//!
//! *Not here*: the comparison of copies (`replicas`, and `members` between processes).

use std::ops::{Bound, ControlFlow};

use gannet_engine::{Cluster, Direction, TableId};
use gannet_storage::{BucketSnapshot, Owner, Table};

/// Visits every row of a table at its primary. No transaction may run meanwhile.
///
/// # Panics
/// If the table belongs to another cluster.
pub fn for_each_row(cluster: &Cluster, table: TableId, mut visit: impl FnMut(u64, &[u8])) {
    let mut snapshot = BucketSnapshot::default();
    for_each_partition(cluster, table.number(), |table, partition| {
        for bucket in 0..table.bucket_count(partition) {
            table.snapshot(partition, bucket, &mut snapshot);
            snapshot.rows().for_each(|(key, value)| visit(key, value));
        }
    });
}

/// Visits every row of an ordered table at its primary, partition by partition and in order within each. No transaction may
/// run meanwhile.
///
/// # Panics
/// If the table belongs to another cluster.
pub fn for_each_row_in_order(
    cluster: &Cluster,
    table: TableId,
    mut visit: impl FnMut(&[u8], &[u8]),
) {
    let all = (Bound::Unbounded, Bound::Unbounded);
    for_each_partition(cluster, table.number(), |table, partition| {
        table.scan(partition, all, Direction::Ascending, Owner::FREE, |row| {
            row.value.into_iter().for_each(|value| visit(row.key, value));
            ControlFlow::Continue(())
        });
    });
}

/// Visits every partition of a table that is not lost at its primary, or at this process's copy.
pub(crate) fn for_each_partition(
    cluster: &Cluster,
    table: u32,
    mut visit: impl FnMut(&Table, u16),
) {
    let configuration = cluster.configuration();
    for partition in 0..configuration.partitioning.count() {
        let partition = u16::try_from(partition).expect("fewer partitions than 2^16");
        if configuration.is_lost(partition) {
            continue;
        }
        let mut copies = configuration.copies(partition).iter();
        let node = copies.find_map(|copy| cluster.node(usize::from(*copy)));
        let node = node.expect("a process has a copy of everything");
        // A node that goes by another version may not have a table yet, or any more.
        if let Some(table) = node.view().table(table) {
            visit(table, partition);
        }
    }
}

/// Visits every partition of a table whose primary is in this process, and that is not lost.
pub(crate) fn for_each_primary(cluster: &Cluster, table: u32, mut visit: impl FnMut(&Table, u16)) {
    let configuration = cluster.configuration();
    let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
    for partition in partitions.filter(|partition| !configuration.is_lost(*partition)) {
        if let Some(node) = cluster.node(usize::from(configuration.primary(partition))) {
            visit(node.view().table(table).expect("a table of the cluster"), partition);
        }
    }
}

/// Bytes that a key takes in the ordered index of a copy, on average over all tables; none if there are no keys.
#[must_use]
pub fn index_bytes_per_key(cluster: &Cluster) -> Option<f64> {
    let (mut keys, mut bytes) = (0, 0);
    for (number, _) in cluster.view().tables() {
        for_each_primary(cluster, number, |table, partition| {
            let (of_partition, taken) = table.index_memory(partition);
            (keys, bytes) = (keys + of_partition, bytes + taken);
        });
    }
    (keys > 0).then(|| bytes as f64 / keys as f64)
}

/// How often buckets were split, by the primaries of all partitions that are not lost.
#[cfg(feature = "simulation")]
pub(crate) fn splits(cluster: &Cluster) -> u64 {
    let mut splits = 0;
    for (number, _) in cluster.view().tables() {
        for_each_partition(cluster, number, |table, partition| {
            splits += u64::from(table.split_count(partition));
        });
    }
    splits
}
