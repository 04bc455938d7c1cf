//! The state after a run: every copy of every bucket equal, every index exact, no lock held, and no scan barrier left.
//!
//! *Invariants*: no transaction runs meanwhile. The comparison begins when no bucket is split any more, or after ten
//! seconds or so. A lock of an earlier epoch is dead and no difference; a scan barrier counts as a lock. Passed over are
//! partitions that are lost, tables that some copies do not have yet or any more, and the backups of a table that leaves.
//!
//! *Source*: `docs/simulation.md`, "Oracles".
//!
//! *Not here*: copies in several processes (`members`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gannet_engine::Cluster;
use gannet_storage::{BucketSnapshot, Owner};

use crate::check::Check;

/// Looks whether buckets are split, a millisecond apart, until the comparison begins all the same.
const GROWTH_LOOKS_MAX: u32 = 10_000;
/// Differences that a message describes.
const DESCRIBED_MAX: usize = 3;

#[derive(Default)]
struct Differences {
    locked: AtomicU64,
    different: AtomicU64,
    unindexed: AtomicU64,
    first: std::sync::Mutex<Vec<String>>,
}

impl Differences {
    fn describe(&self, what: String) {
        let mut first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if first.len() < DESCRIBED_MAX {
            first.push(what);
        }
    }
}

/// Waits until no buckets are split any more, which goes on for a moment after the last insert.
pub(crate) fn await_growth(cluster: &Cluster) {
    let is_growing = || cluster.nodes().iter().any(|node| !node.is_killed() && node.is_growing());
    (0..GROWTH_LOOKS_MAX)
        .take_while(|_| is_growing())
        .for_each(|_| std::thread::park_timeout(Duration::from_millis(1)));
}

/// Compares all copies of all tables, on as many threads as the cluster has. No transaction may run meanwhile.
///
/// # Panics
/// If a thread cannot be started.
#[must_use]
pub fn check_replicas(cluster: &Cluster) -> Vec<Check> {
    await_growth(cluster);
    let found = Differences::default();
    let threads = cluster.thread_count().max(1);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let found = &found;
            scope.spawn(move || {
                let partitions = cluster.configuration().partitioning.count();
                for partition in (thread..partitions).step_by(threads) {
                    let partition = u16::try_from(partition).expect("fewer partitions than 2^16");
                    compare_partition(cluster, partition, found);
                }
            });
        }
    });
    let first = found.first.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (locked, different) = (found.locked.into_inner(), found.different.into_inner());
    let unindexed = found.unindexed.into_inner();
    let gaps: u64 = cluster.nodes().iter().map(|node| node.gaps()).sum();
    let counts = format!("{different} buckets differ, {gaps} updates missing");
    let detail = std::iter::once(counts).chain(first).collect::<Vec<_>>().join("; ");
    vec![
        Check::new("replicas equal byte for byte", different == 0 && gaps == 0, detail),
        Check::equal("no lock held", 0, i128::from(locked)),
        Check::equal("keys that differ between rows and index", 0, i128::from(unindexed)),
    ]
}

fn compare_partition(cluster: &Cluster, partition: u16, found: &Differences) {
    let configuration = cluster.configuration();
    let copies = configuration.copies(partition);
    if copies.is_empty() {
        // It is lost.
        return;
    }
    let present = Owner::of_epoch(configuration.epoch);
    let views: Vec<_> = cluster.nodes().iter().map(|node| node.view()).collect();
    let (mut primary, mut backup) = (BucketSnapshot::default(), BucketSnapshot::default());
    for (number, _) in views[usize::from(copies[0])].tables() {
        let table = |copy: u16| views[usize::from(copy)].table(number);
        let version = |copy: &u16| views[usize::from(*copy)].configuration().version;
        if copies.iter().any(|&it| table(it).is_none() && version(&it) != version(&copies[0])) {
            // It is about to be created or removed everywhere.
            continue;
        }
        // Where a bulk load has failed, rows are of no use.
        let is_failed = |it: u16| table(it).is_some_and(|table| table.is_bulk_loaded(partition));
        let copies: Vec<u16> = copies.iter().copied().filter(|it| !is_failed(*it)).collect();
        let Some(primary_table) = copies.first().and_then(|first| table(*first)) else { continue };
        let tables = copies.iter().filter_map(|&copy| table(copy));
        let unindexed: usize = tables.map(|table| table.index_differences(partition)).sum();
        found.unindexed.fetch_add(unindexed as u64, Ordering::Relaxed);
        let barriers = primary_table.barrier_count(partition);
        if barriers > 0 {
            found.locked.fetch_add(barriers as u64, Ordering::Relaxed);
            found.describe(format!(
                "{} partition {partition} has a scan barrier",
                primary_table.name()
            ));
        }
        // Nobody copies a table that is being dropped, so later copies of the partition lack its rows.
        let of_primary = views[usize::from(copies[0])].configuration();
        let entry = of_primary.table_named(primary_table.name());
        let is_leaving = entry.is_some_and(|(_, entry)| entry.is_leaving);
        let backups = if is_leaving { &[] } else { &copies[1..] };
        let tables = copies.iter().filter_map(|&copy| table(copy));
        let buckets = tables.map(|table| table.bucket_count(partition)).max().unwrap_or(0);
        for bucket in 0..buckets {
            primary_table.snapshot(partition, bucket, &mut primary);
            let place =
                || format!("{} partition {partition} bucket {bucket}", primary_table.name());
            // A lock of an earlier epoch is dead.
            if primary.owner.is_of_epoch_of(present) {
                // Relaxed: read after the threads are joined.
                found.locked.fetch_add(1, Ordering::Relaxed);
                found.describe(format!("{} is locked by {:?}", place(), primary.owner));
            }
            for &copy in backups {
                table(copy).expect("a table is created on every node").snapshot(
                    partition,
                    bucket,
                    &mut backup,
                );
                if !primary.equals(&backup) {
                    found.different.fetch_add(1, Ordering::Relaxed);
                    found.describe(format!(
                        "{}: node {} has version {} and {} rows, node {copy} version {} and {} rows",
                        place(),
                        copies[0],
                        primary.version,
                        primary.rows().len(),
                        backup.version,
                        backup.rows().len(),
                    ));
                }
            }
        }
    }
}
