//! What is computed once for a statement is counted.

use pollster::block_on;

use crate::database::Database;
use crate::session::StatementResult;
use crate::value::Value;

/// What is computed aside is counted there.
#[test]
fn what_is_made_of_constants_is_computed_once() {
    let database = Database::of_one_node(32 << 20);
    let mut session = database.session("tester");
    let series = "generate_series(1, 5000) i";
    let constant = "regexp_replace(lower('ABC'), 'b', 'x')";
    let array = format!("'{{{}0}}'::INT[]", "1,".repeat(150_000));
    for (query, jobs) in [
        (format!("SELECT count(*) FROM {series} WHERE {constant} = 'axc'"), 1),
        (format!("SELECT count({constant} || i) FROM {series}"), 1),
        (
            format!(
                "SELECT count(*) FROM {series} WHERE i > 0 AND upper({constant}) IN ('AXC', 'x')"
            ),
            1,
        ),
        // Twice written is twice computed; what is not needed is not computed.
        (
            format!(
                "SELECT count(*) FROM {series} WHERE {constant} = 'axc' AND 'axc' = {constant}"
            ),
            2,
        ),
        (format!("SELECT count(*) FROM {series} WHERE i > 0 OR {constant} = 'axc'"), 0),
        // What a value of the row is among.
        (format!("SELECT count(regexp_replace(i::TEXT, 'b', 'x')) FROM {series}"), 5_000),
        // A large constant is read once, and not when the statement is planned.
        (format!("SELECT count(*) FROM {series} WHERE cardinality({array}) = 150001"), 1),
        (format!("SELECT count(*) FROM {series} WHERE i < 0 AND cardinality({array}) = 3"), 0),
    ] {
        let before = database.aside.jobs();
        let result = block_on(session.execute(&query)).unwrap();
        let StatementResult::Rows { rows, .. } = result else { panic!("no rows") };
        let count = if query.contains("i < 0") { 0 } else { 5_000 };
        assert_eq!(rows, [[Value::Integer(count)]]);
        let shown = &query[..query.len().min(100)];
        let found = database.aside.jobs() - before;
        // Large values are handed from one job to the next.
        let is_large = query.len() > 10_000;
        assert!(
            if is_large { found <= 4 * jobs && found >= jobs } else { found == jobs },
            "{shown}: {found}"
        );
    }
}
