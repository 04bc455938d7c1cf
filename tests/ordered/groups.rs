//! Groups of keys. Each transaction counts a group by a scan before it adds a key; without validation,
//! groups overflow (range write skew).
//!
//! 24 clients run at three nodes of a cluster in this process until 500 transactions have committed. `largest_group` gives the
//! largest count of a committed transaction: `tests/ordered.rs` demands the limit, and `tests/ordered_mutant.rs` more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gannet::{Abort, Coordinator, Deferred, Direction, TableId, WorkerId};
use rand::{RngExt, SeedableRng};

use crate::ordered::rows::{assert_sound, open, range, scan, set};

/// A key is added only to a group with fewer keys.
pub(crate) const GROUP_ROWS_MAX: usize = 3;

/// Counts a group of keys. Adds a key if the group is not full, else removes one.
fn count_and_change(
    transaction: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    random: &mut rand::rngs::SmallRng,
) -> Result<usize, Abort> {
    let group = random.random_range(0..4);
    let (from, to) = (format!("{group}/"), format!("{group}0"));
    let rows = scan(transaction, coordinator, table, &range(&from, &to), Direction::Ascending)?;
    if rows.len() < GROUP_ROWS_MAX {
        let key = format!("{group}/{}", random.random_range(0..50));
        set(transaction, coordinator, table, key.as_bytes(), Some(&[1; 30]))?;
    } else {
        transaction.delete(table, rows[random.random_range(0..rows.len())].0.clone());
    }
    transaction.commit(coordinator)?;
    Ok(rows.len())
}

/// Commits of all clients together; their duration depends on the machine's load.
const COMMITS: usize = 500;
/// Transactions after which a client gives up, so that the test always ends.
const ATTEMPTS_MAX: usize = 200_000;

/// The largest group that any client has counted in a committed transaction.
pub(crate) fn largest_group(threads: usize) -> usize {
    let (cluster, table) = open(threads);
    let committed = Arc::new(AtomicUsize::new(0));
    let workers = (0..3).flat_map(|node| (0..threads).map(move |worker| WorkerId { node, worker }));
    let clients: Vec<_> = workers
        .flat_map(|worker| [worker; 4])
        .enumerate()
        .map(|(number, worker)| {
            let committed = Arc::clone(&committed);
            let job = move |coordinator: &mut Coordinator<'_>| {
                let mut random = rand::rngs::SmallRng::seed_from_u64(number as u64);
                let mut largest = 0;
                for _ in 0..ATTEMPTS_MAX {
                    if committed.load(Ordering::Relaxed) >= COMMITS {
                        break;
                    }
                    let mut transaction = Deferred::new();
                    match count_and_change(&mut transaction, coordinator, table, &mut random) {
                        Ok(rows) => {
                            largest = largest.max(rows);
                            committed.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(abort) => {
                            assert!(abort.is_conflict(), "{abort}");
                            coordinator.back_off(3);
                        }
                    }
                }
                largest
            };
            cluster.spawn(worker, job).unwrap()
        })
        .collect();
    let largest = clients.into_iter().map(|client| client.wait().unwrap()).max().unwrap();
    let committed = committed.load(Ordering::Relaxed);
    assert!(committed >= COMMITS, "{committed} transactions committed");
    assert_sound(&cluster);
    largest
}
