//! Growth and shrinking: buckets are split and merged at two copies while rows are inserted, deleted and read.
//!
//! Primary and backup are tables on one thread. Several splits or merges reach the backup in reverse order, and each unit
//! comes twice. A test fails if the copies differ, if a row is not found, also at an address from before the splits, if a
//! split is granted without memory or beside a lock, or if a table that has emptied keeps its buckets.
//!
//! *Source*: `docs/protocol.md`, "Growth", and `docs/protocol.md`, "Shrinking".
//!
//! *Not here*: readers beside a split (`storage/src/loom_tests.rs`), and learners (`engine/src/learning/tests.rs`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketAddress, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashSeed,
    HashedKey, Lock, LockMode, Owner, Partitioning, Read, Reshaping, Table, TableDefinition,
    TableKind, Validation, level_of,
};
use proptest::prelude::*;

const KINDS: [(TableKind, usize); 4] =
    [(TableKind::Fixed, 8), (TableKind::Fixed, 200), (TableKind::Heap, 8), (TableKind::Ordered, 8)];
const READER: Owner = Owner(99);

fn arena(bytes: usize) -> Arc<Arena> {
    Arc::new(Arena::new(bytes + 64, &[bytes]).expect("address space"))
}

/// A table of one partition that begins with so many buckets.
fn table(kind: usize, roots: u32, arena: &Arc<Arena>) -> Table {
    let (kind, value_bytes) = KINDS[kind];
    let definition =
        TableDefinition { name: "t".to_owned(), kind, value_bytes, rows: 1, is_system: false };
    let mut layout = definition.layout(Partitioning::new(1).unwrap()).unwrap();
    layout.buckets = roots;
    Table::new("t", layout, Arc::clone(arena), |_| true).unwrap()
}

/// Two copies, and what they should hold.
struct Copies {
    primary: Table,
    backup: Table,
    arenas: [Arc<Arena>; 2],
    rows: BTreeMap<u64, Vec<u8>>,
    owners: u64,
}

impl Copies {
    fn new(kind: usize, roots: u32, bytes: usize) -> Self {
        let arenas = [(), ()].map(|()| arena(bytes));
        let [primary, backup] = arenas.each_ref().map(|arena| table(kind, roots, arena));
        Self { primary, backup, arenas, rows: BTreeMap::new(), owners: 0 }
    }

    fn with_key<T>(&self, number: u64, with: impl FnOnce(HashedKey<'_>) -> T) -> T {
        match self.primary.layout().kind {
            TableKind::Fixed => with(HashedKey::Number(number)),
            TableKind::Heap | TableKind::Ordered => {
                with(HashSeed::ZERO.hashed(&number.to_be_bytes()))
            }
        }
    }

    fn value(&self, number: u64) -> Vec<u8> {
        vec![u8::try_from(number % 251).unwrap(); self.primary.layout().value_bytes]
    }

    fn lock(&mut self, at: Option<BucketAddress>, number: u64, mode: LockMode) -> (Owner, Lock) {
        self.owners += 1;
        let (table, owner) = (&self.primary, Owner(Owner::of_epoch(1).0 + self.owners));
        let lock = self.with_key(number, |key| {
            let address = at.unwrap_or_else(|| table.address(key.word()).unwrap());
            if table.layout().kind == TableKind::Fixed {
                table.lock(address, number, owner, mode, &mut self.value(number))
            } else {
                table.lock_row(address, key, owner, (mode, table.layout().value_bytes))
            }
        });
        (owner, lock)
    }

    /// Inserts a row that is not there, or deletes one that is; `false` where memory ends.
    fn change(&mut self, at: Option<BucketAddress>, number: u64) -> bool {
        let is_there = self.rows.contains_key(&number);
        let mode = if is_there { LockMode::Delete } else { LockMode::Insert };
        let (owner, lock) = self.lock(at, number, mode);
        let version = match lock {
            Lock::Granted { version } => version,
            Lock::Full => return false,
            other => panic!("{other:?}"),
        };
        let value = self.value(number);
        let bytes = self.with_key(number, |key| {
            let mut bytes = Vec::new();
            let bucket = self.primary.bucket_of(key.word(), version);
            let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner);
            if is_there {
                unit.delete(key)
            } else {
                unit.put(key, &value)
            }
            unit.finish();
            bytes
        });
        self.back_up(&bytes);
        self.commit(&bytes);
        if is_there {
            self.rows.remove(&number)
        } else {
            self.rows.insert(number, value)
        };
        true
    }

    fn back_up(&self, unit: &[u8]) {
        let unit = BucketUpdate::parse_checked(unit);
        assert!(self.backup.fits_bucket(&unit));
        let address = || self.backup.address_to_fill(&unit).unwrap();
        assert_eq!(self.backup.apply_at_backup(address(), &unit), Applied::Applied);
        assert_eq!(self.backup.apply_at_backup(address(), &unit), Applied::Duplicate);
    }

    fn commit(&self, unit: &[u8]) {
        let unit = BucketUpdate::parse_checked(unit);
        let address = self.primary.bucket_address(unit.partition, unit.bucket).unwrap();
        assert_eq!(self.primary.apply_at_primary(address, &unit), Applied::Applied);
        assert_eq!(self.primary.apply_at_primary(address, &unit), Applied::Duplicate);
    }

    /// Splits up to `count` buckets at once; their units reach the backup in reverse order.
    fn split(&mut self, count: u32) -> Vec<Reshaping> {
        let (mut units, mut found) = (Vec::new(), Vec::new());
        let wanted = self.primary.splits_wanted(0);
        for behind in 0..count {
            self.owners += 1;
            let owner = Owner(Owner::of_epoch(1).0 + self.owners);
            let splitting = self.primary.lock_to_split(0, (behind, wanted), owner);
            found.push(splitting);
            let Reshaping::Granted { bucket, version } = splitting else { break };
            let mut bytes = Vec::new();
            BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner).split();
            units.push(bytes);
        }
        units.iter().rev().for_each(|unit| self.back_up(unit));
        units.iter().for_each(|unit| self.commit(unit));
        found
    }

    /// Merges up to `count` halves at once; their units reach the backup in reverse order.
    fn merge(&mut self, count: u32) -> Vec<Reshaping> {
        let (mut units, mut found) = (Vec::new(), Vec::new());
        let mut snapshot = BucketSnapshot::default();
        for behind in 0..count {
            self.owners += 1;
            let owner = Owner(Owner::of_epoch(1).0 + self.owners);
            let merging = self.primary.lock_to_merge(0, behind, owner);
            found.push(merging);
            let Reshaping::Granted { bucket, version } = merging else { break };
            let mut bytes = Vec::new();
            let out = (&mut snapshot, &mut bytes);
            self.primary.write_merge((0, 0, bucket), version, owner, out);
            units.push(bytes);
        }
        units.iter().rev().for_each(|unit| self.back_up(unit));
        units.iter().for_each(|unit| self.commit(unit));
        found
    }

    /// Merges up to `count` halves while the bucket that is split next is split: one of both is applied first.
    fn merge_beside_split(&mut self, count: u32, is_split_first: bool) {
        let mut units = Vec::new();
        let mut snapshot = BucketSnapshot::default();
        for behind in 0..count {
            self.owners += 1;
            let owner = Owner(Owner::of_epoch(1).0 + self.owners);
            let merging = self.primary.lock_to_merge(0, behind, owner);
            let Reshaping::Granted { bucket, version } = merging else { break };
            let mut bytes = Vec::new();
            let out = (&mut snapshot, &mut bytes);
            self.primary.write_merge((0, 0, bucket), version, owner, out);
            units.push(bytes);
        }
        self.owners += 1;
        let owner = Owner(Owner::of_epoch(1).0 + self.owners);
        if let Reshaping::Granted { bucket, version } = self.primary.lock_to_split(0, (0, 1), owner)
        {
            let mut bytes = Vec::new();
            BucketUpdateWriter::begin(&mut bytes, (0, 0, bucket), version, owner).split();
            let place = if is_split_first { 0 } else { units.len() };
            units.insert(place, bytes);
        }
        units.iter().rev().for_each(|unit| self.back_up(unit));
        units.iter().for_each(|unit| self.commit(unit));
    }

    /// Merges as many halves as are to be merged.
    fn shrink(&mut self) {
        while self.primary.merges_wanted(0) > 0 {
            let merged = self.merge(self.primary.merges_wanted(0).min(4));
            assert!(matches!(merged.first(), Some(Reshaping::Granted { .. })), "{merged:?}");
        }
    }

    /// Splits as many buckets as are to be split.
    fn grow(&mut self) {
        while matches!(self.split(4).first(), Some(Reshaping::Granted { .. })) {}
    }

    fn read(&self, table: &Table, at: Option<BucketAddress>, number: u64) -> Option<Vec<u8>> {
        self.with_key(number, |key| {
            let address = at.unwrap_or_else(|| table.address(key.word()).unwrap());
            let mut value = self.value(0);
            let read = if table.layout().kind == TableKind::Fixed {
                table.read(address, number, READER, &mut value)
            } else {
                value.clear();
                table.read_row(address, key, READER, &mut value)
            };
            let (Read::Found { version } | Read::Absent { version }) = read else {
                panic!("{read:?}");
            };
            // The number that follows from the version is that of the bucket.
            let bucket = table.bucket_of(key.word(), version);
            let validated =
                table.validate(table.bucket_address(0, bucket).unwrap(), version, READER);
            assert_eq!(validated, Validation::Unchanged);
            matches!(read, Read::Found { .. }).then_some(value)
        })
    }

    /// Both copies hold the rows, and are equal bucket by bucket.
    fn check(&self, keys: u64) {
        let (mut of_primary, mut of_backup) =
            (BucketSnapshot::default(), BucketSnapshot::default());
        let tables = [&self.primary, &self.backup];
        tables.iter().for_each(|table| table.bury_dead(0));
        let counts = tables.map(|table| table.bucket_count(0));
        assert_eq!(counts[0], counts[1]);
        let mut found = BTreeMap::new();
        for bucket in 0..counts[0] {
            self.primary.snapshot(0, bucket, &mut of_primary);
            self.backup.snapshot(0, bucket, &mut of_backup);
            assert!(of_primary.equals(&of_backup), "bucket {bucket}");
            if of_primary.version == 0 {
                assert_eq!(of_primary.rows().len(), 0);
            }
            for (key, _) in of_primary.rows() {
                assert_eq!(self.primary.bucket_of(key, of_primary.version), bucket);
                found.insert(key, ());
            }
        }
        assert_eq!(found.len(), self.rows.len());
        for table in [&self.primary, &self.backup] {
            assert_eq!(table.index_differences(0), 0);
            for number in 0..keys {
                assert_eq!(self.read(table, None, number).as_ref(), self.rows.get(&number));
            }
        }
    }
}

proptest! {
    #[test]
    fn copies_whose_buckets_are_split_hold_the_same_rows(
        kind in 0..KINDS.len(),
        roots in 1_u32..4,
        steps in prop::collection::vec((0..8_u8, 0..150_u64), 0..400),
    ) {
        let mut copies = Copies::new(kind, roots, 1 << 20);
        // Where keys were before any bucket was split.
        let before: Vec<_> = (0..150)
            .map(|number| copies.with_key(number, |key| copies.primary.address(key.word()).unwrap()))
            .collect();
        for (step, number) in steps {
            let stale = Some(before[usize::try_from(number).unwrap()]);
            match step {
                0 if number % 3 == 0 => { copies.split(u32::try_from(number % 4).unwrap() + 1); }
                0 if number % 3 == 1 => {
                    copies.merge_beside_split(u32::try_from(number % 5).unwrap(), number % 2 == 0);
                }
                0 => { copies.merge(u32::try_from(number % 8).unwrap() + 1); }
                1 => prop_assert_eq!(
                    copies.read(&copies.primary, stale, number),
                    copies.rows.get(&number).cloned()
                ),
                2 => { prop_assert!(copies.change(stale, number)); }
                _ => { prop_assert!(copies.change(None, number)); }
            }
        }
        copies.check(150);
        copies.grow();
        copies.check(150);
        while matches!(copies.merge(5).first(), Some(Reshaping::Granted { .. })) {}
        prop_assert_eq!(copies.primary.bucket_count(0), roots);
        copies.check(150);
    }
}

#[test]
fn a_table_that_has_emptied_gives_its_buckets_back() {
    for kind in 0..KINDS.len() {
        let mut copies = Copies::new(kind, 1, 16 << 20);
        let used = |copies: &Copies| {
            copies.arenas.each_ref().map(|arena| {
                arena.reclaim(arena.take_retired());
                arena.used_bytes()
            })
        };
        let mut left = None;
        for _ in 0..3 {
            let rows = 5_000;
            for number in 0..rows {
                assert!(copies.change(None, number));
                if number % 200 == 0 {
                    copies.grow();
                }
            }
            copies.grow();
            let (full, taken) = (copies.primary.bucket_count(0), used(&copies)[0]);
            for number in 0..rows {
                assert!(copies.change(None, number));
                if number == rows / 2 {
                    copies.shrink();
                    assert_eq!(copies.primary.bucket_count(0), full, "half of the rows are there");
                }
            }
            copies.shrink();
            copies.check(rows);
            let emptied = copies.primary.bucket_count(0);
            assert!(emptied <= full / 8, "{emptied} of {full}");
            while matches!(copies.merge(8).first(), Some(Reshaping::Granted { .. })) {}
            copies.check(10);
            // The first bucket may keep the overflow buckets that it had before the first split.
            let now = used(&copies);
            assert!(now[0] == now[1] && now[0] < taken / 4, "{now:?} of {taken}");
            assert_eq!(*left.get_or_insert(now), now);
        }
    }
}

#[test]
fn a_table_grows_with_its_rows_and_gives_all_back() {
    for (number, (kind, value_bytes)) in KINDS.into_iter().enumerate() {
        let mut copies = Copies::new(number, 1, 16 << 20);
        let empty = [&copies.primary, &copies.backup].map(|table| table.bucket_count(0));
        assert_eq!(empty, [1, 1]);
        let rows = 20_000;
        for number in 0..rows {
            assert!(copies.change(None, number));
            if number % 200 == 0 {
                copies.grow();
            }
        }
        copies.grow();
        copies.check(rows);
        // As many buckets as a table has that was created for so many rows, or a few less: the last chunk is not full.
        let definition =
            TableDefinition { name: "t".to_owned(), kind, value_bytes, rows, is_system: false };
        let laid_out = definition.layout(Partitioning::new(1).unwrap()).unwrap().buckets;
        let grown = copies.primary.bucket_count(0);
        assert!((laid_out * 4 / 5..=laid_out + 64).contains(&grown), "{grown} for {laid_out}");
        let levels = (0..grown).map(|bucket| {
            let mut snapshot = BucketSnapshot::default();
            copies.primary.snapshot(0, bucket, &mut snapshot);
            level_of(snapshot.version)
        });
        assert!(levels.max() > Some(8));
        for table in [&copies.primary, &copies.backup] {
            assert!(table.empty_buckets(0, 0..100));
            assert!(table.remove_partition(0));
            table.add_partition(0).unwrap();
            table.serve_partition(0);
            assert_eq!(table.bucket_count(0), 1);
        }
        copies.rows.clear();
        copies.check(10);
        assert!(copies.change(None, 7));
        copies.check(10);
    }
}

#[test]
fn a_split_that_finds_no_memory_is_put_off() {
    for kind in 0..KINDS.len() {
        let mut copies = Copies::new(kind, 1, 20_000);
        let rows_that_fit = (0..).take_while(|number| copies.change(None, *number)).count();
        assert_eq!(copies.split(1), [Reshaping::Full], "after {rows_that_fit} rows");
        let rows = copies.rows.keys().copied().max().unwrap() + 1;
        copies.check(rows);
        // What is deleted makes room.
        (0..rows).for_each(|number| assert!(copies.change(None, number)));
        copies.check(rows);
    }
}

#[test]
fn only_a_crowded_partition_grows_and_only_when_it_is_free() {
    let mut copies = Copies::new(0, 1, 1 << 20);
    assert_eq!(copies.split(1), [Reshaping::Enough]);
    assert_eq!(copies.primary.take_crowded().count(), 0);
    for number in 0..12 {
        assert!(copies.change(None, number));
    }
    assert_eq!(copies.primary.take_crowded().collect::<Vec<_>>(), [0]);
    assert_eq!(copies.primary.take_crowded().count(), 0);
    let (owner, lock) = copies.lock(None, 3, LockMode::Update);
    assert!(matches!(lock, Lock::Granted { .. }));
    assert_eq!(copies.split(1), [Reshaping::Locked]);
    let address = copies.primary.address(3).unwrap();
    copies.primary.unlock(address, 0, owner);
    assert!(matches!(copies.split(1)[..], [Reshaping::Granted { bucket: 0, .. }]));
    copies.primary.leave_partition(0);
    assert_eq!(copies.split(1), [Reshaping::Enough]);
}
