//! A transaction that is held up keeps its locks. Transactions that meet these locks wait and do not fail; in virtual time.
//!
//! The simulator runs one transaction that pauses for 150 ms behind its lock, and twenty writers of the same row. The test
//! fails if a writer has not committed after ten virtual seconds, or if copies differ or a lock is left at the end.
//!
//! *Not here*: locks of nodes that die (`tests/killed.rs`), rows that are reserved (`tests/server/reservations.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gannet::{Abort, ClusterOptions, Coordinator, LockMode, Outcome, WorkerId};
use gannet_benchmarks::check_replicas;
use gannet_engine::simulation::Simulation;

/// How long the locks are held.
const HELD_UP: Duration = Duration::from_millis(150);
const WRITERS: usize = 20;
/// Upper bound for the duration of a run.
const END_NS: u64 = 10_000_000_000;

#[test]
fn transactions_outwait_the_locks_of_a_delayed_one() {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let mut simulation = Simulation::open(options, 1, Vec::new(), None).unwrap();
    let table = simulation.cluster().create_table("t", 8, 10).unwrap();
    let mut loader = simulation.cluster().loader();
    loader.add(table, 1, &[0; 8]).unwrap();
    loader.finish().unwrap();
    let held_up = move |coordinator: &mut Coordinator<'_>| {
        let tx = coordinator.begin();
        tx.add_to_write_set(table, 1, LockMode::Update);
        tx.execute().unwrap();
        coordinator.pause(HELD_UP);
    };
    let worker = |number: usize| WorkerId { node: number % 3, worker: 0 };
    let holder = simulation.cluster().spawn(worker(0), held_up).unwrap();
    simulation.run_until(1_000_000, &|| 0);
    let write = move |coordinator: &mut Coordinator<'_>| {
        coordinator.run(|tx| {
            let row = tx.add_to_write_set(table, 1, LockMode::Update);
            tx.execute()?;
            tx.value_mut(row)?[0] += 1;
            Ok::<_, Abort>(())
        })
    };
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| simulation.cluster().spawn(worker(number), write).unwrap())
        .collect();
    simulation.run_until(END_NS, &|| 0);
    let mut now = Context::from_waker(Waker::noop());
    assert_eq!(pin!(holder).poll(&mut now), Poll::Ready(Ok(())));
    for writer in writers {
        let outcome = pin!(writer).poll(&mut now);
        assert_eq!(outcome, Poll::Ready(Ok(Outcome::Committed(()))));
    }
    for check in check_replicas(simulation.cluster()) {
        assert!(check.passed, "{}: {}", check.name, check.detail);
    }
}
