//! Abuse by one client: patterns, constants and lists that would end the process or hold one of its threads.
//!
//! Real servers, most of them with one thread, get statements over connections, and silent or
//! meaningless bytes over sockets. A test fails if the process ends, if other clients get no answer
//! meanwhile, if a long statement cannot be cancelled, or if junk fills the log.
//!
//! *Not here*: malformed messages (`malformed.rs`), how many connections and how long a statement may be (`limits.rs`).

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::nodes::{Plan, free_address, get};
use crate::process::Server;

/// Patterns whose compilation recurses deeply, or whose compiled form is large.
const PATTERNS: [&str; 6] = [
    "repeat('(', 120) || 'a' || repeat('|b)', 120)",
    "repeat('(', 120) || 'a' || repeat(')+', 120)",
    "repeat('(?:a|', 200) || 'b' || repeat(')', 200)",
    "repeat('[a&&', 200) || 'b' || repeat(']', 200)",
    "repeat('(', 5000) || 'a' || repeat('|b)', 5000)",
    "repeat('(a{1000}', 20) || repeat('){1000}', 20)",
];

#[test]
fn no_pattern_ends_the_process() {
    let mut server = Server::start(&["--threads", "1"]);
    let select = |expression: String| format!("SELECT {expression}");
    for pattern in PATTERNS {
        // As constants, computed for each row, and wherever else a pattern is compiled.
        let written = server.query(&select(pattern.to_owned()));
        for statement in [
            select(format!("'a' ~ '{written}'")),
            select(format!("'a' ~ ({pattern})")),
            select(format!("'a' !~* ({pattern})")),
            select(format!("'a' LIKE ({pattern})")),
            select(format!("'a' ILIKE '{written}'")),
            select(format!("regexp_replace('a', {pattern}, 'b', 'g')")),
            format!(
                "SELECT count(*) FROM pg_class WHERE relname OPERATOR(pg_catalog.~) ({pattern})"
            ),
        ] {
            let mut psql = server.psql();
            // Some are too large and refused; the next statement tells whether the server lives.
            psql.args(["-v", "VERBOSITY=verbose", "-c", &statement]).output().unwrap();
            assert!(server.is_running(), "{statement}");
        }
    }
    let found = "SELECT 'a' ~ (repeat('(', 120) || 'a' || repeat('|b)', 120))";
    assert_eq!(server.query(found), "t");
    let error = server.failure("SELECT 'a' ~ (repeat('(', 5000) || 'a' || repeat(')', 5000))");
    assert!(error.contains("2201B"), "{error}");
}

#[tokio::test]
async fn deep_statements_do_not_end_the_process() {
    let mut server = Server::start(&["--threads", "1"]);
    let client = server.client().await;
    let nested = |open: &str, inner: &str, close: &str, count: usize| {
        format!("SELECT {}{inner}{}", open.repeat(count), close.repeat(count))
    };
    for count in [20, 60, 64, 200, 5_000] {
        for statement in
            [
                nested("(", "1", ")", count),
                nested("(1 + ", "i", ")", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("abs(", "i", ")", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("CASE WHEN i > 0 THEN ", "1", " ELSE 0 END", count)
                    + " FROM generate_series(1, 2) AS s (i)",
                nested("NOT ", "i > 1", "", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("- ", "i", "", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("ARRAY[", "1", "]", count),
                format!("SELECT '{}1{}'::int[]", "{".repeat(count), "}".repeat(count)),
                nested("(SELECT ", "1", ")", count),
                nested("coalesce(NULL, ", "i", ")", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("", "i", " || 'x'", count) + " FROM (VALUES ('a')) AS s (i)",
                nested("", "i", "::text::varchar", count) + " FROM generate_series(1, 2) AS s (i)",
                nested("(SELECT i FROM ", "generate_series(1, 2) AS s (i)", ") AS s", count)
                    .replacen("SELECT ", "SELECT * FROM ", 1),
                nested("", "1", " UNION ALL SELECT 1", count),
            ]
        {
            // Statements that are too deep are refused.
            let result = client.batch_execute(&statement).await;
            let refused = result.is_err_and(|error| error.as_db_error().is_none());
            let first = &statement[..statement.len().min(200)];
            assert!(!refused && server.is_running(), "{count}: {first}");
        }
    }
}

/// A long constant is computed where it can be cancelled, and where no other statement waits for it.
#[tokio::test]
async fn a_constant_that_takes_long_can_be_cancelled() {
    let server = Server::start(&["--threads", "1", "--statement-timeout", "300ms"]);
    let client = server.client().await;
    let (text, pattern) = ("a".repeat(500_000), "(a?){100}(a?b){500}".repeat(2));
    for statement in [
        format!("SELECT '{text}' ~ '{pattern}'"),
        format!("SELECT repeat('a', 60000000) ~ '{pattern}'"),
        format!("SELECT length(regexp_replace('{text}', '(a*)*(a?b){{500}}', 'b', 'g'))"),
        "SELECT length(trim(repeat('a', 60000000), repeat('b', 60000000) || 'a'))".to_owned(),
    ] {
        let error = client.batch_execute(&statement).await;
        // A fast machine may finish some of them in time.
        if let Err(error) = error {
            let code = error.code().map_or("", |code| code.code());
            assert!(["57014", "54000"].contains(&code), "{error:?}");
        }
        // All of these are cancelled, too. If one of them kept its thread, the thread would be held longer than the whole
        // test.
        let mut answers = 0;
        for _ in 0..10 {
            answers += usize::from(client.query_one("SELECT 1", &[]).await.is_ok());
        }
        assert!(answers > 0, "the server does not answer after {:.60}", statement);
    }
}

/// The lists become sets; comparisons one by one would take minutes.
#[tokio::test]
async fn long_lists_are_sets() {
    let server = Server::start(&["--threads", "1"]);
    let client = server.client().await;
    client.batch_execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await.unwrap();
    let rows = "INSERT INTO t SELECT i, i FROM generate_series(1, 100000) AS s (i)";
    client.execute(rows, &[]).await.unwrap();
    // Many times the actual duration.
    client.batch_execute("SET statement_timeout = '20s'").await.unwrap();
    let count = async |condition: &str,
                       parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)]| {
        let select = format!("SELECT count(*) FROM t WHERE {condition}");
        client.query_one(&select, parameters).await.unwrap().get::<_, i64>(0)
    };
    let numbers: Vec<String> = (0..12_000).map(|number| (number * 3).to_string()).collect();
    let list = numbers.join(",");
    assert_eq!(count(&format!("v IN ({list})"), &[]).await, 11_999);
    assert_eq!(count(&format!("v NOT IN ({list})"), &[]).await, 88_001);
    assert_eq!(count(&format!("v NOT IN ({list}, NULL)"), &[]).await, 0);
    assert_eq!(count(&format!("id IN ({list})"), &[]).await, 11_999);
    assert_eq!(count(&format!("v = ANY ('{{{list}}}')"), &[]).await, 11_999);
    let array: Vec<i32> = (0..12_000).map(|number| number * 3).collect();
    assert_eq!(count("v = ANY ($1)", &[&array]).await, 11_999);
    assert_eq!(count("v <> ALL ($1)", &[&array]).await, 88_001);
    assert_eq!(count("v NOT IN (SELECT id FROM t WHERE id % 2 = 0)", &[]).await, 50_000);
    assert_eq!(count("v < ANY (SELECT id FROM t WHERE id <= 50000)", &[]).await, 49_999);
    assert_eq!(count("v >= ALL (SELECT id FROM t WHERE id <= 50000)", &[]).await, 50_001);
    assert_eq!(count("v <> ANY (SELECT id FROM t)", &[]).await, 100_000);
}

/// Every operator yields its thread: no statement of another client waits for the operator's end.
#[tokio::test]
async fn no_operator_keeps_the_thread() {
    let server = Server::start(&["--threads", "1"]);
    let (busy, other) = (server.client().await, server.client().await);
    busy.batch_execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)").await.unwrap();
    let rows = "INSERT INTO t SELECT i, i FROM generate_series(1, 30000) AS s (i)";
    busy.execute(rows, &[]).await.unwrap();
    let cancel = busy.cancel_token();
    for statement in [
        "SELECT count(*) FROM t a LEFT JOIN t b ON a.v < b.v AND a.v + b.v < 0",
        "SELECT count(*) FROM t a JOIN t b ON a.v % 2 = b.v % 2 AND a.v + b.v < 0",
        "SELECT count(*) FROM (SELECT DISTINCT a.v + b.v AS s FROM t a, t b) AS d",
        "SELECT count(*) FROM t a, t b WHERE (a.v % 3) || 'x' = (b.v % 3) || 'x' AND a.v + b.v < 0",
        "SELECT v FROM t UNION SELECT a.v + b.v FROM t a, t b",
        "SELECT sum(a.v * b.v) FROM t a, t b GROUP BY a.v % 10",
        "SELECT count(*) FROM generate_series(1, 100000000000) AS s (i) WHERE i < 0",
        "SELECT count(*) FROM t a WHERE a.v < (SELECT min(b.v) FROM t b WHERE b.v > a.v - 10)",
    ] {
        let mut long = std::pin::pin!(busy.batch_execute(statement));
        let others = async {
            for _ in 0..20 {
                other.query_one("SELECT v FROM t WHERE id = 7", &[]).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            result = &mut long => panic!("{statement} ended: {result:?}"),
            () = others => {}
        }
        // The statement is running, so the request meets this one.
        cancel.cancel_query(tokio_postgres::NoTls).await.unwrap();
        assert!(long.await.is_err(), "{statement}");
    }
}

/// Silent connections keep no other client out, at any port.
#[test]
fn silent_connections_keep_nobody_out() {
    let (metrics, programs) = (free_address(), free_address());
    let server = Server::start(&["--metrics", &metrics, "--clients", &programs, "--tables", "t"]);
    let listen = format!("127.0.0.1:{}", server.port);
    for address in [&listen, &metrics, &programs] {
        let silent: Vec<TcpStream> =
            (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
        if *address == listen {
            assert_eq!(server.query("SELECT 7"), "7");
        } else if *address == metrics {
            let text = get(&metrics, "/metrics");
            assert!(text.contains("gannet_startups_dismissed_total"), "{text}");
        } else {
            let addresses = vec![programs.parse().unwrap()];
            let timeout = std::time::Duration::from_secs(20);
            let options = gannet_engine::ClientOptions { addresses, key: None, timeout };
            drop(gannet_engine::Client::connect(options).unwrap());
        }
        drop(silent);
    }
}

/// Clients that have not logged in take no session's place.
#[test]
fn half_a_login_takes_no_place_of_a_session() {
    let users = crate::security::users("half");
    let server = Server::start(&["--users", users.to_str().unwrap(), "--connections-max", "3"]);
    let begun: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
            let startup = b"\0\0\0\x15\0\x03\0\0user\0tester\0\0";
            socket.write_all(startup).unwrap();
            // The server asks for a password.
            socket.read_exact(&mut [0]).unwrap();
            socket
        })
        .collect();
    let mut psql = server.psql();
    let output = psql.args(["-AtqX", "-c", "SELECT 7"]).env("PGPASSWORD", "sesame").output();
    assert_eq!(output.unwrap().stdout, b"7\n");
    drop(begun);
}

/// Neither at the members' port nor at that of programs.
#[test]
fn junk_does_not_fill_the_log() {
    let plan = Plan::new("nodes-junk");
    let programs = free_address();
    let key = crate::nodes::write_key(&plan.key.with_file_name("clients.key"), '5');
    let clients = ["--clients", &programs, "--clients-key", key.to_str().unwrap()];
    let first = plan.start(0, &[&clients[..], &["--tables", "t"]].concat());
    let others = [1, 2].map(|node| plan.start(node, &["--tables", "t"]));
    let mut first = Server::listening(first);
    let others = others.map(Server::listening);
    for address in [plan.address(0), &programs] {
        for _ in 0..60 {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(b"GET / HTTP/1.1\r\nHost: here\r\nAccept: nothing\r\n\r\n").unwrap();
            // A reset is an end as well.
            let _ = socket.read_to_end(&mut Vec::new());
        }
    }
    first.signal("TERM");
    first.wait();
    let log = first.log();
    for of_kind in ["a call from 127.0.0.1", "the connection of client 127.0.0.1"] {
        let lines = log.lines().filter(|line| line.contains(of_kind)).count();
        // More lines may follow after a while.
        assert!((1..30).contains(&lines), "{of_kind}: {log}");
    }
    drop(others);
}
