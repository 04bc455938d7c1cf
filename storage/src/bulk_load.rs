//! Bulk loads: rows come to a partition that no transaction has used, without locks, commit records and units.
//!
//! ```text
//! begin      nothing was ever written to the partition: it is not served from then on
//! load       rows, some at a time: each is new
//! end        the partition is served again, if it is to be
//! ```
//! A load that fails is never ended: the partition is of no use until the table is dropped.
//!
//! Each copy splits its buckets itself, in the order of their numbers, so that there are as many as its rows need. A bucket that has rows, or was
//! split, gets the count 1, and its rows the stamp of that. So buckets, versions and rows follow from the set of rows alone: copies that were
//! given the same rows, in whatever batches and order, are equal.
//!
//! *Invariants*: one thread at a time loads a partition. A partition that is being loaded is not served, so nobody keeps a lock of, splits or merges
//! its buckets.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads". *Not here*: which copies are given the rows, in `engine`; rows that come before any transaction
//! runs (`load.rs`).

use crate::arena::Quota;
use crate::bucket::held;
use crate::cells::Need;
use crate::growth::{Growth, LEVEL_SHIFT};
use crate::heap::Heap;
use crate::key::HashedKey;
use crate::owner::Owner;
use crate::partition::Partition;
use crate::sync::{Mutex, MutexGuard, Ordering, fence, lock};
use crate::table::{BucketAddress, Table};
use gannet_rules::rule;

/// The count of a bucket that was loaded.
const COUNT: u64 = 1;
/// The bucket is prefetched that is split so many splits later.
const SPLITS_AHEAD: u32 = 4;
/// Rows whose buckets are prefetched together.
const GROUP_ROWS: usize = 32;
/// Most buckets that a partition may begin with: each is looked at.
const ROOTS_MAX: u32 = 64;

/// The bulk load of a partition, if there is one.
#[derive(Default)]
pub(crate) struct BulkLoad(Mutex<Option<Box<Progress>>>);

struct Progress {
    owner: Owner,
    rows: u64,
    /// Whether the partition is served afterwards.
    serves: bool,
}

/// What a batch of a bulk load has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkLoaded {
    /// All rows are in the table.
    All,
    /// So many are. The key of the next one is there already.
    Exists(usize),
    /// So many are. There is no memory for the next one.
    Full(usize),
    /// This load has not begun, or has ended.
    Unknown,
}

/// Why a row is not loaded.
enum Refusal {
    Exists,
    Full,
}

impl BulkLoad {
    fn progress(&self) -> MutexGuard<'_, Option<Box<Progress>>> {
        lock(&self.0)
    }

    /// Forgets it: the partition goes, or the table.
    pub(crate) fn clear(&self) {
        *self.progress() = None;
    }

    /// Has the partition be served or not: now, by `set`, or from the end of the load on.
    pub(crate) fn serve_or_leave(&self, serves: bool, set: impl FnOnce()) {
        let mut progress = self.progress();
        match progress.as_mut().filter(|_| rule!(LOADED_UNSERVED)) {
            Some(progress) => progress.serves = serves,
            None => set(),
        }
    }
}

impl Table {
    fn bulk_load_of(&self, partition: u16) -> Option<&BulkLoad> {
        Some(self.heap(partition)?.bulk_load())
    }

    /// Whether a bulk load of a partition has begun, and has not ended.
    #[must_use]
    pub fn is_bulk_loaded(&self, partition: u16) -> bool {
        self.bulk_load_of(partition).is_some_and(|load| load.progress().is_some())
    }

    /// Begins the bulk load `owner` of a partition that this node holds; not if anything was written there, or another load has begun. To begin
    /// it twice is to begin it once.
    pub fn begin_bulk_load(&self, number: u16, owner: Owner) -> bool {
        let (Some(load), Some(partition)) = (self.bulk_load_of(number), self.partition(number))
        else {
            return false;
        };
        let mut progress = load.progress();
        if let Some(progress) = &*progress {
            return progress.owner == owner;
        }
        let serves = partition.served_buckets().is_some();
        if !self.is_unused(number, partition) {
            return false;
        }
        if rule!(LOADED_UNSERVED) {
            partition.leave();
        }
        // Pairs with the fence of a split: either sees what the other one has done.
        fence(Ordering::SeqCst);
        if !self.is_unused(number, partition) {
            if serves {
                partition.serve();
            }
            return false;
        }
        *progress = Some(Box::new(Progress { owner, rows: 0, serves }));
        true
    }

    /// Whether no transaction has ever locked a bucket of a partition, or written one.
    fn is_unused(&self, number: u16, partition: &Partition) -> bool {
        let roots = self.layout().buckets;
        let is_unused = |bucket| {
            let address = self.bucket_address(number, bucket);
            let bucket = address.map(|address| self.bucket(address));
            bucket.is_some_and(|bucket| bucket.version() == 0 && bucket.owner() == Owner::FREE)
        };
        let has_grown = partition.growth().is_some_and(|growth| growth.born() > roots);
        roots <= ROOTS_MAX && !has_grown && (0..roots).all(is_unused)
    }

    /// Adds rows to a partition whose bulk load `owner` has begun. A copy that does not count the memory of rows takes what another one has
    /// counted (rule C9).
    ///
    /// # Panics
    /// If a row is of another partition, which this node does not hold.
    pub fn bulk_load<'r>(
        &self,
        (number, owner): (u16, Owner),
        rows: &[(HashedKey<'r>, &'r [u8])],
        counts_memory: bool,
    ) -> BulkLoaded {
        let Some(load) = self.bulk_load_of(number) else { return BulkLoaded::Unknown };
        let mut progress = load.progress();
        let Some(progress) = progress.as_mut().filter(|progress| progress.owner == owner) else {
            return BulkLoaded::Unknown;
        };
        let quota = if counts_memory { self.layout().quota } else { Quota::Decided };
        if !self.grow_for(number, progress.rows + rows.len() as u64, quota) {
            return BulkLoaded::Full(0);
        }
        let mut loaded = 0;
        for group in rows.chunks(GROUP_ROWS) {
            let mut addresses = [BucketAddress::NONE; GROUP_ROWS];
            for (address, (key, _)) in addresses.iter_mut().zip(group) {
                let found = self.held_address_of(self.locate(key.word()));
                *address = found.expect("a partition that is loaded is held, and merges nothing");
                self.prefetch(*address);
            }
            addresses[..group.len()].iter().for_each(|address| self.prefetch_free_slot(*address));
            for (address, row) in addresses.iter().zip(group) {
                match self.load_row(number, *address, *row, quota) {
                    Ok(()) => loaded += 1,
                    Err(Refusal::Exists) => return BulkLoaded::Exists(loaded),
                    Err(Refusal::Full) => return BulkLoaded::Full(loaded),
                }
                progress.rows += 1;
            }
        }
        BulkLoaded::All
    }

    fn load_row(
        &self,
        partition: u16,
        address: BucketAddress,
        (key, value): (HashedKey<'_>, &[u8]),
        quota: Quota,
    ) -> Result<(), Refusal> {
        let bucket = self.bucket(address);
        bucket.write(|next| {
            let found = Heap::find(self.arena(), bucket, held(*next), address.tag(), key);
            if found.is_some() {
                return Err(Refusal::Exists);
            }
            let need = self.need_of(key, value.len());
            let cells = self.arena().allocate(partition, need, Need::NOTHING, quota);
            let is_added = cells.is_some_and(|first| {
                self.add_row((bucket, next), key, (COUNT, value), (first, need), quota)
            });
            if !is_added {
                return Err(Refusal::Full);
            }
            if bucket.version() == 0 {
                bucket.store_version(COUNT);
            }
            Ok(())
        })
    }

    /// Splits buckets until there are enough for so many rows. Whether there was memory.
    fn grow_for(&self, number: u16, rows: u64, quota: Quota) -> bool {
        let (roots, rows_per_bucket) = (self.layout().buckets, self.layout().rows_per_bucket);
        let Some(partition) = self.partition(number) else { return false };
        let growth = partition.growth_or_new(roots);
        while rows > u64::from(growth.born()) * rows_per_bucket {
            // Where numbers end, chains grow.
            if !self.split_next(number, (partition, growth), quota) {
                return self.next_split(partition, 0).is_none();
            }
        }
        true
    }

    /// Splits the next bucket. Not where there is no memory, or no number for the half.
    fn split_next(
        &self,
        number: u16,
        (partition, growth): (&Partition, &Growth),
        quota: Quota,
    ) -> bool {
        let (Some(next), Some(main)) = (self.next_split(partition, 0), partition.main_buckets())
        else {
            return false;
        };
        let chunks = growth.chunks.hold();
        let half = self.address_held(&chunks, (number, next.child), quota);
        let (Some(bucket), Some(half)) = (self.address_from(partition, main, next.bucket), half)
        else {
            return false;
        };
        let (bucket, half) = (self.bucket(bucket), self.bucket(half));
        if !self.make_room_for_half((bucket, half), (number, next.level), quota) {
            return false;
        }
        let version = u64::from(next.level + 1) << LEVEL_SHIFT | COUNT;
        bucket.write(|link| {
            self.split_into(&chunks, (bucket, link), (number, next.bucket), version);
        });
        self.prefetch_bucket(number, next.bucket + SPLITS_AHEAD);
        true
    }

    /// This copy is made from one whose bulk load has failed: it is of no use, either, and is never served.
    pub fn fail_bulk_load(&self, number: u16) {
        if let Some(load) = self.bulk_load_of(number) {
            let failed = || Box::new(Progress { owner: Owner::FREE, rows: 0, serves: false });
            load.progress().get_or_insert_with(failed);
        }
    }

    /// Ends the bulk load `owner` of a partition, all of whose copies have the same rows. Whether it had begun.
    pub fn end_bulk_load(&self, number: u16, owner: Owner) -> bool {
        let (Some(load), Some(partition)) = (self.bulk_load_of(number), self.partition(number))
        else {
            return false;
        };
        let mut progress = load.progress();
        let ended = progress.take_if(|progress| progress.owner == owner);
        if ended.as_ref().is_some_and(|progress| progress.serves) {
            partition.serve();
        }
        ended.is_some()
    }
}
