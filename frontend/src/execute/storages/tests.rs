//! However a definition ends, the engine's tables are those of the catalog.
//!
//! The cluster has three nodes in this process. Definitions succeed, fail, are rolled back, lose their session, or meet a
//! conflict at COMMIT. One test kills a node in whose name a table was created that is in no catalog. A test fails if the
//! engine's tables are not those of the catalog within 20 s, or if their number is not the expected one.
//!
//! *Not here*: tables that a killed node was to drop (`execute/unfinished/tests.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Cluster, ClusterOptions};
use pollster::block_on;

use super::NAME;
use crate::Database;
use crate::error::SqlError;
use crate::session::{Session, TransactionStatus};

/// Looks until the tables must be equal, and the time between two of them.
const LOOKS_MAX: usize = 2_000;
const LOOK: Duration = Duration::from_millis(10);

fn database() -> Arc<Database> {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    Database::open(Arc::new(Cluster::open(options).unwrap())).unwrap()
}

fn run(session: &mut Session, sql: &str) -> Result<(), SqlError> {
    block_on(session.execute(sql)).map(drop)
}

/// The numbers of the engine's tables for tables and indexes of SQL, and those that the catalog has.
fn storages(database: &Database) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let configuration = database.cluster.configuration();
    let is_storage = |name: &str| {
        name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
    };
    let of_engine = configuration.tables().filter(|(_, it)| is_storage(&it.definition.name));
    let of_catalog = database.catalog().storages().map(|table| table.number()).collect();
    (of_engine.map(|(number, _)| number).collect(), of_catalog)
}

/// Waits until the engine has the tables that the catalog has, and so many.
fn expect(database: &Database, count: usize, after: &str) {
    let is_so = || {
        let (of_engine, of_catalog) = storages(database);
        of_engine == of_catalog && of_engine.len() == count
    };
    let came = (0..LOOKS_MAX).any(|_| {
        let is_so = is_so();
        if !is_so {
            std::thread::park_timeout(LOOK);
        }
        is_so
    });
    assert!(came, "after {after}: {:?}, and {count} wanted", storages(database));
}

#[test]
fn every_definition_leaves_the_tables_of_the_catalog() {
    let database = database();
    let mut session = database.session("definer");
    for (sql, count) in [
        ("CREATE TABLE t (id INT PRIMARY KEY, u INT UNIQUE, v INT)", 2),
        ("INSERT INTO t SELECT i, i, i % 10 FROM generate_series(1, 5000) i", 2),
        ("CREATE INDEX i ON t (v)", 3),
        ("CREATE UNIQUE INDEX j ON t (v)", 3),
        ("CREATE TABLE t (id INT PRIMARY KEY)", 3),
        ("CREATE TABLE w (id INT, CONSTRAINT t_u_key UNIQUE (id))", 3),
        ("TRUNCATE t", 3),
        ("DROP INDEX i", 2),
        ("ALTER TABLE t DROP CONSTRAINT t_u_key", 1),
        ("CREATE TABLE w (id INT NOT NULL, v INT)", 2),
        ("INSERT INTO w VALUES (1, 1), (2, 1)", 2),
        ("CREATE INDEX k ON w (v)", 3),
        ("ALTER TABLE w ADD PRIMARY KEY (id)", 3),
        ("ALTER TABLE w ADD UNIQUE (v)", 3),
        ("BEGIN", 3),
        ("CREATE TABLE x (id INT PRIMARY KEY, u INT UNIQUE)", 5),
        ("ROLLBACK", 3),
        ("BEGIN", 3),
        ("TRUNCATE t, w", 6),
        ("ROLLBACK", 3),
        ("DROP TABLE t, w", 0),
    ] {
        // Some fail.
        let _ = run(&mut session, sql);
        if session.status() == TransactionStatus::Idle {
            expect(&database, count, sql);
        } else {
            // Others do not see the definition yet.
            assert_eq!(storages(&database).0.len(), count, "{sql}");
        }
    }
}

#[test]
fn a_block_leaves_what_it_has_committed() {
    let database = database();
    let mut session = database.session("definer");
    for sql in [
        "BEGIN",
        "CREATE TABLE a (id INT PRIMARY KEY)",
        "SAVEPOINT s",
        "CREATE TABLE b (id INT PRIMARY KEY, u INT UNIQUE)",
        "ROLLBACK TO s",
        "CREATE TABLE c (id INT PRIMARY KEY)",
        "DROP TABLE c",
        "TRUNCATE a",
        "COMMIT",
    ] {
        run(&mut session, sql).unwrap();
    }
    expect(&database, 1, "COMMIT");
    // A session that goes, and one whose COMMIT meets another's.
    let mut others = [(); 2].map(|()| database.session("other"));
    for other in &mut others {
        run(other, "BEGIN").unwrap();
        run(other, "CREATE TABLE d (id INT PRIMARY KEY)").unwrap();
    }
    let [gone, mut late] = others;
    drop(gone);
    run(&mut session, "CREATE TABLE d (id INT)").unwrap();
    assert_eq!(run(&mut late, "COMMIT").unwrap_err().code, "40001");
    expect(&database, 2, "two sessions");
}

#[test]
fn what_a_lost_node_has_created_is_dropped_unless_the_catalog_has_it() {
    let database = database();
    let mut session = database.session("definer");
    for number in 0..8 {
        run(&mut session, &format!("CREATE TABLE t{number} (id INT PRIMARY KEY)")).unwrap();
    }
    let lost = 1;
    let incarnation = database.cluster.configuration().members[lost].incarnation;
    let name = format!("{NAME}99999 {lost}.{incarnation}");
    database.cluster.create_ordered_table(&name, 0).unwrap();
    database.cluster.kill_node(lost).unwrap();
    expect(&database, 8, "the loss");
    for number in 0..8 {
        run(&mut session, &format!("INSERT INTO t{number} VALUES (1)")).unwrap();
    }
}
