//! Programs beside the cluster: the client library, with nodes that are processes.
//!
//! *Not here*: SQL clients (`simple.rs`, `extended.rs`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gannet::{
    Abort, Client, ClientError, ClientOptions, ClusterKey, Direction, Failure, KeyRange, Misuse,
    Once, Outcome, Token, TokenOutcome, TokenRefusal,
};

use crate::nodes::{Plan, free_address};
use crate::process::{Server, read_all};

const ACCOUNTS: u64 = 8;
/// The sum of all accounts.
const SUM: u64 = 100 * ACCOUNTS;

pub(crate) fn client(addresses: &[&str], key: Option<char>) -> Result<Client, ClientError> {
    patient_client(addresses, key, Duration::from_secs(20))
}

fn patient_client(
    addresses: &[&str],
    key: Option<char>,
    timeout: Duration,
) -> Result<Client, ClientError> {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    let key = key.map(|digit| {
        ClusterKey::new([u8::from_str_radix(&format!("{digit}{digit}"), 16).unwrap(); 32])
    });
    Client::connect(ClientOptions { addresses, key, timeout })
}

/// A cluster in one process with tables for clients, and the address for clients.
fn server(rule: Option<&str>, arguments: &[&str]) -> (Server, String) {
    let address = free_address();
    let tables = ["--clients", &address, "--tables", "accounts:8,words,totals:8"];
    (Server::start_without(rule, &[&tables[..], arguments].concat()), address)
}

pub(crate) fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

fn everything() -> KeyRange {
    KeyRange { from: Bound::Unbounded, to: Bound::Unbounded }
}

/// Fills the accounts, and moves money between them at all nodes at once. Returns the number of audits that found another
/// sum.
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
                        let balances = tx.get_many(accounts, 0..ACCOUNTS)?;
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
    // This key differs from the members' key.
    let key = crate::nodes::write_key(&plan.key.with_file_name("clients.key"), '5');
    let addresses = [free_address(), free_address(), free_address()];
    let start = |node: usize| {
        let tables = "accounts:8,words,totals:8";
        let key = key.to_str().unwrap();
        plan.start(node, &["--clients", &addresses[node], "--clients-key", key, "--tables", tables])
    };
    let started: Vec<_> = (0..3).map(start).collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();

    assert_eq!(wrong_audits(&addresses, Some('5')), 0);
    // The members' key is not valid for programs.
    let error = client(&addresses, Some('7')).map(drop).unwrap_err().to_string();
    assert!(error.contains("another key"), "{error}");

    // Two programs count the same words, each at a node of its own.
    let text = "to be or not to be\n".repeat(150) + "that is the question\n";
    let programs = [0, 1].map(|node| counting_words(&key, addresses[node], &text));
    let printed = programs.map(|mut program| {
        assert!(program.wait().unwrap().success());
        read_all(program.stdout.take().unwrap())
    });
    let is_whole =
        |text: &String| text.contains("600 to\n") && text.contains("1808 words, 8 different");
    assert!(printed.iter().any(is_whole), "{printed:?}");

    // When a process has ended, the others go on, and the program that is connected to one of them, too.
    let left = client(&addresses[1..], Some('5')).unwrap();
    let accounts = left.table("accounts").unwrap();
    nodes[0].signal("KILL");
    nodes[0].wait();
    for value in 0..50_u64 {
        let put = left.run(|tx| tx.put(accounts, 0, &value.to_le_bytes()));
        assert_eq!(put.unwrap(), Outcome::Committed::<_, Abort>(()));
    }
}

/// Starts `examples/client.rs`.
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
fn an_audit_notices_a_removed_rule() {
    let (_server, address) = server(Some("READ_VALIDATION"), &[]);
    assert!((0..20).any(|_| wrong_audits(&[&address], None) > 0));
}

#[test]
fn large_messages_travel_in_parts() {
    let (_server, address) = server(None, &[]);
    let client = client(&[&address], None).unwrap();
    let (words, totals) = (client.table("words").unwrap(), client.table("totals").unwrap());
    let key = |number: u64| format!("{number:05}");
    let large = vec![7; 1 << 20];
    let written = client.run(|tx| {
        (0..20_000).try_for_each(|row| tx.put(words, &*key(row), &[b'x'; 100]))?;
        (0..5).try_for_each(|row| tx.put(words, &*key(row), &large))?;
        tx.delete(words, &*key(19_999))?;
        // The transaction sees its own writes, and no other does yet.
        let seen = tx.get_many(words, ["00000", "00007", "19999"])?;
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
    let keys: Vec<String> = (0..20_001).map(key).collect();
    let values = client.run(|tx| tx.get_many(words, keys.iter().map(String::as_str)));
    let values: Vec<Option<Vec<u8>>> = Outcome::<_, Abort>::committed(values.unwrap());
    assert_eq!(values.iter().flatten().count(), 19_999);

    let too_large = client.run(|tx| {
        (0..70).try_for_each(|row| tx.put(words, format!("large {row}").as_str(), &large))
    });
    assert!(
        matches!(too_large, Ok(Outcome::Failed(Abort::Misuse(Misuse::TooLarge { .. })))),
        "{too_large:?}"
    );
    // A closure that ignores an error does not commit a part.
    let careless = client.run(|tx| {
        let _ = (0..70).try_for_each(|row| tx.put(words, format!("large {row}").as_str(), &large));
        Ok::<_, Abort>(())
    });
    assert!(
        matches!(careless, Ok(Outcome::Aborted(Abort::Misuse(Misuse::TooLarge { .. })))),
        "{careless:?}"
    );
    let key = |number: u64| format!("large {number}");
    let mut rows = 0;
    let full = loop {
        let outcome = client
            .run(|tx| (rows..rows + 20).try_for_each(|row| tx.put(words, &*key(row), &large)));
        match outcome.unwrap() {
            Outcome::Committed(()) => rows += 20,
            other => break other,
        }
    };
    assert!(
        matches!(full, Outcome::Aborted(Abort::Failure(Failure::TableFull { .. }))),
        "{full:?}"
    );
    let keys: Vec<String> = (0..rows + 20).map(key).collect();
    let values = client.run(|tx| tx.get_many(words, keys.iter().map(String::as_str))).unwrap();
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

    // A row that the first run has read changes before the run ends: the run's value, error or panic does not count.
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
            // With this read, the transaction has seen values that were never true together.
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
fn impossible_requests_are_refused() {
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
    // Clients cannot use the tables of SQL.
    let unknown = client_.table("rows").map(drop).unwrap_err().to_string();
    assert!(unknown.contains("no table named rows"), "{unknown}");

    // Garbage ends its own connection, and nothing else.
    for garbage in [&b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"[..], &[255; 100], b"gannet\x01\x00"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        let mut answer = Vec::new();
        // The server may end the connection during any of these.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 24);
    }
    // Waits until the server has noticed the end of the connections with garbage.
    let second = (0..1_000_000).find_map(|_| client(&[&address], None).ok()).unwrap();
    let third = client(&[&address], None).map(drop).unwrap_err().to_string();
    assert!(third.contains("as many clients as it takes"), "{third}");
    drop(second);
    assert_eq!(server.query("SELECT 1"), "1");
}

#[test]
fn keys_and_addresses_are_checked() {
    let key = crate::nodes::write_key(&crate::process::folder("clients-key").join("key"), '5');
    let (_server, address) = server(None, &["--clients-key", key.to_str().unwrap()]);
    let error = |key| client(&[&address], key).map(drop).unwrap_err().to_string();
    assert!(error(Some('6')).contains("another key"));
    assert!(error(None).contains("needs a key"));
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
    let at = |clients: &str| failure(&["--clients", clients, "--tables", "stock:8"]);
    assert!(at("0.0.0.0:0").contains("without a key"));
    assert!(at(&used.to_string()).contains("choose another address"));
    assert!(at("here").contains("use host:port"));
    assert!(failure(&["--clients", &nobody]).contains("clients needs tables"));
    assert!(failure(&["--tables", "stock:8"]).contains("give clients too"));
    assert!(failure(&["--tables", "stock:many"]).contains("such as stock:8"));
    assert!(
        failure(&["--clients", &nobody, "--tables", "stock:8,stock:8"])
            .contains("named stock already")
    );
}

/// The fate of a connection at a certain message of the client. Message 0 is the opening; those of transactions follow.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    /// The connection ends, and the message is lost.
    Before,
    /// The connection ends, and the answer is lost.
    After,
    /// The connection stalls.
    Stall,
}

/// Relays connections to a node: the first one up to message `last`; further ones unharmed if `later`, else none. Returns the
/// relay's address.
fn unreliable(node: &str, last: usize, cut: Cut, later: bool) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, node) = (listener.local_addr().unwrap().to_string(), node.to_owned());
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let (client, node) = (client.unwrap(), TcpStream::connect(&node).unwrap());
            if number == 0 {
                std::thread::spawn(move || pass_on(client, node, last, cut));
            } else {
                pass_on_all(&client, &node);
                pass_on_all(&node, &client);
            }
            if !later {
                return;
            }
        }
    });
    address
}

fn pass_on_all(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    std::thread::spawn(move || {
        // Either side may end the connection.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
}

fn pass_on(
    mut client: TcpStream,
    mut node: TcpStream,
    last: usize,
    cut: Cut,
) -> std::io::Result<()> {
    /// Reads a short message, in a frame with its length; in the handshake, behind a preface.
    fn heard(from: &mut TcpStream, preface_bytes: usize) -> std::io::Result<Vec<u8>> {
        let start = preface_bytes + 2;
        let mut bytes = vec![0; start];
        from.read_exact(&mut bytes)?;
        let length = u16::from_le_bytes(bytes[preface_bytes..].try_into().unwrap());
        bytes.resize(start + usize::from(length), 0);
        from.read_exact(&mut bytes[start..])?;
        Ok(bytes)
    }
    node.write_all(&heard(&mut client, 24)?)?;
    client.write_all(&heard(&mut node, 24)?)?;
    for number in 0.. {
        let message = heard(&mut client, 0)?;
        if number == last && cut != Cut::After {
            if cut == Cut::Stall {
                std::thread::park();
            }
            return Ok(());
        }
        node.write_all(&message)?;
        let answer = heard(&mut node, 0)?;
        if number == last {
            return Ok(());
        }
        client.write_all(&answer)?;
    }
    Ok(())
}

/// Adds 1 to a row, and counts the closure's runs. This takes a read, message 1 of the first connection, and a commit,
/// message 2.
fn add(client: &Client, runs: &mut usize) -> Result<Outcome<u64, Abort>, ClientError> {
    let totals = client.table("totals").unwrap();
    client.run(|tx| {
        *runs += 1;
        let before = number(tx.get(totals, 5)?);
        tx.put(totals, 5, &(before + 1).to_le_bytes())?;
        Ok::<_, Abort>(before + 1)
    })
}

#[test]
fn a_transaction_outlives_a_connection_and_runs_once() {
    let (_server, address) = server(None, &[]);
    let seconds = Duration::from_secs(20);
    let mut expected = 0;
    for (last, cut) in [(1, Cut::Before), (1, Cut::After), (2, Cut::Before), (2, Cut::After)] {
        let relay = unreliable(&address, last, cut, true);
        let client = patient_client(&[&relay], None, seconds).unwrap();
        let mut runs = 0;
        let outcome = add(&client, &mut runs);
        expected += 1;
        assert_eq!((outcome.unwrap(), runs), (Outcome::Committed(expected), 1));
        let totals = client.table("totals").unwrap();
        let found = client.run(|tx| tx.get(totals, 5)).unwrap();
        assert_eq!(number(Outcome::<_, Abort>::committed(found)), expected);
    }
}

#[test]
fn a_broken_connection_is_unknown_only_during_a_commit() {
    let (_server, address) = server(None, &[]);
    let seconds = Duration::from_secs(20);
    let mut expected = 0;
    for (last, cut) in [(1, Cut::Before), (1, Cut::After), (2, Cut::Before), (2, Cut::After)] {
        // The relay accepts no further connection.
        let relay = unreliable(&address, last, cut, false);
        let client = patient_client(&[&relay, &address], None, seconds).unwrap();
        let mut runs = 0;
        let outcome = add(&client, &mut runs);
        if last == 1 {
            expected += 1;
            assert_eq!((outcome.unwrap(), runs), (Outcome::Committed(expected), 2));
        } else {
            // The client cannot distinguish the two cases.
            expected += u64::from(cut == Cut::After);
            assert!(matches!(outcome, Err(ClientError::Unknown(_))), "{outcome:?}");
            assert_eq!(runs, 1);
        }
        let totals = client.table("totals").unwrap();
        let found = client.run(|tx| tx.get(totals, 5)).unwrap();
        assert_eq!(number(Outcome::<_, Abort>::committed(found)), expected);
    }
    for (last, is_late) in [(1, true), (2, false)] {
        let address = unreliable(&address, last, Cut::Stall, true);
        // Enough for all other messages.
        let client = patient_client(&[&address], None, Duration::from_secs(3)).unwrap();
        let outcome = add(&client, &mut 0);
        assert_eq!(matches!(outcome, Err(ClientError::TimedOut(_))), is_late, "{outcome:?}");
        assert_eq!(matches!(outcome, Err(ClientError::Unknown(_))), !is_late, "{outcome:?}");
    }
}

#[test]
fn a_transaction_under_a_token_is_known_after_a_broken_connection() {
    let (_server, address) = server(None, &[]);
    for (sequence, cut, runs_expected) in [(1_u64, Cut::Before, 2), (2, Cut::After, 1)] {
        // Messages are the token's read, the row's read, and the commit. The relay accepts no further connection.
        let relay = unreliable(&address, 3, cut, false);
        let client = patient_client(&[&relay, &address], None, Duration::from_secs(20)).unwrap();
        let totals = client.table("totals").unwrap();
        let token = Token::new("program", sequence).unwrap();
        let mut runs = 0;
        let outcome = client.run_once(&token, |tx| {
            runs += 1;
            let after = number(tx.get(totals, 5)?) + 1;
            tx.put(totals, 5, &after.to_le_bytes())?;
            Ok::<_, Abort>(after.to_le_bytes().to_vec())
        });
        let result = sequence.to_le_bytes().to_vec();
        let once = Once { result: result.clone(), is_repeated: cut == Cut::After };
        assert_eq!((outcome.unwrap(), runs), (Outcome::Committed(once), runs_expected));
        assert_eq!(client.outcome(&token).unwrap(), TokenOutcome::Committed(result));
        let found = client.run(|tx| tx.get(totals, 5)).unwrap();
        assert_eq!(number(Outcome::<_, Abort>::committed(found)), sequence);
    }
    let client = client(&[&address], None).unwrap();
    let totals = client.table("totals").unwrap();
    let put = |sequence, bytes| {
        client.run_once(&Token::new("program", sequence).unwrap(), |tx| {
            tx.put(totals, 5, &[9; 8])?;
            Ok::<_, Abort>(vec![0; bytes])
        })
    };
    let refused = |refusal| Outcome::Aborted(Abort::Misuse(Misuse::Token(refusal)));
    let third = Token::new("program", 3).unwrap();
    assert_eq!(client.outcome(&third).unwrap(), TokenOutcome::Aborted);
    assert_eq!(put(3, 0).unwrap(), refused(TokenRefusal::Aborted));
    assert_eq!(put(2, 0).unwrap(), refused(TokenRefusal::Superseded));
    assert_eq!(put(4, 1_025).unwrap(), refused(TokenRefusal::ResultTooLong));
    let found = client.run(|tx| tx.get(totals, 5)).unwrap();
    assert_eq!(number(Outcome::<_, Abort>::committed(found)), 2);
}

#[test]
fn restarted_nodes_are_noticed() {
    let (server, address) = server(None, &[]);
    let client = client(&[&address], None).unwrap();
    let totals = client.table("totals").unwrap();
    let put = |value: u64| client.run(|tx| tx.put(totals, 1, &value.to_le_bytes()));
    assert_eq!(put(1).unwrap(), Outcome::Committed::<_, Abort>(()));
    drop(server);
    assert!(matches!(put(2), Err(ClientError::Unreachable(_) | ClientError::Interrupted(_))));
    // With the same tables the client continues; with others under the same numbers it does not.
    let start = |tables| Server::start(&["--clients", &address, "--tables", tables]);
    let same = start("accounts:8,words,totals:8");
    assert_eq!(put(3).unwrap(), Outcome::Committed::<_, Abort>(()));
    drop(same);
    let _other = start("totals:8,words,accounts:8");
    assert!(matches!(put(4), Err(ClientError::OtherTables)));
}

#[test]
fn writes_of_one_transaction_come_in_their_order() {
    let (_server, address) = server(None, &[]);
    let client = client(&[&address], None).unwrap();
    let (words, totals) = (client.table("words").unwrap(), client.table("totals").unwrap());
    let state = || {
        let outcome = client.run(|tx| {
            let numbers = tx.get_many(totals, 0..4_u64)?;
            let texts = tx.get_many(words, ["a", "b"])?;
            Ok::<_, Abort>([numbers, texts].concat().iter().map(Option::is_some).collect())
        });
        let found: Vec<bool> = outcome.unwrap().committed();
        found
    };
    let written = client.run(|tx| {
        tx.delete(totals, 0)?;
        tx.put(totals, 1, &[1; 8])?;
        tx.delete(totals, 1)?;
        tx.put(totals, 2, &[1; 8])?;
        tx.put(totals, 2, &[2; 8])?;
        tx.delete(totals, 3)?;
        tx.put(totals, 3, &[3; 8])?;
        tx.put(words, "a", b"1")?;
        tx.delete(words, "b")?;
        tx.get(totals, 2)
    });
    assert_eq!(written.unwrap(), Outcome::Committed::<_, Abort>(Some(vec![2; 8])));
    assert_eq!(state(), [false, false, true, true, true, false]);
    // Two transactions insert the same row, one after the other.
    let mut runs = 0;
    let outcome = client.run(|tx| {
        runs += 1;
        let before = tx.get(totals, 1)?;
        if runs == 1 {
            let first = client.run(|tx| tx.put(totals, 1, &[5; 8])).unwrap();
            assert_eq!(first, Outcome::Committed::<_, Abort>(()));
        }
        tx.put(totals, 1, &[6; 8])?;
        tx.put(words, "b", b"2")?;
        Ok::<_, Abort>(before)
    });
    assert_eq!((outcome.unwrap(), runs), (Outcome::Committed(Some(vec![5; 8])), 2));
    assert_eq!(state(), [false, true, true, true, true, true]);
}
