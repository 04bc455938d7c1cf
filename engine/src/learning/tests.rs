//! A split that comes to a learner before the copy of its bucket.

use std::sync::Arc;

use gannet_storage::{
    Arena, BucketSnapshot, BucketUpdateWriter, Key, Lock, LockMode, Owner, Partitioning, Splitting,
    TableDefinition, TableKind,
};

use super::*;

const LESSON: Lesson = (0, 1);

/// A table of one partition that begins with one bucket.
fn table() -> Table {
    let definition = TableDefinition {
        name: "t".to_owned(),
        kind: TableKind::Fixed,
        value_bytes: 8,
        rows: 0,
        is_system: false,
    };
    let layout = definition.layout(Partitioning::new(1).unwrap()).unwrap();
    let arena = Arc::new(Arena::new(1 << 20, &[1 << 19]).unwrap());
    Table::new("t", layout, arena, |_| true).unwrap()
}

fn applied_at_primary(primary: &Table, bytes: &[u8]) -> Applied {
    let unit = BucketUpdate::parse_checked(bytes);
    primary.apply_at_primary(primary.bucket_address(0, unit.bucket).unwrap(), &unit)
}

/// A unit that inserts a row, whose lock the primary has granted.
fn insert(primary: &Table, key: u64) -> Vec<u8> {
    let (address, owner) = (primary.address(key).unwrap(), Owner(1 + key));
    let lock = primary.lock(address, key, owner, LockMode::Insert, &mut [0; 8]);
    let Lock::Granted { version } = lock else { panic!("{lock:?}") };
    let mut bytes = Vec::new();
    let bucket = primary.bucket_of(key, version);
    let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner);
    unit.put(Key::Number(key), &key.to_le_bytes());
    unit.finish();
    bytes
}

fn hear(learning: &Learning, learner: &Table, bytes: &[u8]) {
    let unit = BucketUpdate::parse_checked(bytes);
    let address = learner.address_to_fill(0, unit.bucket).unwrap();
    assert!(learning.update(learner, address, (&unit, bytes)));
}

/// A learner hears of a split, and of a row of the half that is born, before the copy of the bucket comes that was split. Whether nothing
/// waits at the end, and the copies are equal.
fn split_before_its_copy() -> (bool, bool) {
    let (primary, learner, learning) = (table(), table(), Learning::default());
    for key in 0..12 {
        let unit = insert(&primary, key);
        assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);
    }
    let (mut snapshot, mut copy) = (BucketSnapshot::default(), Vec::new());
    primary.snapshot(0, 0, &mut snapshot);
    snapshot.write_copy(&primary, (0, 0, 0), &mut copy);

    let owner = Owner(99);
    let Splitting::Granted { bucket: 0, version } = primary.lock_to_split(0, 0, owner) else {
        panic!("twelve rows are too many for a bucket");
    };
    let mut split = Vec::new();
    BucketUpdateWriter::begin(&mut split, (0, 0, 0), version, owner).split();
    let born = (12..).find(|key| primary.bucket_of(*key, 1 << 56) == 1).unwrap();
    hear(&learning, &learner, &split);
    assert_eq!(applied_at_primary(&primary, &split), Applied::Applied);
    let unit = insert(&primary, born);
    hear(&learning, &learner, &unit);
    assert_eq!(applied_at_primary(&primary, &unit), Applied::Applied);

    let unit = BucketUpdate::parse_checked(&copy);
    let address = learner.address_to_fill(0, 0).unwrap();
    assert_eq!(learning.copy(&learner, address, &unit), Ok(()));
    let mut of_learner = BucketSnapshot::default();
    let are_equal = (0..2).all(|bucket| {
        primary.snapshot(0, bucket, &mut snapshot);
        learner.snapshot(0, bucket, &mut of_learner);
        snapshot.equals(&of_learner)
    });
    (learning.finish(LESSON, |_| true), are_equal)
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
