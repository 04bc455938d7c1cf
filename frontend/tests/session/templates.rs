//! Statements that share a plan with others, which differ in their numbers, give what they give with a plan of their own.
//!
//! Two sessions on two clusters in this process run the same statements, while the catalog changes twice. In one session
//! a comment keeps each statement from sharing a plan. The test fails if a result, an error or the place of an error
//! differs between the sessions. Another test wants no shared plan for a catalog that is not committed.
//!
//! *Not here*: which texts have a template (the unit tests in `frontend/src/session/template.rs`).

use gannet_frontend::{Session, SqlError, StatementResult};

use crate::{database, ok, rows, run};

const NUMBERS: [&str; 18] = [
    "0",
    "1",
    "2",
    "007",
    "32767",
    "32768",
    "2147483647",
    "2147483648",
    "2147483649",
    "3000000000",
    "9223372036854775807",
    "9223372036854775808",
    "99999999999999999999999999999999",
    "1.5",
    "2.50",
    "0.005",
    "1.",
    "12345.678",
];

/// Statements with a number in the place of `#`, and with the next one in the place of `@`.
const PATTERNS: [&str; 35] = [
    "SELECT * FROM t WHERE id = #",
    "SELECT * FROM t WHERE id = -#",
    "SELECT id, #, n + @ FROM t WHERE id = 1",
    "SELECT # AS a, -# AS b, n / @, n * #, s - #, d * #, m / @ FROM t WHERE id = 2",
    "SELECT n FROM t WHERE id = 1 AND n > # AND m < @",
    "SELECT n FROM t WHERE id = 1 OR id = #",
    "SELECT n FROM t WHERE id = 1 AND # = @",
    "SELECT n FROM t WHERE id = 1 AND NOT n BETWEEN # AND @",
    "SELECT n FROM t WHERE id = 1 AND text = #",
    "SELECT id, n FROM t WHERE id IN (#, @, 1)",
    "SELECT id, n FROM t WHERE id IN (2, #, 2, 1) AND n NOT IN (@, 3)",
    "SELECT n FROM t WHERE id = 1 AND m IN (#, @)",
    "SELECT n IN (#, @), s IN (#) FROM t WHERE id = 2",
    "UPDATE t SET n = n - 1 WHERE id IN (#, -@)",
    "SELECT missing FROM t WHERE id = #",
    "SELECT n FROM missing WHERE id = #",
    "SELECT n FROM t WHERE n = #",
    "SELECT n FROM t WHERE id = 1 AND n % # = 0",
    "UPDATE t SET n = n + # WHERE id = 1",
    "UPDATE t SET s = #, n = -@ WHERE id = 2",
    "UPDATE t SET m = m * # WHERE id = 2",
    "UPDATE t SET d = # WHERE id = 1; ",
    "UPDATE t SET b = n > # WHERE id = 1",
    "UPDATE t SET b = # WHERE id = 1",
    "UPDATE t SET text = # WHERE id = 2",
    "INSERT INTO t VALUES (#, @, #, @, #, TRUE, DEFAULT)",
    "INSERT INTO public.t (id, n) VALUES (#, @), (@, 1)",
    "INSERT INTO t (id, n) VALUES (#)",
    "INSERT INTO t (id, text) VALUES (#, @)",
    "SELECT n FROM t WHERE id = 2 LIMIT #",
    "SELECT n FROM t WHERE id = # LIMIT -@ OFFSET 0",
    "SELECT n FROM t WHERE id = 2 OFFSET # LIMIT @",
    "SELECT n FROM t WHERE id = 2 OFFSET -#",
    "DELETE FROM t WHERE id = # AND n < @",
    "DELETE FROM t WHERE id = # FOR UPDATE",
];

/// In front of a text that shall have a plan of its own.
const COMMENT: &str = "/**/ ";

fn session() -> Session {
    let mut session = database().session("tester");
    let types =
        "n INT DEFAULT 5, s SMALLINT, m NUMERIC(8, 2), d DOUBLE PRECISION, b BOOLEAN, text TEXT";
    ok(&mut session, &format!("CREATE TABLE t (id INT PRIMARY KEY, {types} DEFAULT 'none')"));
    ok(
        &mut session,
        "INSERT INTO t VALUES (1, 10, 3, 2.75, 0.5, FALSE, '7'), (2, NULL, 4, 1.10, 2, TRUE, 'x')",
    );
    session
}

fn is_same(
    (text, shared): (&str, &Result<StatementResult, SqlError>),
    own: Result<StatementResult, SqlError>,
) {
    match (shared, own) {
        (Err(shared), Err(own)) => {
            let place = own.position.map(|place| place - COMMENT.len());
            let own = SqlError { position: place, ..own };
            assert_eq!(format!("{shared:?}"), format!("{own:?}"), "{text}");
        }
        (shared, own) => assert_eq!(format!("{shared:?}"), format!("{own:?}"), "{text}"),
    }
}

#[test]
fn shared_plans_give_what_own_plans_give() {
    let (mut sharing, mut other) = (session(), session());
    let mut compared = |text: &str| {
        let shared = run(&mut sharing, text);
        is_same((text, &shared), run(&mut other, &format!("{COMMENT}{text}")));
        shared.is_ok()
    };
    let (mut succeeded, mut failed) = (0, 0);
    for round in 0..3 {
        for pattern in PATTERNS {
            for (at, number) in NUMBERS.iter().enumerate() {
                let next = NUMBERS[(at + 1 + round) % NUMBERS.len()];
                let text = pattern.replace('#', number).replace('@', next);
                if compared(&text) { succeeded += 1 } else { failed += 1 }
            }
        }
        assert!(compared("SELECT * FROM t ORDER BY id") || round == 2);
        // Plans are made anew when the catalog has changed.
        let change = ["ALTER TABLE t ADD COLUMN more INT DEFAULT 3", "DROP TABLE t"];
        if let Some(change) = change.get(round) {
            assert!(compared(change));
        }
    }
    assert!(succeeded > 500 && failed > 200, "{succeeded} have succeeded, {failed} have failed");
}

/// A transaction that has changed the catalog sees its own tables.
#[test]
fn plans_of_a_catalog_that_is_not_committed_are_not_shared() {
    let mut session = session();
    let text = "SELECT n FROM t WHERE id = 1";
    assert_eq!(rows(&mut session, text), ["10"]);
    ok(&mut session, "BEGIN");
    ok(&mut session, "DROP TABLE t");
    ok(&mut session, "CREATE TABLE t (id TEXT PRIMARY KEY, n TEXT)");
    assert_eq!(run(&mut session, text).unwrap_err().code, "42883");
    ok(&mut session, "ROLLBACK");
    assert_eq!(rows(&mut session, text), ["10"]);
    ok(&mut session, "BEGIN");
    ok(&mut session, "ALTER TABLE t ADD COLUMN more INT DEFAULT 3");
    assert_eq!(rows(&mut session, "SELECT more FROM t WHERE id = 2"), ["3"]);
    ok(&mut session, "COMMIT");
    assert_eq!(rows(&mut session, "SELECT more FROM t WHERE id = 2"), ["3"]);
}
