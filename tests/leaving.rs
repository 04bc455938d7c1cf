//! Leaving partitions and dropped tables: a transaction that has locked a row may still commit, and
//! later ones are refused, at the row's node and at others.
//!
//! A cluster in this process lets a partition leave all nodes in the middle of a transaction, or drops tables under three
//! writers. A test fails if the transaction with the lock does not commit, if a later read or lock is granted, if an earlier
//! read is validated, if a table number comes again, or if memory of a dropped table does not come back.
//!
//! *Source*: `docs/architecture.md`, "Changes of the configuration". *Not here*: many tables at once (`tests/many_tables.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gannet::{
    Abort, Cluster, ClusterOptions, Conflict, LockMode, Misuse, Node, Outcome, TableId, WorkerId,
};
use gannet_benchmarks::check_replicas;

const KEY: u64 = 7;

/// A cluster of three nodes with one row, and a function that makes the row's partition leave all nodes.
fn open() -> (Cluster, TableId, impl Fn() + Clone + Send + 'static) {
    let options =
        ClusterOptions { memory_limit_bytes: Some(16 << 20), ..ClusterOptions::default() };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_table("t", 8, 1000).unwrap();
    let mut loader = cluster.loader();
    loader.add(table, KEY, &1_u64.to_le_bytes()).unwrap();
    loader.finish().unwrap();
    let nodes: Vec<Arc<Node>> = cluster.nodes().to_vec();
    let leave = move || {
        for node in &nodes {
            let view = node.view();
            let table = view.table(table.number()).unwrap();
            table.leave_partition(table.locate(KEY).partition);
        }
    };
    (cluster, table, leave)
}

fn at_each_node<T: Send + 'static>(
    cluster: &Cluster,
    job: impl Fn(&mut gannet::Coordinator<'_>) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let jobs = (0..3).map(|node| cluster.spawn(WorkerId { node, worker: 0 }, job.clone()).unwrap());
    jobs.map(|job| job.wait().unwrap()).collect()
}

#[test]
fn a_transaction_that_has_locked_a_row_commits_and_later_ones_are_refused() {
    for node in 0..3 {
        let (cluster, table, leave) = open();
        let written = cluster.spawn(WorkerId { node, worker: 0 }, move |coordinator| {
            coordinator.run(|tx| {
                let row = tx.add_to_write_set(table, KEY, LockMode::Update);
                tx.execute()?;
                leave();
                tx.put(row, &2_u64.to_le_bytes())
            })
        });
        assert_eq!(written.unwrap().wait().unwrap(), Outcome::Committed(()));
        // The copies are equal and nothing is locked.
        assert!(check_replicas(&cluster).iter().all(|check| check.passed));
        // The configuration has the table still: another node could serve it.
        let moved = Abort::Conflict(Conflict::Reconfigured);
        let reads = at_each_node(&cluster, move |coordinator| {
            coordinator.run(|tx| tx.get(table, KEY).map(|_| ()))
        });
        assert!(reads.iter().all(|read| *read == Outcome::Aborted(moved)), "{reads:?}");
        let writes = at_each_node(&cluster, move |coordinator| {
            coordinator.run(|tx| {
                tx.add_to_write_set(table, KEY, LockMode::Update);
                tx.execute()
            })
        });
        assert!(writes.iter().all(|write| *write == Outcome::Aborted(moved)), "{writes:?}");
        assert!(check_replicas(&cluster).iter().all(|check| check.passed));
    }
}

#[test]
fn earlier_reads_fail_validation() {
    for node in 0..3 {
        let (cluster, table, leave) = open();
        let other = cluster.create_table("other", 8, 1000).unwrap();
        let written = cluster.spawn(WorkerId { node, worker: 0 }, move |coordinator| {
            coordinator.run(|tx| {
                tx.get(table, KEY)?;
                tx.insert(other, KEY, &[0; 8])?;
                leave();
                Ok::<_, Abort>(())
            })
        });
        assert_eq!(
            written.unwrap().wait().unwrap(),
            Outcome::Aborted(Abort::Conflict(Conflict::Reconfigured))
        );
        assert!(check_replicas(&cluster).iter().all(|check| check.passed));
    }
}

#[test]
fn later_transactions_do_not_see_a_dropped_table_whose_name_is_free() {
    let options =
        ClusterOptions { memory_limit_bytes: Some(16 << 20), ..ClusterOptions::default() };
    let cluster = &Cluster::open(options).unwrap();
    let kept = cluster.create_table("kept", 8, 1000).unwrap();
    let used = || cluster.nodes().iter().map(|node| node.used_bytes()).sum::<usize>();
    let used_before = used();
    let mut numbers = BTreeSet::from([kept.number()]);
    for _ in 0..20 {
        let table = cluster.create_table("dropped", 8, 1000).unwrap();
        assert!(numbers.insert(table.number()), "numbers are not used again");
        let is_dropped = AtomicBool::new(false);
        let counts: Vec<_> = std::thread::scope(|scope| {
            let writers = (0..3_u64).map(|writer| {
                let is_dropped = &is_dropped;
                scope.spawn(move || {
                    let (mut committed, mut key) = (0, writer * 1_000_000);
                    loop {
                        let was_dropped = is_dropped.load(Ordering::Acquire);
                        key += 1;
                        let outcome = cluster.run(move |tx| {
                            tx.insert(table, key, &[1; 8])?;
                            let row = tx.add_to_write_set(kept, writer, LockMode::Insert);
                            tx.execute()?;
                            // From the second round on, the row exists.
                            tx.value_mut(row).map(drop).or_else(|abort| match abort {
                                Abort::Misuse(Misuse::Exists { .. }) => Ok(()),
                                abort => Err(abort),
                            })
                        });
                        match outcome.unwrap() {
                            Outcome::Committed(()) if !was_dropped => committed += 1,
                            Outcome::Failed(Abort::Misuse(Misuse::NoSuchTable { .. }))
                            | Outcome::Aborted(Abort::Misuse(Misuse::NoSuchTable { .. })) => {
                                return committed;
                            }
                            other => panic!("{other:?}, dropped before: {was_dropped}"),
                        }
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            while cluster.run(move |tx| tx.get(table, 1).map(|row| row.is_some())).unwrap()
                != Outcome::Committed(true)
            {}
            cluster.drop_table(table).unwrap();
            is_dropped.store(true, Ordering::Release);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        assert!(counts.iter().sum::<u32>() > 0);
        assert_eq!(cluster.table("dropped"), None);
        assert!(check_replicas(cluster).iter().all(|check| check.passed));
        assert_eq!(used(), used_before, "the memory of the table has come back");
    }
}
