//! Nodes of a process that are killed in the middle of their transactions: the others go on, and what was acknowledged stays.
//!
//! The clusters run on real threads of this process, where leases are endless. A test fails if an acknowledged update is
//! missing at one of the copies that are left, if a history is not strictly serializable, if a lock of a dead transaction
//! stays, if a job gets no answer, or if a load that meets the loss loads some of its rows (rule `LOAD_IN_ONE_EPOCH`).
//!
//! *Source*: `docs/protocol.md`, "Membership change". *Not here*: killed processes (`tests/server/failures/deaths.rs`), deaths
//! at a chosen step of a commit (`tests/simulation.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet::{
    Abort, ChangeError, Cluster, ClusterError, ClusterOptions, Coordinator, Failure, LockMode,
    NodeState, Outcome, StorageError, TableId, Topology, Transaction, WorkerId,
};
use gannet_benchmarks::consistency::ListAppend;
use gannet_benchmarks::{Result as Ran, Totals, Workload, check_replicas, seeded};
use gannet_storage::{BucketSnapshot, Owner};

const ACCOUNTS: u64 = 200;
const FIRST_BALANCE: u64 = 1_000;
const CLIENTS: u64 = 4;

fn open(nodes: usize, replicas: usize, topology: Topology) -> Cluster {
    let options = ClusterOptions {
        nodes,
        replicas,
        topology,
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    Cluster::open(options).unwrap()
}

fn balances(cluster: &Cluster) -> TableId {
    let table = cluster.create_table("balances", 8, ACCOUNTS).unwrap();
    let mut loader = cluster.loader();
    (0..ACCOUNTS).for_each(|account| {
        loader.add(table, account, &FIRST_BALANCE.to_le_bytes()).unwrap();
    });
    loader.finish().unwrap();
    table
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

/// Adds 1 to a row, and moves 1 between two others.
fn change(tx: &mut Transaction<'_>, table: TableId, rows: [u64; 3]) -> Result<(), Abort> {
    let rows = rows.map(|key| tx.add_to_write_set(table, key, LockMode::Update));
    tx.execute()?;
    for (row, change) in rows.into_iter().zip([1, 1_u64.wrapping_neg(), 1]) {
        let balance = number(tx.value(row).unwrap()).wrapping_add(change);
        tx.put(row, &balance.to_le_bytes())?;
    }
    Ok(())
}

fn read(cluster: &Cluster, table: TableId, key: u64) -> u64 {
    let read = cluster.run(move |tx| tx.get(table, key).map(|row| number(row.unwrap())));
    read.unwrap().committed()
}

/// Waits until the nodes have freed what dead transactions had locked. No transaction runs meanwhile.
fn await_free_locks(cluster: &Cluster) {
    let nodes = cluster.nodes();
    let living = nodes.iter().filter(|node| !node.is_killed());
    let views: Vec<_> = living.map(|node| node.view()).collect();
    let mut snapshot = BucketSnapshot::default();
    let mut has_locks = || {
        views.iter().any(|view| {
            let held = view.configuration().held_by(view.id());
            let mut places = held.flat_map(|partition| {
                let tables = view.tables().map(|(_, table)| table);
                tables.flat_map(move |table| {
                    (0..table.bucket_count(partition)).map(move |bucket| (table, partition, bucket))
                })
            });
            places.any(|(table, partition, bucket)| {
                table.snapshot(partition, bucket, &mut snapshot);
                snapshot.owner != Owner::FREE
            })
        })
    };
    let mut looks = 0;
    while has_locks() {
        looks += 1;
        assert!(looks < 2_000, "dead locks are not freed");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Ends the clients, also when a check fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until no copies are missing that other nodes can have.
fn await_copies(cluster: &Cluster) {
    let is_open = || {
        let membership = cluster.membership();
        membership.copies_missing + membership.copies_moving > 0
    };
    let mut looks = 0;
    while is_open() {
        looks += 1;
        assert!(looks < 6_000, "{:?}", cluster.membership());
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Nodes 1 and 3 are left, and copies were made again at both: one of them is enough.
fn either_node_is_enough(cluster: &Cluster, table: TableId, acknowledged: &[u64]) {
    for left in [2, 1] {
        for (client, count) in (0..).zip(acknowledged) {
            assert_eq!(read(cluster, table, client), FIRST_BALANCE + count, "client {client}");
        }
        let sum = (CLIENTS..ACCOUNTS).map(|key| read(cluster, table, key)).sum::<u64>();
        assert_eq!(sum, (ACCOUNTS - CLIENTS) * FIRST_BALANCE, "with {left} nodes");
        let (node, is_last) = (2 * left - 1, left == 1);
        match cluster.kill_node(node) {
            Ok(()) => assert!(!is_last),
            Err(ClusterError::Change(ChangeError::LastCopy { node: 1, .. })) => {
                assert!(is_last);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_was_acknowledged_outlives_the_death_of_nodes() {
    for (topology, replicas, killed) in [
        (Topology::ThreadPerWorkerNumber, 3, &[2, 0][..]),
        (Topology::ThreadPerWorker, 3, &[2, 0]),
        // Each has the only copy of some rows until the copies of the one before are made again.
        (Topology::ThreadPerWorkerNumber, 2, &[2, 0]),
    ] {
        let cluster = &open(4, replicas, topology);
        let table = balances(cluster);
        let is_over = &AtomicBool::new(false);
        let progress = &AtomicU64::new(0);
        let acknowledged = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn(move || {
                        let mut acknowledged = 0;
                        let mut other = client;
                        while !is_over.load(Ordering::Relaxed) {
                            other = (other * 7 + 11) % (ACCOUNTS - CLIENTS - 1);
                            let (from, to) = (CLIENTS + other, CLIENTS + other + 1);
                            let body = move |tx: &mut Transaction<'_>| {
                                change(tx, table, [client, from, to])
                            };
                            match cluster.run(body).unwrap() {
                                Outcome::Committed(()) => acknowledged += 1,
                                // The job's node was killed before the transaction was decided.
                                Outcome::Aborted(Abort::Failure(Failure::Revoked)) => {}
                                other => panic!("{other:?}"),
                            }
                            progress.fetch_add(1, Ordering::Relaxed);
                        }
                        acknowledged
                    })
                })
                .collect();
            let over = Over(is_over);
            let await_progress = || {
                let before = progress.load(Ordering::Relaxed);
                while progress.load(Ordering::Relaxed) < before + 2_000 {
                    std::thread::yield_now();
                }
            };
            for (node, epoch) in killed.iter().zip(2..) {
                await_progress();
                cluster.kill_node(*node).unwrap();
                assert_eq!(cluster.configuration().epoch, epoch);
                assert_eq!(cluster.status()[*node].state, NodeState::Gone);
                if replicas == 2 {
                    await_copies(cluster);
                }
            }
            await_progress();
            drop(over);
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<u64>>()
        });
        await_copies(cluster);
        let checks = check_replicas(cluster);
        assert!(checks.iter().all(|check| check.passed), "{checks:?}");
        either_node_is_enough(cluster, table, &acknowledged);
        assert!(matches!(cluster.kill_node(2), Err(ClusterError::NoSuchNode { node: 2 })));
        // Tables come and go as before.
        let later = cluster.create_table("later", 8, 10).unwrap();
        cluster.run(move |tx| tx.insert(later, 1, &[1; 8])).unwrap().committed();
        cluster.drop_table(table).unwrap();
    }
}

#[test]
fn histories_across_the_deaths_of_nodes_are_strictly_serializable() {
    const COMMITTED: u64 = 2_000;
    // On a busy machine most transactions conflict, with one whose thread does not run.
    const BEGUN_MAX: u64 = 100 * COMMITTED;
    for seed in 0..3 {
        let cluster = open(4, 3, Topology::ThreadPerWorkerNumber);
        let mut lists = ListAppend::new(4 * COMMITTED);
        lists.create_tables(&cluster).unwrap();
        let lists = Arc::new(lists);
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let goes_on = {
            let counts = Arc::clone(&counts);
            move |committed_max: u64| {
                let [begun, committed] =
                    counts.each_ref().map(|count| count.load(Ordering::Relaxed));
                begun < BEGUN_MAX && committed < committed_max
            }
        };
        let client = |stream: u64| {
            let (lists, counts, goes_on) =
                (Arc::clone(&lists), Arc::clone(&counts), goes_on.clone());
            move |coordinator: &mut Coordinator<'_>| {
                let mut random = seeded(seed, stream);
                let [begun, committed] = &*counts;
                while goes_on(COMMITTED) {
                    begun.fetch_add(1, Ordering::Relaxed);
                    match lists.run_one(coordinator, &mut random).result {
                        Ran::Qualified | Ran::RowsMissing => {
                            committed.fetch_add(1, Ordering::Relaxed);
                        }
                        Ran::Aborted(Abort::Failure(Failure::Revoked)) => break,
                        Ran::Aborted(_) => {}
                    }
                }
            }
        };
        let workers = (0..4).flat_map(|node| (0..8).map(move |_| WorkerId { node, worker: 0 }));
        let jobs: Vec<_> = (0..)
            .zip(workers)
            .map(|(stream, at)| cluster.spawn(at, client(stream)).unwrap())
            .collect();
        for (node, after) in [(2, COMMITTED / 4), (0, COMMITTED / 2)] {
            while goes_on(after) {
                std::thread::yield_now();
            }
            cluster.kill_node(node).unwrap();
        }
        for job in jobs {
            // A job of a killed node may have no result.
            let _ = job.wait();
        }
        let committed = counts[1].load(Ordering::Relaxed);
        assert!(committed >= COMMITTED, "{committed}");
        let checks = lists.verify(&cluster, &Totals::default());
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        assert!(checks.len() >= 3 && failed.is_empty(), "seed {seed}: {failed:?}");
        cluster.close();
    }
}

#[test]
fn primaries_are_spread_evenly_again_after_a_death() {
    let cluster = open(3, 3, Topology::ThreadPerWorkerNumber);
    cluster.kill_node(0).unwrap();
    let configuration = cluster.configuration();
    let partitions = 0..u16::try_from(configuration.partitioning.count()).unwrap();
    let primaries = partitions.map(|partition| configuration.primary(partition));
    assert_eq!(primaries.filter(|primary| *primary == 1).count(), 8, "of 16 at two nodes");
    assert_eq!(cluster.membership().epoch, 2, "the loss began an epoch, and the hand-over none");
}

#[test]
fn jobs_that_have_not_begun_go_to_other_nodes() {
    let cluster = open(3, 3, Topology::ThreadPerWorker);
    let table = balances(&cluster);
    let at = WorkerId { node: 1, worker: 0 };
    let add = move |coordinator: &mut Coordinator<'_>| {
        // So most of the jobs have not begun when the node is killed.
        coordinator.pause(Duration::from_millis(20));
        let outcome = coordinator.run(|tx| change(tx, table, [0, 1, 2]));
        (coordinator.node(), outcome)
    };
    let jobs: Vec<_> = (0..200).map(|_| cluster.spawn(at, add).unwrap()).collect();
    cluster.kill_node(1).unwrap();
    let (mut committed, mut elsewhere) = (0, 0);
    for job in jobs {
        // Each is answered: where it ran, or that it had begun and was undone.
        let (node, outcome) = job.wait().unwrap();
        elsewhere += u64::from(node != 1);
        match outcome {
            Outcome::Committed(()) => committed += 1,
            Outcome::Aborted(Abort::Failure(Failure::Revoked)) => assert_eq!(node, 1),
            // All change the same rows.
            Outcome::Aborted(abort) if abort.is_conflict() => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(committed > 0);
    assert_eq!(read(&cluster, table, 0), FIRST_BALANCE + committed);
    assert!(elsewhere > 0, "no job has moved, {committed} committed");
    let refused = cluster.spawn(at, add).map(drop);
    assert!(matches!(refused, Err(ClusterError::NoSuchWorker { node: 1, worker: 0 })));
    // A job near the killed node runs at another.
    let near = cluster.spawn_near(1, |coordinator| coordinator.node()).unwrap().wait().unwrap();
    assert_ne!(near, 1);
    cluster.close();
}

#[test]
fn what_a_dead_transaction_had_locked_is_freed() {
    let cluster = open(3, 3, Topology::ThreadPerWorker);
    let table = balances(&cluster);
    let (locked, has_locked) = channel();
    let hold = move |coordinator: &mut Coordinator<'_>| {
        let transaction = coordinator.begin();
        for account in 0..ACCOUNTS {
            transaction.add_to_write_set(table, account, LockMode::Update);
        }
        transaction.execute().unwrap();
        locked.send(()).unwrap();
        coordinator.pause(Duration::from_secs(3_600));
    };
    let job = cluster.spawn(WorkerId { node: 2, worker: 0 }, hold).unwrap();
    has_locked.recv().unwrap();
    cluster.kill_node(2).unwrap();
    // Nobody else uses these rows.
    await_free_locks(&cluster);
    drop(job);
}

#[test]
fn a_load_that_meets_the_loss_of_a_node_fails_as_a_whole() {
    let cluster = open(3, 2, Topology::ThreadPerWorkerNumber);
    let table = cluster.create_table("balances", 8, ACCOUNTS).unwrap();
    let mut loader = cluster.loader();
    (0..10).for_each(|account| loader.add(table, account, &[1; 8]).unwrap());
    cluster.kill_node(2).unwrap();
    // The first rows are still gathered, and those of the other partitions would all find their copies.
    let refused = (10..ACCOUNTS).map(|account| loader.add(table, account, &[1; 8]));
    let refused: Vec<_> = refused.filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    let is_clear = |error: &StorageError| matches!(error, StorageError::MembersChanged);
    assert!(refused.iter().all(is_clear), "{refused:?}");
    assert!(matches!(loader.finish(), Err(StorageError::MembersChanged)));
    let is_there = |key: u64| cluster.run(move |tx| tx.get(table, key).map(|row| row.is_some()));
    assert!(!(0..ACCOUNTS).any(|key| is_there(key).unwrap().committed()), "nothing was loaded");
    // The next load begins with the members that are left, when their copies are there.
    cluster.drop_table(table).unwrap();
    await_copies(&cluster);
    let table = balances(&cluster);
    assert_eq!(read(&cluster, table, ACCOUNTS - 1), FIRST_BALANCE);
}
