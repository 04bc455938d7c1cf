//! Builds in batches: indexes and primary keys of tables whose rows others change meanwhile, and COPY
//! into a table that its transaction has just created.
//!
//! Threads change rows, or cancel, while a session of the same cluster builds. A test fails if an index
//! and its table differ, if a failed build leaves its name or freezes the table, if a build undoes
//! another definition, or if others see a COPY before COMMIT.
//!
//! *Not here*: changes between two pages (`frontend/src/execute/online/tests.rs`), nodes that are killed during a build
//! (`frontend/src/execute/unfinished/tests.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, StatementResult, Value};
use pollster::block_on;

use super::outdated::{row, run};

/// Rows of a table, in several batches.
const ROWS: i64 = 20_000;

fn database() -> Arc<Database> {
    let options = ClusterOptions { memory_limit_bytes: Some(512 << 20), ..Default::default() };
    Database::open(Arc::new(Cluster::open(options).unwrap())).unwrap()
}

fn numbers(session: &mut Session, sql: &str) -> Vec<i64> {
    let number = |value: &Value| match value {
        Value::Integer(number) => *number,
        other => panic!("{other:?}"),
    };
    row(session, sql).unwrap().iter().map(number).collect()
}

fn fill(session: &mut Session, rows: i64) {
    run(session, "CREATE TABLE t (id BIGINT, v BIGINT, w TEXT)").unwrap();
    for first in (0..rows).step_by(1_000) {
        let series = format!("generate_series({first}, {})", first + 999);
        let sql = format!("INSERT INTO t SELECT n, n, 'row ' || n FROM {series} AS s(n)");
        run(session, &sql).unwrap();
    }
}

/// Calls `change` with numbers from 1 on, on other threads, during `work`. `work` gets a function that tells the number of
/// calls.
fn meanwhile(
    database: &Arc<Database>,
    change: impl Fn(&mut Session, i64) + Sync,
    work: impl FnOnce(&dyn Fn() -> i64),
) {
    let (done, next) = (AtomicBool::new(false), AtomicI64::new(1));
    std::thread::scope(|scope| {
        let writers = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut session = database.session("writer");
                while !done.load(Ordering::Relaxed) {
                    change(&mut session, next.fetch_add(1, Ordering::Relaxed));
                }
            })
        });
        let begun = || next.load(Ordering::Relaxed) - 1;
        while begun() < 10 && !writers.iter().any(|writer| writer.is_finished()) {
            std::thread::yield_now();
        }
        work(&begun);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_index_is_built_while_rows_change() {
    let database = database();
    let mut session = database.session("definer");
    fill(&mut session, ROWS);
    run(&mut session, "ALTER TABLE t ADD PRIMARY KEY (id)").unwrap();
    let change = |session: &mut Session, number: i64| {
        let (id, new) = (number * 7_919 % ROWS, ROWS + number);
        let sql = match number % 3 {
            0 => format!("UPDATE t SET v = -v - 1 WHERE id = {id}"),
            1 => format!("DELETE FROM t WHERE id = {id}"),
            _ => format!("INSERT INTO t VALUES ({new}, {new}, 'new')"),
        };
        run(session, &sql).unwrap();
    };
    meanwhile(&database, change, |changes| {
        // Each build repeats until it has overlapped with changes.
        for (build, name) in [
            ("CREATE INDEX by_v ON t (v)", "DROP INDEX by_v"),
            (
                "ALTER TABLE t ADD CONSTRAINT one_v UNIQUE (v)",
                "ALTER TABLE t DROP CONSTRAINT one_v",
            ),
        ] {
            loop {
                let before = changes();
                run(&mut session, build).unwrap();
                if changes() > before + 10 {
                    break;
                }
                run(&mut session, name).unwrap();
            }
        }
    });
    // The same rows through the whole table, and through ranges of either index.
    let whole = numbers(&mut session, "SELECT count(*), sum(v)::bigint, sum(id)::bigint FROM t");
    for index in ["by_v", "one_v"] {
        let sql = "SELECT count(*), sum(v)::bigint, sum(id)::bigint FROM t WHERE v >= -10000000";
        assert_eq!(numbers(&mut session, sql), whole, "{index}");
        let plan = run(&mut session, &format!("EXPLAIN {sql}")).unwrap();
        assert!(format!("{plan:?}").contains(index), "{plan:?}");
        if index == "by_v" {
            run(&mut session, "DROP INDEX by_v").unwrap();
        }
    }
}

#[test]
fn a_unique_index_over_duplicates_is_withdrawn() {
    let database = database();
    let mut session = database.session("definer");
    fill(&mut session, ROWS);
    run(&mut session, "UPDATE t SET v = 3 WHERE id = 19500").unwrap();
    for sql in [
        "CREATE UNIQUE INDEX one_v ON t (v)",
        "ALTER TABLE t ADD CONSTRAINT one_v UNIQUE (v)",
        "ALTER TABLE t ADD CONSTRAINT one_v PRIMARY KEY (v)",
    ] {
        let error = run(&mut session, sql).unwrap_err();
        assert_eq!(
            (error.code, error.detail.as_deref()),
            ("23505", Some("Key (v)=(3) is duplicated."))
        );
        // The name is free again, and duplicates are allowed.
        run(&mut session, "INSERT INTO t VALUES (30000, 3, NULL)").unwrap();
        run(&mut session, "DELETE FROM t WHERE id = 30000").unwrap();
        assert_eq!(numbers(&mut session, "SELECT count(*) FROM t"), [ROWS]);
    }
    run(&mut session, "UPDATE t SET v = 19500 WHERE id = 19500").unwrap();
    run(&mut session, "CREATE UNIQUE INDEX one_v ON t (v)").unwrap();
    assert_eq!(run(&mut session, "INSERT INTO t VALUES (-1, 3, NULL)").unwrap_err().code, "23505");
}

#[test]
fn a_build_ends_when_its_table_goes_or_its_client_cancels() {
    let database = database();
    let mut session = database.session("definer");
    for sql in ["CREATE INDEX by_v ON t (v)", "ALTER TABLE t ADD PRIMARY KEY (id)"] {
        fill(&mut session, ROWS);
        let cancel = session.cancel_handle();
        // Repeated, because a statement clears the flag when it begins.
        meanwhile(
            &database,
            |_, _| cancel.cancel(),
            |_| {
                assert_eq!(run(&mut session, sql).unwrap_err().code, "57014");
            },
        );
        run(&mut session, "INSERT INTO t VALUES (-1, -1, 'not frozen')").unwrap();
        let mut dropper = database.session("dropper");
        std::thread::scope(|scope| {
            let build = scope.spawn(|| run(&mut session, sql));
            run(&mut dropper, "DROP TABLE t").unwrap();
            // Either the drop or the build comes first.
            if let Err(error) = build.join().unwrap() {
                assert!(["55006", "42P01"].contains(&error.code), "{error:?}");
            }
        });
    }
}

#[test]
fn rows_of_a_table_that_gets_a_primary_key_are_read_and_not_changed() {
    let database = database();
    let mut session = database.session("definer");
    let refused = AtomicI64::new(0);
    let change = |session: &mut Session, number: i64| {
        if number % 50 == 0 {
            assert_eq!(numbers(session, "SELECT count(*) FROM t WHERE v < 0"), [0]);
        } else if let Err(error) = run(session, "INSERT INTO t SELECT 1, 1, '' WHERE false") {
            assert_eq!(error.code, "55006", "{error:?}");
            refused.fetch_add(1, Ordering::Relaxed);
        }
    };
    // Repeated until a writer has met the frozen table.
    for round in 0.. {
        if round > 0 {
            run(&mut session, "DROP TABLE t").unwrap();
        }
        fill(&mut session, ROWS);
        meanwhile(&database, change, |_| {
            run(&mut session, "ALTER TABLE t ADD PRIMARY KEY (id)").unwrap();
        });
        if refused.load(Ordering::Relaxed) > 0 {
            break;
        }
        assert!(round < 50, "no writer met the frozen table");
    }
    assert_eq!(
        numbers(&mut session, "SELECT count(*), sum(v)::bigint FROM t"),
        [ROWS, ROWS * (ROWS - 1) / 2]
    );
    run(&mut session, "UPDATE t SET w = 'changed' WHERE id = 5").unwrap();
}

#[test]
fn a_primary_key_undoes_no_definition_of_others() {
    let database = database();
    let (mut session, mut other) = (database.session("definer"), database.session("other"));
    for _ in 0..30 {
        fill(&mut session, 1_000);
        let (done, mut columns) = (AtomicBool::new(false), 3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let built = run(&mut session, "ALTER TABLE t ADD PRIMARY KEY (id)");
                assert!(built.is_ok() || built.is_err_and(|error| error.code == "55006"));
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let sql = format!("ALTER TABLE t ADD COLUMN c{columns} INT");
                columns += usize::from(run(&mut other, &sql).is_ok());
            }
        });
        let found = row(&mut other, "SELECT * FROM t LIMIT 1").unwrap();
        assert_eq!(found.len(), columns, "a column has gone");
        run(&mut other, "DROP TABLE t").unwrap();
    }
}

/// Copies rows of `bytes` bytes each.
fn copy(session: &mut Session, rows: i64, bytes: usize) {
    let begun = run(session, "COPY t FROM STDIN").unwrap();
    assert!(matches!(begun, StatementResult::CopyIn { .. }));
    let filler = "x".repeat(bytes);
    for first in (0..rows).step_by(1_000) {
        let line = |number: i64| format!("{number}\t{number}\t{filler}\n");
        let chunk: String = (first..first + 1_000).map(line).collect();
        block_on(session.copy_in(chunk.as_bytes())).unwrap();
    }
    assert_eq!(block_on(session.copy_end(None)).unwrap(), format!("COPY {rows}"));
}

#[test]
fn copy_into_a_new_table_may_be_larger_than_a_transaction() {
    let database = database();
    let (mut session, mut other) = (database.session("definer"), database.session("other"));
    fill(&mut session, 1_000);
    for end in ["ROLLBACK", "COMMIT"] {
        for sql in ["BEGIN", "TRUNCATE t"] {
            run(&mut session, sql).unwrap();
        }
        // 80 MB in a transaction that may write 64 MiB.
        copy(&mut session, 8_000, 10_000);
        assert_eq!(numbers(&mut session, "SELECT count(*) FROM t"), [8_000]);
        assert_eq!(numbers(&mut other, "SELECT count(*) FROM t"), [1_000], "seen before {end}");
        run(&mut session, end).unwrap();
    }
    assert_eq!(numbers(&mut other, "SELECT count(*) FROM t"), [8_000]);
    run(&mut session, "ALTER TABLE t ADD PRIMARY KEY (id)").unwrap();
    assert_eq!(numbers(&mut other, "SELECT count(*), sum(id)::bigint FROM t"), [8_000, 31_996_000]);
}

#[test]
fn a_copy_after_a_savepoint_is_undone_with_it() {
    let database = database();
    let mut session = database.session("definer");
    for sql in [
        "BEGIN",
        "CREATE TABLE t (id BIGINT, v BIGINT, w TEXT)",
        "INSERT INTO t VALUES (-1, 0, '')",
    ] {
        run(&mut session, sql).unwrap();
    }
    copy(&mut session, 1_000, 10);
    run(&mut session, "SAVEPOINT s").unwrap();
    copy(&mut session, 1_000, 10);
    assert_eq!(numbers(&mut session, "SELECT count(*) FROM t"), [2_001]);
    for sql in ["ROLLBACK TO s", "COMMIT"] {
        run(&mut session, sql).unwrap();
    }
    assert_eq!(numbers(&mut session, "SELECT count(*) FROM t"), [1_001]);
}

#[test]
fn many_copies_at_a_time_all_get_through() {
    let database = database();
    run(&mut database.session("definer"), "CREATE TABLE t (id BIGINT, v BIGINT, w TEXT)").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| copy(&mut database.session("copier"), 5_000, 10));
        }
    });
    assert_eq!(numbers(&mut database.session("reader"), "SELECT count(*) FROM t"), [80_000]);
}
