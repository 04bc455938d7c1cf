//! The PRIMARY messages of a coroutine's transaction are piggybacked on the requests of the next one.
//! Virtual time lets the test see every moment.
//!
//! The simulator runs three nodes, and counts packets. A test fails if a busy coroutine sends a packet
//! for its PRIMARYs alone, or if a lock or an unequal copy is left when a job's end is reported,
//! whatever the job did last: nothing, a failure, or a panic.
//!
//! *Source*: `docs/protocol.md`, "Phases". *Not here*: members that halt at some stage of a commit (`tests/halted.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use gannet::{
    Abort, ClusterOptions, Coordinator, LockMode, Lost, Misuse, Outcome, TableId, Transaction,
    WorkerId,
};
use gannet_benchmarks::check_replicas;
use gannet_engine::simulation::Simulation;

const KEYS: u64 = 1000;

fn open() -> (Simulation, TableId) {
    let options = ClusterOptions {
        threads: 1,
        coroutines: 4,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let simulation = Simulation::open(options, 1, Vec::new(), None).unwrap();
    let table = simulation.cluster().create_table("t", 8, KEYS).unwrap();
    let mut loader = simulation.cluster().loader();
    (0..KEYS).for_each(|key| loader.add(table, key, &[0; 8]).unwrap());
    loader.finish().unwrap();
    (simulation, table)
}

/// Runs a job up to the moment at which its end is reported.
fn run(
    simulation: &mut Simulation,
    node: usize,
    job: impl FnOnce(&mut Coordinator<'_>) + Send + 'static,
) -> Result<(), Lost> {
    let told = simulation.cluster().spawn(WorkerId { node, worker: 0 }, job);
    let mut told = pin!(told.unwrap());
    loop {
        let next_ns = simulation.now_ns() + 1;
        simulation.run_until(next_ns, &|| 0);
        if let Poll::Ready(result) = told.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
    }
}

/// Asserts that nothing is locked and all copies are equal.
fn assert_applied(simulation: &Simulation) {
    for check in check_replicas(simulation.cluster()) {
        assert!(check.passed, "{}: {}", check.name, check.detail);
    }
}

fn key_of(coordinator: &Coordinator<'_>, node: u16) -> u64 {
    (0..KEYS).find(|&key| coordinator.primary(key) == node).unwrap()
}

fn increment(tx: &mut Transaction<'_>, table: TableId, key: u64) -> Result<(), Abort> {
    let row = tx.add_to_write_set(table, key, LockMode::Update);
    tx.execute()?;
    let value = u64::from_le_bytes(tx.value(row).unwrap().try_into().unwrap());
    tx.put(row, &(value + 1).to_le_bytes())
}

/// Increments a row of each node, each in its own transaction.
fn change(coordinator: &mut Coordinator<'_>, table: TableId) {
    for node in 0..3 {
        let key = key_of(coordinator, node);
        let outcome = coordinator.run(|tx| increment(tx, table, key));
        assert_eq!(outcome, Outcome::Committed(()));
    }
}

#[test]
fn a_busy_coroutine_sends_no_separate_packets_to_primaries() {
    const UPDATES: u64 = 100;
    let (mut simulation, table) = open();
    run(&mut simulation, 0, move |coordinator| {
        let key = key_of(coordinator, 1);
        for _ in 0..UPDATES {
            // The transaction reads its own writes, and meets no lock of its own.
            let tx = coordinator.begin();
            increment(tx, table, key).unwrap();
            tx.commit().unwrap();
        }
    })
    .unwrap();
    // Packets to and from the primary with the lock, two log replicas, and the other backup; and those to the last
    // transaction's primary.
    assert_eq!(simulation.counters().packets, 8 * UPDATES + 2);
    assert_applied(&simulation);
}

#[test]
fn no_lock_is_left_when_a_jobs_end_is_reported_whatever_the_job_did_last() {
    let nexts: [fn(&mut Coordinator<'_>, TableId); 7] = [
        |_, _| {},
        |coordinator, _| {
            let nothing = coordinator.run(|_| Ok::<_, Abort>(()));
            assert_eq!(nothing, Outcome::Committed(()));
        },
        |coordinator, _| {
            let failed = coordinator.run(|_| Err::<(), _>(Abort::Requested));
            assert_eq!(failed, Outcome::Failed(Abort::Requested));
        },
        |coordinator, table| {
            let too_long = coordinator.run(|tx| tx.insert(table, 5000, &[0; 9]));
            assert!(matches!(too_long, Outcome::Failed(Abort::Misuse(Misuse::ValueBytes { .. }))));
        },
        |coordinator, table| {
            let other = key_of(coordinator, 0);
            let read = coordinator.run(|tx| tx.get(table, other).map(|_| ()));
            assert_eq!(read, Outcome::Committed(()));
        },
        |coordinator, table| {
            let tx = coordinator.begin();
            tx.add_to_write_set(table, 1, LockMode::Update);
            tx.execute().unwrap();
        },
        |coordinator, _| coordinator.back_off(10),
    ];
    for next in nexts {
        for node in 0..3 {
            let (mut simulation, table) = open();
            let told = run(&mut simulation, node, move |coordinator| {
                change(coordinator, table);
                next(coordinator, table);
            });
            assert_eq!(told, Ok(()));
            assert_applied(&simulation);
        }
    }
    let (mut simulation, table) = open();
    let told = run(&mut simulation, 0, move |coordinator| {
        change(coordinator, table);
        panic!("on purpose");
    });
    assert!(told.is_err(), "{told:?}");
    assert_applied(&simulation);
}
