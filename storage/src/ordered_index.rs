//! The keys of one partition of an ordered table, in order.
//!
//! ```text
//! index      number of its last change
//! directory  first key of a leaf -> leaf      leaf: last change | last removal | keys (`keys.rs`), each pending or added at a number
//! leaving    keys that transactions are about to remove
//! ```
//! A scan keeps the number that the index had when the scan began. The range is unchanged as long as no entry of it was added at a
//! higher number, and none was removed from its leaves. An absent key has no version, so only these numbers notice an insertion and
//! a deletion between two looks (`docs/protocol.md`, "Ordered index"). A key is *pending* from the lock for its insert until the
//! insert is applied, and *leaving* from the lock for its deletion until that is applied: so keys are counted without their rows.
//!
//! The index is local: every replica derives it from the units that it applies, and numbers its changes by itself.
//!
//! *Invariants*: the first leaf starts at the empty key and is never removed; while the node has the table, the number never falls.

mod directory;
mod keys;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_rules::rule;
use parking_lot::{Mutex, RwLock};

use crate::ordered_index::directory::LeafPosition;
use crate::ordered_index::keys::{Keys, give_back, reserve};
use crate::owner::Owner;
use crate::validate::Validation;

/// Keys of a leaf before it is split.
const LEAF_KEYS_MAX: usize = 64;
/// What an entry is counted for beside its key: its number, its part of the leaf and of the directory, what the allocator adds, and the
/// quarter that vectors have free.
const ENTRY_BYTES: usize = 24;

/// Since when a key is in the index: the number at which it was added, or the transaction that is about to insert it. An owner is
/// larger than any number, as its epoch is not 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Since(u64);

impl Since {
    const OWNER_MIN: u64 = 1 << Owner::EPOCH_SHIFT;

    fn pending(owner: Owner) -> Self {
        debug_assert!(owner.0 >= Self::OWNER_MIN, "the owner of a transaction has an epoch");
        Self(owner.0)
    }

    fn is_pending(self) -> bool {
        self.0 >= Self::OWNER_MIN
    }
}

#[derive(Default)]
struct Leaf {
    /// Number of its last change, but for pending entries.
    changed: u64,
    /// Number of the last removal of a key that was there.
    removed: u64,
    /// How many entries are pending.
    pending: usize,
    keys: Keys,
    /// Of each key.
    since: Vec<Since>,
}

impl Leaf {
    fn insert(&mut self, at: usize, key: &[u8], since: Since) {
        self.keys.insert(at, key);
        reserve(&mut self.since, 1);
        self.since.insert(at, since);
    }

    /// Since when the keys in a range are there.
    fn range(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> &[Since] {
        &self.since[self.keys.range(range)]
    }

    /// Whether another transaction than `owner` is about to add keys in a range.
    fn is_growing(&self, range: (Bound<&[u8]>, Bound<&[u8]>), owner: Owner) -> bool {
        let is_pending = |since: &Since| {
            since.is_pending() && *since != Since(owner.0) && rule!(PENDING_ENTRIES)
        };
        self.pending > 0 && self.range(range).iter().any(is_pending)
    }

    /// Its upper entries from this one on, as a leaf that has changed as it has.
    fn split_off(&mut self, at: usize) -> Self {
        let (keys, since) = (self.keys.split_off(at), self.since.split_off(at));
        self.since.shrink_to_fit();
        let pending = since.iter().filter(|since| since.is_pending()).count();
        self.pending -= pending;
        let removed = if rule!(MARKS_OF_LEAVES) { self.removed } else { 0 };
        Self { changed: self.changed, removed, pending, keys, since }
    }
}

/// Leaves by their first keys.
type Directory = directory::Directory<Mutex<Leaf>>;

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key on.
    Ascending,
    /// From the largest key on.
    Descending,
}

/// Keys that were counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Of the index when the count began: [`crate::Table::validate_range`] tells by it whether keys have come or gone.
    pub number: u64,
    /// How many there are.
    pub keys: u64,
    /// The key from which the count goes on, if there may be more.
    pub next: Option<Box<[u8]>>,
}

/// See the module's text.
pub(crate) struct OrderedIndex {
    directory: RwLock<Directory>,
    /// Keys that transactions are about to remove, whose buckets these hold.
    leaving: Mutex<BTreeMap<Box<[u8]>, Owner>>,
    /// Of the last change. A scan takes it before it looks at leaves, and a change raises it under the lock of its leaf: so a change that
    /// the scan has not seen has a higher number.
    number: AtomicU64,
}

impl OrderedIndex {
    /// Memory that the entry of a key of that many bytes takes, about; the same at each copy.
    pub(crate) fn entry_bytes(key_bytes: usize) -> usize {
        ENTRY_BYTES + key_bytes + key_bytes / 4
    }

    pub(crate) fn new() -> Self {
        let (directory, leaving) = (RwLock::new(without_keys()), Mutex::default());
        Self { directory, leaving, number: AtomicU64::new(0) }
    }

    /// Forgets all keys, as the partition has gone to another node. Should it come back, what was scanned before is not validated any more
    /// (rule `SCANNED_PRIMARY`).
    pub(crate) fn clear(&self) {
        *self.directory.write() = without_keys();
        self.leaving.lock().clear();
    }

    /// Forgets the keys of some leaves, as the table is dropped. Whether there are further ones.
    pub(crate) fn forget_leaves(&self, count: usize) -> bool {
        let mut directory = self.directory.write();
        for _ in 0..count {
            let Some(last) = directory.last() else { break };
            directory.remove(last);
        }
        directory.last().is_some()
    }

    /// The number of the last change. A scan that begins now is valid as long as [`Self::validate`] says so of that number.
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: the locks of the leaves order it, as said above.
        self.number.load(Ordering::Relaxed)
    }

    fn next_number(&self) -> u64 {
        // Relaxed: as in number().
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds `key`, pending for `owner`; the caller holds the lock of its bucket.
    ///
    /// An entry that an earlier holder of the lock left behind becomes `owner`'s.
    pub(crate) fn add_pending(&self, key: &[u8], owner: Owner) {
        self.add(key, |_| Since::pending(owner));
    }

    /// Adds `key` for good, or makes a pending one so.
    pub(crate) fn add_applied(&self, key: &[u8]) {
        self.add(key, |leaf| {
            leaf.changed = self.next_number();
            Since(leaf.changed)
        });
    }

    fn add(&self, key: &[u8], since: impl FnOnce(&mut Leaf) -> Since) {
        let is_full = {
            let directory = self.directory.read();
            let mut leaf = leaf_of(&directory, key).lock();
            let since = since(&mut leaf);
            leaf.pending += usize::from(since.is_pending());
            match leaf.keys.find(key) {
                Ok(at) => {
                    let before = std::mem::replace(&mut leaf.since[at], since);
                    leaf.pending -= usize::from(before.is_pending());
                }
                Err(at) => leaf.insert(at, key, since),
            }
            leaf.keys.len() > LEAF_KEYS_MAX
        };
        if is_full {
            split(&mut self.directory.write(), key);
        }
    }

    /// Notes that `owner` is about to remove `key`; the caller holds the lock of its bucket.
    pub(crate) fn add_leaving(&self, key: &[u8], owner: Owner) {
        // An earlier holder of the lock is dead.
        self.leaving.lock().insert(key.into(), owner);
    }

    /// The transaction `owner` does not remove `key`.
    pub(crate) fn remove_leaving(&self, key: &[u8], owner: Owner) {
        let mut leaving = self.leaving.lock();
        if leaving.get(key) == Some(&owner) {
            leaving.remove(key);
        }
    }

    /// Forgets the keys that transactions of other epochs than that of `present` were about to remove.
    pub(crate) fn end_dead(&self, present: Owner) {
        self.leaving.lock().retain(|_, owner| owner.is_of_epoch_of(present));
    }

    /// Whether another transaction than `owner` is about to remove keys of a range. Looked at before the leaves: a key that is not leaving
    /// any more has been removed from its leaf.
    fn is_leaving(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>), owner: Owner) -> bool {
        let leaving = self.leaving.lock();
        let mut inside = leaving
            .range::<[u8], _>((from, Bound::Unbounded))
            .take_while(|(key, _)| !is_after(key, to));
        inside.any(|(_, other)| other.excludes(owner)) && rule!(LEAVING_ENTRIES)
    }

    /// Removes `key` for good.
    pub(crate) fn remove(&self, key: &[u8]) {
        self.remove_if(key, |leaf, _| {
            leaf.changed = self.next_number();
            leaf.removed = leaf.changed;
            true
        });
        let mut leaving = self.leaving.lock();
        if !leaving.is_empty() {
            leaving.remove(key);
        }
    }

    /// Removes `key` if it is pending for `owner`. That is no removal: nobody could read the entry.
    pub(crate) fn remove_pending(&self, key: &[u8], owner: Owner) {
        self.remove_if(key, |_, since| since == Since(owner.0));
    }

    fn remove_if(&self, key: &[u8], is_meant: impl Fn(&mut Leaf, Since) -> bool) {
        let is_empty = {
            let directory = self.directory.read();
            let mut leaf = leaf_of(&directory, key).lock();
            match leaf.keys.find(key) {
                Ok(at) => {
                    let since = leaf.since[at];
                    if is_meant(&mut leaf, since) {
                        leaf.keys.remove(at);
                        leaf.since.remove(at);
                        give_back(&mut leaf.since);
                        leaf.pending -= usize::from(since.is_pending());
                    }
                    leaf.since.is_empty()
                }
                Err(_) => false,
            }
        };
        if is_empty {
            remove_empty(&mut self.directory.write(), key);
        }
    }

    /// Whether a range is as a scan of the transaction `owner` has seen it, which began at this number. Keys that are pending for
    /// `owner` are passed over.
    pub(crate) fn validate(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        number: u64,
        owner: Owner,
    ) -> Validation {
        if self.is_leaving((from, to), owner) {
            return Validation::Locked;
        }
        let directory = self.directory.read();
        for (_, leaf) in leaves_from(&directory, from).take_while(|leaf| !is_after(leaf.0, to)) {
            let leaf = leaf.lock();
            if leaf.removed > number && rule!(REMOVAL_MARKS) {
                return Validation::Changed;
            }
            if leaf.is_growing((from, to), owner) {
                return Validation::Locked;
            }
            let is_new = |since: &Since| !since.is_pending() && since.0 > number;
            let has_changed = leaf.changed > number && rule!(ADDED_ENTRIES);
            if has_changed && leaf.range((from, to)).iter().any(is_new) {
                return Validation::Changed;
            }
        }
        Validation::Unchanged
    }

    /// Counts the keys of a range in some leaves, for the transaction `owner`. None if another transaction is about to add or remove one of
    /// them.
    pub(crate) fn count(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        owner: Owner,
        leaves_max: usize,
    ) -> Option<Counted> {
        let number = self.number();
        if self.is_leaving((from, to), owner) {
            return None;
        }
        let directory = self.directory.read();
        let mut leaves =
            leaves_from(&directory, from).take_while(|leaf| !is_after(leaf.0, to)).peekable();
        let (mut keys, mut is_first) = (0, true);
        for _ in 0..leaves_max {
            let Some((_, leaf)) = leaves.next() else { break };
            let leaf = leaf.lock();
            if leaf.is_growing((from, to), owner) {
                return None;
            }
            // The keys of a leaf between others are all in the range.
            let is_whole = !is_first && leaves.peek().is_some() && leaf.pending == 0;
            let is_there = |since: &&Since| !since.is_pending();
            keys += if is_whole {
                leaf.since.len()
            } else {
                leaf.range((from, to)).iter().filter(is_there).count()
            } as u64;
            is_first = false;
        }
        let next = leaves.next().map(|(first_key, _)| first_key.into());
        Some(Counted { number, keys, next })
    }

    /// Calls `visit` for the keys of one leaf that lie in the range, in the order of the scan. Where the scan goes on; none at the end
    /// of the range.
    ///
    /// Keys that are pending for `reader` are left out; those of others are not, and their buckets
    /// are locked. `visit` must not come back to the index.
    pub(crate) fn scan_leaf(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        reader: Owner,
        mut visit: impl FnMut(&[u8]),
    ) -> Option<Bound<Box<[u8]>>> {
        let directory = self.directory.read();
        let place = match direction {
            Direction::Ascending => place_of(&directory, from_key(from)),
            Direction::Descending => place_before(&directory, to),
        };
        let (first_key, leaf) = directory.get(place);
        let leaf = leaf.lock();
        let places = leaf.keys.range((from, to)).filter(|at| leaf.since[*at] != Since(reader.0));
        let mut key = Vec::new();
        let mut visit_at = |at| {
            leaf.keys.copy(at, &mut key);
            visit(&key);
        };
        match direction {
            Direction::Ascending => places.for_each(&mut visit_at),
            Direction::Descending => places.rev().for_each(&mut visit_at),
        }
        match direction {
            Direction::Ascending => {
                let next = directory.next(place).map(|next| directory.get(next).0);
                next.filter(|first| !is_after(first, to)).map(|first| Bound::Included(first.into()))
            }
            Direction::Descending => (!first_key.is_empty() && !is_before_or_at(first_key, from))
                .then(|| Bound::Excluded(first_key.into())),
        }
    }

    /// Keys, and the bytes that they take: those of the leaves, and the directory's, but for what its blocks leave free.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let of_leaf = |(first, leaf): (&[u8], &Mutex<Leaf>)| {
            let in_directory = Directory::ENTRY_BYTES + first.len();
            let leaf = leaf.lock();
            let marks = leaf.since.capacity() * size_of::<Since>();
            (leaf.keys.len(), in_directory + leaf.keys.memory_bytes() + marks)
        };
        let sum = |sum: (usize, usize), leaf: (usize, usize)| (sum.0 + leaf.0, sum.1 + leaf.1);
        let directory = self.directory.read();
        directory.iter().map(of_leaf).fold((0, 0), sum)
    }

    /// Every key, and the transaction that it is pending for.
    pub(crate) fn entries(&self) -> Vec<(Box<[u8]>, Option<Owner>)> {
        let directory = self.directory.read();
        let of_leaf = |leaf: &Mutex<Leaf>| {
            let leaf = leaf.lock();
            let pending = |since: Since| since.is_pending().then_some(Owner(since.0));
            let since = leaf.since.iter().enumerate();
            since.map(|(at, since)| (leaf.keys.boxed(at), pending(*since))).collect::<Vec<_>>()
        };
        directory.iter().flat_map(|(_, leaf)| of_leaf(leaf)).collect()
    }
}

/// The key at which a scan from `from` starts.
fn from_key(from: Bound<&[u8]>) -> &[u8] {
    match from {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

/// Whether nothing below `first_key` lies in a range that starts at `from`.
fn is_before_or_at(first_key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Included(from) | Bound::Excluded(from) => first_key <= from,
        Bound::Unbounded => false,
    }
}

fn is_after(key: &[u8], to: Bound<&[u8]>) -> bool {
    match to {
        Bound::Included(to) => key > to,
        Bound::Excluded(to) => key >= to,
        Bound::Unbounded => false,
    }
}

/// A directory of a single leaf without keys.
fn without_keys() -> Directory {
    Directory::new(Mutex::default())
}

/// Where the leaf is that `key` belongs to.
#[inline]
fn place_of(directory: &Directory, key: &[u8]) -> LeafPosition {
    directory.up_to(key).expect("the first leaf starts at the empty key")
}

#[inline]
fn leaf_of<'d>(directory: &'d Directory, key: &[u8]) -> &'d Mutex<Leaf> {
    directory.get(place_of(directory, key)).1
}

/// The leaf at which a scan from `from` starts, and those behind it, with their first keys.
fn leaves_from<'d>(
    directory: &'d Directory,
    from: Bound<&[u8]>,
) -> impl Iterator<Item = (&'d [u8], &'d Mutex<Leaf>)> {
    directory.from(Some(place_of(directory, from_key(from))))
}

/// Where the last leaf is with keys that are not beyond `to`.
fn place_before(directory: &Directory, to: Bound<&[u8]>) -> LeafPosition {
    let place = match to {
        // Keys below the empty key: there are none, but the first leaf would have them.
        Bound::Excluded([]) => directory.up_to(&[]),
        Bound::Excluded(key) => directory.before(key),
        Bound::Included(key) => directory.up_to(key),
        Bound::Unbounded => directory.last(),
    };
    place.expect("the first leaf starts at the empty key")
}

/// Splits the leaf of `key`, unless another thread has.
fn split(directory: &mut Directory, key: &[u8]) {
    let mut leaf = leaf_of(directory, key).lock();
    let count = leaf.keys.len();
    if count <= LEAF_KEYS_MAX {
        return;
    }
    // A leaf that grows at its end, as one of ascending keys does, stays nearly full.
    let grows_at_end = leaf.keys.is(count - 1, key);
    let upper = leaf.split_off(if grows_at_end { count - 1 } else { count / 2 });
    drop(leaf);
    directory.insert(upper.keys.boxed(0), Mutex::new(upper));
}

/// Removes the leaf that `key` belonged to, if it is empty and not the first. The leaf before has its keys, and its marks, from then on.
fn remove_empty(directory: &mut Directory, key: &[u8]) {
    let place = place_of(directory, key);
    let (first_key, leaf) = directory.get(place);
    if first_key.is_empty() || !leaf.lock().since.is_empty() {
        return;
    }
    let gone = directory.remove(place).into_inner();
    // The leaf that `key` belongs to now.
    let mut before = leaf_of(directory, key).lock();
    if rule!(MARKS_OF_LEAVES) {
        before.changed = before.changed.max(gone.changed);
        before.removed = before.removed.max(gone.removed);
    }
}
