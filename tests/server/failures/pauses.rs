//! Nodes that stand still: for longer than a lease, and for less.
//!
//! *Not here*: managers without a majority, in `majority`; what clients see of a node that is waited for, in `silent.rs`.

use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::failures::cluster::{Cluster, LONG_LEASE, PATIENCE, SHORT_LEASE, Site, pass};
use crate::failures::histories::{Summary, record};

/// Sessions of a node that stands still, each of which reads a row of its own.
const READERS: i32 = 12;
/// Far less than a long lease.
const SHORT_PAUSE: Duration = Duration::from_secs(1);
/// Longer than a long lease.
const LONG_SLEEP: Duration = Duration::from_secs(12);
/// Until the requests of readers have left.
const SENT: Duration = Duration::from_millis(200);

/// Reads rows at a node that stands still, whose sessions are there already, and lets it go on. Returns what was answered.
async fn read_at_zombie(cluster: &Cluster, node: usize, others_go_on: impl FnOnce()) -> Vec<i32> {
    let mut readers = Vec::new();
    for id in 0..READERS {
        let client = cluster.nodes[node].client().await;
        let statement = client.prepare("SELECT n FROM seen WHERE id = $1").await.unwrap();
        let row = client.query_one(&statement, &[&id]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 0);
        readers.push((client, statement, id));
    }
    cluster.signal(node, "STOP");
    others_go_on();
    let answers = readers.iter().map(|(client, statement, id)| async move {
        let row = client.query_one(statement, &[id]).await;
        row.ok().map(|row| row.get::<_, i32>(0))
    });
    let answers = futures_util::future::join_all(answers);
    let go_on = async {
        tokio::time::sleep(SENT).await;
        cluster.signal(node, "CONT");
    };
    let (answers, ()) = tokio::join!(timeout(PATIENCE, answers), go_on);
    let answers = answers.expect("a node that was removed answers its sessions, or ends them");
    answers.into_iter().flatten().collect()
}

/// The others remove it. It comes back as a zombie, which answers nothing that has changed since, and ends.
#[test]
fn a_node_that_stands_still_for_longer_than_its_lease_is_removed_and_ends() {
    let mut cluster = Cluster::start(Site::new("failures-zombie", 3), &[SHORT_LEASE]);
    let mut survivors = cluster.all();
    let mut victim = 0;
    record(&cluster, |clients| {
        let leader = cluster.leader(&survivors);
        victim = (leader + 1) % 3;
        survivors.remove(&victim);
        cluster.query(leader, "CREATE TABLE seen (id INT PRIMARY KEY, n INT)");
        let rows = format!("SELECT n, 0 FROM generate_series(0, {READERS} - 1) n");
        cluster.query(leader, &format!("INSERT INTO seen {rows}"));
        let answers = Runtime::new().unwrap().block_on(read_at_zombie(&cluster, victim, || {
            // The write needs the copies of the victim, until that is removed.
            cluster.query(leader, "UPDATE seen SET n = 1");
        }));
        assert!(answers.iter().all(|n| *n == 1), "stale reads: {answers:?}");
        clients.wait_for(&survivors, 20);
        clients.serving(&survivors)
    });
    cluster.ends_as_removed(victim);
    assert_eq!(cluster.settle(&survivors), survivors);
}

/// No session has broken, and nobody was suspected.
fn assert_all_stay(cluster: &Cluster, summary: &Summary) {
    assert_eq!(summary.broken, [0_u64; 3], "{summary:?}");
    for node in cluster.all() {
        let log = cluster.site.log(node);
        assert!(!log.contains("is suspected") && !cluster.site.was_removed(node), "{log}");
    }
}

#[test]
fn a_node_that_stands_still_for_less_than_its_lease_stays() {
    let cluster = Cluster::start(Site::new("failures-pause", 3), &[LONG_LEASE]);
    let summary = record(&cluster, |clients| {
        for node in cluster.all() {
            cluster.signal(node, "STOP");
            pass(SHORT_PAUSE);
            cluster.signal(node, "CONT");
            clients.wait_for(&cluster.all(), 20);
        }
        clients.serving(&cluster.all())
    });
    assert_all_stay(&cluster, &summary);
}

/// As on a host that sleeps: no node has heard another, so no node suspects another.
#[test]
fn nodes_that_all_stand_still_for_longer_than_their_leases_stay() {
    let cluster = Cluster::start(Site::new("failures-sleep", 3), &[LONG_LEASE]);
    let summary = record(&cluster, |clients| {
        for node in cluster.all() {
            cluster.signal(node, "STOP");
        }
        pass(LONG_SLEEP);
        for node in cluster.all() {
            cluster.signal(node, "CONT");
        }
        clients.wait_for(&cluster.all(), 20);
        clients.serving(&cluster.all())
    });
    assert_all_stay(&cluster, &summary);
}
