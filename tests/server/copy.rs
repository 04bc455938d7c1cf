//! COPY in both directions.
//!
//! psql and tokio-postgres copy rows into a real server and out of it, as text and as CSV. A test fails if a row comes back
//! changed or is missing, or if a COPY that meets a wrong row, or that its client gives up, leaves a row.
//!
//! *Not here*: COPY in batches, and of any number of rows (`frontend/tests/session/loads.rs`), lost
//! nodes (`failures/batches.rs`).

use std::io::Write;
use std::process::Stdio;

use bytes::Bytes;
use futures_util::{SinkExt, TryStreamExt};
use tokio_postgres::error::SqlState;

use crate::process::{Server, errors};

#[test]
fn psql_copies_in_and_out() {
    let server = Server::start(&[]);
    server.query("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)");
    let copy = "COPY t FROM STDIN";
    let mut psql = server
        .psql()
        .args(["-X", "-c", copy])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    psql.stdin.take().unwrap().write_all(b"1\tone\\ttab\n2\t\\N\n3\t\n").unwrap();
    let output = psql.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "COPY 3\n", "{}", errors(&output));
    assert_eq!(server.query("COPY t TO STDOUT"), "1\tone\\ttab\n2\t\\N\n3\t".trim_end());
    let csv =
        server.query("COPY (SELECT * FROM t ORDER BY id) TO STDOUT WITH (FORMAT csv, HEADER)");
    assert_eq!(csv, "id,name\n1,one\ttab\n2,\n3,\"\"");
}

#[tokio::test]
async fn a_driver_copies_many_rows_in_and_out() {
    const ROWS: usize = 20_000;
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)").await.unwrap();
    let sink = client.copy_in::<_, Bytes>("COPY t FROM STDIN (FORMAT csv)").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    let text: String = (0..ROWS).map(|id| format!("{id},name {id}\n")).collect();
    // Cut anywhere, as on a network.
    for chunk in text.as_bytes().chunks(7_777) {
        sink.send(Bytes::copy_from_slice(chunk)).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), ROWS as u64);
    let row = client.query_one("SELECT count(*), max(id) FROM t", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (20_000, 19_999));
    let lines: Vec<Bytes> =
        client.copy_out("COPY t TO STDOUT").await.unwrap().try_collect().await.unwrap();
    assert_eq!(lines.len(), ROWS);
}

#[tokio::test]
async fn a_copy_with_a_wrong_row_loads_nothing() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await.unwrap();
    let sink = client.copy_in::<_, Bytes>("COPY t FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    // The error may come at once or at the end.
    let sent = sink.send(Bytes::from_static(b"1\nx\n3\n")).await;
    let error = match sent {
        Err(error) => error,
        Ok(()) => sink.finish().await.unwrap_err(),
    };
    assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    let row = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}

#[tokio::test]
async fn a_copy_that_the_client_gives_up_loads_nothing() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY)").await.unwrap();
    {
        let sink = client.copy_in::<_, Bytes>("COPY t FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(Bytes::from_static(b"1\n2\n")).await.unwrap();
    }
    let row = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);
}
