//! Nodes that nobody has named at the start: they name some members, which tell them the rest.
//!
//! A fourth process joins three others on this host, and processes with new addresses take the places of killed ones. A test
//! fails if a node gets no share of the copies, if a partition has two copies in one zone without need, if a row is lost, or if
//! a process that cannot join is not told the reason.
//!
//! *Source*: `docs/protocol.md`, "Nodes that are added". *Not here*: processes at the address of their
//! predecessor (`restarts.rs`).

use std::collections::BTreeSet;
use std::mem::replace;

use crate::failures::cluster::{BEYOND_LEASE, Cluster, SHORT_LEASE, Site, awaited, pass};
use crate::nodes::{free_address, write_key};
use crate::process::Server;

/// A row for each partition that has two copies in one zone although there are more zones.
const CROWDED: &str = "SELECT c.partition FROM gannet_copies c JOIN gannet_nodes n ON c.node = n.node \
                       GROUP BY c.partition HAVING count(DISTINCT n.zone) < 3";

/// Joins a node, which names these members.
fn join(cluster: &Cluster, node: usize, named: &[&str], zone: &str) -> (Server, String) {
    let address = free_address();
    let (own, others) = (format!("--address={address}"), format!("--join={}", named.join(",")));
    let zone = format!("--zone={zone}");
    let server = Server::listening(cluster.site.start_joining(node, &[&own, &others, &zone]));
    (server, address)
}

#[test]
fn nodes_join_at_addresses_of_their_own_and_machines_are_replaced() {
    let zones = |node: usize| vec![SHORT_LEASE.to_owned(), format!("--zone=rack-{}", node.min(1))];
    let mut cluster = Cluster::start_each(Site::new("failures-joins", 3), zones);
    cluster.query(0, "CREATE TABLE town (id INT PRIMARY KEY, name TEXT)");
    cluster.query(0, "INSERT INTO town SELECT n, 'town ' || n FROM generate_series(1, 1000) n");
    assert_eq!(
        cluster.query(0, "SELECT count(*) FROM gannet_nodes"),
        "3",
        "of sixteen that may be"
    );
    let all_healthy = |cluster: &Cluster, nodes: &[usize]| {
        let nodes: BTreeSet<_> = nodes.iter().copied().collect();
        assert_eq!(cluster.healthy(&nodes, "60s"), (true, String::new()));
    };
    // Of the members that it names one lives.
    let dead = free_address();
    let (third, third_address) = join(&cluster, 3, &[&dead, cluster.site.member(2)], "rack-2");
    cluster.nodes.push(third);
    awaited("node 3 holds its share", || {
        let held = "SELECT count(*) FROM gannet_copies WHERE node = 3";
        (cluster.query(0, held) == "16").then_some(())
    });
    all_healthy(&cluster, &[0, 3]);
    assert_eq!(cluster.query(3, CROWDED), "", "each partition is in all of three racks");
    // The machine of node 1 is replaced, and then that of node 0, which was the first of all.
    let mut place = third_address.clone();
    for node in [1, 0] {
        cluster.kill(node);
        let named = [place.clone()];
        let (back, address) = join(&cluster, node, &[&named[0]], &format!("rack-{}", node.min(1)));
        let mut before = replace(&mut cluster.nodes[node], back);
        before.wait();
        let seen = |at: usize| {
            let of =
                format!("SELECT address FROM gannet_nodes WHERE node = {node} AND state = 'up'");
            cluster.query(at, &of) == address
        };
        awaited("all know where the node is", || (0..4).all(seen).then_some(()));
        all_healthy(&cluster, &[0, 1, 2, 3]);
        place = address;
        if node == 1 {
            // One that was named at the start comes back by its first command, which has an old address of node 1.
            cluster.kill(2);
            let back = cluster.site.start(2, &[SHORT_LEASE, "--zone=rack-1"]);
            replace(&mut cluster.nodes[2], Server::listening(back)).wait();
            all_healthy(&cluster, &[0, 1, 2, 3]);
        }
    }
    // It comes back by the same command, as a node that was named at the start.
    cluster.kill(3);
    let (own, others) = (format!("--address={third_address}"), format!("--join={dead},{place}"));
    let back = cluster.site.start_joining(3, &[&own, &others, "--zone=rack-2"]);
    replace(&mut cluster.nodes[3], Server::listening(back)).wait();
    all_healthy(&cluster, &[0, 1, 2, 3]);
    for node in 0..4 {
        assert_eq!(cluster.query(node, "SELECT count(*), sum(id) FROM town"), "1000|500500");
        assert_eq!(cluster.query(node, CROWDED), "");
    }
}

#[test]
fn what_cannot_join_is_told_why() {
    let cluster = Cluster::start(Site::new("failures-joins-refused", 3), &[SHORT_LEASE]);
    let named = format!("--join={}", cluster.site.member(0));
    let own = format!("--address={}", free_address());
    let refused = |node: usize, arguments: &[&str]| {
        let short = ["--join-timeout=3s"];
        cluster.site.failure_of_joining(node, &[arguments, &short].concat())
    };
    let error = refused(3, &[&named]);
    assert!(error.contains("join needs node and address"), "{error}");
    let error = refused(3, &[&named, &own, "--threads=1"]);
    assert!(error.contains("told by the members") && error.contains("leave them out"), "{error}");
    let error = refused(99, &[&named, &own]);
    assert!(error.contains("99") && error.contains("of at most 16"), "{error}");
    let error = refused(1, &[&named, &own]);
    assert!(error.contains("the process before it is a member still"), "{error}");
    let nobody = format!("--join={}", free_address());
    let error = refused(3, &[&nobody, &own]);
    assert!(error.contains("no member of a cluster has answered in 3 s"), "{error}");
    let overlapping = format!("--address={}", cluster.site.member(2));
    let error = refused(3, &[&named, &overlapping]);
    assert!(error.contains("share a port"), "{error}");
    let stranger = Site::new("failures-joins-stranger", 0);
    write_key(&stranger.path("cluster.key"), '8');
    let error = stranger.failure_of_joining(3, &[&named, &own]);
    assert!(error.contains("another key"), "{error}");
    // Two that nobody has begun a cluster with do not begin one, whatever they name.
    let (first, second) = (free_address(), free_address());
    let alone = |node, own: &str, other: &str| {
        refused(node, &[&format!("--address={own}"), &format!("--join={other}")])
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| alone(1, &second, &first));
        assert!(alone(0, &first, &second).contains("no member of a cluster has answered"));
        assert!(other.join().unwrap().contains("no member of a cluster has answered"));
    });
    pass(BEYOND_LEASE);
    assert_eq!(cluster.query(0, "SELECT count(*) FROM gannet_nodes WHERE state = 'up'"), "3");
}
