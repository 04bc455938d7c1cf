//! Joins of many rows: rows that an index has found before, hash tables, and scans whose order the result does not show.
//!
//! The tables have 20,000 rows, on a cluster in this process. A test fails if a result differs from that which the test
//! computes, or if a join looks up the same row for each batch: EXPLAIN ANALYZE counts the round trips. Where the result
//! shows the order of the rows, EXPLAIN must not say `in any order`, and the rows must come in the order of the key.
//!
//! *Source*: `docs/sql.md`, "Joins", and for the order of scans `docs/sql.md`, "Filters".
//!
//! *Not here*: joins of few rows (`slt/joins.slt`).

use gannet_frontend::Session;

use crate::{code, database, database_within, ok, rows};

/// Several pages.
const ROWS: i64 = 20_000;

/// Tables `t` of rows `(id, n, k)` with n = id % 100 and k = id - 1, and `name` of those n that are below 90.
fn tables(session: &mut Session) {
    ok(session, "CREATE TABLE t (id INT PRIMARY KEY, n INT, k INT)");
    ok(
        session,
        &format!("INSERT INTO t SELECT g, g % 100, g - 1 FROM generate_series(1, {ROWS}) AS s (g)"),
    );
    ok(session, "CREATE TABLE name (n INT PRIMARY KEY, text TEXT)");
    ok(session, "INSERT INTO name SELECT g, 'of ' || g FROM generate_series(0, 89) AS s (g)");
}

/// The round trips of a statement.
fn round_trips(session: &mut Session, sql: &str) -> u64 {
    let lines = rows(session, &format!("EXPLAIN ANALYZE {sql}"));
    let count = lines.iter().find_map(|line| line.strip_prefix("Round trips: "));
    count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{lines:?}"))
}

#[test]
fn rows_that_an_index_has_found_are_remembered() {
    let database = database();
    let mut session = database.session("tester");
    tables(&mut session);
    let joined = "SELECT count(*), count(text), min(text) FROM t LEFT JOIN name USING (n)";
    assert_eq!(rows(&mut session, joined), ["20000|18000|of 0"]);
    // Of 20,000 rows on the left a batch would look up 256.
    let alone = round_trips(&mut session, "SELECT count(DISTINCT n) FROM t");
    let together = round_trips(&mut session, joined);
    assert!(together < alone + 40, "100 rows took {together} round trips instead of {alone}");
    // A row that is changed later is found as it is then.
    ok(&mut session, "UPDATE name SET text = 'first' WHERE n = 0");
    assert_eq!(rows(&mut session, joined), ["20000|18000|first"]);
    // Several points for each row, some of them equal, some without a row.
    let points = "SELECT count(*), sum(b.id) FROM t AS a JOIN t AS b ON b.id IN (a.n, a.n, a.k)";
    let sum: i64 = (1..=ROWS)
        .map(|id| {
            let mut partners = vec![id % 100, id - 1];
            partners.dedup();
            partners.iter().filter(|id| **id > 0).sum::<i64>()
        })
        .sum();
    let count = |id: &i64| (id % 100 > 0 && id % 100 != id - 1) as i64 + i64::from(*id > 1);
    let count: i64 = (1..=ROWS).map(|id| count(&id)).sum();
    assert_eq!(rows(&mut session, points), [format!("{count}|{sum}")]);
}

#[test]
fn very_many_rows_are_looked_up_without_memory_for_all() {
    let database = database_within(1 << 20, 64 << 20);
    let mut session = database.session("tester");
    tables(&mut session);
    ok(&mut session, "ALTER TABLE t ADD COLUMN text TEXT DEFAULT '0123456789'");
    // The rows that the join remembers leave room for 3,000 values.
    let joined = "SELECT count(*), sum(b.id), sum(length(b.text)), count(DISTINCT b.id % 3000)
                  FROM t AS a JOIN t AS b ON b.id = a.k";
    let (count, sum) = (ROWS - 1, (ROWS - 1) * ROWS / 2);
    for _ in 0..2 {
        assert_eq!(rows(&mut session, joined), [format!("{count}|{sum}|{}|3000", 10 * count)]);
    }
}

#[test]
fn partners_without_an_index_are_found_by_a_hash_of_the_key() {
    let database = database();
    let mut session = database.session("tester");
    tables(&mut session);
    ok(&mut session, "CREATE TABLE part (n INT, text TEXT)");
    ok(&mut session, "INSERT INTO part SELECT g % 60, g FROM generate_series(0, 599) AS s (g)");
    ok(&mut session, "INSERT INTO part VALUES (NULL, 'alone'), (1000, 'alone')");
    // Each of 12,000 rows on the left has 10 partners, and 8,000 have none.
    let sums = "SELECT count(*), count(t.id), count(part.text), sum(t.id) FROM t";
    let matched: i64 = (1..=ROWS).filter(|id| id % 100 < 60).sum();
    let others: i64 = (1..=ROWS).filter(|id| id % 100 >= 60).sum();
    let inner = rows(&mut session, &format!("{sums} JOIN part ON part.n = t.n"));
    assert_eq!(inner, [format!("120000|120000|120000|{}", 10 * matched)]);
    let full = rows(&mut session, &format!("{sums} FULL JOIN part ON part.n = t.n"));
    assert_eq!(full, [format!("128002|128000|120002|{}", 10 * matched + others)]);
    // Partners come in their order.
    let one = "SELECT part.text FROM t JOIN part ON part.n = t.n WHERE t.id = 7";
    let expected: Vec<String> = (0..10).map(|number| (60 * number + 7).to_string()).collect();
    assert_eq!(rows(&mut session, one), expected);
    // All pairs.
    let pairs = "SELECT count(*) FROM t JOIN part ON part.n > t.n WHERE t.id <= 10";
    assert_eq!(
        rows(&mut session, pairs),
        [(1..=10).map(|n| 10 * (59 - n) + 1).sum::<i64>().to_string()]
    );
}

#[test]
fn rows_come_in_any_order_where_nobody_sees_it() {
    let database = database();
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    tables(&mut session);
    let in_any_order = |session: &mut Session, sql: &str| {
        let plan = rows(session, &format!("EXPLAIN {sql}"));
        plan.iter().any(|line| line.contains("in any order"))
    };
    for sql in [
        "SELECT count(DISTINCT n) FROM t",
        "SELECT count(*) FROM (SELECT DISTINCT k / 3 FROM t) q",
        "SELECT count(*) FROM (SELECT id FROM t EXCEPT SELECT k FROM t) q",
        "SELECT max(text) FROM t JOIN name USING (n)",
    ] {
        assert!(in_any_order(&mut session, sql), "{sql}");
    }
    // Where the order tells which rows these are, or is a part of the result, it is that of the key.
    let number = "(SELECT row_number() OVER () AS place, id FROM t) q";
    let number = format!("SELECT max(place - id), count(DISTINCT id) FROM {number}");
    let all = (1..=ROWS).map(|id| id.to_string()).collect::<Vec<_>>();
    let list = format!("{{{}}}", all.join(","));
    for (sql, expected) in [
        (&*number, "0|20000"),
        ("SELECT max(id), count(DISTINCT n) FROM (SELECT id, n FROM t LIMIT 15000) q", "15000|100"),
        (
            "SELECT max(id), count(DISTINCT n) FROM (SELECT DISTINCT ON (n) id, n FROM t) q",
            "100|100",
        ),
        ("SELECT string_agg(id::TEXT, ',') FROM t", &*all.join(",")),
        ("SELECT max(ids) FROM (SELECT array_agg(id)::TEXT AS ids FROM t) q", &*list),
    ] {
        assert!(!in_any_order(&mut session, sql), "{sql}");
        assert_eq!(rows(&mut session, sql), [expected], "{sql}");
    }
    assert_eq!(rows(&mut session, "SELECT id FROM t"), all);
    // Rows that are too long for a filter to look at.
    ok(&mut session, "ALTER TABLE t ADD COLUMN text TEXT");
    ok(&mut session, "UPDATE t SET text = repeat('x', 20000) WHERE id % 400 = 0");
    let texts = "SELECT count(*), count(text), sum(length(text)), count(DISTINCT n) FROM t";
    assert_eq!(rows(&mut session, texts), ["20000|50|1000000|100"]);
    // A transaction sees its own changes, and depends on the rows.
    let distinct = "SELECT count(DISTINCT n), count(DISTINCT id) FROM t";
    ok(&mut session, "BEGIN");
    ok(&mut session, "DELETE FROM t WHERE id = 19999");
    ok(&mut session, "INSERT INTO t VALUES (0, 100, 0), (20001, 101, 0)");
    assert_eq!(rows(&mut session, distinct), ["102|20001"]);
    ok(&mut session, "ROLLBACK");
    ok(&mut session, "CREATE TABLE log (id INT PRIMARY KEY)");
    let changes = [
        "UPDATE t SET n = 777 WHERE id = 19000",
        "INSERT INTO t VALUES (30000, 3)",
        "DELETE FROM t WHERE id = 18003",
    ];
    for (number, change) in changes.iter().enumerate() {
        ok(&mut session, "BEGIN");
        rows(&mut session, distinct);
        ok(&mut session, &format!("INSERT INTO log VALUES ({number})"));
        ok(&mut other, change);
        assert_eq!(code(&mut session, "COMMIT"), "40001", "{change}");
    }
    assert_eq!(rows(&mut session, distinct), ["101|20000"]);
}

#[test]
fn sums_and_forms_of_fractions_go_by_the_order_of_the_key() {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, v NUMERIC, f DOUBLE PRECISION)");
    // In another order the totals would be too large.
    let large = "CASE g % 2 WHEN 1 THEN 1 ELSE -1 END";
    ok(
        &mut session,
        &format!(
            "INSERT INTO t SELECT g, {large} * 50000000000000000000000000000, {large} * 1e308
             FROM generate_series(1, {ROWS}) AS s (g)"
        ),
    );
    let sums = "SELECT sum(v), sum(f), count(DISTINCT id) FROM t";
    assert_eq!(rows(&mut session, sums), ["0|0|20000"]);
    ok(&mut session, "UPDATE t SET v = -1.00");
    ok(&mut session, "UPDATE t SET v = -1.000 WHERE id = 1");
    ok(&mut session, "UPDATE t SET v = -1.0 WHERE id = 20000");
    // Of equal values min takes the last one, as PostgreSQL does, and DISTINCT the first one.
    let least = "SELECT min(v), count(DISTINCT id) FROM t";
    assert_eq!(rows(&mut session, least), ["-1.0|20000"]);
    let distinct = "SELECT min(v::TEXT) FROM (SELECT DISTINCT v FROM t) q";
    assert_eq!(rows(&mut session, distinct), ["-1.000"]);
    // The same of values that are computed.
    ok(&mut session, "CREATE TABLE s (id INT PRIMARY KEY, v TEXT)");
    ok(&mut session, "INSERT INTO s SELECT id, v::TEXT FROM t");
    for sql in [
        "SELECT min(v::NUMERIC), count(DISTINCT id) FROM s",
        "SELECT sum(id / 7.0), count(DISTINCT id) FROM s",
        "SELECT min(v::TEXT) FROM (SELECT DISTINCT v::NUMERIC FROM s) q",
        "SELECT count(DISTINCT id), max((SELECT v FROM t WHERE t.id = s.id)) FROM s",
    ] {
        let plan = rows(&mut session, &format!("EXPLAIN {sql}"));
        assert!(!plan.iter().any(|line| line.contains("in any order")), "{plan:?}");
    }
    let bigint = "EXPLAIN SELECT sum(id::BIGINT), avg(id), count(DISTINCT id) FROM s";
    let plan = rows(&mut session, bigint);
    assert!(plan.iter().any(|line| line.contains("in any order")), "{plan:?}");
}

#[test]
fn conditions_that_change_are_asked_for_each_batch() {
    let database = database();
    let mut session = database.session("tester");
    tables(&mut session);
    // Each of 79 batches draws whether the only row passes. If the row were remembered, it would pass for all rows on the left or for none.
    let joined =
        "SELECT count(text) FROM t LEFT JOIN name ON name.n = t.n - t.n AND random() < 0.5";
    let count: i64 = rows(&mut session, joined)[0].parse().unwrap();
    assert!((1..ROWS).contains(&count), "{count}");
}
