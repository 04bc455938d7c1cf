//! Programs beside the cluster: the client library against nodes that are processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gannet::{
    Abort, Client, ClientError, ClientOptions, ClusterKey, Direction, Key, KeyRange, Outcome,
};

use crate::nodes::{Plan, free_address};
use crate::process::{Server, read_all};

const ACCOUNTS: u64 = 8;
/// What all accounts hold together.
const SUM: u64 = 100 * ACCOUNTS;

fn client(addresses: &[&str], key: Option<char>) -> Result<Client, ClientError> {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let key = key.map(|digit| {
        ClusterKey::new([u8::from_str_radix(&format!("{digit}{digit}"), 16).unwrap(); 32])
    });
    Client::connect(ClientOptions { addresses, key, timeout: Duration::from_secs(20) })
}

/// A cluster in one process with tables for clients, and where these connect.
fn server(rule: Option<&str>, arguments: &[&str]) -> (Server, String) {
    let address = free_address();
    let tables = ["--clients", &address, "--tables", "accounts:8,words,totals:8"];
    (Server::start_without(rule, &[&tables[..], arguments].concat()), address)
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

fn everything() -> KeyRange {
    KeyRange { from: Bound::Unbounded, to: Bound::Unbounded }
}

/// Fills the accounts, moves money between them at all nodes at once, and counts the audits that found another sum.
fn wrong_audits(addresses: &[&str], key: Option<char>) -> u64 {
    let filler = client(addresses, key).unwrap();
    let accounts = filler.table("accounts").unwrap();
    let filled = filler
        .run(|tx| (0..ACCOUNTS).try_for_each(|one| tx.put(accounts, one, &100_u64.to_le_bytes())));
    assert_eq!(filled.unwrap(), Outcome::Committed::<_, Abort>(()));
    let wrong = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for (address, teller) in addresses.iter().cycle().zip(0..6_u64) {
            let wrong = &wrong;
            scope.spawn(move || {
                let client = client(&[*address], key).unwrap();
                for turn in 0..150 {
                    let from = (turn * 5 + teller) % ACCOUNTS;
                    let to = (from + 1 + turn % (ACCOUNTS - 1)) % ACCOUNTS;
                    let moved = client.run(|tx| {
                        let there = number(tx.get(accounts, from)?);
                        let moved = there.min(turn % 40);
                        let after = number(tx.get(accounts, to)?) + moved;
                        tx.put(accounts, from, &(there - moved).to_le_bytes())?;
                        tx.put(accounts, to, &after.to_le_bytes())
                    });
                    assert_eq!(moved.unwrap(), Outcome::Committed::<_, Abort>(()));
                    let audit = client.run(|tx| {
                        let balances = tx.get_many(accounts, (0..ACCOUNTS).map(Key::from))?;
                        Ok::<u64, Abort>(balances.into_iter().map(number).sum())
                    });
                    wrong
                        .fetch_add(u64::from(audit.unwrap().committed() != SUM), Ordering::Relaxed);
                }
            });
        }
    });
    wrong.into_inner()
}

#[test]
fn programs_share_the_tables_of_a_cluster_of_processes() {
    let plan = Plan::new("clients");
    let addresses = [free_address(), free_address(), free_address()];
    let start = |node: usize| {
        let tables = "accounts:8,words,totals:8";
        plan.start(node, &["--clients", &addresses[node], "--tables", tables])
    };
    let started: Vec<_> = (0..3).map(start).collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();

    assert_eq!(wrong_audits(&addresses, Some('7')), 0);

    // Two programs that count the same words, each at a node of its own.
    let text = "to be or not to be\n".repeat(150) + "that is the question\n";
    let programs = [0, 1].map(|node| counting_words(&plan.key, addresses[node], &text));
    let printed = programs.map(|mut program| {
        assert!(program.wait().unwrap().success());
        read_all(program.stdout.take().unwrap())
    });
    let is_whole =
        |text: &String| text.contains("600 to\n") && text.contains("1808 words, 8 different");
    assert!(printed.iter().any(is_whole), "{printed:?}");

    // When a process has gone, the others cannot go on, and say so.
    let left = client(&addresses[1..], Some('7')).unwrap();
    let accounts = left.table("accounts").unwrap();
    nodes[0].signal("KILL");
    nodes[0].wait();
    let error = loop {
        let outcome = left.run(|tx| tx.put(accounts, 0, &7_u64.to_le_bytes()));
        match outcome {
            Err(error @ (ClientError::Halted(_) | ClientError::Unknown(_))) => break error,
            Ok(Outcome::Committed::<_, Abort>(())) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(error.to_string().contains("node 0"), "{error}");
}

/// `examples/client.rs` at work.
fn counting_words(key: &Path, address: &str, text: &str) -> Child {
    let program: PathBuf =
        Path::new(env!("CARGO_BIN_EXE_gannet")).with_file_name("examples").join("client");
    let mut child = Command::new(program)
        .args(["--key", key.to_str().unwrap(), address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`cargo build --examples` with the profile and features of the tests makes it");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child
}

#[test]
fn an_audit_notices_a_rule_that_is_removed() {
    let (_server, address) = server(Some("SkipValidation"), &[]);
    assert!((0..20).any(|_| wrong_audits(&[&address], None) > 0));
}

#[test]
fn what_is_large_travels_in_parts() {
    let (_server, address) = server(None, &[]);
    let client = client(&[&address], None).unwrap();
    let (words, totals) = (client.table("words").unwrap(), client.table("totals").unwrap());
    let key = |number: u64| Key::from(format!("{number:05}").as_str());
    let large = vec![7; 1 << 20];
    let written = client.run(|tx| {
        (0..20_000).try_for_each(|row| tx.put(words, key(row), &[b'x'; 100]))?;
        (0..5).try_for_each(|row| tx.put(words, key(row), &large))?;
        tx.delete(words, key(19_999))?;
        // Its own writes are there for it, and for nobody else yet.
        let seen = tx.get_many(words, [key(0), key(7), key(19_999)])?;
        assert_eq!(seen, [Some(large.clone()), Some(vec![b'x'; 100]), None]);
        tx.put(totals, 1, &3_u64.to_le_bytes())
    });
    assert_eq!(written.unwrap(), Outcome::Committed::<_, Abort>(()));

    let read = |direction| {
        let outcome = client.run(|tx| {
            let (mut rows, mut rest) = (Vec::new(), Some(everything()));
            while let Some(range) = rest {
                let page = tx.scan(words, &range, direction, 7_000)?;
                assert!(page.rows.len() <= 7_000);
                rows.extend(page.rows);
                rest = page.rest;
            }
            Ok::<_, Abort>(rows)
        });
        outcome.unwrap().committed()
    };
    let rows = read(Direction::Ascending);
    assert_eq!(rows.len(), 19_999);
    assert!(rows.is_sorted() && rows[4].1 == large && rows[5].1 == [b'x'; 100]);
    assert!(read(Direction::Descending).into_iter().rev().eq(rows));
    let values = client.run(|tx| tx.get_many(words, (0..20_001).map(key)));
    let values: Vec<Option<Vec<u8>>> = Outcome::<_, Abort>::committed(values.unwrap());
    assert_eq!(values.iter().flatten().count(), 19_999);

    let too_large = client.run(|tx| {
        (0..70).try_for_each(|row| tx.put(words, format!("large {row}").as_str(), &large))
    });
    assert!(
        matches!(
            too_large,
            Ok(Outcome::Failed(Abort::TooLarge { .. }) | Outcome::Aborted(Abort::TooLarge { .. }))
        ),
        "{too_large:?}"
    );
    let key = |number: u64| Key::from(format!("large {number}").as_str());
    let mut rows = 0;
    let full = loop {
        let outcome =
            client.run(|tx| (rows..rows + 20).try_for_each(|row| tx.put(words, key(row), &large)));
        match outcome.unwrap() {
            Outcome::Committed(()) => rows += 20,
            other => break other,
        }
    };
    assert!(matches!(full, Outcome::Aborted(Abort::TableFull { .. })), "{full:?}");
    let values = client.run(|tx| tx.get_many(words, (0..rows + 20).map(key))).unwrap();
    let values: Vec<Option<Vec<u8>>> = Outcome::<_, Abort>::committed(values);
    assert_eq!(values.iter().flatten().count() as u64, rows);
}

#[test]
fn closures_decide_and_conflicts_are_run_again() {
    let (_server, address) = server(None, &[]);
    let client = client(&[&address], None).unwrap();
    let totals = client.table("totals").unwrap();
    #[derive(Debug, PartialEq)]
    enum Refusal {
        Own,
        Engine(Abort),
    }
    impl From<Abort> for Refusal {
        fn from(abort: Abort) -> Self {
            Self::Engine(abort)
        }
    }
    let refused = client.run(|tx| {
        tx.put(totals, 1, &[1; 8])?;
        Err::<(), _>(Refusal::Own)
    });
    assert_eq!(refused.unwrap(), Outcome::Failed(Refusal::Own));
    assert_eq!(client.run(|tx| tx.get(totals, 1)).unwrap(), Outcome::Committed::<_, Abort>(None));

    // What the first run has read changes before it ends: neither its value nor its error nor its panic counts.
    for ending in ["commit", "refusal", "panic"] {
        let mut runs = 0;
        let outcome = client.run(|tx| {
            runs += 1;
            let before = number(tx.get(totals, 2)?);
            if runs == 1 {
                let between = client.run(|tx| tx.put(totals, 2, &(before + 10).to_le_bytes()));
                assert_eq!(between.unwrap(), Outcome::Committed::<_, Abort>(()));
            }
            tx.put(totals, 2, &(before + 1).to_le_bytes())?;
            // With this one it has read what was never true together.
            tx.get(totals, 3)?;
            match ending {
                "commit" => Ok(before),
                "refusal" => Err(Refusal::Own),
                _ => panic!("on purpose"),
            }
        });
        let expected = match ending {
            "commit" => Outcome::Committed(10),
            "refusal" => Outcome::Failed(Refusal::Own),
            _ => Outcome::Panicked("on purpose".to_owned()),
        };
        assert_eq!((outcome.unwrap(), runs), (expected, 2));
    }
    let last = client.run(|tx| tx.get(totals, 2)).unwrap();
    assert_eq!(number(Outcome::<_, Abort>::committed(last)), 31);
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let (server, address) = server(None, &["--connections-max", "2"]);
    let client_ = client(&[&address], None).unwrap();
    let (words, totals) = (client_.table("words").unwrap(), client_.table("totals").unwrap());
    let long = vec![b'k'; 4_097];
    let error = |outcome: Result<Outcome<(), Abort>, ClientError>| match outcome.unwrap() {
        Outcome::Failed(abort) => abort.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(error(client_.run(|tx| tx.put(words, 1, b"x"))).contains("byte strings"));
    assert!(error(client_.run(|tx| tx.put(totals, "one", &[0; 8]))).contains("numbers"));
    assert!(error(client_.run(|tx| tx.put(totals, 1, b"x"))).contains("values of 8 bytes"));
    assert!(error(client_.run(|tx| tx.put(words, &long[..], b"x"))).contains("4096"));
    assert!(error(client_.run(|tx| tx.put(words, "", b"x"))).contains("4096"));
    let scan = client_.run(|tx| tx.scan(totals, &everything(), Direction::Ascending, 5).map(drop));
    assert!(error(scan).contains("no table"));
    // The tables of SQL are not for clients.
    let unknown = client_.table("rows").map(drop).unwrap_err().to_string();
    assert!(unknown.contains("no table named rows"), "{unknown}");

    // Garbage ends its own connection, and nothing else.
    for garbage in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[255; 100], b"gannet\x01\x00"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // It may be cut off.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 24);
    }
    let second = loop {
        // Until the connections that garbage has ended are counted out.
        if let Ok(second) = client(&[&address], None) {
            break second;
        }
    };
    let third = client(&[&address], None).map(drop).unwrap_err().to_string();
    assert!(third.contains("as many clients as it takes"), "{third}");
    drop(second);
    assert_eq!(server.query("SELECT 1"), "1");
}

#[test]
fn keys_and_addresses_are_checked() {
    let key = crate::nodes::write_key(&crate::process::folder("clients-key").join("key"), '5');
    let (_server, address) = server(None, &["--cluster-key", key.to_str().unwrap()]);
    let error = |key| client(&[&address], key).map(drop).unwrap_err().to_string();
    assert!(error(Some('6')).contains("another cluster key"));
    assert!(error(None).contains("needs the cluster key"));
    // A node that cannot be reached is passed over.
    let nobody = free_address();
    assert!(client(&[&nobody, &address], Some('5')).is_ok());
    let missing = client(&[&nobody], Some('5')).map(drop).unwrap_err().to_string();
    assert!(missing.contains(&nobody) && missing.contains("does it run"), "{missing}");
    assert!(matches!(client(&[], None), Err(ClientError::NoAddress)));

    let failure = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["serve", "--listen", "127.0.0.1:0", "--memory", "64MiB"])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    let used: SocketAddr = address.parse().unwrap();
    assert!(failure(&["--clients", "0.0.0.0:0"]).contains("without a key"));
    assert!(failure(&["--clients", &used.to_string()]).contains("choose another address"));
    assert!(failure(&["--clients", "here"]).contains("use host:port"));
    assert!(failure(&["--tables", "stock:many"]).contains("such as stock:8"));
    assert!(failure(&["--tables", "stock:8,stock:8"]).contains("named stock already"));
    let plan = Plan::new("clients-tables");
    let others: Vec<_> = (1..3).map(|node| plan.start(node, &[])).collect();
    let error = plan.failure(0, &["--tables", "stock:8"]);
    assert!(error.contains("creating table stock"), "{error}");
    for mut other in others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
