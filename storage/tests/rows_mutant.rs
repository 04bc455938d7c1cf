//! Without one of the rules of rows, ranges and merges, a change between a read and its validation is not noticed.
//!
//! The table is a backup's copy on one thread. A test reads, changes rows by units, and validates. It fails if a validation
//! passes over the change while all rules hold, or notices the change without the rule. Removed are `LEAVING_ENTRIES`,
//! `REMOVAL_MARKS`, `MARKS_OF_LEAVES`, `ONE_HASH`, `MERGED_VERSION`, `MERGED_MARKS` and `MERGED_BUCKETS`; and `LOADED_UNSERVED`, without which
//! a bucket is split while rows are loaded into it.
//!
//! *Source*: `docs/protocol.md`, "Rules by name".
//!
//! *Not here*: other rules; `tests/mutants.rs` lists the tests that remove them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "mutants", not(loom)))]

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketSnapshot, BucketUpdate, BucketUpdateWriter, Direction, HashSeed, Lock,
    LockMode, Owner, Partitioning, Read, Reshaping, Table, TableLayout, Validation, rules,
};

/// An ordered table with one bucket, as a backup has it.
struct Rows {
    table: Table,
    version: u64,
}

impl Rows {
    fn new() -> Self {
        let partitioning = Partitioning::new(1).unwrap();
        let layout = TableLayout::ordered("rows", 0, partitioning).unwrap();
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 20]).unwrap());
        let table = Table::new("rows", layout, arena, |_| true).unwrap();
        Self { table, version: 0 }
    }

    /// Writes a row, or removes it.
    fn change(&mut self, key: &[u8], value: Option<&[u8]>) {
        let mut bytes = Vec::new();
        let owner = Owner::of_epoch(1);
        let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, 0), self.version, owner);
        match value {
            Some(value) => unit.put(HashSeed::ZERO.hashed(key), value),
            None => unit.delete(HashSeed::ZERO.hashed(key)),
        }
        unit.finish();
        let address = self.table.bucket_address(0, 0).unwrap();
        let applied = self.table.apply_at_backup(address, &BucketUpdate::parse_checked(&bytes));
        assert_eq!(applied, Applied::Applied);
        self.version += 1;
    }

    /// The number of the index at which a range is scanned, which is empty.
    fn scan(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> u64 {
        let reader = Owner::of_epoch(1);
        let (number, _) = self.table.scan(0, range, Direction::Ascending, reader, |row| {
            panic!("{:?} is in the range", row.key);
            #[allow(unreachable_code, reason = "a visitor's type")]
            ControlFlow::Continue(())
        });
        number
    }
}

/// What becomes of a scan of an empty range, to which a key comes in between, and goes. So many keys follow before it, for which its leaf is
/// split in the middle.
fn come_and_gone(keys: u16) -> Validation {
    let mut rows = Rows::new();
    let key = u16::to_be_bytes;
    (0..100).for_each(|number| rows.change(&key(number), Some(b"row")));
    let (from, to) = (key(300), key(301));
    let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
    let number = rows.scan(range);
    rows.change(&from, Some(b"row"));
    rows.change(&from, None);
    (300 - keys..300).rev().for_each(|number| rows.change(&key(number), Some(b"row")));
    rows.table.validate_range(0, range, number, Owner::of_epoch(1))
}

/// What becomes of the read of a key that was absent and comes and goes, while a row with its hash is there.
fn beside_its_rival() -> Validation {
    let mut rows = Rows::new();
    let [key, rival] = HashSeed::ZERO.keys_with_one_hash(5);
    rows.change(&rival, Some(b"row"));
    let (reader, hash) = (Owner::of_epoch(1), HashSeed::ZERO.hashed(&key).word());
    let address = rows.table.address(hash).unwrap();
    let read = rows.table.read_row(address, HashSeed::ZERO.hashed(&key), reader, &mut Vec::new());
    let Read::Absent { version } = read else { panic!("{read:?}") };
    rows.change(&key, Some(b"row"));
    rows.change(&key, None);
    rows.table.validate_row(hash, version, reader)
}

/// What becomes of a range whose keys were counted while another transaction had locked one for its deletion.
fn counted_beside_a_deletion() -> Validation {
    let mut rows = Rows::new();
    rows.change(b"key", Some(b"row"));
    let [writer, reader] = [1, 2].map(|number| Owner(Owner::of_epoch(1).0 + number));
    let key = HashSeed::ZERO.hashed(b"key");
    let address = rows.table.address(key.word()).unwrap();
    let lock = rows.table.lock_row(address, key, writer, (LockMode::Delete, 0));
    assert_eq!(lock, Lock::Granted { version: 1 });
    let all = (Bound::Unbounded, Bound::Unbounded);
    rows.table.validate_range(0, all, u64::MAX, reader)
}

/// A table whose only bucket was split. Both halves have a key.
struct Halves {
    table: Table,
    keys: [Vec<u8>; 2],
}

impl Halves {
    fn new() -> Self {
        let mut rows = Rows::new();
        let is_of = |number: u16, half: u32| {
            let hash = HashSeed::ZERO.hashed(&number.to_be_bytes()).word();
            rows.table.bucket_of(hash, 1 << 56) == half
        };
        let keys = [0, 1].map(|half| (0..).find(|number| is_of(*number, half)).unwrap());
        let keys = keys.map(|number| number.to_be_bytes().to_vec());
        keys.iter().for_each(|key| rows.change(key, Some(b"row")));
        let halves = Self { table: rows.table, keys };
        halves.apply(0, |unit, _| unit.split());
        halves
    }

    fn version(&self, bucket: u32) -> u64 {
        let mut snapshot = BucketSnapshot::default();
        self.table.snapshot(0, bucket, &mut snapshot);
        snapshot.version
    }

    fn apply(&self, bucket: u32, write: impl FnOnce(BucketUpdateWriter<'_>, &Self)) {
        let mut bytes = Vec::new();
        let (version, owner) = (self.version(bucket), Owner::of_epoch(1));
        write(BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner), self);
        self.apply_bytes(&bytes);
    }

    fn apply_bytes(&self, bytes: &[u8]) {
        let unit = BucketUpdate::parse_checked(bytes);
        let address = self.table.bucket_address(0, unit.bucket).unwrap();
        assert_eq!(self.table.apply_at_backup(address, &unit), Applied::Applied);
    }

    /// Writes the key of a half, whose row is in some bucket, or removes it.
    fn change(&self, half: usize, bucket: u32, value: Option<&[u8]>) {
        self.apply(bucket, |mut unit, halves| {
            let key = HashSeed::ZERO.hashed(&halves.keys[half]);
            match value {
                Some(value) => unit.put(key, value),
                None => unit.delete(key),
            }
            unit.finish();
        });
    }

    fn merge(&self) {
        let (mut bytes, version) = (Vec::new(), self.version(0));
        let out = (&mut BucketSnapshot::default(), &mut bytes);
        self.table.write_merge((0, 0, 0), version, Owner::of_epoch(1), out);
        self.apply_bytes(&bytes);
        assert_eq!(self.version(1), 0);
    }

    fn validate(&self, half: usize, version: u64) -> Validation {
        let hash = HashSeed::ZERO.hashed(&self.keys[half]).word();
        self.table.validate_row(hash, version, Owner::of_epoch(1))
    }
}

/// What becomes of a read of a row in a half with many changes, which is merged; then the row is written.
fn written_after_a_merge() -> Validation {
    let halves = Halves::new();
    (0..5).for_each(|_| halves.change(1, 1, Some(b"again")));
    let seen = halves.version(1);
    halves.merge();
    assert_eq!(halves.validate(1, seen), Validation::Unchanged);
    halves.change(1, 0, Some(b"later"));
    halves.validate(1, seen)
}

/// What becomes of the read of an absent key that comes and goes before its half is merged.
fn come_and_gone_before_a_merge() -> Validation {
    let halves = Halves::new();
    halves.change(1, 1, None);
    let seen = halves.version(1);
    halves.change(1, 1, Some(b"row"));
    halves.change(1, 1, None);
    halves.merge();
    halves.validate(1, seen)
}

/// What becomes of all rows of a half that is merged, one of which is written then.
fn whole_half_that_is_merged() -> Validation {
    let halves = Halves::new();
    let seen = halves.version(1);
    halves.merge();
    halves.change(1, 0, Some(b"later"));
    halves.table.validate_whole(0, 1, seen, Owner::of_epoch(1))
}

/// Whether a bucket of a partition is granted for a split while rows are loaded into it.
fn splits_during_a_load() -> bool {
    let table = Rows::new().table;
    let [load, growth] = [1, 2].map(|number| Owner(Owner::of_epoch(1).0 + number));
    assert!(table.begin_bulk_load(0, load));
    matches!(table.lock_to_split(0, (0, 1), growth), Reshaping::Granted { .. })
}

#[test]
fn a_partition_that_is_loaded_is_used_without_a_rule() {
    assert!(!splits_during_a_load());
    let _without = rules::LOADED_UNSERVED.remove();
    assert!(splits_during_a_load());
}

#[test]
fn what_has_changed_beside_a_merge_is_missed_without_a_rule() {
    let all = [written_after_a_merge, come_and_gone_before_a_merge, whole_half_that_is_merged];
    assert_eq!(all.map(|look| look()), [Validation::Changed; 3]);
    let without = rules::MERGED_VERSION.remove();
    assert_eq!(written_after_a_merge(), Validation::Unchanged);
    drop(without);
    let without = rules::MERGED_MARKS.remove();
    assert_eq!(come_and_gone_before_a_merge(), Validation::Unchanged);
    drop(without);
    let _without = rules::MERGED_BUCKETS.remove();
    assert_eq!(whole_half_that_is_merged(), Validation::Unchanged);
}

#[test]
fn what_came_and_went_is_missed_without_a_rule() {
    let gone = || come_and_gone(0);
    let split = || come_and_gone(100);
    assert_eq!([gone(), split(), beside_its_rival()], [Validation::Changed; 3]);
    assert_eq!(counted_beside_a_deletion(), Validation::Locked);
    let without = rules::LEAVING_ENTRIES.remove();
    assert_eq!(counted_beside_a_deletion(), Validation::Unchanged);
    drop(without);
    let without = rules::REMOVAL_MARKS.remove();
    assert_eq!(gone(), Validation::Unchanged);
    drop(without);
    let without = rules::MARKS_OF_LEAVES.remove();
    assert_eq!(split(), Validation::Unchanged);
    drop(without);
    let _without = rules::ONE_HASH.remove();
    assert_eq!(beside_its_rival(), Validation::Unchanged);
}
