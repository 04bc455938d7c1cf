//! The manager without a majority: nobody renews leases, so nothing is answered until the majority is back. Its processes may have stood still,
//! or have ended and come back with their directories.

use std::collections::BTreeSet;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited};
use crate::failures::histories::record;
use crate::failures::restarts::manager_data;
use crate::process::Server;

/// Enough for statements that need no majority.
const TIMEOUT: &str = "SET statement_timeout = '1s'";
const READ: &str = "SELECT min(n), max(n) FROM kept";

/// Two of three nodes stand still: first those that only follow, then the one that decides with another.
#[test]
fn without_a_majority_of_managers_nothing_is_answered_until_it_is_back() {
    for leader_stays in [true, false] {
        lose_majority(leader_stays);
    }
}

fn lose_majority(leader_stays: bool) {
    let mut cluster = Cluster::start(Site::new("failures-majority", 3), &[SHORT_LEASE]);
    let all = cluster.all();
    record(&cluster, |clients| {
        let leader = cluster.leader(&all);
        let left = if leader_stays { leader } else { (leader + 1) % 3 };
        cluster.query(left, "CREATE TABLE kept (id INT PRIMARY KEY, n INT)");
        cluster.query(left, "INSERT INTO kept SELECT n, 1 FROM generate_series(1, 30) n");
        let away: BTreeSet<_> = all.iter().copied().filter(|node| *node != left).collect();
        away.iter().for_each(|node| cluster.signal(*node, "STOP"));
        awaited("reads stop", || match cluster.attempt(left, &[TIMEOUT, READ]) {
            Ok(found) => {
                assert_eq!(found, "1|1", "within the lease nothing has changed");
                None
            }
            Err(_) => Some(()),
        });
        let committed = clients.committed(left);
        for statement in [READ, "UPDATE kept SET n = 2", READ] {
            let answer = cluster.attempt(left, &[TIMEOUT, statement]);
            assert!(answer.is_err(), "{statement} was answered without a majority: {answer:?}");
        }
        assert_eq!(clients.committed(left), committed, "commits without a majority");
        away.iter().for_each(|node| cluster.signal(*node, "CONT"));
        let serving = clients.serving(&all);
        // Nobody was told what became of the update.
        let found = cluster.query(serving, READ);
        assert!(["1|1", "2|2"].contains(&found.as_str()), "{found}");
        cluster.query(serving, "UPDATE kept SET n = 3");
        for node in &all {
            // One that was removed meanwhile answers nothing.
            let found = cluster.attempt(*node, &["SET statement_timeout = '5s'", READ]);
            assert!(found.is_err() || found == Ok("3|3".to_owned()), "node {node}: {found:?}");
        }
        assert_eq!(cluster.query(serving, READ), "3|3");
        clients.wait_for_some(20);
        serving
    });
    assert!(!cluster.settle(&all).is_empty());
}

/// The processes of two of three nodes end at once: first those that only follow, then the one that decides with another. Each is started again
/// by the same command. Nothing that was acknowledged is lost.
#[test]
fn a_majority_whose_processes_have_ended_comes_back() {
    for leader_stays in [true, false] {
        let name = format!("failures-majority-ended-{leader_stays}");
        end_majority(Site::new(&name, 3), leader_stays);
    }
}

fn end_majority(site: Site, leader_stays: bool) {
    let folders = manager_data(&site);
    let of_node = |node: usize| vec![SHORT_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    let leader = cluster.leader(&cluster.all());
    let left = if leader_stays { leader } else { (leader + 1) % 3 };
    let survivors = BTreeSet::from([left]);
    let dead: Vec<_> = cluster.all().into_iter().filter(|node| *node != left).collect();
    cluster.query(left, "CREATE TABLE kept (id INT PRIMARY KEY, n INT)");
    cluster.query(left, "INSERT INTO kept SELECT n, 1 FROM generate_series(1, 30) n");
    let mut back = Vec::new();
    let summary = record(&cluster, |clients| {
        clients.wait_for(&cluster.all(), 20);
        for signal in ["STOP", "KILL"] {
            dead.iter().for_each(|node| cluster.signal(*node, signal));
        }
        awaited("reads stop", || cluster.attempt(left, &[TIMEOUT, READ]).err().map(drop));
        let committed = clients.committed(left);
        for node in &dead {
            let arguments = of_node(*node);
            let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
            back.push(Server::listening(cluster.site.start(*node, &arguments)));
            if back.len() == 1 {
                assert_eq!(cluster.query(left, READ), "1|1");
                awaited("commits go on", || (clients.committed(left) > committed).then_some(()));
            }
        }
        assert_eq!(cluster.healthy(&survivors, "60s"), (true, String::new()));
        clients.wait_for(&survivors, 20);
        clients.serving(&survivors)
    });
    assert!(summary.committed > 0, "{summary:?}");
    for (node, process) in dead.into_iter().zip(back) {
        drop(std::mem::replace(&mut cluster.nodes[node], process));
    }
    for node in cluster.all() {
        assert_eq!(cluster.query(node, READ), "1|1", "at node {node}");
        cluster.query(node, "UPDATE kept SET n = n");
        let log = cluster.site.log(node);
        assert_eq!(log.contains("votes as the one before it"), node != left, "node {node}: {log}");
    }
}

/// Of two nodes one decides alone. Its process ends, and comes back with what it has decided: it has the other one decide.
#[test]
fn the_only_one_that_decides_comes_back() {
    let site = Site::new("failures-decider-ended", 2);
    let folder = format!("--manager-data={}", site.path("manager").display());
    let of_node = |node: usize| {
        [SHORT_LEASE, &folder][..2 - node].iter().map(|it| (*it).to_owned()).collect()
    };
    let mut cluster = Cluster::start_each(site, of_node);
    cluster.query(1, "CREATE TABLE kept (id INT PRIMARY KEY, n INT)");
    cluster.query(1, "INSERT INTO kept SELECT n, 1 FROM generate_series(1, 30) n");
    cluster.kill(0);
    awaited("reads stop", || cluster.attempt(1, &[TIMEOUT, READ]).err().map(drop));
    let process = Server::listening(cluster.site.start(0, &[SHORT_LEASE, &folder]));
    drop(std::mem::replace(&mut cluster.nodes[0], process));
    assert_eq!(cluster.healthy(&cluster.all(), "60s"), (true, String::new()));
    for node in cluster.all() {
        assert_eq!(cluster.query(node, READ), "1|1", "at node {node}");
        cluster.query(node, "UPDATE kept SET n = n");
    }
}
