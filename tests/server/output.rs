//! Output that cannot be written, or has no reader: a server goes on, and a cluster notices failures as usual.
//!
//! Real processes get a closed pipe, a full device or a full pipe that nobody reads as their output or log. A test fails if a
//! server ends or blocks, if a cluster does not go on without a killed node, or if a command panics or ends with a wrong code.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::nodes::{Plan, free_address};
use crate::process::{Server, errors};

/// An output that takes no bytes.
#[derive(Clone, Copy, Debug)]
enum Output {
    Closed,
    Full,
    Unread,
}

/// The output, and the pipe's other end, which keeps it blocked.
fn output(kind: Output) -> (Stdio, Option<std::io::PipeReader>) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    match kind {
        Output::Closed => (writer.into(), None),
        Output::Full => (OpenOptions::new().write(true).open("/dev/full").unwrap().into(), None),
        Output::Unread => {
            // The capacity of a pipe.
            writer.write_all(&[b' '; 64 << 10]).unwrap();
            (writer.into(), Some(reader))
        }
    }
}

#[test]
fn a_log_that_cannot_be_written_neither_ends_nor_blocks_a_cluster() {
    for kind in [Output::Closed, Output::Full, Output::Unread] {
        let plan = Plan::new("nodes-output");
        let (errors, kept) = output(kind);
        let first = plan.start_logging_to(0, errors);
        let others: Vec<_> = [1, 2].map(|node| plan.start(node, &[])).into_iter().collect();
        let mut first = Server::listening(first);
        let mut others: Vec<_> = others.into_iter().map(Server::listening).collect();
        first.query("CREATE TABLE town (id INTEGER PRIMARY KEY); INSERT INTO town VALUES (1), (2)");
        others[0].signal("KILL");
        others[0].wait();
        // The loss and what follows are logged. A statement on its own is run again if it meets them.
        first.query("UPDATE town SET id = id + 10");
        assert_eq!(first.query("SELECT count(*) FROM town"), "2", "{kind:?}");
        first.signal("TERM");
        assert_eq!(first.wait().code(), Some(0), "{kind:?}");
        drop(kept);
    }
}

#[test]
fn a_server_goes_on_without_a_reader_of_its_output() {
    for kind in [Output::Closed, Output::Full, Output::Unread] {
        let address = free_address();
        let (said, kept) = output(kind);
        let child = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["serve", "--listen", &address, "--memory", "128MiB"])
            .stdout(said)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
        let mut server = Server::at(child, port);
        while std::net::TcpStream::connect(&address).is_err() {
            assert!(server.is_running(), "{kind:?}");
        }
        assert_eq!(server.query("SELECT 1 + 1"), "2");
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0), "{kind:?}");
        drop(kept);
    }
}

/// Runs a command to its end.
fn ended(arguments: &str, kind: Output) -> std::process::Output {
    let (said, _kept) = output(kind);
    Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(arguments.split('|'))
        .stdout(said)
        .stderr(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap()
}

#[test]
fn every_command_ends_quietly_when_its_reader_has_left() {
    let server = Server::start(&[]);
    let at_server = format!("--connect|127.0.0.1:{}", server.port);
    let short = "--duration|50ms|--warmup|10ms|--memory|128MiB";
    for (command, code) in [
        (format!("status|{at_server}|--interval|1ms"), 0),
        (format!("bench|pairs|{short}"), 0),
        (format!("bench|pairs|{short}|--format|json"), 0),
        ("simulate|--seeds|1|--transactions|50".to_owned(), 0),
        ("simulate|--seed|1|--transactions|50".to_owned(), 0),
        // The remaining statements have not run.
        ("sql|--memory|64MiB|-c|SELECT 1; SELECT 2".to_owned(), 1),
        (format!("sql|{at_server}|-c|SELECT 1; COPY (SELECT 2) TO STDOUT"), 1),
        (format!("sql|{at_server}|-c|.help"), 1),
    ] {
        let left = ended(&command, Output::Closed);
        assert_eq!((left.status.code(), errors(&left).as_str()), (Some(code), ""), "{command}");
        let full = ended(&command, Output::Full);
        assert_eq!(full.status.code(), Some(if code == 0 { 2 } else { 1 }), "{command}");
        assert!(errors(&full).contains("cannot write "), "{command}: {}", errors(&full));
    }
    for command in ["--help", "--version", "sql|--help", "demo|--memory|64MiB|-c|SELECT 1"] {
        let left = ended(command, Output::Closed);
        let said = errors(&left);
        assert!(left.status.code().is_some_and(|code| code < 2), "{command}: {said}");
        assert!(said.lines().all(|line| line.starts_with("node ")), "{command}: {said}");
    }
}
