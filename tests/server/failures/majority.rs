//! The manager without a majority: nobody renews leases, so nothing is answered until the majority is back. Its processes may
//! have stood still, or have ended and come back with their directories, or have been given up by an operator.
//!
//! The tests stop or kill one to three of up to five real processes on this host. A test fails if a
//! statement is answered without a majority, if an acknowledged row is lost, if a history is not
//! strictly serializable, or if a majority that lives is given up.
//!
//! *Source*: `docs/protocol.md`, "A majority that comes back" and "A majority that is given up".
//! *Not here*: pauses that leave a majority (`pauses.rs`).

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

/// Inserts rows, and chooses the node of three that is to be left, and those that are to end.
fn with_rows(cluster: &Cluster, leader_stays: bool) -> (usize, Vec<usize>) {
    let leader = cluster.leader(&cluster.all());
    let left = if leader_stays { leader } else { (leader + 1) % 3 };
    cluster.query(left, "CREATE TABLE kept (id INT PRIMARY KEY, n INT)");
    cluster.query(left, "INSERT INTO kept SELECT n, 1 FROM generate_series(1, 30) n");
    (left, cluster.all().into_iter().filter(|node| *node != left).collect())
}

/// What a node reads when it has a lease again. A statement that has waited for one for long is refused.
fn read_again(cluster: &Cluster, node: usize) -> String {
    awaited("reads go on", || cluster.attempt(node, &[READ]).ok())
}

fn end_majority(site: Site, leader_stays: bool) {
    let folders = manager_data(&site);
    let of_node = |node: usize| vec![SHORT_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    let (left, dead) = with_rows(&cluster, leader_stays);
    let survivors = BTreeSet::from([left]);
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
                assert_eq!(read_again(&cluster, left), "1|1");
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

/// The processes of two of three nodes end for ever, and their disks with them. An operator gives them up: the third goes on with all that was
/// acknowledged, and two new machines take the places of the others.
#[test]
fn a_majority_that_is_gone_for_ever_is_given_up() {
    for leader_stays in [true, false] {
        let name = format!("failures-majority-given-up-{leader_stays}");
        give_up_majority(Site::new(&name, 3), leader_stays);
    }
}

fn give_up_majority(site: Site, leader_stays: bool) {
    let folders = manager_data(&site);
    let of_node = |node: usize| vec![SHORT_LEASE.to_owned(), folders[node].clone()];
    let mut cluster = Cluster::start_each(site, of_node);
    let (left, dead) = with_rows(&cluster, leader_stays);
    let survivors = BTreeSet::from([left]);
    let numbers: Vec<_> = dead.iter().map(ToString::to_string).collect();
    let give_up = |cluster: &Cluster, nodes: &[String]| {
        let nodes = nodes.iter().map(String::as_str);
        let command: Vec<_> = ["node", "give-up"].into_iter().chain(nodes).collect();
        cluster.operate(&survivors, &command)
    };
    let refused = |cluster: &Cluster, nodes: &[String], why: &str| {
        let (code, _, errors) = give_up(cluster, nodes);
        assert!(code == Some(2) && errors.contains(why), "{code:?} {errors}");
    };
    let summary = record(&cluster, |clients| {
        clients.wait_for(&cluster.all(), 20);
        refused(&cluster, &numbers, "is heard by node");
        for signal in ["STOP", "KILL"] {
            dead.iter().for_each(|node| cluster.signal(*node, signal));
        }
        awaited("reads stop", || cluster.attempt(left, &[TIMEOUT, READ]).err().map(drop));
        let committed = clients.committed(left);
        refused(&cluster, &numbers[..1], "a majority of them is left");
        refused(
            &cluster,
            &[numbers.clone(), vec![left.to_string()]].concat(),
            "is the one that is asked",
        );
        refused(&cluster, &["9".to_owned()], "node 9 is no member");
        awaited("the majority is given up", || {
            let (code, _, errors) = give_up(&cluster, &numbers);
            assert!(code == Some(0) || errors.contains("is heard by node"), "{code:?} {errors}");
            (code == Some(0)).then_some(())
        });
        assert_eq!(read_again(&cluster, left), "1|1");
        awaited("commits go on", || (clients.committed(left) > committed).then_some(()));
        refused(&cluster, &numbers, "is no member");
        clients.wait_for(&survivors, 20);
        clients.serving(&survivors)
    });
    assert!(summary.committed > 0, "{summary:?}");
    let given_up = "SELECT node FROM gannet_nodes WHERE given_up IS NOT NULL ORDER BY node";
    assert_eq!(cluster.query(left, given_up), numbers.join("\n"));
    let (_, status, _) = cluster.operate(&survivors, &["status"]);
    let said = format!("an operator has given up nodes {}", numbers.join(", "));
    assert!(status.contains(&said), "{status}");
    // The machines that take their places have empty disks.
    for node in &dead {
        let folder = folders[*node].replace("--manager-data=", "");
        std::fs::remove_dir_all(folder).unwrap();
        let arguments = of_node(*node);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let back = Server::listening(cluster.site.start(*node, &arguments));
        drop(std::mem::replace(&mut cluster.nodes[*node], back));
    }
    assert_eq!(cluster.healthy(&survivors, "60s"), (true, String::new()));
    for node in cluster.all() {
        assert_eq!(cluster.query(node, READ), "1|1", "at node {node}");
        cluster.query(node, "UPDATE kept SET n = n");
        assert_eq!(cluster.query(node, given_up), numbers.join("\n"), "at node {node}");
    }
}

/// Three of five are gone for ever. Of the two that are left, the one that has heard of more decides.
#[test]
fn of_those_that_are_left_one_that_knows_all_decides() {
    let site = Site::new("failures-majority-two-left", 5);
    let folder = |node: usize| site.path(&format!("manager-{node}")).display().to_string();
    let folders: Vec<_> = (0..5).map(|node| format!("--manager-data={}", folder(node))).collect();
    let of_node =
        |node: usize| vec![SHORT_LEASE.into(), "--replicas=5".into(), folders[node].clone()];
    let cluster = Cluster::start_each(site, of_node);
    cluster.query(0, "CREATE TABLE kept (id INT PRIMARY KEY, n INT)");
    cluster.query(0, "INSERT INTO kept SELECT n, 1 FROM generate_series(1, 30) n");
    [0, 2, 4].iter().for_each(|node| cluster.kill(*node));
    let give_up = |node: usize, nodes: &[&str]| {
        let command = [&["node", "give-up"][..], nodes].concat();
        let (code, _, errors) = cluster.operate(&[node].into(), &command);
        (code == Some(0), errors)
    };
    let at = awaited("the majority is given up", || {
        [1, 3].into_iter().find(|node| {
            let (is_done, errors) = give_up(*node, &["0", "2", "4"]);
            let is_refused = errors.contains("is heard by node") || errors.contains("ask that one");
            assert!(is_done || is_refused, "{errors}");
            is_done
        })
    });
    let (_, errors) = give_up(at, &[&(4 - at).to_string()]);
    assert!(
        errors.contains("a majority of them is left") || errors.contains("is heard by"),
        "{errors}"
    );
    for node in [1, 3] {
        assert_eq!(cluster.query(node, READ), "1|1", "at node {node}");
        cluster.query(node, "UPDATE kept SET n = n");
    }
}
