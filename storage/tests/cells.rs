//! Freed memory at two copies. A lock that a primary grants fits the backup (rule C9), although the backup applies
//! updates of other buckets in another order and may have less memory, whatever went before.
//!
//! A property test draws inserts, updates, deletes and aborts of an ordered table and a fixed one, in one arena at each
//! copy. It fails if a decided update is not applied, if a copy uses more than the partition's share, if the ordered
//! table keeps memory when its rows are deleted, or if the memory was never full.
//!
//! *Not here*: one copy at its limit (`heap_table.rs`), and splits that find no memory (`growth.rs`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::sync::Arc;

use gannet_storage::{
    Applied, Arena, BucketUpdate, BucketUpdateWriter, HashSeed, HashedKey, Lock, LockMode, Owner,
    Partitioning, Table, TableLayout,
};
use proptest::prelude::*;

/// Bytes beside the main buckets.
const ROOM_BYTES: usize = 40_000;
const KEYS: u64 = 300;
/// Bytes of the values of the fixed table, whose overflow buckets take two lines each and stay.
const FIXED_BYTES: usize = 40;
/// Bytes of such an overflow bucket.
const FIXED_OVERFLOW_BYTES: usize = 128;
/// Fewer keys, so that overflow buckets leave room.
const FIXED_KEYS: u64 = 150;
const HEAP_SIZES: [usize; 7] = [0, 50, 56, 200, 700, 1_000, 4_000];

/// A node: an ordered table and a fixed one in one arena.
struct Copy {
    tables: [Table; 2],
    arena: Arc<Arena>,
    empty_bytes: usize,
    /// The share of the partition, and the line that belongs to no row.
    share_bytes: usize,
}

impl Copy {
    /// A copy at a node whose memory is a multiple of the smallest share.
    fn new(room: usize) -> Self {
        let partitioning = Partitioning::new(1).unwrap();
        let mut layouts = [
            TableLayout::ordered("ordered", 1, partitioning).unwrap(),
            TableLayout::new("fixed", FIXED_BYTES, 1, partitioning).unwrap(),
        ];
        layouts.iter_mut().for_each(|layout| layout.buckets = 20);
        let main_bytes: usize = layouts.iter().map(|layout| layout.main_bytes(1)).sum();
        let limit_bytes = |room: usize| main_bytes + room * ROOM_BYTES;
        let smallest = Arena::share_bytes(limit_bytes(1), 1);
        let arena = Arena::new(limit_bytes(room), &[smallest]).unwrap();
        let arena = Arc::new(arena);
        let table =
            |layout: TableLayout| Table::new("t", layout, Arc::clone(&arena), |_| true).unwrap();
        let tables = layouts.map(table);
        Self { tables, empty_bytes: arena.used_bytes(), arena, share_bytes: smallest + 64 }
    }
}

/// A transaction of one row.
struct Open {
    /// Number of the table, and the key.
    row: (usize, u64),
    owner: Owner,
    version: u64,
    /// Bytes of the new value; None to delete the row.
    value_bytes: Option<usize>,
    at_backup: bool,
}

struct Copies {
    primary: Copy,
    backup: Copy,
    open: Vec<Open>,
    rows: BTreeMap<(usize, u64), usize>,
    transactions: u64,
    refused: usize,
}

impl Copies {
    /// Copies on nodes whose memory is a multiple of the smallest share.
    fn new([primary, backup]: [usize; 2]) -> Self {
        let (primary, backup) = (Copy::new(primary), Copy::new(backup));
        Self {
            primary,
            backup,
            open: Vec::new(),
            rows: BTreeMap::new(),
            transactions: 0,
            refused: 0,
        }
    }

    fn begin(&mut self, row: (usize, u64), value_bytes: Option<usize>) {
        let mode = match (self.rows.contains_key(&row), value_bytes) {
            (true, Some(_)) => LockMode::Update,
            (true, None) => LockMode::Delete,
            (false, Some(_)) => LockMode::Insert,
            (false, None) => return,
        };
        self.transactions += 1;
        let owner = Owner(Owner::of_epoch(1).0 + self.transactions);
        let table = &self.primary.tables[row.0];
        let bytes = row.1.to_le_bytes();
        let key = HashSeed::ZERO.hashed(&bytes);
        let lock = if row.0 == 0 {
            let mode = (mode, value_bytes.unwrap_or(0));
            table.lock_row(table.address(key.word()).unwrap(), key, owner, mode)
        } else {
            let mut out = [0; FIXED_BYTES];
            table.lock(table.address(row.1).unwrap(), row.1, owner, mode, &mut out)
        };
        match lock {
            Lock::Granted { version } => {
                self.open.push(Open { row, owner, version, value_bytes, at_backup: false });
            }
            Lock::Full => self.refused += 1,
            Lock::Locked => {}
            other => panic!("{other:?}"),
        }
    }

    fn apply(copy: &Copy, open: &Open, at_backup: bool) {
        let table = &copy.tables[open.row.0];
        let bytes = open.row.1.to_le_bytes();
        let key = if open.row.0 == 0 {
            HashSeed::ZERO.hashed(&bytes)
        } else {
            HashedKey::Number(open.row.1)
        };
        let header = (0, 0, table.locate(key.word()).root);
        let mut unit = Vec::new();
        let mut writer = BucketUpdateWriter::begin(&mut unit, header, open.version, open.owner);
        match open.value_bytes {
            Some(bytes) => writer.put(key, &vec![7; bytes]),
            None => writer.delete(key),
        }
        writer.finish();
        let (address, unit) =
            (table.address(key.word()).unwrap(), BucketUpdate::parse_checked(&unit));
        let applied = if at_backup {
            table.apply_at_backup(address, &unit)
        } else {
            table.apply_at_primary(address, &unit)
        };
        assert_eq!(applied, Applied::Applied);
        assert!(copy.arena.used_bytes() <= copy.share_bytes, "granted locks fit every copy");
    }

    /// The next step of an open transaction: the backup, then the primary; or an abort.
    fn step(&mut self, index: usize, gives_up: bool) {
        let open = &mut self.open[index];
        if !open.at_backup && gives_up {
            let (open, table) = (self.open.swap_remove(index), &self.primary.tables);
            let (bytes, table) = (open.row.1.to_le_bytes(), &table[open.row.0]);
            let key = HashSeed::ZERO.hashed(&bytes);
            if open.row.0 == 0 {
                table.unlock_row(table.address(key.word()).unwrap(), key, open.owner);
            } else {
                table.unlock(table.address(open.row.1).unwrap(), 0, open.owner);
            }
        } else if !open.at_backup {
            open.at_backup = true;
            Self::apply(&self.backup, &self.open[index], true);
        } else {
            let open = self.open.swap_remove(index);
            Self::apply(&self.primary, &open, false);
            match open.value_bytes {
                Some(bytes) => self.rows.insert(open.row, bytes),
                None => self.rows.remove(&open.row),
            };
        }
    }

    fn finish(&mut self) {
        while !self.open.is_empty() {
            self.step(0, false);
        }
        let [primary, backup] = [&self.primary, &self.backup].map(|copy| copy.arena.used_bytes());
        // An aborted lock for an insert leaves an overflow bucket of the fixed table at the primary.
        assert!(backup <= primary && (primary - backup).is_multiple_of(FIXED_OVERFLOW_BYTES));
    }
}

/// The next step: begins with a row, or continues an open transaction.
type Step = (u64, usize, u8);

/// Long phases of inserts, and of deletes.
fn phases() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = (0..KEYS, 0..HEAP_SIZES.len(), any::<u8>());
    proptest::collection::vec(proptest::collection::vec(step, 200..800), 4..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn granted_locks_fit_the_backup(
        phases in phases(),
        rooms in prop::sample::select(vec![[1, 1], [4, 1], [1, 4]]),
    ) {
        let mut copies = Copies::new(rooms);
        for (phase, steps) in phases.into_iter().enumerate() {
            for (key, size, chance) in steps {
                if chance < 100 || copies.open.is_empty() {
                    let is_fixed = chance % 8 == 0;
                    let row = if is_fixed { (1, key % FIXED_KEYS) } else { (0, key) };
                    let goes = phase % 2 == 1 && chance % 5 != 0;
                    let value_bytes = if is_fixed { FIXED_BYTES } else { HEAP_SIZES[size] };
                    copies.begin(row, (!goes).then_some(value_bytes));
                } else {
                    let index = usize::from(chance) * size % copies.open.len();
                    copies.step(index, chance % 16 == 0);
                }
            }
        }
        copies.finish();
        prop_assert!(copies.refused > 0, "the memory was never full");
        // Deleting all rows of the heap table frees their memory; the fixed table keeps its own.
        let keys: Vec<_> = copies.rows.keys().copied().collect();
        for row in keys {
            copies.begin(row, None);
            copies.finish();
        }
        for copy in [&copies.primary, &copies.backup] {
            let kept = copy.arena.used_bytes() - copy.empty_bytes;
            let buckets = kept / FIXED_OVERFLOW_BYTES;
            let is_fixed = kept.is_multiple_of(FIXED_OVERFLOW_BYTES);
            prop_assert!(is_fixed && buckets as u64 <= FIXED_KEYS, "{kept}");
        }
    }
}
