//! The journal: which files are refused, where a torn write is cut off, and how large a log becomes.
//!
//! The tests cut and change the bytes of a disk in memory (`fakes.rs`). A test fails if a torn last write is not cut off, if a
//! log is accepted that is damaged before its last write, or that is of another node, incarnation, cluster or format, if a
//! snapshot that the log needs may be missing, or if a log that is mostly dead is not replaced.
//!
//! *Not here*: errors of a disk, and files in a directory (`store/tests.rs`).

use openraft::{CommittedLeaderId, EntryPayload};

use super::*;
use crate::fakes::FakeDisk;

fn owner() -> Owner {
    owner_of("gannet", 3, 1)
}

fn owner_of(cluster: &str, node: u16, incarnation: u32) -> Owner {
    Owner { cluster: cluster.to_owned(), replica: ReplicaId { node, incarnation } }
}

fn id(index: u64) -> LogId<u64> {
    LogId::new(CommittedLeaderId::new(1, 0), index)
}

fn entry(index: u64, bytes: usize) -> Record {
    let payload = EntryPayload::Normal(vec![7; bytes]);
    Record::Entry(Entry { log_id: id(index), payload })
}

fn open(disk: &FakeDisk, owner: &Owner) -> Result<Opened, DirectoryError> {
    Journal::open(Box::new(disk.clone()), owner, vec![5])
}

/// Writes records as the storage does.
fn write(opened: &mut Opened, record: Record) {
    let Opened { journal, log, .. } = opened;
    journal.write(log.committed, std::slice::from_ref(&record)).unwrap();
    log.take(record);
    journal.clear(log).unwrap();
}

fn log_bytes(disk: &FakeDisk) -> usize {
    disk.files().log.as_ref().map_or(0, Vec::len)
}

/// A disk with a header and three entries, and where each of them ends.
fn three_entries() -> (FakeDisk, Vec<usize>) {
    let disk = FakeDisk::default();
    let mut opened = open(&disk, &owner()).unwrap();
    let mut ends = vec![log_bytes(&disk)];
    for index in 0..3 {
        write(&mut opened, entry(index, 20));
        ends.push(log_bytes(&disk));
    }
    (disk, ends)
}

#[test]
fn a_torn_last_write_is_cut_off() {
    let (disk, ends) = three_entries();
    let whole = disk.files().log.clone().unwrap();
    for end in ends[0]..whole.len() {
        disk.files().log = Some(whole[..end].to_vec());
        let mut opened = open(&disk, &owner()).unwrap();
        let count = ends.iter().filter(|it| **it <= end).count() - 1;
        assert_eq!((opened.log.entries.len(), log_bytes(&disk)), (count, ends[count]));
        // It goes on from there.
        write(&mut opened, entry(count as u64, 1));
        assert_eq!(open(&disk, &owner()).unwrap().log, opened.log);
    }
}

#[test]
fn damage_before_the_last_write_is_refused() {
    let (disk, ends) = three_entries();
    let whole = disk.files().log.clone().unwrap();
    for at in 0..ends[2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        disk.files().log = Some(damaged.clone());
        let refused = open(&disk, &owner()).err().expect("it is damaged");
        let begins = ends.iter().rev().find(|end| **end <= at).copied().unwrap_or(0);
        let is_right = matches!(&refused, DirectoryError::Damaged { at, .. } if *at == begins);
        assert!(is_right && refused.to_string().contains("fake Log"), "byte {at}: {refused}");
        assert_eq!(disk.files().log, Some(damaged), "it is left as it was");
    }
}

#[test]
fn a_directory_of_another_is_refused() {
    let (disk, _) = three_entries();
    let refused = |owner: &Owner| open(&disk, owner).err().expect("it is another's").to_string();
    let node = refused(&owner_of("gannet", 4, 1));
    assert!(node.contains("node 3 of") && node.contains("this is node 4"), "{node}");
    let cluster = refused(&owner_of("other", 3, 1));
    assert!(cluster.contains("\"gannet\"") && cluster.contains("\"other\""), "{cluster}");
    let process = refused(&owner_of("gannet", 3, 2));
    assert!(process.contains("of an earlier process of this node"), "{process}");
    open(&disk, &owner()).unwrap();
    let left = |cluster| left_on(&mut *disk.boxed().expect("a disk"), (cluster, 3));
    assert_eq!(left("gannet").unwrap(), Some(owner().replica));
    assert!(matches!(left("other"), Err(DirectoryError::Foreign { .. })));
    disk.files().log = None;
    assert_eq!(left("gannet").unwrap(), None, "nothing is left");
}

#[test]
fn what_is_no_log_of_this_format_is_refused() {
    let (disk, _) = three_entries();
    let refused = |log: Vec<u8>| {
        disk.files().log = Some(log);
        open(&disk, &owner()).err().expect("it is no such log")
    };
    for other in [vec![], b"some text".to_vec(), frames::frame(b"some text").unwrap()] {
        assert!(matches!(refused(other), DirectoryError::NoLog(_)));
    }
    let later = frames::frame(&[&MAGIC[..], &(FORMAT + 1).to_le_bytes(), b"?"].concat()).unwrap();
    let later = refused(later);
    assert!(
        matches!(later, DirectoryError::Format { found, known: FORMAT, .. } if found == FORMAT + 1),
        "{later}"
    );
}

#[test]
fn a_snapshot_that_the_log_needs_is_there() {
    let (disk, _) = three_entries();
    let mut opened = open(&disk, &owner()).unwrap();
    let first = opened.snapshot.take().expect("a log has a snapshot");
    assert_eq!((&first.state[..], first.meta.last_log_id), (&[5][..], None));
    write(&mut opened, Record::Purge(id(1)));
    let refused = |error: Result<Opened, DirectoryError>| error.err().expect("it does not fit");
    assert!(matches!(refused(open(&disk, &owner())), DirectoryError::Snapshot(_)));
    let meta = SnapshotMeta { last_log_id: Some(id(1)), ..SnapshotMeta::default() };
    let saved = Saved { meta, state: vec![6] };
    opened.journal.save(&saved).unwrap();
    assert_eq!(open(&disk, &owner()).unwrap().snapshot, Some(saved));
    let last = disk.files().snapshot.as_mut().and_then(Vec::pop).unwrap();
    assert!(matches!(refused(open(&disk, &owner())), DirectoryError::Damaged { at: 0, .. }));
    disk.files().snapshot.as_mut().unwrap().push(last);
    open(&disk, &owner()).unwrap();
    disk.files().snapshot = None;
    assert!(matches!(refused(open(&disk, &owner())), DirectoryError::Snapshot(_)));
}

#[test]
fn a_log_that_is_mostly_dead_is_replaced() {
    let disk = FakeDisk::default();
    let mut opened = open(&disk, &owner()).unwrap();
    for index in 0..100 {
        write(&mut opened, entry(index, 1000));
    }
    assert!(log_bytes(&disk) > 100_000, "all of it is alive");
    opened
        .journal
        .save(&Saved {
            meta: SnapshotMeta { last_log_id: Some(id(94)), ..SnapshotMeta::default() },
            state: vec![6],
        })
        .unwrap();
    write(&mut opened, Record::Purge(id(94)));
    assert!(log_bytes(&disk) < 6000, "five entries are left");
    assert_eq!(open(&disk, &owner()).unwrap().log, opened.log);
    for term in 0..10_000 {
        write(&mut opened, Record::Vote(Vote::new(term, 3)));
        assert!(log_bytes(&disk) < REPLACED_BYTES_MIN + 100, "one vote is alive");
    }
    assert_eq!(open(&disk, &owner()).unwrap().log, opened.log);
}
