//! Processes that want to be a node that is there, or was: they are refused with the reason, and disturb nobody.
//!
//! *Not here*: members whose settings do not fit, before the cluster has begun, in `nodes.rs`.

use crate::failures::cluster::{Cluster, LONG_LEASE, SHORT_LEASE, Site, awaited};
use crate::failures::histories::record;

#[test]
fn a_second_process_of_a_living_node_is_refused_and_disturbs_nobody() {
    let cluster = Cluster::start(Site::new("failures-second", 3), &[LONG_LEASE]);
    let all = cluster.all();
    let summary = record(&cluster, |clients| {
        for node in all.iter().copied() {
            for arguments in [&[LONG_LEASE][..], &[LONG_LEASE, "--cluster-name=other"]] {
                let error = cluster.site.failure(node, arguments);
                assert!(error.contains("in use"), "{error}");
            }
            // One that stands still lives, too.
            cluster.signal(node, "STOP");
            let error = cluster.site.failure(node, &[LONG_LEASE]);
            cluster.signal(node, "CONT");
            assert!(error.contains("in use"), "{error}");
        }
        clients.wait_for(&all, 20);
        clients.serving(&all)
    });
    assert_eq!(summary.broken, [0_u64; 3], "{summary:?}");
}

#[test]
fn a_process_in_the_place_of_a_dead_one_is_refused() {
    let mut cluster = Cluster::start(Site::new("failures-restart", 3), &[SHORT_LEASE]);
    let mut survivors = cluster.all();
    let summary = record(&cluster, |clients| {
        let dead = (cluster.leader(&survivors) + 1) % 3;
        survivors.remove(&dead);
        cluster.kill(dead);
        // Once the others have noticed, and perhaps before.
        for _ in 0..2 {
            let error = awaited("the dead process has given up its port", || {
                let error = cluster.site.failure(dead, &[SHORT_LEASE]);
                (!error.contains("in use")).then_some(error)
            });
            assert!(error.contains(&format!("node {dead} has been here before")), "{error}");
            assert!(error.contains("cannot come back yet"), "{error}");
            let other = [SHORT_LEASE, "--cluster-name=other"];
            let error = cluster.site.failure(dead, &other);
            assert!(error.contains("cluster name: node"), "{error}");
            clients.wait_for(&survivors, 20);
        }
        clients.serving(&survivors)
    });
    assert!(survivors.iter().all(|node| summary.broken[*node] == 0), "{summary:?}");
    assert_eq!(cluster.settle(&survivors), survivors);
}

/// The rows are gone with the processes. What the managers' directories say of them is no cluster any more.
#[test]
fn a_cluster_whose_processes_have_all_ended_begins_anew_only_when_told() {
    let begin_anew = "--begin-anew";
    let site = Site::new("failures-anew", 3);
    let folders: Vec<_> = (0..3)
        .map(|node| format!("--manager-data={}", site.path(&format!("manager-{node}")).display()))
        .collect();
    let of_node = |node: usize| vec![LONG_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    cluster.query(0, "CREATE TABLE town (id INT PRIMARY KEY)");
    cluster.query(1, "INSERT INTO town VALUES (7)");
    // A process of another cluster may not use the directory of one that lives.
    let elsewhere = Site::new("failures-anew-elsewhere", 3);
    for arguments in [&[folders[0].as_str()][..], &[folders[0].as_str(), begin_anew]] {
        let error = elsewhere.failure(0, arguments);
        assert!(error.contains("is in use; end the process that uses it"), "{error}");
    }
    assert_eq!(cluster.query(2, "SELECT id FROM town"), "7");
    for signal in ["STOP", "KILL"] {
        (0..3).for_each(|node| cluster.signal(node, signal));
    }
    cluster.nodes.drain(..).for_each(|mut node| {
        node.wait();
    });
    for (node, folder) in folders.iter().enumerate() {
        let error = cluster.site.failure(node, &[LONG_LEASE, folder.as_str()]);
        assert!(error.contains("is of an earlier run of the cluster"), "{error}");
        assert!(error.contains("begin anew with --begin-anew"), "{error}");
    }
    let Cluster { site, .. } = cluster;
    let cluster =
        Cluster::start_each(site, |node| [of_node(node), vec![begin_anew.to_owned()]].concat());
    let error = cluster.attempt(0, &["SELECT id FROM town"]).unwrap_err();
    assert!(error.contains("42P01"), "{error}");
    cluster.query(1, "CREATE TABLE town (id INT PRIMARY KEY)");
    assert_eq!(cluster.query(2, "SELECT count(*) FROM town"), "0");
}
