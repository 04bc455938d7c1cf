//! What a table gives back when it goes, or when one of its partitions goes to another node: main buckets, the cells of rows, overflow
//! buckets, and what locks have reserved.
//!
//! *Invariants*: the memory that is counted is the same as before the table was created. The last owner of a table drops it, so nobody
//! reads it any more: there is no one to wait for. The caller that removes a partition has waited for all threads that could
//! read it.
//!
//! *Not here*: the order in which copies go. A primary gives back what it has granted after its backups have (rule C9): the
//! engine sees to that.

use std::ops::Range;

use crate::bucket::Bucket;
use crate::cells::Need;
use crate::extents::Extent;
use crate::heap::Row;
use crate::layout::TableKind;
use crate::ordered_index::OrderedIndex;
use crate::sync::Ordering;
use crate::table::Table;

impl Drop for Table {
    fn drop(&mut self) {
        for number in (0..=u16::MAX).take(self.layout().partitioning.count()) {
            self.remove_partition(number);
        }
        if self.is_leaving.load(Ordering::Relaxed) {
            // Relaxed, as everywhere: locks hand memory on, and this orders nothing.
            self.arena.leaving.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Table {
    /// The table is about to be dropped: until then its memory is waited for ([`Self::awaits_memory`]).
    pub fn leave(&self) {
        if !self.is_leaving.swap(true, Ordering::Relaxed) {
            self.arena.leaving.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether tables of this node, which have left, are about to give memory back: a row without room may find room soon.
    #[must_use]
    pub fn awaits_memory(&self) -> bool {
        self.arena.leaving.load(Ordering::Relaxed) > 0
    }

    /// Whether this node has a partition, whatever its state.
    #[must_use]
    pub fn has_partition(&self, number: u16) -> bool {
        self.partition(number).is_some_and(|partition| partition.main_buckets().is_some())
    }

    /// Frees what some buckets of a partition hold that is about to be removed. Whether there are buckets behind these. No thread uses the
    /// partition any more, and no transaction will.
    pub fn empty_buckets(&self, number: u16, buckets: Range<u32>) -> bool {
        let Some(partition) = self.partition(number) else { return false };
        let Some(main_buckets) = partition.main_buckets() else { return false };
        let (mut extents, count) = (Vec::new(), self.bucket_count(number));
        let end = buckets.end;
        let present = buckets.start..end.min(count);
        for address in
            present.filter_map(|bucket| self.address_from(partition, main_buckets, bucket))
        {
            self.empty_bucket(number, self.bucket(address), &mut extents);
            let words = self.arena().words(address.first_word(), self.layout().main_words);
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
        self.arena().free_fixed(number, extents);
        end < count
    }

    /// Forgets the keys of some leaves of a partition's index, of a table that is dropped. Whether there are further ones.
    pub fn forget_leaves(&self, number: u16, count: usize) -> bool {
        let heap = self.partition(number).and_then(|partition| partition.heap());
        heap.is_some_and(|heap| heap.forget_leaves(count))
    }

    /// Removes a partition: it is absent then. Whether it was there. No thread uses the partition any more, and no transaction will.
    pub fn remove_partition(&self, number: u16) -> bool {
        let Some(partition) = self.partition(number) else { return false };
        let Some(main_buckets) = partition.go() else { return false };
        let main = Extent::of_words(main_buckets.first_word(), self.layout().partition_words());
        let mut extents = vec![main];
        let addresses = (0..self.bucket_count(number))
            .filter_map(|bucket| self.address_from(partition, main_buckets, bucket));
        addresses.for_each(|address| self.empty_bucket(number, self.bucket(address), &mut extents));
        if let Some(growth) = partition.growth() {
            extents.extend(growth.clear(self.layout()));
        }
        if let Some(heap) = partition.heap() {
            heap.clear(self.arena());
        }
        self.arena().free_fixed(number, extents);
        true
    }

    /// Frees the cells of a bucket, and adds its overflow buckets that are none to `extents`.
    pub(crate) fn empty_bucket(
        &self,
        partition: u16,
        bucket: Bucket<'_>,
        extents: &mut Vec<Extent>,
    ) {
        let sequence = bucket.last_sequence();
        if self.layout().kind != TableKind::Fixed {
            bucket.for_each(sequence, |slot| {
                let row = Row::of(self.arena(), slot);
                let index_bytes = match self.layout().kind {
                    TableKind::Fixed | TableKind::Heap => 0,
                    TableKind::Ordered => OrderedIndex::entry_bytes(row.key_bytes()),
                };
                self.arena().free(partition, row.first(), Need { cells: row.cells(), index_bytes });
            });
        }
        let overflow_words = self.layout().overflow_words;
        let overflow = bucket.overflow_numbers(sequence);
        if self.layout().has_overflow_cells() {
            let numbers: Vec<u64> = overflow.collect();
            if let Some(first) = numbers.first() {
                self.arena().free(partition, *first, Need::cells(numbers.len()));
            }
        } else {
            extents.extend(overflow.map(|number| Extent::of_line(number, overflow_words)));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use crate::arena::LINE_BYTES;
    use crate::sync::Ordering;
    use crate::{
        Applied, Arena, BucketSnapshot, BucketUpdate, BucketUpdateWriter, HashSeed, HashedKey,
        Lock, LockMode, Owner, Partitioning, StorageError, Table, TableDefinition, TableKind,
    };

    const PARTITIONS: u16 = 2;
    const BUCKETS: u32 = 8;
    /// Small enough that tables and rows are refused.
    const SHARE_BYTES: usize = 40_000;
    const TABLES: usize = 3;
    const KEYS: u64 = 150;
    /// Kinds, and bytes of the values of fixed tables: overflow buckets that are cells, and that are not.
    const KINDS: [(TableKind, usize); 4] = [
        (TableKind::Fixed, 8),
        (TableKind::Fixed, 40),
        (TableKind::Heap, 8),
        (TableKind::Ordered, 8),
    ];

    /// A key whose entry in an index is counted as whole lines.
    fn key_bytes(number: u64) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[24..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    fn arena() -> Arc<Arena> {
        let limit_bytes = LINE_BYTES + usize::from(PARTITIONS) * SHARE_BYTES;
        let shares = [Arena::share_bytes(limit_bytes, PARTITIONS.into()); PARTITIONS as usize];
        Arc::new(Arena::new(limit_bytes, &shares).expect("address space"))
    }

    /// A table with what it should hold.
    struct Model {
        table: Table,
        rows: BTreeMap<u64, Vec<u8>>,
        /// Keys that stay locked, to be inserted.
        locked: Vec<u64>,
        /// What the arena counts for it.
        used_bytes: usize,
        owners: u64,
    }

    impl Model {
        fn new(arena: &Arc<Arena>, kind: usize, buckets: u32) -> Result<Self, StorageError> {
            let (kind, value_bytes) = KINDS[kind];
            let definition = TableDefinition {
                name: "t".to_owned(),
                kind,
                value_bytes,
                rows: 1,
                is_system: false,
            };
            let partitioning = Partitioning::new(PARTITIONS.into()).expect("a power of two");
            let mut layout = definition.layout(partitioning)?;
            layout.buckets = buckets;
            let before = arena.used_bytes();
            let table = Table::new("t", layout, Arc::clone(arena), |_| true)?;
            for partition in (0..PARTITIONS).map(|number| table.partition(number)) {
                let first_word = partition.and_then(|partition| partition.main_buckets());
                let first_word = first_word.expect("the node holds all partitions").first_word();
                let words = arena.words(first_word, layout.partition_words());
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            }
            let (rows, locked) = (BTreeMap::new(), Vec::new());
            let used_bytes = arena.used_bytes() - before;
            Ok(Self { table, rows, locked, used_bytes, owners: 0 })
        }

        /// Locks a row, and writes or deletes it, or leaves it locked; `false` if there is no room.
        fn change(&mut self, number: u64, value: Option<Vec<u8>>, stays_locked: bool) -> bool {
            let table = &self.table;
            let mode = match (self.rows.contains_key(&number), &value) {
                (true, Some(_)) => LockMode::Update,
                (true, None) => LockMode::Delete,
                (false, Some(_)) => LockMode::Insert,
                (false, None) => return true,
            };
            self.owners += 1;
            let owner = Owner(Owner::of_epoch(1).0 + self.owners);
            let (bytes, is_fixed) = (key_bytes(number), table.layout().kind == TableKind::Fixed);
            let key =
                if is_fixed { HashedKey::Number(number) } else { HashSeed::ZERO.hashed(&bytes) };
            let location = table.locate(key.word());
            let address = table.address_of(location).expect("the node holds all partitions");
            let lock = if is_fixed {
                table.lock(address, number, owner, mode, &mut vec![0; table.layout().value_bytes])
            } else {
                table.lock_row(address, key, owner, (mode, value.as_ref().map_or(0, Vec::len)))
            };
            let version = match lock {
                Lock::Granted { version } => version,
                Lock::Full => return false,
                Lock::Locked => return true,
                other => panic!("{other:?}"),
            };
            if stays_locked {
                self.locked.push(number);
                return true;
            }
            let header = (0, location.partition, location.root);
            let mut unit = Vec::new();
            let mut writer = BucketUpdateWriter::begin(&mut unit, header, version, owner);
            match &value {
                Some(value) => writer.put(key, value),
                None => writer.delete(key),
            }
            writer.finish();
            let applied = table.apply_at_primary(address, &BucketUpdate::parse_checked(&unit));
            assert_eq!(applied, Applied::Applied);
            match value {
                Some(value) => self.rows.insert(number, value),
                None => self.rows.remove(&number),
            };
            true
        }

        fn move_away_and_back(&mut self, partition: u16) -> bool {
            let Self { table, rows, .. } = self;
            // A part of it before.
            assert!(table.empty_buckets(partition, 1..3));
            assert!(table.remove_partition(partition) && !table.remove_partition(partition));
            assert!(!table.has_partition(partition) && !table.empty_buckets(partition, 0..1));
            assert_eq!(table.bucket_address(partition, 0), None);
            let is_fixed = table.layout().kind == TableKind::Fixed;
            rows.retain(|number, _| {
                let bytes = key_bytes(*number);
                let key = if is_fixed {
                    HashedKey::Number(*number)
                } else {
                    HashSeed::ZERO.hashed(&bytes)
                };
                table.locate(key.word()).partition != partition
            });
            table.add_partition(partition).expect("there was room for it before");
            assert_eq!(table.served_bucket_address(partition, 0), None);
            assert_eq!(table.index_differences(partition), 0);
            table.serve_partition(partition);
            table.served_bucket_address(partition, 0).is_some()
        }

        fn check(&self) {
            let (mut snapshot, mut rows) = (BucketSnapshot::default(), BTreeMap::new());
            for partition in 0..PARTITIONS {
                for bucket in 0..self.table.layout().buckets {
                    self.table.snapshot(partition, bucket, &mut snapshot);
                    if self.table.layout().kind == TableKind::Fixed {
                        rows.extend(snapshot.rows().map(|(key, value)| (key, value.to_vec())));
                    } else {
                        rows.extend(snapshot.heap_rows().map(|(key, value)| {
                            let number = key[24..].try_into().expect("keys of 32 bytes");
                            (u64::from_be_bytes(number), value.to_vec())
                        }));
                    }
                }
            }
            assert_eq!(rows, self.rows);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Create {
            kind: usize,
        },
        Write {
            key: u64,
            bytes: usize,
            seed: u8,
        },
        Delete {
            key: u64,
        },
        Lock {
            key: u64,
        },
        /// The partition goes to another node, and comes back without rows.
        Move {
            partition: u16,
        },
        Drop,
    }

    /// A step of one of the tables.
    fn step() -> impl Strategy<Value = (usize, Step)> {
        let step = prop_oneof![
            2 => (0..KINDS.len()).prop_map(|kind| Step::Create { kind }),
            40 => (0..KEYS, 0..2_000_usize, any::<u8>())
                .prop_map(|(key, bytes, seed)| Step::Write { key, bytes, seed }),
            10 => (0..KEYS).prop_map(|key| Step::Delete { key }),
            1 => (0..KEYS).prop_map(|key| Step::Lock { key }),
            1 => (0..PARTITIONS).prop_map(|partition| Step::Move { partition }),
            1 => Just(Step::Drop),
        ];
        (0..TABLES, step)
    }

    fn run(arena: &Arc<Arena>, tables: &mut [Option<Model>; TABLES], at: usize, step: Step) {
        let before = arena.used_bytes();
        match (step, tables[at].take()) {
            (Step::Create { kind }, None) => {
                tables[at] = Model::new(arena, kind, BUCKETS).ok();
                tables.iter().flatten().for_each(Model::check);
            }
            (Step::Drop, Some(model)) => {
                let used_bytes = model.used_bytes;
                drop(model);
                assert_eq!(arena.used_bytes(), before - used_bytes);
                tables.iter().flatten().for_each(Model::check);
            }
            (step, Some(mut model)) => {
                let is_fixed = model.table.layout().kind == TableKind::Fixed;
                let fixed_bytes = model.table.layout().value_bytes;
                let value = |bytes, seed| vec![seed; if is_fixed { fixed_bytes } else { bytes }];
                match step {
                    Step::Write { key, bytes, seed } => {
                        model.change(key, Some(value(bytes, seed)), false)
                    }
                    Step::Delete { key } => model.change(key, None, false),
                    Step::Lock { key } => {
                        model.rows.contains_key(&key) || model.change(key, Some(value(70, 1)), true)
                    }
                    Step::Move { partition } => model.move_away_and_back(partition),
                    Step::Create { .. } | Step::Drop => true,
                };
                model.used_bytes = model.used_bytes + arena.used_bytes() - before;
                tables[at] = Some(model);
            }
            (_, None) => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn what_tables_took_comes_back(steps in proptest::collection::vec(step(), 0..1_500)) {
            let arena = arena();
            let mut tables = [const { None }; TABLES];
            for (at, step) in steps {
                run(&arena, &mut tables, at, step);
                prop_assert!(arena.used_bytes() <= arena.limit_bytes());
            }
            tables.iter().flatten().for_each(Model::check);
            drop(tables);
            prop_assert_eq!(arena.used_bytes(), LINE_BYTES);
            // All of each share serves one table.
            let buckets = SHARE_BYTES / 64 * 8 / 18;
            prop_assert!(Model::new(&arena, 0, u32::try_from(buckets)?).is_ok());
        }
    }

    /// Writes rows until one is refused, and returns how many.
    fn fill(model: &mut Model) -> u64 {
        let rows = (0..).take_while(|key| model.change(*key, Some(vec![7; 500]), false));
        rows.count() as u64
    }

    #[test]
    fn a_full_share_serves_a_new_table_when_the_old_one_went() {
        let arena = arena();
        let mut old = Model::new(&arena, 3, BUCKETS).unwrap();
        let rows = fill(&mut old);
        let large = || Model::new(&arena, 1, 8 * BUCKETS);
        assert!(matches!(large().err(), Some(StorageError::OutOfMemory { .. })));
        drop(old);
        drop(large().unwrap());
        assert_eq!(fill(&mut Model::new(&arena, 3, BUCKETS).unwrap()), rows);
        assert_eq!(arena.used_bytes(), LINE_BYTES);
    }

    #[test]
    fn a_share_serves_main_buckets_when_all_its_cells_are_free() {
        let arena = arena();
        let mut rows = Model::new(&arena, 2, BUCKETS).unwrap();
        let count = fill(&mut rows);
        let large = || Model::new(&arena, 1, 8 * BUCKETS);
        for key in 1..count {
            assert!(rows.change(key, None, false));
        }
        assert!(large().is_err(), "a row still lies between free cells");
        assert!(rows.change(0, None, false));
        let large = large().unwrap();
        assert!(fill(&mut rows) < count);
        large.check();
    }

    #[test]
    fn a_table_that_does_not_fit_leaves_nothing_behind() {
        let arena = Arena::new(1 << 20, &[1 << 18, 1 << 10]).unwrap();
        let arena = Arc::new(arena);
        assert!(Model::new(&arena, 0, BUCKETS * 4).is_err());
        assert_eq!(arena.used_bytes(), LINE_BYTES);
    }
}
