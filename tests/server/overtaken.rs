//! Queries of a whole table under continuous writes: each is overtaken, and succeeds in the end.
//!
//! Four connections of a real server update 20,000 rows, while another one sums up the rows eight times. The test fails if a
//! query or an update ends with an error, or if a sum is lower than the number of updates acknowledged before the query, or
//! higher than that of updates begun before the answer.
//!
//! *Source*: `docs/protocol.md`, "Scan barriers". *Not here*: a barrier step by step (`tests/ordered.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::process::Server;

const ROWS: i64 = 20_000;
const WRITERS: u64 = 4;
const QUERIES: usize = 8;

/// Numbers of updates that have begun, and that were acknowledged.
#[derive(Default)]
struct Updates {
    begun: AtomicI64,
    done: AtomicI64,
    is_over: AtomicBool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_overtaken_gets_through() {
    let server = Server::start(&[]);
    let reader = server.client().await;
    let rows = format!("INSERT INTO t SELECT n, 0 FROM generate_series(1, {ROWS}) AS s(n)");
    let table = "CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT NOT NULL)";
    reader.batch_execute(&format!("{table}; {rows}")).await.unwrap();
    let updates = Arc::new(Updates::default());
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, updates) = (server.client().await, Arc::clone(&updates));
        writers.push(tokio::spawn(async move {
            let update = client.prepare("UPDATE t SET v = v + 1 WHERE id = $1").await.unwrap();
            let mut row = writer.cast_signed();
            while !updates.is_over.load(Ordering::SeqCst) {
                row = (row * 48_271 + 11) % ROWS;
                updates.begun.fetch_add(1, Ordering::SeqCst);
                // The update waits for the query if necessary, and never fails.
                assert_eq!(client.execute(&update, &[&(row + 1)]).await.unwrap(), 1);
                updates.done.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let mut last = 0;
    for _ in 0..QUERIES {
        // Writers are not kept out for good: there are updates between any two queries.
        while updates.done.load(Ordering::SeqCst) == last {
            tokio::task::yield_now().await;
        }
        let before = updates.done.load(Ordering::SeqCst);
        let query = "SELECT count(*), sum(v)::BIGINT FROM t";
        let found = reader.query_one(query, &[]).await.unwrap();
        let after = updates.begun.load(Ordering::SeqCst);
        let (count, sum): (i64, i64) = (found.get(0), found.get(1));
        assert_eq!(count, ROWS);
        assert!((before..=after).contains(&sum), "{sum} is not between {before} and {after}");
        last = updates.done.load(Ordering::SeqCst);
    }
    updates.is_over.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
}
