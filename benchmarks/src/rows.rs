//! The rows of a table, for the checks after a run.

use gannet_engine::{Cluster, TableId};
use gannet_storage::BucketSnapshot;

/// Visits every row of a table at its primary; no transaction may run.
///
/// # Panics
/// If the table is of another cluster.
pub fn for_each_row(cluster: &Cluster, table: TableId, mut visit: impl FnMut(u64, &[u8])) {
    let configuration = cluster.configuration();
    let mut snapshot = BucketSnapshot::default();
    for partition in 0..configuration.partitioning.count() {
        let partition = u16::try_from(partition).expect("fewer partitions than 2^16");
        let primary = usize::from(configuration.primary(partition));
        let table = cluster.nodes()[primary].table(table.number()).expect("a table of the cluster");
        for bucket in 0..table.layout().buckets {
            table.snapshot(partition, bucket, &mut snapshot);
            snapshot.rows().for_each(|(key, value)| visit(key, value));
        }
    }
}
