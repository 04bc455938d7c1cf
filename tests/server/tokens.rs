//! Transactions under idempotency tokens whose node is killed: run again at another node, they are applied once.
//!
//! *Not here*: tokens in one process (`tests/tokens.rs`), and what sessions answer (`frontend/tests/session/tokens.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use gannet::{
    Abort, Client, ClientError, ClientOptions, ClusterKey, Once, Outcome, RemoteTransaction,
    TableId, Token, TokenOutcome,
};

use crate::nodes::{Plan, free_address, write_key};
use crate::process::Server;

/// Programs, each with a row of its own.
const PROGRAMS: u64 = 3;
/// Transactions of each before a node is killed, and after.
const TRANSACTIONS: u64 = 150;

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Counts a row up, and returns its new value.
fn count(tx: &mut RemoteTransaction<'_>, table: TableId, key: u64) -> Result<Vec<u8>, Abort> {
    let after = number(tx.get(table, key)?) + 1;
    tx.put(table, key, &after.to_le_bytes())?;
    Ok(after.to_le_bytes().to_vec())
}

/// A program that is connected to all nodes.
fn connect(addresses: &[String], first: usize) -> Client {
    let of = |number: usize| addresses[(first + number) % addresses.len()].parse().unwrap();
    Client::connect(ClientOptions {
        addresses: (0..addresses.len()).map(of).collect(),
        key: Some(ClusterKey::new([0x55; 32])),
        timeout: Duration::from_secs(20),
    })
    .unwrap()
}

/// Counts a row up under tokens, each until it is known to be committed.
fn count_up(client: &Client, program: u64, done: &AtomicU64) {
    let totals = client.table("totals").unwrap();
    for sequence in 1..=2 * TRANSACTIONS {
        let token = Token::new(format!("program-{program}"), sequence).unwrap();
        loop {
            match client.run_once(&token, |tx| count(tx, totals, program)) {
                Ok(Outcome::Committed(Once { result, .. })) => {
                    assert_eq!(result, sequence.to_le_bytes(), "program {program}");
                    break;
                }
                Ok(Outcome::Aborted(abort)) if abort.is_conflict() => {}
                // The node was killed, or has not noticed yet that another one was.
                Err(
                    ClientError::Unknown(_)
                    | ClientError::Interrupted(_)
                    | ClientError::Unreachable(_),
                ) => {}
                other => panic!("program {program}: {other:?}"),
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_program_counts_once_across_the_death_of_its_node() {
    let plan = Plan::new("tokens-clients");
    let key = write_key(&plan.key.with_file_name("clients.key"), '5');
    let addresses = [free_address(), free_address(), free_address()];
    let start = |node: usize| {
        let (own, key) = (&addresses[node], key.to_str().unwrap());
        plan.start(node, &["--clients", own, "--clients-key", key, "--tables", "totals:8"])
    };
    let started: Vec<_> = (0..3).map(start).collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    let done = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let programs = (0..PROGRAMS).map(|program| {
            let client = connect(&addresses, usize::try_from(program).unwrap());
            scope.spawn(move || count_up(&client, program, done))
        });
        let programs: Vec<_> = programs.collect();
        // A program that fails ends early.
        while done.load(Ordering::Relaxed) < PROGRAMS * TRANSACTIONS
            && !programs.iter().any(ScopedJoinHandle::is_finished)
        {
            std::thread::yield_now();
        }
        nodes[0].signal("KILL");
        nodes[0].wait();
    });
    let client = connect(&addresses, 1);
    let totals = client.table("totals").unwrap();
    for program in 0..PROGRAMS {
        let found = client.run(|tx| tx.get(totals, program)).unwrap();
        assert_eq!(number(Outcome::<_, Abort>::committed(found)), 2 * TRANSACTIONS);
        let last = Token::new(format!("program-{program}"), 2 * TRANSACTIONS).unwrap();
        let result = (2 * TRANSACTIONS).to_le_bytes().to_vec();
        assert_eq!(client.outcome(&last).unwrap(), TokenOutcome::Committed(result));
        let never = Token::new(format!("program-{program}"), 2 * TRANSACTIONS + 1).unwrap();
        assert_eq!(client.outcome(&never).unwrap(), TokenOutcome::Aborted);
        assert_eq!(client.outcome(&last).unwrap(), TokenOutcome::Superseded);
    }
}

/// Runs a transaction, in a session that may end, under a token; an error if it has to be run again.
async fn attempt(
    client: &tokio_postgres::Client,
    (session, sequence): (u32, u32),
) -> Result<(), tokio_postgres::Error> {
    let update = format!("UPDATE counted SET n = n + 1 WHERE id = {session}");
    let set = format!("SET gannet.idempotency_token = 'session-{session}:{sequence}'");
    client.batch_execute(&set).await?;
    // In turn a statement on its own and a transaction.
    if sequence.is_multiple_of(2) {
        assert_eq!(client.execute(&update, &[]).await?, 1);
        return Ok(());
    }
    client.batch_execute("BEGIN").await?;
    match client.execute(&update, &[]).await {
        // It has committed already.
        Err(error) if error.code().is_some_and(|code| code.code() == "25000") => {}
        Err(error) => return Err(error),
        Ok(rows) => assert_eq!(rows, 1),
    }
    client.batch_execute("COMMIT").await
}

/// Runs transactions of a session, which goes to another node when its node is gone.
async fn session_counts(nodes: &[tokio_postgres::Config; 3], session: u32, done: &AtomicU64) {
    let mut at = usize::try_from(session).unwrap();
    let mut client = None;
    for sequence in 1..=u32::try_from(2 * TRANSACTIONS).unwrap() {
        loop {
            let Some(connected) = &client else {
                at += 1;
                if let Ok((new, connection)) = nodes[at % 3].connect(tokio_postgres::NoTls).await {
                    tokio::spawn(connection);
                    client = Some(new);
                }
                continue;
            };
            match attempt(connected, (session, sequence)).await {
                Ok(()) => break,
                Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                    // It may be in a transaction that has failed.
                    if connected.batch_execute("ROLLBACK").await.is_err() {
                        client = None;
                    }
                }
                Err(error) => {
                    let code = error.code().map(|code| code.code().to_owned());
                    let is_known = matches!(code.as_deref(), None | Some("08007" | "57P03"));
                    assert!(is_known, "session {session}: {error:?}");
                    client = None;
                }
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_session_counts_once_across_the_death_of_its_node() {
    let plan = Plan::new("tokens-sessions");
    let started: Vec<_> = (0..3).map(|node| plan.start(node, &[])).collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    nodes[0].query(
        "CREATE TABLE counted (id INTEGER PRIMARY KEY, n INTEGER); \
         INSERT INTO counted VALUES (0, 0), (1, 0), (2, 0)",
    );
    let configs = [nodes[0].config(), nodes[1].config(), nodes[2].config()];
    let (configs, done) = (&configs, &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let sessions = (0..3).map(|session| {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(session_counts(configs, session, done));
            })
        });
        let sessions: Vec<_> = sessions.collect();
        while done.load(Ordering::Relaxed) < 3 * TRANSACTIONS
            && !sessions.iter().any(ScopedJoinHandle::is_finished)
        {
            std::thread::yield_now();
        }
        nodes[0].signal("KILL");
        nodes[0].wait();
    });
    let expected = format!("{0}|{0}|{0}", 2 * TRANSACTIONS);
    let rows = nodes[1].query("SELECT string_agg(n::text, '|' ORDER BY id) FROM counted");
    assert_eq!(rows, expected);
    let asked = format!("SELECT gannet_outcome('session-1:{}')", 2 * TRANSACTIONS);
    assert_eq!(nodes[2].query(&asked), "committed");
}
