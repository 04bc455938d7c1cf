//! The extended protocol, by a driver.
//!
//! tokio-postgres prepares statements at a real server, and sends parameters in binary. A test fails if a value of any type
//! comes back changed, if a portal gives wrong parts of its rows, if a connection does not go on after an error, or if a
//! transaction goes on after a malformed parameter.
//!
//! *Not here*: the simple protocol (`simple.rs`), malformed messages (`malformed.rs`), drivers of other languages (`tools.rs`).

use chrono::{DateTime, NaiveDate, NaiveDateTime, TimeDelta, Utc};
use futures_util::future::join;
use rust_decimal::Decimal;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::process::Server;

#[tokio::test]
async fn every_type_is_sent_in_binary() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client
        .batch_execute(
            "CREATE TABLE every (a BOOLEAN, b SMALLINT, c INTEGER, d BIGINT, e REAL, \
             f DOUBLE PRECISION, g NUMERIC(20,4), h TEXT, i VARCHAR(10), j CHAR(4), k BYTEA, \
             l DATE, m TIMESTAMP, n UUID, o TIMESTAMPTZ, id INTEGER PRIMARY KEY)",
        )
        .await
        .unwrap();
    let insert = client
        .prepare(
            "INSERT INTO every VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16)",
        )
        .await
        .unwrap();
    let date = NaiveDate::from_ymd_opt(2024, 2, 29).unwrap();
    let timestamp = date.and_hms_micro_opt(1, 2, 3, 456_789).unwrap();
    let zoned = timestamp.and_utc() + TimeDelta::days(366_000);
    let numeric: Decimal = "-1234567.8900".parse().unwrap();
    let uuid = Uuid::from_u128(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
    let inserted = client
        .execute(
            &insert,
            &[
                &true,
                &-5_i16,
                &70_000_i32,
                &(1_i64 << 40),
                &1.5_f32,
                &-2.25_f64,
                &numeric,
                &"häßlich",
                &"short",
                &"ab",
                &&b"\x00\xff"[..],
                &date,
                &timestamp,
                &uuid,
                &zoned,
                &1_i32,
            ],
        )
        .await
        .unwrap();
    assert_eq!(inserted, 1);
    let row = client.query_one("SELECT * FROM every WHERE id = $1", &[&1_i32]).await.unwrap();
    assert!(row.get::<_, bool>("a"));
    assert_eq!(row.get::<_, i16>("b"), -5);
    assert_eq!(row.get::<_, i32>("c"), 70_000);
    assert_eq!(row.get::<_, i64>("d"), 1 << 40);
    assert_eq!(row.get::<_, f32>("e").to_bits(), 1.5_f32.to_bits());
    assert_eq!(row.get::<_, f64>("f").to_bits(), (-2.25_f64).to_bits());
    assert_eq!(row.get::<_, Decimal>("g"), numeric);
    assert_eq!(row.get::<_, String>("h"), "häßlich");
    assert_eq!(row.get::<_, String>("i"), "short");
    assert_eq!(row.get::<_, String>("j"), "ab  ");
    assert_eq!(row.get::<_, Vec<u8>>("k"), b"\x00\xff");
    assert_eq!(row.get::<_, NaiveDate>("l"), date);
    assert_eq!(row.get::<_, NaiveDateTime>("m"), timestamp);
    assert_eq!(row.get::<_, Uuid>("n"), uuid);
    assert_eq!(row.get::<_, DateTime<Utc>>("o"), zoned);
    let text = server.query("SELECT * FROM every");
    assert_eq!(
        text,
        "t|-5|70000|1099511627776|1.5|-2.25|-1234567.8900|häßlich|short|ab  |\\x00ff|2024-02-29|\
         2024-02-29 01:02:03.456789|12345678-9abc-def0-1234-56789abcdef0|3026-03-28 01:02:03.456789+00|1"
    );
}

#[tokio::test]
async fn a_timestamptz_is_a_time_of_the_driver() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let before = Utc::now() - TimeDelta::microseconds(1);
    let row =
        client.query_one("SELECT now(), localtimestamp, clock_timestamp()", &[]).await.unwrap();
    let now: DateTime<Utc> = row.get(0);
    assert_eq!(now.naive_utc(), row.get::<_, NaiveDateTime>(1));
    let later: DateTime<Utc> = row.get(2);
    assert!(before <= now && now <= later && later <= Utc::now());
    let ancient =
        NaiveDate::from_ymd_opt(-43, 3, 15).unwrap().and_hms_opt(12, 0, 0).unwrap().and_utc();
    let times = vec![Some(now), None, Some(ancient)];
    let sql =
        "SELECT $1::timestamptz[], ($1::timestamptz[])::text, $2::timestamptz AT TIME ZONE 'UTC'";
    let row = client.query_one(sql, &[&times, &ancient]).await.unwrap();
    assert_eq!(row.get::<_, Vec<Option<DateTime<Utc>>>>(0), times);
    assert!(row.get::<_, &str>(1).ends_with(",NULL,\"0044-03-15 12:00:00+00 BC\"}"));
    assert_eq!(row.get::<_, NaiveDateTime>(2), ancient.naive_utc());
    client
        .batch_execute("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMPTZ DEFAULT now())")
        .await
        .unwrap();
    client.execute("INSERT INTO t VALUES (1, $1), (2, DEFAULT)", &[&ancient]).await.unwrap();
    let row = client.query_one("SELECT id FROM t WHERE at = $1", &[&ancient]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 1);
    let row = client.query_one("SELECT at FROM t WHERE at > $1", &[&before]).await.unwrap();
    assert!(row.get::<_, DateTime<Utc>>(0) >= now);
}

#[tokio::test]
async fn nulls_are_sent_and_received() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)").await.unwrap();
    client.execute("INSERT INTO t VALUES (1, $1)", &[&None::<String>]).await.unwrap();
    let row = client.query_one("SELECT a FROM t WHERE a IS NULL", &[]).await.unwrap();
    assert_eq!(row.get::<_, Option<String>>(0), None);
}

#[tokio::test]
async fn a_portal_returns_its_rows_in_parts() {
    let server = Server::start(&[]);
    let mut client = server.client().await;
    client.batch_execute("CREATE TABLE t (a INTEGER PRIMARY KEY)").await.unwrap();
    for a in 0..7_i32 {
        client.execute("INSERT INTO t VALUES ($1)", &[&a]).await.unwrap();
    }
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("SELECT a FROM t ORDER BY a", &[]).await.unwrap();
    let mut parts = Vec::new();
    loop {
        let rows = transaction.query_portal(&portal, 3).await.unwrap();
        parts.push(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>());
        if rows.len() < 3 {
            break;
        }
    }
    assert_eq!(parts, [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn after_an_error_the_connection_goes_on() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (a INTEGER PRIMARY KEY)").await.unwrap();
    let insert = client.prepare("INSERT INTO t VALUES ($1)").await.unwrap();
    client.execute(&insert, &[&1_i32]).await.unwrap();
    let error = client.execute(&insert, &[&1_i32]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION));
    let error = client.prepare("SELECT missing FROM t").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_COLUMN));
    client.execute(&insert, &[&2_i32]).await.unwrap();
    let row = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 2);
}

#[tokio::test]
async fn requests_may_be_sent_before_the_answers_come() {
    let server = Server::start(&[]);
    let client = server.client().await;
    let statement = client.prepare("SELECT $1::INTEGER + 1").await.unwrap();
    let (two, three) =
        join(client.query_one(&statement, &[&1_i32]), client.query_one(&statement, &[&2_i32]))
            .await;
    assert_eq!((two.unwrap().get::<_, i32>(0), three.unwrap().get::<_, i32>(0)), (2, 3));
}

#[tokio::test]
async fn transactions_commit_and_roll_back() {
    let server = Server::start(&[]);
    let mut client = server.client().await;
    client.batch_execute("CREATE TABLE t (a INTEGER PRIMARY KEY)").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (1)", &[]).await.unwrap();
    transaction.rollback().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO t VALUES (2)", &[]).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(server.query("SELECT a FROM t"), "2");
}

#[tokio::test]
async fn a_malformed_parameter_fails_its_transaction() {
    let server = Server::start(&[]);
    let client = server.client().await;
    client.batch_execute("BEGIN").await.unwrap();
    // A text with a zero character is not a valid parameter.
    let error = client.query("SELECT $1::TEXT", &[&"a\0b"]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::CHARACTER_NOT_IN_REPERTOIRE));
    let error = client.query("SELECT 1", &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::IN_FAILED_SQL_TRANSACTION));
    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
}
