//! Copies that are lost with their nodes are made again on other nodes, while clients go on: then the next node may die.
//!
//! ```text
//! 5 nodes, 2 copies ─ a node is killed ─ all partitions have 2 copies again ─ the next one is killed, three in all
//! ```
//! *Not here*: learners whose primary dies, or which die themselves, in the simulator.

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited};
use crate::failures::histories::record;

/// Transactions of each node after a death.
const MORE: u64 = 20;

#[test]
fn lost_copies_are_made_again_and_the_next_node_may_die() {
    let arguments = [SHORT_LEASE, "--replicas=2", "--copies-after=100ms"];
    let cluster = Cluster::start(Site::new("failures-copies", 5), &arguments);
    let mut living = cluster.all();
    let summary = record(&cluster, |clients| {
        for _ in 0..3 {
            let leader = cluster.leader(&living);
            awaited("one more node can be lost", || {
                let left = "SELECT min(losses_serving) FROM gannet_nodes WHERE state = 'up'";
                (cluster.query(leader, left) != "0").then_some(())
            });
            let victim = *living.iter().find(|node| **node != leader).unwrap();
            living.remove(&victim);
            cluster.kill(victim);
            clients.wait_for(&living, MORE);
            let removed = format!("node {victim} is removed");
            awaited(&removed, || {
                let removed = format!("the removal of node {victim}");
                living.iter().any(|node| cluster.site.log(*node).contains(&removed)).then_some(())
            });
        }
        let node = *living.first().unwrap();
        awaited("all partitions have two copies", || {
            let counts = "SELECT min(copies_missing), (SELECT count(*) FROM gannet_copies WHERE role = 'learner') FROM gannet_nodes";
            (cluster.query(node, counts) == "0|0").then_some(())
        });
        clients.serving(&living)
    });
    assert!(living.iter().all(|node| summary.broken[*node] == 0), "{summary:?}");
    // Each of the two has all rows: either may go, too.
    let held = "SELECT count(DISTINCT partition) FROM gannet_copies WHERE node =";
    for node in &living {
        let all = cluster.query(*node, "SELECT count(DISTINCT partition) FROM gannet_copies");
        assert_eq!(cluster.query(*node, &format!("{held} {node}")), all);
    }
}
