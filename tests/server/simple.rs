//! The simple protocol, by psql.
//!
//! psql runs scripts at a real server. A test fails if rows, command tags or SQLSTATEs are not those
//! expected, if psql shows an error at another place of the statement, if statements of one message are
//! not one transaction, or if cursors and portals exceed the memory of a statement.
//!
//! *Not here*: the extended protocol (`extended.rs`), the same statements at PostgreSQL (`answers.rs`).

use std::io::Write;
use std::process::Stdio;

use crate::process::{Server, errors};

#[test]
fn psql_runs_statements() {
    let server = Server::start(&[]);
    assert_eq!(server.query("SELECT 1"), "1");
    server.query(
        "CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL, balance NUMERIC(12,2))",
    );
    server.query("INSERT INTO account VALUES (1, 'Ada', 10.50), (2, 'Ben', NULL)");
    assert_eq!(server.query("SELECT * FROM account ORDER BY id"), "1|Ada|10.50\n2|Ben|");
    assert_eq!(server.query("SHOW server_version").split('.').next(), Some("15"));
}

#[test]
fn statements_return_their_command_tags() {
    let server = Server::start(&[]);
    let script = "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2); UPDATE t SET a = 3; DELETE FROM t";
    let output = server.psql().args(["-X", "-c", script]).output().unwrap();
    let tags = String::from_utf8(output.stdout).unwrap();
    assert_eq!(tags, "CREATE TABLE\nINSERT 0 2\nUPDATE 2\nDELETE 2\n");
}

/// Asserts that the error of a two-line statement has its caret at a word in the second line, and names `named`.
fn assert_shown(server: &Server, statement: &str, wrong: &str, named: &str) {
    let refused = server.failure(statement);
    let second = statement.lines().nth(1).unwrap();
    let caret = " ".repeat("LINE 2: ".len() + second.find(wrong).unwrap());
    let line = format!("LINE 2: {second}");
    assert!(format!("{refused}\n").contains(&format!("{line}\n{caret}^\n")), "{refused}");
    assert!(refused.lines().next().unwrap().contains(named), "{refused}");
}

#[test]
fn errors_of_groups_unions_and_keys_have_their_place() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL)");
    for (statement, wrong, named) in [
        (
            "SELECT owner,\n id + 1 FROM account GROUP BY owner",
            "id",
            "42803: column \"account.id\"",
        ),
        (
            "SELECT max(owner), lower(owner),\n a.owner FROM account a GROUP BY lower(owner)",
            "a.owner",
            "42803: column \"a.owner\"",
        ),
        ("SELECT max(id) FROM account\n HAVING id > 1", "id", "\"account.id\""),
        ("SELECT max(id) FROM account\n ORDER BY owner", "owner", "\"account.owner\""),
        ("SELECT 1 FROM account\n WHERE max(id) = 1", "max", "42803: aggregate functions"),
        ("SELECT 1 FROM account\n GROUP BY sum(id)", "sum", "42803: aggregate functions"),
        ("SELECT sum(\n max(id)) FROM account", "max", "functions such as max"),
        ("SELECT id FROM account UNION\n SELECT owner FROM account", "owner", "integer and text"),
        ("VALUES (1, 1) EXCEPT\n SELECT 1, TRUE", "TRUE", "EXCEPT types integer and boolean"),
        ("SELECT 1, 2 UNION\n SELECT 7", "7", "42601: each UNION query"),
        ("CREATE TABLE thing (id int,\n PRIMARY KEY (ident))", "ident", "42703: column \"ident\""),
        ("CREATE TABLE thing (id int,\n UNIQUE (id, idd))", "idd", "42703: column \"idd\""),
        ("CREATE INDEX ON account\n (id, ownr)", "ownr", "42703: column \"ownr\""),
        ("ALTER TABLE account\n ADD UNIQUE (ownr)", "ownr", "42703: column \"ownr\""),
    ] {
        assert_shown(&server, statement, wrong, named);
    }
    // psql shows the last error again.
    let script = "SELECT id FROM account UNION SELECT owner FROM account;\n\\errverbose\n";
    let mut psql = server.psql();
    psql.args(["-X", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut psql = psql.stderr(Stdio::piped()).spawn().unwrap();
    psql.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let said = errors(&psql.wait_with_output().unwrap());
    let (_, again) = said.split_once("42804: UNION types integer and text").unwrap();
    assert!(again.contains("DETAIL:  column 1 is \"id\"\n"), "{said}");
    assert!(
        again.contains(&format!(
            "\n{}^\n",
            " ".repeat("LINE 1: SELECT id FROM account UNION SELECT ".len())
        )),
        "{said}"
    );
}

#[test]
fn errors_have_code_place_and_hint() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL)");
    let unknown = server.failure("SELECT id,\n  ownr FROM account");
    assert!(unknown.contains("ERROR:  42703: "), "{unknown}");
    assert!(unknown.contains("LINE 2:   ownr FROM account\n          ^"), "{unknown}");
    assert!(unknown.contains("HINT:") && unknown.contains("owner"), "{unknown}");
    for statement in ["SELECT *\n  FROM acount", "UPDATE\n       acount SET id = 1"] {
        let unknown = server.failure(statement);
        assert!(unknown.contains("ERROR:  42P01: "), "{unknown}");
        assert!(
            unknown.contains("LINE 2: ") && unknown.contains("\n               ^"),
            "{unknown}"
        );
    }
    for (statement, wrong, named) in [
        ("INSERT INTO account\n (id, ownr) VALUES (1, 'Ada')", "ownr", "\"ownr\""),
        ("INSERT INTO account\n VALUES (TRUE, 'Ada')", "TRUE", "\"id\" is of type integer"),
        ("UPDATE account SET\n ownr = 1", "ownr", "\"ownr\""),
        ("UPDATE account SET\n id = owner", "owner", "of type text"),
        (
            "CREATE INDEX ON account\n (owner text_pattern_ops)",
            "owner",
            "class text_pattern_ops of column owner",
        ),
        ("CREATE TABLE thing (\n id int, document json)", "document", "column document"),
        ("SELECT\n abs(owner) FROM account", "abs", "abs(text)"),
    ] {
        assert_shown(&server, statement, wrong, named);
    }
    let null = server.failure("INSERT INTO account VALUES (1, NULL)");
    assert!(null.contains("ERROR:  23502: "), "{null}");
    assert!(null.contains("TABLE NAME:  account\nCOLUMN NAME:  owner\n"), "{null}");
    server.query("INSERT INTO account VALUES (1, 'Ada')");
    let twice = server.failure("INSERT INTO account VALUES (1, 'Ben')");
    assert!(twice.contains("ERROR:  23505: "), "{twice}");
    assert!(twice.contains("TABLE NAME:  account\nCONSTRAINT NAME:  account_pkey\n"), "{twice}");
    assert!(server.failure("SELECT 1/0").contains("22012"));
    assert!(server.failure("SELEC 1").contains("42601"));
}

#[test]
fn statements_of_one_message_are_one_transaction() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE t (a INTEGER PRIMARY KEY)");
    let error = server.failure("INSERT INTO t VALUES (1); INSERT INTO t VALUES (1)");
    assert!(error.contains("23505"), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM t"), "0");
    let error = server.failure("INSERT INTO t VALUES (1); VACUUM");
    assert!(error.contains("25001"), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM t"), "0");
    server.query("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)");
    assert_eq!(server.query("SELECT count(*) FROM t"), "2");
}

#[test]
fn the_place_of_an_error_counts_from_the_first_statement() {
    let server = Server::start(&[]);
    let error = server.failure("SELECT 'é'; SELECT nothing");
    assert!(
        error.contains("LINE 1: SELECT 'é'; SELECT nothing\n                           ^"),
        "{error}"
    );
}

#[test]
fn a_failed_transaction_refuses_statements_until_rollback() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE t (a INTEGER PRIMARY KEY)");
    let script = "BEGIN;\nINSERT INTO t VALUES (1);\nSELECT 1/0;\nSELECT 2;\nCOMMIT;\nSELECT count(*) FROM t;\n";
    let file = crate::process::folder("failed-transaction").join("script.sql");
    std::fs::write(&file, script).unwrap();
    let output =
        server.psql().args(["-AtqX", "-v", "VERBOSITY=verbose", "-f"]).arg(&file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n");
    let errors = errors(&output);
    assert!(errors.contains("22012") && errors.contains("25P02"), "{errors}");
}

#[test]
fn psql_describes_tables() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE account (id SERIAL PRIMARY KEY, owner VARCHAR(20) NOT NULL, age INTEGER DEFAULT 7)");
    server.query("CREATE INDEX account_owner ON account (owner)");
    assert!(server.query("\\dt").contains("public|account|table"));
    assert!(server.query("\\di").contains("public|account_owner|index"));
    // psql prints indexes below the rows, where -t omits them.
    let described = server.psql().args(["-AqX", "-c", "\\d account"]).output().unwrap();
    let table = String::from_utf8(described.stdout).unwrap();
    for part in ["id|integer|", "owner|character varying(20)||not null|", "age|integer|||7"] {
        assert!(table.contains(part), "{part} in {table}");
    }
    assert!(table.contains("\"account_pkey\" PRIMARY KEY"), "{table}");
    assert!(table.contains("\"account_owner\" btree (owner)"), "{table}");
}

#[test]
fn a_dropped_connection_rolls_back() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE t (a INTEGER PRIMARY KEY)");
    server.query("BEGIN; INSERT INTO t VALUES (1)");
    server.query("INSERT INTO t VALUES (1)");
    assert_eq!(server.query("SELECT count(*) FROM t"), "1");
}

#[test]
fn psql_reads_by_a_cursor() {
    let server = Server::start(&["--statement-memory", "4MiB"]);
    let query = "SELECT i FROM generate_series(1, 1000) i ORDER BY i";
    let arguments = ["-v", "ON_ERROR_STOP=1", "-v", "FETCH_COUNT=7", "-AtqX", "-c", query];
    let output = server.psql().args(arguments).output().unwrap();
    let expected: String = (1..=1000).map(|i| format!("{i}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    // A cursor's rows are part of a statement's memory.
    let large = "BEGIN; DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 1000000); COMMIT";
    let error = server.failure(large);
    assert!(error.contains("53200") && error.contains("4 MiB of --statement-memory"), "{error}");
}

#[tokio::test]
async fn portals_are_bounded_by_a_statements_memory() {
    let server = Server::start(&["--statement-memory", "4MiB"]);
    let mut client = server.client().await;
    let transaction = client.transaction().await.unwrap();
    let statement = "SELECT repeat('x', 1000) FROM generate_series(1, 1500)";
    let mut portals = Vec::new();
    let error = loop {
        let portal = transaction.bind(statement, &[]).await.unwrap();
        match transaction.query_portal(&portal, 10).await {
            Ok(rows) => assert_eq!(rows.len(), 10),
            Err(error) => break error,
        }
        portals.push(portal);
    };
    assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("53200"));
    assert_eq!(portals.len(), 2);
    drop(portals);
    transaction.rollback().await.unwrap();
    client.query(statement, &[]).await.unwrap();
}
