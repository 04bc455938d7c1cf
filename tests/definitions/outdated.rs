//! Statements with an old catalog, while definitions are made elsewhere.
//!
//! Two parties share only the tables of a cluster in this process. One party adds columns, the other queries with the last
//! catalog that it has seen. `outdated` counts the queries that fail or miss a column; `tests/definitions.rs` demands none.

use std::sync::Arc;

use gannet_engine::{Cluster, ClusterOptions};
use gannet_frontend::{Database, Session, SqlError, StatementResult, Value};
use pollster::block_on;

/// Definitions of a run.
pub(crate) const DEFINITIONS: usize = 12;

/// A cluster with `count` parties that share only its tables.
pub(crate) fn parties(count: usize) -> Vec<Arc<Database>> {
    let options = ClusterOptions {
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Arc::new(Cluster::open(options).unwrap());
    (0..count).map(|_| Database::open(Arc::clone(&cluster)).unwrap()).collect()
}

pub(crate) fn run(session: &mut Session, sql: &str) -> Result<StatementResult, SqlError> {
    block_on(session.execute(sql))
}

/// The only row of a query.
pub(crate) fn row(session: &mut Session, sql: &str) -> Result<Vec<Value>, SqlError> {
    match run(session, sql)? {
        StatementResult::Rows { mut rows, .. } => Ok(rows.pop().unwrap_or_default()),
        _ => Ok(Vec::new()),
    }
}

/// Runs definitions by one party, each followed by queries of another one. Returns the number of queries that ran on an
/// outdated definition, or failed.
pub(crate) fn outdated() -> usize {
    let parties = parties(2);
    let (mut definer, mut reader) = (parties[0].session("definer"), parties[1].session("reader"));
    for sql in ["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"] {
        run(&mut definer, sql).unwrap();
    }
    // The first query visits the nodes in turn. The others run at their row's node, where the reader has seen the catalog's
    // version.
    let queries = [
        "SELECT * FROM t",
        "SELECT * FROM t WHERE id = 1",
        "UPDATE t SET id = 1 WHERE id = 1 RETURNING *",
    ];
    let mut outdated = 0;
    let mut width = 1;
    for number in 0..DEFINITIONS {
        let definition = format!("ALTER TABLE t ADD COLUMN c{number} INT DEFAULT {number}");
        width += usize::from(run(&mut definer, &definition).is_ok());
        // Moves the query to another node each time.
        for _ in 0..number % 3 {
            let _ = run(&mut definer, "SELECT 1");
        }
        for query in [queries[number / 3 % 3], queries[1], queries[2]] {
            let found = row(&mut reader, query);
            outdated += usize::from(found.map_or(0, |row| row.len()) != width);
        }
    }
    outdated
}
