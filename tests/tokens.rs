//! Transactions under tokens: each is applied once, whoever runs it, however often, and whatever becomes of its nodes.
//!
//! *Not here*: SQL and programs beside the cluster (`tests/server/tokens.rs`, `frontend/tests/session/tokens.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gannet::{
    Abort, Cluster, ClusterOptions, Coordinator, Deferred, Direction, Failure, KeyRange, LockMode,
    Misuse, Once, Outcome, TOKEN_RESULT_BYTES_MAX, TableId, Token, TokenOutcome, TokenRefusal,
    Tokens, Topology, Transaction, WorkerId,
};
use gannet_benchmarks::check_replicas;

/// Counters of the test that kills nodes, one for each client.
const CLIENTS: u64 = 4;
/// Longer than any token of the other tests lives.
const LONG: Duration = Duration::from_secs(3_600);

fn open(nodes: usize, token_ttl: Duration) -> (Cluster, Tokens, TableId) {
    let options = ClusterOptions {
        nodes,
        threads: 1,
        topology: Topology::ThreadPerWorker,
        memory_limit_bytes: Some(64 << 20),
        token_ttl,
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_table("counters", 8, 100).unwrap();
    let mut loader = cluster.loader();
    (0..100).for_each(|key| loader.add(table, key, &0_u64.to_le_bytes()).unwrap());
    loader.finish().unwrap();
    let tokens = cluster.open_tokens().unwrap();
    (cluster, tokens, table)
}

fn token(client: impl std::fmt::Display, sequence: u64) -> Token {
    Token::new(client.to_string(), sequence).unwrap()
}

/// Counts a row up, and returns its new value.
fn count(tx: &mut Transaction<'_>, table: TableId, key: u64) -> Result<Vec<u8>, Abort> {
    let row = tx.add_to_write_set(table, key, LockMode::Update);
    tx.execute()?;
    let after = u64::from_le_bytes(tx.value(row).unwrap().try_into().unwrap()) + 1;
    tx.put(row, &after.to_le_bytes())?;
    Ok(after.to_le_bytes().to_vec())
}

fn read(cluster: &Cluster, table: TableId, key: u64) -> u64 {
    let read = cluster.run(move |tx| {
        let value = tx.get(table, key)?.unwrap();
        Ok::<_, Abort>(u64::from_le_bytes(value.try_into().unwrap()))
    });
    read.unwrap().committed()
}

fn once(result: u64, is_repeated: bool) -> Outcome<Once, Abort> {
    Outcome::Committed(Once { result: result.to_le_bytes().to_vec(), is_repeated })
}

fn refused(refusal: TokenRefusal) -> Outcome<Once, Abort> {
    Outcome::Aborted(Abort::Misuse(Misuse::Token(refusal)))
}

#[test]
fn a_transaction_runs_once_under_its_token() {
    let (cluster, tokens, table) = open(3, LONG);
    let run = |sequence| {
        let token = token("teller", sequence);
        cluster.run_once(&tokens, &token, move |tx| count(tx, table, 7)).unwrap()
    };
    assert_eq!(run(1), once(1, false));
    assert_eq!(run(1), once(1, true));
    assert_eq!(run(5), once(2, false));
    assert_eq!(run(5), once(2, true));
    // Of each client only the latest number is remembered.
    assert_eq!(run(1), refused(TokenRefusal::Superseded));
    assert_eq!(run(4), refused(TokenRefusal::Superseded));
    let ask = |sequence| cluster.decide(&tokens, &token("teller", sequence)).unwrap().unwrap();
    assert_eq!(ask(5), TokenOutcome::Committed(2_u64.to_le_bytes().to_vec()));
    assert_eq!(ask(4), TokenOutcome::Superseded);
    assert_eq!(read(&cluster, table, 7), 2);
    // What fails leaves its token as it was.
    let failed = cluster.run_once(&tokens, &token("teller", 6), move |tx| {
        count(tx, table, 7)?;
        Err(Abort::Requested)
    });
    assert_eq!(failed.unwrap(), Outcome::Failed(Abort::Requested));
    let long = cluster.run_once(&tokens, &token("teller", 6), move |tx| {
        count(tx, table, 7)?;
        Ok::<_, Abort>(vec![0; TOKEN_RESULT_BYTES_MAX + 1])
    });
    assert_eq!(long.unwrap(), refused(TokenRefusal::ResultTooLong));
    assert_eq!(run(6), once(3, false));
    // The longest result, and none.
    for (sequence, bytes) in [(7, TOKEN_RESULT_BYTES_MAX), (8, 0)] {
        for is_repeated in [false, true] {
            let result = vec![sequence; bytes];
            let expected = Outcome::Committed(Once { result: result.clone(), is_repeated });
            let token = token("teller", u64::from(sequence));
            let run = cluster.run_once(&tokens, &token, move |_| Ok::<_, Abort>(result.clone()));
            assert_eq!(run.unwrap(), expected);
        }
    }
}

#[test]
fn of_two_runs_at_the_same_time_one_has_an_effect() {
    let (cluster, tokens, table) = open(3, LONG);
    let mut both_ran = 0;
    for round in 1..=500 {
        let runs = [0, 1].map(|node| {
            let (tokens, token) = (tokens.clone(), token("both", round));
            let job = move |coordinator: &mut Coordinator<'_>| {
                let mut runs = 0;
                let outcome = coordinator.run_once(&tokens, &token, |tx| {
                    runs += 1;
                    count(tx, table, 7)
                });
                (outcome, runs)
            };
            cluster.spawn(WorkerId { node, worker: 0 }, job).unwrap()
        });
        let [first, second] = runs.map(|run| run.wait().unwrap());
        both_ran += u64::from(first.1 > 0 && second.1 > 0);
        let expected = [once(round, false), once(round, true)];
        let outcomes = [first.0, second.0];
        let reversed = [&outcomes[1], &outcomes[0]];
        assert!(outcomes == expected || reversed == [&expected[0], &expected[1]], "{outcomes:?}");
    }
    assert_eq!(read(&cluster, table, 7), 500);
    println!("both closures ran in {both_ran} of 500 rounds");
}

#[test]
fn a_question_decides() {
    let (cluster, tokens, table) = open(3, LONG);
    let outcome = cluster.decide(&tokens, &token("nobody", 3)).unwrap().unwrap();
    assert_eq!(outcome, TokenOutcome::Aborted);
    // A transaction that has begun when the question comes.
    let at = WorkerId { node: 0, worker: 0 };
    let asked = tokens.clone();
    let ended = cluster.spawn(at, move |coordinator: &mut Coordinator<'_>| {
        let (mut deferred, own) = (Deferred::new(), token("asked", 1));
        let key = 7_u64.to_le_bytes().to_vec();
        assert_eq!(asked.read(&mut deferred, coordinator, &own), Ok(None));
        deferred.get_many(coordinator, table, std::slice::from_ref(&key)).unwrap();
        deferred.put(table, key, 99_u64.to_le_bytes().to_vec());
        asked.write(&mut deferred, coordinator, &own, b"done").unwrap();
        assert_eq!(asked.decide(coordinator, &own), Ok(TokenOutcome::Aborted));
        deferred.commit(coordinator)
    });
    let ended = ended.unwrap().wait().unwrap();
    assert!(ended.is_err_and(Abort::is_conflict), "{ended:?}");
    assert_eq!(read(&cluster, table, 7), 0);
    let again =
        cluster.run_once(&tokens, &token("asked", 1), move |tx| count(tx, table, 7)).unwrap();
    assert_eq!(again, refused(TokenRefusal::Aborted));
    let next =
        cluster.run_once(&tokens, &token("asked", 2), move |tx| count(tx, table, 7)).unwrap();
    assert_eq!(next, once(1, false));
}

#[test]
fn a_question_and_a_transaction_at_the_same_time_agree() {
    let (cluster, tokens, table) = open(3, LONG);
    let (mut committed, mut aborted) = (0, 0);
    for round in 1..=500 {
        let own = token("raced", round);
        let (of_run, of_question, asked) = (tokens.clone(), tokens.clone(), own.clone());
        let run = cluster.spawn(WorkerId { node: 0, worker: 0 }, move |coordinator| {
            coordinator.run_once(&of_run, &own, |tx| count(tx, table, 7))
        });
        let question = cluster.spawn(WorkerId { node: 1, worker: 0 }, move |coordinator| {
            // Now earlier, now later than the commit.
            coordinator.pause(Duration::from_micros(round % 40));
            of_question.decide(coordinator, &asked)
        });
        match (run.unwrap().wait().unwrap(), question.unwrap().wait().unwrap().unwrap()) {
            (Outcome::Committed(run), TokenOutcome::Committed(result)) => {
                assert_eq!(run, Once { result, is_repeated: false });
                committed += 1;
            }
            (outcome, TokenOutcome::Aborted) => {
                assert_eq!(outcome, refused(TokenRefusal::Aborted));
                aborted += 1;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(read(&cluster, table, 7), committed);
    }
    println!("{committed} committed, {aborted} aborted");
}

/// Number of rows in the table of tokens.
fn rows_of_tokens(cluster: &Cluster) -> usize {
    let table = cluster.table("idempotency tokens").unwrap();
    let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    let at = WorkerId { node: 0, worker: 0 };
    let scan = cluster.spawn(at, move |coordinator: &mut Coordinator<'_>| {
        let (mut deferred, mut rest, mut count) = (Deferred::new(), Some(all), 0);
        while let Some(range) = rest {
            let page = deferred.scan(coordinator, table, &range, Direction::Ascending, 100);
            let page = page.unwrap();
            count += page.rows.len();
            rest = page.rest;
        }
        count
    });
    scan.unwrap().wait().unwrap()
}

#[test]
fn old_tokens_go_and_young_ones_stay() {
    const OLD: u64 = 300;
    for (ttl, is_short) in [(Duration::from_millis(50), true), (LONG, false)] {
        let (cluster, tokens, table) = open(3, ttl);
        let run = |token: &Token| {
            let run = cluster.run_once(&tokens, token, move |tx| count(tx, table, 7));
            assert!(matches!(run.unwrap(), Outcome::Committed(_)));
        };
        (0..OLD).for_each(|client| run(&token(format_args!("old {client:03}"), 1)));
        std::thread::park_timeout(2 * ttl.min(Duration::from_millis(50)));
        // One in eight of them looks at up to 32 rows.
        (1..=OLD).for_each(|sequence| run(&token("young", sequence)));
        let left = rows_of_tokens(&cluster);
        if is_short {
            assert!(left <= 10, "{left} rows are left");
        } else {
            assert_eq!(left, 301);
        }
    }
}

/// Ends the clients, also when a check fails.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Counts a row up under each of a client's tokens, until it is over, and returns their number. The client takes the first answer for
/// lost, whatever it is, and runs each transaction again at another node until it knows that it is committed.
fn teller(
    (cluster, tokens, table): (&Cluster, &Tokens, TableId),
    client: u64,
    is_over: &AtomicBool,
    progress: &AtomicU64,
) -> u64 {
    let mut sequence = 0;
    while !is_over.load(Ordering::Relaxed) {
        sequence += 1;
        let submit = |node: u64| {
            let (tokens, token) = (tokens.clone(), token(client, sequence));
            cluster.spawn_near(u16::try_from(node % 4).unwrap(), move |coordinator| {
                coordinator.run_once(&tokens, &token, |tx| count(tx, table, client))
            })
        };
        let lost = submit(client + sequence).unwrap();
        for attempt in 1.. {
            // Whatever this says, only a committed transaction is one.
            let outcome = submit(client + sequence + attempt).unwrap().wait().unwrap();
            match outcome {
                Outcome::Committed(Once { result, .. }) => {
                    assert_eq!(result, sequence.to_le_bytes(), "client {client}");
                    break;
                }
                Outcome::Unknown => {}
                Outcome::Aborted(abort) => {
                    assert!(
                        abort == Abort::Failure(Failure::Revoked) || abort.is_conflict(),
                        "{abort:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        // The first run may still be under way, and must not count twice.
        drop(lost);
        progress.fetch_add(1, Ordering::Relaxed);
    }
    sequence
}

#[test]
fn transactions_of_killed_nodes_are_applied_once() {
    for round in 0..3 {
        let (cluster, tokens, table) = open(4, LONG);
        let (is_over, progress) = (&AtomicBool::new(false), &AtomicU64::new(0));
        let all = (&cluster, &tokens, table);
        let counts = std::thread::scope(|scope| {
            let start = |client| scope.spawn(move || teller(all, client, is_over, progress));
            let tellers: Vec<_> = (0..CLIENTS).map(start).collect();
            let over = Over(is_over);
            let await_progress = || {
                let before = progress.load(Ordering::Relaxed);
                while progress.load(Ordering::Relaxed) < before + 500 {
                    std::thread::yield_now();
                }
            };
            for node in [(round + 2) % 4, round] {
                await_progress();
                cluster.kill_node(node).unwrap();
            }
            await_progress();
            drop(over);
            tellers.into_iter().map(|teller| teller.join().unwrap()).collect::<Vec<u64>>()
        });
        for (client, count) in (0..).zip(&counts) {
            let last = cluster.decide(&tokens, &token(client, *count)).unwrap();
            assert_eq!(last, Ok(TokenOutcome::Committed(count.to_le_bytes().to_vec())));
            assert_eq!(read(&cluster, table, client), *count, "client {client}");
        }
        let checks = check_replicas(&cluster);
        assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    }
}
