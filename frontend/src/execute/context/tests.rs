//! Constant parts of a statement are computed once: computations on other threads are counted.
//!
//! A session runs queries over 5,000 rows, on a cluster of one node in this process. Jobs of `aside` compute patterns and
//! large values. The test fails if a query takes another number of jobs than it has constants that are needed, or if an
//! expression of a row's value is not computed for each row. One large constant may take up to four jobs.

use pollster::block_on;

use crate::database::Database;
use crate::session::StatementResult;
use crate::value::Value;

/// Large values are computed on other threads, whose jobs are counted.
#[test]
fn constant_expressions_are_computed_once() {
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
        // An expression that is written twice is computed twice; one that is not needed is not computed.
        (
            format!(
                "SELECT count(*) FROM {series} WHERE {constant} = 'axc' AND 'axc' = {constant}"
            ),
            2,
        ),
        (format!("SELECT count(*) FROM {series} WHERE i > 0 OR {constant} = 'axc'"), 0),
        // Expressions that depend on a row's value.
        (format!("SELECT count(regexp_replace(i::TEXT, 'b', 'x')) FROM {series}"), 5_000),
        // A large constant is read once, and not during planning.
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
        // Large values are passed from one job to the next.
        let is_large = query.len() > 10_000;
        assert!(
            if is_large { found <= 4 * jobs && found >= jobs } else { found == jobs },
            "{shown}: {found}"
        );
    }
}
