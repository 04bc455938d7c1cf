//! Ranges of many pages, which another worker reads ahead.
//!
//! The cluster has three nodes with two workers each, in this process; ranges have 30,000 rows or more. A test fails if a row
//! is missing, there twice or out of order, if a transaction misses its own changes, or if what was read takes more than 4
//! MiB. COMMIT must end with 40001 if a row of any page has changed. No test here checks that a helper has read a page.
//!
//! *Not here*: whether the helper or the statement takes a page (the unit test in `frontend/src/execute/read_ahead.rs`).

use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, MemoryLimits, Session};

use crate::{code, ok, rows};

/// Many times as many as a page has.
const ROWS: usize = 30_000;

fn empty_database(limits: MemoryLimits) -> Arc<Database> {
    let options = ClusterOptions {
        threads: 2,
        memory_limit_bytes: Some(256 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    Database::open_within(cluster.into(), limits).expect("SQL opens on a fresh cluster")
}

/// A database whose nodes have several workers, with a table.
fn database() -> Arc<Database> {
    let database = empty_database(MemoryLimits::default());
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT, text TEXT)");
    ok(&mut session, "CREATE INDEX ON t (n)");
    ok(
        &mut session,
        &format!("INSERT INTO t SELECT id, -id, 'of ' || id FROM generate_series(1, {ROWS}) id"),
    );
    ok(&mut session, "CREATE TABLE other (id INT PRIMARY KEY)");
    database
}

fn of(ids: impl Iterator<Item = usize>) -> Vec<String> {
    ids.map(|id| format!("{id}|of {id}")).collect()
}

#[test]
fn rows_come_once_and_in_order() {
    let mut session = database().session("tester");
    let mut found = |rest: &str| rows(&mut session, &format!("SELECT id, text FROM t {rest}"));
    assert_eq!(found("ORDER BY id"), of(1..=ROWS));
    assert_eq!(found("ORDER BY id DESC"), of((1..=ROWS).rev()));
    assert_eq!(found("ORDER BY n"), of((1..=ROWS).rev()));
    assert_eq!(found("WHERE id > 7 ORDER BY id LIMIT 20000"), of(8..=20_007));
    assert_eq!(found("WHERE n < -9 ORDER BY n DESC"), of(10..=ROWS));
}

#[test]
fn a_change_of_a_page_that_was_read_ahead_is_a_conflict() {
    let database = database();
    let mut reader: Session = database.session("reader");
    let mut writer = database.session("writer");
    for (number, changed) in [1, 3_000, 6_000, 9_000, 15_000, 24_000, ROWS].iter().enumerate() {
        for order in ["id", "id DESC"] {
            ok(&mut reader, "BEGIN");
            let read = rows(&mut reader, &format!("SELECT id FROM t ORDER BY {order}"));
            assert_eq!(read.len(), ROWS);
            ok(&mut writer, &format!("UPDATE t SET text = text || '!' WHERE id = {changed}"));
            ok(&mut reader, &format!("INSERT INTO other VALUES ({number})"));
            assert_eq!(code(&mut reader, "COMMIT"), "40001", "{changed} by {order}");
        }
    }
    // A row that nobody has read changes.
    ok(&mut reader, "BEGIN");
    assert_eq!(rows(&mut reader, "SELECT id FROM t WHERE id > 9 ORDER BY id").len(), ROWS - 9);
    ok(&mut writer, "UPDATE t SET text = '' WHERE id = 5");
    ok(&mut reader, "INSERT INTO other VALUES (-1)");
    ok(&mut reader, "COMMIT");
}

#[test]
fn a_transaction_sees_its_own_changes_in_every_page() {
    let mut session = database().session("tester");
    ok(&mut session, "BEGIN");
    ok(&mut session, "DELETE FROM t WHERE id IN (2, 20000)");
    ok(&mut session, "UPDATE t SET text = 'new' WHERE id IN (3, 12000, 29000)");
    ok(&mut session, "INSERT INTO t VALUES (0, 0, 'first'), (30001, -30001, 'last')");
    let expected = (0..=ROWS + 1).filter(|id| ![2, 20_000].contains(id)).map(|id| match id {
        0 => "0|first".to_owned(),
        30_001 => "30001|last".to_owned(),
        3 | 12_000 | 29_000 => format!("{id}|new"),
        id => format!("{id}|of {id}"),
    });
    let found = rows(&mut session, "SELECT id, text FROM t ORDER BY id");
    assert_eq!(found, expected.collect::<Vec<_>>());
    ok(&mut session, "COMMIT");
}

/// A transaction that has read very many rows remembers their buckets, also when the rows were read ahead.
#[test]
fn pages_that_were_read_ahead_take_little_memory() {
    let limits = MemoryLimits { statement_bytes: 4 << 20, ..MemoryLimits::default() };
    let mut session = empty_database(limits).session("tester");
    let count = 300_000;
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY)");
    ok(&mut session, &format!("INSERT INTO t SELECT * FROM generate_series(1, {count})"));
    ok(&mut session, "BEGIN");
    let sum = "SELECT sum(id) FROM (SELECT id FROM t ORDER BY id OFFSET 1) q";
    assert_eq!(rows(&mut session, sum), [(count * (count + 1_i64) / 2 - 1).to_string()]);
    ok(&mut session, "COMMIT");
}
