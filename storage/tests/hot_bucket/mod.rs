//! One bucket that several threads write and read, whose contents follow from its version.
//!
//! A unit fills 12 values with a word of its version, and inserts or deletes a 13th key in turn. A read is torn if a
//! value, or the presence of the 13th key, does not fit the version that was read. Writers lock the bucket as at a
//! primary, or apply units without locks as at a backup.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_storage::{
    Applied, Arena, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashedKey, Lock, LockMode,
    Owner, Partitioning, Read, Table, TableLayout,
};

/// Keys that every unit overwrites: more than a main bucket's slots.
const KEYS: u64 = 12;
/// A key that units insert and delete in turn: present at odd versions.
const FLICKERING: u64 = KEYS;
/// Longest search of a reader or writer, in case the other threads never finish.
const LOOKS_MAX: u64 = 100_000_000;

/// A table of one bucket. Every unit fills all values with one word, which is drawn from the version.
pub(crate) struct HotBucket {
    table: Table,
    value_bytes: usize,
    units: u64,
    /// Reads whose value, or presence, did not match their version.
    torn: AtomicU64,
    /// Reads that found a value.
    found: AtomicU64,
}

/// The word that values consist of at `version`.
fn word(version: u64) -> u64 {
    (version + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn is_of_version(value: &[u8], version: u64) -> bool {
    value.chunks_exact(8).all(|chunk| chunk == word(version).to_le_bytes())
}

impl HotBucket {
    /// A bucket for `units` units.
    pub(crate) fn new(value_bytes: usize, units: u64) -> Self {
        assert!(value_bytes.is_multiple_of(8), "values are whole words");
        let partitioning = Partitioning::new(1).unwrap();
        let mut layout = TableLayout::new("hot", value_bytes, 1, partitioning).unwrap();
        layout.buckets = 1;
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 20]).unwrap());
        let table = Table::new("hot", layout, arena, |_| true).unwrap();
        for key in 0..KEYS {
            let value = word(0).to_le_bytes().repeat(value_bytes / 8);
            table.load(table.address(key).unwrap(), key, &value).unwrap();
        }
        let (torn, found) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { table, value_bytes, units, torn, found }
    }

    /// The unit that leads from version `base_version` to the next.
    fn fill_unit(&self, bytes: &mut Vec<u8>, base_version: u64, owner: Owner) {
        bytes.clear();
        let value = word(base_version + 1).to_le_bytes().repeat(self.value_bytes / 8);
        let mut unit = BucketUpdateWriter::begin(bytes, (0, 0, 0), base_version, owner);
        for key in 0..KEYS {
            unit.put(HashedKey::Number(key), &value);
        }
        if base_version.is_multiple_of(2) {
            unit.put(HashedKey::Number(FLICKERING), &value);
        } else {
            unit.delete(HashedKey::Number(FLICKERING));
        }
        unit.finish();
    }

    /// Locks and applies, in competition with other writers, until all units are applied.
    #[allow(dead_code, reason = "the test without the rule writes without locks")]
    pub(crate) fn write_as_primary(&self, writer: u64) {
        let address = self.table.address(FLICKERING).unwrap();
        let owner = Owner(writer);
        let mut out = vec![0; self.value_bytes];
        let mut bytes = Vec::new();
        let mut mode = LockMode::Insert;
        for _ in 0..LOOKS_MAX {
            let version = match self.table.lock(address, FLICKERING, owner, mode, &mut out) {
                Lock::Granted { version } => version,
                Lock::Exists { version } | Lock::Absent { version } if version == self.units => {
                    return;
                }
                Lock::Exists { .. } => {
                    mode = LockMode::Delete;
                    continue;
                }
                Lock::Absent { .. } => {
                    mode = LockMode::Insert;
                    continue;
                }
                Lock::Locked => {
                    std::thread::yield_now();
                    continue;
                }
                Lock::Full => panic!("the arena has room for one more row"),
            };
            assert_eq!(mode == LockMode::Insert, version.is_multiple_of(2));
            if version == self.units {
                self.table.unlock(address, 0, owner);
                return;
            }
            self.fill_unit(&mut bytes, version, owner);
            let applied =
                self.table.apply_at_primary(address, &BucketUpdate::parse_checked(&bytes));
            assert_eq!(applied, Applied::Applied);
        }
        panic!("the other writer did not free the lock while this one looked {LOOKS_MAX} times");
    }

    /// Applies the units in order, without locks, until all are applied or `enough` returns true.
    pub(crate) fn write_as_backup(&self, enough: impl Fn(&Self) -> bool) {
        let address = self.table.bucket_address(0, 0).unwrap();
        let mut bytes = Vec::new();
        for base_version in 0..self.units {
            if enough(self) {
                return;
            }
            self.fill_unit(&mut bytes, base_version, Owner(1));
            let applied = self.table.apply_at_backup(address, &BucketUpdate::parse_checked(&bytes));
            assert_ne!(applied, Applied::Gap, "this thread has applied all earlier units");
        }
    }

    /// Reads keys and the whole bucket in turn, until all units are applied or `enough` returns true.
    pub(crate) fn read(&self, enough: impl Fn(&Self) -> bool) {
        let mut out = vec![0; self.value_bytes];
        let mut snapshot = BucketSnapshot::default();
        let mut last = 0;
        let mut key = 0;
        for _ in 0..LOOKS_MAX {
            if last == self.units || enough(self) {
                return;
            }
            key = (key + 1) % (KEYS + 2);
            let (version, whole) = if key <= FLICKERING {
                match self.table.read(self.table.address(key).unwrap(), key, Owner(99), &mut out) {
                    Read::Locked => {
                        std::thread::yield_now();
                        continue;
                    }
                    Read::Found { version } => {
                        let present = key < KEYS || version % 2 == 1;
                        (version, present && is_of_version(&out, version))
                    }
                    Read::Absent { version } => {
                        (version, key == FLICKERING && version.is_multiple_of(2))
                    }
                }
            } else {
                self.table.snapshot(0, 0, &mut snapshot);
                let version = snapshot.version;
                let rows = KEYS + version % 2;
                let same = snapshot.rows().all(|(_, value)| is_of_version(value, version));
                (version, same && snapshot.rows().map(|row| row.0).eq(0..rows))
            };
            assert!(version >= last, "versions never fall");
            last = version;
            // Relaxed: the counters are read after the threads have ended, or as a hint to stop.
            self.found.fetch_add(1, Ordering::Relaxed);
            self.torn.fetch_add(u64::from(!whole), Ordering::Relaxed);
        }
        panic!("the writers did not come to an end while a reader looked {LOOKS_MAX} times");
    }

    /// Whether a reader has seen a torn value.
    #[must_use]
    pub(crate) fn is_torn(&self) -> bool {
        // Relaxed: a hint to stop; the tests check again after the threads have ended.
        self.torn.load(Ordering::Relaxed) > 0
    }

    /// Checks the contents after all units.
    #[allow(dead_code, reason = "the test without the rule stops before the last unit")]
    pub(crate) fn check_end(&self) {
        let mut snapshot = BucketSnapshot::default();
        self.table.snapshot(0, 0, &mut snapshot);
        assert_eq!((snapshot.version, snapshot.owner), (self.units, Owner::FREE));
        assert!(snapshot.rows().all(|(_, value)| is_of_version(value, self.units)));
        assert!(self.found.load(Ordering::Relaxed) > 0);
    }
}
