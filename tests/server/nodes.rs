//! Clusters of processes: `gannet serve --node`, started in any order.
//!
//! *Not here*: what cannot become a member (`unsuitable.rs`), bad networks (`chaos`), silent nodes (`silent.rs`), programs beside the cluster (`clients.rs`).

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::process::{Server, folder, install, read_all};

/// The transport of packets between nodes.
const TRANSPORTS: [&str; 2] = ["udp", "memory"];

/// Three nodes of one worker each, by their addresses, their key and their transport.
pub(crate) struct Plan {
    pub(crate) members: String,
    pub(crate) key: PathBuf,
    transport: &'static str,
}

impl Plan {
    pub(crate) fn new(name: &str) -> Self {
        Self::over("udp", name)
    }

    fn over(transport: &'static str, name: &str) -> Self {
        let folder = folder(&format!("{name}-{transport}"));
        let key = write_key(&folder.join("cluster.key"), '7');
        let members: Vec<_> = (0..3).map(|_| free_address()).collect();
        Self { members: members.join(","), key, transport }
    }

    /// The same plan with other addresses.
    pub(crate) fn with_members(&self, members: String) -> Self {
        Self { members, key: self.key.clone(), transport: self.transport }
    }

    pub(crate) fn start(&self, node: usize, arguments: &[&str]) -> Child {
        self.start_with(node, arguments, Stdio::piped())
    }

    /// Starts a node with another destination for its log.
    pub(crate) fn start_logging_to(&self, node: usize, errors: Stdio) -> Child {
        self.start_with(node, &[], errors)
    }

    fn start_with(&self, node: usize, arguments: &[&str], errors: Stdio) -> Child {
        // Threads of a busy machine stand still for less.
        let lease: &[&str] = if arguments.iter().any(|it| it.starts_with("--lease")) {
            &[]
        } else {
            &["--lease", "1s"]
        };
        self.command(node).args(lease).args(arguments).stderr(errors).spawn().unwrap()
    }

    /// The command that starts a node.
    pub(crate) fn command(&self, node: usize) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--memory", "256MiB", "--threads", "1"])
            .args(["--node", &node.to_string(), "--members", &self.members])
            .args(["--cluster-key", self.key.to_str().unwrap(), "--transport", self.transport])
            .stdout(Stdio::piped());
        command
    }

    /// The address of a node for other members.
    pub(crate) fn address(&self, node: usize) -> &str {
        self.members.split(',').nth(node).unwrap()
    }

    /// The error of a node that cannot start.
    pub(crate) fn failure(&self, node: usize, arguments: &[&str]) -> String {
        failure(self.start(node, arguments))
    }

    pub(crate) fn cluster(&self) -> Vec<Server> {
        self.cluster_with(&[])
    }

    pub(crate) fn cluster_with(&self, arguments: &[&str]) -> Vec<Server> {
        let started: Vec<_> = (0..3).rev().map(|node| self.start(node, arguments)).collect();
        started.into_iter().rev().map(Server::listening).collect()
    }
}

pub(crate) fn failure(node: Child) -> String {
    let output = node.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

pub(crate) fn write_key(path: &Path, digit: char) -> PathBuf {
    fs::write(path, digit.to_string().repeat(64)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_owned()
}

/// An address with free UDP and TCP ports, which neither the system nor this function assigns again.
pub(crate) fn free_address() -> String {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + u16::try_from(random % 20_000).unwrap();
        let is_new = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        let address = ("127.0.0.1", port);
        if is_new && UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return format!("127.0.0.1:{port}");
        }
    }
}

#[test]
fn processes_are_one_database() {
    for transport in TRANSPORTS {
        be_one_database(&Plan::over(transport, "nodes-one-database"));
    }
}

/// Sessions of one node use a new table at once; only one of them is the first to read the new catalog.
#[tokio::test]
async fn a_new_table_is_visible_to_all_sessions_of_another_node() {
    const SESSIONS: usize = 8;
    let nodes = Plan::new("nodes-new-table").cluster();
    let creator = nodes[0].client().await;
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        clients.push(nodes[1].client().await);
    }
    for round in 0..50 {
        let name = format!("new_{round}");
        creator.batch_execute(&format!("CREATE TABLE {name} (id INT PRIMARY KEY)")).await.unwrap();
        let preparing = clients
            .iter()
            .map(async |client| client.prepare(&format!("SELECT id FROM {name}")).await.map(drop));
        for prepared in futures_util::future::join_all(preparing).await {
            prepared.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
        }
    }
}

fn be_one_database(plan: &Plan) {
    let nodes = plan.cluster();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT UNIQUE)");
    nodes[1].query("INSERT INTO town SELECT n, 'town ' || n FROM generate_series(1, 3000) n");
    for node in &nodes {
        assert_eq!(node.query("SELECT count(*), max(name) FROM town"), "3000|town 999");
    }
    nodes[2].query(
        "UPDATE town SET name = 'Ayr' WHERE id = 7; ALTER TABLE town ADD COLUMN seen INTEGER",
    );
    assert_eq!(nodes[0].query("SELECT * FROM town WHERE name = 'Ayr'"), "7|Ayr|");
    let error = nodes[1].failure("INSERT INTO town VALUES (8000, 'Ayr')");
    assert!(error.contains("23505"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["bench", "smallbank", "--accounts", "500", "--duration", "1s"])
        .args(["--connect", &format!("postgres://tester@127.0.0.1:{}/test", nodes[1].port)])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("verify: passed"), "{text}{errors}");
}

/// The output of `gannet status`, and whether all nodes are up.
pub(crate) fn status(node: &Server) -> (String, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_gannet"))
        .args(["status", "--connect", &format!("127.0.0.1:{}", node.port), "--interval", "100ms"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{text}{errors}");
    (text, code == Some(0))
}

#[test]
fn a_paused_process_is_down_and_comes_back() {
    for transport in TRANSPORTS {
        pause(&Plan::over(transport, "nodes-pause"));
    }
}

fn pause(plan: &Plan) {
    // It is back before its lease is over.
    let nodes = plan.cluster_with(&["--lease", "1m"]);
    let up = (0..100).map(|_| status(&nodes[1])).find(|(_, all_up)| *all_up);
    let (text, _) = up.expect("nodes that have started are up");
    assert!(text.contains("3 nodes, 16 partitions, 3 copies of each"), "{text}");
    for address in plan.members.split(',') {
        assert!(text.contains(address), "{text}");
    }
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT)");
    nodes[2].signal("STOP");
    // The node counts as silent after some seconds.
    let missed = (0..100).map(|_| status(&nodes[0])).find(|(_, all_up)| !all_up);
    let (text, _) = missed.expect("a node that says nothing is not up");
    assert!(text.contains("silent for"), "{text}");
    let insert = std::thread::scope(|scope| {
        // The statement waits for the node's copies.
        let insert = scope.spawn(|| {
            nodes[0].query("INSERT INTO town SELECT n, 'x' FROM generate_series(1, 100) n")
        });
        while nodes[0].query("SELECT sum(retransmitted) > 0 FROM gannet_nodes") != "t" {}
        nodes[2].signal("CONT");
        insert.join()
    });
    assert!(insert.is_ok());
    for node in &nodes {
        assert_eq!(node.query("SELECT count(*) FROM town"), "100");
    }
    let back = (0..100).map(|_| status(&nodes[0])).find(|(_, all_up)| *all_up);
    assert!(back.is_some(), "a node that speaks again is up");
}

/// Resets every connection between members. Returns their number.
fn reset_members(plan: &Plan) -> usize {
    let mut count = 0;
    for address in plan.members.split(',') {
        let port = address.rsplit_once(':').unwrap().1;
        let killed = || {
            let mut command = Command::new("ss");
            command.args(["-H", "-K", "-t", "state", "established", "sport", "=", port]);
            command.output()
        };
        if killed().is_err() {
            install(&["iproute2"]);
        }
        count += String::from_utf8(killed().unwrap().stdout).unwrap().lines().count();
    }
    count
}

#[test]
fn reset_connections_between_members_are_replaced() {
    for transport in TRANSPORTS {
        reset(&Plan::over(transport, "nodes-reset"));
    }
}

fn reset(plan: &Plan) {
    let mut nodes = plan.cluster();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT)");
    for round in 0..4 {
        // They may still be broken from the last round.
        assert!((0..5_000).any(|_| reset_members(plan) > 0));
        for (number, node) in nodes.iter().enumerate() {
            node.query(&format!(
                "INSERT INTO town VALUES ({round}, 'x'), ({number} + 100, 'y') \
                ON CONFLICT (id) DO UPDATE SET name = excluded.name"
            ));
        }
    }
    for node in &mut nodes {
        assert_eq!(node.query("SELECT count(*) FROM town"), "7");
        assert!((0..100).any(|_| status(node).1), "the nodes hear each other again");
    }
    // The end of a member is noticed over a new connection as over the first, and the others go on.
    nodes[1].signal("KILL");
    nodes[1].wait();
    for number in [0, 2] {
        nodes[number].query("UPDATE town SET name = 'z'");
        assert_eq!(nodes[number].query("SELECT count(*) FROM town"), "7");
    }
    for number in [2, 0] {
        nodes[number].signal("TERM");
        assert_eq!(nodes[number].wait().code(), Some(0));
        let log = nodes[number].log();
        assert!(log.contains("is connected again"), "{log}");
        assert!(log.contains("is gone: its process has ended"), "{log}");
        assert!(!log.contains("a process that is not node"), "{log}");
    }
}

/// The body of the answer to GET.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let answer = read_all(stream);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let expected = if path == "/metrics" { "200 OK" } else { "404 Not Found" };
    assert!(head.starts_with(&format!("HTTP/1.1 {expected}")), "{head}");
    body.to_owned()
}

#[test]
fn metrics_are_served_for_prometheus() {
    let address = free_address();
    let server = Server::start(&["--metrics", &address]);
    server.query("CREATE TABLE town (id INTEGER PRIMARY KEY); INSERT INTO town VALUES (1), (2)");
    let value = |name: &str| {
        let text = get(&address, "/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse::<u64>().unwrap()
    };
    let committed =
        || (0..3).map(|node| value(&format!("gannet_committed_total{{node=\"{node}\"}}"))).sum();
    let before: u64 = committed();
    server.query("INSERT INTO town SELECT n FROM generate_series(10, 500) n");
    // Workers publish their numbers when they are idle, if not before.
    while committed() <= before {}
    assert_eq!(value("gannet_node_up{node=\"2\"}"), 1);
    assert!(value("gannet_memory_bytes{node=\"0\"}") > 1 << 18);
    assert!(get(&address, "/metrics").contains("# TYPE gannet_packets_total counter"));
    assert!(get(&address, "/elsewhere").contains("/metrics"));
}

#[test]
fn a_demonstration_starts_its_processes_and_ends_them() {
    let folder = folder("demo");
    let demo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        command.arg("demo").args(arguments).env("TMPDIR", &folder).output().unwrap()
    };
    for transport in TRANSPORTS {
        let output = demo(&[
            "--transport",
            transport,
            "--memory",
            "64MiB",
            "-c",
            "CREATE TABLE town (id INTEGER PRIMARY KEY); INSERT INTO town VALUES (1), (2)",
            "-c",
            "SELECT count(*) FROM town; SELECT count(*) FROM gannet_nodes WHERE state = 'up'",
        ]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "2\n3\n", "{errors}");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(errors.matches(" serves SQL at ").count(), 3, "{errors}");
        assert_eq!(errors.lines().count(), 3, "{errors}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // Each node has the file of the cluster's key on its command line.
        let is_left = |process: fs::DirEntry| {
            let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(folder.to_str().unwrap())
        };
        assert!(!fs::read_dir("/proc").unwrap().any(|process| process.is_ok_and(is_left)));
    }
    let output = demo(&["--replicas", "9", "-c", "SELECT 1"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("node 0 did not start") && errors.contains("replicas is 9"),
        "{errors}"
    );
}

#[test]
fn a_signal_leaves_neither_files_nor_processes_behind() {
    let files = |folder: &Path| fs::read_dir(folder).unwrap().count();
    let demo = ["demo", "--memory", "64MiB"].as_slice();
    let bench = "bench tatp --processes --nodes 2 --replicas 2 --threads 1 --subscribers 1000 --duration 60s";
    let bench: Vec<_> = bench.split(' ').collect();
    for (name, arguments) in [("TERM", demo), ("HUP", demo), ("TERM", &bench), ("INT", &bench)] {
        let folder = folder(&format!("ended-{}-{name}", arguments[0]));
        let mut child = Command::new(env!("CARGO_BIN_EXE_gannet"))
            .args(arguments)
            .env("TMPDIR", &folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while children(child.id()).len() < 2 {}
        let inner = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        assert!(inner.join("cluster.key").exists());
        let nodes = children(child.id());
        let kill = [format!("-{name}"), child.id().to_string()];
        assert!(Command::new("kill").args(kill).status().unwrap().success());
        assert!(child.wait().unwrap().code().is_some_and(|code| code > 128), "{name}");
        assert_eq!(files(&folder), 0, "{name} {arguments:?}");
        for node in nodes {
            // A process that has ended may be listed until its parent takes the exit code.
            let is_there = || {
                let stat = fs::read_to_string(format!("/proc/{node}/stat")).unwrap_or_default();
                stat.contains("(gannet)") && !stat.contains("(gannet) Z")
            };
            while is_there() {}
        }
    }
}

/// The child processes of a process.
fn children(process: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread may end meanwhile.
    let of = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")));
    let of = of.map(Result::unwrap_or_default);
    of.flat_map(|all| all.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Two of three nodes together are the majority that decides on the membership.
#[test]
fn the_death_of_a_majority_is_an_error_to_clients_and_not_a_hang() {
    for transport in TRANSPORTS {
        die(&Plan::over(transport, "nodes-death"));
    }
}

fn die(plan: &Plan) {
    let mut nodes = plan.cluster();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY, name TEXT)");
    // At the same moment: after the first death alone the others would go on.
    for signal in ["STOP", "KILL"] {
        [1, 0].into_iter().for_each(|number| nodes[number].signal(signal));
    }
    for number in [1, 0] {
        let mut dead = nodes.remove(number);
        dead.wait();
    }
    let node = &mut nodes[0];
    // A commit that is being logged when the deaths are noticed ends with 08007, all other statements with 57P03.
    let error = node.failure("INSERT INTO town VALUES (1, 'Ayr'), (2, 'Fife'), (3, 'Troon')");
    assert!(error.contains("57P03") || error.contains("08007"), "{error}");
    let error = node.failure("SELECT * FROM town");
    assert!(error.contains("57P03") && error.contains("which decide on the membership"), "{error}");
    let error = plan.failure(0, &[]);
    assert!(error.contains("the cluster has halted: "), "{error}");
    let error = plan.failure(0, &["--threads", "2"]);
    assert!(error.contains(" has 1 and node 0 has 2"), "{error}");
    assert!(node.is_running());
    let (text, all_up) = status(node);
    assert!(!all_up && text.contains("which decide on the membership"), "{text}");
    states(plan, &text, ["gone", "gone", "up"]);
}

/// Looks at the states of all nodes in the output of `gannet status`.
fn states(plan: &Plan, text: &str, expected: [&str; 3]) {
    for (address, state) in plan.members.split(',').zip(expected) {
        let line = text.lines().find(|line| line.contains(address)).expect("a line for each node");
        assert!(line.split_whitespace().any(|word| word == state), "{line}");
    }
}

#[test]
fn a_cluster_goes_on_without_a_process_that_has_ended_and_loses_nothing() {
    // Node 0 mostly decides on the membership; then another one does.
    for (transport, dead) in TRANSPORTS.into_iter().zip([2, 0]) {
        go_on(&Plan::over(transport, "nodes-goes-on"), dead);
    }
}

/// Sessions of the nodes that are left count rows up while a process is killed.
fn go_on(plan: &Plan, number: usize) {
    let mut nodes = plan.cluster();
    nodes[0].query(
        "CREATE TABLE counted (id INTEGER PRIMARY KEY, n INTEGER); \
         INSERT INTO counted SELECT n, 0 FROM generate_series(1, 4) n; \
         CREATE TABLE moved (id INTEGER PRIMARY KEY, n INTEGER); \
         INSERT INTO moved SELECT n, 100 FROM generate_series(1, 50) n",
    );
    let mut dead = nodes.remove(number);
    let expected = count_up(&nodes, || {
        dead.signal("KILL");
        dead.wait();
    });
    for node in &nodes {
        let rows = node.query("SELECT string_agg(n::text, '|' ORDER BY id) FROM counted");
        assert_eq!(rows, expected);
        assert_eq!(node.query("SELECT sum(n) FROM moved"), "5000");
    }
    // Definitions go on, too.
    nodes[1].query("CREATE INDEX ON moved (n); CREATE TABLE later (id INTEGER PRIMARY KEY)");
    nodes[0].query("INSERT INTO later VALUES (1)");
    assert_eq!(nodes[1].query("SELECT count(*) FROM later"), "1");
    let (text, all_up) = status(&nodes[1]);
    let prospect =
        "of 2 nodes 1 can be lost, one after the other, without losing rows, and 0 while";
    assert!(!all_up && text.contains(prospect), "{text}");
    let mut expected = ["up"; 3];
    expected[number] = "gone";
    states(plan, &text, expected);
    // It comes back by the same command.
    let back = Server::listening(plan.start(number, &[]));
    assert_eq!(back.query("SELECT sum(n) FROM moved"), "5000");
    back.query("INSERT INTO later VALUES (2)");
    assert_eq!(nodes[1].query("SELECT count(*) FROM later"), "2");
    let prospect =
        "of 3 nodes 2 can be lost, one after the other, without losing rows, and 1 while";
    let filled = |_| status(&back).0.contains(prospect);
    assert!((0..1_000).any(filled), "{}", status(&back).0);
    states(plan, &status(&back).0, ["up"; 3]);
}

/// Clients of two nodes change rows while something happens; how often each has counted up a row of its own.
fn count_up(nodes: &[Server], happens: impl FnOnce()) -> String {
    let count = Mutex::new([0; 4]);
    let counts = || *count.lock().unwrap_or_else(PoisonError::into_inner);
    let is_over = AtomicBool::new(false);
    let client = |client: usize| {
        let node = &nodes[client % 2];
        let mut round = client;
        while !is_over.load(Ordering::Relaxed) {
            round += 7;
            let (from, to) = (round % 50 + 1, (round + 13) % 50 + 1);
            // No statement on its own fails.
            node.query(&format!("UPDATE counted SET n = n + 1 WHERE id = {client} + 1"));
            count.lock().unwrap_or_else(PoisonError::into_inner)[client] += 1;
            node.query(&format!(
                "UPDATE moved SET n = CASE id WHEN {from} THEN n - 1 ELSE n + 1 END \
                 WHERE id IN ({from}, {to})"
            ));
        }
    };
    let wait_for = |more: i32| {
        let target = counts().iter().sum::<i32>() + more;
        while counts().iter().sum::<i32>() < target {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        let client = &client;
        let clients = (0..4).map(|number| scope.spawn(move || client(number)));
        let clients: Vec<_> = clients.collect();
        wait_for(40);
        happens();
        wait_for(80);
        drop(over);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    counts().map(|n| n.to_string()).join("|")
}

/// Ends the clients, also when a check fails.
pub(crate) struct Over<'o>(pub(crate) &'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A process that is stopped leaves before it ends.
#[test]
fn a_cluster_goes_on_without_a_process_that_was_stopped() {
    let plan = Plan::new("nodes-stopped");
    let mut nodes = plan.cluster();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY)");
    nodes[1].signal("TERM");
    assert_eq!(nodes[1].wait().code(), Some(0));
    for other in [0, 2] {
        nodes[other].query(&format!("INSERT INTO town VALUES ({other})"));
    }
    assert_eq!(nodes[0].query("SELECT count(*) FROM town"), "2");
}
