//! Limits for what statements and sessions keep, and results that exceed them.
//!
//! The sessions belong to one node in this process, and their limits are a few MiB. A test fails if more is kept without
//! the SQLSTATE of the limit, if rows that only pass through are refused, or if memory is not released. A result beyond
//! the limit must come row by row, and the spill directory must be empty afterwards.
//!
//! *Source*: `docs/sql.md`, "Limits".
//!
//! *Not here*: operators that use files (`tests/server/spilled.rs`), and large results of servers
//! (`tests/server/large.rs`).

use std::path::PathBuf;

use gannet_frontend::{MemoryLimits, Session, SqlError, Value};
use pollster::block_on;

use crate::{code, database_limited, database_within, ok, rows, run, texts};

#[test]
fn no_statement_keeps_more_than_its_budget() {
    let mut session = database_within(4 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (a INT PRIMARY KEY, b TEXT)");
    ok(&mut session, "INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 3000) i");
    let series = "generate_series(1, 10000000)";
    let mut others = Vec::new();
    for statement in [
        // Values.
        "SELECT repeat('x', 5000000)",
        "SELECT lpad('x', 5000000)",
        "SELECT rpad('x', 2500000, 'äö')",
        "SELECT concat(repeat('x', 3000000), repeat('y', 3000000))",
        "SELECT concat_ws(repeat('x', 100000), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
            20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44)",
        "SELECT repeat('x', 3000000) || repeat('y', 3000000)",
        "SELECT repeat('x', 1500000), repeat('x', 1500000), repeat('x', 1500000)",
        "SELECT replace(repeat('x', 100000), 'x', repeat('y', 100))",
        "SELECT regexp_replace(repeat('x', 100000), 'x', repeat('y', 100), 'g')",
        "SELECT regexp_replace(repeat('x', 500000), 'x*', '\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0')",
        "SELECT array_to_string(array_agg(i), repeat('y', 100000)) FROM generate_series(1, 1000) i",
        // Elements of arrays take many times as much as their texts.
        "SELECT cardinality(('{' || repeat('1,', 300000) || '1}')::INT[])",
        "SELECT count(*) FROM (SELECT unnest(('{' || repeat('1,', 300000) || '1}')::INT[])) AS q",
        // Rows and groups.
        &format!("SELECT * FROM {series}"),
        &format!("SELECT i FROM {series} i ORDER BY -i"),
        &format!("SELECT DISTINCT i FROM {series} i LIMIT 1 OFFSET 9000000"),
        &format!("SELECT i, count(*) FROM {series} i GROUP BY i"),
        &format!("SELECT string_agg('x', repeat('y', 1000)) FROM {series}"),
        &format!("SELECT array_agg(i) FROM {series} i"),
        &format!("SELECT count(DISTINCT i) FROM {series} i"),
        &format!("SELECT string_agg('x', '' ORDER BY -i) FROM {series} i"),
        &format!("SELECT count(*) FROM t JOIN {series} i ON a = i + 1 - 1"),
        &format!("SELECT count(*) FROM (SELECT i FROM {series} i UNION SELECT 1) AS u"),
        &format!("SELECT count(*) FROM (SELECT 1 EXCEPT SELECT i FROM {series} i) AS u"),
        &format!("SELECT 0 IN (SELECT i FROM {series} i)"),
        "SELECT x.a FROM t x CROSS JOIN t y ORDER BY y.b",
        // Reads of a transaction: keys that do not exist.
        &format!("SELECT count(t.a) FROM {series} i LEFT JOIN t ON t.a = i"),
        // Writes of a transaction.
        &format!("INSERT INTO t SELECT i + 10000, repeat('x', 100) FROM {series} i ON CONFLICT DO NOTHING"),
    ] {
        match run(&mut session, statement) {
            Err(error)
                if error.code == "53200"
                    && error.message.contains("4 MiB of --statement-memory") => {}
            other => others.push((statement.to_owned(), other.map(|_| ()))),
        }
    }
    assert!(others.is_empty(), "{others:#?}");
    // All memory was released, and rows that pass through are not charged.
    let counted = ok(
        &mut session,
        "SELECT count(*), sum(length(b)) FROM t CROSS JOIN generate_series(1, 300) i LIMIT 1",
    );
    assert_eq!(texts(counted), ["900000|6867900"]);
    let top = ok(&mut session, "SELECT i FROM generate_series(1, 300000) i ORDER BY -i LIMIT 2");
    assert_eq!(texts(top), ["300000", "299999"]);
}

#[test]
fn a_result_beyond_the_budget_is_taken_row_by_row() {
    let directory = tempfile::tempdir().unwrap();
    let limits = |spill: Option<PathBuf>| MemoryLimits {
        statement_bytes: 4 << 20,
        all_bytes: 64 << 20,
        spill,
        ..MemoryLimits::default()
    };
    let kept = database_limited(limits(Some(directory.path().to_owned())));
    let mut session = kept.session("tester");
    let select = "SELECT i, repeat('x', $1) FROM generate_series(1, 10000) i";
    let large = block_on(session.prepare(select, &[])).unwrap();
    let mut taken = block_on(session.query(&large, vec![Value::Integer(1_000)])).unwrap();
    assert_eq!((taken.columns().len(), taken.tag()), (2, "SELECT 10000"));
    let mut count = 0;
    while let Some(row) = block_on(taken.next()).unwrap() {
        count += 1;
        assert_eq!(row, [Value::Integer(count), Value::Text("x".repeat(1_000))]);
    }
    assert_eq!(count, 10_000);
    // A result that is not read to its end, and one that fits into memory.
    let mut taken = block_on(session.query(&large, vec![Value::Integer(1_000)])).unwrap();
    assert_eq!(block_on(taken.next()).unwrap().unwrap()[0], Value::Integer(1));
    let mut taken = block_on(session.query(&large, vec![Value::Integer(1)])).unwrap();
    assert_eq!(block_on(taken.next()).unwrap().unwrap()[1], Value::Text("x".to_owned()));
    // Statements without rows, and statements inside a transaction.
    for (statement, tag, count) in [
        ("CREATE TABLE t (a INT PRIMARY KEY)", "CREATE TABLE", 0),
        (
            "INSERT INTO t SELECT i FROM generate_series(1, 6000) i RETURNING a, repeat('x', 1000)",
            "INSERT 0 6000",
            6_000,
        ),
        ("BEGIN", "BEGIN", 0),
        (
            "DECLARE c SCROLL CURSOR FOR SELECT a, repeat('x', 1000) FROM t ORDER BY a",
            "DECLARE CURSOR",
            0,
        ),
        ("FETCH 5000 FROM c", "FETCH 5000", 5_000),
        ("FETCH BACKWARD 4999 FROM c", "FETCH 4999", 4_999),
        ("", "", 0),
    ] {
        let statement = block_on(session.prepare(statement, &[])).unwrap();
        let mut taken = block_on(session.query(&statement, Vec::new())).unwrap();
        assert_eq!(taken.tag(), tag);
        let mut found = 0;
        while block_on(taken.next()).unwrap().is_some() {
            found += 1;
        }
        assert_eq!(found, count, "{tag}");
    }
    // Results of FETCH must fit into memory.
    assert_eq!(rows(&mut session, "FETCH 2 FROM c").len(), 2);
    assert_eq!(code(&mut session, "FETCH 4500 FROM c"), "53200");
    ok(&mut session, "ROLLBACK");
    let copy = block_on(session.prepare("COPY t TO STDOUT", &[])).unwrap();
    assert_eq!(block_on(session.query(&copy, Vec::new())).map(|_| ()).unwrap_err().code, "42809");
    // All rows at once are refused; the error names the alternative.
    let refused = |session: &mut Session, setting: &str| {
        let all = block_on(session.execute_prepared(&large, vec![Value::Integer(1_000)]));
        let error = all.map(|_| ()).unwrap_err();
        assert!(error.code == "53200" && error.detail.unwrap().contains(setting));
    };
    refused(&mut session, "Session::query");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let mut session = database_limited(limits(None)).session("tester");
    refused(&mut session, "MemoryLimits::spill");
    let error =
        block_on(session.query(&large, vec![Value::Integer(1_000)])).map(|_| ()).unwrap_err();
    assert!(error.code == "53200" && error.detail.unwrap().contains("MemoryLimits::spill"));
    assert_eq!(rows(&mut session, "SELECT 1"), ["1"]);
}

#[test]
fn sessions_keep_bounded_memory() {
    let database = database_within(2 << 20, 64 << 20);
    let refused = |make: &dyn Fn(&mut Session, usize) -> Result<(), SqlError>| {
        let mut session = database.session("tester");
        ok(&mut session, "BEGIN");
        let error = (0..5_000).find_map(|number| make(&mut session, number).err());
        error.map(|error| error.code)
    };
    let long = "x".repeat(100_000);
    let executed = |session: &mut Session, sql: &str| run(session, sql).map(|_| ());
    let codes = [
        refused(&|session, n| executed(session, &format!("PREPARE p{n} AS SELECT '{long}'"))),
        refused(&|session, n| executed(session, &format!("SET my.s{n} = '{long}'"))),
        refused(&|session, n| executed(session, &format!("DECLARE c{n} CURSOR FOR SELECT 1"))),
        refused(&|session, n| executed(session, &format!("SAVEPOINT {}{n}", "x".repeat(1_000)))),
    ];
    assert_eq!(codes, ["53200", "54000", "53200", "53200"].map(Some));
    let mut session = database.session("tester");
    let select = format!("SELECT '{long}'");
    let mut kept = Vec::new();
    let error = (0..100).find_map(|_| match block_on(session.prepare(&select, &[])) {
        Ok(statement) => {
            kept.push(statement);
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(error.unwrap().code, "53200");
    drop(kept);
    block_on(session.prepare(&select, &[])).unwrap();
}

#[test]
fn all_rows_of_a_table_are_changed_at_once() {
    let mut session = database_within(32 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (a INT PRIMARY KEY, b INT, c TEXT)");
    ok(
        &mut session,
        "INSERT INTO t SELECT i, i % 7, 'name ' || i FROM generate_series(1, 50000) i",
    );
    ok(&mut session, "UPDATE t SET b = b + 1");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM t WHERE b = a % 7 + 1"), ["50000"]);
    ok(&mut session, "DELETE FROM t");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM t"), ["0"]);
    ok(
        &mut session,
        "INSERT INTO t SELECT i, 0, repeat('x', 300) FROM generate_series(1, 20000) i",
    );
    ok(
        &mut session,
        "INSERT INTO t SELECT i, 0, repeat('x', 300) FROM generate_series(20001, 40000) i",
    );
    let error = run(&mut session, "UPDATE t SET b = 1").unwrap_err();
    assert_eq!(error.code, "53200");
    assert!(error.hint.unwrap().contains("a range of the key per statement"));
}

#[test]
fn a_set_of_values_is_charged() {
    let mut session = database_within(4 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (a INT PRIMARY KEY, b TEXT)");
    ok(&mut session, "INSERT INTO t VALUES (1, 'x')");
    let query = "SELECT a FROM t WHERE b = ANY($1)";
    let statement = block_on(session.prepare(query, &[])).unwrap();
    for (members, fits) in [(1_000, true), (12_000, false)] {
        let members: Vec<String> =
            (0..members).map(|i| format!("{i}{}", "x".repeat(400))).collect();
        let array = Value::Text(format!("{{{}}}", members.join(",")));
        let result = block_on(session.execute_prepared(&statement, vec![array]));
        match result {
            Ok(_) => assert!(fits),
            Err(error) => assert!(!fits && error.code == "53200", "{error}"),
        }
    }
}

#[test]
fn reads_of_a_transaction_are_charged_until_its_end() {
    let mut session = database_within(2 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (a INT PRIMARY KEY)");
    ok(&mut session, "BEGIN");
    let mut refused = None;
    for number in 0..100 {
        let (from, to) = (number * 1_000, number * 1_000 + 999);
        let absent = format!(
            "SELECT count(t.a) FROM generate_series({from}, {to}) i LEFT JOIN t ON t.a = i"
        );
        if let Err(error) = run(&mut session, &absent) {
            refused = Some((number, error));
            break;
        }
    }
    let (number, error) = refused.expect("100,000 absent keys take more than 2 MiB");
    assert!(number > 3 && error.code == "53200", "after {number}: {error}");
    ok(&mut session, "ROLLBACK");
    ok(&mut session, "SELECT count(t.a) FROM generate_series(1, 1000) i LEFT JOIN t ON t.a = i");
}

#[test]
fn all_sessions_share_a_budget() {
    let database = database_within(6 << 20, 8 << 20);
    let (mut one, mut two) = (database.session("one"), database.session("two"));
    let large = "SELECT repeat('x', 1200) FROM generate_series(1, 4000)";
    ok(&mut one, large);
    // The session keeps its first result until its next statement.
    let error = run(&mut two, large).map(|_| ()).expect_err("both do not fit");
    assert_eq!(error.code, "53200");
    assert!(error.message.contains("8 MiB of --query-memory"), "{error}");
    ok(&mut one, "SELECT 1");
    ok(&mut two, large);
    drop(two);
    ok(&mut one, large);
}
