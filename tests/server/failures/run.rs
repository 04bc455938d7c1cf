//! The process run: clusters of five processes, one after the other, each of which meets two failures while clients use it.
//!
//! ```text
//! start ─▶ clients of all nodes ─▶ a failure ─▶ it serves again ─▶ another one ─▶ it serves again ─▶ the checkers judge
//!                                                         each node serves, or has ended because it was removed
//! ```
//! The failures take turns. Of five nodes all of them leave a majority of the manager, if only after the links are healed.
//!
//! *Invariants*: a run has each kind of failure at least once, however slow the machine is. A cluster is drawn from its number.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use gannet_rpc::{Clock, MonotonicClock};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::failures::cluster::{BEYOND_LEASE, Cluster, SHORT_LEASE, Site, pass};
use crate::failures::histories::{Summary, record};

const NODES: usize = 5;
/// Far less than a lease.
const WITHIN_LEASE: Duration = Duration::from_millis(200);
const FAILURES_PER_CLUSTER: usize = 2;
/// When the last cluster of every test run begins, at the latest: the run takes about a minute.
const RUN: Duration = Duration::from_secs(50);

/// What may happen to nodes.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Kill,
    KillLeader,
    /// For longer than its lease.
    Pause,
    /// For less.
    ShortPause,
    /// Nobody hears it.
    OneWay,
    CutOff,
    /// Each node reaches two others.
    Ring,
}

impl Failure {
    /// In an order in which a cluster survives any two that follow one another.
    const ALL: [Self; 7] = [
        Self::Kill,
        Self::KillLeader,
        Self::Pause,
        Self::OneWay,
        Self::CutOff,
        Self::Ring,
        Self::ShortPause,
    ];

    /// Strikes nodes of a cluster, of which these are left, and ends what can end.
    fn strike(self, cluster: &Cluster, left: &mut BTreeSet<usize>, random: &mut SmallRng) {
        let members: Vec<_> =
            left.iter().copied().filter(|node| !cluster.site.was_removed(*node)).collect();
        let victim = members[random.random_range(0..members.len())];
        match self {
            Self::Kill | Self::KillLeader => {
                let is_leader = matches!(self, Self::KillLeader);
                let victim = if is_leader { cluster.leader(left) } else { victim };
                cluster.kill(victim);
                left.remove(&victim);
            }
            Self::Pause | Self::ShortPause => {
                cluster.signal(victim, "STOP");
                let is_short = matches!(self, Self::ShortPause);
                pass(if is_short { WITHIN_LEASE } else { BEYOND_LEASE });
                cluster.signal(victim, "CONT");
            }
            Self::OneWay | Self::CutOff | Self::Ring => {
                for (from, to) in pairs() {
                    if self.parts(victim, from, to) {
                        cluster.site.network().cut(from, to);
                    }
                }
                pass(BEYOND_LEASE);
                cluster.site.network().heal();
            }
        }
    }

    /// Whether what one node sends to another does not arrive.
    fn parts(self, victim: usize, from: usize, to: usize) -> bool {
        match self {
            Self::Kill | Self::KillLeader | Self::Pause | Self::ShortPause => false,
            Self::OneWay => from == victim,
            Self::CutOff => from == victim || to == victim,
            Self::Ring => (from + 1) % NODES != to && (to + 1) % NODES != from,
        }
    }
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..NODES).flat_map(|from| (0..NODES).filter(move |to| *to != from).map(move |to| (from, to)))
}

/// Runs one cluster after the other for so long, and until each failure has struck.
pub(crate) fn run_for(name: &str, duration: Duration) {
    let clock = MonotonicClock::new();
    let until_ns = clock.now_ns() + u64::try_from(duration.as_nanos()).unwrap();
    let mut failures = Failure::ALL.into_iter().cycle();
    let clusters = Failure::ALL.len().div_ceil(FAILURES_PER_CLUSTER);
    for number in 0.. {
        if number >= clusters && clock.now_ns() >= until_ns {
            return;
        }
        let failures: Vec<_> = failures.by_ref().take(FAILURES_PER_CLUSTER).collect();
        run_cluster(name, number, &failures);
    }
}

fn run_cluster(name: &str, number: usize, failures: &[Failure]) {
    let mut random = SmallRng::seed_from_u64(u64::try_from(number).unwrap());
    let mut cluster = Cluster::start(Site::in_network(name, NODES), &[SHORT_LEASE]);
    let mut left = cluster.all();
    // A failing test shows which cluster it was.
    let _ = writeln!(std::io::stdout(), "cluster {number} meets {failures:?}");
    let summary = record(&cluster, |clients| {
        let mut serving = 0;
        for failure in failures {
            pass(Duration::from_millis(random.random_range(0..300)));
            failure.strike(&cluster, &mut left, &mut random);
            serving = clients.serving(&left);
        }
        clients.wait_for_some(20);
        serving
    });
    let serving = cluster.settle(&left);
    let Summary { committed, unknown, .. } = summary;
    let _ = writeln!(
        std::io::stdout(),
        "{committed} transactions have committed, {unknown} are unknown; {serving:?} serve at the end"
    );
    assert!(!serving.is_empty(), "nobody is left of the nodes {left:?}");
}

#[test]
fn clusters_go_on_through_a_minute_of_failures() {
    run_for("failures-run", RUN);
}
