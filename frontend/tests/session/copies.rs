//! COPY into tables that nobody else knows, whose batches the workers of a node share.

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, TransactionStatus};
use pollster::block_on;

use crate::{code, ok, rows};

const ROWS: i64 = 50_000;

/// A session of a cluster whose nodes have several workers.
fn session() -> Session {
    let options = ClusterOptions {
        threads: 2,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    let database = Database::open(cluster.into()).expect("SQL opens on a fresh cluster");
    database.session("tester")
}

/// Begins a transaction with a table for a COPY.
fn begin(session: &mut Session, columns: &str) {
    ok(session, "BEGIN");
    ok(session, &format!("CREATE TABLE t ({columns})"));
    ok(session, "COPY t FROM STDIN");
}

fn data(line: impl Fn(i64) -> String) -> Vec<u8> {
    (1..=ROWS).map(line).collect::<String>().into_bytes()
}

/// Sends data in pieces; the error of the COPY.
fn copy(session: &mut Session, data: &[u8]) -> Result<String, &'static str> {
    for chunk in data.chunks(10_000) {
        block_on(session.copy_in(chunk)).map_err(|error| error.code)?;
    }
    block_on(session.copy_end(None)).map_err(|error| error.code)
}

#[test]
fn all_rows_of_a_copy_are_there_once() {
    let mut session = session();
    for columns in ["id INT PRIMARY KEY, n INT", "id INT, n INT", "id INT, n INT UNIQUE"] {
        begin(&mut session, columns);
        assert_eq!(
            copy(&mut session, &data(|id| format!("{id}\t{}\n", 2 * id))),
            Ok(format!("COPY {ROWS}"))
        );
        let sums = "SELECT count(*), count(DISTINCT id), sum(id), sum(n), max(n) FROM t";
        let sum = ROWS * (ROWS + 1) / 2;
        let expected = format!("{ROWS}|{ROWS}|{sum}|{}|{}", 2 * sum, 2 * ROWS);
        assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
        ok(&mut session, "COMMIT");
        assert_eq!(rows(&mut session, sums), [&*expected], "{columns}");
        ok(&mut session, "DROP TABLE t");
    }
}

#[test]
fn an_error_of_a_copy_leaves_nothing() {
    let mut session = session();
    let all_twice = |id: i64| format!("{}\t1\n", id % (ROWS - 10));
    let one_is_negative = |id: i64| format!("{id}\t{}\n", if id == ROWS - 3 { -1 } else { 1 });
    let one_is_malformed = |id: i64| format!("{id}\t{}\n", if id == ROWS - 3 { "x" } else { "1" });
    let malformed_soon = |id: i64| match id {
        7_000 => "7000\t-1\n".to_owned(),
        13_000 => "x".to_owned(),
        id => format!("{id}\t1\n"),
    };
    let neither = |id: i64| format!("{id}\t1\n");
    let errors = [
        (data(all_twice), Err("23505")),
        (data(one_is_negative), Err("23514")),
        (data(one_is_malformed), Err("22P02")),
        // The error of rows that are being inserted, and not of those that are read meanwhile.
        (data(malformed_soon), Err("23514")),
        (data(neither), Ok(format!("COPY {ROWS}"))),
    ];
    for (data, expected) in errors {
        begin(&mut session, "id INT PRIMARY KEY, n INT CHECK (n > 0)");
        assert_eq!(copy(&mut session, &data), expected);
        if expected.is_err() {
            assert_eq!(code(&mut session, "SELECT 1"), "25P02");
        }
        ok(&mut session, "ROLLBACK");
        assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
    }
    // The client gives up while workers insert.
    begin(&mut session, "id INT");
    block_on(session.copy_in(&data(|id| format!("{id}\n")))).expect("no error");
    let abandoned = block_on(session.copy_end(Some("enough".to_owned()))).unwrap_err();
    assert_eq!(abandoned.code, "57014");
    ok(&mut session, "ROLLBACK");
    assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
    // The program forgets to end the COPY.
    begin(&mut session, "id INT");
    block_on(session.copy_in(&data(|id| format!("{id}\n")))).expect("no error");
    assert_eq!(code(&mut session, "SELECT 1"), "25P02");
    assert_eq!(session.status(), TransactionStatus::Failed);
    ok(&mut session, "COMMIT");
    assert_eq!(code(&mut session, "SELECT * FROM t"), "42P01");
}

#[test]
fn no_rows_are_reported_that_a_transaction_takes_back() {
    let mut session = session();
    ok(&mut session, "CREATE TABLE t (id INT)");
    for is_inside in [false, true] {
        if is_inside {
            ok(&mut session, "BEGIN");
        }
        ok(&mut session, "COPY t FROM STDIN");
        let rows =
            (1..=2_500).map(|id| if id == 2_400 { "x\n".to_owned() } else { format!("{id}\n") });
        let data = rows.collect::<String>();
        let error =
            data.as_bytes().chunks(1_000).find_map(|chunk| block_on(session.copy_in(chunk)).err());
        let error = error.expect("a row is malformed");
        assert_eq!((error.code, error.hint.is_none()), ("22P02", is_inside), "{error:?}");
        if is_inside {
            ok(&mut session, "ROLLBACK");
        }
    }
}
