//! Limits of connections and statements, cancelling, and the stop of a server.
//!
//! psql, tokio-postgres and sockets use real servers with short limits. A test fails if a statement or a connection that
//! exceeds a limit ends with another SQLSTATE or not at all, if other clients have to wait, or if a server that is told to stop
//! breaks off a transaction early or goes on for ever.
//!
//! *Not here*: the memory of statements (`large.rs`, `spilled.rs`), waits for other nodes (`silent.rs`, `waits.rs`).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use tokio_postgres::NoTls;
use tokio_postgres::error::SqlState;

use crate::process::{Server, errors, read_all};

/// A statement that takes too long to wait for.
const LONG: &str =
    "SELECT count(*) FROM n a CROSS JOIN n b CROSS JOIN n c WHERE a.i + b.i + c.i < 0";

/// Creates the table of [`LONG`].
fn prepare_long(server: &Server) {
    let values: Vec<String> = (0..2_000).map(|i| format!("({i})")).collect();
    let insert = format!("INSERT INTO n VALUES {}", values.join(","));
    let create = "CREATE TABLE n (i INTEGER PRIMARY KEY)";
    server.query(&format!("SET statement_timeout = 0; {create}; {insert}"));
}

/// Also if the request arrives at the thread that is busy with the statement.
#[tokio::test]
async fn a_cancel_request_ends_the_statement_alone() {
    for threads in ["1", "2"] {
        cancel_a_statement(&Server::start(&["--threads", threads])).await;
    }
}

async fn cancel_a_statement(server: &Server) {
    prepare_long(server);
    let client = server.client().await;
    let cancel = client.cancel_token();
    let mut statement = std::pin::pin!(client.batch_execute(LONG));
    // A request that arrives before the statement correctly has no effect, so it is repeated.
    let error = loop {
        tokio::select! {
            result = &mut statement => break result.unwrap_err(),
            () = tokio::time::sleep(std::time::Duration::from_millis(50)) => {
                cancel.cancel_query(NoTls).await.unwrap();
            }
        }
    };
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
}

#[tokio::test]
async fn clients_are_served_while_a_statement_of_another_runs_on_their_thread() {
    let server = Server::start(&["--threads", "1"]);
    prepare_long(&server);
    let (busy, other) = (server.client().await, server.client().await);
    let mut statement = std::pin::pin!(busy.batch_execute(LONG));
    let queries = async {
        for number in 0..10 {
            other.execute("UPDATE n SET i = i WHERE i = $1", &[&number]).await.unwrap();
        }
        let late = server.client().await;
        late.execute("SELECT 1", &[]).await.unwrap();
    };
    tokio::select! {
        biased;
        result = &mut statement => panic!("the statement ended: {result:?}"),
        () = queries => {}
    }
}

#[test]
fn a_statement_that_takes_too_long_is_cancelled() {
    let server = Server::start(&["--statement-timeout", "500ms", "--threads", "1"]);
    prepare_long(&server);
    let error = server.failure(LONG);
    assert!(error.contains("57014") && error.contains("statement timeout"), "{error}");
    assert_eq!(server.query("SET statement_timeout = 0; SELECT 1"), "1");
}

#[test]
fn a_client_sets_its_statement_timeout() {
    let server = Server::start(&["--statement-timeout", "60m"]);
    prepare_long(&server);
    let error = server.failure(&format!("SET statement_timeout = '300ms'; {LONG}"));
    assert!(error.contains("57014") && error.contains("statement timeout"), "{error}");
    let mut psql = server.psql();
    psql.env("PGOPTIONS", "-c statement_timeout=300").args(["-v", "VERBOSITY=verbose", "-c", LONG]);
    let error = errors(&psql.output().unwrap());
    assert!(error.contains("57014") && error.contains("statement timeout"), "{error}");
    assert!(server.failure("SET statement_timeout = 'soon'").contains("22023"));
    assert_eq!(server.query("SET statement_timeout = 0; SHOW statement_timeout"), "0");
}

#[tokio::test]
async fn one_connection_too_many_is_refused() {
    let server = Server::start(&["--connections-max", "2"]);
    let first = server.client().await;
    let _second = server.client().await;
    let error = server.config().connect(NoTls).await.err().unwrap();
    assert_eq!(error.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
    assert!(error.as_db_error().unwrap().hint().unwrap().contains("--connections-max"));
    drop(first);
    // The place is free once the server has noticed the end of the first connection.
    while server.config().connect(NoTls).await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_statement_ends_with_its_client() {
    let server = Server::start(&["--connections-max", "1"]);
    let connected = async || loop {
        // The place is free once the server has noticed the end of the previous connection.
        match server.config().connect(NoTls).await {
            Ok((client, connection)) => break (client, tokio::spawn(connection)),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    prepare_long(&server);
    let simple = format!("BEGIN; UPDATE n SET i = -1 WHERE i = 0; {LONG}");
    for is_simple in [true, false] {
        let (client, connection) = connected().await;
        let statement = async {
            match is_simple {
                true => client.batch_execute(&simple).await,
                false => client.execute(LONG, &[]).await.map(|_| ()),
            }
        };
        // Without a cancel request and without Terminate: the socket is closed.
        let cut = async {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            connection.abort();
        };
        let (result, ()) = tokio::join!(statement, cut);
        assert!(result.unwrap_err().is_closed());
    }
    let (client, _connection) = connected().await;
    let row = client.query_one("SELECT count(*) FROM n WHERE i = 0", &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 1);
}

#[test]
fn an_idle_connection_is_closed() {
    let server = Server::start(&["--idle-timeout", "200ms"]);
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    socket.write_all(b"\0\0\0\x15\0\x03\0\0user\0tester\0\0").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("57P05"));
}

#[test]
fn a_stopping_server_lets_statements_end_and_informs_clients() {
    let mut server = Server::start(&[]);
    server.query("CREATE TABLE t (a INTEGER)");
    let mut idle = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    idle.write_all(b"\0\0\0\x15\0\x03\0\0user\0tester\0\0").unwrap();
    let mut reader = BufReader::new(idle);
    // ReadyForQuery is the last message of the startup.
    let mut startup = Vec::new();
    while !startup.ends_with(b"Z\0\0\0\x05I") {
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        startup.push(byte[0]);
    }
    server.signal("TERM");
    let mut farewell = Vec::new();
    reader.read_to_end(&mut farewell).unwrap();
    assert!(String::from_utf8_lossy(&farewell).contains("57P01"));
    assert_eq!(server.wait().code(), Some(0));
}

/// psql, which is told what to do and heard meanwhile.
struct Conversation {
    psql: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Conversation {
    fn with(server: &Server) -> Self {
        let mut psql = server
            .psql()
            .args(["-X", "-v", "VERBOSITY=verbose"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = psql.stdin.take().unwrap();
        let output = BufReader::new(psql.stdout.take().unwrap());
        Self { psql, input, output }
    }

    fn say(&mut self, statements: &str) {
        writeln!(self.input, "{statements}").unwrap();
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "psql ended before {word}");
        }
    }

    /// Ends it. What it has said of errors.
    fn errors(mut self) -> String {
        drop(self.input);
        let errors = read_all(self.psql.stderr.take().unwrap());
        self.psql.wait().unwrap();
        errors
    }
}

#[test]
fn a_stopping_server_lets_transactions_end_in_time() {
    for ends in [true, false] {
        let timeout = if ends { "60s" } else { "300ms" };
        let mut server = Server::start(&["--shutdown-timeout", timeout]);
        server.query("CREATE TABLE town (id INTEGER PRIMARY KEY)");
        let mut psql = Conversation::with(&server);
        psql.say("BEGIN;\nINSERT INTO town VALUES (1);\nSELECT 'begun';");
        psql.hear("begun");
        server.signal("TERM");
        if ends {
            // New sessions are refused, and this one goes on to the end of its transaction.
            let refused = || server.psql().args(["-c", "SELECT 1"]).output().unwrap();
            while refused().status.success() {}
            psql.say("INSERT INTO town VALUES (2);\nSELECT count(*) + 40 FROM town;");
            psql.hear("42");
            psql.say("COMMIT;");
            psql.hear("COMMIT");
        }
        assert_eq!(server.wait().code(), Some(0));
        psql.say("SELECT 7;");
        let errors = psql.errors();
        assert!(errors.contains("57P01"), "{errors}");
    }
}

#[test]
fn a_statement_that_does_not_end_delays_the_stop_for_a_bounded_time() {
    let mut server = Server::start(&["--shutdown-timeout", "300ms"]);
    prepare_long(&server);
    let mut psql = Conversation::with(&server);
    psql.say(&format!("SELECT 'begun';\n{LONG};"));
    psql.hear("begun");
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let errors = psql.errors();
    assert!(errors.contains("57014") || errors.contains("57P01"), "{errors}");
}
