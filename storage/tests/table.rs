//! The operations of a table against a `BTreeMap`, at a primary and at a backup that gets the same units.
//!
//! One thread uses tables, most of them with fixed values, of few buckets. A property test draws transactions, whose
//! units reach the backup once, twice or late. A test fails if an operation answers otherwise than the model, if a unit
//! is applied twice or over a gap, if copies differ, if a lock is granted without room (rule C9), or if a lock of an
//! earlier epoch keeps a bucket.
//!
//! *Source*: `docs/protocol.md`, "Unit of change", and `docs/protocol.md`, "Locked buckets".
//!
//! *Not here*: threads (`torn_reads.rs`), rows of any length (`heap_table.rs`, `cells.rs`), and splits (`growth.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketAddress, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashedKey,
    Lock, LockMode, Owner, Partitioning, Read, StorageError, Table, TableDefinition, TableKind,
    TableLayout, TransactionId, Unlocked, Validation,
};
use proptest::prelude::*;

/// A key with its new value; None to delete the key.
type Change = (u64, Option<Vec<u8>>);

/// Main buckets of the tables here: few, so that chains have several overflow buckets.
const BUCKETS: u32 = 3;
const KEYS: usize = 40;
const VALUE_SIZES: [usize; 5] = [1, 8, 13, 40, 4096];
/// Of the same epoch as the owners with small numbers.
const OTHER: Owner = Owner((1 << 50) - 1);

fn table(value_bytes: usize, buckets: u32, limit_bytes: usize) -> Table {
    let partitioning = Partitioning::new(1).unwrap();
    let mut layout = TableLayout::new("t", value_bytes, 1, partitioning).unwrap();
    layout.buckets = buckets;
    let arena = Arc::new(Arena::new(limit_bytes, &[Arena::share_bytes(limit_bytes, 1)]).unwrap());
    Table::new("t", layout, arena, |_| true).unwrap()
}

/// Keys from both ends of the key space.
fn key(index: usize) -> u64 {
    if index.is_multiple_of(2) { index as u64 } else { u64::MAX - index as u64 }
}

fn address(table: &Table, key: u64) -> BucketAddress {
    table.address(key).unwrap()
}

fn value(value_bytes: usize, seed: u8) -> Vec<u8> {
    (0..value_bytes).map(|at| seed.wrapping_add(at.to_le_bytes()[0])).collect()
}

/// The bytes of a unit for bucket `bucket`; `None` deletes.
fn unit(bucket: u32, base_version: u64, owner: Owner, items: &[(u64, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), base_version, owner);
    for (key, value) in items {
        match value {
            Some(value) => writer.put(HashedKey::Number(*key), value),
            None => writer.delete(HashedKey::Number(*key)),
        }
    }
    writer.finish();
    bytes
}

fn bucket_address(table: &Table, unit: &BucketUpdate<'_>) -> BucketAddress {
    table.bucket_address(unit.partition, unit.bucket).unwrap()
}

fn apply_at_primary(table: &Table, bytes: &[u8]) -> Applied {
    let unit = BucketUpdate::parse_checked(bytes);
    table.apply_at_primary(bucket_address(table, &unit), &unit)
}

fn apply_at_backup(table: &Table, bytes: &[u8]) -> Applied {
    let unit = BucketUpdate::parse_checked(bytes);
    table.apply_at_backup(bucket_address(table, &unit), &unit)
}

fn snapshot(table: &Table, bucket: u32) -> BucketSnapshot {
    let mut snapshot = BucketSnapshot::default();
    table.snapshot(0, bucket, &mut snapshot);
    snapshot
}

/// How a unit reaches the backup.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Once,
    Twice,
    /// After a later unit of the bucket, or at the end.
    Held,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Commit(Delivery),
    Abort,
}

#[derive(Clone, Debug)]
struct Transaction {
    changes: Vec<(usize, LockMode, u8)>,
    end: End,
}

fn transaction() -> impl Strategy<Value = Transaction> {
    let mode = prop_oneof![Just(LockMode::Update), Just(LockMode::Insert), Just(LockMode::Delete)];
    let end = prop_oneof![
        4 => Just(End::Commit(Delivery::Once)),
        1 => Just(End::Commit(Delivery::Twice)),
        1 => Just(End::Commit(Delivery::Held)),
        2 => Just(End::Abort),
    ];
    (proptest::collection::vec((0..KEYS, mode, any::<u8>()), 1..8), end)
        .prop_map(|(changes, end)| Transaction { changes, end })
}

/// Two replicas, and the expected rows.
struct Replicas {
    primary: Table,
    backup: Table,
    value_bytes: usize,
    rows: BTreeMap<u64, Vec<u8>>,
    versions: [u64; BUCKETS as usize],
    /// Units that have not reached the backup, by bucket, oldest first.
    held: [VecDeque<Vec<u8>>; BUCKETS as usize],
    transactions: u64,
}

impl Replicas {
    fn new(value_bytes: usize) -> Self {
        let new = || table(value_bytes, BUCKETS, 1 << 20);
        Self {
            primary: new(),
            backup: new(),
            value_bytes,
            rows: BTreeMap::new(),
            versions: [0; BUCKETS as usize],
            held: Default::default(),
            transactions: 0,
        }
    }

    fn bucket(&self, key: u64) -> usize {
        self.primary.locate(key).root as usize
    }

    fn load(&mut self, key: u64, seed: u8) {
        let value = value(self.value_bytes, seed);
        for table in [&self.primary, &self.backup] {
            let loaded = table.load(address(table, key), key, &value);
            if self.rows.contains_key(&key) {
                assert!(matches!(loaded, Err(StorageError::Exists { .. })));
            } else {
                loaded.unwrap();
            }
        }
        self.rows.entry(key).or_insert(value);
    }

    /// Reads `key` at the primary as `reader` and compares with the model.
    fn check_read(&self, key: u64, reader: Owner) {
        let version = self.versions[self.bucket(key)];
        let mut out = vec![0; self.value_bytes];
        let read = self.primary.read(address(&self.primary, key), key, reader, &mut out);
        match self.rows.get(&key) {
            Some(value) => {
                assert_eq!(read, Read::Found { version });
                assert_eq!(&out, value);
            }
            None => assert_eq!(read, Read::Absent { version }),
        }
    }

    /// Checks the view of a bucket for its owner and for others; `held` tells whether `owner` holds the lock.
    fn check_lock(&self, key: u64, owner: Owner, held: bool) {
        let (table, address) = (&self.primary, address(&self.primary, key));
        let version = self.versions[self.bucket(key)];
        let mut out = vec![0; self.value_bytes];
        self.check_read(key, owner);
        assert_eq!(table.validate(address, version, owner), Validation::Unchanged);
        assert_eq!(table.validate(address, version + 1, owner), Validation::Changed);
        if held {
            assert_eq!(table.read(address, key, OTHER, &mut out), Read::Locked);
            assert_eq!(table.validate(address, version, OTHER), Validation::Locked);
            assert_eq!(table.lock(address, key, OTHER, LockMode::Update, &mut out), Lock::Locked);
            assert_eq!(table.unlock(address, 0, OTHER), Unlocked::NotHeld);
            assert_eq!(snapshot(table, table.locate(key).root).owner, owner);
        } else {
            assert_eq!(table.validate(address, version, OTHER), Validation::Unchanged);
            assert_eq!(snapshot(table, table.locate(key).root).owner, Owner::FREE);
        }
    }

    /// Locks `key` and returns whether that was granted.
    fn lock(&self, key: u64, owner: Owner, mode: LockMode) -> bool {
        let version = self.versions[self.bucket(key)];
        let mut out = vec![0; self.value_bytes];
        let lock = self.primary.lock(address(&self.primary, key), key, owner, mode, &mut out);
        let row = self.rows.get(&key);
        let expected = match (mode, row) {
            (LockMode::Update | LockMode::Delete, Some(_)) | (LockMode::Insert, None) => {
                Lock::Granted { version }
            }
            (LockMode::Update | LockMode::Delete, None) => Lock::Absent { version },
            (LockMode::Insert, Some(_)) => Lock::Exists { version },
        };
        assert_eq!(lock, expected);
        assert!(row.is_none_or(|value| *value == out));
        matches!(lock, Lock::Granted { .. })
    }

    fn run(&mut self, transaction: &Transaction) {
        self.transactions += 1;
        let owner = Owner(self.transactions);
        let mut seen = BTreeSet::new();
        let mut granted: BTreeMap<u32, Vec<Change>> = BTreeMap::new();
        for &(index, mode, seed) in &transaction.changes {
            let key = key(index);
            if !seen.insert(key) {
                continue;
            }
            let bucket = self.primary.locate(key).root;
            if self.lock(key, owner, mode) {
                let value = (mode != LockMode::Delete).then(|| value(self.value_bytes, seed));
                granted.entry(bucket).or_default().push((key, value));
            }
            self.check_lock(key, owner, granted.contains_key(&bucket));
        }
        for (bucket, items) in granted {
            match transaction.end {
                End::Commit(delivery) => self.commit(bucket, owner, &items, delivery),
                End::Abort => {
                    let address = self.primary.bucket_address(0, bucket).unwrap();
                    assert_eq!(self.primary.unlock(address, 0, owner), Unlocked::Released);
                    assert_eq!(self.primary.unlock(address, 0, owner), Unlocked::NotHeld);
                }
            }
            self.check_lock(items[0].0, owner, false);
        }
    }

    fn commit(
        &mut self,
        bucket: u32,
        owner: Owner,
        items: &[(u64, Option<Vec<u8>>)],
        delivery: Delivery,
    ) {
        let at = bucket as usize;
        let bytes = unit(bucket, self.versions[at], owner, items);
        assert_eq!(apply_at_primary(&self.primary, &bytes), Applied::Applied);
        assert_eq!(apply_at_primary(&self.primary, &bytes), Applied::Duplicate);
        self.versions[at] += 1;
        for (key, value) in items {
            match value {
                Some(value) => self.rows.insert(*key, value.clone()),
                None => self.rows.remove(key),
            };
        }
        if matches!(delivery, Delivery::Held) {
            self.held[at].push_back(bytes);
            return;
        }
        if !self.held[at].is_empty() {
            let before = snapshot(&self.backup, bucket);
            assert_eq!(apply_at_backup(&self.backup, &bytes), Applied::Gap);
            assert!(snapshot(&self.backup, bucket).equals(&before), "a gap changes nothing");
            self.deliver_held(at);
        }
        assert_eq!(apply_at_backup(&self.backup, &bytes), Applied::Applied);
        if matches!(delivery, Delivery::Twice) {
            assert_eq!(apply_at_backup(&self.backup, &bytes), Applied::Duplicate);
        }
        assert!(snapshot(&self.backup, bucket).equals(&snapshot(&self.primary, bucket)));
    }

    fn deliver_held(&mut self, bucket: usize) {
        while let Some(bytes) = self.held[bucket].pop_front() {
            assert_eq!(apply_at_backup(&self.backup, &bytes), Applied::Applied);
        }
    }

    fn check_end(&mut self) {
        for index in 0..KEYS {
            self.check_read(key(index), OTHER);
        }
        for bucket in 0..BUCKETS {
            self.deliver_held(bucket as usize);
            let primary = snapshot(&self.primary, bucket);
            let backup = snapshot(&self.backup, bucket);
            assert!(primary.equals(&backup), "replicas differ: {primary:?} {backup:?}");
            assert_eq!((primary.owner, backup.owner), (Owner::FREE, Owner::FREE));
            assert_eq!(primary.version, self.versions[bucket as usize]);
            let expected = self.rows.iter().filter(|row| self.bucket(*row.0) == bucket as usize);
            assert!(primary.rows().eq(expected.map(|(key, value)| (*key, value.as_slice()))));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replicas_agree_with_the_model(
        value_bytes in proptest::sample::select(&VALUE_SIZES[..]),
        loads in proptest::collection::vec((0..KEYS, any::<u8>()), 0..50),
        transactions in proptest::collection::vec(transaction(), 0..60),
    ) {
        let mut replicas = Replicas::new(value_bytes);
        for (index, seed) in loads {
            replicas.load(key(index), seed);
        }
        for transaction in &transactions {
            replicas.run(transaction);
        }
        replicas.check_end();
    }
}

/// One bucket, 8-byte values: seven slots, and room within the limit for one overflow bucket.
fn nearly_full(rows: u64) -> (Table, u64) {
    let partitioning = Partitioning::new(1).unwrap();
    let mut layout = TableLayout::new("t", 8, 1, partitioning).unwrap();
    layout.buckets = 1;
    // The arena's first line, the main bucket (18 words in 3 lines), one overflow bucket (1 line).
    let limit_bytes = 64 + layout.main_bytes(1) + 64;
    let table = table(8, 1, limit_bytes);
    for key in 0..rows {
        table.load(address(&table, key), key, &key.to_le_bytes()).unwrap();
    }
    // Three slots of two words fit an overflow bucket of one line, after two words of header.
    (table, 7 + 3)
}

fn lock(table: &Table, key: u64, owner: Owner, mode: LockMode) -> Lock {
    table.lock(address(table, key), key, owner, mode, &mut [0; 8])
}

#[test]
fn inserts_are_refused_at_the_limit_and_leave_no_lock() {
    let (table, capacity) = nearly_full(0);
    for key in 0..capacity {
        table.load(address(&table, key), key, &[0; 8]).unwrap();
    }
    let owner = Owner(1);
    let loaded = table.load(address(&table, capacity), capacity, &[0; 8]);
    assert!(matches!(loaded, Err(StorageError::Full { .. })));
    assert_eq!(lock(&table, capacity, owner, LockMode::Insert), Lock::Full);
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
    assert_eq!(table.unlock(address(&table, 0), 0, owner), Unlocked::NotHeld);

    // A lock that the transaction holds for another key stays.
    assert_eq!(lock(&table, 0, owner, LockMode::Delete), Lock::Granted { version: 0 });
    assert_eq!(lock(&table, capacity, owner, LockMode::Insert), Lock::Full);
    assert_eq!(snapshot(&table, 0).owner, owner);
    assert_eq!(apply_at_primary(&table, &unit(0, 0, owner, &[(0, None)])), Applied::Applied);

    // The slot of the deleted row can be promised.
    assert_eq!(lock(&table, capacity, owner, LockMode::Insert), Lock::Granted { version: 1 });
    let bytes = unit(0, 1, owner, &[(capacity, Some(vec![9; 8]))]);
    assert_eq!(apply_at_primary(&table, &bytes), Applied::Applied);
    assert_eq!(snapshot(&table, 0).rows().len() as u64, capacity);
}

#[test]
fn a_promised_slot_is_not_promised_twice_until_the_lock_is_released() {
    let (table, capacity) = nearly_full(0);
    for key in 1..capacity {
        table.load(address(&table, key), key, &[0; 8]).unwrap();
    }
    let first = Owner(1);
    for _ in 0..300 {
        assert_eq!(lock(&table, 0, first, LockMode::Insert), Lock::Granted { version: 0 });
        assert_eq!(lock(&table, capacity, first, LockMode::Insert), Lock::Full);
        assert_eq!(table.validate(address(&table, 0), 0, OTHER), Validation::Locked);
        assert_eq!(table.unlock(address(&table, 0), 0, first), Unlocked::Released);
    }
    assert_eq!(lock(&table, capacity, OTHER, LockMode::Insert), Lock::Granted { version: 0 });
    let bytes = unit(0, 0, OTHER, &[(capacity, Some(vec![1; 8]))]);
    assert_eq!(apply_at_primary(&table, &bytes), Applied::Applied);
    assert_eq!(lock(&table, 0, OTHER, LockMode::Insert), Lock::Full);
}

#[test]
fn a_backup_has_room_for_granted_inserts() {
    let (primary, capacity) = nearly_full(0);
    let (backup, _) = nearly_full(0);
    let mut version = 0;
    for key in 0.. {
        let owner = Owner(key + 1);
        let Lock::Granted { .. } = lock(&primary, key, owner, LockMode::Insert) else { break };
        let bytes = unit(0, version, owner, &[(key, Some(key.to_le_bytes().into()))]);
        assert_eq!(apply_at_backup(&backup, &bytes), Applied::Applied);
        assert_eq!(apply_at_primary(&primary, &bytes), Applied::Applied);
        version += 1;
    }
    assert_eq!(version, capacity);
    let snapshot = snapshot(&backup, 0);
    assert_eq!((snapshot.version, snapshot.owner), (capacity, Owner::FREE));
    assert!(snapshot.rows().map(|row| row.0).eq(0..capacity));
    assert!(snapshot.rows().all(|(key, value)| value == key.to_le_bytes()));
}

#[test]
fn absent_and_exists_release_the_lock_unless_it_was_held_before() {
    let (table, _) = nearly_full(1);
    let owner = Owner(1);
    let version = 0;
    assert_eq!(lock(&table, 1, owner, LockMode::Update), Lock::Absent { version });
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
    assert_eq!(lock(&table, 1, owner, LockMode::Delete), Lock::Absent { version });
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
    assert_eq!(lock(&table, 0, owner, LockMode::Insert), Lock::Exists { version });
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);

    assert_eq!(lock(&table, 0, owner, LockMode::Update), Lock::Granted { version });
    assert_eq!(lock(&table, 1, owner, LockMode::Update), Lock::Absent { version });
    assert_eq!(lock(&table, 0, owner, LockMode::Insert), Lock::Exists { version });
    assert_eq!(snapshot(&table, 0).owner, owner);
    assert_eq!(table.unlock(address(&table, 0), 0, owner), Unlocked::Released);
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
}

#[test]
fn a_unit_of_several_keys_steps_the_version_once() {
    let (table, _) = nearly_full(2);
    let owner = Owner(1);
    assert_eq!(lock(&table, 0, owner, LockMode::Delete), Lock::Granted { version: 0 });
    assert_eq!(lock(&table, 1, owner, LockMode::Update), Lock::Granted { version: 0 });
    assert_eq!(lock(&table, 2, owner, LockMode::Insert), Lock::Granted { version: 0 });
    assert_eq!(lock(&table, 2, OTHER, LockMode::Insert), Lock::Locked);
    let items = [(0, None), (1, Some(vec![11; 8])), (2, Some(vec![12; 8]))];
    let bytes = unit(0, 0, owner, &items);
    assert_eq!(apply_at_primary(&table, &bytes), Applied::Applied);
    let snapshot = snapshot(&table, 0);
    assert_eq!((snapshot.version, snapshot.owner), (1, Owner::FREE));
    assert!(snapshot.rows().eq([(1, [11; 8].as_slice()), (2, [12; 8].as_slice())]));
    assert_eq!(apply_at_primary(&table, &bytes), Applied::Duplicate);
}

#[test]
fn a_primary_applies_only_under_the_units_own_lock() {
    let (table, _) = nearly_full(1);
    let put = |owner| unit(0, 0, owner, &[(0, Some(vec![1; 8]))]);
    assert_eq!(apply_at_primary(&table, &put(Owner(1))), Applied::Gap);
    assert_eq!(lock(&table, 0, Owner(2), LockMode::Update), Lock::Granted { version: 0 });
    assert_eq!(apply_at_primary(&table, &put(Owner(1))), Applied::Gap);
    assert_eq!(snapshot(&table, 0).owner, Owner(2));
    assert_eq!(apply_at_primary(&table, &put(Owner(2))), Applied::Applied);
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
}

#[test]
fn a_lock_of_an_earlier_epoch_is_dead() {
    let (table, capacity) = nearly_full(0);
    for key in 1..capacity {
        table.load(address(&table, key), key, &[0; 8]).unwrap();
    }
    let of_epoch =
        |epoch| Owner::from(TransactionId { epoch, node: 1, worker: 0, coroutine: 3, counter: 7 });
    let (dead, owner) = (of_epoch(4), of_epoch(5));
    // It has the only slot that is free.
    assert_eq!(lock(&table, 0, dead, LockMode::Insert), Lock::Granted { version: 0 });
    let at = address(&table, 0);
    assert_eq!(table.validate(at, 0, owner), Validation::Unchanged);
    assert_eq!(table.read(at, 0, owner, &mut [0; 8]), Read::Absent { version: 0 });
    assert_eq!(lock(&table, 0, owner, LockMode::Insert), Lock::Granted { version: 0 });
    assert_eq!(table.validate(at, 0, of_epoch(6)), Validation::Unchanged);
    // Late messages of the dead transaction do nothing.
    assert_eq!(table.unlock(at, 0, dead), Unlocked::NotHeld);
    let put = |owner| unit(0, 0, owner, &[(0, Some(vec![1; 8]))]);
    assert_eq!(apply_at_primary(&table, &put(dead)), Applied::Gap);
    assert_eq!(apply_at_primary(&table, &put(owner)), Applied::Applied);
    assert_eq!(snapshot(&table, 0).rows().len() as u64, capacity);
}

#[test]
fn dead_locks_are_freed_with_their_slots() {
    let (table, capacity) = nearly_full(0);
    for key in 1..capacity {
        table.load(address(&table, key), key, &[0; 8]).unwrap();
    }
    let of_epoch =
        |epoch| Owner::from(TransactionId { epoch, node: 1, worker: 0, coroutine: 3, counter: 7 });
    assert_eq!(lock(&table, 0, of_epoch(4), LockMode::Insert), Lock::Granted { version: 0 });
    let buckets = table.layout().buckets;
    assert!(!table.free_dead_locks(0, 0..buckets, 4), "there are no buckets behind the last");
    assert_eq!(snapshot(&table, 0).owner, of_epoch(4), "of the present epoch");
    let bucket = table.locate(0).root;
    assert!(!table.free_dead_locks(0, bucket + 1..buckets, 5));
    assert_eq!(snapshot(&table, 0).owner, of_epoch(4), "of another bucket");
    assert_eq!(table.free_dead_locks(0, bucket..bucket + 1, 5), bucket + 1 < buckets);
    assert_eq!(snapshot(&table, 0).owner, Owner::FREE);
    assert!(!table.free_dead_locks(1, 0..buckets, 5), "there is no such partition");
    // When the epoch has come around, the word would not be dead any more.
    let around = of_epoch(4 + Owner::EPOCHS - 1);
    assert_eq!(lock(&table, 0, around, LockMode::Insert), Lock::Granted { version: 0 });
}

#[test]
fn what_dead_transactions_have_left_is_removed() {
    let partitioning = Partitioning::new(1).unwrap();
    let definition = TableDefinition {
        name: "ordered".to_owned(),
        kind: TableKind::Ordered,
        value_bytes: 0,
        rows: 10,
        is_system: false,
    };
    let layout = definition.layout(partitioning).unwrap();
    let arena = Arc::new(Arena::new(1 << 20, &[1 << 19]).unwrap());
    let table = Table::new("ordered", layout, Arc::clone(&arena), |_| true).unwrap();
    let used = arena.used_bytes();
    let of_epoch = |epoch, counter| {
        Owner::from(TransactionId { epoch, node: 0, worker: 0, coroutine: 0, counter })
    };
    let insert = |key: &'static [u8], owner| {
        let key = table.hashed(key);
        let address = table.address(key.word()).unwrap();
        table.lock_row(address, key, owner, (LockMode::Insert, 100))
    };
    table.set_barrier(0, of_epoch(1, 9));
    assert_eq!(insert(b"dead", of_epoch(1, 1)), Lock::Granted { version: 0 });
    assert_eq!(insert(b"alive", of_epoch(2, 1)), Lock::Granted { version: 0 });
    assert_eq!((table.barrier_count(0), table.index_differences(0)), (1, 4));
    table.end_dead(2);
    // The pending entry that is left is in no row.
    assert_eq!((table.barrier_count(0), table.index_differences(0)), (0, 2));
    table.end_dead(3);
    assert_eq!((table.index_differences(0), arena.used_bytes()), (0, used));
}
