//! Without one of the rules of conflicts by row, something that came and went between a read and its validation is not noticed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(all(feature = "mutants", not(loom)))]

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketUpdate, BucketUpdateWriter, Direction, Key, Lock, LockMode, Owner,
    Partitioning, Read, Table, TableLayout, Validation, keys_with_one_hash, rules,
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
            Some(value) => unit.put(Key::hashed(key), value),
            None => unit.delete(Key::hashed(key)),
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
    let [key, rival] = keys_with_one_hash(5);
    rows.change(&rival, Some(b"row"));
    let (reader, hash) = (Owner::of_epoch(1), Key::hashed(&key).word());
    let address = rows.table.address(hash).unwrap();
    let read = rows.table.read_row(address, Key::hashed(&key), reader, &mut Vec::new());
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
    let key = Key::hashed(b"key");
    let address = rows.table.address(key.word()).unwrap();
    let lock = rows.table.lock_row(address, key, writer, (LockMode::Delete, 0));
    assert_eq!(lock, Lock::Granted { version: 1 });
    let all = (Bound::Unbounded, Bound::Unbounded);
    rows.table.validate_range(0, all, u64::MAX, reader)
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
