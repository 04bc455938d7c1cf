//! Work that takes several transactions, while another node is killed: COPY, and the build of an index.
//!
//! *Not here*: the death of the node that does the work (`frontend`, `execute/unfinished`).

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use crate::failures::cluster::{Cluster, SHORT_LEASE, Site, awaited, pass};

const ROWS: u32 = 100_000;
/// Until a build is under way.
const BUILDS: Duration = Duration::from_millis(100);

#[test]
fn copy_and_a_build_go_on_when_another_node_is_killed() {
    let cluster = Cluster::start(Site::new("failures-batches", 4), &[SHORT_LEASE]);
    cluster.query(0, "CREATE TABLE t (id INT PRIMARY KEY, u INT)");
    let path = cluster.site.path("rows.csv");
    let rows = (0..ROWS).fold(String::new(), |mut rows, id| {
        writeln!(rows, "{id},{}", id * 7).unwrap();
        rows
    });
    fs::write(&path, rows).unwrap();
    let copy = format!("\\copy t FROM '{}' CSV", path.display());
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| cluster.query(0, &copy));
        awaited("rows are there", || {
            (cluster.query(1, "SELECT count(*) FROM t") != "0").then_some(())
        });
        cluster.kill(3);
        copying.join().unwrap();
    });
    assert_eq!(cluster.query(1, "SELECT count(*) FROM t"), ROWS.to_string());
    std::thread::scope(|scope| {
        let building = scope.spawn(|| cluster.query(0, "CREATE INDEX i ON t (u)"));
        pass(BUILDS);
        cluster.kill(2);
        building.join().unwrap();
    });
    let by_index = "SELECT id FROM t WHERE u = 5439";
    let plan = cluster.query(1, &format!("EXPLAIN {by_index}"));
    assert!(plan.contains("Index"), "{plan}");
    assert_eq!(cluster.query(1, by_index), "777");
    let found = cluster.query(1, "SELECT count(*) FROM t WHERE u >= 0");
    assert_eq!(found, ROWS.to_string());
}
