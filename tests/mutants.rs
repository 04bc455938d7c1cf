//! Each rule that a workload's `verify` must notice, removed. Which check catches what:
//!
//! | removed | caught by |
//! |---|---|
//! | read validation | `skew`: sums below zero |
//! | C1, locks before VALIDATE | `skew`: sums below zero |
//! | UNLOCK on abort | `smallbank`: no lock held |
//! | one copy's update | `smallbank`: replicas equal |
//! | C9, a lock for insert reserves space | `TableFull`: inserts beyond the memory limit |
//! | `INSERT_CALL_FORWARDING`'s read of the facility | `tatp`: call forwardings without facility |
//! | C2, C5, units, reads of a locked bucket, the version restored on abort | `tests/simulation.rs` |
//! | C3, C4, C6, C8, the version rule of units | `tests/flush.rs` |
//! | a commit is settled by its id | `tests/halted.rs`, `tests/simulation.rs` |
//! | C9, no copy refuses what is decided, and none misses it | `tests/server/failure.rs`: the process ends |
//! | a PRIMARY is applied under its lock | the cluster halts and says so, wherever the coordinator is |
//! | a VALIDATE is answered for what is there | `Refused`, which is not run again |
//! | the sequence check of a torn read, the fences, what bounds a walk through freed cells | `storage/tests/`, loom in `storage` |
//!
//! C7, what a coordinator does that is told of a new epoch, needs membership changes: it is a rule of
//! the model alone, `engine/tests/model.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(feature = "mutants")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet_benchmarks::skew::Skew;
use gannet_benchmarks::{Limit, Report, Settings, Workload, run};
use gannet_engine::mutant::{Mutant, activate};
use gannet_engine::{Abort, Cluster, ClusterOptions, Coordinator, LockMode, Outcome, WorkerId};
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
                Outcome::Committed(()) | Outcome::Failed(Abort::TableFull { .. })
            ));
            outcome != Outcome::Committed(())
        })
        .unwrap_or(rows_max)
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
        let outcome: Result<Outcome<(), Abort>, _> =
            cluster.spawn(WorkerId { node, worker: 0 }, update).unwrap().wait();
        if outcome.is_err() {
            return told.recv_timeout(Duration::from_secs(60)).ok();
        }
    }
    None
}

// One test: a mutant is switched for the whole process.
#[test]
fn every_mutant_fails_its_verify() {
    for (mutant, workload, check) in [
        (Mutant::SkipValidation, "skew", "below zero"),
        (Mutant::ValidateBeforeLock, "skew", "below zero"),
        (Mutant::SkipUnlock, "smallbank", "no lock held"),
        (Mutant::DropBackupUpdate, "smallbank", "replicas equal"),
        (Mutant::TatpSkipsFacility, "tatp", "without facility"),
    ] {
        activate(mutant);
        let report = run_workload(workload);
        activate(Mutant::None);
        let failed: Vec<_> = report
            .verify
            .checks
            .iter()
            .filter(|check| !check.passed)
            .map(|check| &check.name)
            .collect();
        assert!(!report.verify.passed, "{mutant:?} survives {workload}");
        assert!(failed.iter().any(|name| name.contains(check)), "{mutant:?}: {failed:?}");
        println!("{mutant:?}: {workload} fails {failed:?}");
    }
    let rows = rows_until_full(u64::MAX);
    activate(Mutant::SkipReservation);
    let without = rows_until_full(rows + rows / 8);
    activate(Mutant::None);
    assert!(without > rows, "SkipReservation survives: {without} rows, {rows} before");
    println!("SkipReservation: {without} rows in a memory limit for {rows}");
    activate(Mutant::RefuseValidation);
    let (outcome, runs) = run_over_a_refusal();
    activate(Mutant::None);
    assert_eq!((outcome, runs), (Outcome::Aborted(Abort::Refused), 1));
    // The row's primary is one of these nodes: its answer is read at the others, too.
    activate(Mutant::LoseLock);
    let failures = [0, 1, 2].map(failure_of_updates_from);
    activate(Mutant::None);
    let says_why = |failure: &Option<String>| {
        failure.as_ref().is_some_and(|reason| reason.contains("PRIMARY was answered Gap"))
    };
    assert!(failures.iter().all(says_why), "{failures:?}");
    for workload in ["skew", "smallbank", "tatp"] {
        let report = run_workload(workload);
        assert!(report.verify.passed, "{workload} with all rules in place: {}", report.to_text());
    }
}
