//! Rows that transactions reserve: hot rows are queued for, FOR UPDATE waits, and no wait is for ever.
//!
//! Connections of tokio-postgres compete for rows of a real server. A test fails if an update of a hot
//! row fails or is lost, if two workers take one job, if a reservation outlives its transaction, if a
//! ring of waiting transactions stays, or if a wait ends with a wrong SQLSTATE.
//!
//! *Source*: `docs/protocol.md`, "Row reservations"; `docs/sql.md`, "Reserved rows".

use std::sync::Arc;
use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock};
use tokio_postgres::Client;

use crate::process::Server;

/// Longer than any wait here, and shorter than a reservation lasts by itself.
const SOON_NS: u64 = 4_000_000_000;

async fn server_with_rows() -> (Server, Client) {
    let server = Server::start(&[]);
    let client = server.client().await;
    let tables =
        "CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE history (n INT)";
    client.batch_execute(tables).await.unwrap();
    client.batch_execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i").await.unwrap();
    (server, client)
}

async fn sqlstate(client: &Client, statement: &str) -> String {
    let error = client.batch_execute(statement).await.expect_err(statement);
    error.as_db_error().unwrap_or_else(|| panic!("{statement}: {error}")).code().code().to_owned()
}

async fn number(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Ten clients run some statements fifty times each, and no statement fails.
async fn run_by_ten(server: &Server, statements: &'static [&'static str]) {
    let mut clients = Vec::new();
    for _ in 0..10 {
        let client = server.client().await;
        clients.push(tokio::spawn(async move {
            for _ in 0..50 {
                for statement in statements {
                    client.batch_execute(statement).await.unwrap();
                }
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_a_hot_row_do_not_fail() {
    let (server, client) = server_with_rows().await;
    run_by_ten(&server, &["UPDATE t SET n = n + 1 WHERE id = 1"]).await;
    assert_eq!(number(&client, "SELECT n::BIGINT FROM t WHERE id = 1").await, 500);
    run_by_ten(
        &server,
        &[
            "BEGIN",
            "UPDATE t SET n = n + 1 WHERE id = 1",
            "SELECT n FROM t WHERE id = 1",
            "UPDATE t SET n = n + 1 WHERE id = 2",
            "INSERT INTO history VALUES (1)",
            "COMMIT",
        ],
    )
    .await;
    assert_eq!(number(&client, "SELECT n::BIGINT FROM t WHERE id = 1").await, 1_000);
    // Those in a block reserve the row, those on their own wait for them.
    let blocks = &[
        "BEGIN",
        "SELECT n FROM t WHERE id = 2 FOR UPDATE",
        "UPDATE t SET n = n + 1 WHERE id = 2",
        "COMMIT",
    ];
    tokio::join!(
        run_by_ten(&server, blocks),
        run_by_ten(&server, &["UPDATE t SET n = n + 1 WHERE id = 2"])
    );
    assert_eq!(number(&client, "SELECT n::BIGINT FROM t WHERE id = 2").await, 1_500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_reserved_is_waited_for_or_not_as_the_client_wants() {
    let (server, holder) = server_with_rows().await;
    let other = server.client().await;
    holder.batch_execute("BEGIN; UPDATE t SET n = 7 WHERE id = 5").await.unwrap();
    let row = "SELECT n FROM t WHERE id = 5 FOR UPDATE";
    assert_eq!(sqlstate(&other, &format!("{row} NOWAIT")).await, "55P03");
    assert_eq!(sqlstate(&other, &format!("SET lock_timeout = '50ms'; {row}")).await, "55P03");
    assert_eq!(
        sqlstate(&other, "SET lock_timeout = '50ms'; BEGIN; DELETE FROM t WHERE id = 5").await,
        "55P03"
    );
    other.batch_execute("ROLLBACK; RESET lock_timeout").await.unwrap();
    let free = "SELECT id FROM t WHERE id BETWEEN 4 AND 6 ORDER BY id FOR UPDATE SKIP LOCKED";
    let rows = other.query(free, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [4, 6]);
    // A reader without FOR UPDATE does not wait.
    assert_eq!(number(&other, "SELECT n::BIGINT FROM t WHERE id = 5").await, 0);
    let waits = tokio::spawn(async move {
        number(&other, "SELECT n::BIGINT FROM t WHERE id = 5 FOR UPDATE").await
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waits.is_finished());
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(waits.await.unwrap(), 7);
    let error = holder.batch_execute("SELECT count(*) FROM t FOR UPDATE").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "0A000");
    let error = holder.batch_execute("SELECT * FROM t FOR UPDATE OF u").await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_take_jobs_out_of_a_table_without_getting_in_each_others_way() {
    let (server, client) = server_with_rows().await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        let worker = server.client().await;
        workers.push(tokio::spawn(async move {
            let mut taken = 0_i64;
            loop {
                worker.batch_execute("BEGIN").await.unwrap();
                let job = "SELECT id FROM t ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED";
                let job = worker.query_opt(job, &[]).await.unwrap();
                let Some(job) = job else { break };
                let id: i32 = job.get(0);
                assert_eq!(worker.execute("DELETE FROM t WHERE id = $1", &[&id]).await.unwrap(), 1);
                worker.batch_execute("COMMIT").await.unwrap();
                taken += 1;
            }
            taken
        }));
    }
    let mut taken = 0;
    for worker in workers {
        taken += worker.await.unwrap();
    }
    assert_eq!((taken, number(&client, "SELECT count(*) FROM t").await), (100, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_an_index_finds_is_taken_once() {
    let (server, client) = server_with_rows().await;
    client.batch_execute("CREATE INDEX i ON t (n)").await.unwrap();
    let mut workers = Vec::new();
    for _ in 0..4 {
        let worker = server.client().await;
        workers.push(tokio::spawn(async move {
            loop {
                worker.batch_execute("BEGIN").await.unwrap();
                let job = "SELECT id FROM t WHERE n = 0 ORDER BY n LIMIT 1 FOR UPDATE SKIP LOCKED";
                let Some(job) = worker.query_opt(job, &[]).await.unwrap() else { break };
                let id: i32 = job.get(0);
                let update = "UPDATE t SET n = n + 1 WHERE id = $1";
                assert_eq!(worker.execute(update, &[&id]).await.unwrap(), 1);
                worker.batch_execute("COMMIT").await.unwrap();
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(number(&client, "SELECT count(*) FROM t WHERE n = 1").await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_cannot_name_their_rows_wait_for_those_that_are_reserved() {
    let (server, holder) = server_with_rows().await;
    let mut others = Vec::new();
    holder.batch_execute("BEGIN; UPDATE t SET n = 1 WHERE id = 3").await.unwrap();
    for statement in [
        "INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET n = t.n + 10",
        "UPDATE t SET n = n + 100 WHERE id BETWEEN 2 AND 4",
        "UPDATE t SET n = n + 1000 WHERE n >= 0",
    ] {
        let other = server.client().await;
        others.push(tokio::spawn(async move { other.batch_execute(statement).await.unwrap() }));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(others.iter().all(|other| !other.is_finished()));
    holder.batch_execute("COMMIT").await.unwrap();
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(number(&holder, "SELECT n::BIGINT FROM t WHERE id = 3").await, 1_111);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_do_not_keep_the_holder_from_its_commit() {
    let (server, holder) = server_with_rows().await;
    holder.batch_execute("BEGIN; UPDATE t SET n = 1 WHERE id = 3").await.unwrap();
    let mut others = Vec::new();
    for _ in 0..150 {
        let other = server.client().await;
        others.push(tokio::spawn(async move {
            let wait = "BEGIN; SELECT n FROM t WHERE id = 3 FOR UPDATE; COMMIT";
            // Of so many some go on without the row.
            let _ = other.batch_execute(wait).await;
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let clock = MonotonicClock::new();
    let begun_ns = clock.now_ns();
    holder.batch_execute("UPDATE t SET n = 2 WHERE id = 3; COMMIT").await.unwrap();
    assert!(clock.now_ns() - begun_ns < SOON_NS, "the hold has ended first");
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(number(&holder, "SELECT n::BIGINT FROM t WHERE id = 3").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_transactions_that_wait_for_each_other_one_is_told() {
    let (server, _client) = server_with_rows().await;
    let mut ring = Vec::new();
    let begun = Arc::new(tokio::sync::Barrier::new(3));
    for number in 0..3 {
        let (client, begun) = (server.client().await, Arc::clone(&begun));
        ring.push(tokio::spawn(async move {
            let update = |row| format!("UPDATE t SET n = n + 1 WHERE id = {}", row % 3 + 1);
            let begin = format!("BEGIN; SAVEPOINT s; {}", update(number));
            client.batch_execute(&begin).await.unwrap();
            begun.wait().await;
            match client.batch_execute(&update(number + 1)).await {
                Ok(()) => client.batch_execute("COMMIT").await.unwrap(),
                Err(error) => {
                    assert_eq!(error.code().unwrap().code(), "40P01");
                    return 1;
                }
            }
            0
        }));
    }
    let (clock, mut told) = (MonotonicClock::new(), 0);
    let begun_ns = clock.now_ns();
    for client in ring {
        told += client.await.unwrap();
    }
    assert_eq!(told, 1);
    assert!(clock.now_ns() - begun_ns < SOON_NS, "a reservation had to end by itself");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_transaction_has_reserved_ends_with_it_however_that_is() {
    let (server, client) = server_with_rows().await;
    let clock = MonotonicClock::new();
    let row = "UPDATE t SET n = n + 1 WHERE id = 9";
    for end in ["ROLLBACK", "SELECT 1 / 0", "the client goes"] {
        let holder = server.client().await;
        holder.batch_execute(&format!("BEGIN; {row}")).await.unwrap();
        if end == "the client goes" {
            drop(holder);
        } else {
            let _ = holder.batch_execute(end).await;
        }
        let begun_ns = clock.now_ns();
        client.batch_execute(&format!("BEGIN; {row}; COMMIT")).await.unwrap();
        assert!(clock.now_ns() - begun_ns < SOON_NS, "{end}: it ended by itself");
    }
    // One that sleeps loses the row, and learns at its end that another was faster.
    let sleeper = server.client().await;
    sleeper.batch_execute("SET gannet.reservation_timeout = '100ms'").await.unwrap();
    sleeper.batch_execute(&format!("BEGIN; {row}")).await.unwrap();
    client.batch_execute(&format!("BEGIN; {row}; COMMIT")).await.unwrap();
    assert_eq!(sqlstate(&sleeper, "COMMIT").await, "40001");
    assert_eq!(number(&client, "SELECT n::BIGINT FROM t WHERE id = 9").await, 4);
    // A wait can be cancelled.
    sleeper.batch_execute("RESET gannet.reservation_timeout").await.unwrap();
    sleeper.batch_execute(&format!("BEGIN; {row}")).await.unwrap();
    let cancel = client.cancel_token();
    let waits = tokio::spawn(async move { sqlstate(&client, &format!("BEGIN; {row}")).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
    assert_eq!(waits.await.unwrap(), "57014");
}

/// The range that transactions share in a contended table.
const SUM: &str = "SELECT sum(n) FROM t WHERE id BETWEEN 1 AND 20";

/// Has two transactions meet a conflict in table t: others share what they read there from then on.
async fn contend(reader: &Client, writer: &Client) {
    for _ in 0..100 {
        reader.batch_execute(&format!("BEGIN; {SUM}")).await.unwrap();
        // One that does not name its row does not wait for readers.
        let change = "BEGIN; UPDATE t SET n = n + 1 WHERE id + 0 = 5; COMMIT";
        writer.batch_execute(change).await.unwrap();
        reader.batch_execute("INSERT INTO history VALUES (1)").await.unwrap();
        if reader.batch_execute("COMMIT").await.is_err() {
            return;
        }
    }
    panic!("no conflict");
}

/// Whether a statement of another client ends while a transaction has read the range and not committed, for a part of the time that it may
/// share the range; and whether both have committed. Several tries, as the processor may be busy for longer.
async fn waits_for_reader(reader: &Client, writer: &Arc<Client>, statement: &'static str) -> bool {
    let mut waited = 0;
    for _ in 0..20 {
        reader.batch_execute(&format!("BEGIN; {SUM}")).await.unwrap();
        let other = Arc::clone(writer);
        let change = tokio::spawn(async move { other.batch_execute(statement).await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        let waits = !change.is_finished();
        reader.batch_execute("INSERT INTO history VALUES (1)").await.unwrap();
        let commit = reader.batch_execute("COMMIT").await;
        change.await.unwrap().unwrap();
        waited += u32::from(waits && commit.is_ok());
        if waited == 3 {
            return true;
        }
        contend(reader, writer).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_read_is_left_alone_until_the_commit_of_its_reader() {
    let (server, reader) = server_with_rows().await;
    let writer = Arc::new(server.client().await);
    contend(&reader, &writer).await;
    for change in [
        "UPDATE t SET n = n + 1 WHERE id = 5",
        "BEGIN; UPDATE t SET n = n + 1 WHERE id = 5; COMMIT",
    ] {
        assert!(waits_for_reader(&reader, &writer, change).await, "{change} does not wait");
    }
    // What cannot reserve its rows does not fail because of a reader.
    contend(&reader, &writer).await;
    for change in [
        "DELETE FROM t WHERE id = 7",
        "INSERT INTO t VALUES (7, 0)",
        "BEGIN; DELETE FROM t WHERE id = 7; COMMIT",
        "BEGIN; INSERT INTO t VALUES (7, 0); COMMIT",
        "BEGIN; UPDATE t SET n = 3 WHERE n >= 0; COMMIT",
    ] {
        reader.batch_execute(&format!("BEGIN; {SUM}")).await.unwrap();
        writer.batch_execute(change).await.unwrap();
        reader.batch_execute("ROLLBACK").await.unwrap();
    }
    reader.batch_execute(&format!("BEGIN; {SUM}")).await.unwrap();
    let free = "SELECT id FROM t WHERE id BETWEEN 1 AND 3 FOR UPDATE SKIP LOCKED";
    assert_eq!(writer.query(free, &[]).await.unwrap().len(), 3, "a reader holds no rows");
    reader.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_waits_shortly_for_transactions_that_change_its_rows() {
    let (server, writer) = server_with_rows().await;
    let reader = Arc::new(server.client().await);
    contend(&reader, &writer).await;
    let mut waited = 0;
    for n in 1..=40_i64 {
        writer.batch_execute(&format!("BEGIN; UPDATE t SET n = {n} WHERE id = 5")).await.unwrap();
        reader.batch_execute("BEGIN").await.unwrap();
        let other = Arc::clone(&reader);
        let read = tokio::spawn(async move { number(&other, SUM).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let waits = !read.is_finished();
        writer.batch_execute("COMMIT").await.unwrap();
        waited += u32::from(waits && read.await.unwrap() == n);
        reader.batch_execute("ROLLBACK").await.unwrap();
        if waited == 5 {
            break;
        }
    }
    assert_eq!(waited, 5, "the reader does not wait for the writer");
    // One that sleeps is not waited for as long as its reservation lasts, which is longer than SOON_NS.
    let clock = MonotonicClock::new();
    writer.batch_execute("BEGIN; UPDATE t SET n = 1000 WHERE id = 5").await.unwrap();
    let begun_ns = clock.now_ns();
    reader.batch_execute("BEGIN").await.unwrap();
    assert!(number(&reader, SUM).await < 1_000);
    assert!(clock.now_ns() - begun_ns < SOON_NS, "the reservation has ended first");
    reader.batch_execute("COMMIT").await.unwrap();
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(number(&reader, SUM).await, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_readers_that_change_what_the_other_has_read_one_commits() {
    let (server, first) = server_with_rows().await;
    let second = server.client().await;
    contend(&first, &second).await;
    let mut last = String::new();
    for _ in 0..20 {
        first.batch_execute(&format!("BEGIN; {SUM}")).await.unwrap();
        let other = "BEGIN; SELECT sum(n) FROM t WHERE id BETWEEN 30 AND 50";
        second.batch_execute(other).await.unwrap();
        let change = async |client: &Client, id: i32| {
            let update = format!("UPDATE t SET n = n + 1 WHERE id = {id}");
            let mut ended = client.batch_execute(&update).await;
            if ended.is_ok() {
                ended = client.batch_execute("COMMIT").await;
            } else {
                client.batch_execute("ROLLBACK").await.unwrap();
            }
            ended.err().map(|error| error.code().unwrap().code().to_owned())
        };
        let ended = tokio::join!(change(&first, 40), change(&second, 10));
        let failed: Vec<String> = [ended.0, ended.1].into_iter().flatten().collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        last.clone_from(&failed[0]);
        // Where the processor is so busy that a hold ends first, COMMIT tells.
        if last != "40001" {
            break;
        }
    }
    assert_eq!(last, "40P01", "no wait in a ring has ended");
}
