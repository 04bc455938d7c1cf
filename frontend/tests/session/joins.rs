//! Joins of many rows: rows that an index has found before, hash tables, and scans whose order nobody sees.

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
    let few = format!("{} - {}", ROWS, ROWS / 10);
    assert_eq!(rows(&mut session, &format!("SELECT {few}")), ["18000"]);
    assert_eq!(rows(&mut session, joined), ["20000|18000|of 0"]);
    // Of 20,000 rows on the left a batch would look up 256.
    let alone = round_trips(&mut session, "SELECT count(DISTINCT n) FROM t");
    let lookups = round_trips(&mut session, joined).saturating_sub(alone);
    assert!(lookups < 10, "{lookups} lookups of 100 rows");
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
    let joined =
        "SELECT count(*), sum(b.id), sum(length(b.text)) FROM t AS a JOIN t AS b ON b.id = a.k";
    let (count, sum) = (ROWS - 1, (ROWS - 1) * ROWS / 2);
    for _ in 0..2 {
        assert_eq!(rows(&mut session, joined), [format!("{count}|{sum}|{}", 10 * count)]);
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
    // How far the number of a row is from its id, which is 1 for the first row in the order of the key.
    let distance = |from: &str| {
        format!("SELECT max(place - id) FROM (SELECT row_number() OVER () AS place, id {from}) q")
    };
    let any = rows(&mut session, &distance("FROM t"));
    assert_ne!(any, ["0"], "rows come in the order of their buckets");
    // Where the order tells which rows these are, or is a part of the result, it is that of the key.
    let some = "FROM (SELECT id FROM t LIMIT 15000) AS s";
    assert_eq!(rows(&mut session, &distance(some)), ["0"]);
    let all = (1..=ROWS).map(|id| id.to_string()).collect::<Vec<_>>();
    assert_eq!(rows(&mut session, "SELECT string_agg(id::TEXT, ',') FROM t"), [all.join(",")]);
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
