//! Table memory is reused: freed memory serves rows of other sizes and other tables.
//!
//! *Not here*: memory of statements (`large.rs`, `spilled.rs`).

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::failures::awaited;
use crate::nodes::{free_address, get};
use crate::process::Server;

/// Bytes of text in the rows.
const SIZES: [usize; 5] = [200, 8, 3_000, 60, 700];
/// Bytes of rows in a statement that adds some.
const STATEMENT_BYTES: usize = 10_000;

/// Adds rows with texts of `bytes` and keys from `first` on, until the memory is full. Returns their number.
async fn fill(client: &Client, table: &str, bytes: usize, first: &mut i64) -> i64 {
    let rows = i64::try_from(STATEMENT_BYTES / bytes).unwrap().max(1);
    let insert = format!(
        "INSERT INTO {table} SELECT i, repeat('x', {bytes}) FROM generate_series($1::int8, $2) s (i)"
    );
    let insert = client.prepare(&insert).await.unwrap();
    let start = *first;
    loop {
        let last = *first + rows - 1;
        match client.execute(&insert, &[first, &last]).await {
            Ok(_) => *first += rows,
            Err(error) => {
                assert_eq!(error.code(), Some(&SqlState::OUT_OF_MEMORY), "{error:?}");
                return *first - start;
            }
        }
    }
}

/// All table memory of the nodes, and what of it main buckets take.
fn memory_bytes(metrics: &str) -> [u64; 2] {
    let text = get(metrics, "/metrics");
    ["gannet_memory_bytes{", "gannet_memory_reserved_bytes{"].map(|name| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    })
}

/// Each round has new keys. A table is emptied by DELETE, TRUNCATE or DROP.
#[tokio::test]
async fn rows_of_every_size_reuse_freed_memory() {
    let metrics = free_address();
    let server = Server::start(&["--memory", "8MiB", "--metrics", &metrics]);
    let client = server.client().await;
    let mut first = 1;
    let mut fit = [0; SIZES.len()];
    let [mut empty_bytes, mut empty_buckets] = [0; 2];
    for round in 0..10 {
        for (number, bytes) in SIZES.into_iter().enumerate() {
            let table = format!("t{}", round % 3);
            let create =
                format!("CREATE TABLE IF NOT EXISTS {table} (id BIGINT PRIMARY KEY, text TEXT)");
            client.batch_execute(&create).await.unwrap();
            if round == 0 && number == 0 {
                [empty_bytes, empty_buckets] = memory_bytes(&metrics);
            }
            let rows = fill(&client, &table, bytes, &mut first).await;
            let [full_bytes, _] = memory_bytes(&metrics);
            if round == 0 {
                fit[number] = rows;
            }
            // Tables that DELETE has emptied keep their buckets.
            assert!(
                rows * 10 >= fit[number] * 7,
                "round {round}: {rows} rows of {bytes} bytes, {} at first",
                fit[number]
            );
            let empty = ["DELETE FROM", "TRUNCATE", "DROP TABLE"][(round + number) % 3];
            client.batch_execute(&format!("{empty} {table}")).await.unwrap();
            assert!(full_bytes > empty_bytes * 3, "{full_bytes} bytes of a table that is full");
            let of_rows_max = empty_bytes - empty_buckets + empty_bytes / 10;
            // Where others keep the workers busy, the memory of a dropped table comes back a little later.
            awaited("the memory of rows comes back", || {
                let [bytes, buckets] = memory_bytes(&metrics);
                (bytes - buckets < of_rows_max).then_some(())
            });
        }
    }
    client.batch_execute("DROP TABLE IF EXISTS t0, t1, t2").await.unwrap();
    awaited("all memory of the tables comes back", || {
        let [bytes, _] = memory_bytes(&metrics);
        (bytes < empty_bytes * 11 / 10).then_some(())
    });
}

/// Main buckets are there before rows, and grow with their number; the memory of rows comes and goes.
#[test]
fn main_buckets_are_counted_separately() {
    let metrics = free_address();
    let server = Server::start(&["--memory", "128MiB", "--metrics", &metrics]);
    let both = || {
        let sum = "SELECT sum(memory_bytes), sum(memory_reserved_bytes) FROM gannet_nodes";
        let text = server.query(sum);
        let (used, reserved) = text.split_once('|').unwrap();
        [used, reserved].map(|bytes| bytes.parse::<u64>().unwrap())
    };
    let [used, reserved] = both();
    // Buckets for the catalog, counters and tokens at each of three nodes, and the few rows of an empty database.
    assert!((1 << 20..3 << 20).contains(&reserved), "{reserved} of {used}");
    assert!((reserved..reserved + (1 << 20)).contains(&used), "{reserved} of {used}");
    server.query("CREATE TABLE t (id BIGINT PRIMARY KEY, text TEXT)");
    server.query("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 4000) i");
    let [after, grown] = both();
    assert!((reserved..reserved + (3 << 20)).contains(&grown), "{grown} after {reserved}");
    assert!(after > grown + 3 * 4_000_000, "{after}, {grown} of it");
    server.query("TRUNCATE t");
    let reserved = awaited("the growth has ended, and all is given back", || {
        let [after, still] = both();
        (after < used + (1 << 20) && still < reserved + (1 << 20)).then_some(still)
    });
    assert_eq!(memory_bytes(&metrics)[1], reserved);
}

#[test]
fn buckets_are_added_as_rows_are_inserted() {
    let server = Server::start(&["--memory", "192MiB"]);
    let reserved = || {
        let sum = server.query("SELECT sum(memory_reserved_bytes) FROM gannet_nodes");
        sum.parse::<u64>().unwrap()
    };
    let before = reserved();
    server.query("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT)");
    for part in 0..4_u64 {
        let (first, last) = (part * 60_000 + 1, (part + 1) * 60_000);
        let insert = format!("INSERT INTO t SELECT i, i FROM generate_series({first}, {last}) i");
        server.query(&insert);
        let counted = server.query("SELECT count(*), sum(n), min(id), max(id) FROM t");
        assert_eq!(counted, format!("{last}|{}|1|{last}", last * (last + 1) / 2));
    }
    // Four times the rows that there are buckets for at the start. Growth goes on beside statements.
    awaited("the table has grown", || (reserved() > 2 * before).then_some(()));
    assert_eq!(server.query("SELECT n FROM t WHERE id = 123456"), "123456");
    server.query("DELETE FROM t WHERE id > 1000");
    assert_eq!(server.query("SELECT count(*) FROM t"), "1000");
}
