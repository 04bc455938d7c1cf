//! Sessions whose process lives while a node of the process is killed.
//!
//! `Cluster::kill_node` stops one or two of three nodes in this process. A test fails if an open transaction that met the
//! loss commits, if a statement after the loss takes a second attempt, if a COPY loses a row or has a row twice, or if rows of a load that met
//! the loss are left.
//!
//! *Source*: `docs/sql.md`, "When a node is lost".
//!
//! *Not here*: processes that are killed (`tests/server/failures`), and nodes that build an index
//! (`frontend/src/execute/unfinished/tests.rs`).

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, StatementResult, TransactionStatus};
use pollster::block_on;

use crate::{code, ok, rows, run};

/// Rows of a COPY: many batches.
const ROWS: u64 = 50_000;
/// Statements that together come to all nodes.
const STATEMENTS: usize = 12;

fn open() -> (Arc<Cluster>, Arc<Database>) {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(256 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).expect("a small cluster opens"));
    let database = Database::open(Arc::clone(&cluster)).expect("SQL opens on a fresh cluster");
    (cluster, database)
}

#[test]
fn an_open_transaction_that_met_a_loss_ends_with_40001() {
    let (cluster, database) = open();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO item SELECT i, 0 FROM generate_series(1, 100) i");
    for (node, reads_after) in [(1, true), (0, false)] {
        ok(&mut session, "BEGIN");
        ok(&mut session, "UPDATE item SET n = n + 1");
        cluster.kill_node(node).expect("the others have copies of all rows");
        if reads_after {
            ok(&mut session, "SELECT n FROM item WHERE id = 7");
        }
        assert_eq!(code(&mut session, "COMMIT"), "40001");
        assert_eq!(session.status(), TransactionStatus::Idle);
        assert_eq!(rows(&mut session, "SELECT sum(n) FROM item"), ["0"]);
        // One that has begun, and read nothing yet, has met nothing.
        ok(&mut session, "BEGIN");
        ok(&mut session, "UPDATE item SET n = n + 1 WHERE id = 1");
        ok(&mut session, "ROLLBACK");
    }
    ok(&mut session, "UPDATE item SET n = n + 1");
    assert_eq!(rows(&mut session, "SELECT sum(n) FROM item"), ["100"]);
}

#[test]
fn statements_run_once_although_the_epoch_has_changed() {
    let (cluster, database) = open();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO item VALUES (1, 2)");
    let explain = "EXPLAIN ANALYZE SELECT n FROM item WHERE id = 1";
    for lost in [None, Some(1), Some(0)] {
        if let Some(node) = lost {
            cluster.kill_node(node).expect("the others have copies of all rows");
        }
        // What the session has seen of the catalog in the epoch before is not relied on.
        for _ in 0..STATEMENTS {
            let lines = rows(&mut session, explain);
            assert!(lines.iter().any(|line| line == "Attempts: 1"), "{lost:?}: {lines:?}");
        }
    }
}

#[test]
fn a_copy_goes_on_while_nodes_are_killed() {
    let (cluster, database) = open();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id SERIAL PRIMARY KEY, n BIGINT UNIQUE)");
    let result = ok(&mut session, "COPY item (n) FROM STDIN");
    assert!(matches!(result, StatementResult::CopyIn { .. }));
    let lines: Vec<String> = (0..ROWS).map(|n| format!("{n}\n")).collect();
    std::thread::scope(|scope| {
        for (part, lines) in lines.chunks(5_000).enumerate() {
            // Each dies while the next rows are copied.
            match part {
                2 => drop(scope.spawn(|| cluster.kill_node(1).expect("two copies are left"))),
                6 => drop(scope.spawn(|| cluster.kill_node(2).expect("a copy is left"))),
                _ => {}
            }
            block_on(session.copy_in(lines.concat().as_bytes())).expect("the COPY goes on");
        }
    });
    assert_eq!(block_on(session.copy_end(None)).expect("all is copied"), format!("COPY {ROWS}"));
    assert_eq!(cluster.configuration().epoch, 3);
    let sum = ROWS * (ROWS - 1) / 2;
    let found = rows(&mut session, "SELECT count(*), sum(n), count(DISTINCT id) FROM item");
    assert_eq!(found, [format!("{ROWS}|{sum}|{ROWS}")]);
    // The index has an entry for each row, and the serial goes on.
    assert_eq!(rows(&mut session, "SELECT count(*) FROM item WHERE n >= 0"), [ROWS.to_string()]);
    assert!(run(&mut session, &format!("INSERT INTO item (n) VALUES ({ROWS})")).is_ok());
}

/// Tables of the engine.
fn storages(cluster: &Cluster) -> usize {
    cluster.configuration().tables().count()
}

#[test]
fn a_copy_into_a_table_that_only_its_transaction_knows_fails_as_a_whole() {
    let (cluster, database) = open();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO item VALUES (-1, 0)");
    let (before, lines) = (storages(&cluster), (0..ROWS).map(|n| format!("{n}\t{n}\n")));
    let lines: Vec<String> = lines.collect();
    let copy = |session: &mut Session, loss: Option<usize>| {
        ok(session, "BEGIN");
        ok(session, "TRUNCATE item");
        ok(session, "COPY item FROM STDIN");
        for (part, lines) in lines.chunks(10_000).enumerate() {
            if part == 3
                && let Some(node) = loss
            {
                cluster.kill_node(node).expect("the others have copies of all rows");
            }
            block_on(session.copy_in(lines.concat().as_bytes())).map_err(|error| error.code)?;
        }
        block_on(session.copy_end(None)).map_err(|error| error.code)
    };
    assert_eq!(copy(&mut session, Some(1)), Err("40001"));
    ok(&mut session, "ROLLBACK");
    assert_eq!(rows(&mut session, "SELECT id FROM item"), ["-1"]);
    assert_eq!(copy(&mut session, None), Ok(format!("COPY {ROWS}")));
    ok(&mut session, "COMMIT");
    assert_eq!(
        rows(&mut session, "SELECT count(*), max(n) FROM item"),
        [format!("{ROWS}|{}", ROWS - 1)]
    );
    for _ in 0..10_000 {
        if storages(&cluster) == before {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    panic!("{} tables of the engine, {before} before", storages(&cluster));
}

#[test]
fn rows_that_can_be_read_again_are_loaded_again_after_a_loss() {
    let (cluster, database) = open();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT NOT NULL, n INT)");
    let insert = format!("INSERT INTO item SELECT i, i FROM generate_series(1, {ROWS}) i");
    for (node, statement) in [(1, &insert[..]), (2, "ALTER TABLE item ADD PRIMARY KEY (id)")] {
        std::thread::scope(|scope| {
            scope.spawn(|| cluster.kill_node(node).expect("a copy is left"));
            ok(&mut session, statement);
        });
    }
    assert_eq!(
        rows(&mut session, "SELECT count(*), sum(n) FROM item"),
        [format!("{ROWS}|{}", ROWS * (ROWS + 1) / 2)]
    );
    assert_eq!(code(&mut session, "INSERT INTO item VALUES (7, 7)"), "23505");
}
