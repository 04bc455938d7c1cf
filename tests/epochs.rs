//! What was read in one epoch is not validated in the next: the index of another copy can have had fewer changes, so that its numbers of
//! new keys are those of old ones at the copy that was scanned.
//!
//! | removed | noticed by |
//! |---|---|
//! | reads of one epoch are not validated in another | a transaction commits that has missed two rows |
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Bound;

use gannet::{
    Abort, Change, Cluster, ClusterOptions, Conflict, Coordinator, Deferred, Direction, KeyRange,
    Outcome, WorkerId,
};

/// It has no copy at first.
const AT: WorkerId = WorkerId { node: 3, worker: 0 };

/// Scans a table at its primary, which is lost afterwards. Another transaction adds two rows in the next epoch. How the first one ends,
/// and what it ends with when it is run again.
fn scanned_before_a_loss() -> [Result<(), Abort>; 2] {
    let options = ClusterOptions {
        nodes: 4,
        threads: 1,
        partitions: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_ordered_table("t", 100).unwrap();
    let run = |job: fn(&mut Coordinator<'_>, &mut Deferred, _) -> Result<(), Abort>| {
        let job = move |coordinator: &mut Coordinator<'_>| {
            let mut deferred = Deferred::new();
            job(coordinator, &mut deferred, table)?;
            deferred.commit(coordinator)
        };
        cluster.spawn(AT, job).unwrap().wait().unwrap()
    };
    let add = move |coordinator: &mut Coordinator<'_>, key: &str| {
        let outcome = coordinator.run(|tx| {
            tx.add_row_to_write_set(table, key.as_bytes(), Change::Insert(b"row"));
            tx.execute()
        });
        assert_eq!(outcome, Outcome::Committed(()));
    };
    cluster.spawn(AT, move |coordinator| add(coordinator, "a")).unwrap().wait().unwrap();
    let come_and_go = move |coordinator: &mut Coordinator<'_>| {
        for _ in 0..4 {
            add(coordinator, "b");
            let outcome = coordinator.run(|tx| {
                tx.add_row_to_write_set(table, b"b", Change::Delete);
                tx.execute()
            });
            assert_eq!(outcome, Outcome::Committed(()));
        }
    };
    cluster.spawn(AT, come_and_go).unwrap().wait().unwrap();
    // Node 3 copies what is there: one row. Then it is the only copy beside the primary.
    for backup in cluster.configuration().copies(0)[1..].iter().copied() {
        cluster.kill_node(usize::from(backup)).unwrap();
        while !cluster.configuration().copies(0).contains(&3) {
            std::thread::yield_now();
        }
    }

    let all = || KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    let scan = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        let page = deferred.scan(coordinator, table, &all(), Direction::Ascending, 10).unwrap();
        (deferred, page.rows.len())
    };
    let (mut deferred, rows) = cluster.spawn(AT, scan).unwrap().wait().unwrap();
    assert_eq!(rows, 1);
    cluster.kill_node(usize::from(cluster.configuration().primary(0))).unwrap();
    let two = move |coordinator: &mut Coordinator<'_>| {
        add(coordinator, "c");
        add(coordinator, "d");
    };
    cluster.spawn(AT, two).unwrap().wait().unwrap();
    let commit = move |coordinator: &mut Coordinator<'_>| deferred.commit(coordinator);
    let first = cluster.spawn(AT, commit).unwrap().wait().unwrap();
    let again = run(|coordinator, deferred, table| {
        let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
        let page = deferred.scan(coordinator, table, &all, Direction::Ascending, 10)?;
        assert_eq!(page.rows.len(), 3);
        Ok(())
    });
    [first, again]
}

#[test]
fn a_transaction_whose_reads_span_two_epochs_ends_in_a_conflict() {
    assert_eq!(scanned_before_a_loss(), [Err(Abort::Conflict(Conflict::Reconfigured)), Ok(())]);
    assert!(Abort::Conflict(Conflict::Reconfigured).is_conflict());
    #[cfg(feature = "mutants")]
    {
        let _without = gannet_engine::rules::ONE_EPOCH.remove();
        assert_eq!(scanned_before_a_loss(), [Ok(()), Ok(())], "the rows are not missed");
    }
}
