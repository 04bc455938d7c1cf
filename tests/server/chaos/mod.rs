//! Clusters of processes on a network that loses, delays, reorders, duplicates and damages packets, and cuts nodes off.
//!
//! Every fault is counted, and a test fails if one of them has not struck.
//!
//! *Not here*: processes that die, and nodes that are cut off for longer than a lease, in `failures`.

pub(crate) mod network;
mod relay;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::consistency;
use crate::nodes::write_key;
use crate::process::{Server, folder, read_all};
use network::Network;
use relay::{Faults, Relay};

const NODES: usize = 3;
const LOST_PERCENT: u32 = 2;
const FAULTS: Faults = Faults { seed: 42, delayed: 10, doubled: 3, damaged: 1 };
/// How long a node is cut off: longer than any timeout of a request, shorter than TCP's timeout.
const CUT_OFF: Duration = Duration::from_millis(700);
/// Much longer than that.
const LEASE: &str = "--lease=10s";

/// Minimum number of cut-offs and pauses while lists are read.
const TURNS: usize = 4;
/// Transactions of a benchmark. They send far more packets than before the cut, enough for every fault to strike.
const TRANSACTIONS: u32 = 40_000;
/// Packets of a benchmark before a node is cut off.
const PACKETS_BEFORE_CUT: u64 = 1_000;
/// Runs without a rule until one of them has a result.
#[cfg(feature = "mutants")]
const RUNS_MAX: usize = 3;
/// Minimum number of packets of the lists: enough for every fault to strike.
const PACKETS_OF_LISTS: u64 = 20_000;

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process has ended by itself, unless the test fails.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network with faults, and files that its nodes share.
struct Rig {
    network: Network,
    relay: Relay,
    key: PathBuf,
}

impl Rig {
    fn new(name: &str) -> Self {
        let key = write_key(&folder(name).join("cluster.key"), '7');
        let network = Network::new(NODES);
        let relay = Relay::start(&network.tunnel_name(), FAULTS);
        network.begin_faults(LOST_PERCENT);
        Self { network, relay, key }
    }

    fn members() -> String {
        let addresses: Vec<_> =
            (0..NODES).map(|node| format!("{}:7000", Network::address(node))).collect();
        addresses.join(",")
    }

    /// Runs a benchmark on the nodes, and cuts the second one off for a while. Returns the first node's report and exit code.
    fn bench(&self, workload: &str) -> (String, Option<i32>) {
        let before = self.relay.relayed();
        let start = |node: usize| -> Running {
            let mut command = self.network.command(node, env!("CARGO_BIN_EXE_gannet"));
            command.arg("bench").args(workload.split(' ')).args([
                "--threads=1",
                "--memory=128MiB",
                // A node that is cut off is waited for.
                LEASE,
                &format!("--transactions={TRANSACTIONS}"),
                &format!("--node={node}"),
                &format!("--members={}", Self::members()),
            ]);
            command.arg("--cluster-key").arg(&self.key);
            let said = File::create(self.log(node)).unwrap();
            // Only the first node prints a report.
            Running(command.stdout(Stdio::piped()).stderr(said).spawn().unwrap())
        };
        let mut nodes: Vec<_> = (0..NODES).map(start).collect();
        // Waits until transactions run: loading sends no packets.
        while self.relay.relayed() < before + PACKETS_BEFORE_CUT {
            let is_running = |node: &mut Running| node.0.try_wait().unwrap().is_none();
            assert!(nodes.iter_mut().all(is_running), "{}", self.said());
            std::thread::park_timeout(Duration::from_millis(10));
        }
        self.network.cut_off(1);
        std::thread::park_timeout(CUT_OFF);
        self.network.heal();
        let report = read_all(nodes[0].0.stdout.take().unwrap());
        let codes: Vec<_> = nodes.iter_mut().map(|node| node.0.wait().unwrap().code()).collect();
        (format!("{report}{}", self.said()), codes[0])
    }

    /// The log file of a node.
    fn log(&self, node: usize) -> PathBuf {
        self.key.with_file_name(format!("node-{node}.log"))
    }

    fn said(&self) -> String {
        (0..NODES).map(|node| fs::read_to_string(self.log(node)).unwrap_or_default()).collect()
    }

    /// Ends the faults, and asserts that each has struck.
    fn finish(self) {
        let (lost, cut) = self.network.dropped();
        let counts = self.relay.stop();
        // The test's output shows how often each fault has struck.
        let _ = writeln!(std::io::stdout(), "{lost} lost, {cut} cut off, {counts:?}");
        let relayed = [counts.delayed, counts.overtaken, counts.doubled, counts.damaged];
        assert!(relayed.iter().chain([&lost]).all(|count| *count > 20), "{lost} lost, {counts:?}");
        // Less, because a node that is cut off soon sends little.
        assert!(cut > 0, "no packet met a cut");
    }
}

#[test]
fn benchmarks_verify_on_a_bad_network() {
    let rig = Rig::new("chaos-benchmarks");
    for workload in ["tatp --subscribers 2000", "smallbank --accounts 2000"] {
        let (report, code) = rig.bench(workload);
        assert!(code == Some(0) && report.contains("verify: passed"), "{workload}: {report}");
    }
    rig.finish();
}

/// Without the rule, duplicated requests run twice: the network must make that visible.
#[cfg(feature = "mutants")]
#[test]
fn a_removed_rule_is_noticed_on_a_bad_network() {
    let rig = Rig::new("chaos-mutant");
    // An old request that runs again takes the place of a newer one's response. If part of that has arrived, the rest never comes: the
    // node that owes it is removed, and the benchmark has no result.
    let is_done = |(report, _): &(String, _)| !report.contains("before the benchmark is done");
    let mut runs =
        (0..RUNS_MAX).map(|_| rig.bench("smallbank --accounts 2000 --mutant EXACTLY_ONCE"));
    let (report, code) = runs.find(is_done).expect("a run has a result");
    assert!(code == Some(1) && report.contains("FAILED"), "{report}");
    rig.finish();
}

#[test]
fn lists_are_strictly_serializable_on_a_bad_network() {
    let rig = Rig::new("chaos-lists");
    let start = |node: usize| {
        let mut command = rig.network.command(node, env!("CARGO_BIN_EXE_gannet"));
        command.args(["serve", "--threads=1", "--memory=128MiB", "--listen=127.0.0.1:0"]).args([
            // Nodes that are cut off or stopped for a while are waited for.
            LEASE.to_owned(),
            format!("--node={node}"),
            format!("--members={}", Rig::members()),
            format!("--cluster-key={}", rig.key.display()),
        ]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..NODES).map(start).collect();
    let nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    let turns = AtomicUsize::new(0);
    let (checks, committed) = std::thread::scope(|scope| {
        let (ended, end) = channel::<()>();
        let (network, nodes, turns) = (&rig.network, &nodes, &turns);
        scope.spawn(move || {
            // Nodes are cut off or paused in turn, until the lists are done.
            while end
                .recv_timeout(CUT_OFF)
                .is_err_and(|error| matches!(error, std::sync::mpsc::RecvTimeoutError::Timeout))
            {
                let turn = turns.load(Ordering::Relaxed);
                let node = turn % NODES;
                if turn % 2 == 0 {
                    network.cut_off(node);
                    std::thread::park_timeout(CUT_OFF);
                    network.heal();
                } else {
                    nodes[node].signal("STOP");
                    std::thread::park_timeout(CUT_OFF);
                    nodes[node].signal("CONT");
                }
                turns.store(turn + 1, Ordering::Relaxed);
            }
        });
        let goes_on =
            || turns.load(Ordering::Relaxed) < TURNS || rig.relay.relayed() < PACKETS_OF_LISTS;
        let result = consistency::run_on(nodes, |node| network.enter(node), goes_on);
        drop(ended);
        result
    });
    assert!(checks.iter().all(|check| check.passed), "{checks:?}");
    assert!(committed > 50, "only {committed} transactions committed");
    rig.finish();
}
