//! Results larger than the memory of a statement: in the spill directory, or sent while the query runs.
//!
//! *Not here*: operators beyond memory (`spilled.rs`).

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, RowStream};

use crate::process::{Server, folder};

/// Rows of the table, of about half a kilobyte each: five times a statement's memory, and more than the buffers of [`narrow`]
/// sockets.
const ROWS: i32 = 40_000;
const SMALL: [&str; 4] = ["--statement-memory", "4MiB", "--query-memory", "32MiB"];
const ALL: &str = "SELECT id, name FROM big";
/// Results sent at a time while their queries run: a quarter of a worker's coroutines.
const STREAMS: usize = 5;

/// A server with small limits, and its spill directory if there is one.
pub(crate) fn started(has_directory: bool, name: &str) -> (Server, Option<PathBuf>) {
    let directory = has_directory.then(|| folder(name));
    let spill = directory.as_ref().map(|path| ["--spill", path.to_str().unwrap()]);
    let spill = spill.as_ref().map_or(&[][..], |arguments| &arguments[..]);
    (Server::start(&[&SMALL, spill].concat()), directory)
}

/// A connection of a client with small receive buffers.
async fn narrow(server: &Server) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(([127, 0, 0, 1], server.port).into()).await.unwrap()
}

async fn slow_client(server: &Server) -> Client {
    let stream = narrow(server).await;
    let (client, connection) = server.config().connect_raw(stream, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn fill(client: &Client) {
    client.batch_execute("CREATE TABLE big (id INTEGER PRIMARY KEY, name TEXT)").await.unwrap();
    let sink = client.copy_in::<_, Bytes>("COPY big FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    let name = "n".repeat(500);
    for first in (0..ROWS).step_by(1_000) {
        let lines: String =
            (first..first + 1_000).map(|id| format!("{id}\t{name}{id}\n")).collect();
        sink.send(Bytes::from(lines)).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), u64::from(ROWS.unsigned_abs()));
    // Buckets are split for a moment yet, which makes rows void that were sent before.
    let sum = "SELECT sum(id), sum(length(name)) FROM big";
    for _ in 0..20 {
        client.simple_query(sum).await.unwrap();
    }
}

async fn stream(client: &Client) -> Pin<Box<RowStream>> {
    let none: [&(dyn ToSql + Sync); 0] = [];
    Box::pin(client.query_raw(ALL, none).await.unwrap())
}

/// Reads all rows. Returns their number, and the sum of their numbers.
async fn drained(rows: &mut Pin<Box<RowStream>>) -> Result<(i32, i64), Error> {
    let (mut count, mut sum) = (0, 0);
    while let Some(row) = rows.try_next().await? {
        let (id, name): (i32, &str) = (row.get(0), row.get(1));
        assert!(name.ends_with(&id.to_string()));
        (count, sum) = (count + 1, sum + i64::from(id));
    }
    Ok((count, sum))
}

/// As [`drained`], of a table that has just been filled: its buckets may still be split, so that rows which were sent are void.
async fn drained_when_grown(client: &Client) -> (i32, i64) {
    for _ in 0..100 {
        match drained(&mut stream(client).await).await {
            Err(error) if code(&error) == "40001" => {}
            result => return result.unwrap(),
        }
    }
    panic!("the table is split for ever")
}

fn sum_below(count: i32) -> i64 {
    i64::from(count) * i64::from(count - 1) / 2
}

fn code(error: &Error) -> &str {
    error.code().unwrap().code()
}

#[tokio::test]
async fn a_table_beyond_the_budget_is_read_and_dumped() {
    for has_directory in [false, true] {
        let (server, _) = started(has_directory, "read-and-dumped");
        let mut client = server.client().await;
        fill(&client).await;
        let expected = (ROWS, sum_below(ROWS));
        assert_eq!(drained_when_grown(&client).await, expected);
        // The simple protocol, with psql's own checks.
        let text = server.query("SELECT * FROM big");
        assert_eq!(text.lines().count(), ROWS.unsigned_abs() as usize);
        let output = server.psql().args(["-c", "COPY big TO STDOUT"]).output().unwrap();
        assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 40_000);
        let lines = client.copy_out("COPY big TO STDOUT (FORMAT csv, HEADER)").await.unwrap();
        let lines: Vec<Bytes> = lines.try_collect().await.unwrap();
        assert_eq!((lines.len(), &lines[0][..]), (40_001, &b"id,name\n"[..]));
        // A transaction continues after such a result.
        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO big VALUES ($1, $2)", &[&ROWS, &"40000"]).await.unwrap();
        let none: [&(dyn ToSql + Sync); 0] = [];
        let mut rows = Box::pin(transaction.query_raw(ALL, none).await.unwrap());
        assert_eq!(drained(&mut rows).await.unwrap(), (ROWS + 1, sum_below(ROWS + 1)));
        transaction.commit().await.unwrap();
        assert_eq!(server.query("SELECT count(*) FROM big"), (ROWS + 1).to_string());
    }
}

/// The number of temporary files that a server has in its spill directory.
fn open_files(server: &Server, directory: &Path) -> usize {
    // Temporary files have no names.
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
    let files = std::fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let paths = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    paths.filter(|path| path.starts_with(directory)).count()
}

/// Waits until no temporary file is left; the last one may be in use for a moment.
async fn no_file_is_left(server: &Server, directory: &Path) {
    while open_files(server, directory) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rows_of_returning_go_to_a_file() {
    let (server, directory) = started(true, "returning");
    let directory = directory.unwrap();
    let mut client = server.client().await;
    client.batch_execute("CREATE TABLE few (id INTEGER PRIMARY KEY, n INTEGER)").await.unwrap();
    let returning = "RETURNING id, repeat('x', 4000) || id";
    let none: [&(dyn ToSql + Sync); 0] = [];
    for statement in [
        "INSERT INTO few SELECT i, i FROM generate_series(0, 2999) i",
        "INSERT INTO few SELECT i, i FROM generate_series(0, 2999) i ON CONFLICT (id) DO UPDATE SET n = 7",
        "UPDATE few SET n = n + 1",
        "DELETE FROM few",
    ] {
        let rows = client.query_raw(&format!("{statement} {returning}"), none).await.unwrap();
        let mut rows = Box::pin(rows);
        assert_eq!(drained(&mut rows).await.unwrap(), (3_000, sum_below(3_000)), "{statement}");
        assert_eq!(rows.rows_affected(), Some(3_000), "{statement}");
    }
    no_file_is_left(&server, &directory).await;
    // In parts, in a transaction that is rolled back.
    let transaction = client.transaction().await.unwrap();
    let insert = "INSERT INTO few SELECT i, i FROM generate_series(0, 2999) i";
    let portal = transaction.bind(&format!("{insert} {returning}"), &[]).await.unwrap();
    let first = transaction.query_portal(&portal, 1_000).await.unwrap();
    assert_eq!((first.len(), open_files(&server, &directory)), (1_000, 1));
    assert_eq!(transaction.execute("UPDATE few SET n = 0", &[]).await.unwrap(), 3_000);
    assert_eq!(transaction.query_portal(&portal, 0).await.unwrap().len(), 2_000);
    transaction.rollback().await.unwrap();
    no_file_is_left(&server, &directory).await;
    drop(server);
    let (server, _) = started(false, "");
    server.query("CREATE TABLE few (id INTEGER PRIMARY KEY, n INTEGER)");
    let error = server.failure(&format!("{insert} {returning}"));
    assert!(error.contains("53200") && error.contains("--spill"), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM few"), "0");
}

fn declare(name: &str) -> String {
    format!("DECLARE {name} SCROLL CURSOR FOR SELECT id, name, 'c'::CHAR(2) FROM big")
}

#[tokio::test]
async fn a_cursor_reads_a_file_in_any_order() {
    let (server, directory) = started(true, "cursor");
    let directory = directory.unwrap();
    let mut client = server.client().await;
    fill(&client).await;
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&declare("c")).await.unwrap();
    assert_eq!(open_files(&server, &directory), 1);
    // The cursor's place: 0 is before the first row.
    let (mut place, end) = (0, ROWS + 1);
    for (fetch, to, count) in [
        ("FORWARD 7777", 7_777, 7_777),
        ("NEXT", 7_778, 1),
        ("BACKWARD 5000", 2_778, 5_000),
        ("PRIOR", 2_777, 1),
        ("ABSOLUTE 39999", 39_999, 1),
        ("ABSOLUTE 90", 90, 1),
        ("RELATIVE 9", 99, 1),
        ("FORWARD 0", 99, 1),
        ("LAST", ROWS, 1),
        ("NEXT", end, 0),
        ("BACKWARD ALL", 0, ROWS),
        ("FORWARD ALL", end, ROWS),
        ("PRIOR", ROWS, 1),
        ("BACKWARD 10", ROWS - 10, 10),
        ("FIRST", 1, 1),
        ("PRIOR", 0, 0),
        ("FORWARD 1", 1, 1),
    ] {
        let rows = transaction.query(&format!("FETCH {fetch} FROM c"), &[]).await.unwrap();
        let ids: Vec<i32> = rows.iter().map(|row| row.get::<_, i32>(0) + 1).collect();
        let expected: Vec<i32> = if fetch.starts_with("FORWARD") && count > 1 {
            (place + 1..place + 1 + count).collect()
        } else if fetch.starts_with("BACKWARD") {
            (place - count..place).rev().collect()
        } else {
            std::iter::repeat_n(to, usize::try_from(count).unwrap()).collect()
        };
        assert!(ids == expected, "{fetch}: {} rows", ids.len());
        assert!(
            rows.iter()
                .all(|row| row.get::<_, &str>(1).len() > 500 && row.get::<_, &str>(2) == "c ")
        );
        place = to;
    }
    // Later changes are not among the rows. A second cursor has a file of its own.
    transaction.execute("DELETE FROM big WHERE id < 2000", &[]).await.unwrap();
    transaction.batch_execute(&declare("d")).await.unwrap();
    assert_eq!(open_files(&server, &directory), 2);
    let portal = transaction.bind("FETCH ALL FROM c", &[]).await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 30_000).await.unwrap().len(), 30_000);
    // Rows that are being read outlive their cursor.
    transaction.batch_execute("CLOSE c").await.unwrap();
    assert_eq!(transaction.query_portal(&portal, 0).await.unwrap().len(), 9_999);
    let last = transaction.query_one("FETCH LAST FROM d", &[]).await.unwrap();
    assert_eq!(last.get::<_, i32>(0), ROWS - 1);
    transaction.rollback().await.unwrap();
    no_file_is_left(&server, &directory).await;
    let script = format!("BEGIN; {}; FETCH 30000 FROM c; FETCH 10001 FROM c", declare("c"));
    assert_eq!(server.query(&script).lines().count(), 40_000);
}

#[tokio::test]
async fn a_session_leaves_files_and_memory_to_others() {
    let (server, directory) = started(true, "left");
    let directory = directory.unwrap();
    let mut client = server.client().await;
    fill(&client).await;
    let transaction = client.transaction().await.unwrap();
    for number in 0..16 {
        transaction.batch_execute(&declare(&format!("c{number}"))).await.unwrap();
    }
    assert_eq!(open_files(&server, &directory), 16);
    let error = transaction.batch_execute(&declare("more")).await.unwrap_err();
    assert_eq!(code(&error), "53400");
    assert_eq!(open_files(&server, &directory), 16);
    let other = server.client().await;
    assert_eq!(drained(&mut stream(&other).await).await.unwrap().0, ROWS);
    drop(transaction);
    // Parameters of statements that are not executed.
    let transaction = client.transaction().await.unwrap();
    let select = transaction.prepare("SELECT $1::TEXT").await.unwrap();
    let long = "x".repeat(1 << 20);
    let mut portals = Vec::new();
    let error = loop {
        match transaction.bind(&select, &[&long]).await {
            Ok(portal) => portals.push(portal),
            Err(error) => break error,
        }
    };
    assert!(code(&error) == "53200" && portals.len() < 4, "{}", portals.len());
}

/// This build asserts that no worker's thread reads or writes large values.
#[tokio::test]
async fn large_arrays_are_sent_in_both_formats() {
    let server = Server::start(&["--threads", "1"]);
    let client = server.client().await;
    let numbers: Vec<i32> = (0..200_000).collect();
    let row = client.query_one("SELECT $1::INT[], cardinality($1)", &[&numbers]).await.unwrap();
    assert_eq!((row.get::<_, Vec<i32>>(0), row.get::<_, i32>(1)), (numbers, 200_000));
    let text = server.query("SELECT array_agg(i) FROM generate_series(1, 100000) i");
    assert_eq!(text.split(',').count(), 100_000);
    let lines =
        server.query("COPY (SELECT array_agg(i) FROM generate_series(1, 100000) i) TO STDOUT");
    assert_eq!(lines, text);
}

#[tokio::test]
async fn files_of_cursors_go_with_their_session() {
    let (server, directory) = started(true, "cursors");
    let directory = directory.unwrap();
    let client = server.client().await;
    fill(&client).await;
    client.batch_execute(&format!("BEGIN; {}", declare("c"))).await.unwrap();
    assert_eq!(open_files(&server, &directory), 1);
    drop(client);
    no_file_is_left(&server, &directory).await;
    let client = server.client().await;
    client.batch_execute(&format!("BEGIN; {}", declare("c"))).await.unwrap();
    server.signal("KILL");
    drop(server);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
    let (server, _) = started(false, "");
    fill(&server.client().await).await;
    // The rows of one page are too many. Of short rows the memory might end with what the transaction has read, for which no file helps.
    let long = "DECLARE c SCROLL CURSOR FOR SELECT repeat(name, 20) FROM big";
    let error = server.failure(&format!("BEGIN; {long}"));
    assert!(error.contains("53200") && error.contains("--spill"), "{error}");
}

#[tokio::test]
async fn writers_overtake_a_slow_reader() {
    for has_directory in [false, true] {
        let (server, directory) = started(has_directory, "slow-reader");
        let (reader, writer) = (slow_client(&server).await, server.client().await);
        fill(&writer).await;
        let mut rows = stream(&reader).await;
        rows.try_next().await.unwrap().unwrap();
        // Files have no names there, so none is left behind.
        if let Some(directory) = directory {
            assert_eq!(std::fs::read_dir(directory).unwrap().count(), 0);
        }
        // This row was read.
        let update = "UPDATE big SET name = name || ' 0' WHERE id = 0";
        assert_eq!(writer.execute(update, &[]).await.unwrap(), 1);
        let read = drained(&mut rows).await;
        if has_directory {
            // The rows were validated before the first was sent.
            assert_eq!(read.unwrap().0, ROWS - 1);
        } else {
            let error = read.unwrap_err();
            assert_eq!(code(&error), "40001");
            assert!(
                error.as_db_error().unwrap().message().contains("rows that were sent are void")
            );
        }
        drop(rows);
        // The session goes on.
        assert_eq!(drained(&mut stream(&reader).await).await.unwrap().0, ROWS);
    }
}

#[tokio::test]
async fn slow_readers_leave_the_others_their_coroutines() {
    let (server, _) = started(false, "");
    let other = server.client().await;
    fill(&other).await;
    let mut readers = Vec::new();
    for _ in 0..STREAMS {
        let client = slow_client(&server).await;
        let mut rows = stream(&client).await;
        rows.try_next().await.unwrap().unwrap();
        readers.push((client, rows));
    }
    let error = drained(&mut stream(&other).await).await.unwrap_err();
    assert_eq!(code(&error), "53200");
    assert!(error.as_db_error().unwrap().hint().unwrap().contains("--spill"));
    for id in 0..200 {
        assert_eq!(other.execute("SELECT name FROM big WHERE id = $1", &[&id]).await.unwrap(), 1);
    }
    // A reader that leaves makes room.
    drop(readers.pop());
    while drained(&mut stream(&other).await).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn readers_that_take_nothing_make_room() {
    let server = Server::start(&[&SMALL[..], &["--unread-timeout", "300ms"]].concat());
    let other = server.client().await;
    fill(&other).await;
    let begun = async || {
        let client = slow_client(&server).await;
        let mut rows = stream(&client).await;
        rows.try_next().await.map(|_| (client, rows))
    };
    let mut readers = Vec::new();
    for _ in 0..STREAMS {
        readers.push(begun().await.unwrap());
    }
    // No reader reads, and none leaves. When another set of readers has all places, the last of these was dismissed.
    loop {
        let mut others = Vec::new();
        while others.len() < STREAMS
            && let Ok(one) = begun().await
        {
            others.push(one);
        }
        if others.len() == STREAMS {
            break;
        }
    }
    while let Err(error) = drained(&mut stream(&other).await).await {
        // Others may still have their places, and this reader may itself be slow for a moment.
        assert!(matches!(code(&error), "53200" | "57014"), "{error:?}");
    }
    for (client, mut rows) in readers {
        let error = drained(&mut rows).await.unwrap_err();
        assert_eq!(code(&error), "57014");
        let message = error.as_db_error().unwrap().message();
        assert!(message.contains("taken no rows for 300ms"), "{message}");
        drop(rows);
        // The session goes on.
        assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
    }
}

#[tokio::test]
async fn a_slow_reader_is_cancelled() {
    for has_directory in [false, true] {
        let (server, _) = started(has_directory, "cancelled");
        let client = slow_client(&server).await;
        fill(&client).await;
        let mut rows = stream(&client).await;
        rows.try_next().await.unwrap().unwrap();
        let token = client.cancel_token();
        token.cancel_query_raw(narrow(&server).await, NoTls).await.unwrap();
        let error = drained(&mut rows).await.unwrap_err();
        assert_eq!(code(&error), "57014");
        drop(rows);
        assert_eq!(drained(&mut stream(&client).await).await.unwrap().0, ROWS);
    }
}

#[tokio::test]
async fn a_portal_gives_a_file_in_parts() {
    for has_directory in [false, true] {
        let (server, _) = started(has_directory, "portal");
        let mut client = server.client().await;
        fill(&client).await;
        let transaction = client.transaction().await.unwrap();
        let portal = transaction.bind(ALL, &[]).await.unwrap();
        let (mut count, mut sum) = (0, 0);
        let ended = loop {
            match transaction.query_portal(&portal, 7_777).await {
                Ok(rows) if rows.is_empty() => break Ok(()),
                Ok(rows) => {
                    count += rows.len();
                    sum += rows.iter().map(|row| i64::from(row.get::<_, i32>(0))).sum::<i64>();
                    // Other statements run in between.
                    transaction.execute("SELECT 1", &[]).await.unwrap();
                }
                Err(error) => break Err(error),
            }
        };
        if has_directory {
            ended.unwrap();
            assert_eq!((count, sum), (40_000, sum_below(ROWS)));
        } else {
            // A result that is read in parts could hold a coroutine as long as the client likes.
            assert_eq!(code(&ended.unwrap_err()), "53200");
        }
    }
}

#[tokio::test]
async fn a_sort_beyond_the_budget_goes_through_files() {
    let (server, directory) = started(true, "sort");
    let client = server.client().await;
    // Many short rows, so runs are merged to longer ones; equal rows stay in order.
    let series = "FROM generate_series(1, 400000) i ORDER BY i % 7 DESC";
    let rows = client.query(&format!("SELECT i {series}"), &[]).await.unwrap();
    let numbers: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let mut expected: Vec<i32> = (1..=400_000).collect();
    expected.sort_by_key(|number| std::cmp::Reverse(number % 7));
    assert!(numbers == expected);
    let few = client.query(&format!("SELECT i {series} LIMIT 3 OFFSET 300000"), &[]).await.unwrap();
    let few: Vec<i32> = few.iter().map(|row| row.get(0)).collect();
    assert_eq!(few, expected[300_000..300_003]);
    // Rows of a table, with NULLs and texts as keys.
    fill(&client).await;
    let order = "nullif(id % 10, 3) NULLS FIRST, name DESC";
    let query = format!("SELECT id FROM big ORDER BY {order}");
    let found: Vec<i32> =
        client.query(&query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let mut expected: Vec<i32> = (0..ROWS).collect();
    expected.sort_by_key(|id| {
        (Some(id % 10).filter(|digit| *digit != 3), std::cmp::Reverse(id.to_string()))
    });
    assert!(found == expected);
    // Two sorts at a time, and one that is cancelled in between.
    let other = server.client().await;
    let (one, two) = tokio::join!(client.query(&query, &[]), other.query(&query, &[]));
    assert_eq!((one.unwrap().len(), two.unwrap().len()), (found.len(), found.len()));
    // More rows than any machine sorts in that time.
    let many = series.replace("400000", "2000000000");
    let error = server.failure(&format!("SET statement_timeout = '100ms'; SELECT i {many}, -i"));
    assert!(error.contains("57014"), "{error}");
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    drop(server);
    let (server, _) = started(false, "");
    let error = server.failure(&format!("SELECT i {series}"));
    assert!(error.contains("53200") && error.contains("--statement-memory"), "{error}");
}

#[tokio::test]
async fn groups_beyond_the_budget_go_through_files() {
    const GROUPS: i32 = 150_000;
    let (server, directory) = started(true, "groups");
    let client = server.client().await;
    let series = format!("generate_series(0, {}) i", 2 * GROUPS - 1);
    // Each group has rows that come while memory takes groups, and rows that come later.
    let key = format!("i % {GROUPS}");
    let groups =
        format!("SELECT {key}, count(*), sum(i)::BIGINT, min(i) FROM {series} GROUP BY {key}");
    for ordered in [false, true] {
        let order = if ordered { " ORDER BY 1" } else { "" };
        let rows = client.query(&format!("{groups}{order}"), &[]).await.unwrap();
        let mut found: Vec<(i32, i64, i64, i32)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
        if !ordered {
            found.sort_unstable();
        }
        let expected = (0..GROUPS).map(|key| (key, 2, i64::from(2 * key + GROUPS), key));
        assert!(found.into_iter().eq(expected), "{order}");
    }
    let distinct = format!("SELECT DISTINCT {key} AS k FROM {series}");
    let rows = client.query(&distinct, &[]).await.unwrap();
    let mut found: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..GROUPS));
    let sorted = client.query(&format!("{distinct} ORDER BY k DESC LIMIT 2"), &[]).await.unwrap();
    assert_eq!(sorted.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [GROUPS - 1, GROUPS - 2]);
    // A group with a text of each row exceeds the memory.
    let error = server.failure(&format!("SELECT string_agg(repeat('x', 100), '') FROM {series}"));
    assert!(error.contains("53200"), "{error}");
    assert_eq!(std::fs::read_dir(directory.unwrap()).unwrap().count(), 0);
    drop(server);
    let (server, _) = started(false, "");
    for statement in [groups, distinct] {
        let error = server.failure(&format!("SELECT count(*) FROM ({statement}) AS g"));
        assert!(error.contains("53200"), "{error}");
    }
}

/// A file system of one MiB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(name: &str) -> Self {
        let path = folder(name);
        let mount = ["-t", "tmpfs", "-o", "size=1m", "none"];
        assert!(Command::new("mount").args(mount).arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server that still runs keeps the file system busy; it is unmounted when the server ends.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_ends_the_statement_alone() {
    let disk = SmallDisk::new("small-disk");
    let server = Server::start(&[&SMALL[..], &["--spill", disk.0.to_str().unwrap()]].concat());
    let client = server.client().await;
    fill(&client).await;
    for _ in 0..3 {
        let error = drained(&mut stream(&client).await).await.unwrap_err();
        assert_eq!(code(&error), "53100");
        assert!(error.as_db_error().unwrap().message().contains("--spill is full"));
    }
    let error = server.failure("SELECT i FROM generate_series(1, 1000000) i ORDER BY -i");
    assert!(error.contains("53100"), "{error}");
    assert_eq!(server.query("SELECT count(*) FROM big"), "40000");
}

#[test]
fn a_spill_directory_that_cannot_be_written_in_is_refused() {
    let arguments =
        ["serve", "--listen", "127.0.0.1:0", "--memory", "64MiB", "--spill", "/nowhere"];
    let output = Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("/nowhere") && error.contains("--spill"), "{error}");
}
