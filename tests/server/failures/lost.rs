//! Partitions whose copies are all gone: what needs their rows ends with an error that says so, and everything else goes on.
//!
//! ```text
//! 3 nodes, 2 copies ─ one that does not decide is killed ─ the other that does not decide is killed ─ a third of the rows is lost
//! ```
//! *Not here*: nodes that are stopped although rows would be lost, in `operators`.

use std::collections::BTreeSet;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited};

/// Keys that are looked up one by one: enough for some in each partition's third.
const KEYS: u32 = 30;

#[test]
fn keys_of_partitions_without_a_copy_are_lost_and_the_others_go_on() {
    let cluster = Cluster::start(Site::new("failures-lost", 3), &[SHORT_LEASE, "--replicas=2"]);
    cluster.query(0, "CREATE TABLE town (id INTEGER PRIMARY KEY, n INTEGER)");
    cluster.query(0, &format!("INSERT INTO town SELECT n, n FROM generate_series(1, {KEYS}) n"));
    // Now every node knows the table.
    for node in cluster.all() {
        assert_eq!(cluster.query(node, "SELECT count(*) FROM town"), KEYS.to_string());
    }
    let leader = cluster.leader(&cluster.all());
    let victims = cluster.all().into_iter().filter(|node| *node != leader);
    for (victim, epoch) in victims.zip(2..) {
        cluster.kill(victim);
        let begun = format!("all members work in epoch {epoch}");
        awaited(&begun, || cluster.logs().contains(&begun).then_some(()));
        // Of two nodes one votes: the last goes on alone.
        let voters = "SELECT count(*) FROM gannet_nodes WHERE votes AND state = 'up'";
        awaited("the one that decides votes alone", || {
            (cluster.query(leader, voters) == "1").then_some(())
        });
    }
    let (mut kept, mut lost) = (Vec::new(), 0);
    for key in 1..=KEYS {
        match cluster.attempt(leader, &[&format!("SELECT n FROM town WHERE id = {key}")]) {
            Ok(n) => {
                assert_eq!(n, key.to_string());
                kept.push(key);
            }
            Err(error) => {
                assert!(error.contains("58030") && error.contains("are lost"), "{key}: {error}");
                lost += 1;
            }
        }
    }
    assert!(!kept.is_empty() && lost > 0, "{kept:?} are kept and {lost} lost");
    let key = kept[0];
    cluster.query(leader, &format!("UPDATE town SET n = 0 WHERE id = {key}"));
    assert_eq!(cluster.query(leader, &format!("SELECT n FROM town WHERE id = {key}")), "0");
    // What needs all partitions: a scan, and definitions.
    for statement in
        ["SELECT count(*) FROM town", "CREATE TABLE other (id INTEGER)", "DROP TABLE town"]
    {
        let error = cluster.attempt(leader, &[statement]).unwrap_err();
        assert!(error.contains("58030"), "{statement}: {error}");
    }
    assert!(cluster.site.log(leader).contains("partitions are lost"));
}

/// With one copy of each row, the loss of a node takes its third of the rows, and nothing else: the others write on.
#[test]
fn with_one_copy_a_loss_takes_its_own_rows_alone() {
    let cluster = Cluster::start(Site::new("failures-lost-one", 3), &[SHORT_LEASE, "--replicas=1"]);
    cluster.query(0, "CREATE TABLE town (id INTEGER PRIMARY KEY, n INTEGER)");
    cluster.query(0, &format!("INSERT INTO town SELECT n, n FROM generate_series(1, {KEYS}) n"));
    for node in cluster.all() {
        assert_eq!(cluster.query(node, "SELECT count(*) FROM town"), KEYS.to_string());
    }
    let error = cluster.attempt(0, &["CALL gannet_restart_node(1)"]).unwrap_err();
    assert!(error.contains("55000") && error.contains("node 1 has the only copy of"), "{error}");
    let leader = cluster.leader(&cluster.all());
    let dead = (leader + 1) % 3;
    cluster.kill(dead);
    let left: Vec<_> = cluster.all().into_iter().filter(|node| *node != dead).collect();
    for node in &left {
        awaited("the node works in the next epoch", || {
            let epoch = "SELECT max(epoch) FROM gannet_nodes";
            (cluster.query(*node, epoch) == "2").then_some(())
        });
    }
    let mut lost = 0;
    for (key, node) in (1..=KEYS).zip(left.iter().cycle()) {
        let update = format!("UPDATE town SET n = n + 1 WHERE id = {key}");
        match cluster.attempt(*node, &[&update]) {
            Ok(_) => {
                let read = format!("SELECT n FROM town WHERE id = {key}");
                let found = left.iter().map(|node| cluster.query(*node, &read));
                assert!(found.into_iter().all(|n| n == (key + 1).to_string()), "{key}");
            }
            Err(error) => {
                assert!(error.contains("58030") && error.contains("are lost"), "{key}: {error}");
                lost += 1;
            }
        }
    }
    // A third of the partitions, whatever share of the keys lies there.
    assert!((1..KEYS).contains(&lost), "{lost} of {KEYS} keys are lost");
    let copied = "SELECT count(DISTINCT partition) FROM gannet_copies";
    let copied: u32 = cluster.query(leader, copied).parse().unwrap();
    assert!((10..=11).contains(&copied), "{copied} of 16 partitions have a copy");
}

/// A node with the last copy of some rows is silent, so the other waits for it; an operator gives the rows up.
#[test]
fn a_silent_node_with_the_last_copy_goes_when_an_operator_says_so() {
    let arguments = [SHORT_LEASE, "--replicas=2", "--copies-after=1h"];
    let mut cluster = Cluster::start(Site::new("failures-lost-removed", 3), &arguments);
    cluster.query(0, "CREATE TABLE town (id INTEGER PRIMARY KEY, n INTEGER)");
    cluster.query(0, &format!("INSERT INTO town SELECT n, n FROM generate_series(1, {KEYS}) n"));
    for node in cluster.all() {
        assert_eq!(cluster.query(node, "SELECT count(*) FROM town"), KEYS.to_string());
    }
    let leader = cluster.leader(&cluster.all());
    let alone = BTreeSet::from([leader]);
    let mut victims = cluster.all().into_iter().filter(|node| *node != leader);
    let (killed, silent) = (victims.next().unwrap(), victims.next().unwrap());
    cluster.kill(killed);
    let voters = "SELECT count(*) FROM gannet_nodes WHERE votes AND state = 'up'";
    awaited("the one that decides votes alone", || {
        (cluster.query(leader, voters) == "1").then_some(())
    });
    let number = silent.to_string();
    let remove = ["node", "remove", &number];
    let (code, _, errors) = cluster.operate(&alone, &remove);
    assert!(code == Some(2) && errors.contains("runs"), "{errors}");
    cluster.signal(silent, "STOP");
    let waited_for = format!("node {silent} is not removed, and is waited for");
    awaited(&waited_for, || cluster.site.log(leader).contains(&waited_for).then_some(()));
    awaited("rows would be lost", || {
        let (code, _, errors) = cluster.operate(&alone, &remove);
        assert_eq!(code, Some(2), "{errors}");
        errors.contains("has the only copy of partition").then_some(())
    });
    // This waits for the silent node; the removal does not wait for this.
    let asks = std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let drain = ["node", "drain", &number, "--timeout=20s"];
            cluster.operate(&alone, &drain)
        });
        let (code, said, errors) =
            cluster.operate(&alone, &[&remove[..], &["--lose-rows"]].concat());
        assert_eq!(code, Some(0), "{said}{errors}");
        asks.join().unwrap()
    });
    assert_ne!(asks.0, Some(0), "{asks:?}");
    let lost = (1..=KEYS).filter(|key| {
        let select = format!("SELECT n FROM town WHERE id = {key}");
        match cluster.attempt(leader, &[&select]) {
            Ok(n) => n != key.to_string(),
            Err(error) => {
                assert!(error.contains("58030"), "{error}");
                true
            }
        }
    });
    let lost = lost.count();
    assert!(lost > 0 && lost < KEYS as usize, "{lost} of {KEYS} are lost");
    cluster.signal(silent, "CONT");
    cluster.ends_as_removed(silent);
}
