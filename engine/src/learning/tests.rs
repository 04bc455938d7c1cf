//! Splits and merges that come to a learner before the copies of their buckets, or between them.
//!
//! A primary and a learner are two tables in memory, without nodes; each test fixes the order of copies
//! and updates. A test fails if the two tables or their indexes differ at the end, or if an update
//! waits for ever (rule `WAITING_SPLITS`, which one test removes).
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again". *Not here*: copies and updates in random
//! order (`storage/tests/copy.rs`).

use std::sync::Arc;

use gannet_storage::{
    Arena, BucketSnapshot, BucketUpdateWriter, HashedKey, Lock, LockMode, Owner, Partitioning,
    Reshaping, TableDefinition, TableKind,
};

use super::*;

const LESSON: Lesson = (0, 1);

const KINDS: [TableKind; 2] = [TableKind::Fixed, TableKind::Ordered];

/// A table of one partition that begins with one bucket.
fn table(kind: TableKind) -> Table {
    let definition =
        TableDefinition { name: "t".to_owned(), kind, value_bytes: 8, rows: 0, is_system: false };
    let layout = definition.layout(Partitioning::new(1).unwrap()).unwrap();
    let arena = Arc::new(Arena::new(1 << 20, &[1 << 19]).unwrap());
    Table::new("t", layout, arena, |_| true).unwrap()
}

fn applied_at_primary(primary: &Table, bytes: &[u8]) -> Applied {
    let unit = BucketUpdate::parse_checked(bytes);
    primary.apply_at_primary(primary.bucket_address(0, unit.bucket).unwrap(), &unit)
}

fn owner(number: u64) -> Owner {
    Owner(Owner::of_epoch(1).0 + number)
}

/// Does something with the key of that number.
fn with_key<T>(table: &Table, number: u64, with: impl FnOnce(HashedKey<'_>) -> T) -> T {
    match table.layout().kind {
        TableKind::Fixed => with(HashedKey::Number(number)),
        TableKind::Heap | TableKind::Ordered => with(table.hashed(&number.to_be_bytes()[..])),
    }
}

/// A unit that inserts a row, whose lock the primary has granted.
fn insert(primary: &Table, number: u64) -> Vec<u8> {
    with_key(primary, number, |key| {
        let (address, owner) = (primary.address(key.word()).unwrap(), owner(1 + number));
        let lock = match key {
            HashedKey::Number(_) => {
                primary.lock(address, number, owner, LockMode::Insert, &mut [0; 8])
            }
            HashedKey::Bytes { .. } => primary.lock_row(address, key, owner, (LockMode::Insert, 8)),
        };
        let Lock::Granted { version } = lock else { panic!("{lock:?}") };
        let mut bytes = Vec::new();
        let bucket = primary.bucket_of(key.word(), version);
        let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner);
        unit.put(key, &number.to_le_bytes());
        unit.finish();
        bytes
    })
}

fn hear(learning: &Learning, learner: &Table, bytes: &[u8]) {
    let unit = BucketUpdate::parse_checked(bytes);
    assert!(learning.update(learner, (&unit, bytes)));
}

/// A primary with rows in its bucket.
fn filled(kind: TableKind) -> Table {
    let primary = table(kind);
    for key in 0..12 {
        let unit = insert(&primary, key);
        assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
    }
    primary
}

/// The unit that splits bucket 0, whose lock the primary has granted.
fn split(primary: &Table) -> Vec<u8> {
    let (owner, wanted) = (owner(99), primary.splits_wanted(0));
    let splitting = primary.lock_to_split(0, (0, wanted), owner);
    let Reshaping::Granted { bucket: 0, version } = splitting else {
        panic!("twelve rows are too many for a bucket: {splitting:?}");
    };
    let mut split = Vec::new();
    BucketUpdateWriter::begin(&mut split, (0, 0, 0), version, owner).split();
    split
}

/// The unit that merges bucket 1 into bucket 0, whose locks the primary has granted.
fn merge(primary: &Table) -> Vec<u8> {
    let owner = owner(98);
    let merging = primary.lock_to_merge(0, 0, owner);
    let Reshaping::Granted { bucket: 0, version } = merging else { panic!("{merging:?}") };
    let mut merge = Vec::new();
    let out = (&mut BucketSnapshot::default(), &mut merge);
    primary.write_merge((0, 0, 0), version, owner, out);
    merge
}

fn copy_of(primary: &Table, bucket: u32) -> Vec<u8> {
    let (mut snapshot, mut copy) = (BucketSnapshot::default(), Vec::new());
    primary.snapshot(0, bucket, &mut snapshot);
    snapshot.write_copy(primary, (0, 0, bucket), &mut copy);
    copy
}

fn copy(learning: &Learning, learner: &Table, bytes: &[u8]) {
    assert_eq!(learning.copy(learner, &BucketUpdate::parse_checked(bytes)), Ok(()));
}

fn are_equal(primary: &Table, learner: &Table) -> bool {
    let [mut of_primary, mut of_learner] = [(), ()].map(|()| BucketSnapshot::default());
    let is_equal = |bucket| {
        primary.snapshot(0, bucket, &mut of_primary);
        learner.snapshot(0, bucket, &mut of_learner);
        of_primary.equals(&of_learner)
    };
    assert_eq!([primary, learner].map(|table| table.index_differences(0)), [0; 2]);
    (0..2).all(is_equal)
}

/// A key of bucket 1 from that number on.
fn born_key(primary: &Table, from: u64) -> u64 {
    let is_of_half = |number: &u64| {
        with_key(primary, *number, |key| primary.bucket_of(key.word(), 1 << 56)) == 1
    };
    (from..).find(is_of_half).unwrap()
}

/// A learner hears of a split, and of a row of the half that is born, before the copy of the bucket comes that was split. Whether nothing
/// waits at the end, and the copies are equal.
fn split_before_its_copy() -> (bool, bool) {
    let kind = TableKind::Fixed;
    let (primary, learner, learning) = (filled(kind), table(kind), Learning::default());
    let before = copy_of(&primary, 0);
    let split = split(&primary);
    hear(&learning, &learner, &split);
    assert_eq!(applied_at_primary(&primary, &split), Applied::Applied);
    let unit = insert(&primary, born_key(&primary, 12));
    hear(&learning, &learner, &unit);
    assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
    copy(&learning, &learner, &before);
    (learning.finish(LESSON, |_| Some(&learner)), are_equal(&primary, &learner))
}

#[test]
fn a_half_that_is_merged_before_its_copy_comes_stays_merged() {
    for kind in KINDS {
        let (primary, learner, learning) = (filled(kind), table(kind), Learning::default());
        assert_eq!(applied_at_primary(&primary, &split(&primary)), Applied::Applied);
        copy(&learning, &learner, &copy_of(&primary, 0));
        // What comes to the half waits for the half's copy.
        let unit = insert(&primary, born_key(&primary, 12));
        hear(&learning, &learner, &unit);
        assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
        let merge = merge(&primary);
        let late = copy_of(&primary, 1);
        hear(&learning, &learner, &merge);
        assert_eq!(applied_at_primary(&primary, &merge), Applied::Applied);
        copy(&learning, &learner, &late);
        assert!(are_equal(&primary, &learner));
        // It is born again, and what comes then is applied.
        let split = split(&primary);
        hear(&learning, &learner, &split);
        assert_eq!(applied_at_primary(&primary, &split), Applied::Applied);
        let unit = insert(&primary, born_key(&primary, born_key(&primary, 12) + 1));
        hear(&learning, &learner, &unit);
        assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
        assert!(are_equal(&primary, &learner));
        assert!(learning.finish(LESSON, |_| Some(&learner)));
    }
}

#[test]
fn what_waits_for_a_half_is_given_up_when_the_copy_of_the_merged_bucket_comes() {
    for kind in KINDS {
        let (primary, learner, learning) = (filled(kind), table(kind), Learning::default());
        let split = split(&primary);
        assert_eq!(applied_at_primary(&primary, &split), Applied::Applied);
        let unit = insert(&primary, born_key(&primary, 12));
        hear(&learning, &learner, &unit);
        assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
        assert_eq!(applied_at_primary(&primary, &merge(&primary)), Applied::Applied);
        copy(&learning, &learner, &copy_of(&primary, 0));
        assert!(are_equal(&primary, &learner));
        assert!(learning.finish(LESSON, |_| Some(&learner)));
        // A log record of the half that is flushed later has been applied.
        hear(&learning, &learner, &unit);
        assert!(are_equal(&primary, &learner));
    }
}

#[test]
fn a_half_that_a_learner_has_from_before_goes_with_the_copy_of_the_merged_bucket() {
    for kind in KINDS {
        let (primary, learner, learning) = (filled(kind), table(kind), Learning::default());
        copy(&learning, &learner, &copy_of(&primary, 0));
        let split = split(&primary);
        hear(&learning, &learner, &split);
        assert_eq!(applied_at_primary(&primary, &split), Applied::Applied);
        assert_eq!(applied_at_primary(&primary, &merge(&primary)), Applied::Applied);
        assert!(!are_equal(&primary, &learner), "it has not heard of the merge");
        copy(&learning, &learner, &copy_of(&primary, 0));
        assert!(are_equal(&primary, &learner));
    }
}

#[test]
fn what_waits_for_a_half_that_is_born_is_applied_with_the_split() {
    assert_eq!(split_before_its_copy(), (true, true));
    #[cfg(feature = "mutants")]
    {
        let _without = crate::rules::WAITING_SPLITS.remove();
        assert_eq!(split_before_its_copy(), (false, false));
    }
}
