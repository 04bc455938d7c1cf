//! A cluster with an ordered table, and operations on its rows.
//!
//! The cluster has three nodes in this process. `assert_sound` fails a test if copies differ, if an index and its rows have
//! different keys, or if a lock is left. *Not here*: the tests (`tests/ordered.rs`).
#![allow(clippy::unwrap_used, dead_code, reason = "a test fails by panicking; each uses a part")]

use std::ops::Bound;
use std::sync::Arc;

use gannet::{
    Abort, Cluster, ClusterOptions, Coordinator, Deferred, Direction, KeyRange, KeyValue, TableId,
    WorkerId,
};

pub(crate) const ALL: KeyRange = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };

pub(crate) fn open(threads: usize) -> (Arc<Cluster>, TableId) {
    let cluster = Cluster::open(ClusterOptions {
        threads,
        // A partition has a sixteenth of it, which holds all nine rows of a megabyte if they fall into one.
        memory_limit_bytes: Some(512 << 20),
        ..ClusterOptions::default()
    });
    let cluster = Arc::new(cluster.unwrap());
    let table = cluster.create_ordered_table("rows", 1_000).unwrap();
    (cluster, table)
}

/// Runs `job` on node 0.
pub(crate) fn run<T: Send + 'static>(
    cluster: &Cluster,
    job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
) -> T {
    cluster.spawn(WorkerId { node: 0, worker: 0 }, job).unwrap().wait().unwrap()
}

pub(crate) fn range(from: &str, to: &str) -> KeyRange {
    KeyRange { from: Bound::Included(from.into()), to: Bound::Excluded(to.into()) }
}

/// All rows of a range, page by page.
pub(crate) fn scan(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    range: &KeyRange,
    direction: Direction,
) -> Result<Vec<KeyValue>, Abort> {
    let mut rows = Vec::new();
    let mut rest = Some(range.clone());
    while let Some(range) = rest {
        let page = transaction.scan(coordinator, table, &range, direction, 100)?;
        rows.extend(page.rows);
        rest = page.rest;
    }
    Ok(rows)
}

/// Reads, then sets a key.
pub(crate) fn set(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    key: &[u8],
    value: Option<&[u8]>,
) -> Result<(), Abort> {
    transaction.get_many(coordinator, table, &[key.to_vec()])?;
    match value {
        Some(value) => transaction.put(table, key.to_vec(), value.to_vec()),
        None => transaction.delete(table, key.to_vec()),
    }
    Ok(())
}

/// Asserts that replicas have the same rows, and each index has the keys of its rows.
pub(crate) fn assert_sound(cluster: &Cluster) {
    let checks = gannet_benchmarks::check_replicas(cluster);
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
}
