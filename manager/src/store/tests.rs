//! The storage: openraft's own tests in memory and on a disk, restarts, and disks that fail.
//!
//! No test starts a replica; a disk is a directory of this host, or a stand-in (`fakes.rs`). A test fails if a restart loses a
//! vote, an entry or a snapshot, if a write that the disk has refused seems to be there, or if a disk that has failed is asked
//! again. Random steps compare a storage on a disk with one in memory.
//!
//! *Not here*: damaged files (`journal/tests.rs`), the order of writes and syncs (`tests/server/synced.rs`).

use openraft::RaftSnapshotBuilder;
use openraft::storage::{RaftLogStorageExt, RaftStateMachine};
use openraft::testing::{StoreBuilder, Suite};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::disk::Directory;
use crate::fakes::{All, FakeDisk, Heard};

const OWN: ReplicaId = ReplicaId { node: 3, incarnation: 7 };

fn open_on(disk: Option<Box<dyn Disk>>, heard: &Heard) -> (LogStore, Decisions) {
    open(disk, "gannet", OWN, Box::new(All::default()), &heard.on_event()).expect("it opens")
}

struct InMemory;

impl StoreBuilder<Types, LogStore, Decisions> for InMemory {
    async fn build(&self) -> Result<((), LogStore, Decisions)> {
        let (log, decisions) = open_on(None, &Heard::default());
        Ok(((), log, decisions))
    }
}

struct OnDisk;

impl StoreBuilder<Types, LogStore, Decisions, TempDir> for OnDisk {
    async fn build(&self) -> Result<(TempDir, LogStore, Decisions)> {
        let place = tempfile::tempdir().expect("a directory");
        let disk = Directory::open(place.path()).expect("the directory is free");
        let (log, decisions) = open_on(Some(Box::new(disk)), &Heard::default());
        Ok((place, log, decisions))
    }
}

#[test]
fn the_store_passes_the_tests_of_openraft() {
    Suite::test_all(InMemory).expect("the tests of openraft pass");
}

#[test]
fn the_store_on_a_disk_passes_the_tests_of_openraft() {
    Suite::test_all(OnDisk).expect("the tests of openraft pass");
}

fn id(index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(1, 0), index)
}

fn decision(index: u64, bytes: &[u8]) -> Entry<Types> {
    Entry { log_id: id(index), payload: EntryPayload::Normal(bytes.to_vec()) }
}

fn appended(index: u64, bytes: &[u8]) -> Event {
    Event::Appended { index, term: 1, decision: bytes.to_vec() }
}

fn blank(index: u64) -> Entry<Types> {
    Entry { log_id: id(index), payload: EntryPayload::Blank }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

#[test]
fn the_owner_hears_of_what_the_log_takes_and_gives_up() {
    let heard = Heard::default();
    let (mut store, _) = open_on(None, &heard);
    wait(async {
        store.blocking_append([decision(1, b"a"), blank(2), decision(3, b"b")]).await.unwrap();
        store.truncate(id(3)).await.unwrap();
    });
    let expected = [appended(1, b"a"), appended(3, b"b"), Event::Truncated { from: 3 }];
    assert_eq!(heard.take(), expected);
}

#[test]
fn a_vote_and_entries_outlive_the_process() {
    let place = tempfile::tempdir().unwrap();
    let (heard, vote) = (Heard::default(), Vote::new(7, 3));
    let disk = || Some(Box::new(Directory::open(place.path()).unwrap()) as Box<dyn Disk>);
    let (mut store, decisions) = open_on(disk(), &heard);
    wait(async {
        store.save_vote(&vote).await.unwrap();
        store.blocking_append([decision(0, b"a"), blank(1), decision(2, b"b")]).await.unwrap();
        store.truncate(id(2)).await.unwrap();
        store.save_committed(Some(id(1))).await.unwrap();
        store.blocking_append([decision(2, b"c")]).await.unwrap();
    });
    drop((store, decisions));
    heard.take();
    let (mut store, _decisions) = open_on(disk(), &heard);
    wait(async {
        assert_eq!(store.read_vote().await.unwrap(), Some(vote));
        assert_eq!(store.read_committed().await.unwrap(), Some(id(1)));
        let entries = store.try_get_log_entries(..).await.unwrap();
        assert_eq!(entries, [decision(0, b"a"), blank(1), decision(2, b"c")]);
    });
    store.storage().tell_stored();
    let first = Event::Installed { index: 0, snapshot: All::default().snapshot() };
    assert_eq!(heard.take(), [first, appended(0, b"a"), appended(2, b"c")]);
}

#[test]
fn what_a_snapshot_has_is_handed_on_after_a_restart() {
    let (disk, heard) = (FakeDisk::default(), Heard::default());
    let (mut store, mut decisions) = open_on(disk.boxed(), &heard);
    let entries = [decision(0, b"a"), blank(1), decision(2, b"b"), decision(3, b"c")];
    wait(async {
        store.blocking_append(entries.clone()).await.unwrap();
        decisions.apply(entries[..3].to_vec()).await.unwrap();
        let mut builder = decisions.get_snapshot_builder().await;
        // What is made meanwhile is not in it.
        decisions.apply(entries[3..].to_vec()).await.unwrap();
        builder.build_snapshot().await.unwrap();
        store.purge(id(1)).await.unwrap();
    });
    drop((store, decisions));
    heard.take();
    let (mut store, mut decisions) = open_on(disk.boxed(), &heard);
    store.storage().tell_stored();
    let state = All(vec![(1, b"a".to_vec()), (1, b"b".to_vec())]);
    let installed = Event::Installed { index: 2, snapshot: state.snapshot() };
    assert_eq!(heard.take(), [installed, appended(2, b"b"), appended(3, b"c")]);
    wait(async {
        assert_eq!(decisions.applied_state().await.unwrap().0, Some(id(2)));
        let snapshot = decisions.get_current_snapshot().await.unwrap().expect("there is one");
        assert_eq!(snapshot.snapshot.into_inner(), state.snapshot());
        let log = store.get_log_state().await.unwrap();
        assert_eq!((log.last_purged_log_id, log.last_log_id), (Some(id(1)), Some(id(3))));
        // One that is older than what there is changes nothing.
        decisions.apply(entries[3..].to_vec()).await.unwrap();
        let mut older = decisions.get_snapshot_builder().await;
        let newer = SnapshotMeta { last_log_id: Some(id(9)), ..snapshot.meta };
        let bytes = Box::new(io::Cursor::new(All::default().snapshot()));
        decisions.install_snapshot(&newer, bytes).await.unwrap();
        older.build_snapshot().await.unwrap();
        let snapshot = decisions.get_current_snapshot().await.unwrap().expect("there is one");
        assert_eq!(snapshot.meta, newer);
    });
}

#[test]
fn a_disk_that_fails_once_is_never_asked_again() {
    for kind in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
        let (disk, heard) = (FakeDisk::default(), Heard::default());
        let (mut store, mut decisions) = open_on(disk.boxed(), &heard);
        wait(async {
            store.blocking_append([blank(0)]).await.unwrap();
            disk.files().failure = Some(kind);
            let writes = disk.files().writes;
            store.save_vote(&Vote::new(7, 3)).await.unwrap_err();
            assert_eq!(disk.files().writes, writes + 1);
            disk.files().failure = None;
            // What may be lost is not said to be there.
            assert_eq!(store.read_vote().await.unwrap(), None);
            store.blocking_append([blank(1)]).await.unwrap_err();
            store.purge(id(0)).await.unwrap_err();
            decisions.apply([blank(0)]).await.unwrap();
            let mut builder = decisions.get_snapshot_builder().await;
            builder.build_snapshot().await.unwrap_err();
            assert_eq!(disk.files().writes, writes + 1);
        });
        let heard = heard.take();
        assert!(matches!(&heard[..], [Event::Failed { .. }]), "once: {heard:?}");
        drop((store, decisions));
        // Half of the vote was written, and is cut off.
        let (mut store, _decisions) = open_on(disk.boxed(), &Heard::default());
        wait(async {
            assert_eq!(store.read_vote().await.unwrap(), None);
            assert_eq!(store.try_get_log_entries(..).await.unwrap(), [blank(0)]);
        });
    }
}

#[test]
fn a_snapshot_that_cannot_be_written_ends_the_storage() {
    let (disk, heard) = (FakeDisk::default(), Heard::default());
    let (_store, mut decisions) = open_on(disk.boxed(), &heard);
    wait(async {
        decisions.apply([blank(0)]).await.unwrap();
        let mut builder = decisions.get_snapshot_builder().await;
        disk.files().failure = Some(io::ErrorKind::StorageFull);
        builder.build_snapshot().await.unwrap_err();
        assert!(decisions.get_current_snapshot().await.unwrap().is_none());
    });
    assert!(matches!(&heard.take()[..], [Event::Failed { .. }]));
}

/// What may happen to a store.
#[derive(Clone, Debug)]
enum Step {
    Vote(u64),
    Append(Vec<usize>),
    /// Of the entries that are not made, counted from the last.
    Truncate(u64),
    /// So many entries more are made.
    Commit(u64),
    /// A snapshot of what is made, and a purge of all but so many of its entries.
    Snapshot(u64),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_u64..9).prop_map(Step::Vote),
        prop::collection::vec(0_usize..3000, 1..4).prop_map(Step::Append),
        (1_u64..4).prop_map(Step::Truncate),
        (1_u64..4).prop_map(Step::Commit),
        (0_u64..3).prop_map(Step::Snapshot),
        Just(Step::Reopen),
    ]
}

proptest! {
    #[test]
    fn a_store_on_a_disk_is_as_one_in_memory(steps in prop::collection::vec(step(), 0..100)) {
        let (disk, heard) = (FakeDisk::default(), Heard::default());
        let (mut memory, mut decisions) = open_on(None, &heard);
        let mut present = open_on(disk.boxed(), &heard);
        // The next entry, the next one to be made, and that after the snapshot.
        let (mut next, mut made, mut saved) = (0_u64, 0_u64, 0_u64);
        for step in steps {
            let reopens = matches!(step, Step::Reopen);
            wait(async {
                match step {
                    Step::Vote(term) => {
                        memory.save_vote(&Vote::new(term, 3)).await.unwrap();
                        present.0.save_vote(&Vote::new(term, 3)).await.unwrap();
                    }
                    Step::Append(sizes) => {
                        let entries: Vec<_> = (next..).zip(sizes)
                            .map(|(index, bytes)| decision(index, &vec![7; bytes]))
                            .collect();
                        next += entries.len() as u64;
                        memory.blocking_append(entries.clone()).await.unwrap();
                        present.0.blocking_append(entries).await.unwrap();
                    }
                    Step::Truncate(count) if next > made => {
                        next = made.max(next.saturating_sub(count));
                        memory.truncate(id(next)).await.unwrap();
                        present.0.truncate(id(next)).await.unwrap();
                    }
                    Step::Commit(count) if next > made => {
                        let entries = memory.try_get_log_entries(made..next.min(made + count));
                        let entries = entries.await.unwrap();
                        made += entries.len() as u64;
                        memory.save_committed(Some(id(made - 1))).await.unwrap();
                        present.0.save_committed(Some(id(made - 1))).await.unwrap();
                        decisions.apply(entries.clone()).await.unwrap();
                        present.1.apply(entries).await.unwrap();
                    }
                    Step::Snapshot(kept) if made > saved + kept => {
                        saved = made;
                        for (store, decisions) in
                            [(&mut memory, &mut decisions), (&mut present.0, &mut present.1)]
                        {
                            let mut builder = decisions.get_snapshot_builder().await;
                            builder.build_snapshot().await.unwrap();
                            store.purge(id(made - kept - 1)).await.unwrap();
                        }
                    }
                    Step::Truncate(_) | Step::Commit(_) | Step::Snapshot(_) | Step::Reopen => {}
                }
            });
            if reopens {
                present = open_on(disk.boxed(), &heard);
                wait(async {
                    let (last, _) = present.1.applied_state().await.unwrap();
                    prop_assert_eq!(last, saved.checked_sub(1).map(id));
                    // Raft makes again what it knows to be made.
                    let entries = memory.try_get_log_entries(saved..made).await.unwrap();
                    present.1.apply(entries).await.unwrap();
                    Ok(())
                })?;
            }
            let (expected, stored) = (memory.0.lock(), present.0.0.lock());
            let committed = expected.log.committed;
            prop_assert!(stored.log.committed <= committed);
            let log = Log { committed, ..stored.log.clone() };
            prop_assert_eq!(&log, &expected.log);
            let state = |kept: &Kept| kept.snapshot.as_ref().map(|it| it.state.clone());
            prop_assert!(saved == 0 || state(&stored) == state(&expected));
        }
    }
}
