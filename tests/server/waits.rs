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
/// It ends a wait that nothing else ends, with another SQLSTATE.
const STATEMENT_TIMEOUT: &str = "--statement-timeout=30s";
/// Threads of a busy machine stand still for less.
const LEASE: &str = "--lease=1s";
/// How long a statement waits for a silent node, and the same as an option.
const WAIT_NS: u64 = 1_000_000_000;
const WAIT: &str = "--wait-timeout=1s";
const COUNT: &str = "SELECT count(*) FROM town";

/// Three nodes and a table with rows at each.
fn cluster(name: &str, arguments: &[&str]) -> Vec<Server> {
    let plan = Plan::new(name);
    let arguments: Vec<_> = [STATEMENT_TIMEOUT].iter().chain(arguments).copied().collect();
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

/// Runs a statement that needs no other node for longer than a wait lasts, while others wait for the silent node.
async fn succeed_beside_waits(node: &Server) {
    let (client, waiting) = (node.client().await, node.client().await);
    let waits = async {
        loop {
            assert_eq!(failure(&waiting, COUNT).await.0, "57P03");
        }
    };
    let computes = async {
        let clock = MonotonicClock::new();
        let mut took_ns = 0;
        for doublings in 0.. {
            if took_ns >= 4 * WAIT_NS {
                break;
            }
            let began_ns = clock.now_ns();
            let rows = 1_000_u64 << doublings;
            let pairs = format!("generate_series(1, {rows}) a (i), generate_series(1, 1000) b (j)");
            client.batch_execute(&format!("SELECT sum(i + j) FROM {pairs}")).await.unwrap();
            took_ns = clock.now_ns() - began_ns;
        }
    };
    tokio::select! {
        () = computes => {}
        () = waits => {}
    }
}

#[test]
fn without_a_majority_statements_end_with_the_reason_until_it_is_back() {
    // No statement ends for want of an answer: the loss of the lease alone ends those that wait.
    let nodes = cluster("waits-majority", &[LEASE, "--wait-timeout=0s"]);
    Runtime::new().unwrap().block_on(async {
        let mut clients = Vec::new();
        for node in &nodes {
            clients.push(node.client().await);
        }
        let client = &clients[2];
        nodes[..2].iter().for_each(|node| node.signal("STOP"));
        // The first waits until the lease has been over for as long as a lease lasts; the second is refused.
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
    let nodes = cluster("waits-copies", &[LEASE, "--replicas=1", WAIT]);
    Runtime::new().unwrap().block_on(async {
        let client = nodes[0].client().await;
        nodes[2].signal("STOP");
        let (state, message) = failure(&client, COUNT).await;
        assert_eq!(state, "57P03", "{message}");
        assert!(message.starts_with("partitions "), "{message}");
        assert!(message.contains(" wait for node 2, which has not answered for "), "{message}");
        // Statements on the other nodes' rows are answered. One on a row of that node names the row's partition alone.
        let mut refused = None;
        for id in 1..=60 {
            let statement = format!("SELECT n FROM town WHERE id = {id}");
            if let Err(error) = client.batch_execute(&statement).await {
                refused = Some(error.as_db_error().expect("an answer").message().to_owned());
                break;
            }
        }
        let message = refused.expect("node 2 has rows");
        assert!(message.starts_with("partition "), "{message}");
        assert!(message.contains(" waits for node 2, which has not answered for "), "{message}");
        succeed_beside_waits(&nodes[0]).await;
        nodes[2].signal("CONT");
        succeed(&[&client], COUNT).await;
        succeed(&[&client], "UPDATE town SET n = n + 1").await;
    });
}

/// Of all rows, how many a node answers while the others stand still. Nobody loses a lease meanwhile.
async fn answered_alone(name: &str, arguments: &[&str]) -> usize {
    let nodes = cluster(name, &[&["--lease=60s"], arguments].concat());
    let mut clients = Vec::new();
    for _ in 0..12 {
        let client = nodes[2].client().await;
        // The node knows the definitions from then on.
        client.batch_execute(COUNT).await.unwrap();
        client.batch_execute("SET statement_timeout = '300ms'").await.unwrap();
        clients.push(client);
    }
    nodes[..2].iter().for_each(|node| node.signal("STOP"));
    let reads = (1..).zip(&clients).map(async |(first, client)| {
        let mut answered = 0;
        for id in (first..=60).step_by(12) {
            let read = client.batch_execute(&format!("SELECT n FROM town WHERE id = {id}")).await;
            match read {
                Ok(()) => answered += 1,
                Err(error) => assert_eq!(error.code().unwrap().code(), "57014", "{error}"),
            }
        }
        answered
    });
    let answered = futures_util::future::join_all(reads).await.into_iter().sum();
    nodes[..2].iter().for_each(|node| node.signal("CONT"));
    succeed(&[&clients[0]], "SET statement_timeout = '30s'").await;
    succeed(&[&clients[0]], COUNT).await;
    answered
}

#[test]
fn a_confirmed_read_waits_for_a_majority_however_long_the_lease_is() {
    Runtime::new().unwrap().block_on(async {
        assert!(answered_alone("waits-lease", &[]).await > 0, "the node has rows, and a lease");
        assert_eq!(answered_alone("waits-confirmed", &["--confirm-reads"]).await, 0);
    });
}
