//! What was read in one epoch is not validated in the next: a leaf of another copy can have the number and the counter of the leaf that
//! was scanned, and other keys.
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

const AT: WorkerId = WorkerId { node: 2, worker: 0 };

/// Scans a table at its primary, which is lost afterwards. Another transaction adds two rows in the next epoch. How the first one ends,
/// and what it ends with when it is run again.
fn scanned_before_a_loss() -> [Result<(), Abort>; 2] {
    let options = ClusterOptions {
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
    // An insert that is given up counts twice at the primary, and not at the other copies.
    let given_up = cluster.run(move |tx| {
        tx.add_row_to_write_set(table, b"b", Change::Insert(b"row"));
        tx.execute()?;
        Err::<(), _>(Abort::Requested)
    });
    assert_eq!(given_up.unwrap(), Outcome::Failed(Abort::Requested));

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
