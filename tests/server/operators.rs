//! What operators see of a change of the membership, and nodes that are stopped although rows would be lost.
//!
//! *Not here*: that nothing is lost, in `nodes.rs`.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use crate::nodes::{Plan, free_address, get, status};
use crate::process::Server;

/// Until a query has this answer.
fn until(node: &Server, query: &str, expected: &str) {
    let answers = (0..2_000).map(|_| node.query(query));
    let mut last = String::new();
    let is_there = answers.into_iter().any(|answer| {
        last = answer;
        last == expected
    });
    assert!(is_there, "{query}: {last} instead of {expected}");
}

/// The values of a measure at some addresses.
fn measured(addresses: &[String], name: &str) -> Vec<u64> {
    let value = |address: &String| {
        let text = get(address, "/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{node="));
        let value = line.and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.to_owned());
        value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    addresses.iter().map(value).collect()
}

#[test]
fn the_death_of_a_node_is_seen_in_status_metrics_and_log() {
    let plan = Plan::new("operators-death");
    let metrics: Vec<_> = (0..3).map(|_| free_address()).collect();
    let started: Vec<_> =
        (0..3).map(|node| plan.start(node, &["--metrics", &metrics[node]])).collect();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    nodes[0].query("CREATE TABLE town (id INTEGER PRIMARY KEY)");
    let own = |columns: &str| format!("SELECT {columns} FROM gannet_nodes WHERE node = 0");
    let losses = own("epoch, phase, losses_keeping_rows, losses_serving");
    until(&nodes[0], &losses, "1|active|2|1");
    let leaders = "SELECT count(*) FROM gannet_nodes WHERE leads";
    until(&nodes[0], leaders, "1");
    until(&nodes[0], "SELECT count(*) FROM gannet_nodes WHERE votes AND lease_ms > 0", "3");
    assert_eq!(measured(&metrics, "gannet_epoch"), [1, 1, 1]);
    assert_eq!(measured(&metrics, "gannet_membership_changes_total"), [0, 0, 0]);

    nodes[2].signal("KILL");
    nodes[2].wait();
    for node in [0, 1] {
        nodes[node].query(
            "INSERT INTO town SELECT n FROM generate_series(1, 20) n ON CONFLICT DO NOTHING",
        );
        until(&nodes[node], &losses, "2|active|1|0");
        until(&nodes[node], &format!("{leaders} AND node <> 2"), "1");
        until(&nodes[node], "SELECT count(*) FROM gannet_nodes WHERE lease_ms > 0", "2");
        assert_eq!(
            nodes[node].query("SELECT lease_ms FROM gannet_nodes WHERE state = 'gone'"),
            "0"
        );
        let (text, all_up) = status(&nodes[node]);
        let prospect =
            "of 2 nodes 1 can be lost, one after the other, without losing rows, and 0 while";
        assert!(!all_up && text.contains(prospect), "{text}");
        assert!(text.contains("epoch 2 of the membership is active; node "), "{text}");
    }
    let left = &metrics[..2];
    assert_eq!(measured(left, "gannet_epoch"), [2, 2]);
    assert_eq!(measured(left, "gannet_members"), [2, 2]);
    assert_eq!(measured(left, "gannet_membership_changes_total"), [1, 1]);
    let leaders = || measured(left, "gannet_manager_leader").iter().sum::<u64>();
    assert!((0..100).any(|_| leaders() == 1));
    assert!((0..100).any(|_| measured(left, "gannet_lease_held") == [1, 1]));
    for name in [
        "gannet_suspicions_total",
        "gannet_flushed_committed_total",
        "gannet_flushed_aborted_total",
    ] {
        assert_eq!(measured(left, name).len(), 2);
    }
    nodes.truncate(2);
    nodes.iter().for_each(|node| node.signal("TERM"));
    let mut logs = String::new();
    for node in &mut nodes {
        assert_eq!(node.wait().code(), Some(0));
        logs.push_str(&node.log());
    }
    for step in [
        "the removal of node 2",
        "all members have stopped for epoch 2",
        "records are flushed for epoch 2 in",
        "the leases of removed nodes are over for epoch 2",
        "epoch 2 is active",
        "all members work in epoch 2",
        "node 2 is removed, and epoch 2 is prepared",
        "epoch 2 begins",
    ] {
        assert!(logs.contains(step), "{step}: {logs}");
    }
}

#[test]
fn a_node_with_the_only_copy_of_rows_goes_at_the_second_signal() {
    let plan = Plan::new("operators-last-copy");
    let mut started: Vec<_> = (0..3).map(|node| plan.start(node, &["--replicas", "1"])).collect();
    let log = started[1].stderr.take().unwrap();
    let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
    nodes[1].query("CREATE TABLE town (id INTEGER PRIMARY KEY)");
    nodes[1].query("INSERT INTO town SELECT n FROM generate_series(1, 100) n");
    nodes[1].signal("TERM");
    // The log stays open: the node goes on writing to it.
    let mut lines = BufReader::new(log).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains("node 1 has the only copy of 5 of 16 partitions"));
    let line = line.expect("the node says why it goes on");
    assert!(line.contains("town") && line.contains("stop it again to lose them"), "{line}");
    assert!(nodes[1].is_running());
    for node in &nodes {
        assert_eq!(node.query("SELECT count(*) FROM town"), "100");
    }
    nodes[1].signal("INT");
    assert_eq!(nodes[1].wait().code(), Some(0));
    // The others go on without its rows.
    for node in [0, 2] {
        let error = nodes[node].failure("SELECT count(*) FROM town");
        assert!(error.contains("58030"), "{error}");
        let rows = (1..=30).map(|id| format!("DELETE FROM town WHERE id = {}", 50 * node + id));
        let deleted = rows.filter(|row| {
            let mut psql = nodes[node].psql();
            psql.args(["-c", row]).output().unwrap().status.success()
        });
        let kept = deleted.count();
        assert!((10..30).contains(&kept), "node {node} serves {kept} of 30 rows");
    }
    // All that are left are told, so none keeps its rows.
    [0, 2].iter().for_each(|node| nodes[*node].signal("TERM"));
    for node in [0, 2] {
        assert_eq!(nodes[node].wait().code(), Some(0));
    }
}

#[tokio::test]
async fn nodes_that_are_all_stopped_at_once_end_soon() {
    for replicas in ["1", "2", "3"] {
        let plan = Plan::new(&format!("operators-all-stopped-{replicas}"));
        let started: Vec<_> =
            (0..3).map(|node| plan.start(node, &["--replicas", replicas])).collect();
        let mut nodes: Vec<_> = started.into_iter().map(Server::listening).collect();
        let client = nodes[0].client().await;
        client.batch_execute("CREATE TABLE town (id INTEGER PRIMARY KEY)").await.unwrap();
        nodes.iter().for_each(|node| node.signal("TERM"));
        let ended = tokio::task::spawn_blocking(move || {
            let ended = nodes.iter_mut().map(|node| (node.wait().code(), node.log()));
            ended.collect::<Vec<_>>()
        });
        let ended = tokio::time::timeout(Duration::from_secs(15), ended).await;
        for (code, log) in ended.expect("all nodes have ended").unwrap() {
            assert!(code == Some(0) && !log.contains("has the only copy"), "{replicas}: {log}");
        }
    }
}
