//! Heap tables at their memory limit: a granted lock has room for the announced value.
//!
//! Owners lock rows of one table for values of 1,000 bytes until a lock is refused; all of it on one thread. A test fails
//! if a granted write exceeds the limit or loses a value, or if an abort gives back more or less than its own reservation.
//!
//! *Source*: rule C9 in `docs/protocol.md`.
//!
//! *Not here*: two copies (`cells.rs`), and tables with fixed values (`table.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(loom))]

use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketUpdate, BucketUpdateWriter, HashSeed, Lock, LockMode, Owner,
    Partitioning, Read, Table, TableLayout, Unlocked,
};

/// The arena of a node with a single partition.
fn arena(limit_bytes: usize) -> Result<Arena, gannet_storage::StorageError> {
    Arena::new(limit_bytes, &[Arena::share_bytes(limit_bytes, 1)])
}

/// A table whose rows are mostly in different buckets.
struct Rows {
    table: Table,
    arena: Arc<Arena>,
}

impl Rows {
    fn new(limit_bytes: usize) -> Self {
        let partitioning = Partitioning::new(1).unwrap();
        let mut layout = TableLayout::heap("rows", 1, partitioning).unwrap();
        layout.buckets = 512;
        let arena = Arc::new(arena(layout.main_bytes(1) + limit_bytes).unwrap());
        let table = Table::new("rows", layout, Arc::clone(&arena), |_| true).unwrap();
        Self { table, arena }
    }

    fn lock(&self, key: &str, owner: Owner, mode: LockMode, value_bytes: usize) -> Lock {
        let key = HashSeed::ZERO.hashed(key.as_bytes());
        let address = self.table.address(key.word()).unwrap();
        self.table.lock_row(address, key, owner, (mode, value_bytes))
    }

    fn unlock(&self, key: &str, owner: Owner) -> Unlocked {
        let key = HashSeed::ZERO.hashed(key.as_bytes());
        self.table.unlock_row(self.table.address(key.word()).unwrap(), key, owner)
    }

    /// Writes a row that `owner` has locked at `version`.
    fn write(&self, key: &str, owner: Owner, version: u64, value: &[u8]) {
        let row_key = HashSeed::ZERO.hashed(key.as_bytes());
        let location = self.table.locate(row_key.word());
        let mut bytes = Vec::new();
        let header = (0, 0, location.root);
        let mut unit = BucketUpdateWriter::begin(&mut bytes, header, version, owner);
        unit.put(row_key, value);
        unit.finish();
        let address = self.table.address(row_key.word()).unwrap();
        let applied = self.table.apply_at_primary(address, &BucketUpdate::parse_checked(&bytes));
        assert_eq!(applied, Applied::Applied);
    }

    fn value(&self, key: &str) -> Vec<u8> {
        let mut value = Vec::new();
        let key = HashSeed::ZERO.hashed(key.as_bytes());
        let address = self.table.address(key.word()).unwrap();
        let read = self.table.read_row(address, key, Owner(u64::MAX), &mut value);
        assert!(matches!(read, Read::Found { .. }));
        value
    }

    fn assert_within_limit(&self) {
        let (used, limit) = (self.arena.used_bytes(), self.arena.limit_bytes());
        assert!(used <= limit, "{used} bytes of {limit}");
    }
}

/// Locks keys, each by another owner, for values of 1,000 bytes, until a lock is refused.
fn lock_until_full(rows: &Rows, mode: LockMode) -> Vec<(String, Owner, u64)> {
    let mut granted = Vec::new();
    for number in 1..200 {
        let (key, owner) = (format!("row {number}"), Owner(number));
        match rows.lock(&key, owner, mode, 1_000) {
            Lock::Granted { version } => granted.push((key, owner, version)),
            Lock::Full => return granted,
            Lock::Locked => {} // Another's bucket.
            other => panic!("{other:?}"),
        }
    }
    panic!("the limit was never reached");
}

fn write_all(rows: &Rows, granted: &[(String, Owner, u64)]) {
    for (number, (key, owner, version)) in (0_u8..).zip(granted) {
        rows.write(key, *owner, *version, &[number; 1_000]);
    }
    rows.assert_within_limit();
    for (number, (key, ..)) in (0_u8..).zip(granted) {
        assert_eq!(rows.value(key), [number; 1_000]);
    }
}

#[test]
fn granted_inserts_fit() {
    let rows = Rows::new(50_000);
    let granted = lock_until_full(&rows, LockMode::Insert);
    assert!(granted.len() > 10, "{} rows", granted.len());
    write_all(&rows, &granted);
}

#[test]
fn granted_updates_to_longer_values_fit() {
    let rows = Rows::new(60_000);
    for number in 1..200 {
        let (key, owner) = (format!("row {number}"), Owner(number));
        let lock = rows.lock(&key, owner, LockMode::Insert, 8);
        let Lock::Granted { version } = lock else { panic!("{lock:?}") };
        rows.write(&key, owner, version, &[0; 8]);
    }
    let granted = lock_until_full(&rows, LockMode::Update);
    assert!(granted.len() > 10, "{} rows", granted.len());
    write_all(&rows, &granted);
    // A row that keeps its size needs no memory, however full the table is.
    let (key, owner) = (&granted[0].0, Owner(1_000));
    let lock = rows.lock(key, owner, LockMode::Update, 999);
    let Lock::Granted { version } = lock else { panic!("{lock:?}") };
    rows.write(key, owner, version, &[7; 999]);
    rows.assert_within_limit();
}

#[test]
fn an_abort_releases_its_reservation() {
    let rows = Rows::new(50_000);
    let granted = lock_until_full(&rows, LockMode::Insert);
    let (given_up, kept) = granted.split_at(5);
    for (key, owner, _) in given_up {
        assert_eq!(rows.unlock(key, *owner), Unlocked::Released);
        // A second abort releases no other reservation.
        assert_eq!(rows.unlock(key, *owner), Unlocked::NotHeld);
    }
    let again: Vec<_> = given_up
        .iter()
        .map(|(key, Owner(owner), _)| {
            let owner = Owner(owner + 1_000);
            let lock = rows.lock(key, owner, LockMode::Insert, 1_000);
            let Lock::Granted { version } = lock else { panic!("{lock:?}") };
            (key.clone(), owner, version)
        })
        .collect();
    let refused = rows.lock("one more", Owner(5_000), LockMode::Insert, 1_000);
    assert!(matches!(refused, Lock::Full | Lock::Locked), "{refused:?}");
    write_all(&rows, &[kept, &again].concat());
}
