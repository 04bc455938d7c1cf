//! The cost of bad networks. On every link 5 % of the packets are lost, 5 % are duplicated, and 10 % are overtaken. TATP and
//! SmallBank verify, and commit at least half as much as without faults, in virtual time.
//!
//! The simulator runs each workload twice for 200 virtual ms, with one seed. A test also fails if a fault has struck too
//! seldom, or if the run without faults sends more than one packet again for 500 commits.
//!
//! *Not here*: other faults, nodes that die (`tests/simulation.rs`), the time until a packet is sent
//! again (`rpc/tests/losses.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use gannet_benchmarks::{Limit, Simulated, SimulatedRun, Workload, simulate};
use gannet_engine::ClusterOptions;
use gannet_engine::simulation::{Fault, FaultKind, Founding};
use gannet_smallbank::SmallBank;
use gannet_tatp::Tatp;

fn run(workload: impl Workload, faults: Vec<Fault>) -> Simulated {
    let cluster = ClusterOptions {
        threads: 1,
        coroutines: 10,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let founding = Founding::default();
    let limit = Limit::Duration(Duration::from_millis(200));
    let found = simulate(
        workload,
        SimulatedRun {
            cluster,
            founding,
            clocks_stand: false,
            disk_fails_ns: None,
            seed: 5,
            faults,
            kills: Vec::new(),
            drains: Vec::new(),
            limit,
            trace: None,
        },
    );
    let found = found.unwrap();
    assert!(found.passed(), "{:?}", found.checks);
    found
}

fn bad_network() -> Vec<Fault> {
    [(FaultKind::Loss, 50), (FaultKind::Duplicate, 50), (FaultKind::Reorder, 100)]
        .map(|(kind, permille)| Fault {
            kind,
            begins_at: 0,
            lasts_ns: u64::MAX / 2,
            node: 0,
            peer: 1,
            permille,
            seed: permille.into(),
        })
        .to_vec()
}

fn compare<W: Workload>(workload: impl Fn() -> W) {
    let (good, bad) = (run(workload(), Vec::new()), run(workload(), bad_network()));
    let [without, with] = [&good, &bad].map(|found| found.totals.qualified());
    let ratio = with as f64 / without as f64;
    println!("{}: {without} commits without faults, {with} with: {ratio:.2}", workload().name());
    // Nothing was lost, but a slow packet seems lost now and then.
    assert!(good.counters.retransmitted < without / 500, "{}", good.counters.retransmitted);
    for kind in [FaultKind::Loss, FaultKind::Duplicate, FaultKind::Reorder] {
        assert!(bad.firings.of(kind) > 1_000, "{}: {}", kind.name(), bad.firings.of(kind));
    }
    assert!(bad.counters.retransmitted > 1_000 && bad.counters.duplicates > 1_000);
    assert!(ratio >= 0.5, "{ratio}");
}

#[test]
fn tatp_commits_half_as_much_at_least() {
    compare(|| Tatp::new(2_000, true, 1).unwrap());
}

#[test]
fn smallbank_commits_half_as_much_at_least() {
    compare(|| SmallBank::new(10_000, 1).unwrap());
}
