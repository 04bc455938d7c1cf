//! Nodes that are cut off, their packets as well as their streams: one way, from one other, and into a ring.
//!
//! *Invariants*: each test sees that packets were cut.
//!
//! *Not here*: nodes that are cut off for less than a timeout, in `chaos`.

use std::collections::BTreeSet;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited};
use crate::failures::histories::record;

/// The nodes but these, of so many.
fn others(nodes: usize, but: &[usize]) -> BTreeSet<usize> {
    (0..nodes).filter(|node| !but.contains(node)).collect()
}

/// Waits until the one that decides wants to remove a node.
fn await_suspicion(cluster: &Cluster) {
    let suspects = |node: &usize| cluster.site.log(*node).contains("is suspected");
    awaited("a node is suspected", || cluster.all().iter().any(suspects).then_some(()));
}

fn assert_cut(cluster: &Cluster) {
    let (_, cut) = cluster.site.network().dropped();
    assert!(cut > 0, "no packet met a cut");
}

/// It hears the others, and nobody hears it.
#[test]
fn a_node_that_nobody_hears_is_removed() {
    let mut cluster = Cluster::start(Site::in_network("failures-one-way", 3), &[SHORT_LEASE]);
    let mut victim = 0;
    record(&cluster, |clients| {
        victim = (cluster.leader(&cluster.all()) + 1) % 3;
        let survivors = others(3, &[victim]);
        survivors.iter().for_each(|other| cluster.site.network().cut(victim, *other));
        // An update of rows of all partitions waits until the victim is removed.
        let serving = clients.serving(&survivors);
        clients.wait_for(&survivors, 20);
        assert_cut(&cluster);
        cluster.site.network().heal();
        serving
    });
    cluster.ends_as_removed(victim);
    assert_eq!(cluster.settle(&others(3, &[victim])), others(3, &[victim]));
}

/// Both reach the one that decides, so the leases of both are well.
#[test]
fn of_two_nodes_that_do_not_reach_each_other_one_is_removed() {
    let mut cluster = Cluster::start(Site::in_network("failures-pair", 3), &[SHORT_LEASE]);
    let (mut leader, mut pair) = (0, BTreeSet::new());
    record(&cluster, |clients| {
        leader = cluster.leader(&cluster.all());
        pair = others(3, &[leader]);
        for (from, to) in [(pair.first(), pair.last()), (pair.last(), pair.first())] {
            cluster.site.network().cut(*from.unwrap(), *to.unwrap());
        }
        await_suspicion(&cluster);
        let serving = clients.serving(&BTreeSet::from([leader]));
        assert_cut(&cluster);
        cluster.site.network().heal();
        serving
    });
    let serving = cluster.settle(&cluster.all());
    assert!(serving.contains(&leader), "the one that decides stays; {serving:?} serve");
    assert_eq!(serving.intersection(&pair).count(), 1, "one of two goes; {serving:?} serve");
}

/// Each of four nodes reaches its two neighbours.
#[test]
fn nodes_that_reach_only_their_neighbours_go_on() {
    const NODES: usize = 4;
    let mut cluster = Cluster::start(Site::in_network("failures-ring", NODES), &[SHORT_LEASE]);
    record(&cluster, |clients| {
        for node in cluster.all() {
            cluster.site.network().cut(node, (node + 2) % NODES);
        }
        await_suspicion(&cluster);
        clients.serving(&cluster.all());
        assert_cut(&cluster);
        cluster.site.network().heal();
        clients.serving(&cluster.all())
    });
    let serving = cluster.settle(&cluster.all());
    assert!(!serving.is_empty() && serving.len() < NODES, "{serving:?} serve");
}
