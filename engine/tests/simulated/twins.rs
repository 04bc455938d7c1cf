//! A workload whose every commit leaves a trace: pairs of rows that always change together.
//!
//! Rows 2i and 2i + 1 hold the same number, which each committed increment raises by one in both.
//! Readers check, in real time: a validated read of both sees equal numbers, and two single-key
//! reads one after the other never see the number fall.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_engine::{Abort, Coordinator, LockMode, TableId, Transaction};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::simulated::{Faults, SimulatedCluster};

const PAIRS: u64 = 4;
const VALUE_BYTES: usize = 24;
const TRANSACTIONS_PER_CLIENT: u32 = 60;

#[derive(Default)]
struct Seen {
    commits: AtomicU64,
    torn: AtomicU64,
    fell: AtomicU64,
    other_errors: AtomicU64,
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value[..8].try_into().unwrap()))
}

fn increment(tx: &mut Transaction<'_>, table: TableId, pair: u64) -> Result<(), Abort> {
    let rows =
        [2 * pair, 2 * pair + 1].map(|key| tx.add_to_write_set(table, key, LockMode::Update));
    tx.execute()?;
    for row in rows {
        let value = tx.value_mut(row)?;
        let raised = u64::from_le_bytes(value[..8].try_into().unwrap()) + 1;
        value[..8].copy_from_slice(&raised.to_le_bytes());
    }
    tx.commit()
}

fn read_both(tx: &mut Transaction<'_>, table: TableId, pair: u64) -> Result<(u64, u64), Abort> {
    let rows = [2 * pair, 2 * pair + 1].map(|key| tx.add_to_read_set(table, key));
    tx.execute()?;
    let numbers = rows.map(|row| number(tx.value(row)));
    tx.commit()?;
    Ok(numbers.into())
}

fn read_one(coordinator: &mut Coordinator<'_>, table: TableId, key: u64) -> Option<u64> {
    let tx = coordinator.begin();
    let read = tx.get(table, key).map(number);
    let committed = read.and_then(|number| tx.commit().map(|()| number));
    tx.abort();
    committed.ok()
}

fn client(coordinator: &mut Coordinator<'_>, table: TableId, seed: u64, seen: &Seen) {
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..TRANSACTIONS_PER_CLIENT {
        let pair = random.random_range(0..PAIRS);
        match random.random_range(0..3) {
            0 => {
                let tx = coordinator.begin();
                match increment(tx, table, pair) {
                    Ok(()) => {
                        seen.commits.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(abort) => {
                        seen.other_errors
                            .fetch_add(u64::from(!abort.is_conflict()), Ordering::Relaxed);
                        tx.abort();
                    }
                }
            }
            1 => {
                let tx = coordinator.begin();
                match read_both(tx, table, pair) {
                    Ok((a, b)) => {
                        seen.torn.fetch_add(u64::from(a != b), Ordering::Relaxed);
                    }
                    Err(_) => tx.abort(),
                }
            }
            _ => {
                // Either order: the later read must not see an older number.
                let keys = if random.random() { [0, 1] } else { [1, 0] };
                let numbers = keys.map(|key| read_one(coordinator, table, 2 * pair + key));
                if let [Some(first), Some(second)] = numbers {
                    seen.fell.fetch_add(u64::from(second < first), Ordering::Relaxed);
                }
            }
        }
    }
}

/// What a run found.
pub(crate) struct Found {
    /// Everything that must not be; empty if the run was correct.
    pub(crate) violations: Vec<String>,
    pub(crate) commits: u64,
    /// Lost, doubled, corrupted packets.
    pub(crate) struck: [u64; 3],
    pub(crate) retransmitted: u64,
    pub(crate) duplicates: u64,
    pub(crate) corrupt: u64,
}

/// Runs the workload on a cluster with these faults.
pub(crate) fn run(seed: u64, faults: Faults) -> Found {
    let mut cluster = SimulatedCluster::new(seed, faults);
    let table = cluster.create_table(VALUE_BYTES);
    for key in 0..2 * PAIRS {
        cluster.load(table, key, &[0; VALUE_BYTES]);
    }
    let seen = Arc::new(Seen::default());
    cluster.spawn_everywhere(|client_number| {
        let (seen, seed) = (Arc::clone(&seen), seed ^ client_number << 32);
        Box::new(move |coordinator| client(coordinator, table, seed, &seen))
    });
    let mut violations = Vec::new();
    if !cluster.run() {
        violations.push("the clients do not finish".to_owned());
    }
    violations.extend(cluster.defects(table));
    let mut must_be_zero = |what: &str, count: u64| {
        if count != 0 {
            violations.push(format!("{count} {what}"));
        }
    };
    must_be_zero("validated reads of unequal twins", seen.torn.load(Ordering::Relaxed));
    must_be_zero("reads that saw a number fall", seen.fell.load(Ordering::Relaxed));
    must_be_zero(
        "transactions that met no conflict and aborted",
        seen.other_errors.load(Ordering::Relaxed),
    );
    must_be_zero("updates missing at a backup", cluster.nodes.iter().map(|node| node.gaps()).sum());
    must_be_zero("requests refused", cluster.nodes.iter().map(|node| node.refused()).sum());
    let commits = seen.commits.load(Ordering::Relaxed);
    let mut sum = 0;
    let mut snapshot = gannet_storage::BucketSnapshot::default();
    let first = cluster.nodes[0].table(table.number()).unwrap();
    for partition in 0..4 {
        for bucket in 0..first.layout().buckets {
            first.snapshot(partition, bucket, &mut snapshot);
            sum += snapshot.rows().map(|(_, value)| number(Some(value))).sum::<u64>();
        }
    }
    if sum != 2 * commits {
        violations.push(format!("{commits} increments committed, and the numbers sum to {sum}"));
    }
    Found {
        violations,
        commits,
        struck: cluster.struck(),
        retransmitted: cluster.count(|counters| counters.retransmitted),
        duplicates: cluster.count(|counters| counters.duplicates + counters.late_responses),
        corrupt: cluster.count(|counters| counters.corrupt + counters.malformed),
    }
}
