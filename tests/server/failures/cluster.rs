//! A cluster of processes that may fail, on this host or in a network whose links can be cut.
//!
//! *Invariants*: a node's log is in its file as soon as the node has written it, so that a test reads it while the node runs.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock};

use crate::chaos::network::Network;
use crate::nodes::{free_address, write_key};
use crate::process::{Server, errors, folder, installed};

/// The lease where nodes are to be removed. Threads of a busy machine stand still for less.
pub(crate) const SHORT_LEASE: &str = "--lease=1s";
/// The lease where no node is to be removed, however busy the machine is.
pub(crate) const LONG_LEASE: &str = "--lease=10s";
/// Longer than the short lease, and than the others take to remove a node.
pub(crate) const BEYOND_LEASE: Duration = Duration::from_secs(3);
/// Longest wait for what has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether it has happened.
const LOOK: Duration = Duration::from_millis(20);
/// What a node says when it begins to decide, before the number of its term.
const DECIDES: &str = "decides on the membership from now on, in term ";
/// What a node says when it learns that it was removed.
const REMOVED: &str = "the others have removed it";

/// Lets time pass.
pub(crate) fn pass(duration: Duration) {
    let clock = MonotonicClock::new();
    let until_ns = clock.now_ns() + u64::try_from(duration.as_nanos()).unwrap();
    while clock.now_ns() < until_ns {
        std::thread::park_timeout(duration.min(LOOK));
    }
}

/// What `look` finds, as soon as it finds something.
pub(crate) fn awaited<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = MonotonicClock::new();
    let until_ns = clock.now_ns() + u64::try_from(PATIENCE.as_nanos()).unwrap();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(clock.now_ns() < until_ns, "this did not happen within {PATIENCE:?}: {what}");
        std::thread::park_timeout(LOOK);
    }
}

/// Where the nodes of a cluster are.
pub(crate) struct Site {
    members: Vec<String>,
    key: PathBuf,
    network: Option<Network>,
}

impl Site {
    /// Nodes at addresses of this host.
    pub(crate) fn new(name: &str, nodes: usize) -> Self {
        let key = write_key(&folder(name).join("cluster.key"), '7');
        Self { members: (0..nodes).map(|_| free_address()).collect(), key, network: None }
    }

    /// Nodes in a network whose links can be cut.
    pub(crate) fn in_network(name: &str, nodes: usize) -> Self {
        let network = Network::new(nodes);
        network.begin_cuts();
        let members = (0..nodes).map(|node| format!("{}:7000", Network::address(node))).collect();
        Self { members, network: Some(network), ..Self::new(name, 0) }
    }

    /// The network, if the nodes are in one.
    pub(crate) fn network(&self) -> &Network {
        self.network.as_ref().expect("a test that cuts links has a network")
    }

    /// Moves this thread to a node's network.
    pub(crate) fn enter(&self, node: usize) {
        self.network.iter().for_each(|network| network.enter(node));
    }

    /// A file or folder of the cluster.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.key.with_file_name(name)
    }

    /// The address of the members' own messages with a node that was there at the start.
    pub(crate) fn member(&self, node: usize) -> &str {
        &self.members[node]
    }

    /// The process of a node of a cluster that begins with all.
    fn command(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = self.command_alone(node, arguments);
        command.arg(format!("--members={}", self.members.join(","))).arg("--threads=1");
        command
    }

    /// The process of a node that is to find the cluster.
    fn command_alone(&self, node: usize, arguments: &[&str]) -> Command {
        let program = env!("CARGO_BIN_EXE_gannet");
        let mut command = match &self.network {
            Some(network) => network.command(node, program),
            None => Command::new(program),
        };
        command
            .args(["serve", "--listen=127.0.0.1:0", "--memory=64MiB"])
            .args(["--join-timeout=60s", "--statement-timeout=30s"])
            .arg(format!("--node={node}"))
            .arg("--cluster-key")
            .arg(&self.key)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// Starts a process of a node.
    pub(crate) fn start(&self, node: usize, arguments: &[&str]) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(node)).unwrap();
        self.command(node, arguments).stderr(log).spawn().unwrap()
    }

    /// Starts the process of a node that joins the cluster by the word of some members, at an address of its own.
    pub(crate) fn start_joining(&self, node: usize, arguments: &[&str]) -> Child {
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(node)).unwrap();
        self.command_alone(node, arguments).stderr(log).spawn().unwrap()
    }

    /// The error of a process that cannot become a node.
    pub(crate) fn failure(&self, node: usize, arguments: &[&str]) -> String {
        Self::error_of(self.command(node, arguments))
    }

    /// The error of a process that cannot join.
    pub(crate) fn failure_of_joining(&self, node: usize, arguments: &[&str]) -> String {
        Self::error_of(self.command_alone(node, arguments))
    }

    fn error_of(mut command: Command) -> String {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let error = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        error
    }

    fn log_path(&self, node: usize) -> PathBuf {
        self.path(&format!("node-{node}.log"))
    }

    /// What a node has logged.
    pub(crate) fn log(&self, node: usize) -> String {
        fs::read_to_string(self.log_path(node)).unwrap_or_default()
    }

    /// The last term in which a node has decided on the membership.
    fn term(&self, node: usize) -> Option<u64> {
        let log = self.log(node);
        let terms = log.lines().filter_map(|line| line.split_once(DECIDES));
        terms.filter_map(|(_, term)| term.trim().parse().ok()).max()
    }

    /// Whether a node knows that the others have removed it.
    pub(crate) fn was_removed(&self, node: usize) -> bool {
        self.log(node).contains(REMOVED)
    }
}

/// The processes of a cluster, all of which have started.
pub(crate) struct Cluster {
    /// Before the network, which they are in: they end first.
    pub(crate) nodes: Vec<Server>,
    pub(crate) site: Site,
}

impl Cluster {
    pub(crate) fn start(site: Site, arguments: &[&str]) -> Self {
        Self::start_each(site, |_| arguments.iter().map(|one| (*one).to_owned()).collect())
    }

    /// Starts each node with arguments of its own.
    pub(crate) fn start_each(site: Site, arguments: impl Fn(usize) -> Vec<String>) -> Self {
        let all = site.members.len();
        Self::start_first(site, all, arguments)
    }

    /// Starts so many nodes, with arguments of their own.
    pub(crate) fn start_first(
        site: Site,
        nodes: usize,
        arguments: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        // Now: in a network of its own, a test could not install it.
        installed("psql");
        let start = |node: usize| {
            let arguments = arguments(node);
            site.start(node, &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let started: Vec<_> = (0..nodes).map(start).collect();
        let nodes = started.into_iter().map(Server::listening).collect();
        Self { nodes, site }
    }

    /// All nodes that there were at the start.
    pub(crate) fn all(&self) -> BTreeSet<usize> {
        (0..self.nodes.len()).collect()
    }

    pub(crate) fn signal(&self, node: usize, name: &str) {
        self.nodes[node].signal(name);
    }

    /// The output of statements at a node, in one session of psql, or the error of the first that fails.
    pub(crate) fn attempt(&self, node: usize, statements: &[&str]) -> Result<String, String> {
        let run = || {
            self.site.enter(node);
            let mut psql = self.nodes[node].psql();
            psql.env("PGCONNECT_TIMEOUT", "10");
            psql.args(["-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-AtqX"]);
            for statement in statements {
                psql.args(["-c", *statement]);
            }
            let output = psql.output().unwrap();
            match output.status.success() {
                true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
                false => Err(errors(&output)),
            }
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// The output of a statement that has to succeed at a node.
    pub(crate) fn query(&self, node: usize, statement: &str) -> String {
        self.attempt(node, &[statement])
            .unwrap_or_else(|error| panic!("node {node}, {statement}: {error}"))
    }

    /// Runs an operator's command on these nodes: its exit code, what it prints, and its errors.
    pub(crate) fn operate(
        &self,
        nodes: &BTreeSet<usize>,
        command: &[&str],
    ) -> (Option<i32>, String, String) {
        let addresses: Vec<_> =
            nodes.iter().map(|node| format!("127.0.0.1:{}", self.nodes[*node].port)).collect();
        let mut gannet = Command::new(env!("CARGO_BIN_EXE_gannet"));
        let output = gannet.args(command).arg("--connect").arg(addresses.join(",")).output();
        let output = output.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Asks these nodes to wait until the cluster is healthy. Whether it is in time, and why not.
    pub(crate) fn healthy(&self, nodes: &BTreeSet<usize>, timeout: &str) -> (bool, String) {
        let wait = ["status", "--wait=healthy", "--interval=10ms", "--timeout", timeout];
        let (code, _, errors) = self.operate(nodes, &wait);
        (code == Some(0), errors)
    }

    /// What all nodes have logged: another one may decide by now.
    pub(crate) fn logs(&self) -> String {
        (0..self.nodes.len()).map(|node| self.site.log(node) + "\n").collect()
    }

    /// The node that decides on the membership, which is one of these.
    pub(crate) fn leader(&self, living: &BTreeSet<usize>) -> usize {
        awaited("a living node decides on the membership", || {
            let terms = (0..self.nodes.len()).map(|node| (self.site.term(node), node));
            let (term, node) = terms.max()?;
            (term.is_some() && living.contains(&node)).then_some(node)
        })
    }

    /// Ends a process in the middle of what it does.
    pub(crate) fn kill(&self, node: usize) {
        self.signal(node, "KILL");
        // A process that is started in its place finds the ports free.
        let status = format!("/proc/{}/status", self.nodes[node].id());
        awaited("the process that was killed has ended", || {
            let status = fs::read_to_string(&status).unwrap_or_default();
            (status.is_empty() || status.contains("State:\tZ")).then_some(())
        });
    }

    /// Waits until a process has ended because the others have removed its node.
    pub(crate) fn ends_as_removed(&mut self, node: usize) {
        let what = format!("the removed node {node} ends");
        awaited(&what, || (!self.nodes[node].is_running()).then_some(()));
        let (code, log) = (self.nodes[node].wait().code(), self.site.log(node));
        assert!(code.is_some_and(|code| code != 0), "node {node} ended with {code:?}: {log}");
        assert!(log.contains(REMOVED), "node {node} does not say why it ended: {log}");
    }

    /// Waits until each of these nodes serves, or has ended because the others have removed it. Returns those that serve.
    pub(crate) fn settle(&mut self, nodes: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut serving = BTreeSet::new();
        for &node in nodes {
            let serves = awaited(&format!("node {node} serves or ends"), || {
                if self.attempt(node, &["SELECT sum(n) FROM mark"]).is_ok() {
                    return Some(true);
                }
                (!self.nodes[node].is_running()).then_some(false)
            });
            if serves {
                serving.insert(node);
            } else {
                self.ends_as_removed(node);
            }
        }
        serving
    }
}
