//! Waits past `--wait-timeout`: a client learns what its statement waits for, and its session goes on. Statements work again by
//! themselves.
//!
//! *Not here*: other ends of a wait, in `silent.rs`; what may be answered without a majority, in `failures/majority.rs`.

use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::nodes::Plan;
use crate::process::Server;

/// Longest wait for what has to happen.
const PATIENCE_NS: u64 = 30_000_000_000;
/// A statement timeout ends a wait that nothing else ends, with another SQLSTATE. Threads of a busy machine stand still for less than
/// this lease.
const SETTINGS: [&str; 3] = ["--wait-timeout=1s", "--statement-timeout=30s", "--lease=1s"];
const COUNT: &str = "SELECT count(*) FROM town";

/// Three nodes and a table with rows at each.
fn cluster(name: &str, arguments: &[&str]) -> Vec<Server> {
    let plan = Plan::new(name);
    let arguments: Vec<_> = SETTINGS.iter().chain(arguments).copied().collect();
    let started: Vec<_> = (0..3).map(|node| plan.start(node, &arguments)).collect();
    let nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, n INTEGER)");
    nodes[0].query("INSERT INTO town SELECT n, 0 FROM generate_series(1, 60) n");
    nodes
}

/// The SQLSTATE and the message of a statement that fails.
async fn failure(client: &Client, statement: &str) -> (String, String) {
    let error = client.batch_execute(statement).await.expect_err(statement);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error}"));
    (error.code().code().to_owned(), error.message().to_owned())
}

/// Runs a statement at one client after the other until one of them answers.
async fn succeed(clients: &[&Client], statement: &str) {
    let clock = MonotonicClock::new();
    let until_ns = clock.now_ns() + PATIENCE_NS;
    for client in clients.iter().cycle() {
        let Err(error) = client.batch_execute(statement).await else { return };
        assert!(clock.now_ns() < until_ns, "{statement}: {error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn without_a_majority_statements_end_with_the_reason_until_it_is_back() {
    let nodes = cluster("waits-majority", &[]);
    Runtime::new().unwrap().block_on(async {
        let mut clients = Vec::new();
        for node in &nodes {
            clients.push(node.client().await);
        }
        let client = &clients[2];
        nodes[..2].iter().for_each(|node| node.signal("STOP"));
        // The first waits until the lease has been over for long; the second is refused.
        for _ in 0..2 {
            let (state, message) = failure(client, COUNT).await;
            assert_eq!(state, "57P03", "{message}");
            assert!(message.contains("this node has had no lease for "), "{message}");
        }
        // What needs no other node is answered, and the session is in no transaction that has failed.
        client.batch_execute("SHOW statement_timeout; BEGIN").await.unwrap();
        assert_eq!(failure(client, COUNT).await.0, "57P03");
        assert_eq!(failure(client, "SELECT 1").await.0, "25P02");
        client.batch_execute("ROLLBACK").await.unwrap();
        nodes[..2].iter().for_each(|node| node.signal("CONT"));
        // Those that were away may have removed a node when they came back.
        succeed(&clients.iter().collect::<Vec<_>>(), "UPDATE town SET n = n + 1").await;
    });
}

#[test]
fn a_wait_for_the_only_copies_names_their_partitions_and_their_node() {
    let nodes = cluster("waits-copies", &["--replicas=1"]);
    Runtime::new().unwrap().block_on(async {
        let client = nodes[0].client().await;
        nodes[2].signal("STOP");
        let (state, message) = failure(&client, COUNT).await;
        assert_eq!(state, "57P03", "{message}");
        assert!(message.starts_with("partitions "), "{message}");
        assert!(message.contains(" wait for node 2, which has not answered for "), "{message}");
        nodes[2].signal("CONT");
        succeed(&[&client], COUNT).await;
        succeed(&[&client], "UPDATE town SET n = n + 1").await;
    });
}
