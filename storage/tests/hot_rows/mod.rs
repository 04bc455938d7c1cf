//! Rows of a heap table that threads write and read, in two buckets that reuse each other's cells.
//!
//! Each bucket has one writer, which applies units as at a backup, and one reader. Length and contents of a value follow
//! from key and version. A read is torn if the value, or the presence of the row, does not fit the version that was read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_storage::{
    Applied, Arena, BucketUpdate, BucketUpdateWriter, HashSeed, HashedKey, Owner, Partitioning,
    Read, Table, TableLayout,
};

/// Rows of a bucket.
const ROWS: usize = 3;
/// Longest search of a reader, in case the writers never finish.
const LOOKS_MAX: u64 = 100_000_000;

/// Rows whose length and contents follow from key and version.
pub(crate) struct HotRows {
    table: Table,
    /// By bucket.
    keys: [Vec<Vec<u8>>; 2],
    units: u64,
    /// Reads whose value did not match their key and version.
    torn: AtomicU64,
    /// Reads that found a value.
    found: AtomicU64,
}

/// The value of `key` at `version`: 8 to 520 bytes, so the next version of one row often takes cells that another row has
/// just freed.
fn value(key: &[u8], version: u64, out: &mut Vec<u8>) {
    let seed =
        HashSeed::ZERO.hashed(key).word().wrapping_add(version).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = [1, 9, 21, 65][(seed >> 60) as usize % 4];
    out.clear();
    (0..words).for_each(|_| out.extend_from_slice(&seed.to_le_bytes()));
}

impl HotRows {
    /// Two buckets for `units` units each.
    pub(crate) fn new(units: u64) -> Self {
        let partitioning = Partitioning::new(1).unwrap();
        let mut layout = TableLayout::heap("hot", 1, partitioning).unwrap();
        layout.buckets = 2;
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 20]).unwrap());
        let table = Table::new("hot", layout, arena, |_| true).unwrap();
        let keys = [0, 1].map(|bucket| {
            let all = (0..).map(|number: u32| format!("row {number}").into_bytes());
            let is_here =
                |key: &Vec<u8>| table.locate(HashSeed::ZERO.hashed(key).word()).root == bucket;
            all.filter(is_here).take(ROWS).collect()
        });
        Self { table, keys, units, torn: AtomicU64::new(0), found: AtomicU64::new(0) }
    }

    /// Applies the units of a bucket in order, until all are applied or a reader has seen a torn row. The last row of the
    /// bucket exists at odd versions alone.
    pub(crate) fn write(&self, bucket: u32) {
        let address = self.table.bucket_address(0, bucket).unwrap();
        let keys = &self.keys[bucket as usize];
        let (mut bytes, mut contents) = (Vec::new(), Vec::new());
        for base_version in 0..self.units {
            if self.is_torn() {
                return;
            }
            bytes.clear();
            let header = (0, 0, bucket);
            let mut unit = BucketUpdateWriter::begin(&mut bytes, header, base_version, Owner(1));
            for (number, key) in keys.iter().enumerate() {
                let hash = HashSeed::ZERO.hashed(key).word();
                if number + 1 == ROWS && base_version % 2 == 1 {
                    unit.delete(HashedKey::from_parts(hash, key));
                } else {
                    value(key, base_version + 1, &mut contents);
                    unit.put(HashedKey::from_parts(hash, key), &contents);
                }
            }
            unit.finish();
            let applied = self.table.apply_at_backup(address, &BucketUpdate::parse_checked(&bytes));
            assert_eq!(applied, Applied::Applied);
        }
    }

    /// Reads the rows of a bucket in turn, until all units are applied or a row was torn.
    pub(crate) fn read(&self, bucket: u32) {
        let keys = &self.keys[bucket as usize];
        let (mut contents, mut expected) = (Vec::new(), Vec::new());
        let mut last = 0;
        for look in 0..LOOKS_MAX {
            if last == self.units || self.is_torn() {
                return;
            }
            let number = usize::try_from(look).unwrap() % ROWS;
            let key = HashSeed::ZERO.hashed(&keys[number]);
            let address = self.table.address(key.word()).unwrap();
            contents.clear();
            let (version, is_there) =
                match self.table.read_row(address, key, Owner(99), &mut contents) {
                    Read::Found { version } => (version, true),
                    Read::Absent { version } => (version, false),
                    Read::Locked => panic!("no thread locks"),
                };
            value(key.bytes(), version, &mut expected);
            let should_be_there = version > 0 && (number + 1 < ROWS || version % 2 == 1);
            let whole = is_there == should_be_there && (!is_there || contents == expected);
            assert!(version >= last, "versions never fall");
            last = version;
            // Relaxed: the counters are read after the threads have ended, or as a hint to stop.
            self.found.fetch_add(u64::from(is_there), Ordering::Relaxed);
            self.torn.fetch_add(u64::from(!whole), Ordering::Relaxed);
        }
        panic!("the writer did not come to an end while a reader looked {LOOKS_MAX} times");
    }

    /// Two writers and two readers: one of each for either bucket.
    pub(crate) fn stress(&self) {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .flat_map(|bucket| {
                    [
                        scope.spawn(move || self.write(bucket)),
                        scope.spawn(move || self.read(bucket)),
                    ]
                })
                .collect();
            // The thread sanitizer understands a join, but not a scope's wait for its threads.
            threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
        });
        assert!(self.found.load(Ordering::Relaxed) > 0, "no read found a row");
    }

    /// Relaxed: a hint to stop; the tests check again after the threads have ended.
    pub(crate) fn is_torn(&self) -> bool {
        // Relaxed: a hint to stop; the tests look again after the threads have ended.
        self.torn.load(Ordering::Relaxed) > 0
    }
}
