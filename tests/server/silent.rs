//! A silent node: clients that wait for it are answered in time, and abandoned statements undo or complete their work.
//!
//! The test stops one of three real processes by SIGSTOP, for less than its lease of a minute, so the others wait. The test
//! fails if a statement ends with another SQLSTATE than expected, if a lock is left, if a statement has changed a row though
//! its outcome is known to be an abort, or if a server does not stop while a statement waits.
//!
//! *Source*: `docs/protocol.md`, "Unknown outcomes". *Not here*: waits past `--wait-timeout` (`waits.rs`), nodes that are
//! silent for longer than a lease (`failures/pauses.rs`).

use std::time::Duration;

use tokio_postgres::{Client, NoTls};

use crate::nodes::Plan;
use crate::process::Server;

const ROWS: i32 = 40;

/// The SQLSTATE of a statement; None if it succeeds.
async fn state(client: &Client, statement: &str) -> Option<String> {
    let error = client.batch_execute(statement).await.err()?;
    let code = error.code().unwrap_or_else(|| panic!("{statement}: {error}"));
    Some(code.code().to_owned())
}

/// A row that can be read while a node is silent, or one that cannot.
async fn row(client: &Client, readable: bool) -> i32 {
    for id in 0..ROWS {
        let found = state(client, &format!("SELECT n FROM town WHERE id = {id}")).await;
        assert!(found.as_deref().is_none_or(|state| state == "57014"), "{found:?}");
        if found.is_none() == readable {
            return id;
        }
    }
    panic!("the nodes divide {ROWS} rows");
}

/// Runs SQL while the last node is silent. Returns the rows with an abandoned update, by outcome.
async fn while_silent(node: &Server) -> (i32, Vec<i32>) {
    let client = node.client().await;
    // Enough for statements that need no silent node.
    client.batch_execute("SET statement_timeout = '2s'").await.unwrap();
    let elsewhere = row(&client, false).await;
    let here = row(&client, true).await;
    let update = |id| format!("UPDATE town SET n = n + 1 WHERE id = {id}");
    assert_eq!(state(&client, &update(elsewhere)).await.as_deref(), Some("57014"));
    // The lock is granted, and the record waits for the silent node.
    assert_eq!(state(&client, &update(here)).await.as_deref(), Some("08007"));
    let mut unknown = vec![here];
    // In a transaction block, the connection continues as well.
    client.batch_execute("BEGIN").await.unwrap();
    assert_eq!(
        state(&client, &format!("SELECT n FROM town WHERE id = {elsewhere}")).await.as_deref(),
        Some("57014")
    );
    assert_eq!(state(&client, "SELECT 1").await.as_deref(), Some("25P02"));
    for id in (ROWS + here..).step_by(7) {
        client.batch_execute("ROLLBACK; BEGIN").await.unwrap();
        let inserted = format!("INSERT INTO town VALUES ({id}, 1)");
        let ended = match state(&client, &inserted).await {
            None => state(&client, "COMMIT").await,
            ended => ended,
        };
        if ended.as_deref() == Some("40001") {
            // Its bucket is the one that the abandoned update has locked.
            continue;
        }
        assert!(matches!(ended.as_deref(), Some("57014" | "08007")), "{ended:?}");
        if ended.as_deref() == Some("08007") {
            unknown.push(id);
        }
        break;
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    // Without a timeout, a cancel request ends the statement. A request that arrives before the statement correctly has no
    // effect.
    client.batch_execute("SET statement_timeout = 0").await.unwrap();
    let token = client.cancel_token();
    let waits = update(elsewhere);
    let mut statement = std::pin::pin!(state(&client, &waits));
    let ended = loop {
        tokio::select! {
            ended = &mut statement => break ended,
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                token.cancel_query(NoTls).await.unwrap();
            }
        }
    };
    assert_eq!(ended.as_deref(), Some("57014"));
    (elsewhere, unknown)
}

#[test]
fn clients_that_wait_for_a_silent_node_are_answered_in_time() {
    let plan = Plan::new("nodes-silent");
    let started: Vec<_> = (0..3)
        .map(|node| plan.start(node, &["--shutdown-timeout", "200ms", "--lease", "1m"]))
        .collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, n INTEGER)");
    nodes[0]
        .query(&format!("INSERT INTO town SELECT n, 0 FROM generate_series(0, {}) n", ROWS - 1));
    nodes[2].signal("STOP");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (elsewhere, unknown) = runtime.block_on(while_silent(&nodes[0]));
    nodes[2].signal("CONT");
    // No lock is left, statements abandoned before logging have changed nothing, and the copies continue.
    for node in &nodes {
        node.query("UPDATE town SET n = n + 10");
    }
    let found =
        nodes[1].query(&format!("SELECT id, n FROM town WHERE n <> 30 OR id = {elsewhere}"));
    for line in found.lines() {
        let (id, n) = line.split_once('|').unwrap();
        let id: i32 = id.parse().unwrap();
        let is_changed =
            if id == elsewhere { n != "30" } else { n != "31" || !unknown.contains(&id) };
        assert!(!is_changed, "{id} is {n}; unknown {unknown:?}");
    }
    // A server whose statements wait for the silent node ends when it is stopped.
    nodes[2].signal("STOP");
    let again = || nodes[0].query("SELECT retransmitted FROM gannet_nodes WHERE node = 0");
    runtime.block_on(async {
        let client = nodes[0].client().await;
        let waits = format!("UPDATE town SET n = 0 WHERE id = {elsewhere}");
        let before = again();
        let stop = async {
            // The statement has begun when its request is sent again.
            while again() == before {
                tokio::task::yield_now().await;
            }
            nodes[0].signal("TERM");
        };
        let (ended, ()) = tokio::join!(state(&client, &waits), stop);
        assert_eq!(ended.as_deref(), Some("57014"));
    });
    assert_eq!(nodes[0].wait().code(), Some(0));
    nodes[2].signal("CONT");
}
