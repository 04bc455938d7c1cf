//! The contents of exchanges between the processes of one benchmark: settings, statistics, and digests of copies.
//!
//! Every process runs the same benchmark on its own node, and ends with the same report. If each has a
//! copy of every partition, it verifies the data by its own copies.
//!
//! *Not here*: a cluster in one process, whose copies are compared directly (`replicas`).

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use gannet_engine::{Cluster, TableId};
use gannet_storage::{BucketSnapshot, Owner};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::exchange::{self, exchanged};
use crate::replicas::await_growth;
use crate::statistics::{Statistics, Totals};
use crate::workload::BenchmarkError;

/// [`Statistics`] in a serializable form.
#[derive(Serialize, Deserialize)]
struct Told {
    unmeasured: Totals,
    measured: Totals,
    /// By transaction type: values, and how often each was recorded.
    latencies: Vec<Vec<(u64, u64)>>,
    seconds: f64,
}

fn pairs(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    let recorded = histogram.iter_recorded();
    recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
}

/// Checks that all processes have the same settings.
pub(crate) fn agree(
    cluster: &Cluster,
    own: &BTreeMap<&'static str, String>,
) -> Result<(), BenchmarkError> {
    if cluster.transport().is_none() {
        return Ok(());
    }
    let owned = own.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let all: Vec<BTreeMap<String, String>> = exchanged(cluster, "comparing settings", owned)?;
    for (node, settings) in all.iter().enumerate() {
        let other = |name: &str| settings.get(name).map_or("none", String::as_str);
        if let Some((name, value)) = own.iter().find(|(name, value)| other(name) != **value) {
            let (setting, value) = (*name, value.clone());
            let allowed = format!("the same on all nodes: node {node} has {}", other(name));
            return Err(BenchmarkError::Setting { setting, value, allowed });
        }
    }
    Ok(())
}

/// The statistics of all processes together, and the longest of their times.
pub(crate) fn together(
    cluster: &Cluster,
    own: Statistics,
    seconds: f64,
) -> Result<(Statistics, f64), BenchmarkError> {
    if cluster.transport().is_none() {
        return Ok((own, seconds));
    }
    let Statistics { unmeasured, measured, latencies } = own;
    let mut sum = Statistics::new(measured.types.len(), measured.tallies.len());
    let told =
        Told { unmeasured, measured, latencies: latencies.iter().map(pairs).collect(), seconds };
    let all = exchanged(cluster, "adding up", told)?;
    let seconds = all.iter().map(|told| told.seconds).fold(0.0, f64::max);
    for Told { unmeasured, measured, latencies, .. } in all {
        let mut one = Statistics::new(measured.types.len(), measured.tallies.len());
        (one.unmeasured, one.measured) = (unmeasured, measured);
        for (histogram, recorded) in one.latencies.iter_mut().zip(latencies) {
            for (value, count) in recorded {
                histogram.saturating_record_n(value, count);
            }
        }
        sum.add(&one);
    }
    Ok((sum, seconds))
}

/// Table memory of this process before the rows are loaded.
pub(crate) fn used_bytes(cluster: &Cluster) -> u64 {
    cluster.nodes().iter().map(|node| node.used_bytes() as u64).sum()
}

/// Table memory of all processes together, minus the memory that each has used before.
pub(crate) fn memory_bytes(cluster: &Cluster, before: u64) -> Result<u64, BenchmarkError> {
    let own = used_bytes(cluster).saturating_sub(before);
    Ok(exchanged(cluster, "loading", own)?.into_iter().sum())
}

/// A digest of a process's copies.
#[derive(Default, Serialize, Deserialize)]
struct Copies {
    /// For each partition, the versions and rows of all tables as one number.
    digests: BTreeMap<u16, u64>,
    locked: u64,
    unindexed: u64,
    gaps: u64,
}

/// Compares the copies of all processes by their digests.
///
/// # Errors
/// [`BenchmarkError::Gone`] if a process has ended.
pub(crate) fn check_copies(cluster: &Cluster) -> Result<Vec<Check>, BenchmarkError> {
    await_growth(cluster);
    // All have waited before the first compares.
    exchanged(cluster, "growing", ())?;
    let mut own = Copies::default();
    let mut snapshot = BucketSnapshot::default();
    for node in cluster.nodes() {
        own.gaps += node.gaps();
        let view = node.view();
        // The table of exchanges changes during the comparison.
        let exchange = cluster.table(exchange::TABLE).map(TableId::number);
        for (_, table) in view.tables().filter(|(number, _)| Some(*number) != exchange) {
            let held = view.configuration().held_by(node.id());
            let is_copy =
                |partition: &u16| view.configuration().copies(*partition).contains(&node.id());
            for partition in held.filter(is_copy) {
                own.unindexed += table.index_differences(partition) as u64;
                let digest = own.digests.entry(partition).or_default();
                for bucket in 0..table.bucket_count(partition) {
                    table.snapshot(partition, bucket, &mut snapshot);
                    if snapshot.version == 0 {
                        // A copy may have memory for more buckets than were born.
                        continue;
                    }
                    own.locked += u64::from(snapshot.owner != Owner::FREE);
                    let mut hasher = DefaultHasher::new();
                    (*digest, bucket, snapshot.version).hash(&mut hasher);
                    snapshot.rows().for_each(|row| row.hash(&mut hasher));
                    *digest = hasher.finish();
                }
            }
        }
    }
    let all = exchanged(cluster, "comparing copies", own)?;
    let digests: BTreeMap<_, Vec<_>> = all.iter().flat_map(|copies| &copies.digests).fold(
        BTreeMap::new(),
        |mut by, (p, digest)| {
            by.entry(*p).or_insert_with(Vec::new).push(*digest);
            by
        },
    );
    let different =
        digests.values().filter(|copies| copies.iter().any(|copy| *copy != copies[0])).count();
    let sum = |of: fn(&Copies) -> u64| all.iter().map(of).sum::<u64>();
    let gaps = sum(|copies| copies.gaps);
    let detail = format!("{different} partitions differ, {gaps} updates missing");
    Ok(vec![
        Check::new("replicas equal byte for byte", different == 0 && gaps == 0, detail),
        Check::equal("no lock held", 0, i128::from(sum(|copies| copies.locked))),
        Check::equal(
            "keys that differ between rows and index",
            0,
            i128::from(sum(|copies| copies.unindexed)),
        ),
    ])
}
