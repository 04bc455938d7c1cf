//! Interleavings of the bucket protocols, exhaustive up to a bound, under loom's model of C11 memory.
//!
//! Tables here have one bucket of 8- or 16-byte values unless a test says otherwise. A property that
//! a removed rule must break is counted over all interleavings and looked at after the exploration,
//! so that a failure of another kind is not mistaken for it.
//!
//! The writer is the main thread, which loom runs first, and the reader the spawned one: loom keeps
//! one last access of each word, so a writer that loads a word before it stores to it hides the load
//! of a reader that ran earlier, and loom would not try the other order.

use std::sync::atomic::{AtomicU64 as Count, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gannet_rules::Rule;

use crate::{
    Applied, Arena, BucketAddress, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashSeed,
    HashedKey, Lock, LockMode, Owner, Partitioning, Read, Reshaping, Table, TableLayout, Unlocked,
    Validation, rules,
};

/// The switch is process wide, and tests run in several threads.
static SWITCH: Mutex<()> = Mutex::new(());

/// Explores `model` without the rule `removed`; at most `preemptions` preemptions per interleaving.
fn explore(
    removed: Option<&'static Rule>,
    preemptions: usize,
    model: impl Fn() + Sync + Send + 'static,
) {
    let switch = SWITCH.lock().unwrap_or_else(PoisonError::into_inner);
    let mutant = removed.map(Rule::remove);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
    drop(mutant);
    drop(switch);
}

/// A table with room for `overflow` overflow buckets of one slot each.
fn table(value_bytes: usize, buckets: u32, overflow: usize) -> Arc<Table> {
    let partitioning = Partitioning::new(1).unwrap();
    let mut layout = TableLayout::new("t", value_bytes, 1, partitioning).unwrap();
    (layout.buckets, layout.overflow_slots) = (buckets, 1);
    let limit_bytes = 64 + layout.main_bytes(1) + overflow * layout.overflow_words * 8;
    let arena = Arc::new(Arena::new(limit_bytes, &[limit_bytes]).unwrap());
    Arc::new(Table::new("t", layout, arena, |_| true).unwrap())
}

fn address(table: &Table, key: u64) -> BucketAddress {
    table.address(key).unwrap()
}

/// A value that consists of one word.
fn value(table: &Table, word: u64) -> Vec<u8> {
    word.to_le_bytes().repeat(table.layout().value_bytes / 8)
}

/// A unit that writes the words `base_version + 1` under `key`.
fn unit(table: &Table, key: u64, base_version: u64, owner: Owner) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = (0, 0, table.locate(key).root);
    let mut writer = BucketUpdateWriter::begin(&mut bytes, header, base_version, owner);
    writer.put(HashedKey::Number(key), &value(table, base_version + 1));
    writer.finish();
    bytes
}

fn apply_at_primary(table: &Table, key: u64, bytes: &[u8]) -> Applied {
    table.apply_at_primary(address(table, key), &BucketUpdate::parse_checked(bytes))
}

fn apply_at_backup(table: &Table, key: u64, bytes: &[u8]) -> Applied {
    table.apply_at_backup(address(table, key), &BucketUpdate::parse_checked(bytes))
}

fn lock(table: &Table, key: u64, owner: Owner, mode: LockMode) -> Lock {
    table.lock(address(table, key), key, owner, mode, &mut vec![0; table.layout().value_bytes])
}

/// What a reader saw, over all interleavings.
#[derive(Default)]
struct Seen {
    torn: Count,
    old: Count,
    new: Count,
    locked: Count,
}

impl Seen {
    fn add(&self, count: impl Fn(&Self) -> &Count) {
        count(self).fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> [u64; 4] {
        [&self.torn, &self.old, &self.new, &self.locked].map(|count| count.load(Ordering::Relaxed))
    }

    /// Reads a key whose value consists of the bucket's version.
    fn read(&self, table: &Table, key: u64) {
        let mut out = vec![0; table.layout().value_bytes];
        match table.read(address(table, key), key, Owner(99), &mut out) {
            Read::Found { version } if out != value(table, version) => self.add(|seen| &seen.torn),
            Read::Found { version: 0 } => self.add(|seen| &seen.old),
            Read::Found { .. } => self.add(|seen| &seen.new),
            Read::Absent { .. } => self.add(|seen| &seen.torn),
            Read::Locked => self.add(|seen| &seen.locked),
        }
    }
}

/// One thread applies a unit of a two-word value at a backup, another reads the key.
fn read_against_backup(removed: Option<&'static Rule>) -> [u64; 4] {
    let seen = Arc::new(Seen::default());
    let total = Arc::clone(&seen);
    explore(removed, 3, move || {
        let table = table(16, 1, 0);
        table.load(address(&table, 1), 1, &value(&table, 0)).unwrap();
        let reader = {
            let (table, seen) = (Arc::clone(&table), Arc::clone(&seen));
            loom::thread::spawn(move || seen.read(&table, 1))
        };
        let bytes = unit(&table, 1, 0, Owner(1));
        assert_eq!(apply_at_backup(&table, 1, &bytes), Applied::Applied);
        reader.join().unwrap();
    });
    total.counts()
}

#[test]
fn loom_a_read_is_never_torn() {
    let [torn, old, new, locked] = read_against_backup(None);
    assert_eq!((torn, locked), (0, 0));
    assert!(old > 0 && new > 0, "both outcomes were explored");
}

#[test]
fn loom_a_read_without_its_fence_is_torn() {
    assert!(read_against_backup(Some(&rules::READ_FENCE))[0] > 0);
}

#[test]
fn loom_a_write_without_its_fence_tears_reads() {
    assert!(read_against_backup(Some(&rules::WRITE_FENCE))[0] > 0);
}

#[test]
fn loom_a_read_without_the_sequence_check_is_torn() {
    assert!(read_against_backup(Some(&rules::SEQUENCE_CHECK))[0] > 0);
}

/// One thread locks and applies at the primary, another reads the key.
fn read_against_primary(removed: Option<&'static Rule>) -> [u64; 4] {
    let seen = Arc::new(Seen::default());
    let total = Arc::clone(&seen);
    explore(removed, 3, move || {
        let table = table(16, 1, 0);
        table.load(address(&table, 1), 1, &value(&table, 0)).unwrap();
        let reader = {
            let (table, seen) = (Arc::clone(&table), Arc::clone(&seen));
            loom::thread::spawn(move || seen.read(&table, 1))
        };
        let owner = Owner(1);
        assert_eq!(lock(&table, 1, owner, LockMode::Update), Lock::Granted { version: 0 });
        let bytes = unit(&table, 1, 0, owner);
        assert_eq!(apply_at_primary(&table, 1, &bytes), Applied::Applied);
        reader.join().unwrap();
    });
    total.counts()
}

#[test]
fn loom_a_read_at_the_primary_is_old_new_or_refused() {
    let [torn, old, new, locked] = read_against_primary(None);
    assert_eq!(torn, 0);
    assert!(old > 0 && new > 0 && locked > 0, "all outcomes were explored");
}

#[test]
fn loom_a_snapshot_is_never_torn() {
    let old_and_new = Arc::new([Count::new(0), Count::new(0)]);
    let total = Arc::clone(&old_and_new);
    explore(None, 3, move || {
        let table = table(8, 1, 0);
        for key in [1, 2] {
            table.load(address(&table, key), key, &value(&table, 0)).unwrap();
        }
        let reader = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || {
                let mut snapshot = BucketSnapshot::default();
                table.snapshot(0, 0, &mut snapshot);
                let version = value(&table, snapshot.version);
                assert!(snapshot.rows().eq([(1, version.as_slice()), (2, version.as_slice())]));
                snapshot.version
            })
        };
        let mut bytes = Vec::new();
        let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, 0), 0, Owner(1));
        unit.put(HashedKey::Number(1), &value(&table, 1));
        unit.put(HashedKey::Number(2), &value(&table, 1));
        unit.finish();
        assert_eq!(apply_at_backup(&table, 1, &bytes), Applied::Applied);
        let new = reader.join().unwrap() == 1;
        old_and_new[usize::from(new)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(total.iter().all(|count| count.load(Ordering::Relaxed) > 0), "old and new");
}

/// Locks the bucket if it can, counts itself in and out, and applies or unlocks.
fn hold(table: &Table, holders: &Count, owner: Owner, commit: bool) -> bool {
    let Lock::Granted { version } = lock(table, 1, owner, LockMode::Update) else {
        return false;
    };
    assert_eq!(holders.fetch_add(1, Ordering::Relaxed), 0, "two transactions hold the bucket");
    loom::thread::yield_now();
    assert_eq!(holders.fetch_sub(1, Ordering::Relaxed), 1);
    if commit {
        let bytes = unit(table, 1, version, owner);
        assert_eq!(apply_at_primary(table, 1, &bytes), Applied::Applied);
    } else {
        assert_eq!(table.unlock(address(table, 1), 0, owner), Unlocked::Released);
    }
    commit
}

#[test]
fn loom_one_transaction_at_a_time_holds_a_bucket() {
    let committed = Arc::new([Count::new(0), Count::new(0), Count::new(0)]);
    let total = Arc::clone(&committed);
    explore(None, 3, move || {
        let table = table(8, 1, 0);
        table.load(address(&table, 1), 1, &value(&table, 0)).unwrap();
        let holders = Arc::new(Count::new(0));
        let other = {
            let (table, holders) = (Arc::clone(&table), Arc::clone(&holders));
            loom::thread::spawn(move || {
                u64::from(hold(&table, &holders, Owner(1), true))
                    + u64::from(hold(&table, &holders, Owner(2), false))
            })
        };
        let mut units = u64::from(hold(&table, &holders, Owner(3), true));
        units += other.join().unwrap();
        let mut out = [0; 8];
        let read = table.read(address(&table, 1), 1, Owner(99), &mut out);
        assert_eq!((read, u64::from_le_bytes(out)), (Read::Found { version: units }, units));
        committed[units as usize].fetch_add(1, Ordering::Relaxed);
    });
    let counts: Vec<u64> = total.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert!(counts[1] > 0 && counts[2] > 0, "refused and granted: {counts:?}");
}

/// Inserts keys until the chain grows, against a reader of the key `read` among `loaded` others.
fn read_against_growth(loaded: u64, read: u64) {
    let absent_and_found = Arc::new([Count::new(0), Count::new(0)]);
    let total = Arc::clone(&absent_and_found);
    explore(None, 3, move || {
        let table = table(8, 1, 2);
        for key in 0..loaded {
            table.load(address(&table, key), key, &value(&table, key)).unwrap();
        }
        let reader = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || {
                let mut out = [0; 8];
                let found = table.read(address(&table, read), read, Owner(99), &mut out);
                (found, u64::from_le_bytes(out))
            })
        };
        let bytes = unit(&table, loaded, 0, Owner(1));
        assert_eq!(apply_at_backup(&table, loaded, &bytes), Applied::Applied);
        let (found, out) = reader.join().unwrap();
        if read == loaded {
            match found {
                Read::Absent { version } => assert_eq!(version, 0),
                Read::Found { version } => assert_eq!((version, out), (1, 1)),
                Read::Locked => panic!("a backup has no locks"),
            }
        } else {
            assert!(matches!(found, Read::Found { .. }), "{found:?}");
            assert_eq!(out, read);
        }
        let new = matches!(found, Read::Found { version: 1 });
        absent_and_found[usize::from(new)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(
        total.iter().all(|count| count.load(Ordering::Relaxed) > 0),
        "{loaded} {read} {total:?}"
    );
}

#[test]
fn loom_growth_by_the_first_overflow_bucket_hides_no_key() {
    read_against_growth(7, 6);
    read_against_growth(7, 7);
}

#[test]
fn loom_growth_by_a_further_overflow_bucket_hides_no_key() {
    read_against_growth(8, 7);
    read_against_growth(8, 8);
}

#[test]
fn loom_a_unit_that_two_threads_apply_is_applied_once() {
    for at_primary in [true, false] {
        explore(None, 3, move || {
            let table = table(8, 1, 0);
            table.load(address(&table, 1), 1, &value(&table, 0)).unwrap();
            let owner = Owner(1);
            lock(&table, 1, owner, LockMode::Update);
            let apply = move |table: &Table| {
                let bytes = unit(table, 1, 0, owner);
                let apply = if at_primary { apply_at_primary } else { apply_at_backup };
                u64::from(apply(table, 1, &bytes) == Applied::Applied)
            };
            let other = {
                let table = Arc::clone(&table);
                loom::thread::spawn(move || apply(&table))
            };
            let applied = apply(&table) + other.join().unwrap();
            assert_eq!(applied, 1, "at the primary: {at_primary}");
        });
    }
}

#[test]
fn loom_an_unlock_that_two_threads_run_frees_only_its_own_lock() {
    let relocked = Arc::new(Count::new(0));
    let total = Arc::clone(&relocked);
    explore(None, 3, move || {
        let table = table(8, 1, 0);
        let owner = Owner(1);
        lock(&table, 1, owner, LockMode::Insert);
        let other = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || table.unlock(address(&table, 1), 0, owner))
        };
        let unlocked = table.unlock(address(&table, 1), 0, owner);
        let next = Owner(2);
        let granted = lock(&table, 1, next, LockMode::Insert);
        let released = [unlocked, other.join().unwrap()];
        assert_eq!(released.iter().filter(|&&end| end == Unlocked::Released).count(), 1);
        assert_eq!(granted, Lock::Granted { version: 0 }, "the first lock is free");
        let mut snapshot = BucketSnapshot::default();
        table.snapshot(0, 0, &mut snapshot);
        assert_eq!(snapshot.owner, next, "the second lock stays");
        relocked.fetch_add(1, Ordering::Relaxed);
    });
    assert!(total.load(Ordering::Relaxed) > 1, "several interleavings were explored");
}

/// Two keys of different buckets in a table of two.
fn two_buckets(table: &Table) -> [u64; 2] {
    let other = (1..).find(|&key| table.locate(key).root != table.locate(0).root);
    [0, other.unwrap()]
}

#[test]
fn loom_of_two_transactions_that_read_what_the_other_writes_one_fails() {
    let both = Arc::new(Count::new(0));
    let total = Arc::clone(&both);
    explore(None, 3, move || {
        let table = table(8, 2, 0);
        let [x, y] = two_buckets(&table);
        for key in [x, y] {
            table.load(address(&table, key), key, &value(&table, 0)).unwrap();
        }
        // Locks one key and validates the other, which it read at version 0.
        let transaction = |table: &Table, owner, written, read| {
            let granted = lock(table, written, owner, LockMode::Update);
            assert_eq!(granted, Lock::Granted { version: 0 });
            table.validate(address(table, read), 0, owner) == Validation::Unchanged
        };
        let other = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || transaction(&table, Owner(1), x, y))
        };
        let validated = transaction(&table, Owner(2), y, x);
        if validated && other.join().unwrap() {
            both.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 0, "write skew");
}

/// A heap table of two buckets and `cells` cells, and keys of four bytes of each of them.
fn heap_table(cells: usize) -> (Arc<Table>, [Vec<String>; 2]) {
    let partitioning = Partitioning::new(1).unwrap();
    let mut layout = TableLayout::heap("t", 1, partitioning).unwrap();
    layout.buckets = 2;
    let limit_bytes = 64 + layout.main_bytes(1) + cells * 64;
    let arena = Arc::new(Arena::new(limit_bytes, &[limit_bytes]).unwrap());
    let table = Arc::new(Table::new("t", layout, arena, |_| true).unwrap());
    let bucket = |key: &String| table.locate(HashSeed::ZERO.hashed(key.as_bytes()).word()).root;
    let keys = || (1_000..1_100).map(|number: u32| number.to_string());
    let keys = [0, 1].map(|wanted| keys().filter(|key| bucket(key) == wanted).collect());
    (table, keys)
}

/// Applies a unit that gives a row a value, or takes the row away.
fn apply_row(table: &Table, key: impl AsRef<[u8]>, base_version: u64, value: Option<&[u8]>) {
    let row_key = HashSeed::ZERO.hashed(key.as_ref());
    let location = table.locate(row_key.word());
    let mut bytes = Vec::new();
    let header = (0, 0, location.root);
    let mut writer = BucketUpdateWriter::begin(&mut bytes, header, base_version, Owner(1));
    match value {
        Some(value) => writer.put(row_key, value),
        None => writer.delete(row_key),
    }
    writer.finish();
    let address = table.address(row_key.word()).unwrap();
    let applied = table.apply_at_backup(address, &BucketUpdate::parse_checked(&bytes));
    assert_eq!(applied, Applied::Applied);
}

fn read_row(table: &Table, key: &str) -> (Read, Vec<u8>) {
    let (key, mut value) = (HashSeed::ZERO.hashed(key.as_bytes()), Vec::new());
    let read = table.read_row(table.address(key.word()).unwrap(), key, Owner(99), &mut value);
    (read, value)
}

/// One thread removes a row, which frees its cell; another writes a new row of another bucket, into that cell or a fresh
/// one; a third reads the first row.
fn read_against_reuse(removed: Option<&'static Rule>) -> u64 {
    let torn = Arc::new(Count::new(0));
    let total = Arc::clone(&torn);
    explore(removed, 2, move || {
        let (table, [removed, added]) = heap_table(5);
        let removed = removed[0].clone();
        apply_row(&table, &removed, 0, Some(&[1; 12]));
        let adding = {
            let table = Arc::clone(&table);
            loom::thread::spawn(move || apply_row(&table, &added[0], 0, Some(&[7; 12])))
        };
        let reading = {
            let (table, torn, removed) = (Arc::clone(&table), Arc::clone(&torn), removed.clone());
            loom::thread::spawn(move || {
                let whole = match read_row(&table, &removed) {
                    (Read::Found { version: 1 }, value) => value == [1; 12],
                    (Read::Absent { version: 2 }, _) => true,
                    _ => false,
                };
                torn.fetch_add(u64::from(!whole), Ordering::Relaxed);
            })
        };
        apply_row(&table, &removed, 1, None);
        adding.join().unwrap();
        reading.join().unwrap();
    });
    total.load(Ordering::Relaxed)
}

/// A table of one bucket, which can be split, and a row that is loaded and moves then.
fn with_a_row_that_moves() -> (Arc<Table>, u64) {
    let partitioning = Partitioning::new(1).unwrap();
    let mut layout = TableLayout::new("t", 8, 1, partitioning).unwrap();
    layout.buckets = 1;
    let limit_bytes = 64 + 2 * layout.main_bytes(1) + 64;
    let arena = Arc::new(Arena::new(limit_bytes, &[limit_bytes]).unwrap());
    let table = Arc::new(Table::new("t", layout, arena, |_| true).unwrap());
    let key = (0..).find(|key| table.bucket_of(*key, 1 << 56) == 1).unwrap();
    table.load(address(&table, key), key, &value(&table, 7)).unwrap();
    // Loom does not know that a `OnceBox` publishes its contents.
    table.partition(0).unwrap().growth_or_new(1);
    (table, key)
}

/// Bytes of a unit that splits the bucket.
fn split() -> Vec<u8> {
    let mut bytes = Vec::new();
    BucketUpdateWriter::begin(&mut bytes, (0, 0, 0), 0, Owner(1)).split();
    bytes
}

/// Has a thread read and lock the row where it is now, while `reshape` moves it. Counts if the row was missed.
fn look_against(table: &Arc<Table>, key: u64, missed: &Arc<Count>, reshape: impl FnOnce()) {
    let before = address(table, key);
    let looking = {
        let (table, missed) = (Arc::clone(table), Arc::clone(missed));
        loom::thread::spawn(move || {
            let mut out = value(&table, 0);
            let read = table.read(before, key, Owner(99), &mut out);
            let is_whole = matches!(read, Read::Found { .. }) && out == value(&table, 7);
            let lock = table.lock(before, key, Owner(99), LockMode::Update, &mut out);
            let is_found = (is_whole || read == Read::Locked)
                && matches!(lock, Lock::Granted { .. } | Lock::Locked);
            missed.fetch_add(u64::from(!is_found), Ordering::Relaxed);
        })
    };
    reshape();
    looking.join().unwrap();
}

/// One thread splits the only bucket; another reads, and locks, a row that moves. How often the row was missed.
fn look_against_split(removed: Option<&'static Rule>) -> u64 {
    let missed = Arc::new(Count::new(0));
    let total = Arc::clone(&missed);
    explore(removed, 2, move || {
        let (table, key) = with_a_row_that_moves();
        look_against(&table, key, &missed, || {
            let before = address(&table, key);
            let locked = table.lock(before, key, Owner(1), LockMode::Update, &mut value(&table, 0));
            if locked == (Lock::Granted { version: 0 }) {
                let root = table.bucket_address(0, 0).unwrap();
                let applied = table.apply_at_primary(root, &BucketUpdate::parse_checked(&split()));
                assert_eq!(applied, Applied::Applied);
                assert_eq!(table.address(key).unwrap().level(), 1);
            }
        });
    });
    total.load(Ordering::Relaxed)
}

/// One thread merges the half of a table of two buckets; another reads, and locks, a row that moves. How often the row was missed.
fn look_against_merge(removed: Option<&'static Rule>) -> u64 {
    let missed = Arc::new(Count::new(0));
    let total = Arc::clone(&missed);
    explore(removed, 2, move || {
        let (table, key) = with_a_row_that_moves();
        let root = table.bucket_address(0, 0).unwrap();
        let applied = table.apply_at_backup(root, &BucketUpdate::parse_checked(&split()));
        assert_eq!(applied, Applied::Applied);
        assert_eq!(address(&table, key).level(), 1);
        look_against(&table, key, &missed, || {
            let merging = table.lock_to_merge(0, 0, Owner(1));
            if let Reshaping::Granted { bucket: 0, version } = merging {
                let mut bytes = Vec::new();
                let out = (&mut BucketSnapshot::default(), &mut bytes);
                table.write_merge((0, 0, 0), version, Owner(1), out);
                let applied = table.apply_at_primary(root, &BucketUpdate::parse_checked(&bytes));
                assert_eq!(applied, Applied::Applied);
                assert_eq!(address(&table, key).level(), 0);
            }
        });
    });
    total.load(Ordering::Relaxed)
}

#[test]
fn loom_a_row_that_moves_in_a_merge_is_found() {
    assert_eq!(look_against_merge(None), 0);
    assert!(look_against_merge(Some(&rules::SPLIT_BUCKETS)) > 0, "the rule is not needed");
}

#[test]
fn loom_a_row_that_moves_in_a_split_is_found() {
    assert_eq!(look_against_split(None), 0);
    assert!(look_against_split(Some(&rules::SPLIT_BUCKETS)) > 0, "the rule is not needed");
}

#[test]
fn loom_a_reader_notices_that_a_cell_was_used_again() {
    assert_eq!(read_against_reuse(None), 0);
    assert!(read_against_reuse(Some(&rules::REUSE_FENCE)) > 0, "the fence is not needed");
}

/// A bucket loses the row in its overflow bucket, whose cell a row of another bucket takes, with a value that looks like a
/// slot of the row that went, or like a chain without an end; a reader looks for the row. Whether it found it, and not.
fn read_against_shrinking(removed: Option<&'static Rule>, looks_like_a_slot: bool) -> [u64; 2] {
    let found_and_absent = Arc::new([Count::new(0), Count::new(0)]);
    let total = Arc::clone(&found_and_absent);
    explore(removed, 1, move || {
        let (table, [keys, others]) = heap_table(12);
        for (version, key) in (0..8).zip(&keys) {
            apply_row(&table, key, version, Some(&[1]));
        }
        let removed = keys[7].clone();
        let reading = {
            let (table, removed) = (Arc::clone(&table), removed.clone());
            loom::thread::spawn(move || read_row(&table, &removed))
        };
        apply_row(&table, &removed, 8, None);
        let (mut other, mut value) = (others[0].clone().into_bytes(), Vec::new());
        if looks_like_a_slot {
            // Link and stamp fill ten bytes, so the key's four bytes are the tags of slots 2 to 5. Slot 2 is the last one, 34 bytes further.
            let hash = HashSeed::ZERO.hashed(removed.as_bytes()).word();
            let tag = table.locate(hash).tag;
            let with_tag = (0..=u16::MAX).map(|it| [&[tag, b'x'][..], &it.to_le_bytes()].concat());
            let is_other =
                |key: &Vec<u8>| table.locate(HashSeed::ZERO.hashed(key).word()).root == 1;
            other = with_tag.into_iter().find(is_other).unwrap();
            value = [&[0; 34][..], &hash.to_le_bytes(), &NO_CELL.to_le_bytes()].concat();
        } else {
            // The last cell of a row has its number of bytes in place of a link: here the cell's own number.
            value.resize(FREED_CELL - 10, 0);
        }
        apply_row(&table, &other, 0, Some(&value));
        match reading.join().unwrap() {
            (Read::Found { version: 8 }, value) => {
                assert_eq!(value, [1]);
                found_and_absent[0].fetch_add(1, Ordering::Relaxed);
            }
            (Read::Absent { version: 9 }, _) => {
                found_and_absent[1].fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
    });
    [0, 1].map(|index: usize| total[index].load(Ordering::Relaxed))
}

/// Number of the cell of the overflow bucket in `read_against_shrinking`: the last of the bucket that was taken, behind a line
/// for nothing, five of main buckets, and eight rows.
const FREED_CELL: usize = 14;

/// What a slot says of a row with a key of four bytes in one cell, the number of which lies beyond the memory.
const NO_CELL: u64 = 4 << 48 | 1 << 32 | 0xffff_ffff;

#[test]
fn loom_a_reader_notices_that_a_chain_shrank() {
    for looks_like_a_slot in [true, false] {
        let seen = read_against_shrinking(None, looks_like_a_slot);
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }
}

#[test]
#[should_panic(expected = "out of range")]
fn loom_a_reader_that_trusts_torn_numbers_leaves_the_memory() {
    read_against_shrinking(Some(&rules::MAPPED_CELLS), true);
}

#[test]
#[should_panic(expected = "branches")]
fn loom_a_reader_that_follows_freed_cells_never_ends() {
    read_against_shrinking(Some(&rules::UNCHANGED_CHAIN), false);
}
