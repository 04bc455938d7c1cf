//! A partition of a table on one node: everything that the table has of it, and whether it serves transactions.
//!
//! ```text
//! partition, 32 bytes:  word 0  first word of the main buckets in the arena, 0 = absent
//!                       word 1  the same while the partition is present, 0 = it serves no new transactions
//!                       word 2  heap tables: reservations, and of an ordered table index and scan barriers
//! ```
//! A partition that is *leaving* refuses READ, LOCK, SCAN and VALIDATE. It still takes BACKUP, PRIMARY and UNLOCK, so that
//! transactions that have locked before can end. Whoever gives up a partition makes it leave, waits for those, and drops the table.
//! A partition that is *coming* is filled from another node: it takes BACKUP, and serves nothing until it has all rows. One that another
//! node has in its place is removed, and is absent again.
//!
//! *Invariants*: absent, coming, present, leaving, absent: a partition goes this way, and may leave out what is between. All entries of a
//! table lie side by side, and the address of a bucket takes one load from its entry.
//!
//! *Not here*: which partitions a node has, which is in `engine`; memory, in `arena.rs`; what is given back, in `give_back.rs`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arena::Quota;
use crate::error::StorageError;
use crate::heap::Heap;
use crate::layout::TableKind;
use crate::table::Table;

/// See the module's text.
pub(crate) struct Partition {
    first_word: AtomicUsize,
    /// Loom does not explore it: a request that still sees the partition present comes before its leaving.
    served_word: AtomicUsize,
    heap: OnceLock<Box<Heap>>,
}

const _: () = assert!(size_of::<Partition>() == 32);

impl Partition {
    /// A partition that the node does not have.
    pub(crate) fn absent() -> Self {
        Self {
            first_word: AtomicUsize::new(0),
            served_word: AtomicUsize::new(0),
            heap: OnceLock::new(),
        }
    }

    /// Has the main buckets begin at a word of the arena: the partition is coming.
    fn come(&self, number: u16, first_word: usize, kind: TableKind) {
        if kind != TableKind::Fixed {
            self.heap.get_or_init(|| Box::new(Heap::new(number, kind)));
        }
        // Release: pairs with the Acquire in first_word().
        self.first_word.store(first_word, Ordering::Release);
    }

    /// First word of the main buckets, unless the partition is absent.
    #[inline(always)]
    pub(crate) fn first_word(&self) -> Option<usize> {
        // Acquire: pairs with the Release in come(): the memory is zero, and what a heap table has besides is there.
        let word = self.first_word.load(Ordering::Acquire);
        (word != 0).then_some(word)
    }

    /// Makes the partition absent; the first word that its main buckets had.
    pub(crate) fn go(&self) -> Option<usize> {
        // Relaxed: nobody uses the partition any more.
        self.served_word.store(0, Ordering::Relaxed);
        let word = self.first_word.swap(0, Ordering::Relaxed);
        (word != 0).then_some(word)
    }

    /// First word of the main buckets if the partition is present.
    #[inline(always)]
    pub(crate) fn served_word(&self) -> Option<usize> {
        // Relaxed: it publishes nothing. Who needs that no request of before is still running waits for all workers.
        let word = self.served_word.load(Ordering::Relaxed);
        (word != 0).then_some(word)
    }

    /// What only a heap table has.
    pub(crate) fn heap(&self) -> Option<&Heap> {
        self.heap.get().map(|heap| &**heap)
    }
}

impl Table {
    /// Gives a partition that is absent its main buckets: it is coming. One that is there stays as it is. One thread at a time may do
    /// that while others use the table.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if they do not fit the share of the partition.
    pub fn add_partition(&self, number: u16) -> Result<(), StorageError> {
        let Some(partition) = self.partition(number).filter(|it| it.first_word().is_none()) else {
            return Ok(());
        };
        let words = self.layout().partition_words();
        let first_word = self.arena().allocate_fixed(number, words, Quota::WithinShare);
        let first_word = first_word.ok_or_else(|| self.out_of_memory(|held| held == number))?;
        partition.come(number, first_word, self.layout().kind);
        Ok(())
    }

    /// Makes a partition that is coming present: it serves transactions. It has all rows.
    pub fn serve_partition(&self, partition: u16) {
        if let Some(partition) = self.partition(partition) {
            // Relaxed: as in served_word(). Whoever asks this node for rows has heard of a later configuration than those who fill it.
            let word = partition.first_word.load(Ordering::Relaxed);
            partition.served_word.store(word, Ordering::Relaxed);
        }
    }

    /// Makes a partition leave: it serves no new transactions. Any thread may do that while others use the table.
    ///
    /// A request that found the partition present may still be running; it is over when its worker takes the next one.
    pub fn leave_partition(&self, partition: u16) {
        if let Some(partition) = self.partition(partition) {
            partition.served_word.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Applied, Arena, BucketUpdate, BucketUpdateWriter, Direction, Key, Lock, LockMode, Owner,
        Partitioning, Scanned, TableDefinition, Unlocked,
    };

    /// A table of which this node has the first of two partitions.
    fn table(kind: TableKind) -> Table {
        let partitioning = Partitioning::new(2).expect("a power of two");
        let definition = TableDefinition { name: "t".to_owned(), kind, value_bytes: 8, rows: 1 };
        let layout = definition.layout(partitioning).expect("sizes in range");
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 19; 2]).expect("address space"));
        Table::new("t", layout, arena, |partition| partition == 0).expect("it fits")
    }

    fn keys(table: &Table) -> impl Iterator<Item = [u8; 8]> {
        let is_of_first = |bytes: &[u8; 8]| table.locate(Key::from(bytes).word()).partition == 0;
        (0..).map(u64::to_be_bytes).filter(is_of_first)
    }

    #[test]
    fn a_leaving_partition_takes_what_was_locked_and_serves_nothing_new() {
        let table = table(TableKind::Ordered);
        let keys: Vec<_> = keys(&table).take(2).collect();
        let [written, given_up] = [&keys[0], &keys[1]].map(Key::from);
        let location = table.locate(written.word());
        let address = table.address_of(location).unwrap();
        let address_given_up = table.address(given_up.word()).unwrap();
        for (key, address) in [(written, address), (given_up, address_given_up)] {
            let lock = table.lock_row(address, key, Owner(1), (LockMode::Insert, 5)).0;
            assert_eq!(lock, Lock::Granted { version: 0 });
        }
        // Only the first partition is here, and there is no third one.
        [0, 1, 2].into_iter().for_each(|partition| table.leave_partition(partition));
        assert_eq!([1, 2].map(|partition| table.bucket_address(partition, 0)), [None; 2]);
        assert_eq!(table.address_of(location), None);
        assert_eq!(table.served_bucket_address(0, location.bucket), None);

        let held = table.bucket_address(0, location.bucket).unwrap();
        assert_eq!(held.with_tag(location.tag), address);
        let mut bytes = Vec::new();
        let mut unit =
            BucketUpdateWriter::begin(&mut bytes, (0, 0, location.bucket, 0), 0, Owner(1));
        unit.put(written, b"value");
        unit.finish();
        let unit = BucketUpdate::parse_checked(&bytes);
        assert_eq!(table.apply_at_primary(held, &unit), Applied::Applied);
        assert_eq!(table.unlock_row(address_given_up, given_up, Owner(1)), Unlocked::Released);
        // A scan that began before goes on to its end.
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let (mut leaves, mut rows) = (Vec::new(), Vec::new());
        let scanned = table.scan(0, all, Direction::Ascending, Owner(2), &mut leaves, |row| {
            rows.push((row.key.to_vec(), row.value.map(<[u8]>::to_vec)));
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(scanned, Scanned::Complete);
        assert_eq!(rows, [(keys[0].to_vec(), Some(b"value".to_vec()))]);
    }

    #[test]
    fn every_kind_of_table_has_the_partitions_that_it_was_given() {
        for kind in [TableKind::Fixed, TableKind::Heap, TableKind::Ordered] {
            let table = table(kind);
            let buckets = table.layout().buckets;
            for (partition, is_held) in [(0, true), (1, false), (2, false)] {
                assert_eq!(table.bucket_address(partition, buckets - 1).is_some(), is_held);
                assert_eq!(table.served_bucket_address(partition, 0).is_some(), is_held);
                assert_eq!(table.bucket_address(partition, buckets), None);
            }
        }
    }
}
