//! Nodes that are killed under load: nothing that was acknowledged is lost, no transaction is half done, and sessions of
//! the other nodes go on.
//!
//! *Not here*: nodes that are killed at a chosen step of a commit, in the simulator.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::failures::cluster::{Cluster, LONG_LEASE, SHORT_LEASE, Site, awaited, pass};
use crate::failures::histories::{Summary, record};

/// Transactions of each node after a death: enough to touch all rows that the dead node was about to change.
const MORE: u64 = 20;

/// The length of a long lease.
const LONG_LEASE_MS: f64 = 10_000.0;

/// Sessions of these nodes have not broken.
fn assert_unbroken(summary: &Summary, survivors: &BTreeSet<usize>) {
    let broken = survivors.iter().filter(|node| summary.broken[**node] > 0);
    assert_eq!(broken.count(), 0, "sessions of living nodes have broken: {summary:?}");
}

/// A node dies wherever its transactions are then: between a commit's BACKUPs and its PRIMARYs, too, in some of many deaths. The
/// process run has more of them.
#[test]
fn a_node_that_dies_between_its_backups_and_primaries_leaves_nothing_half_done() {
    for seed in 0..2 {
        let cluster = Cluster::start(Site::new("failures-death", 3), &[SHORT_LEASE]);
        let mut random = SmallRng::seed_from_u64(seed);
        let victim: usize = random.random_range(0..3);
        let mut survivors = cluster.all();
        survivors.remove(&victim);
        let summary = record(&cluster, |clients| {
            pass(Duration::from_millis(random.random_range(0..200)));
            cluster.kill(victim);
            clients.wait_for(&survivors, MORE);
            clients.serving(&survivors)
        });
        assert_unbroken(&summary, &survivors);
    }
}

#[test]
fn the_death_of_the_manager_s_leader_is_survived() {
    let cluster = Cluster::start(Site::new("failures-leader", 3), &[SHORT_LEASE]);
    let mut survivors = cluster.all();
    let summary = record(&cluster, |clients| {
        let leader = cluster.leader(&survivors);
        survivors.remove(&leader);
        cluster.kill(leader);
        clients.wait_for(&survivors, MORE);
        // Another one decides.
        cluster.leader(&survivors);
        clients.serving(&survivors)
    });
    assert_unbroken(&summary, &survivors);
}

#[test]
fn the_deaths_of_two_nodes_one_after_the_other_are_survived() {
    let cluster = Cluster::start(Site::new("failures-two", 5), &[SHORT_LEASE]);
    let mut survivors = cluster.all();
    let summary = record(&cluster, |clients| {
        for _ in 0..2 {
            let leader = cluster.leader(&survivors);
            survivors.remove(&leader);
            cluster.kill(leader);
            clients.wait_for(&survivors, MORE);
        }
        clients.serving(&survivors)
    });
    assert_unbroken(&summary, &survivors);
}

/// The others wait for no lease of a node that is stopped, as it gives its own up first.
#[test]
fn a_node_that_is_stopped_costs_no_lease() {
    let mut cluster = Cluster::start(Site::new("failures-stop", 3), &[LONG_LEASE]);
    let survivors = BTreeSet::from([0, 1]);
    cluster.query(0, "CREATE TABLE t (id INT PRIMARY KEY)");
    cluster.signal(2, "TERM");
    assert!(cluster.nodes[2].wait().success());
    cluster.query(0, "INSERT INTO t VALUES (1)");
    let waited = awaited("the node that decides says how long it has waited for leases", || {
        let logs: String = survivors.iter().map(|node| cluster.site.log(*node)).collect();
        let (_, rest) = logs.split_once("the leases of removed nodes are over for epoch 2 ")?;
        rest.split(' ').next()?.parse::<f64>().ok()
    });
    assert!(waited < LONG_LEASE_MS, "{waited} ms");
}
