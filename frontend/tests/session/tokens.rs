//! Transactions under idempotency tokens.
//!
//! The sessions run on a cluster of three nodes in this process, and use tokens again. A test fails if a token that has committed
//! changes rows again, if `gannet_outcome` does not decide, or if a session answers another tag or SQLSTATE than documented.
//!
//! *Source*: `docs/sql.md`, "Tokens".
//!
//! *Not here*: tokens of the engine (`tests/tokens.rs`), and runs at another node after a death
//! (`tests/server/tokens.rs`).

use gannet_frontend::{Session, StatementResult, TransactionStatus};

use crate::{code, database, ok, rows, run};

/// The tag of a statement that gives no rows.
fn tag(session: &mut Session, sql: &str) -> String {
    match ok(session, sql) {
        StatementResult::Done { tag, .. } => tag,
        other => panic!("{sql} gave {other:?}"),
    }
}

fn set(session: &mut Session, token: &str) {
    assert_eq!(tag(session, &format!("SET gannet.idempotency_token = '{token}'")), "SET");
}

fn outcome(session: &mut Session, token: &str) -> String {
    rows(session, &format!("SELECT gannet_outcome('{token}')")).remove(0)
}

#[test]
fn a_statement_on_its_own_runs_once() {
    let database = database();
    let mut session = database.session("tester");
    // The token is for the next transaction that writes, of whatever kind.
    set(&mut session, "app:1");
    assert_eq!(rows(&mut session, "SHOW gannet.idempotency_token"), ["app:1"]);
    assert_eq!(rows(&mut session, "SELECT 1"), ["1"]);
    let create = "CREATE TABLE item (id INT PRIMARY KEY, n INT)";
    assert_eq!(tag(&mut session, create), "CREATE TABLE");
    assert_eq!(rows(&mut session, "SHOW gannet.idempotency_token"), [""]);
    assert_eq!(code(&mut session, create), "42P07");
    set(&mut session, "app:1");
    assert_eq!(tag(&mut session, create), "CREATE TABLE");
    let insert = "INSERT INTO item SELECT coalesce(max(id), 0) + 1, 7 FROM item";
    for token in ["app:2", "app:2", "app:3"] {
        set(&mut session, token);
        assert_eq!(tag(&mut session, insert), "INSERT 0 1");
    }
    assert_eq!(rows(&mut session, "SELECT count(*) FROM item"), ["2"]);
    // Without a token each is another one.
    assert_eq!(tag(&mut session, insert), "INSERT 0 1");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM item"), ["3"]);
    // Rows of RETURNING are not kept.
    let update = "UPDATE item SET n = n + 1 WHERE id < 3 RETURNING n";
    for expected in [&["8", "8"][..], &[]] {
        set(&mut session, "app:4");
        let StatementResult::Rows { columns, rows, tag } = ok(&mut session, update) else {
            panic!("the statement gives rows")
        };
        assert_eq!((columns.len(), rows.len(), tag.as_str()), (1, expected.len(), "UPDATE 2"));
    }
    assert_eq!(rows(&mut session, "SELECT DISTINCT n FROM item WHERE id < 3"), ["8"]);
    // A statement that fails has written nothing, and its token neither.
    set(&mut session, "app:5");
    assert_eq!(code(&mut session, "INSERT INTO item VALUES (1, 1)"), "23505");
    set(&mut session, "app:5");
    assert_eq!(tag(&mut session, "DELETE FROM item WHERE id = 1"), "DELETE 1");
    assert_eq!(outcome(&mut session, "app:5"), "committed");
}

#[test]
fn a_transaction_runs_once() {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY)");
    set(&mut session, "app:1");
    ok(&mut session, "BEGIN");
    ok(&mut session, "INSERT INTO item VALUES (1)");
    assert_eq!(code(&mut session, "SET gannet.idempotency_token = 'app:2'"), "25001");
    ok(&mut session, "ROLLBACK");
    // What was rolled back has left the token as it was.
    set(&mut session, "app:1");
    ok(&mut session, "BEGIN");
    ok(&mut session, "INSERT INTO item VALUES (2)");
    assert_eq!(tag(&mut session, "COMMIT"), "COMMIT");
    for statement in ["INSERT INTO item VALUES (3)", "SELECT 1", "COPY item FROM STDIN"] {
        set(&mut session, "app:1");
        assert_eq!(tag(&mut session, "BEGIN"), "BEGIN");
        let error = run(&mut session, statement).unwrap_err();
        assert_eq!(error.code, "25000", "{statement}");
        assert!(error.message.contains("\"app:1\" has committed already: COMMIT"), "{error:?}");
        assert_eq!(tag(&mut session, "COMMIT"), "COMMIT");
        assert_eq!(session.status(), TransactionStatus::Idle);
    }
    assert_eq!(rows(&mut session, "SELECT id FROM item"), ["2"]);
    // The next transaction has no token.
    ok(&mut session, "BEGIN");
    ok(&mut session, "INSERT INTO item VALUES (3)");
    ok(&mut session, "COMMIT");
    assert_eq!(rows(&mut session, "SELECT count(*) FROM item"), ["2"]);
    // A transaction that only reads has an outcome, too.
    set(&mut session, "app:2");
    ok(&mut session, "BEGIN");
    ok(&mut session, "SELECT 1");
    ok(&mut session, "COMMIT");
    assert_eq!(outcome(&mut session, "app:2"), "committed");
    for statement in ["INSERT INTO item VALUES (4)", "BEGIN"] {
        set(&mut session, "app:1");
        assert_eq!(code(&mut session, statement), "55000", "{statement}");
        assert_eq!(session.status(), TransactionStatus::Idle);
    }
}

#[test]
fn a_question_decides() {
    let database = database();
    let (mut session, mut other) = (database.session("tester"), database.session("other"));
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY)");
    set(&mut session, "app:1");
    ok(&mut session, "BEGIN");
    ok(&mut session, "INSERT INTO item VALUES (1)");
    assert_eq!(outcome(&mut other, "app:1"), "aborted");
    assert_eq!(code(&mut session, "COMMIT"), "40001");
    for statement in ["INSERT INTO item VALUES (1)", "BEGIN"] {
        set(&mut session, "app:1");
        assert_eq!(code(&mut session, statement), "40000", "{statement}");
        assert_eq!(session.status(), TransactionStatus::Idle);
    }
    assert_eq!(rows(&mut session, "SELECT count(*) FROM item"), ["0"]);
    set(&mut session, "app:2");
    ok(&mut session, "INSERT INTO item VALUES (1)");
    assert_eq!(outcome(&mut other, "app:2"), "committed");
    assert_eq!(code(&mut other, "SELECT gannet_outcome('app:1')"), "55000");
    assert_eq!(rows(&mut other, "SELECT gannet_outcome(NULL)"), ["NULL"]);
    // Each row is a question.
    let each = "SELECT gannet_outcome('app:' || n) FROM generate_series(2, 3) n";
    assert_eq!(rows(&mut other, each), ["committed", "aborted"]);
}

#[test]
fn impossible_tokens_are_refused() {
    let database = database();
    let mut session = database.session("tester");
    ok(&mut session, "CREATE TABLE item (id INT PRIMARY KEY, n INT)");
    let long = format!("{}:1", "x".repeat(65));
    for text in ["app", "app:", "app:0", "app:-1", ":1", &long] {
        assert_eq!(
            code(&mut session, &format!("SET gannet.idempotency_token = '{text}'")),
            "22023"
        );
        assert_eq!(code(&mut session, &format!("SELECT gannet_outcome('{text}')")), "22023");
    }
    assert_eq!(code(&mut session, "SELECT gannet_outcome(1)"), "42883");
    // What takes several transactions has no token, and leaves it to the next.
    set(&mut session, "app:1");
    for statement in ["CREATE INDEX ON item (n)", "COPY item FROM STDIN"] {
        assert_eq!(code(&mut session, statement), "0A000", "{statement}");
    }
    assert_eq!(rows(&mut session, "SHOW gannet.idempotency_token"), ["app:1"]);
    ok(&mut session, "RESET gannet.idempotency_token");
    ok(&mut session, "CREATE INDEX ON item (n)");
    set(&mut session, "app:1");
    ok(&mut session, "BEGIN");
    ok(&mut session, "CREATE INDEX ON item (n)");
    ok(&mut session, "COMMIT");
    assert_eq!(outcome(&mut session, "app:1"), "committed");
}
