//! Bulk loads: copies that are given the same rows in other batches and orders are equal, and serve transactions afterwards.
//!
//! Copies are tables on one thread. A test fails if a bucket of two copies differs, version and stamps included, if an index lacks a key, if a
//! partition is served while it is loaded, or loaded after it was used, or if a row that is there already is taken.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads".
//!
//! *Not here*: which copies are given the rows (`tests/bulk_load.rs` of the package `gannet`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketSnapshot, BucketUpdate, BucketUpdateWriter, BulkLoaded, HashSeed,
    HashedKey, Lock, LockMode, Owner, Partitioning, Read, Reshaping, Table, TableLayout,
};
use proptest::prelude::*;

/// Two transactions of epoch 1.
const LOAD: Owner = Owner(1 << 50 | 1);
const OTHER: Owner = Owner(1 << 50 | 2);

fn arena(bytes: usize) -> Arc<Arena> {
    Arc::new(Arena::new(bytes + 64, &[bytes]).unwrap())
}

fn table_in(arena: &Arc<Arena>) -> Table {
    let layout = TableLayout::ordered("rows", 0, Partitioning::new(1).unwrap()).unwrap();
    Table::new("rows", layout, Arc::clone(arena), |_| true).unwrap()
}

fn table(bytes: usize) -> Table {
    table_in(&arena(bytes))
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// A value of some cells.
fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(number as usize % 60)
}

fn load_as(table: &Table, owner: Owner, numbers: &[u32], counts_memory: bool) -> BulkLoaded {
    let rows: Vec<_> = numbers.iter().map(|number| (key(*number), value(*number))).collect();
    let rows: Vec<(HashedKey<'_>, &[u8])> =
        rows.iter().map(|(key, value)| (HashSeed::ZERO.hashed(key), &value[..])).collect();
    table.bulk_load((0, owner), &rows, counts_memory)
}

fn load(table: &Table, owner: Owner, numbers: &[u32]) -> BulkLoaded {
    load_as(table, owner, numbers, true)
}

fn is_served(table: &Table) -> bool {
    table.served_bucket_address(0, 0).is_some()
}

fn has(table: &Table, number: u32) -> bool {
    let bytes = key(number);
    let hashed = HashSeed::ZERO.hashed(&bytes);
    let address = table.address(hashed.word()).expect("the partition is served");
    let mut found = Vec::new();
    let read = table.read_row(address, hashed, OTHER, &mut found);
    matches!(read, Read::Found { .. }) && (found == value(number) || found == b"row")
}

/// Inserts a row by LOCK and PRIMARY.
fn insert(table: &Table, number: u32) {
    let bytes = key(number);
    let hashed = HashSeed::ZERO.hashed(&bytes);
    let address = table.address(hashed.word()).unwrap();
    let lock = table.lock_row(address, hashed, OTHER, (LockMode::Insert, 3));
    let Lock::Granted { version } = lock else { panic!("{lock:?}") };
    let (mut unit, bucket) = (Vec::new(), table.bucket_of(hashed.word(), version));
    let mut writer = BucketUpdateWriter::begin(&mut unit, (0, 0, bucket), version, OTHER);
    writer.put(hashed, b"row");
    writer.finish();
    let unit = BucketUpdate::parse_checked(&unit);
    assert_eq!(table.apply_at_primary(address, &unit), Applied::Applied);
}

proptest! {
    #[test]
    fn copies_with_the_same_rows_are_equal(
        numbers in prop::collection::btree_set(any::<u32>(), 1..400),
        batches in prop::collection::vec(1_usize..70, 2),
        turn in 0_usize..400,
    ) {
        let arenas = [(); 2].map(|()| arena(1 << 20));
        let copies = arenas.each_ref().map(table_in);
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        for (copy, batch) in copies.iter().zip(batches) {
            assert!(copy.begin_bulk_load(0, LOAD) && copy.is_bulk_loaded(0) && !is_served(copy));
            for batch in numbers.chunks(batch) {
                assert_eq!(load(copy, LOAD, batch), BulkLoaded::All);
            }
            assert!(copy.end_bulk_load(0, LOAD));
            assert!(!copy.is_bulk_loaded(0) && is_served(copy));
            let middle = turn % numbers.len();
            numbers.rotate_left(middle);
            numbers[..middle].reverse();
        }
        let [first, second] = &copies;
        assert_eq!(first.bucket_count(0), second.bucket_count(0));
        let [used, used_by_second] = arenas.each_ref().map(|arena| arena.used_bytes_of(0));
        assert_eq!(used, used_by_second);
        let mut rows = 0;
        for bucket in 0..first.bucket_count(0) {
            let [mut one, mut other] = [(); 2].map(|()| BucketSnapshot::default());
            first.snapshot(0, bucket, &mut one);
            second.snapshot(0, bucket, &mut other);
            assert!(one.equals(&other), "bucket {bucket}: {one:?}, {other:?}");
            rows += one.rows().len();
        }
        assert_eq!(rows, numbers.len());
        for copy in &copies {
            assert_eq!(copy.index_differences(0), 0);
            assert!(numbers.iter().all(|number| has(copy, *number)));
        }
        // Transactions go on where the load has ended.
        let taken: BTreeSet<u32> = numbers.iter().copied().collect();
        let new = (0..).find(|number| !taken.contains(number)).unwrap();
        insert(first, new);
        assert!(has(first, new) && first.index_differences(0) == 0);
    }
}

#[test]
fn a_partition_that_was_used_is_not_loaded() {
    let used = table(1 << 20);
    insert(&used, 1);
    assert!(!used.begin_bulk_load(0, LOAD) && is_served(&used));
    assert_eq!(load(&used, LOAD, &[2]), BulkLoaded::Unknown);

    let split = table(1 << 20);
    split.want_buckets(0, 2);
    let granted = split.lock_to_split(0, (0, 1), OTHER);
    assert!(matches!(granted, Reshaping::Granted { .. }), "{granted:?}");
    assert!(!split.begin_bulk_load(0, LOAD), "a bucket is locked");

    let loaded = table(1 << 20);
    assert!(loaded.begin_bulk_load(0, LOAD) && loaded.begin_bulk_load(0, LOAD));
    assert!(!loaded.begin_bulk_load(0, OTHER), "another load has begun");
    assert_eq!(load(&loaded, OTHER, &[1]), BulkLoaded::Unknown);
    assert!(!loaded.end_bulk_load(0, OTHER) && loaded.is_bulk_loaded(0));
    assert_eq!(load(&loaded, LOAD, &[1]), BulkLoaded::All);
    assert!(loaded.end_bulk_load(0, LOAD) && !loaded.end_bulk_load(0, LOAD));
    assert!(!loaded.begin_bulk_load(0, LOAD), "it has rows");
    assert_eq!(load(&loaded, LOAD, &[2]), BulkLoaded::Unknown);
    // The node has no other partition.
    assert!(!loaded.begin_bulk_load(1, LOAD) && !loaded.is_bulk_loaded(1));
}

#[test]
fn a_role_that_changes_during_a_load_is_taken_at_its_end() {
    let table = table(1 << 20);
    assert!(table.begin_bulk_load(0, LOAD));
    table.serve_partition(0);
    assert!(!is_served(&table), "nobody reads half of the rows");
    table.leave_partition(0);
    assert!(table.end_bulk_load(0, LOAD));
    assert!(!is_served(&table), "it has become a backup");
    table.serve_partition(0);
    assert!(is_served(&table));
}

#[test]
fn a_row_that_is_there_is_named() {
    let table = table(1 << 20);
    assert!(table.begin_bulk_load(0, LOAD));
    let numbers: Vec<u32> = (0..100).collect();
    assert_eq!(load(&table, LOAD, &numbers), BulkLoaded::All);
    assert_eq!(load(&table, LOAD, &[100, 101, 7, 8]), BulkLoaded::Exists(2));
    assert_eq!(load(&table, LOAD, &[200, 201, 202, 201]), BulkLoaded::Exists(3));
}

#[test]
fn memory_that_ends_is_told_by_the_copy_that_counts_it() {
    let [counting, other] = [table(64 << 10), table(64 << 10)];
    assert!(counting.begin_bulk_load(0, LOAD) && other.begin_bulk_load(0, LOAD));
    let mut numbers = Vec::new();
    let loaded = loop {
        let first = u32::try_from(numbers.len()).unwrap();
        numbers = (first..first + 40).collect();
        match load(&counting, LOAD, &numbers) {
            BulkLoaded::All => assert_eq!(load_as(&other, LOAD, &numbers, false), BulkLoaded::All),
            BulkLoaded::Full(loaded) => break loaded,
            refused => panic!("{refused:?}"),
        }
        numbers = (0..first + 40).collect();
    };
    assert!((80..500).contains(&numbers[0]), "{numbers:?} in 1,024 lines");
    // Those that are loaded are not sent again.
    let (there, left) = numbers.split_at(loaded);
    assert!(matches!(load(&counting, LOAD, left), BulkLoaded::Full(0)));
    assert_eq!(load_as(&other, LOAD, there, false), BulkLoaded::All);
    for table in [&counting, &other] {
        assert!(table.end_bulk_load(0, LOAD));
        assert!((0..numbers[0]).chain(there.iter().copied()).all(|number| has(table, number)));
        assert!(left.iter().all(|number| !has(table, *number)));
    }
}
