//! The manager without a majority: nobody renews leases, so nothing is answered until the majority is back.

use std::collections::BTreeSet;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited};
use crate::failures::histories::record;

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
