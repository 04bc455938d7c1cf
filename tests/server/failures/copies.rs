//! Copies that are lost with their nodes are made again on other nodes, while clients go on: then the next node may die.
//!
//! ```text
//! 5 nodes, 2 copies ─ a node is killed ─ all partitions have 2 copies again ─ the next one is killed, three in all
//! ```
//! *Not here*: learners whose primary dies, or which die themselves, in the simulator.

use std::time::Duration;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited, pass};
use crate::failures::histories::record;
use crate::process::Server;

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

/// A node that is filled slowly: the others and the status say how much is to be copied, less and less.
#[test]
fn what_is_to_be_copied_is_seen() {
    let mut cluster = Cluster::start(Site::new("failures-copies-slow", 3), &[SHORT_LEASE]);
    cluster.query(0, "CREATE TABLE town (id INT PRIMARY KEY, name TEXT)");
    let rows = "SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n";
    cluster.query(0, &format!("INSERT INTO town {rows}"));
    let to_copy = |cluster: &Cluster, node: usize| {
        let bytes = cluster.query(node, "SELECT max(bytes_to_copy) FROM gannet_nodes");
        bytes.parse::<u64>().unwrap()
    };
    assert_eq!(to_copy(&cluster, 0), 0);
    cluster.kill(2);
    let back = Server::listening(cluster.site.start(2, &[SHORT_LEASE, "--copy-rate=128KiB"]));
    drop(std::mem::replace(&mut cluster.nodes[2], back));
    let first = awaited("much is to be copied", || {
        Some(to_copy(&cluster, 0)).filter(|bytes| *bytes > 1 << 20)
    });
    awaited("the copy of each partition is told", || {
        let (_, said, _) = cluster.operate(&[1].into(), &["status", "--partitions"]);
        assert!(said.contains("being filled"), "{said}");
        let lines = || said.lines().filter(|line| line.contains("MiB to go"));
        let fills = |line: &str| line.contains("2: ");
        let is_paced = lines().any(|line| line.contains(" MiB/s for about "));
        (lines().all(fills) && is_paced).then_some(())
    });
    // Nodes report every second, or later on a busy machine: an interval may see no progress.
    awaited("the rate of the copy is told", || {
        let (_, said, _) = cluster.operate(&[1].into(), &["status"]);
        said.contains(" MiB are to be copied, at ").then_some(())
    });
    // All partitions of the worker together keep the pace. The node says once a second how much it has copied.
    let copied = || {
        let bytes = cluster.query(1, "SELECT copied_bytes FROM gannet_nodes WHERE node = 2");
        bytes.parse::<u64>().unwrap()
    };
    let before = copied();
    pass(Duration::from_secs(3));
    let in_three_seconds = copied() - before;
    assert!(in_three_seconds < 3 * (3 * (128 << 10)), "{in_three_seconds} bytes");
    awaited("less is to be copied", || {
        let left = to_copy(&cluster, 1);
        (left > 0 && left < first).then_some(())
    });
}
