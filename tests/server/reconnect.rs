//! The end of a node, as programs, shells and psql see it that are connected to it: they go on at another one.
//!
//! *Not here*: sessions of the other nodes (`nodes.rs`), connections that break while their node lives (`clients.rs`).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use gannet::{Abort, Client, ClientError, Outcome};

use crate::clients::{client, number};
use crate::nodes::{Plan, free_address, write_key};
use crate::process::{Server, errors, folder, installed, read_all};

const TABLES: &str = "accounts:8,words,totals:8";
/// Transactions of each thread.
const ROUNDS: u64 = 300;

/// Three processes with tables for programs, and where these connect with the key of fives.
fn nodes_for_programs(name: &str) -> (Vec<Server>, Vec<String>) {
    let plan = Plan::new(name);
    let key = write_key(&plan.key.with_file_name("clients.key"), '5');
    let addresses: Vec<_> = (0..3).map(|_| free_address()).collect();
    let start = |node: usize| {
        let (address, key) = (addresses[node].as_str(), key.to_str().unwrap());
        plan.start(node, &["--clients", address, "--clients-key", key, "--tables", TABLES])
    };
    let started: Vec<_> = (0..3).map(start).collect();
    (started.into_iter().map(Server::listening).collect(), addresses)
}

fn kill(node: &mut Server) {
    node.signal("KILL");
    node.wait();
}

/// Counts a row up, round by round; how often that has happened, and how often it may have happened.
fn count_up(program: &Client, row: u64, all: &AtomicU64) -> (u64, u64) {
    let totals = program.table("totals").unwrap();
    let (mut sure, mut unknown) = (0, 0);
    for _ in 0..ROUNDS {
        let added = program.run(|tx| {
            let before = number(tx.get(totals, row)?);
            tx.put(totals, row, &(before + 1).to_le_bytes())
        });
        match added {
            Ok(Outcome::Committed(())) => sure += 1,
            Err(ClientError::Unknown(_)) => unknown += 1,
            // It has met the change of the membership too often.
            Ok(Outcome::Aborted(abort)) if abort.is_conflict() => {}
            other => panic!("{other:?}"),
        }
        all.fetch_add(1, Ordering::Relaxed);
    }
    (sure, unknown)
}

#[test]
fn a_program_goes_on_when_its_node_is_killed() {
    let (mut nodes, addresses) = nodes_for_programs("reconnect-killed");
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    // Its threads share their sessions, of which the first is at the first address.
    let program = client(&addresses, Some('5')).unwrap();
    let totals = program.table("totals").unwrap();
    let all = AtomicU64::new(0);
    let counted: Vec<_> = std::thread::scope(|scope| {
        let (program, all) = (&program, &all);
        let threads: Vec<_> =
            (0..4).map(|row| scope.spawn(move || count_up(program, row, all))).collect();
        while all.load(Ordering::Relaxed) < ROUNDS && !threads.iter().any(|one| one.is_finished()) {
            std::thread::yield_now();
        }
        kill(&mut nodes[0]);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (row, (sure, unknown)) in (0_u64..).zip(counted) {
        let found = program.run(|tx| tx.get(totals, row)).unwrap();
        let found = number(Outcome::<_, Abort>::committed(found));
        assert!((sure..=sure + unknown).contains(&found), "{row}: {sure}, {unknown}, {found}");
        // After its node's death a thread has begun no commit there.
        assert!(sure > 0 && unknown <= 1, "{row}: {sure}, {unknown}");
    }
    for value in 0..50_u64 {
        let put = program.run(|tx| tx.put(totals, 9, &value.to_le_bytes()));
        assert_eq!(put.unwrap(), Outcome::Committed::<_, Abort>(()));
    }
}

#[test]
fn a_transaction_whose_node_dies_before_its_commit_is_run_again() {
    let (mut nodes, addresses) = nodes_for_programs("reconnect-before-commit");
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    let program = client(&addresses, Some('5')).unwrap();
    let totals = program.table("totals").unwrap();
    let mut runs = 0;
    let outcome = program.run(|tx| {
        runs += 1;
        let after = number(tx.get(totals, 5)?) + 1;
        if runs == 1 {
            kill(&mut nodes[0]);
        }
        tx.put(totals, 5, &after.to_le_bytes())?;
        Ok::<_, Abort>(after)
    });
    assert_eq!(outcome.unwrap(), Outcome::Committed(1));
    assert!(runs > 1);
    let found = program.run(|tx| tx.get(totals, 5)).unwrap();
    assert_eq!(number(Outcome::<_, Abort>::committed(found)), 1);
}

#[test]
fn a_program_leaves_a_node_that_has_halted() {
    let (mut nodes, addresses) = nodes_for_programs("reconnect-halted");
    // Another cluster is in the place of nodes that go on.
    let key = write_key(&folder("reconnect-other").join("clients.key"), '5');
    let other = free_address();
    let key = key.to_str().unwrap();
    let _other = Server::start(&["--clients", &other, "--clients-key", key, "--tables", TABLES]);
    let put = |program: &Client, value: u64| {
        let totals = program.table("totals").unwrap();
        program.run(|tx| tx.put(totals, 1, &value.to_le_bytes()))
    };
    let program = client(&[&addresses[2], &other], Some('5')).unwrap();
    assert_eq!(put(&program, 1).unwrap(), Outcome::Committed::<_, Abort>(()));
    let alone = client(&[&addresses[2]], Some('5')).unwrap();
    // At the same moment: after the first death alone the others would go on.
    for signal in ["STOP", "KILL"] {
        [1, 0].into_iter().for_each(|number| nodes[number].signal(signal));
    }
    for number in [1, 0] {
        nodes[number].wait();
    }
    let mut attempts = (0..100).map(|_| put(&alone, 2));
    let halted = attempts.find(|put| matches!(put, Err(ClientError::Halted(_))));
    let error = halted.expect("the last node has halted").unwrap_err().to_string();
    assert!(error.contains("which decide on the membership"), "{error}");
    // The program's session is still at that node.
    assert_eq!(put(&program, 3).unwrap(), Outcome::Committed::<_, Abort>(()));
    let there = client(&[&other], Some('5')).unwrap();
    let totals = there.table("totals").unwrap();
    let found = there.run(|tx| tx.get(totals, 1)).unwrap();
    assert_eq!(number(Outcome::<_, Abort>::committed(found)), 3);
}

#[test]
fn a_node_may_have_more_tables_for_programs() {
    let (fewer, more) = (free_address(), free_address());
    let start = |address: &str, tables| Server::start(&["--clients", address, "--tables", tables]);
    let first = start(&fewer, "accounts:8,totals:8");
    let second = start(&more, "accounts:8,totals:8,words");
    let program = client(&[&fewer, &more], None).unwrap();
    let accounts = program.table("accounts").unwrap();
    drop(first);
    let put = program.run(|tx| tx.put(accounts, 1, &[1; 8]));
    assert_eq!(put.unwrap(), Outcome::Committed::<_, Abort>(()));
    // Of the one with more tables, the other is no replacement.
    let program = client(&[&more, &fewer], None).unwrap();
    drop(second);
    let _first = start(&fewer, "accounts:8,totals:8");
    let put = program.run(|tx| tx.put(accounts, 1, &[2; 8]));
    assert!(matches!(put, Err(ClientError::OtherTables)), "{put:?}");
}

/// A shell that is given statements one after the other.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(addresses: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(["sql", "--keep-going", "--connect", addresses])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn say(&mut self, statements: &str) {
        writeln!(self.input, "{statements}").unwrap();
    }

    /// The next line of a result.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What it has said on standard error, and its exit code.
    fn end(self) -> (String, Option<i32>) {
        let Self { mut child, input, output } = self;
        drop(input);
        let errors = read_all(child.stderr.take().unwrap());
        drop(output);
        (errors, child.wait().unwrap().code())
    }
}

/// The addresses of nodes for SQL, as the command line takes them.
fn of_all(nodes: &[Server]) -> String {
    let addresses: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    addresses.join(",")
}

#[test]
fn a_shell_and_psql_go_on_when_their_node_is_killed() {
    let mut nodes = Plan::new("reconnect-shell").cluster();
    let mut shell = Shell::start(&of_all(&nodes));
    shell.say(
        "CREATE TABLE town (id INTEGER PRIMARY KEY); SET statement_timeout = '77s'; \
         SHOW statement_timeout; BEGIN; INSERT INTO town VALUES (1); SELECT count(*) FROM town;",
    );
    let timeout = shell.hear();
    assert_eq!(shell.hear(), "1");
    kill(&mut nodes[0]);
    // The next statement belongs to the transaction, which is gone.
    shell.say("INSERT INTO town VALUES (2);");
    shell.say("SHOW statement_timeout; SELECT count(*) FROM town;");
    assert_eq!(shell.hear(), timeout);
    assert_eq!(shell.hear(), "0");
    let (said, code) = shell.end();
    let [dead, next] = [0, 1].map(|node: usize| format!("127.0.0.1:{}", nodes[node].port));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    let failure = format!("ERROR 08006: the connection to {dead} has ended");
    assert!(lines[0].starts_with(&failure) && lines[0].contains("transaction"), "{said}");
    assert_eq!(lines[1], format!("the connection to {dead} has ended; connected to {next}"));
    assert_eq!(code, Some(1));

    // PostgreSQL's own shell passes over the dead node, too.
    let url = format!("postgresql://tester@{}/test", of_all(&nodes));
    let script = "INSERT INTO town VALUES (7); SELECT count(*) FROM town";
    let psql = Command::new(installed("psql"))
        .args(["--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-c", script, &url])
        .env_remove("PGPASSWORD")
        .env("PGSSLMODE", "disable")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&psql.stdout), "1\n", "{}", errors(&psql));
    // And so does the status, which counts the node as gone.
    let status = gannet(&["status", "--interval", "100ms", "--connect", &of_all(&nodes)]);
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.code() == Some(1) && text.contains("gone"), "{text}{}", errors(&status));
}

#[test]
fn a_statement_under_way_on_a_killed_node_has_an_unknown_outcome() {
    // The node that is stopped below is not removed before it goes on.
    let mut nodes = Plan::new("reconnect-under-way").cluster_with(&["--lease", "8s"]);
    let mut shell = Shell::start(&of_all(&nodes));
    shell.say("CREATE TABLE town (id INTEGER PRIMARY KEY); SELECT 'made';");
    assert_eq!(shell.hear(), "made");
    // No number comes before the nodes have reported to each other.
    let retransmitted = |node: &Server| {
        node.query("SELECT sum(retransmitted) FROM gannet_nodes").parse().unwrap_or(0_u64)
    };
    let before = retransmitted(&nodes[1]);
    // The statement waits for the copies of this node.
    nodes[2].signal("STOP");
    shell.say("INSERT INTO town SELECT n FROM generate_series(1, 100) n;");
    while retransmitted(&nodes[1]) <= before {}
    kill(&mut nodes[0]);
    nodes[2].signal("CONT");
    shell.say("SELECT count(*) FROM town;");
    let count = shell.hear();
    assert!(["0", "100"].contains(&count.as_str()), "{count}");
    let (said, code) = shell.end();
    assert!(said.starts_with("ERROR 08007: the connection to "), "{said}");
    assert!(said.contains("; connected to ") && said.lines().count() == 2, "{said}");
    assert_eq!(code, Some(1));
}

fn gannet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).output().unwrap()
}

#[test]
fn commands_pass_over_nodes_that_do_not_answer() {
    let server = Server::start(&[]);
    let (dead, other) = (free_address(), free_address());
    let addresses = format!("{dead},127.0.0.1:{}", server.port);
    let url = format!("postgres://tester@{addresses}/test");
    for addresses in [&addresses, &url] {
        let output = gannet(&["sql", "--connect", addresses, "-c", "SELECT 7"]);
        assert_eq!(output.stdout, b"7\n", "{}", errors(&output));
        let output = gannet(&["status", "--interval", "100ms", "--connect", addresses]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("3 nodes, "), "{text}{}", errors(&output));
    }
    let addresses = format!("{dead},{other}");
    for command in ["sql", "status"] {
        let output = gannet(&[command, "--connect", &addresses]);
        assert_eq!(output.status.code(), Some(2));
        let errors = errors(&output);
        assert!(errors.contains(&dead) && errors.contains(&other), "{errors}");
    }
    let output = gannet(&["sql", "--connect", "127.0.0.1:1,,b", "-c", "SELECT 1"]);
    assert!(errors(&output).contains("name a host"), "{}", errors(&output));
}
