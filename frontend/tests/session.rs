//! Sessions: parameters, COPY, limits, cancelling, conflicts, cached plans and catalogs.

use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{
    DataType, Database, Session, SqlError, StatementResult, TransactionStatus, Value,
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

fn ok(session: &mut Session, sql: &str) -> StatementResult {
    run(session, sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

fn code(session: &mut Session, sql: &str) -> &'static str {
    match run(session, sql) {
        Ok(result) => panic!("{sql} gave {result:?}"),
        Err(error) => error.code,
    }
}

/// The rows of a query as texts.
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
fn parameters_take_their_types_from_where_they_stand() {
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
    // Another session changes the table: the statement is planned again.
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
    // What a transaction has truncated, it fills beside itself.
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
fn what_is_too_large_is_refused_and_the_session_goes_on() {
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
        // Whatever it gives, the session goes on.
        let _ = run(&mut session, statement);
        assert_eq!(rows(&mut session, "SELECT 1"), ["1"], "after {statement}");
    }
}
