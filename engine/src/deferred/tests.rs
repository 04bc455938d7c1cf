//! Deferred transactions at a node without a lease, and across the hand-over of a partition; added rows, and cancelled jobs.
//!
//! Each test opens clusters in this process, most of them with one partition, and some tests hand that partition over between
//! two statements. A test fails if a node answers without a lease, if a scan of the old primary is validated at the new one
//! (rule `SCANNED_PRIMARY`, which one test removes), or if a partition is handed over while a row of it is locked. Other tests
//! fail if a commit adds only some of its rows, or if a cancelled job still waits for a lock.
//!
//! *Source*: `docs/protocol.md`, "Leases" and "Hand-over of primaries".

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use gannet_storage::Direction;

use super::{ATTEMPTS_MAX, Deferred, NewRows, repeated};
use crate::cancellation::CancellationToken;
use crate::cluster::{Cluster, ClusterOptions, WorkerId};
use crate::configuration::{Change, ChangeError};
use crate::coordinator::Coordinator;
use crate::key_range::KeyRange;
use crate::lease::{ENDLESS, LeaseTerms};
use crate::outcome::{Abort, Conflict, Misuse, RowProblem};
use crate::table_id::TableId;
use crate::transaction::Change as RowChange;

#[test]
fn a_transaction_that_only_reads_ends_when_the_lease_is_held() {
    let options = ClusterOptions {
        nodes: 1,
        replicas: 1,
        threads: 1,
        memory_limit_bytes: Some(64 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_ordered_table("lines", 10).unwrap();
    let (key, value) = (b"key".to_vec(), b"value".to_vec());
    let (own_key, own_value) = (key.clone(), value.clone());
    let write = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        deferred.insert(table, own_key, own_value);
        deferred.commit(coordinator)
    };
    cluster.spawn_anywhere(write).unwrap().wait().unwrap().unwrap();
    let node = cluster.node(0).unwrap();
    node.require_lease(LeaseTerms::new(Duration::from_millis(100)));
    let read = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        let found = deferred.get_many(coordinator, table, std::slice::from_ref(&key))?;
        deferred.commit(coordinator)?;
        Ok::<_, Abort>(found)
    };
    let reads = cluster.spawn_anywhere(read).unwrap();
    // The worker begins its jobs in their order. A transaction that has read nothing needs no lease.
    let empty = |coordinator: &mut Coordinator<'_>| Deferred::new().commit(coordinator);
    cluster.spawn_anywhere(empty).unwrap().wait().unwrap().unwrap();
    assert!(!reads.is_complete(), "an answer without a lease");
    node.lease().extend(ENDLESS - 1);
    assert_eq!(reads.wait().unwrap().unwrap(), [Some(value)]);
}

/// An ordered table of one partition, whose primary is node 0, in a cluster of so many nodes with three copies.
fn one_partition(nodes: usize) -> (Cluster, TableId) {
    let options = ClusterOptions {
        nodes,
        threads: 1,
        partitions: 1,
        memory_limit_bytes: Some(16 << 20),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::open(options).unwrap();
    let table = cluster.create_ordered_table("t", 100).unwrap();
    (cluster, table)
}

fn hand_over(cluster: &Cluster, to: u16) -> Result<(), ChangeError> {
    cluster.local_members().make(&Change::HandOver(vec![(0, to)]))
}

fn insert(cluster: &Cluster, table: TableId, key: &'static str) {
    let write = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        deferred.insert(table, key.into(), b"row".to_vec());
        deferred.commit(coordinator)
    };
    cluster.spawn_anywhere(write).unwrap().wait().unwrap().unwrap();
}

fn delete(cluster: &Cluster, table: TableId, key: &'static str) {
    let write = move |coordinator: &mut Coordinator<'_>| {
        let mut deferred = Deferred::new();
        deferred.delete(table, key.into());
        deferred.commit(coordinator)
    };
    cluster.spawn_anywhere(write).unwrap().wait().unwrap().unwrap();
}

#[test]
fn rows_are_added_with_what_the_transaction_has_written_or_not_at_all() {
    let (cluster, table) = one_partition(3);
    insert(&cluster, table, "there");
    let commit = |written: &'static str, keys: &'static [&'static str]| {
        let job = move |coordinator: &mut Coordinator<'_>| {
            let mut deferred = Deferred::new();
            deferred.insert(table, written.into(), b"written".to_vec());
            let rows: Vec<(&[u8], &[u8])> =
                keys.iter().map(|key| (key.as_bytes(), &b"added"[..])).collect();
            deferred.commit_and_add(coordinator, NewRows { table, rows: &rows })
        };
        cluster.spawn_anywhere(job).unwrap().wait().unwrap()
    };
    assert_eq!(commit("a", &["b", "there"]), Err(Conflict::Changed.into()));
    for keys in [&["b", "c", "b"][..], &["a", "b"]] {
        let refused = commit("a", keys);
        let is_twice = |abort: &Abort| {
            matches!(abort, Abort::Misuse(Misuse::Row { problem: RowProblem::AddedTwice, .. }))
        };
        assert!(refused.as_ref().is_err_and(is_twice), "{refused:?}");
    }
    assert_eq!(commit("a", &["c", "b"]), Ok(()));
    let read = move |coordinator: &mut Coordinator<'_>| {
        let keys = ["a", "b", "c"].map(|key| key.as_bytes().to_vec());
        Deferred::new().get_many(coordinator, table, &keys)
    };
    let found = cluster.spawn_anywhere(read).unwrap().wait().unwrap().unwrap();
    let expected = [&b"written"[..], b"added", b"added"].map(|value| Some(value.to_vec()));
    assert_eq!(found, expected);
}

/// Scans a table at its primary, which hands it over. Another transaction adds two rows. How the first one ends.
fn scanned_before_a_hand_over() -> Result<(), Abort> {
    let (cluster, table) = one_partition(4);
    insert(&cluster, table, "a");
    // The index of a copy that is made again has numbered the rows that it has copied, and nothing that came and went before.
    for _ in 0..4 {
        insert(&cluster, table, "b");
        delete(&cluster, table, "b");
    }
    let old_copies = cluster.configuration().copies(0).to_vec();
    cluster.kill_node(usize::from(old_copies[1])).unwrap();
    while cluster.membership().copies_missing > 0 {
        std::thread::yield_now();
    }
    let configuration = cluster.configuration();
    let is_new = |node: &u16| !old_copies.contains(node);
    let new_copy = configuration.copies(0).iter().copied().find(is_new).unwrap();
    let scan = move |coordinator: &mut Coordinator<'_>| {
        let all = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
        let mut deferred = Deferred::new();
        let page = deferred.scan(coordinator, table, &all, Direction::Ascending, 10).unwrap();
        (deferred, page.rows.len())
    };
    let (mut deferred, rows) = cluster.spawn_anywhere(scan).unwrap().wait().unwrap();
    assert_eq!(rows, 1);
    hand_over(&cluster, new_copy).unwrap();
    ["c", "d"].into_iter().for_each(|key| insert(&cluster, table, key));
    let commit = move |coordinator: &mut Coordinator<'_>| deferred.commit(coordinator);
    cluster.spawn_anywhere(commit).unwrap().wait().unwrap()
}

#[test]
fn what_was_scanned_at_one_primary_is_not_validated_at_another() {
    assert_eq!(scanned_before_a_hand_over(), Err(Conflict::Reconfigured.into()));
    #[cfg(feature = "mutants")]
    {
        let _without = crate::rules::SCANNED_PRIMARY.remove();
        assert_eq!(scanned_before_a_hand_over(), Ok(()), "the rows are not missed");
    }
}

#[test]
fn what_was_read_by_key_is_valid_at_another_primary_until_it_changes() {
    for (changed, expected) in [("a", Err(Conflict::Changed.into())), ("z", Ok(()))] {
        let (cluster, table) = one_partition(3);
        insert(&cluster, table, "a");
        let read = move |coordinator: &mut Coordinator<'_>| {
            let mut deferred = Deferred::new();
            let found = deferred.get_many(coordinator, table, &[b"a".to_vec()]).unwrap();
            assert!(found[0].is_some());
            deferred
        };
        let mut deferred = cluster.spawn_anywhere(read).unwrap().wait().unwrap();
        hand_over(&cluster, 1).unwrap();
        let change = move |coordinator: &mut Coordinator<'_>| {
            let mut other = Deferred::new();
            other.put(table, changed.into(), b"other".to_vec());
            other.commit(coordinator)
        };
        match changed {
            "a" => cluster.spawn_anywhere(change).unwrap().wait().unwrap().unwrap(),
            key => insert(&cluster, table, key),
        }
        hand_over(&cluster, 2).unwrap();
        deferred.insert(table, b"w".to_vec(), b"row".to_vec());
        let commit = move |coordinator: &mut Coordinator<'_>| deferred.commit(coordinator);
        assert_eq!(cluster.spawn_anywhere(commit).unwrap().wait().unwrap(), expected);
    }
}

#[test]
fn a_primary_whose_rows_are_locked_keeps_its_partition() {
    let (cluster, table) = one_partition(3);
    insert(&cluster, table, "a");
    let (locked, is_locked) = channel();
    let end = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::clone(&end);
    let hold = move |coordinator: &mut Coordinator<'_>| {
        let transaction = coordinator.begin();
        transaction.add_row_to_write_set(table, b"a", RowChange::Update(b"new"));
        transaction.execute().unwrap();
        locked.send(()).unwrap();
        while !has_ended.load(Ordering::Relaxed) {
            coordinator.give_way();
        }
        // The end of the job drops the lock.
    };
    let holder = cluster.spawn(WorkerId { node: 2, worker: 0 }, hold).unwrap();
    is_locked.recv().unwrap();
    assert_eq!(hand_over(&cluster, 1), Err(ChangeError::RowsLocked));
    assert_eq!(cluster.configuration().primary(0), 0);
    end.store(true, Ordering::Relaxed);
    holder.wait().unwrap();
    hand_over(&cluster, 1).unwrap();
    assert_eq!(cluster.configuration().primary(0), 1);
    insert(&cluster, table, "b");
}

/// The attempts of a job that meets a lock for ever, and is cancelled in one of them, if so.
fn attempts(cluster: &Cluster, cancelled_in: Option<u32>) -> u32 {
    let job = move |coordinator: &mut Coordinator<'_>| {
        let token = Arc::new(CancellationToken::default());
        coordinator.set_cancellation(Arc::clone(&token));
        let (mut attempts, is_refused) = (0, |abort: &Abort| abort.is_conflict());
        let ended = repeated(coordinator, ATTEMPTS_MAX, is_refused, |_| {
            attempts += 1;
            if Some(attempts) == cancelled_in {
                assert!(!token.cancel(), "nothing was logged");
            }
            Err::<(), _>(Conflict::Locked.into())
        });
        assert_eq!(ended, Err(Conflict::Locked.into()));
        // The canceller was told that the job changes nothing.
        assert_eq!(token.may_log(), cancelled_in.is_none());
        attempts
    };
    cluster.spawn_anywhere(job).unwrap().wait().unwrap()
}

#[test]
fn a_job_that_is_cancelled_waits_for_no_lock() {
    let (cluster, _) = one_partition(3);
    assert_eq!(attempts(&cluster, Some(3)), 4);
    assert_eq!(attempts(&cluster, None), ATTEMPTS_MAX);
}
