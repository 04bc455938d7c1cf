//! Malformed messages end their own connection, and nothing else.
//!
//! The tests write bytes to a socket of a real server, and read until the server closes the connection. A test fails if an
//! answer has another error, if the process or another connection ends, or if messages after an error are run before Sync.
//!
//! *Not here*: statements that the parser does not expect (`tests/sql_fuzz.rs`), and those that would
//! end the process (`abuse.rs`).

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::process::Server;

const STARTUP: &[u8] = b"\0\0\0\x15\0\x03\0\0user\0tester\0\0";

/// The server's answer to some bytes, until it closes the connection. If `end`, the client half-closes its side.
fn answer(server: &Server, bytes: &[u8], end: bool) -> String {
    let mut socket = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    socket.write_all(bytes).unwrap();
    if end {
        socket.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn malformed_messages_end_their_connection_alone() {
    let mut server = Server::start(&[]);
    let other = server.client().await;
    let malformed: [&[u8]; 9] = [
        b"Q\0\0\0\x03",
        b"Q\xff\xff\xff\xff",
        b"Q\0\0\0\x06ab",
        b"?\0\0\0\x04",
        b"P\0\0\0\x08\0\0\xff\xff",
        b"B\0\0\0\x0c\0\0\0\0\0\x01\0\0",
        b"D\0\0\0\x06X\0",
        b"E\0\0\0\x05\0",
        b"F\0\0\0\x04",
    ];
    for bytes in malformed {
        let text = answer(&server, &[STARTUP, bytes].concat(), false);
        assert!(text.contains("FATAL"), "{bytes:?}: {text}");
    }
    assert!(other.query_one("SELECT 1", &[]).await.is_ok());
    assert!(server.is_running());
}

#[tokio::test]
async fn malformed_startups_end_their_connection_alone() {
    let mut server = Server::start(&[]);
    let other = server.client().await;
    for (bytes, code) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "08P01"),
        (b"\0\0\0\x04", "08P01"),
        (b"\0\0\0\x08\0\x02\0\0", "0A000"),
        (b"\0\0\0\x09\0\x03\0\0\0", "28000"),
        (b"\0\0\0\x0b\0\x03\0\0use", "08P01"),
    ] {
        let text = answer(&server, bytes, false);
        assert!(text.contains(code), "{bytes:?}: {text}");
    }
    for bytes in [&b""[..], b"\0", b"\0\0\0\x15\0\x03", b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\0"] {
        assert_eq!(answer(&server, bytes, true), "", "{bytes:?}");
    }
    assert!(other.query_one("SELECT 1", &[]).await.is_ok());
    assert!(server.is_running());
}

#[test]
fn text_that_is_not_utf8_is_an_error_of_its_statement() {
    let server = Server::start(&[]);
    let bytes = [STARTUP, b"Q\0\0\0\x0eSELECT '\xff\0", b"Q\0\0\0\x0dSELECT 7\0", b"X\0\0\0\x04"];
    let text = answer(&server, &bytes.concat(), false);
    assert!(text.contains("22021") && text.contains("SELECT 1\0"), "{text}");
}

#[test]
fn messages_after_an_error_are_skipped_up_to_sync() {
    let server = Server::start(&[]);
    let bytes = [
        STARTUP,
        b"P\0\0\0\x0d\0SELEC\0\0\0",
        b"P\0\0\0\x10\0SELECT 5\0\0\0",
        b"B\0\0\0\x0c\0\0\0\0\0\0\0\0",
        b"E\0\0\0\x09\0\0\0\0\0",
        b"S\0\0\0\x04",
        b"X\0\0\0\x04",
    ];
    let text = answer(&server, &bytes.concat(), false);
    assert_eq!(text.matches("42601").count(), 1, "{text}");
    assert!(!text.contains("SELECT 1\0"), "{text}");
    assert_eq!(text.matches("Z\0\0\0\u{5}I").count(), 2, "{text}");
}
