//! Nodes that operators drain, stop, and start again, while clients go on: 3 nodes from 4, and 4 from 3. Nodes that a cluster did not have.
//!
//! *Not here*: drains beside deaths, partitions and pauses, in the simulator.

use std::collections::BTreeSet;

use crate::failures::cluster::{Cluster, LONG_LEASE, Site, awaited};
use crate::failures::histories::record;
use crate::process::Server;

/// The number of partitions that a node has a part of.
fn held(cluster: &Cluster, at: usize, node: usize) -> String {
    cluster.query(at, &format!("SELECT count(*) FROM gannet_copies WHERE node = {node}"))
}

/// The epoch, as a node sees it.
const EPOCH: &str = "SELECT DISTINCT epoch FROM gannet_nodes";

/// Node 3 is drained and stopped under load, and comes back; then the node that decides. Nothing is lost, and no transaction is unknown.
#[test]
fn a_drained_node_is_stopped_without_a_copy_less_and_holds_its_share_when_it_is_back() {
    let of_node = |_: usize| vec![LONG_LEASE.to_owned()];
    let mut cluster = Cluster::start_each(Site::new("failures-drains", 4), of_node);
    for turn in 0..2 {
        let leader = cluster.leader(&cluster.all());
        let node = if turn == 0 { (leader + 3) % 4 } else { leader };
        let number = node.to_string();
        let mut others = cluster.all();
        others.remove(&node);
        let other = *others.first().unwrap();
        let mut back = None;
        let summary = record(&cluster, |clients| {
            clients.wait_for(&cluster.all(), 20);
            let drain = ["node", "drain", &number];
            let (code, said, errors) = cluster.operate(&others, &drain);
            assert_eq!(code, Some(0), "{said}{errors}");
            assert!(said.contains("its process may be stopped"), "{said}");
            assert_eq!(held(&cluster, other, node), "0");
            // It holds nothing, and serves its clients.
            clients.wait_for(&cluster.all(), 20);
            cluster.signal(node, "TERM");
            let state = format!("SELECT state FROM gannet_nodes WHERE node = {node}");
            awaited("the node has left", || (cluster.query(other, &state) == "gone").then_some(()));
            // The others have all copies, and are whole without it.
            assert_eq!(cluster.healthy(&others, "60s"), (true, String::new()));
            let losses = "SELECT losses_keeping_rows FROM gannet_nodes LIMIT 1";
            assert_eq!(cluster.query(other, losses), "2");
            // None of them can do without its copies.
            let next = others.last().unwrap().to_string();
            let drain = ["node", "drain", &next];
            let (code, said, errors) = cluster.operate(&others, &drain);
            assert_eq!(code, Some(1), "{said}{errors}");
            assert!(said.contains("run this again with --fewer-copies"), "{said}");
            let (code, said, errors) =
                cluster.operate(&others, &[&drain[..], &["--fewer-copies"]].concat());
            assert_eq!(code, Some(0), "{said}{errors}");
            let (code, _, errors) = cluster.operate(&others, &["node", "cancel", &next]);
            assert_eq!(code, Some(0), "{errors}");

            back = Some(Server::listening(cluster.site.start(node, &[LONG_LEASE])));
            awaited("the node holds its share", || {
                (held(&cluster, other, node) == "12").then_some(())
            });
            assert_eq!(cluster.healthy(&others, "60s"), (true, String::new()));
            clients.wait_for(&others, 20);
            clients.serving(&others)
        });
        assert_eq!(summary.unknown, 0, "{summary:?}");
        assert!(others.iter().all(|other| summary.broken[*other] == 0), "{summary:?}");
        let mut stopped = std::mem::replace(&mut cluster.nodes[node], back.unwrap());
        assert_eq!(stopped.wait().code(), Some(0));
        for at in 0..4 {
            assert_eq!(held(&cluster, at, node), "12");
            assert_eq!(cluster.query(at, EPOCH), "1", "nothing was flushed");
        }
    }
}

/// A cluster that has begun with three nodes gets two more under load, and gives up two others, which are drained together.
#[test]
fn three_nodes_become_five_and_three_others_are_left() {
    let arguments = [LONG_LEASE, "--first-nodes=3"];
    let of_node = |_: usize| arguments.map(str::to_owned).to_vec();
    let mut cluster = Cluster::start_first(Site::new("failures-growth", 5), 3, of_node);
    let first = cluster.all();
    assert_eq!(cluster.healthy(&first, "60s"), (true, String::new()), "nobody waits for more");
    let error = cluster.site.failure(3, &[LONG_LEASE]);
    assert!(error.contains("first nodes: node") && error.contains("give all nodes"), "{error}");
    let mut more = Vec::new();
    let summary = record(&cluster, |clients| {
        clients.wait_for(&first, 20);
        let starting = [3, 4].map(|node| cluster.site.start(node, &arguments));
        let (code, said, errors) = cluster.operate(&first, &["node", "add", "4", "--timeout=60s"]);
        assert_eq!(code, Some(0), "{said}{errors}");
        assert!(said.starts_with("node 4 holds its share, "), "{said}");
        more.extend(starting.map(Server::listening));
        for (node, share) in [(0, ["9", "10"]), (3, ["9", "10"]), (4, ["9", "10"])] {
            awaited("the node holds its share", || {
                share.contains(&held(&cluster, 1, node).as_str()).then_some(())
            });
        }
        assert_eq!(cluster.healthy(&first, "60s"), (true, String::new()));
        clients.wait_for(&first, 20);
        clients.serving(&first)
    });
    assert_eq!((summary.unknown, &summary.broken[..3]), (0, &[0; 3][..]), "{summary:?}");
    cluster.nodes.append(&mut more);
    let left = BTreeSet::from([0, 3, 4]);
    let summary = record(&cluster, |clients| {
        clients.wait_for(&cluster.all(), 20);
        let drain = |node| {
            let drain = ["node", "drain", node, "--timeout=60s"];
            let (code, said, errors) = cluster.operate(&left, &drain);
            assert_eq!(code, Some(0), "{said}{errors}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| drain("1"));
            scope.spawn(|| drain("2"));
        });
        for node in [1, 2] {
            assert_eq!(held(&cluster, 0, node), "0");
            cluster.signal(node, "TERM");
        }
        awaited("the drained nodes have left", || {
            let up = cluster.query(0, "SELECT count(*) FROM gannet_nodes WHERE state = 'up'");
            (up == "3").then_some(())
        });
        assert_eq!(cluster.healthy(&left, "60s"), (true, String::new()));
        clients.wait_for(&left, 20);
        clients.serving(&left)
    });
    assert_eq!(summary.unknown, 0, "{summary:?}");
    assert!(left.iter().all(|node| summary.broken[*node] == 0), "{summary:?}");
    for node in [1, 2] {
        assert_eq!(cluster.nodes[node].wait().code(), Some(0));
    }
    for at in &left {
        assert_eq!(cluster.query(*at, EPOCH), "1", "nothing was flushed");
        assert!(left.iter().all(|node| held(&cluster, *at, *node) == "16"));
    }
}

#[test]
fn what_cannot_be_drained_or_removed_is_refused() {
    let cluster = Cluster::start(Site::new("failures-drains-refused", 2), &[LONG_LEASE]);
    let call = |statement: &str| cluster.attempt(0, &[statement]).unwrap_err();
    for (statement, code, said) in [
        ("CALL gannet_drain_node(7)", "22023", "node 7 is no member"),
        ("CALL gannet_add_node(7)", "22023", "gannet serve --node 7 --join"),
        ("CALL gannet_drain_node(-1)", "22023", "there is no node -1"),
        ("CALL gannet_drain_node('x')", "22023", "name a node by its number"),
        ("CALL gannet_drain_nodes(1)", "42883", "gannet_remove_node(node [, loses_rows])"),
        ("CALL gannet_remove_node(1, 2)", "42883", "does not exist"),
        ("CALL gannet_remove_node(1)", "55000", "node 1 runs"),
        ("BEGIN; CALL gannet_drain_node(1)", "25001", "inside a transaction block"),
    ] {
        let error = call(statement);
        assert!(error.contains(code) && error.contains(said), "{statement}: {error}");
    }
    // Twice is once, and of two nodes one holds all.
    cluster.query(0, "CALL gannet_drain_node(1)");
    cluster.query(1, "CALL gannet_drain_node(1)");
    let error = call("CALL gannet_drain_node(0)");
    assert!(
        error.contains("55000") && error.contains("the last one that is not drained"),
        "{error}"
    );
    let drained = "SELECT drain FROM gannet_nodes ORDER BY node";
    awaited("node 1 is primary of nothing", || {
        (cluster.query(0, drained) == "\nneeded").then_some(())
    });
    let primaries = "SELECT DISTINCT node FROM gannet_copies WHERE role = 'primary'";
    assert_eq!(cluster.query(1, primaries), "0");
    cluster.query(1, "CALL gannet_add_node(1)");
    awaited("node 1 is primary of its share", || {
        (cluster.query(0, primaries) != "0").then_some(())
    });
    let all = cluster.all();
    let (code, _, errors) = cluster.operate(&all, &["node", "remove", "1", "--lose-rows"]);
    assert!(code == Some(2) && errors.contains("node 1 runs"), "{errors}");
    let (code, said, errors) = cluster.operate(&all, &["node", "add", "5", "--timeout=1s"]);
    assert!(code == Some(1) && said.contains("does not hold its share in time"), "{said}{errors}");
    assert!(errors.contains("node 5 is not there: start its process"), "{errors}");
    cluster.query(0, "CALL gannet_drain_node(1)");
    let (code, said, errors) = cluster.operate(&all, &["node", "add", "1", "--timeout=60s"]);
    assert!(code == Some(0) && said.contains("node 1 holds its share, 16 partitions"), "{errors}");
    assert_eq!(cluster.query(0, "SELECT count(drain) FROM gannet_nodes"), "0");
}
