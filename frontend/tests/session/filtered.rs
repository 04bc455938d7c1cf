//! Filters of whole tables and of wide ranges, which the primaries evaluate where few rows pass; aggregates of such ranges.
//!
//! The tables have 100,000 rows, on a cluster of three nodes in this process. A test fails if rows differ from those that
//! the test computes. Rows that primaries send must come in another order than that of the key, else the session has read
//! them. COMMIT must end with 40001 if a row that passes the filter was changed, inserted or deleted meanwhile.
//!
//! *Source*: `docs/sql.md`, "Filters", and `docs/sql.md`, "Aggregates".
//!
//! *Not here*: aggregates of whole tables (`slt/folds.slt`).

use std::sync::Arc;

use gannet_frontend::{Database, Session};

use crate::{code, database, database_within, ok, rows};

const ROWS: i64 = 100_000;

/// A table of rows `(id, n)` with ids from 1 and n = id % 50, and one of the same with long rows among them.
fn tables() -> (Arc<Database>, Session) {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    let series = format!("generate_series(1, {ROWS}) AS s (g)");
    ok(&mut session, &format!("INSERT INTO t SELECT g, g % 50 FROM {series}"));
    ok(&mut session, "CREATE TABLE doc (id INT PRIMARY KEY, body TEXT)");
    let body = "repeat(chr(65 + g % 26), CASE WHEN g % 40 = 0 THEN 20000 ELSE 20 END)";
    ok(
        &mut session,
        &format!("INSERT INTO doc SELECT g, {body} FROM generate_series(1, 800) AS s (g)"),
    );
    (database, session)
}

/// The numbers of a query's only column.
fn numbers(session: &mut Session, sql: &str) -> Vec<i64> {
    rows(session, sql).iter().map(|row| row.parse().expect("a number")).collect()
}

fn sorted(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.sort_unstable();
    numbers
}

fn ids_with(passes: impl Fn(&i64) -> bool) -> Vec<i64> {
    (1..=ROWS).filter(passes).collect()
}

#[test]
fn rows_that_pass_come_from_the_primaries() {
    let (_database, mut session) = tables();
    let few = numbers(&mut session, "SELECT id FROM t WHERE n = 3 OR n = 4");
    let expected = ids_with(|id| matches!(id % 50, 3 | 4));
    assert_ne!(few, expected, "rows come in the order of their buckets");
    assert_eq!(sorted(few), expected);
    // Of most rows all travel, in the order of the keys.
    let most = numbers(&mut session, "SELECT id FROM t WHERE n > 3");
    assert_eq!(most, ids_with(|id| id % 50 > 3));
    assert_eq!(rows(&mut session, "SELECT id FROM t WHERE n = 3 LIMIT 40 OFFSET 10").len(), 40);
    let joined = "SELECT a.id FROM t AS a JOIN t AS b ON a.id = b.id + 1 WHERE a.n = 7 AND b.n = 6";
    assert_eq!(sorted(numbers(&mut session, joined)), ids_with(|id| id % 50 == 7));
    // Rows of the table that are looked up, and are not there.
    let beyond = format!(
        "SELECT a.id FROM t AS a JOIN t AS b ON b.id = a.id + {} WHERE a.n = 7",
        ROWS - 100
    );
    assert_eq!(sorted(numbers(&mut session, &beyond)), [7, 57]);
    // A row is not looked at that is long, and one whose filter meets an error.
    let long = "SELECT id FROM doc WHERE length(body) > 1000 AND left(body, 1) = 'C'";
    let expected: Vec<i64> = (1..=800).filter(|id| id % 40 == 0 && id % 26 == 2).collect();
    assert!(!expected.is_empty());
    assert_eq!(sorted(numbers(&mut session, long)), expected);
    let divided = "SELECT id FROM t WHERE 1000000 / (id - 90001) = 1000000";
    assert_eq!(code(&mut session, divided), "22012");
    let guarded = format!("{divided} OR id = 90001").replace("id - 90001", "NULLIF(id - 90001, 0)");
    assert_eq!(sorted(numbers(&mut session, &guarded)), [90_001, 90_002]);
    // Columns that rows lack.
    ok(&mut session, "ALTER TABLE t ADD COLUMN later INT DEFAULT 5");
    ok(&mut session, "UPDATE t SET later = 6 WHERE id = 70000");
    assert_eq!(numbers(&mut session, "SELECT id FROM t WHERE later > 5"), [70_000]);
    let rest = numbers(&mut session, "SELECT id FROM t WHERE later < 6 AND n = 0");
    assert_eq!(sorted(rest), ids_with(|id| id % 50 == 0 && *id != 70_000));
}

#[test]
fn rows_that_pass_are_changed() {
    let (_database, mut session) = tables();
    let count = |session: &mut Session, condition: &str| {
        numbers(session, &format!("SELECT count(*) FROM t WHERE {condition}"))[0]
    };
    ok(&mut session, "UPDATE t SET n = -1 WHERE n = 3");
    assert_eq!((count(&mut session, "n = 3"), count(&mut session, "n = -1")), (0, ROWS / 50));
    ok(&mut session, "DELETE FROM t WHERE n = -1 OR id = 1");
    assert_eq!(count(&mut session, "TRUE"), ROWS - ROWS / 50 - 1);
    // A transaction finds its own changes.
    ok(&mut session, "BEGIN");
    ok(&mut session, "UPDATE t SET n = 70 WHERE id = 80000");
    ok(&mut session, "INSERT INTO t VALUES (0, 70)");
    assert_eq!(numbers(&mut session, "SELECT id FROM t WHERE n = 70"), [0, 80_000]);
    ok(&mut session, "ROLLBACK");
    assert_eq!(numbers(&mut session, "SELECT id FROM t WHERE n = 70"), [0_i64; 0]);
}

#[test]
fn a_transaction_conflicts_with_rows_that_come_to_pass() {
    let (database, mut a) = tables();
    let mut b = database.session("tester");
    ok(&mut a, "CREATE TABLE log (id INT PRIMARY KEY)");
    let changes = [
        "UPDATE t SET n = 3 WHERE id = 80000",
        "UPDATE t SET n = 4 WHERE id = 80003",
        "INSERT INTO t VALUES (200000, 3)",
        "DELETE FROM t WHERE id = 90003",
    ];
    for (number, change) in changes.iter().enumerate() {
        ok(&mut a, "BEGIN");
        assert!(rows(&mut a, "SELECT id FROM t WHERE n = 3").len() > 1_000);
        ok(&mut a, &format!("INSERT INTO log VALUES ({number})"));
        ok(&mut b, change);
        assert_eq!(code(&mut a, "COMMIT"), "40001", "{change}");
    }
    assert_eq!(rows(&mut a, "SELECT count(*) FROM log"), ["0"]);
}

#[test]
fn rows_of_a_wide_range_that_pass_come_from_the_primaries() {
    let (_database, mut session) = tables();
    let wide = "SELECT id FROM t WHERE id > 20000 AND n = 3";
    let expected = ids_with(|id| *id > 20_000 && id % 50 == 3);
    let few = numbers(&mut session, wide);
    assert_ne!(few, expected, "rows come in the order of their buckets");
    assert_eq!(sorted(few), expected);
    assert_eq!(rows(&mut session, &format!("{wide} LIMIT 40 OFFSET 10")).len(), 40);
    // In the order of the key: where that is wanted, of a small part of the table, of most rows, and in a transaction.
    let backwards = numbers(&mut session, &format!("{wide} ORDER BY id DESC"));
    assert_eq!(backwards, expected.iter().rev().copied().collect::<Vec<_>>());
    let narrow = numbers(&mut session, "SELECT id FROM t WHERE id > 92000 AND n = 3");
    assert_eq!(narrow, ids_with(|id| *id > 92_000 && id % 50 == 3));
    let most = numbers(&mut session, "SELECT id FROM t WHERE id <= 70000 AND n > 3");
    assert_eq!(most, ids_with(|id| *id <= 70_000 && id % 50 > 3));
    ok(&mut session, "BEGIN");
    assert_eq!(numbers(&mut session, wide), expected);
    ok(&mut session, "COMMIT");
    // Of another index.
    ok(&mut session, "CREATE INDEX by_n ON t (n)");
    let others = numbers(&mut session, "SELECT id FROM t WHERE n >= 25 AND id % 7 = 0");
    let expected = ids_with(|id| id % 50 >= 25 && id % 7 == 0);
    assert_ne!(others, expected);
    assert_eq!(sorted(others), expected);
    ok(&mut session, "UPDATE t SET n = 70 WHERE id > 30000 AND id % 10 = 3");
    let changed = sorted(numbers(&mut session, "SELECT id FROM t WHERE n = 70"));
    assert_eq!(changed, ids_with(|id| *id > 30_000 && id % 10 == 3));
}

#[test]
fn aggregates_of_a_wide_range_come_from_the_primaries() {
    let (database, mut session) = tables();
    ok(&mut session, "CREATE INDEX by_n ON t (n)");
    let sums = "SELECT count(*), sum(id), min(id), max(id) FROM t WHERE";
    let check = |session: &mut Session, condition: &str, passes: &dyn Fn(&i64) -> bool| {
        let ids = ids_with(passes);
        let end = |id: Option<&i64>| id.map_or("NULL".to_owned(), i64::to_string);
        let sum = ids.iter().copied().reduce(|a, b| a + b);
        let (first, last) = (end(ids.first()), end(ids.last()));
        let expected = format!("{}|{}|{first}|{last}", ids.len(), end(sum.as_ref()));
        assert_eq!(rows(session, &format!("{sums} {condition}")), [&*expected], "{condition}");
        ok(session, "BEGIN");
        assert_eq!(rows(session, &format!("{sums} {condition}")), [&*expected], "{condition}");
        ok(session, "COMMIT");
    };
    check(&mut session, "id BETWEEN 20001 AND 90000", &|id| (20_001..=90_000).contains(id));
    check(&mut session, "id > 5000 AND n % 2 = 1", &|id| *id > 5_000 && id % 2 == 1);
    check(&mut session, "id > 99900", &|id| *id > 99_900);
    check(&mut session, "id > 99000 AND n = 5", &|id| *id > 99_000 && id % 50 == 5);
    check(&mut session, "id > 90000 AND id < 10000", &|_| false);
    check(&mut session, "n >= 20 AND id % 3 = 0", &|id| id % 50 >= 20 && id % 3 == 0);
    check(&mut session, "n = 20 AND id % 3 = 0", &|id| id % 50 == 20 && id % 3 == 0);
    let groups = "SELECT n, count(*) FROM t WHERE id > 50000 AND n < 3 GROUP BY n ORDER BY n";
    assert_eq!(rows(&mut session, groups), ["0|1000", "1|1000", "2|1000"]);
    assert_eq!(rows(&mut session, &format!("{sums} id > NULL")), ["0|NULL|NULL|NULL"]);
    // A transaction depends on the rows of the range alone, and reads them.
    let mut other = database.session("other");
    ok(&mut session, "BEGIN");
    rows(&mut session, &format!("{sums} id > 60000"));
    ok(&mut session, "UPDATE t SET n = 0 WHERE id = 60000");
    ok(&mut other, "UPDATE t SET n = 1 WHERE id = 10000");
    ok(&mut session, "COMMIT");
    // What is read takes memory, and what the primaries have computed does not.
    let mut session = database_within(1 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, n INT)");
    ok(&mut session, "INSERT INTO t SELECT g, g % 50 FROM generate_series(1, 60000) AS s (g)");
    let wide = "SELECT count(*) FROM t WHERE id > 10000 AND n < 45";
    assert_eq!(numbers(&mut session, wide), [45_000]);
    ok(&mut session, "BEGIN");
    assert_eq!(code(&mut session, wide), "53200");
}
