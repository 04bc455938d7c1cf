//! A member that halts settles its open commits, whatever their stage, and answers every job; in virtual time.
//!
//! | removed | noticed by |
//! |---|---|
//! | a commit is settled by its id | a transaction is told committed that has logged nothing |
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use gannet::{
    Abort, ClusterOptions, Completion, Coordinator, Failure, LockMode, Lost, Outcome, TableId,
    WorkerId,
};
use gannet_engine::simulation::Simulation;
use gannet_engine::{Settled, Stage};
use gannet_storage::CommitRecord;

const KEYS: u64 = 100;
const NODE: WorkerId = WorkerId { node: 0, worker: 0 };

/// A cluster whose nodes have one coroutine each.
fn open() -> (Simulation, TableId) {
    let options = ClusterOptions {
        threads: 1,
        coroutines: 1,
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

/// The stages of the commits of node 0's only coroutine.
fn only_stages(simulation: &Simulation) -> [Stage; 2] {
    simulation.stages(0).next().unwrap()
}

/// Runs until the commits of node 0's only coroutine have reached certain stages.
fn run_to(simulation: &mut Simulation, is_there: impl Fn([Stage; 2]) -> bool) {
    while !is_there(only_stages(simulation)) {
        let next_ns = simulation.now_ns() + 1;
        assert!(next_ns < 10_000_000, "the stage never comes");
        simulation.run_until(next_ns, &|| 0);
    }
}

/// The result of an ended job.
fn told<T>(completion: Completion<T>) -> Result<T, Lost> {
    match pin!(completion).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(told) => told,
        Poll::Pending => panic!("the job was not answered"),
    }
}

fn key_of(coordinator: &Coordinator<'_>, node: u16, after: u64) -> u64 {
    (after..KEYS).find(|&key| coordinator.primary(key) == node).unwrap()
}

/// Reads a row, then deletes two rows of other nodes: every phase waits for an answer.
fn delete(coordinator: &mut Coordinator<'_>, table: TableId, from: u64) -> Result<(), Abort> {
    let keys = [key_of(coordinator, 1, from), key_of(coordinator, 2, from)];
    let read = key_of(coordinator, 1, from + 30);
    let tx = coordinator.begin();
    for key in keys {
        tx.add_to_write_set(table, key, LockMode::Delete);
    }
    tx.add_to_read_set(table, read);
    tx.commit()
}

/// Counters of node 0's transactions whose records are in a log slot.
fn logged(simulation: &Simulation) -> Vec<u64> {
    let nodes = 0..simulation.cluster().nodes().len();
    let records: Vec<_> = nodes.flat_map(|node| simulation.log_records(node)).collect();
    let ids = records.iter().map(|record| CommitRecord::parse(record).unwrap().id);
    ids.filter(|id| id.node == 0).map(|id| id.counter).collect()
}

fn a_jobs_answer_follows_from_the_stage_of_its_commit() {
    for (stage, expected) in [
        (Stage::Executing, Err(Abort::Failure(Failure::Halted))),
        (Stage::Validating, Err(Abort::Failure(Failure::Halted))),
        (Stage::Logging, Err(Abort::Failure(Failure::Unknown))),
        (Stage::Logged, Ok(())),
        (Stage::PrimariesSent, Ok(())),
    ] {
        let (mut simulation, table) = open();
        let job = move |coordinator: &mut Coordinator<'_>| {
            let first = delete(coordinator, table, 0);
            // Later transactions are refused at once, without a packet.
            let again = delete(coordinator, table, 20);
            let mut read = || coordinator.begin().get(table, 1).map(|value| value.is_some());
            (first, again, read(), read())
        };
        let completion = simulation.cluster().spawn(NODE, job).unwrap();
        // The last transaction's PRIMARY messages are piggybacked on the next one's requests.
        run_to(&mut simulation, |[decided, open]| open == stage || decided == stage);
        let packets = simulation.counters().packets;
        simulation.halt(0);
        let (first, again, read, once_more) = told(completion).unwrap();
        assert_eq!(first, expected, "{stage:?}");
        assert_eq!(
            (again, read),
            (Err(Abort::Failure(Failure::Halted)), Err(Abort::Failure(Failure::Halted))),
            "{stage:?}"
        );
        assert_eq!(once_more, Err(Abort::Failure(Failure::Halted)), "{stage:?}");
        let copies = logged(&simulation).len();
        match expected {
            Ok(()) => assert_eq!(copies, 3, "{stage:?}"),
            Err(Abort::Failure(Failure::Unknown)) => {
                assert!((1..=3).contains(&copies), "{stage:?}: {copies}")
            }
            Err(_) => assert_eq!(copies, 0, "{stage:?}"),
        }
        let settled = only_stages(&simulation);
        assert!(settled.iter().all(|stage| matches!(stage, Stage::Settled(_))), "{settled:?}");
        // Packets in flight arrive; node 0 sends nothing more.
        simulation.run_until(1_000_000_000, &|| 0);
        let more = simulation.counters().packets - packets;
        assert!(more <= 16, "{more} packets after the halt in {stage:?}");
    }
}

/// Two transactions. The first one's PRIMARY messages are piggybacked on the second one's requests when the node halts.
/// Returns their answers.
fn halted_between() -> (Result<(), Abort>, Result<(), Abort>) {
    let (mut simulation, table) = open();
    let results = Arc::new(Mutex::new(Vec::new()));
    let (results_inside, job) = (Arc::clone(&results), move |coordinator: &mut Coordinator<'_>| {
        [0, 20].map(|from| delete(coordinator, table, from))
    });
    let job = move |coordinator: &mut Coordinator<'_>| {
        results_inside.lock().unwrap().extend(job(coordinator));
    };
    let completion = simulation.cluster().spawn(NODE, job).unwrap();
    run_to(&mut simulation, |stages| stages == [Stage::PrimariesSent, Stage::Executing]);
    simulation.halt(0);
    assert_eq!(told(completion), Ok(()));
    assert_eq!(logged(&simulation), [1; 3], "the slots hold the first one's record");
    let results = results.lock().unwrap();
    (results[0], results[1])
}

fn an_unknown_commit_is_settled_so() {
    let (mut simulation, table) = open();
    let job = move |coordinator: &mut Coordinator<'_>| delete(coordinator, table, 0);
    let completion = simulation.cluster().spawn(NODE, job).unwrap();
    run_to(&mut simulation, |[_, open]| open == Stage::Logging);
    simulation.halt(0);
    assert_eq!(only_stages(&simulation)[1], Stage::Settled(Settled::Unknown));
    assert_eq!(told(completion).unwrap(), Err(Abort::Failure(Failure::Unknown)));
}

fn every_job_is_answered() {
    let (mut simulation, table) = open();
    let spawn = |job: fn(&mut Coordinator<'_>, TableId)| {
        simulation.cluster().spawn(NODE, move |coordinator| job(coordinator, table)).unwrap()
    };
    let asks_for_ever: fn(&mut Coordinator<'_>, TableId) = |coordinator, table| {
        while coordinator.run(|tx| tx.get(table, 1).map(|_| ())) != Outcome::Committed(()) {}
        loop {
            let _ = delete(coordinator, table, 0);
        }
    };
    let [running, waiting] = [spawn(asks_for_ever), spawn(asks_for_ever)];
    run_to(&mut simulation, |[_, open]| open == Stage::Logging);
    simulation.halt(0);
    assert_eq!(told(running), Err(Lost::Unfinished));
    assert_eq!(told(waiting), Err(Lost::NotBegun));
}

fn a_closures_outcome_may_be_unknown() {
    for (stage, expected) in [
        (Stage::Executing, Outcome::Aborted(Abort::Failure(Failure::Halted))),
        (Stage::Validating, Outcome::Aborted(Abort::Failure(Failure::Halted))),
        (Stage::Logging, Outcome::Unknown),
        (Stage::Logged, Outcome::Committed(7)),
    ] {
        let (mut simulation, table) = open();
        let job = move |coordinator: &mut Coordinator<'_>| {
            let (written, read) = (key_of(coordinator, 1, 0), key_of(coordinator, 2, 0));
            coordinator.run(|tx| {
                tx.add_to_write_set(table, written, LockMode::Delete);
                tx.get(table, read)?;
                Ok::<_, Abort>(7)
            })
        };
        let completion = simulation.cluster().spawn(NODE, job).unwrap();
        run_to(&mut simulation, |[_, open]| open == stage);
        simulation.halt(0);
        assert_eq!(told(completion).unwrap(), expected, "{stage:?}");
    }
}

// A single test, because a rule is removed in the whole process.
#[test]
fn a_member_that_halts_answers_every_job() {
    a_jobs_answer_follows_from_the_stage_of_its_commit();
    an_unknown_commit_is_settled_so();
    every_job_is_answered();
    a_closures_outcome_may_be_unknown();
    let by_id = (Ok(()), Err(Abort::Failure(Failure::Halted)));
    assert_eq!(halted_between(), by_id);
    #[cfg(feature = "mutants")]
    {
        let mutant = gannet_engine::rules::SETTLE_BY_ID.remove();
        let by_slot = halted_between();
        drop(mutant);
        assert_ne!(by_slot, by_id, "the jobs are told the same without SETTLE_BY_ID");
        println!("| SETTLE_BY_ID | {by_slot:?} |");
    }
}
