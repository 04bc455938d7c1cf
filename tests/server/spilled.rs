//! Operators whose rows take more than the memory of a statement: through files with a spill directory, refused without.

use tokio_postgres::Client;
use tokio_postgres::types::FromSqlOwned;

use crate::large::started;

/// Keys that take more memory than a statement may keep.
const KEYS: i32 = 80_000;

async fn first_column<T: FromSqlOwned>(client: &Client, query: &str) -> Vec<T> {
    let rows = client.query(query, &[]).await.unwrap_or_else(|error| panic!("{query}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// Checks that some queries are refused without a directory, whose error says why.
fn refused(queries: &[String]) {
    let (server, _) = started(false, "");
    for query in queries {
        let error = server.failure(&format!("SELECT count(*) FROM ({query}) AS q"));
        assert!(error.contains("53200") && error.contains("--statement-memory"), "{query}: {error}");
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
    // What the order does not say is sorted by as well.
    for order in ["", "ORDER BY j", "ORDER BY j, k"] {
        let first = format!(
            "SELECT DISTINCT ON (j, k) i, i % {KEYS} AS k, 7 AS j FROM {series} {order}"
        );
        let mut found: Vec<i32> = first_column(&client, &first).await;
        found.sort_unstable();
        assert!(found.into_iter().eq(0..KEYS), "{order}");
    }
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    refused(&[last]);
}
