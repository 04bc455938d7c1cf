//! Partitions whose copies are all gone: what needs their rows ends with an error that says so, and everything else goes on.
//!
//! ```text
//! 3 nodes, 2 copies ─ one that does not decide is killed ─ the other that does not decide is killed ─ a third of the rows is lost
//! ```
//! *Not here*: nodes that are stopped although rows would be lost, in `operators`.

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
        awaited(&begun, || cluster.site.log(leader).contains(&begun).then_some(()));
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
