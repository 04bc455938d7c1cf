//! Each rule that a workload's `verify` must notice, removed; and which test notices that any rule is gone, or any fault there:
//!
//! | removed | | noticed by |
//! |---|---|---|
//! | `READ_VALIDATION` | reads are validated | here (`skew`: sums below zero), `tests/simulation.rs` |
//! | `C1` | locks before VALIDATE | here (`skew`: sums below zero), `tests/simulation.rs` |
//! | `C2` | observations of one bucket agree, or are validated by row | `tests/simulation.rs` |
//! | `C3` | no abort after the first LOG | `tests/flush.rs` |
//! | `C4` | no update before all records | `tests/flush.rs` |
//! | `C5` | backups before primaries | `tests/simulation.rs` |
//! | `C6` | nothing is told before all records | `tests/flush.rs` |
//! | `C7` | nobody works while an epoch is prepared | `tests/simulation.rs` |
//! | `C8` | a log slot for each coroutine | `tests/flush.rs` |
//! | `C9_RESERVATION` | a lock for an insert reserves space | here: inserts beyond the memory limit |
//! | `UNLOCK_ON_ABORT` | an abort sends UNLOCK | here (`smallbank`: no lock held), `tests/simulation.rs` |
//! | `VERSION_ON_ABORT` | an abort leaves the version | `tests/simulation.rs` |
//! | `LOCKED_BUCKETS` | reads of a locked bucket are refused | `tests/simulation.rs` |
//! | `RANGE_VALIDATION` | the ranges of a scan are validated | `tests/ordered_mutant.rs`, `tests/simulation.rs` |
//! | `ONE_UNIT` | one unit for each bucket | `tests/simulation.rs` |
//! | `BASE_VERSION` | a unit is applied on its base version | `tests/flush.rs` |
//! | `GRANTED_BASE` | a unit is based on the version granted | `tests/simulation.rs` |
//! | `ROW_VERSIONS`, `DELETION_MARKS` | a row, or its absence, is as it was read | `tests/simulation.rs` |
//! | `ADDED_ENTRIES`, `PENDING_ENTRIES` | entries that come to a range are noticed | `tests/simulation.rs` |
//! | `LEAVING_ENTRIES` | a key that is about to be removed from a range is noticed | `storage/tests/rows_mutant.rs` |
//! | `REMOVAL_MARKS`, `MARKS_OF_LEAVES` | what came to a range and went is noticed | `storage/tests/rows_mutant.rs` |
//! | `FOLDED_CHANGES` | what has changed since it was folded is noticed | `tests/anomalies_mutant.rs`, `tests/simulation.rs` |
//! | `ONE_HASH` | a row's deletion marks those with its hash | `storage/tests/rows_mutant.rs` |
//! | `SETTLE_BY_ID` | a commit is settled by its id | `tests/halted.rs`, `tests/simulation.rs` |
//! | `ALL_RECORDS` | a flush has the records of all | `tests/simulation.rs` |
//! | `FLUSHED_UNITS` | a flush applies the records' units | `tests/simulation.rs` |
//! | `DEAD_ENTRIES` | a flush removes pending entries | `tests/simulation.rs` |
//! | `DEAD_RESERVATIONS` | a flush ends reservations of aborted transactions | `tests/simulation.rs` |
//! | `DEAD_BARRIERS` | a flush ends scan barriers of the epoch before | `tests/simulation.rs` |
//! | `DEAD_LOCKS` | a lock of another epoch is free | `tests/simulation.rs` |
//! | `ONE_EPOCH` | reads of one epoch are not validated in another | `tests/epochs.rs` |
//! | `EPOCH_OF_PACKETS` | packets of another epoch are dropped | `tests/simulation.rs` |
//! | `LEASES` | a node answers only while it holds a lease | `tests/simulation.rs` |
//! | `CLOCK_AFTER_DATA` | the clock is read after the data | `tests/simulation.rs` |
//! | `LEASES_OVER` | an epoch begins when the leases of removed members are over | `engine/src/change/tests.rs` |
//! | `ACTIVATION_DECIDED` | an epoch begins when that is decided | `tests/simulation.rs` |
//! | `COMPLAINTS` | of two members that do not reach each other one goes | `engine/src/members/leases/tests.rs` |
//! | `LOAD_IN_ONE_EPOCH` | the rows of a load go to the same members | here: a load, and a bulk load, that meets a loss succeeds; `tests/simulation.rs` |
//! | `LOADED_UNSERVED` | a partition that is being loaded is not served | `storage/tests/rows_mutant.rs`, `tests/simulation.rs` |
//! | `CONFIRMED_READS` | where reads are confirmed, a renewal that was sent after them is waited for | `tests/simulation.rs` |
//! | `MOVED` | a node serves the partitions whose primary it is | `tests/simulation.rs` |
//! | `LOCKS_FINISH` | lock holders finish before a hand-over | `tests/simulation.rs` |
//! | `SCANNED_PRIMARY` | scans of one primary are not validated at another | `engine/src/deferred/tests.rs` |
//! | `WAITING_UPDATES` | an update waits until its bucket is copied | `tests/simulation.rs` |
//! | `WAITING_SPLITS` | what waits for a half is applied with the split | `engine/src/learning/tests.rs` |
//! | `GRACE_PERIOD` | rows are copied when all updates come | `tests/simulation.rs` |
//! | `COPIED_VERSION` | a bucket is copied with its version | `tests/simulation.rs` |
//! | `LEARNERS_APART` | a learner is never primary | `tests/simulation.rs` |
//! | `LEARNED_WHOLE` | a learner has all rows when it is a copy | `tests/simulation.rs` |
//! | `DISMISSED_SPARED` | a copy is given back when it gets no updates | `tests/simulation.rs` |
//! | `ONE_INCARNATION` | a replica is one incarnation of its node | `manager/tests/incarnations.rs` |
//! | `TOKENS` | what is kept under a token is the outcome | `tests/simulation.rs` |
//! | `SEQUENCE_CHECK` | a torn read is repeated | `storage/tests/torn_reads_mutant.rs`, loom in `storage` |
//! | `READ_FENCE`, `WRITE_FENCE`, `REUSE_FENCE` | the fences of readers and writers | loom in `storage` |
//! | `SPLIT_BUCKETS` | a key whose bucket was split is looked for again | loom in `storage` |
//! | `MERGED_VERSION`, `MERGED_MARKS`, `MERGED_BUCKETS` | what has changed beside a merge is noticed | `storage/tests/rows_mutant.rs` |
//! | `MAPPED_CELLS`, `UNCHANGED_CHAIN` | a walk through freed cells is bounded | loom in `storage` |
//! | `EXACTLY_ONCE` | a request runs once | `tests/simulation.rs`, `tests/server/chaos/mod.rs` |
//! | `CHECKSUM` | a damaged packet is dropped | `tests/simulation.rs` |
//! | `ALL_CATALOG_VERSIONS` | a definition reaches all nodes | `tests/definitions_mutant.rs` |
//! | `SYNCED_ANSWERS` | a replica of the manager syncs before it says that it has stored | `tests/server/synced.rs` |
//! | `TABLES_TO_COME` | updates wait for a node that has not heard of their table | `tests/simulation.rs` |
//! | `LOST_BUILDS` | the builds of a lost node are undone | `tests/simulation.rs` |
//! | `OWN_ENTRIES` | entries of other rows stay | `tests/simulation.rs` |
//! | `FACILITY_CHECK` | `INSERT_CALL_FORWARDING` reads the facility | here (`tatp`: call forwardings without facility) |
//!
//! | injected | | noticed by |
//! |---|---|---|
//! | `DROP_BACKUP_UPDATES` | one copy has no updates | here (`smallbank`: replicas equal), `tests/simulation.rs`, `tests/flush.rs` |
//! | `REFUSE_BACKUP`, `LOSE_BACKUP_UPDATE` | a copy refuses or misses a decided update (C9) | `tests/server/failure.rs`: the process ends |
//! | `LOSE_LOCK` | a PRIMARY comes without its lock | here: the cluster halts and says so, wherever the coordinator is |
//! | `REFUSE_VALIDATION` | a VALIDATE is refused | here: `Refused`, which is not run again |
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::{Limit, Report, Settings, Workload, run};
use gannet_engine::{
    Abort, Cluster, ClusterOptions, Coordinator, Failure, LockMode, Outcome, WorkerId, faults,
    rules,
};
use gannet_rules::Mutant;
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

fn verify(workload: impl Workload) -> Report {
    let settings = Settings {
        cluster: ClusterOptions {
            threads: 1,
            memory_limit_bytes: Some(64 << 20),
            ..ClusterOptions::default()
        },
        limit: Limit::Transactions(200_000),
        warmup: Duration::ZERO,
        seed: 1,
        drains: 0,
        beside: None,
        member: None,
    };
    run(workload, &settings).unwrap()
}

fn run_workload(name: &str) -> Report {
    match name {
        "skew" => verify(Skew::new(10).unwrap()),
        "smallbank" => verify(SmallBank::new(2_000, 1).unwrap()),
        _ => verify(Tatp::new(500, false, 1).unwrap()),
    }
}

/// Rows that a small cluster takes before it says that it is full; at most `rows_max`.
fn rows_until_full(rows_max: u64) -> u64 {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(2_300_000),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_table("rows", 256, 1).unwrap();
    (0..rows_max)
        .find(|&key| {
            let outcome = cluster.run(move |tx| tx.insert(table, key, &[1; 256])).unwrap();
            assert!(matches!(
                outcome,
                Outcome::Committed(()) | Outcome::Failed(Abort::Failure(Failure::TableFull { .. }))
            ));
            outcome != Outcome::Committed(())
        })
        .unwrap_or(rows_max)
}

/// Whether a load succeeds that meets the loss of a node.
fn load_across_a_loss() -> bool {
    let options = ClusterOptions {
        replicas: 2,
        threads: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_table("rows", 8, 1_000).unwrap();
    let mut loader = cluster.loader();
    let all = (0..500_u64).all(|key| {
        if key == 250 {
            cluster.kill_node(2).unwrap();
        }
        loader.add(table, key, &key.to_le_bytes()).is_ok()
    });
    all && loader.finish().is_ok()
}

/// Whether a bulk load succeeds that meets the loss of a node.
fn bulk_load_across_a_loss() -> bool {
    let options = ClusterOptions {
        replicas: 2,
        threads: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).unwrap());
    let table = cluster.create_ordered_table("rows", 0).unwrap();
    let add = |coordinator: &mut Coordinator<'_>, load, numbers: Range<u32>| {
        let keys: Vec<_> = numbers.map(u32::to_be_bytes).collect();
        let rows: Vec<(&[u8], &[u8])> = keys.iter().map(|key| (&key[..], &b"row"[..])).collect();
        coordinator.bulk_load(load, &rows).map(|existing| assert_eq!(existing, None))
    };
    let worker = WorkerId { node: 0, worker: 0 };
    let begin = move |coordinator: &mut Coordinator<'_>| {
        let load = coordinator.begin_bulk_load(table).unwrap().expect("the table is new");
        add(coordinator, load, 0..250).map(|()| load)
    };
    let load = cluster.spawn(worker, begin).unwrap().wait().unwrap().unwrap();
    let epoch = cluster.configuration().epoch;
    cluster.kill_node(2).unwrap();
    let others = Arc::clone(&cluster);
    let end = move |coordinator: &mut Coordinator<'_>| {
        while others.configuration().epoch == epoch {
            coordinator.pause(Duration::from_millis(1));
        }
        add(coordinator, load, 250..500).and_then(|()| coordinator.end_bulk_load(load))
    };
    cluster.spawn(worker, end).unwrap().wait().unwrap().is_ok()
}

/// The outcome of a transaction one of whose reads a primary refuses to validate, and how often it was run.
fn run_over_a_refusal() -> (Outcome<(), Abort>, usize) {
    let cluster = Cluster::open(ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    });
    let cluster = cluster.unwrap();
    let table = cluster.create_table("rows", 8, 1_000).unwrap();
    for number in 0..64_u64 {
        let value = number.to_le_bytes();
        let _ = cluster.run(move |tx| match number {
            0 => tx.insert(table, 1, &value),
            _ => {
                let row = tx.add_to_write_set(table, 1, LockMode::Update);
                tx.execute()?;
                tx.put(row, &value)
            }
        });
    }
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let outcome = cluster.run(move |tx| {
        counted.fetch_add(1, Ordering::Relaxed);
        tx.get(table, 1)?;
        tx.insert(table, 2, &[2; 8])
    });
    (outcome.unwrap(), runs.load(Ordering::Relaxed))
}

/// Why a cluster halts in which a coordinator at `node` updates one row again and again.
fn failure_of_updates_from(node: usize) -> Option<String> {
    let (tell, told) = channel();
    let cluster = Cluster::open(ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(16 << 20),
        on_failure: Some(Arc::new(move |reason| tell.send(reason.to_owned()).unwrap())),
        ..ClusterOptions::default()
    });
    let cluster = cluster.unwrap();
    let table = cluster.create_table("rows", 8, 1_000).unwrap();
    let outcome = cluster.run(move |tx| tx.insert(table, 1, &[0; 8]));
    assert_eq!(outcome.unwrap(), Outcome::Committed(()));
    for _ in 0..1_000 {
        let update = move |coordinator: &mut Coordinator<'_>| {
            coordinator.run(|tx| {
                let row = tx.add_to_write_set(table, 1, LockMode::Update);
                tx.execute()?;
                tx.put(row, &[1; 8])
            })
        };
        // A cluster that has halted takes no job.
        let spawned = cluster.spawn(WorkerId { node, worker: 0 }, update);
        let outcome: Option<Result<Outcome<(), Abort>, _>> = spawned.ok().map(|job| job.wait());
        if !matches!(outcome, Some(Ok(_))) {
            return told.recv_timeout(Duration::from_secs(60)).ok();
        }
    }
    None
}

fn notices(mutant: Mutant, workload: &str, check: &str) {
    let (name, report) = (mutant.name(), run_workload(workload));
    let failed: Vec<_> = report
        .verify
        .checks
        .iter()
        .filter(|check| !check.passed)
        .map(|check| &check.name)
        .collect();
    assert!(!report.verify.passed, "{workload} passes with {name}");
    assert!(failed.iter().any(|name| name.contains(check)), "{name}: {failed:?}");
    println!("{name}: {workload} fails {failed:?}");
}

// One test: a rule is removed in the whole process.
#[test]
fn what_is_removed_is_noticed() {
    notices(rules::READ_VALIDATION.remove(), "skew", "below zero");
    notices(rules::C1.remove(), "skew", "below zero");
    notices(rules::UNLOCK_ON_ABORT.remove(), "smallbank", "no lock held");
    notices(faults::DROP_BACKUP_UPDATES.inject(), "smallbank", "replicas equal");
    notices(gannet_tatp::rules::FACILITY_CHECK.remove(), "tatp", "without facility");
    let rows = rows_until_full(u64::MAX);
    let mutant = gannet_storage::rules::C9_RESERVATION.remove();
    let without = rows_until_full(rows + rows / 8);
    println!("{}: {without} rows in a memory limit for {rows}", mutant.name());
    drop(mutant);
    assert!(without > rows, "{without} rows, {rows} before");
    assert!(!load_across_a_loss(), "a load that meets a loss fails");
    assert!(!bulk_load_across_a_loss(), "a bulk load that meets a loss fails");
    let mutant = rules::LOAD_IN_ONE_EPOCH.remove();
    assert!(load_across_a_loss(), "nothing else refuses it");
    assert!(bulk_load_across_a_loss(), "nothing else refuses it");
    drop(mutant);
    let mutant = faults::REFUSE_VALIDATION.inject();
    let (outcome, runs) = run_over_a_refusal();
    drop(mutant);
    assert_eq!((outcome, runs), (Outcome::Aborted(Abort::Failure(Failure::Refused)), 1));
    // The row's primary is one of these nodes: its answer is read at the others, too.
    let mutant = faults::LOSE_LOCK.inject();
    let failures = [0, 1, 2].map(failure_of_updates_from);
    drop(mutant);
    let says_why = |failure: &Option<String>| {
        failure.as_ref().is_some_and(|reason| reason.contains("PRIMARY was answered Gap"))
    };
    assert!(failures.iter().all(says_why), "{failures:?}");
    for workload in ["skew", "smallbank", "tatp"] {
        let report = run_workload(workload);
        assert!(report.verify.passed, "{workload} with all rules in place: {}", report.to_text());
    }
}
