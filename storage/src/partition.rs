//! A partition of a table on one node: its buckets, its index, its scan barriers, and whether it serves transactions.
//!
//! ```text
//! partition, 32 bytes:  word 0  first word of the main buckets in the arena, 0 = absent
//!                       word 1  the same while the partition is served, 0 = it serves no new transactions
//!                       word 2  of a heap table reservations, and of an ordered one index and scan barriers
//!                       word 3  buckets that were born, if any may have been
//! ```
//! Bit 0 of words 0 and 1 says that buckets of the partition were split, so that a key may not be where it was when the table was created.
//! A look that misses the bit finds a bucket of another level than it expects, and looks again (`growth.rs`).
//!
//! A partition is *absent*, *held* or *served*. The primary serves it. A backup or a learner holds it: it refuses READ, LOCK, SCAN and
//! VALIDATE, and takes BACKUP. It takes PRIMARY and UNLOCK, too, so that transactions end that locked rows when it was served. A primary
//! that gives up its role, or whose table is dropped, holds the partition, and waits for those.
//!
//! *Invariants*: all entries of a table lie side by side, and the address of a bucket takes one load from its entry. A partition that is not
//! served has no scan barriers.
//!
//! *Not here*: which partitions a node has, which is in `engine`; memory, in `arena.rs`; cells, which all tables of a partition share, in
//! `cells.rs`; what is given back, in `give_back.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use crate::arena::Quota;
use crate::error::StorageError;
use crate::growth::Growth;
use crate::heap::Heap;
use crate::layout::TableKind;
use crate::table::Table;

/// See the module's text.
pub(crate) struct Partition {
    first_word: AtomicUsize,
    /// Loom does not explore it: a request that still sees the partition present comes before its leaving.
    served_word: AtomicUsize,
    heap: OnceBox<Heap>,
    growth: OnceBox<Growth>,
}

const _: () = assert!(size_of::<Partition>() == 32);

/// Where the main buckets of a partition begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MainBuckets(usize);

impl MainBuckets {
    /// Main buckets begin at a cache line, so the bit of their first word is free.
    const GROWN: usize = 1;

    #[inline(always)]
    fn of(word: usize) -> Option<Self> {
        (word & !Self::GROWN != 0).then_some(Self(word))
    }

    /// Their first word in the arena.
    #[inline(always)]
    pub(crate) fn first_word(self) -> usize {
        self.0 & !Self::GROWN
    }

    /// Whether buckets of the partition were split.
    #[inline(always)]
    pub(crate) fn has_grown(self) -> bool {
        self.0 & Self::GROWN != 0
    }
}

impl Partition {
    /// A partition that the node does not have.
    pub(crate) fn absent() -> Self {
        Self {
            first_word: AtomicUsize::new(0),
            served_word: AtomicUsize::new(0),
            heap: OnceBox::new(),
            growth: OnceBox::new(),
        }
    }

    /// Has the main buckets begin at a word of the arena: the partition is held.
    fn come(&self, number: u16, first_word: usize, kind: TableKind) {
        if kind != TableKind::Fixed {
            self.heap.get_or_init(|| Box::new(Heap::new(number, kind)));
        }
        // Release: pairs with the Acquire in main_buckets().
        self.first_word.store(first_word, Ordering::Release);
    }

    /// The main buckets, unless the partition is absent.
    #[inline(always)]
    pub(crate) fn main_buckets(&self) -> Option<MainBuckets> {
        // Acquire: pairs with the Release in come(): the memory is zero, and what a heap table has besides is there.
        MainBuckets::of(self.first_word.load(Ordering::Acquire))
    }

    /// Makes the partition absent; the main buckets that it had.
    pub(crate) fn go(&self) -> Option<MainBuckets> {
        // Relaxed: nobody uses the partition any more.
        self.served_word.store(0, Ordering::Relaxed);
        MainBuckets::of(self.first_word.swap(0, Ordering::Relaxed))
    }

    /// The main buckets if the partition is served.
    #[inline(always)]
    pub(crate) fn served_buckets(&self) -> Option<MainBuckets> {
        // Acquire: pairs with the Release in has_grown() and serve(): a thread that sees that buckets were split
        // sees which. A thread that needs that no earlier request is still running waits for all workers.
        MainBuckets::of(self.served_word.load(Ordering::Acquire))
    }

    /// Has threads that look for a key ask which buckets were split.
    pub(crate) fn has_grown(&self) {
        // Release: pairs with the Acquire in main_buckets() and served_buckets(). A thread that misses the bit finds a
        // bucket of another level.
        self.first_word.fetch_or(MainBuckets::GROWN, Ordering::Release);
        let grown = |word| (word != 0).then_some(word | MainBuckets::GROWN);
        // A partition that is not served stays so.
        let _ = self.served_word.fetch_update(Ordering::Release, Ordering::Relaxed, grown);
    }

    /// Has a partition that is held serve transactions.
    pub(crate) fn serve(&self) {
        // Acquire and Release: as in has_grown(), whose bit is passed on. A coordinator that asks this node for rows has
        // heard of a later configuration than the nodes that fill the partition.
        let word = self.first_word.load(Ordering::Acquire);
        self.served_word.store(word, Ordering::Release);
    }

    /// Has the partition serve no new transactions.
    pub(crate) fn leave(&self) {
        self.served_word.store(0, Ordering::Relaxed);
    }

    /// Has the partition serve transactions or not, if need be from the end of a bulk load on.
    fn serve_or_leave(&self, serves: bool) {
        let set = || if serves { self.serve() } else { self.leave() };
        match self.heap() {
            Some(heap) => heap.bulk_load().serve_or_leave(serves, set),
            None => set(),
        }
    }

    /// What only a heap table has.
    pub(crate) fn heap(&self) -> Option<&Heap> {
        self.heap.get()
    }

    /// Which buckets were born, if any may have been.
    #[inline]
    pub(crate) fn growth(&self) -> Option<&Growth> {
        self.growth.get()
    }

    /// As [`Self::growth`], of a table that begins with `roots` buckets in each partition.
    pub(crate) fn growth_or_new(&self, roots: u32) -> &Growth {
        self.growth.get_or_init(|| Box::new(Growth::new(roots)))
    }
}

impl Table {
    /// Gives a partition that is absent its main buckets: it is held. One that is there stays as it is. One thread at a time may do
    /// that while others use the table.
    ///
    /// # Errors
    /// [`StorageError::OutOfMemory`] if they do not fit the share of the partition.
    pub fn add_partition(&self, number: u16) -> Result<(), StorageError> {
        let Some(partition) = self.partition(number).filter(|it| it.main_buckets().is_none())
        else {
            return Ok(());
        };
        let words = self.layout().partition_words();
        let first_word = self.arena().allocate_fixed(number, words, Quota::Share);
        let first_word = first_word.ok_or_else(|| self.out_of_memory(|held| held == number))?;
        partition.come(number, first_word, self.layout().kind);
        Ok(())
    }

    /// Has a partition that is held serve transactions. It has all rows. During a bulk load it does so from the end of the load on.
    pub fn serve_partition(&self, number: u16) {
        if let Some(partition) = self.partition(number) {
            partition.serve_or_leave(true);
        }
    }

    /// Has a partition serve no new transactions: it is held. Any thread may do that while others use the table.
    ///
    /// A request that found the partition served may still be running; it is over when its worker takes the next one.
    pub fn leave_partition(&self, number: u16) {
        if let Some(partition) = self.partition(number) {
            partition.serve_or_leave(false);
            self.end_barriers(number);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Applied, Arena, BucketUpdate, BucketUpdateWriter, Direction, Lock, LockMode, Owner,
        Partitioning, Scanned, TableDefinition, Unlocked,
    };

    /// Two transactions.
    const OWNER: Owner = Owner(1 << Owner::EPOCH_SHIFT | 1);
    const READER: Owner = Owner(1 << Owner::EPOCH_SHIFT | 2);

    /// A table of which this node has the first of two partitions.
    fn table(kind: TableKind) -> Table {
        let partitioning = Partitioning::new(2).expect("a power of two");
        let definition = TableDefinition {
            name: "t".to_owned(),
            kind,
            value_bytes: 8,
            rows: 500,
            is_system: false,
        };
        let layout = definition.layout(partitioning).expect("sizes in range");
        let arena = Arc::new(Arena::new(1 << 20, &[1 << 19; 2]).expect("address space"));
        Table::new("t", layout, arena, |partition| partition == 0).expect("it fits")
    }

    fn keys(table: &Table) -> impl Iterator<Item = [u8; 8]> {
        let is_of_first = |bytes: &[u8; 8]| table.locate(table.hashed(bytes).word()).partition == 0;
        (0..).map(u64::to_be_bytes).filter(is_of_first)
    }

    #[test]
    fn a_leaving_partition_takes_what_was_locked_and_serves_nothing_new() {
        let table = table(TableKind::Ordered);
        let keys: Vec<_> = keys(&table).take(2).collect();
        let [written, given_up] = [&keys[0], &keys[1]].map(|key| table.hashed(key));
        let location = table.locate(written.word());
        let address = table.address_of(location).unwrap();
        let address_given_up = table.address(given_up.word()).unwrap();
        for (key, address) in [(written, address), (given_up, address_given_up)] {
            let lock = table.lock_row(address, key, OWNER, (LockMode::Insert, 5));
            assert_eq!(lock, Lock::Granted { version: 0 });
        }
        // Only the first partition is here, and there is no third one.
        [0, 1, 2].into_iter().for_each(|partition| table.leave_partition(partition));
        assert_eq!([1, 2].map(|partition| table.bucket_address(partition, 0)), [None; 2]);
        assert_eq!(table.address_of(location), None);
        assert_eq!(table.served_bucket_address(0, location.root), None);

        let held = table.bucket_address(0, location.root).unwrap();
        assert_eq!(held.with_tag(location.tag), address);
        let mut bytes = Vec::new();
        let mut unit = BucketUpdateWriter::begin(&mut bytes, (0, 0, location.root), 0, OWNER);
        unit.put(written, b"value");
        unit.finish();
        let unit = BucketUpdate::parse_checked(&bytes);
        assert_eq!(table.apply_at_primary(held, &unit), Applied::Applied);
        assert_eq!(table.unlock_row(address_given_up, given_up, OWNER), Unlocked::Released);
        // A scan that began before goes on to its end.
        let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let mut rows = Vec::new();
        let scanned = table.scan(0, all, Direction::Ascending, READER, |row| {
            rows.push((row.key.to_vec(), row.value.map(<[u8]>::to_vec)));
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(scanned.1, Scanned::Complete);
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
