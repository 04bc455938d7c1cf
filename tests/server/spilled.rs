//! Operators whose rows exceed the memory of a statement: they use files with a spill directory, and are refused without.
//!
//! *Not here*: large results, sorts and groups (`large.rs`).

use tokio_postgres::Client;
use tokio_postgres::types::FromSqlOwned;

use crate::large::started;

/// Keys that exceed the memory of a statement.
const KEYS: i32 = 80_000;

async fn first_column<T: FromSqlOwned>(client: &Client, query: &str) -> Vec<T> {
    let rows = client.query(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// Asserts that queries are refused without a directory, and that the errors say why.
fn refused(queries: &[String]) {
    let (server, _) = started(false, "");
    for query in queries {
        let error = server.failure(&format!("SELECT count(*) FROM ({query}) AS q"));
        assert!(
            error.contains("53200") && error.contains("--statement-memory"),
            "{query}: {error}"
        );
    }
}

#[tokio::test]
async fn distinct_on_goes_through_files() {
    let (server, directory) = started(true, "distinct-on");
    let client = server.client().await;
    let series = format!("generate_series(0, {}) i", 2 * KEYS - 1);
    let last = format!(
        "SELECT DISTINCT ON (k) i, i % {KEYS} AS k, 7 AS j FROM {series} ORDER BY k, i DESC"
    );
    let found: Vec<i32> = first_column(&client, &last).await;
    assert!(found.into_iter().eq(KEYS..2 * KEYS));
    // Columns outside of the ORDER BY are sort keys as well.
    for order in ["", "ORDER BY j", "ORDER BY j, k"] {
        let first =
            format!("SELECT DISTINCT ON (j, k) i, i % {KEYS} AS k, 7 AS j FROM {series} {order}");
        let mut found: Vec<i32> = first_column(&client, &first).await;
        found.sort_unstable();
        assert!(found.into_iter().eq(0..KEYS), "{order}");
    }
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    refused(&[last]);
}

#[tokio::test]
async fn set_operations_go_through_files() {
    let (server, directory) = started(true, "set-operations");
    let client = server.client().await;
    // Each number twice; the right side begins in the middle of the left one.
    let side = |from: i32| {
        format!("SELECT i % {KEYS} + {from} AS k FROM generate_series(1, {}) i", 2 * KEYS)
    };
    let half = KEYS / 2;
    let (left, right) = (side(0), side(half));
    let twice = |range: std::ops::Range<i32>| range.flat_map(|key| [key, key]).collect();
    let expected: [(&str, Vec<i32>); 6] = [
        ("UNION", (0..KEYS + half).collect()),
        ("UNION ALL", [twice(0..KEYS), twice(half..KEYS + half)].concat()),
        ("INTERSECT", (half..KEYS).collect()),
        ("INTERSECT ALL", twice(half..KEYS)),
        ("EXCEPT", (0..half).collect()),
        ("EXCEPT ALL", twice(0..half)),
    ];
    let mut queries = Vec::new();
    for (operation, mut expected) in expected {
        let query = format!("{left} {operation} {right}");
        let mut found: Vec<i32> = first_column(&client, &query).await;
        found.sort_unstable();
        expected.sort_unstable();
        assert!(found == expected, "{operation}");
        // All rows of one side cancel one of each pair.
        let all = operation.ends_with(" ALL");
        let once = format!("{left} {operation} SELECT DISTINCT k FROM ({left}) AS l");
        let count =
            first_column::<i64>(&client, &format!("SELECT count(*) FROM ({once}) AS q")).await;
        let expected = match (operation, all) {
            ("UNION ALL", _) => 3 * KEYS,
            ("EXCEPT", _) => 0,
            _ => KEYS,
        };
        assert_eq!(count, [i64::from(expected)], "{operation}");
        if operation != "UNION ALL" {
            queries.push(query);
        }
    }
    // No row on the left is kept if the right side fits.
    let few = format!("SELECT count(*) FROM ({left} EXCEPT ALL SELECT -1) AS q");
    assert_eq!(first_column::<i64>(&client, &few).await, [i64::from(2 * KEYS)]);
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    refused(&queries);
}

#[tokio::test]
async fn joins_go_through_files() {
    let (server, directory) = started(true, "joins");
    let client = server.client().await;
    let both = (KEYS, 3 * KEYS);
    let side = |(from, to): (i32, i32), name: &str| {
        format!(
            "(SELECT nullif(i, {from} + 5) AS k, i AS v FROM generate_series({from}, {} - 1) i) AS {name}",
            to
        )
    };
    let (l, r) = (side((0, 2 * KEYS), "l"), side(both, "r"));
    let mut queries = Vec::new();
    // Each side has a row with NULL, and half of its rows have no partner.
    for (kind, rows, lefts, rights) in [
        ("JOIN", KEYS - 1, KEYS - 1, KEYS - 1),
        ("LEFT JOIN", 2 * KEYS, 2 * KEYS, KEYS - 1),
        ("RIGHT JOIN", 2 * KEYS, KEYS - 1, 2 * KEYS),
        ("FULL JOIN", 3 * KEYS + 1, 2 * KEYS, 2 * KEYS),
    ] {
        let join = format!("{l} {kind} {r} ON l.k = r.k");
        let counts = format!(
            "SELECT count(*), count(l.v), count(r.v), count(*) FILTER (WHERE l.k <> r.k), \
             count(*) FILTER (WHERE l.k + 0 = r.k + 0) FROM {join}"
        );
        let row = client.query_one(&counts, &[]).await.unwrap();
        let found: Vec<i64> = (0..5).map(|column| row.get(column)).collect();
        let expected = [rows, lefts, rights, 0, KEYS - 1];
        assert!(found.iter().copied().eq(expected.map(i64::from)), "{kind}: {found:?}");
        queries.push(format!("SELECT l.v FROM {join}"));
    }
    // A further condition, several rows with one key, and unchanged rows of both sides.
    let query = format!(
        "SELECT l.v, r.v, r.w FROM {l} JOIN \
         (SELECT i % {KEYS} AS k, i AS v, 'w' || i AS w FROM generate_series(1, {}) i) AS r \
         ON l.k = r.k AND r.v > l.v ORDER BY 1, 2",
        2 * KEYS
    );
    let rows = client.query(&query, &[]).await.unwrap();
    let mut found = rows.iter().map(|row| (row.get(0), row.get(1), row.get::<_, String>(2)));
    for key in (0..KEYS).filter(|key| *key != 5) {
        let partners = [key, key + KEYS, key + 2 * KEYS];
        for other in partners.into_iter().filter(|other| (key + 1..=2 * KEYS).contains(other)) {
            assert_eq!(found.next().unwrap(), (key, other, format!("w{other}")));
        }
    }
    assert_eq!(found.next(), None);
    // One join inside the other, a sort and groups around them: each gets a part of the memory.
    let query = format!(
        "SELECT a.v % 1000 AS g, count(*) FROM {} JOIN {} ON a.k = b.k JOIN {} ON b.v = c.k \
         JOIN {} ON c.v = d.k GROUP BY a.v % 1000 ORDER BY g",
        side(both, "a"),
        side(both, "b"),
        side(both, "c"),
        side(both, "d")
    );
    let rows = client.query(&query, &[]).await.unwrap();
    let sum: i64 = rows.iter().map(|row| row.get::<_, i64>(1)).sum();
    assert_eq!((rows.len(), sum), (1_000, i64::from(2 * KEYS - 1)));
    // Rows with one key cannot be divided.
    let error = server.failure(&format!("SELECT count(*) FROM {l} JOIN {r} ON l.k % 1 = r.k % 1"));
    assert!(error.contains("53200"), "{error}");
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    refused(&queries);
}

#[tokio::test]
async fn values_of_aggregates_go_through_files() {
    let (server, directory) = started(true, "aggregates");
    let client = server.client().await;
    let series = format!("generate_series(0, {}) i", 2 * KEYS - 1);
    // Each value comes twice: in one group, in a few groups, and in half as many groups as values.
    let distinct = |groups: i32| {
        format!(
            "SELECT i % {groups}, count(DISTINCT i % {KEYS}), count(*), sum(DISTINCT i % {KEYS})::BIGINT, \
             count(DISTINCT nullif(i % {KEYS}, i % {groups})) FROM {series} GROUP BY i % {groups} ORDER BY 1"
        )
    };
    for groups in [1, 10, KEYS / 2] {
        let rows = client.query(&distinct(groups), &[]).await.unwrap();
        assert_eq!(rows.len(), usize::try_from(groups).unwrap());
        for (group, row) in (0..).zip(&rows) {
            let found = [1, 2, 3, 4].map(|column| row.get::<_, i64>(column));
            let values = (group..KEYS).step_by(usize::try_from(groups).unwrap());
            let (count, sum) =
                values.fold((0, 0), |(n, sum), value| (n + 1, sum + i64::from(value)));
            assert_eq!((row.get::<_, i32>(0), found), (group, [count, 2 * count, sum, count - 1]));
        }
    }
    // An order within groups, also of distinct values.
    let ordered = |groups: i32| {
        format!(
            "SELECT i % {groups} AS g, string_agg((i % 10)::TEXT, '' ORDER BY i DESC) AS s, \
             string_agg(DISTINCT (i % 100)::TEXT, ',' ORDER BY (i % 100)::TEXT) AS d \
             FROM {series} GROUP BY i % {groups} ORDER BY g"
        )
    };
    for groups in [20, KEYS / 2] {
        let rows = client.query(&ordered(groups), &[]).await.unwrap();
        for (group, row) in (0..groups).zip(&rows) {
            let step = usize::try_from(groups).unwrap();
            let values = (group..2 * KEYS).step_by(step);
            let expected: String = values.rev().map(|i| (i % 10).to_string()).collect();
            assert!(row.get::<_, String>(1) == expected, "{groups} {group}");
            let digits: std::collections::BTreeSet<String> =
                (group..2 * KEYS).step_by(step).map(|i| (i % 100).to_string()).collect();
            let digits: Vec<String> = digits.into_iter().collect();
            assert_eq!(row.get::<_, String>(2), digits.join(","));
        }
        assert_eq!(rows.len(), usize::try_from(groups).unwrap());
    }
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    refused(&[distinct(1), distinct(10), ordered(20)]);
}
