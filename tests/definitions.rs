//! Definitions and statements of other parties: no statement runs on an outdated definition.
//!
//! A party plans with the catalog as it has last seen it. Here the parties are databases of one cluster. Like processes, they
//! share only the cluster's tables.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod definitions {
    mod builds;
    pub(crate) mod outdated;
}

use std::sync::atomic::{AtomicBool, Ordering};

use definitions::outdated::{DEFINITIONS, outdated, parties, row, run};
use gannet_frontend::{Session, SqlError, StatementResult, Value};
use pollster::block_on;

#[test]
fn a_definition_is_seen_at_every_node_at_once() {
    assert_eq!(outdated(), 0);
}

#[test]
fn an_error_of_an_old_definition_is_not_reported() {
    let parties = parties(2);
    let (mut definer, mut writer) = (parties[0].session("definer"), parties[1].session("writer"));
    run(&mut definer, "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)").unwrap();
    let insert = block_on(writer.prepare("INSERT INTO t VALUES ($1, NULL)", &[])).unwrap();
    // Afterwards every node has run it.
    for _ in 0..6 {
        let result = block_on(writer.execute_prepared(&insert, vec![Value::Integer(1)]));
        assert_eq!(result.unwrap_err().code, "23502");
    }
    run(&mut definer, "ALTER TABLE t ALTER COLUMN v DROP NOT NULL").unwrap();
    let result = block_on(writer.execute_prepared(&insert, vec![Value::Integer(1)])).unwrap();
    assert!(matches!(result, StatementResult::Done { tag, .. } if tag == "INSERT 0 1"));
}

#[test]
fn a_transaction_that_began_before_a_definition_conflicts() {
    let parties = parties(2);
    let (mut definer, mut writer) = (parties[0].session("definer"), parties[1].session("writer"));
    run(&mut definer, "CREATE TABLE t (id INT PRIMARY KEY)").unwrap();
    for sql in ["BEGIN", "INSERT INTO t VALUES (1)"] {
        run(&mut writer, sql).unwrap();
    }
    run(&mut definer, "ALTER TABLE t ADD COLUMN v INT DEFAULT 7").unwrap();
    assert_eq!(run(&mut writer, "COMMIT").unwrap_err().code, "40001");
    assert_eq!(row(&mut writer, "SELECT count(*) FROM t").unwrap(), [Value::Integer(0)]);
}

/// Runs a transaction until it does not conflict.
fn until_committed(
    session: &mut Session,
    mut transaction: impl FnMut(&mut Session) -> Result<(), SqlError>,
) {
    loop {
        match transaction(session) {
            Ok(()) => return,
            Err(error) => {
                assert_eq!(error.code, "40001", "{error:?}");
                run(session, "ROLLBACK").unwrap();
            }
        }
    }
}

#[test]
fn statements_see_the_definition_that_their_rows_belong_to() {
    let parties = parties(3);
    let mut definer = parties[0].session("definer");
    for sql in [
        "CREATE TABLE t (id INT PRIMARY KEY, v BIGINT)",
        "CREATE TABLE width (id INT PRIMARY KEY, n BIGINT)",
        "INSERT INTO t VALUES (1, 0)",
        "INSERT INTO width VALUES (1, 2)",
    ] {
        run(&mut definer, sql).unwrap();
    }
    let done = AtomicBool::new(false);
    let changed: i64 = std::thread::scope(|scope| {
        let clients: Vec<_> = parties[1..]
            .iter()
            .map(|party| {
                let (mut session, done) = (party.session("client"), &done);
                scope.spawn(move || {
                    let mut changed = 0;
                    while !done.load(Ordering::Relaxed) {
                        until_committed(&mut session, |session| {
                            let sql = "SELECT t.*, width.n FROM t, width";
                            let found = row(session, sql)?;
                            let width = i64::try_from(found.len()).unwrap() - 1;
                            assert_eq!(found.last(), Some(&Value::Integer(width)));
                            run(session, "UPDATE t SET v = v + 1 WHERE id = 1").map(|_| ())
                        });
                        changed += 1;
                    }
                    changed
                })
            })
            .collect();
        for number in 0..DEFINITIONS {
            until_committed(&mut definer, |definer| {
                run(definer, "BEGIN")?;
                run(definer, &format!("ALTER TABLE t ADD COLUMN c{number} INT"))?;
                run(definer, "UPDATE width SET n = n + 1")?;
                run(definer, "COMMIT").map(|_| ())
            });
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert_eq!(row(&mut definer, "SELECT v FROM t").unwrap(), [Value::Integer(changed)]);
}
