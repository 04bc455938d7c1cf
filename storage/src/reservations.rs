//! The memory that is reserved for rows of a heap table's partition, from LOCK to the write or the end of the lock.
//!
//! A lock for a row that needs cells, or an entry in an ordered index, *reserves* them (rule C9): they are counted in the
//! partition's share, and no other row gets them until the row is written or unlocked.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use smallvec::SmallVec;

use crate::arena::{Arena, Quota};
use crate::cells::Need;
use crate::key::HashedKey;
use crate::owner::Owner;
use crate::sync::{Mutex, MutexGuard, lock};

/// Buckets that an empty table keeps: those of a few rows. Each partition of each table has some.
const BUCKETS_KEPT_MAX: usize = 4;

/// What is reserved for a row.
struct Reserved {
    owner: Owner,
    /// The hash of the key, and its bytes.
    word: u64,
    key: SmallVec<[u8; 16]>,
    need: Need,
}

impl Reserved {
    fn is_of(&self, (owner, key): (Owner, HashedKey<'_>)) -> bool {
        self.owner == owner && self.word == key.word() && self.key[..] == *key.bytes()
    }

    fn hash(&self) -> u64 {
        hash(self.owner, self.word)
    }
}

/// The table takes its buckets by the low bits of a hash, and tags by the highest.
fn hash(owner: Owner, word: u64) -> u64 {
    let product = (owner.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// The reservations in one partition of a table on one node.
pub(crate) struct Reservations {
    partition: u16,
    reserved: Mutex<HashTable<Reserved>>,
}

impl Reservations {
    pub(crate) fn new(partition: u16) -> Self {
        Self { partition, reserved: Mutex::default() }
    }

    fn reserved(&self) -> MutexGuard<'_, HashTable<Reserved>> {
        lock(&self.reserved)
    }

    /// Allocates a chain of as many cells as the row needs, those reserved for the row or free ones: the number of the first.
    /// `None` when the quota is used up.
    pub(crate) fn allocate(
        &self,
        arena: &Arena,
        need: Need,
        quota: Quota,
        row: (Owner, HashedKey<'_>),
    ) -> Option<u64> {
        arena.allocate(self.partition, need, self.take(row), quota)
    }

    /// Reserves what the row of `owner` with this key needs, if the quota has room. An earlier reservation of the row is
    /// replaced.
    pub(crate) fn reserve(
        &self,
        arena: &Arena,
        (need, quota): (Need, Quota),
        row: (Owner, HashedKey<'_>),
    ) -> bool {
        if !arena.reserve(self.partition, need, quota) {
            return false;
        }
        let (owner, key) = row;
        let mut reserved = self.reserved();
        let entry =
            reserved.entry(hash(owner, key.word()), |other| other.is_of(row), Reserved::hash);
        let before = match entry {
            Entry::Occupied(mut there) => std::mem::replace(&mut there.get_mut().need, need),
            Entry::Vacant(vacant) => {
                let bytes = SmallVec::from_slice(key.bytes());
                vacant.insert(Reserved { owner, word: key.word(), key: bytes, need });
                Need::NOTHING
            }
        };
        drop(reserved);
        arena.release(self.partition, before);
        true
    }

    /// Ends the reservation of a row, if there is one.
    pub(crate) fn release(&self, arena: &Arena, row: (Owner, HashedKey<'_>)) {
        match self.take(row) {
            Need::NOTHING => {}
            promised => arena.release(self.partition, promised),
        }
    }

    /// Ends all reservations.
    pub(crate) fn release_all(&self, arena: &Arena) {
        let reserved = std::mem::take(&mut *self.reserved());
        for Reserved { need, .. } in reserved {
            arena.release(self.partition, need);
        }
    }

    /// Ends the reservations of other epochs than that of `present`, and names their rows.
    pub(crate) fn release_dead(&self, arena: &Arena, present: Owner) -> Vec<(Owner, Box<[u8]>)> {
        let mut reserved = self.reserved();
        let is_dead = |row: &mut Reserved| !row.owner.is_of_epoch_of(present);
        let dead: Vec<Reserved> = reserved.extract_if(is_dead).collect();
        give_back(&mut reserved);
        drop(reserved);
        let end = |Reserved { owner, key, need, .. }: Reserved| {
            arena.release(self.partition, need);
            (owner, key.into_boxed_slice())
        };
        dead.into_iter().map(end).collect()
    }

    /// Forgets a row's reservation, and returns it.
    fn take(&self, row: (Owner, HashedKey<'_>)) -> Need {
        let mut reserved = self.reserved();
        let hash = hash(row.0, row.1.word());
        let Ok(entry) = reserved.find_entry(hash, |other| other.is_of(row)) else {
            return Need::NOTHING;
        };
        let need = entry.remove().0.need;
        give_back(&mut reserved);
        need
    }
}

/// Gives the memory of a table back that is empty and was large.
fn give_back(reserved: &mut HashTable<Reserved>) {
    if reserved.is_empty() && reserved.num_buckets() > BUCKETS_KEPT_MAX {
        *reserved = HashTable::new();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::HashSeed;
    use crate::arena::LINE_BYTES;

    fn arena(lines: usize) -> Arena {
        Arena::new((lines + 1) * LINE_BYTES, &[lines * LINE_BYTES]).expect("address space")
    }

    #[test]
    fn what_is_reserved_is_there_for_its_owner() {
        let (arena, rows) = (arena(1_000), Reservations::new(0));
        let keys: Vec<_> = (0..10_000_u64).map(u64::to_le_bytes).collect();
        let row = |owner, number: usize| (Owner(owner), HashSeed::ZERO.hashed(&keys[number]));
        let reserved = (0..)
            .take_while(|&number| {
                rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), row(1, number))
            })
            .count();
        // A line of 128 is left for tables.
        assert_eq!(reserved, (1_000 - 7) / 2);
        assert!(
            !rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), row(2, 7)),
            "the limit is reached"
        );
        let other = rows.allocate(&arena, Need::cells(2), Quota::WithinShare, row(2, 7));
        assert_eq!(other, None, "all are set aside");
        rows.release(&arena, row(2, 7));
        assert!(
            !rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), row(2, 7)),
            "it had none to give up"
        );
        // One owner gives up a row, and another gets its cells.
        rows.release(&arena, row(1, 7));
        rows.release(&arena, row(1, 7));
        assert!(rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), row(2, 7)));
        assert!(!rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), row(2, 8)));
        // Each owner that has reserved gets a chain of its own.
        let owners = (0..reserved).filter(|&number| number != 7).map(|number| row(1, number));
        let mut taken: Vec<_> = owners
            .chain([row(2, 7)])
            .map(|row| rows.allocate(&arena, Need::cells(2), Quota::WithinShare, row).unwrap())
            .collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), reserved);
        assert!(rows.reserved().is_empty() && rows.reserved().num_buckets() <= BUCKETS_KEPT_MAX);
    }

    #[test]
    fn keys_with_one_hash_have_a_reservation_each() {
        let (arena, rows) = (arena(10), Reservations::new(0));
        let [a, b] = HashSeed::ZERO.keys_with_one_hash(17);
        let (a, b) = ((Owner(1), HashSeed::ZERO.hashed(&a)), (Owner(1), HashSeed::ZERO.hashed(&b)));
        assert!(
            rows.reserve(&arena, (Need::cells(2), Quota::WithinShare), a)
                && rows.reserve(&arena, (Need::cells(3), Quota::WithinShare), b)
        );
        // A repeated reservation replaces the first, with another length.
        assert!(rows.reserve(&arena, (Need::cells(4), Quota::WithinShare), a));
        rows.release(&arena, b);
        assert!(!rows.reserve(&arena, (Need::cells(7), Quota::WithinShare), b));
        assert!(rows.reserve(&arena, (Need::cells(6), Quota::WithinShare), b));
        rows.release(&arena, b);
        assert!(rows.allocate(&arena, Need::cells(4), Quota::WithinShare, a).is_some());
        assert!(rows.reserved().is_empty());
    }
}
