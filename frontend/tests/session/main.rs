//! Sessions: parameters, COPY, limits, loads, filters, joins, cancelling, shared plans, tokens, yielding of threads, and
//! lost nodes.
//!
//! The sessions run on clusters of one or three nodes in this process. A test here fails if a result or SQLSTATE differs
//! from the expected one, or if a session does not go on after an error. With debug assertions the program itself checks
//! that each operator yields for each row, and that large values are computed beside the workers
//! (`frontend/src/execute/pace.rs`, `frontend/src/aside.rs`).
//!
//! *Not here*: what statements mean (`frontend/tests/scripts.rs`), and PostgreSQL's clients (`tests/server`).

mod budget;
mod bulk;
mod filtered;
mod joins;
mod loads;
mod lost;
mod read_ahead;
mod templates;
mod tokens;

use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{
    DataType, Database, MemoryLimits, Session, SqlError, StatementResult, TransactionStatus, Value,
};
use pollster::block_on;

fn database() -> Arc<Database> {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).expect("a small cluster opens");
    Database::open(Arc::new(cluster)).expect("SQL opens on a fresh cluster")
}

fn run(session: &mut Session, sql: &str) -> Result<StatementResult, SqlError> {
    block_on(session.execute(sql))
}

#[track_caller]
fn ok(session: &mut Session, sql: &str) -> StatementResult {
    let shown = &sql[..sql.len().min(1_000)];
    match run(session, sql) {
        Ok(result) => result,
        Err(error) => panic!("{shown}: {error:?}"),
    }
}

#[track_caller]
fn code(session: &mut Session, sql: &str) -> &'static str {
    match run(session, sql) {
        Ok(result) => panic!("{sql} gave {result:?}"),
        Err(error) => error.code,
    }
}

/// The rows of a query as texts.
#[track_caller]
fn rows(session: &mut Session, sql: &str) -> Vec<String> {
    texts(ok(session, sql))
}

fn texts(result: StatementResult) -> Vec<String> {
    let StatementResult::Rows { columns, rows, .. } = result else { return Vec::new() };
    let cell = |(value, data_type): (&Value, DataType)| match value {
        Value::Null => "NULL".to_owned(),
        value => value.to_text(data_type),
    };
    let row = |row: Vec<Value>| {
        let cells: Vec<String> =
            row.iter().zip(columns.iter().map(|column| column.data_type)).map(cell).collect();
        cells.join("|")
    };
    rows.into_iter().map(row).collect()
}

#[test]
fn parameters_take_their_types_from_their_operands() {
    let database = database();
    let mut session = database.session("tester");
    ok(
        &mut session,
        "CREATE TABLE prm (id BIGINT PRIMARY KEY, name VARCHAR(10), price NUMERIC(6,2))",
    );
    let insert = "INSERT INTO prm VALUES ($1, $2, $3)";
    let insert = block_on(session.prepare(insert, &[])).unwrap();
    let varchar = DataType::Varchar(Some(10));
    assert_eq!(insert.parameters, [DataType::BigInt, varchar, DataType::Numeric(Some((6, 2)))]);
    assert!(!insert.returns_rows);
    for id in 0..5 {
        let name = Value::Text(format!("n{id}"));
        let parameters = vec![Value::Integer(id), name, Value::Text("1.5".to_owned())];
        block_on(session.execute_prepared(&insert, parameters)).unwrap();
    }
    let select = "SELECT name, price + $2 AS sum FROM prm WHERE id = $1";
    let select = block_on(session.prepare(select, &[])).unwrap();
    assert_eq!(select.columns[1].name, "sum");
    let parameters = vec![Value::Integer(3), Value::Text("2".to_owned())];
    let result = block_on(session.execute_prepared(&select, parameters)).unwrap();
    assert_eq!(texts(result), ["n3|3.50"]);
    let error = block_on(session.execute_prepared(&select, Vec::new())).unwrap_err();
    assert_eq!(error.code, "08P01");
    // Another session changes the table, so the statement is planned again.
    let mut other = database.session("other");
    ok(&mut other, "ALTER TABLE prm ADD COLUMN extra INT DEFAULT 9");
    let parameters = vec![Value::Integer(3), Value::Text("2".to_owned())];
    let result = block_on(session.execute_prepared(&select, parameters)).unwrap();
    assert_eq!(texts(result), ["n3|3.50"]);
    ok(&mut other, "DROP TABLE prm");
    let parameters = vec![Value::Integer(3), Value::Text("2".to_owned())];
    let error = block_on(session.execute_prepared(&select, parameters)).unwrap_err();
    assert_eq!(error.code, "42P01");
}

#[test]
fn copy_in_and_out() {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE cp (id INT PRIMARY KEY, name TEXT)");
    let result = ok(&mut session, "COPY cp FROM STDIN WITH (FORMAT csv, HEADER true)");
    assert!(matches!(result, StatementResult::CopyIn { .. }));
    let mut data = String::from("id,name\n");
    for id in 0..1_500 {
        data.push_str(&format!("{id},\"name, {id}\"\n"));
    }
    for chunk in data.as_bytes().chunks(1_000) {
        block_on(session.copy_in(chunk)).unwrap();
    }
    assert_eq!(block_on(session.copy_end(None)).unwrap(), "COPY 1500");
    assert_eq!(rows(&mut session, "SELECT count(*), min(name) FROM cp"), ["1500|name, 0"]);
    let result = ok(&mut session, "COPY (SELECT * FROM cp WHERE id < 2 ORDER BY id) TO STDOUT");
    let StatementResult::CopyOut { lines, tag, .. } = result else { panic!("not a COPY") };
    assert_eq!((lines.concat(), tag.as_str()), (b"0\tname, 0\n1\tname, 1\n".to_vec(), "COPY 2"));
    ok(&mut session, "COPY cp FROM STDIN");
    block_on(session.copy_in(b"7\tagain\n")).unwrap();
    assert_eq!(block_on(session.copy_end(None)).unwrap_err().code, "23505");
    // A transaction fills a table that it has truncated in transactions of its own.
    ok(&mut session, "BEGIN");
    ok(&mut session, "TRUNCATE cp");
    ok(&mut session, "COPY cp (id) FROM STDIN");
    block_on(session.copy_in(b"1\n2\n3\n")).unwrap();
    assert_eq!(block_on(session.copy_end(None)).unwrap(), "COPY 3");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM cp"), ["3"]);
    ok(&mut session, "ROLLBACK");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM cp"), ["1500"]);
    ok(&mut session, "DROP TABLE cp");
}

#[test]
fn too_large_statements_are_refused_and_the_session_goes_on() {
    let database = database();
    let mut session = database.session("tester");
    let deep =
        |levels: usize| format!("SELECT {}random(){}", "abs(".repeat(levels), ")".repeat(levels));
    assert_eq!(code(&mut session, &deep(500)), "54001");
    ok(&mut session, &deep(55));
    let joined: String = (0..500).map(|n| format!(" OR random() = {n}")).collect();
    ok(&mut session, &format!("SELECT FALSE{joined}"));
    let sum = format!("SELECT random(){}", " + random()".repeat(200));
    assert_eq!(code(&mut session, &sum), "54001");
    assert_eq!(code(&mut session, &format!("SELECT 1{}", "+1".repeat(100_000))), "54001");
    let folded = format!("SELECT 1{}", "+1".repeat(2_000));
    assert_eq!(rows(&mut session, &folded), ["2001"]);
    let mut nested = "SELECT 1".to_owned();
    for _ in 0..20 {
        nested = format!("SELECT ({nested})");
    }
    let result = run(&mut session, &nested).map(texts);
    assert!(
        result.as_ref().is_ok_and(|rows| rows == &["1"])
            || result.is_err_and(|e| e.code == "54001")
    );
    let unions = format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(300));
    assert_eq!(code(&mut session, &unions), "54001");
    assert_eq!(rows(&mut session, "SELECT 1"), ["1"]);
}

#[test]
fn a_statement_is_cancelled() {
    let database = database();
    let mut session = database.session("tester");
    let cancel = session.cancel_handle();
    let canceller = std::thread::spawn(move || {
        for _ in 0..2_000 {
            cancel.cancel();
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
    });
    let endless =
        "SELECT count(*) FROM generate_series(1, 1000000000) a, generate_series(1, 1000) b";
    assert_eq!(code(&mut session, endless), "57014");
    assert_eq!(session.status(), TransactionStatus::Idle);
    drop(canceller);
}

#[test]
fn settings_are_shown_and_checked() {
    let database = database();
    let mut session = database.session("tester");
    assert_eq!(session.setting("server_version").as_deref(), Some("15.0"));
    ok(&mut session, "SET application_name = 'x'");
    assert_eq!(rows(&mut session, "SHOW application_name"), ["x"]);
    assert_eq!(code(&mut session, "SET nosuch = 1"), "42704");
    assert_eq!(code(&mut session, "SET client_encoding = 'latin1'"), "0A000");
    assert_eq!(rows(&mut session, "SELECT current_user"), ["tester"]);
}

#[test]
fn malformed_statements_are_errors() {
    let database = database();
    let mut session = database.session("tester");
    let statements = [
        "",
        ";",
        "SELECT",
        "(",
        ")",
        "SELECT (((",
        "'",
        "\"",
        "$$",
        "SELECT $0",
        "SELECT $99999999",
        "SELECT * FROM",
        "INSERT INTO",
        "CREATE TABLE",
        "CREATE TABLE t ()",
        "UPDATE",
        "\0",
        "SELECT '\u{0}'",
        "SELECT 1 FROM generate_series(1)",
        "EXPLAIN",
        "EXPLAIN EXPLAIN SELECT 1",
        "COPY",
        "VALUES",
        "VALUES ()",
        "SELECT count(count(*))",
        "SELECT ()",
        "SELECT ROW(1,2)",
        "WITH a AS (SELECT * FROM a) SELECT * FROM a",
        "SELECT 1 LIMIT -1",
        "SELECT 1 ORDER BY 5",
        "SELECT * FROM (SELECT 1) x WHERE x.y.z.w = 1",
        "SELECT 1::nosuch",
        "SELECT 1 + ARRAY[1]",
        "SELECT 10000000000000000000000000000000000000000",
        "SELECT 1e400",
        "SELECT -9223372036854775808 / -1",
        "SELECT substring('x' FROM -2147483648)",
        "SELECT repeat('x', 2147483647)",
        "SELECT lpad('x', 2147483647)",
        "SELECT chr(-1)",
        "SELECT date '9999-99-99'",
        "SELECT date '2024-01-01' + 2147483647",
        "SELECT generate_series(1, 2)",
        "SELECT mod(1, 0)",
        "SELECT interval '1 day'",
        "SELECT now() - interval '99999999999 years'",
        "SELECT 'a' ~ '('",
        "SELECT round(1.5, 2147483647)",
        "SELECT round(1.5, -2147483648)",
        "SELECT 1.5 % 0",
        "PREPARE p AS SELECT $1; SELECT 1",
        "EXECUTE nosuch",
        "DEALLOCATE nosuch",
        "COMMIT",
        "ROLLBACK",
        "RELEASE s",
        "SELECT 2 ^ 100000",
        "SELECT sqrt(-1)",
        "SELECT ln(0)",
        "SELECT split_part('a', ',', 0)",
    ];
    for statement in statements {
        // Any result is fine, if the session goes on.
        let _ = run(&mut session, statement);
        assert_eq!(rows(&mut session, "SELECT 1"), ["1"], "after {statement}");
    }
}

/// A database with small limits for statements.
fn database_within(statement_bytes: usize, all_bytes: usize) -> Arc<Database> {
    database_limited(MemoryLimits { statement_bytes, all_bytes, ..MemoryLimits::default() })
}

fn database_limited(limits: MemoryLimits) -> Arc<Database> {
    let options = ClusterOptions {
        nodes: 1,
        replicas: 1,
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).expect("a small cluster fits"));
    Database::open_within(cluster, limits).expect("SQL opens on a fresh cluster")
}

#[test]
fn data_of_a_copy_become_rows_part_by_part() {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE cp (id INT PRIMARY KEY)");
    ok(&mut session, "COPY cp FROM STDIN");
    let mut data: String = (0..30_000).map(|id| format!("{id}\n")).collect();
    data.push_str("no number\n");
    // The rows before the error are in the table, although all came at once.
    let error = block_on(session.copy_in(data.as_bytes())).unwrap_err();
    assert_eq!(error.code, "22P02");
    let count: i32 = rows(&mut session, "SELECT count(*) FROM cp")[0].parse().unwrap();
    assert!((10_000..30_000).contains(&count), "{count}");
}

/// The line about a table in a plan.
fn access_to(session: &mut Session, table: &str, query: &str) -> String {
    let lines = rows(session, &format!("EXPLAIN {query}"));
    lines.into_iter().find(|line| line.contains(&format!(" on {table}"))).unwrap_or_default()
}

#[test]
fn a_long_list_is_read_key_by_key() {
    let mut session = database_within(16 << 20, 64 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (a INT, b INT, PRIMARY KEY (a, b))");
    ok(&mut session, "CREATE TABLE u (id INT PRIMARY KEY, code INT UNIQUE)");
    ok(&mut session, "INSERT INTO t SELECT 1, i FROM generate_series(1, 3000) i");
    ok(&mut session, "INSERT INTO u SELECT i, -i FROM generate_series(1, 3000) i");
    // More values than rows, and some of them twice.
    let list = |sign: &str| {
        let values: Vec<String> = (1..25_000).map(|i| format!("{sign}{}", i % 20_000)).collect();
        values.join(", ")
    };
    for (table, condition) in [
        ("u", format!("id IN ({})", list(""))),
        ("u", format!("code IN ({})", list("-"))),
        ("t", format!("a = 1 AND b IN ({})", list(""))),
    ] {
        let query = format!("SELECT count(*) FROM {table} WHERE {condition}");
        let access = access_to(&mut session, table, &query);
        assert!(access.contains("Multi Get on "), "{}", &access[..100.min(access.len())]);
        assert_eq!(rows(&mut session, &query), ["3000"], "{table}");
    }
    // A product of lists is not read key by key: it may be many times as long as the lists.
    let product = format!("SELECT count(*) FROM t WHERE a IN (1, 2) AND b IN ({})", list(""));
    assert!(!access_to(&mut session, "t", &product).contains("Multi Get"));
    assert_eq!(rows(&mut session, &product), ["3000"]);
    // Nor is a list that would be read for each row on the left.
    let joined = format!("SELECT count(*) FROM u JOIN t ON a = id WHERE b IN ({})", list(""));
    assert_eq!(rows(&mut session, &joined), ["3000"]);
    let short: Vec<String> = (1..=9_000).map(|i| i.to_string()).collect();
    let joined = "SELECT count(*) FROM u JOIN t ON a = id WHERE id < 4";
    let joined = format!("{joined} AND b IN ({})", short.join(","));
    assert_eq!(rows(&mut session, &joined), ["3000"]);
}

/// This build asserts that large values are computed on threads beside the workers.
#[test]
fn large_values_are_computed_on_other_threads() {
    let mut session = database_within(64 << 20, 256 << 20).session("tester");
    let array = "('{' || repeat('1,', 200000) || '7}')::INT[]";
    for (query, expected) in [
        ("SELECT length(array_agg(i)::TEXT) FROM generate_series(1, 50000) i".to_owned(), "288895"),
        (format!("SELECT cardinality({array})"), "200001"),
        (format!("SELECT cardinality({array}::BIGINT[])"), "200001"),
        (format!("SELECT count(*) FROM (SELECT unnest({array})) AS q"), "200001"),
    ] {
        assert_eq!(rows(&mut session, &query), [expected], "{query}");
    }
    let any = block_on(session.prepare("SELECT 7 = ANY($1::INT[])", &[])).unwrap();
    let array = Value::Text(format!("{{{}7}}", "1,".repeat(200_000)));
    assert_eq!(texts(block_on(session.execute_prepared(&any, vec![array])).unwrap()), ["t"]);
}

#[test]
fn the_catalog_yields_with_every_row() {
    let mut session = database_within(16 << 20, 64 << 20).session("tester");
    let columns: Vec<String> = (0..1_500).map(|number| format!("c{number} INT")).collect();
    for table in 0..8 {
        ok(&mut session, &format!("CREATE TABLE t{table} ({})", columns.join(", ")));
    }
    let wide = "SELECT count(*) FROM pg_attribute WHERE attname LIKE 'c%'";
    assert_eq!(rows(&mut session, wide), ["12000"]);
    let wide = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public'";
    assert_eq!(rows(&mut session, wide), ["12000"]);
    // The rows are charged while they are kept.
    let mut session = database_within(1 << 20, 64 << 20).session("tester");
    for table in 0..8 {
        ok(&mut session, &format!("CREATE TABLE t{table} ({})", columns.join(", ")));
    }
    assert_eq!(code(&mut session, "SELECT count(*) FROM pg_attribute"), "53200");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM pg_attribute WHERE attname = 'c7'"), ["8"]);
}

/// This build asserts that every operator yields for each row that it takes or returns.
#[test]
fn operators_yield_with_every_row() {
    let mut session = database_within(64 << 20, 256 << 20).session("tester");
    ok(&mut session, "CREATE TABLE t (id INT PRIMARY KEY, g INT, name TEXT)");
    ok(&mut session, "CREATE INDEX ON t (g)");
    for first in [0, 10_000, 20_000] {
        let rows = format!("generate_series({first}, {first} + 9999) i");
        ok(&mut session, &format!("INSERT INTO t SELECT i, i % 100, 'n' || i FROM {rows}"));
    }
    let values: Vec<String> = (0..20_000).map(|i| format!("({i})")).collect();
    let list: Vec<String> = (0..20_000).map(|i| i.to_string()).collect();
    for (query, expected) in [
        ("SELECT count(i + 1) FROM generate_series(1, 30000) i".to_owned(), "30000"),
        (format!("SELECT count(v + 1) FROM (VALUES {}) AS v(v)", values.join(",")), "20000"),
        (format!("SELECT count(*) FROM t WHERE id IN ({})", list.join(",")), "20000"),
        ("SELECT count(*) FROM t WHERE g + 0 = 7".to_owned(), "300"),
        ("SELECT count(*) FROM t WHERE g >= 0".to_owned(), "30000"),
        ("SELECT count(*) FROM (SELECT g, name FROM t ORDER BY name) AS q".to_owned(), "30000"),
        ("SELECT max(n) FROM (SELECT name AS n FROM t ORDER BY n LIMIT 20000) AS q".to_owned(), "n27998"),
        ("SELECT count(*) FROM (SELECT DISTINCT id FROM t) AS q".to_owned(), "30000"),
        ("SELECT count(*) FROM (SELECT DISTINCT ON (g) g FROM t) AS q".to_owned(), "100"),
        ("SELECT count(*) FROM (SELECT id, count(*), max(name) FROM t GROUP BY id) AS q".to_owned(), "30000"),
        ("SELECT count(DISTINCT id % 20000), length(string_agg('x', '' ORDER BY name)) FROM t".to_owned(), "20000|30000"),
        ("SELECT count(*) FROM (SELECT id FROM t UNION SELECT id + 1 FROM t) AS q".to_owned(), "30001"),
        ("SELECT count(*) FROM (SELECT id FROM t UNION ALL SELECT id FROM t) AS q".to_owned(), "60000"),
        ("SELECT count(*) FROM (SELECT id FROM t INTERSECT SELECT id + 1 FROM t) AS q".to_owned(), "29999"),
        ("SELECT count(*) FROM (SELECT id FROM t EXCEPT ALL SELECT id + 1 FROM t) AS q".to_owned(), "1"),
        ("SELECT count(*) FROM t x JOIN t y ON x.id + 0 = y.id + 0".to_owned(), "30000"),
        ("SELECT count(*) FROM t x FULL JOIN t y ON x.id + 0 = y.id + 1".to_owned(), "30001"),
        ("SELECT count(*) FROM generate_series(1, 300) i CROSS JOIN generate_series(1, 300) j".to_owned(), "90000"),
        ("SELECT count(*) FROM generate_series(0, 29999) i JOIN t ON t.id = i".to_owned(), "30000"),
        ("SELECT count(*) FROM generate_series(0, 99) i LEFT JOIN t ON t.g = i".to_owned(), "30000"),
        ("SELECT max(n) FROM (SELECT row_number() OVER (PARTITION BY g ORDER BY id) AS n FROM t) AS q".to_owned(), "300"),
        ("SELECT count(*) FROM (SELECT unnest(ARRAY[id, g, 1]) FROM t) AS q".to_owned(), "90000"),
        ("SELECT count(*) FROM t WHERE id IN (SELECT id + 1 FROM t)".to_owned(), "29999"),
        ("SELECT count(*) FROM t WHERE id > ALL (SELECT g FROM t)".to_owned(), "29900"),
        ("SELECT count(*) FROM (SELECT id FROM t OFFSET 10000 LIMIT 15000) AS q".to_owned(), "15000"),
    ] {
        assert_eq!(rows(&mut session, &query), [expected], "{}", &query[..query.len().min(200)]);
    }
    let StatementResult::Done { tag, .. } = ok(&mut session, "UPDATE t SET g = g + 1") else {
        panic!("UPDATE gives no rows");
    };
    assert_eq!(tag, "UPDATE 30000");
    assert_eq!(rows(&mut session, "DELETE FROM t RETURNING id").len(), 30_000);
}
