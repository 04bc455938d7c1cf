//! Growth of a table before it is loaded, to measure tables that were not laid out for their rows.
//!
//! *Invariant*: the table has at least nine tenths of the buckets of one that was laid out for the rows, or the run fails.
//!
//! *Not here*: splits, which are the engine's.

use gannet_engine::{Abort, Cluster, Coordinator, TableId};
use gannet_storage::TableLayout;

use crate::rows::for_each_partition;
use crate::workload::BenchmarkError;

/// How often [`Coordinator::expect_rows`] is waited for, about two seconds each time.
const WAITS_MAX: u32 = 60;
/// Of the buckets of a table that is laid out for as many rows, how many one that has grown has at least, in percent.
const BUCKETS_MIN_PERCENT: u64 = 90;

/// Has an empty table with fixed values split buckets until it has them for so many rows. No transaction may run meanwhile.
///
/// # Errors
/// [`BenchmarkError::NotGrown`] if it does not get them, [`BenchmarkError::Cluster`] if the cluster has halted.
///
/// # Panics
/// If the table belongs to another cluster.
pub fn grow(cluster: &Cluster, table: TableId, rows: u64) -> Result<(), BenchmarkError> {
    let count = usize::try_from(rows).unwrap_or(usize::MAX);
    let expect = move |coordinator: &mut Coordinator<'_>| -> Result<bool, Abort> {
        for _ in 0..WAITS_MAX {
            if coordinator.expect_rows(table, count)? {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let ended = cluster.spawn_anywhere(expect)?.wait().map_err(|lost| cluster.loss(lost))?;
    let mut is_grown = ended == Ok(true);
    let partitioning = cluster.configuration().partitioning;
    for_each_partition(cluster, table.number(), |table, partition| {
        let own = table.layout();
        let laid_out = TableLayout::new(table.name(), own.value_bytes, rows, partitioning);
        let buckets = u64::from(own.buckets + table.split_count(partition));
        is_grown &= laid_out.is_ok_and(|laid_out| {
            100 * buckets >= BUCKETS_MIN_PERCENT * u64::from(laid_out.buckets)
        });
    });
    if is_grown { Ok(()) } else { Err(BenchmarkError::NotGrown(rows)) }
}
