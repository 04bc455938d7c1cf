//! The memory that is reserved for rows of a heap table's partition, from LOCK to the write or the end of the lock.
//!
//! A lock for a row that needs cells, or an entry in an ordered index, *reserves* them (rule C9): they are counted in the
//! partition's share, and no other row gets them until the row is written or unlocked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::arena::{Arena, Quota};
use crate::cells::Need;
use crate::key::HashedKey;
use crate::owner::Owner;
use crate::sync::{Mutex, MutexGuard, lock};

/// By owner and hash of the key: each key with that hash, and what is reserved for its row.
type Reserved = BTreeMap<(Owner, u64), Vec<(Box<[u8]>, Need)>>;

/// The reservations in one partition of a table on one node.
pub(crate) struct Reservations {
    partition: u16,
    reserved: Mutex<Reserved>,
}

impl Reservations {
    pub(crate) fn new(partition: u16) -> Self {
        Self { partition, reserved: Mutex::default() }
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
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
        (owner, key): (Owner, HashedKey<'_>),
    ) -> bool {
        if !arena.reserve(self.partition, need, quota) {
            return false;
        }
        let mut reserved = self.reserved();
        let of_hash = reserved.entry((owner, key.word())).or_default();
        let before = match of_hash.iter_mut().find(|(bytes, _)| **bytes == *key.bytes()) {
            Some((_, before)) => std::mem::replace(before, need),
            None => {
                of_hash.push((key.bytes().into(), need));
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
        for (_, need) in reserved.into_values().flatten() {
            arena.release(self.partition, need);
        }
    }

    /// Ends the reservations of other epochs than that of `present`, and names their rows.
    pub(crate) fn release_dead(&self, arena: &Arena, present: Owner) -> Vec<(Owner, Box<[u8]>)> {
        let mut reserved = self.reserved();
        if reserved.is_empty() {
            return Vec::new();
        }
        let is_live = |(owner, _): &(Owner, u64)| owner.is_of_epoch_of(present);
        let (live, dead) = std::mem::take(&mut *reserved)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(row, _)| is_live(row));
        *reserved = live;
        drop(reserved);
        let mut rows = Vec::new();
        for ((owner, _), of_hash) in dead {
            for (key, need) in of_hash {
                arena.release(self.partition, need);
                rows.push((owner, key));
            }
        }
        rows
    }

    /// Forgets a row's reservation, and returns it. Two keys may have one hash.
    fn take(&self, (owner, key): (Owner, HashedKey<'_>)) -> Need {
        let mut reserved = self.reserved();
        let Entry::Occupied(mut of_hash) = reserved.entry((owner, key.word())) else {
            return Need::NOTHING;
        };
        let at = of_hash.get().iter().position(|(bytes, _)| **bytes == *key.bytes());
        let promised = at.map_or(Need::NOTHING, |at| of_hash.get_mut().swap_remove(at).1);
        if of_hash.get().is_empty() {
            of_hash.remove();
        }
        promised
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
        // Whoever has reserved gets a chain, each of them another.
        let owners = (0..reserved).filter(|&number| number != 7).map(|number| row(1, number));
        let mut taken: Vec<_> = owners
            .chain([row(2, 7)])
            .map(|row| rows.allocate(&arena, Need::cells(2), Quota::WithinShare, row).unwrap())
            .collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), reserved);
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
