//! The cells that are set aside for rows of a heap table's partition, from LOCK to the write or the end of the lock.
//!
//! A lock for a row that needs cells *reserves* them (rule C9): they are counted in the partition's share, and are given to
//! nobody else until the row is written or unlocked.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::arena::{Arena, Quota};
use crate::heap::RowKey;
use crate::owner::Owner;
use crate::sync::{Mutex, MutexGuard, lock};

/// By owner and hash of the key: each key with that hash, and how many cells are reserved for its row.
type Reserved = BTreeMap<(Owner, u64), Vec<(Box<[u8]>, usize)>>;

/// What is reserved in one partition of a table on one node.
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

    /// A chain of `cells` cells: those that are reserved for the row, or free ones; the number of the first. `None` when the
    /// quota is used up.
    pub(crate) fn allocate(
        &self,
        arena: &Arena,
        cells: usize,
        quota: Quota,
        row: (Owner, RowKey<'_>),
    ) -> Option<u64> {
        arena.allocate_cells(self.partition, cells, self.take(row), quota)
    }

    /// Sets `cells` cells aside for the row of `owner` with this key, if the share allows; a row that has some already
    /// changes their number.
    pub(crate) fn reserve(
        &self,
        arena: &Arena,
        cells: usize,
        (owner, key): (Owner, RowKey<'_>),
    ) -> bool {
        if !arena.reserve_cells(self.partition, cells) {
            return false;
        }
        let mut reserved = self.reserved();
        let of_hash = reserved.entry((owner, key.hash())).or_default();
        let before = match of_hash.iter_mut().find(|(bytes, _)| **bytes == *key.bytes()) {
            Some((_, before)) => std::mem::replace(before, cells),
            None => {
                of_hash.push((key.bytes().into(), cells));
                0
            }
        };
        drop(reserved);
        arena.release_cells(self.partition, before);
        true
    }

    /// Gives up what was reserved for a row, if anything.
    pub(crate) fn release(&self, arena: &Arena, row: (Owner, RowKey<'_>)) {
        match self.take(row) {
            0 => {}
            cells => arena.release_cells(self.partition, cells),
        }
    }

    /// Removes what is noted of a row's reservation: the number of its cells. Two keys may have one hash.
    fn take(&self, (owner, key): (Owner, RowKey<'_>)) -> usize {
        let mut reserved = self.reserved();
        let Entry::Occupied(mut of_hash) = reserved.entry((owner, key.hash())) else {
            return 0;
        };
        let at = of_hash.get().iter().position(|(bytes, _)| **bytes == *key.bytes());
        let cells = at.map_or(0, |at| of_hash.get_mut().swap_remove(at).1);
        if of_hash.get().is_empty() {
            of_hash.remove();
        }
        cells
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::LINE_BYTES;

    fn arena(lines: usize) -> Arena {
        Arena::new((lines + 1) * LINE_BYTES, &[lines * LINE_BYTES]).expect("address space")
    }

    #[test]
    fn what_is_reserved_is_there_for_its_owner() {
        let (arena, rows) = (arena(1_000), Reservations::new(0));
        let keys: Vec<_> = (0..10_000_u64).map(u64::to_le_bytes).collect();
        let row = |owner, number: usize| (Owner(owner), RowKey::new(&keys[number]));
        let reserved = (0..).take_while(|&number| rows.reserve(&arena, 2, row(1, number))).count();
        assert_eq!(reserved, 500);
        assert!(!rows.reserve(&arena, 2, row(2, 7)), "the limit is reached");
        let other = rows.allocate(&arena, 2, Quota::WithinShare, row(2, 7));
        assert_eq!(other, None, "all are set aside");
        rows.release(&arena, row(2, 7));
        assert!(!rows.reserve(&arena, 2, row(2, 7)), "it had none to give up");
        // One owner gives up a row, and another gets its cells.
        rows.release(&arena, row(1, 7));
        rows.release(&arena, row(1, 7));
        assert!(rows.reserve(&arena, 2, row(2, 7)));
        assert!(!rows.reserve(&arena, 2, row(2, 8)));
        // Whoever has reserved gets a chain, each of them another.
        let owners = (0..reserved).filter(|&number| number != 7).map(|number| row(1, number));
        let mut taken: Vec<_> = owners
            .chain([row(2, 7)])
            .map(|row| rows.allocate(&arena, 2, Quota::WithinShare, row).unwrap())
            .collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), reserved);
    }

    #[test]
    fn keys_with_one_hash_have_a_reservation_each() {
        let (arena, rows) = (arena(10), Reservations::new(0));
        let [a, b] = crate::heap::keys_with_one_hash(17);
        let (a, b) = ((Owner(1), RowKey::new(&a)), (Owner(1), RowKey::new(&b)));
        assert!(rows.reserve(&arena, 2, a) && rows.reserve(&arena, 3, b));
        // What is asked for again is the same reservation, of another length.
        assert!(rows.reserve(&arena, 4, a));
        rows.release(&arena, b);
        assert!(!rows.reserve(&arena, 7, b));
        assert!(rows.reserve(&arena, 6, b));
        rows.release(&arena, b);
        assert!(rows.allocate(&arena, 4, Quota::WithinShare, a).is_some());
        assert!(rows.reserved().is_empty());
    }
}
