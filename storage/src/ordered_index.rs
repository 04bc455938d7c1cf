//! The keys of one partition of an ordered table, in order, in leaves that count their changes.
//!
//! ```text
//! directory: first key of a leaf -> leaf       leaf: id | counter | keys, each pending or not
//! ```
//! A scan keeps the counters of the leaves that its range touches. If none has changed when it validates, no
//! key has appeared or gone. An absent key has no version, so only counters notice an insertion and a
//! deletion between two scans (`docs/protocol.md`, "Ordered index"). A key is *pending* from the lock for its
//! insert until the insert is applied.
//!
//! The index is local: every replica derives it from the units that it applies.
//!
//! *Invariants*: the first leaf starts at the empty key and is never removed; while the node has the partition, the counter of an id
//! never falls, also when the id is used for another leaf.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::owner::Owner;

/// Keys of a leaf before it is split.
const LEAF_KEYS_MAX: usize = 64;
/// What an entry is counted for beside the bytes of its key: twice itself, as leaves are half full at least, and its parts of the
/// leaf, of the directory, and of what the allocator adds.
const ENTRY_BYTES: usize = 2 * size_of::<Entry>() + 16;

/// One key.
struct Entry {
    key: Box<[u8]>,
    /// The transaction that is about to insert it; FREE once it is there.
    pending: Owner,
}

#[derive(Default)]
struct LeafBody {
    counter: u64,
    /// By ascending key.
    entries: Vec<Entry>,
}

struct Leaf {
    id: u32,
    body: Mutex<LeafBody>,
}

impl Leaf {
    fn lock(&self) -> MutexGuard<'_, LeafBody> {
        self.body.lock()
    }
}

impl LeafBody {
    fn find(&self, key: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (*entry.key).cmp(key))
    }
}

struct Directory {
    by_key: BTreeMap<Box<[u8]>, Arc<Leaf>>,
    /// By leaf id.
    leaves: Vec<Option<Arc<Leaf>>>,
    /// Ids without a leaf, and the counter at which the next leaf of that id starts.
    free: Vec<(u32, u64)>,
}

/// A leaf that a scan has touched, and what its counter was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafVersion {
    /// The leaf, within its partition.
    pub leaf: u32,
    /// Its counter.
    pub counter: u64,
}

/// What a pending entry did to its leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafChange {
    /// The leaf that took the entry.
    pub leaf: u32,
    /// Its counter before.
    pub before: u64,
    /// Its counter after; `None` if others have changed it meanwhile.
    pub after: Option<u64>,
    /// The leaf that took its upper keys, if it was split.
    pub split: Option<LeafVersion>,
}

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the smallest key on.
    Ascending,
    /// From the largest key on.
    Descending,
}

/// The part of a leaf that lies in a scan's range.
pub(crate) struct LeafKeys {
    pub(crate) version: LeafVersion,
    /// Where the scan goes on; `None` at the end of the index.
    pub(crate) next: Option<Bound<Box<[u8]>>>,
}

/// See the module's text.
pub(crate) struct OrderedIndex {
    directory: RwLock<Directory>,
}

impl OrderedIndex {
    /// Memory that the entry of a key of that many bytes takes, about; the same at each copy.
    pub(crate) fn entry_bytes(key_bytes: usize) -> usize {
        ENTRY_BYTES + key_bytes
    }

    pub(crate) fn new() -> Self {
        Self { directory: RwLock::new(Directory::new()) }
    }

    /// Forgets all keys, as the partition has gone to another node. Should it come back, what was read before is not validated any more:
    /// the node serves it in a later epoch.
    pub(crate) fn clear(&self) {
        *self.directory.write() = Directory::new();
    }

    /// Forgets the keys of some leaves, as the table is dropped. Whether there are further ones.
    pub(crate) fn forget_leaves(&self, count: usize) -> bool {
        let mut directory = self.directory.write();
        for _ in 0..count {
            let Some((_, leaf)) = directory.by_key.pop_last() else { break };
            directory.leaves[leaf.id as usize] = None;
        }
        !directory.by_key.is_empty()
    }

    /// Adds `key`, pending for `owner`; the caller holds the lock of its bucket.
    ///
    /// An entry that an earlier holder of the lock left behind becomes `owner`'s.
    pub(crate) fn add_pending(&self, key: &[u8], owner: Owner) -> LeafChange {
        self.add(key, owner)
    }

    /// Adds `key` for good, or makes a pending one so.
    pub(crate) fn add_applied(&self, key: &[u8]) {
        self.add(key, Owner::FREE);
    }

    fn add(&self, key: &[u8], pending: Owner) -> LeafChange {
        let (leaf, before, counter) = {
            let directory = self.directory.read();
            let leaf = directory.leaf_of(key);
            let mut body = leaf.lock();
            let before = body.counter;
            match body.find(key) {
                Ok(at) => body.entries[at].pending = pending,
                Err(at) => {
                    body.entries.insert(at, Entry { key: key.into(), pending });
                    body.counter += 1;
                }
            }
            if body.entries.len() <= LEAF_KEYS_MAX {
                let after = Some(body.counter);
                return LeafChange { leaf: leaf.id, before, after, split: None };
            }
            (leaf.id, before, body.counter)
        };
        match self.directory.write().split(key, counter) {
            Some((after, split)) => {
                LeafChange { leaf, before, after: Some(after), split: Some(split) }
            }
            None => LeafChange { leaf, before, after: None, split: None },
        }
    }

    /// Removes `key` for good.
    pub(crate) fn remove(&self, key: &[u8]) {
        self.remove_if(key, |_| true);
    }

    /// Removes `key` if it is pending for `owner`.
    pub(crate) fn remove_pending(&self, key: &[u8], owner: Owner) {
        self.remove_if(key, |pending| pending == owner);
    }

    fn remove_if(&self, key: &[u8], is_meant: impl Fn(Owner) -> bool) {
        let is_empty = {
            let directory = self.directory.read();
            let mut body = directory.leaf_of(key).lock();
            match body.find(key) {
                Ok(at) if is_meant(body.entries[at].pending) => {
                    body.entries.remove(at);
                    body.counter += 1;
                    body.entries.is_empty()
                }
                Ok(_) | Err(_) => false,
            }
        };
        if is_empty {
            self.directory.write().remove_empty(key);
        }
    }

    /// Whether a leaf has still the counter that a scan saw.
    pub(crate) fn is_unchanged(&self, seen: LeafVersion) -> bool {
        let directory = self.directory.read();
        let leaf = directory.leaves.get(seen.leaf as usize).and_then(Option::as_ref);
        leaf.is_some_and(|leaf| leaf.lock().counter == seen.counter)
    }

    /// Calls `visit` for the keys of one leaf that lie in the range, in the order of the scan.
    ///
    /// Keys that are pending for `reader` are left out; those of others are not, and their buckets
    /// are locked. `visit` must not come back to the index.
    pub(crate) fn scan_leaf(
        &self,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        reader: Owner,
        mut visit: impl FnMut(&[u8]),
    ) -> LeafKeys {
        let directory = self.directory.read();
        let (first_key, leaf) = match direction {
            Direction::Ascending => directory.leaf_at(from_key(from)),
            Direction::Descending => directory.leaf_before(to),
        };
        let body = leaf.lock();
        let start = body.entries.partition_point(|entry| is_before(&entry.key, from));
        let end = body.entries.partition_point(|entry| !is_after(&entry.key, to));
        let entries = body.entries[start.min(end)..end]
            .iter()
            .filter(|entry| entry.pending == Owner::FREE || entry.pending != reader);
        match direction {
            Direction::Ascending => entries.for_each(|entry| visit(&entry.key)),
            Direction::Descending => entries.rev().for_each(|entry| visit(&entry.key)),
        }
        let next = match direction {
            Direction::Ascending => {
                let after = (Bound::Excluded(first_key), Bound::Unbounded);
                let next = directory.by_key.range::<[u8], _>(after).next();
                next.filter(|(key, _)| !is_after(key, to))
                    .map(|(key, _)| Bound::Included(key.clone()))
            }
            Direction::Descending => (!first_key.is_empty() && !is_before_or_at(first_key, from))
                .then(|| Bound::Excluded(first_key.into())),
        };
        LeafKeys { version: LeafVersion { leaf: leaf.id, counter: body.counter }, next }
    }

    /// Every key, and the transaction that it is pending for.
    pub(crate) fn entries(&self) -> Vec<(Box<[u8]>, Owner)> {
        let directory = self.directory.read();
        let leaves = directory.by_key.values();
        leaves
            .flat_map(|leaf| {
                let body = leaf.lock();
                body.entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.pending))
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

/// The key at which a scan from `from` starts.
fn from_key(from: Bound<&[u8]>) -> &[u8] {
    match from {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

fn is_before(key: &[u8], from: Bound<&[u8]>) -> bool {
    match from {
        Bound::Included(from) => key < from,
        Bound::Excluded(from) => key <= from,
        Bound::Unbounded => false,
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

impl Directory {
    /// A leaf without keys.
    fn new() -> Self {
        let leaf = Arc::new(Leaf { id: 0, body: Mutex::default() });
        let by_key = BTreeMap::from([(Box::default(), Arc::clone(&leaf))]);
        Self { by_key, leaves: vec![Some(leaf)], free: Vec::new() }
    }

    /// The leaf that `key` belongs to, and the first key that does.
    fn leaf_at(&self, key: &[u8]) -> (&[u8], &Leaf) {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let last = self.by_key.range::<[u8], _>(up_to).next_back();
        let (first_key, leaf) = last.expect("the first leaf starts at the empty key");
        (first_key, leaf)
    }

    fn leaf_of(&self, key: &[u8]) -> &Leaf {
        self.leaf_at(key).1
    }

    /// The last leaf with keys that are not beyond `to`.
    fn leaf_before(&self, to: Bound<&[u8]>) -> (&[u8], &Leaf) {
        let last = match to {
            // Keys below the empty key: there are none, but the first leaf would have them.
            Bound::Excluded([]) => self.by_key.iter().next(),
            to => self.by_key.range::<[u8], _>((Bound::Unbounded, to)).next_back(),
        };
        let (first_key, leaf) = last.expect("the first leaf starts at the empty key");
        (first_key, leaf)
    }

    /// Splits the leaf of `key`, unless another thread has. Its counter, and the new leaf; `None` if
    /// others have changed it since its counter was `counter`.
    fn split(&mut self, key: &[u8], counter: u64) -> Option<(u64, LeafVersion)> {
        let (id, first_counter) = self.free_id();
        let mut body = self.leaf_of(key).lock();
        if body.entries.len() <= LEAF_KEYS_MAX {
            drop(body);
            self.free.push((id, first_counter));
            return None;
        }
        // A leaf that grows at its end, as one of ascending keys does, stays nearly full.
        let grows_at_end = body.entries.last().is_some_and(|last| *last.key == *key);
        let at = if grows_at_end { body.entries.len() - 1 } else { body.entries.len() / 2 };
        let entries = body.entries.split_off(at);
        let is_alone = body.counter == counter;
        body.counter += 1;
        let after = body.counter;
        drop(body);
        let first_key = entries[0].key.clone();
        let body = Mutex::new(LeafBody { counter: first_counter, entries });
        let leaf = Arc::new(Leaf { id, body });
        self.leaves[id as usize] = Some(Arc::clone(&leaf));
        self.by_key.insert(first_key, leaf);
        is_alone.then_some((after, LeafVersion { leaf: id, counter: first_counter }))
    }

    /// An id without a leaf, and the counter at which its leaf starts.
    fn free_id(&mut self) -> (u32, u64) {
        self.free.pop().unwrap_or_else(|| {
            self.leaves.push(None);
            let id = u32::try_from(self.leaves.len() - 1).expect("fewer than 2^32 leaves");
            (id, 0)
        })
    }

    /// Removes the leaf that `key` belonged to, if it is empty and not the first.
    fn remove_empty(&mut self, key: &[u8]) {
        let (first_key, leaf) = self.leaf_at(key);
        let body = leaf.lock();
        if first_key.is_empty() || !body.entries.is_empty() {
            return;
        }
        let (id, counter) = (leaf.id, body.counter + 1);
        drop(body);
        let first_key: Box<[u8]> = first_key.into();
        self.by_key.remove(&first_key);
        self.leaves[id as usize] = None;
        self.free.push((id, counter));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn keys_of(
        index: &OrderedIndex,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        direction: Direction,
    ) -> (Vec<Vec<u8>>, Vec<LeafVersion>) {
        let (mut keys, mut leaves) = (Vec::new(), Vec::new());
        let mut position: Option<Bound<Box<[u8]>>> = None;
        loop {
            let at = position.as_ref().map(|bound| bound.as_ref().map(|key| &**key));
            let range = match direction {
                Direction::Ascending => (at.unwrap_or(from), to),
                Direction::Descending => (from, at.unwrap_or(to)),
            };
            let found = index.scan_leaf(range, direction, Owner(9), |key| keys.push(key.to_vec()));
            leaves.push(found.version);
            match found.next {
                Some(next) => position = Some(next),
                None => return (keys, leaves),
            }
        }
    }

    fn key(number: u16) -> [u8; 2] {
        number.to_be_bytes()
    }

    fn bound() -> impl Strategy<Value = Bound<u16>> {
        prop_oneof![
            Just(Bound::Unbounded),
            (0_u16..400).prop_map(Bound::Included),
            (0_u16..400).prop_map(Bound::Excluded),
        ]
    }

    proptest! {
        #[test]
        fn scans_are_those_of_a_set(
            changes in proptest::collection::vec((0_u16..400, any::<bool>()), 0..1500),
            ranges in proptest::collection::vec((bound(), bound()), 10),
        ) {
            let index = OrderedIndex::new();
            let mut set = BTreeSet::new();
            for (number, add) in changes {
                if add {
                    index.add_applied(&key(number));
                    set.insert(number);
                } else {
                    index.remove(&key(number));
                    set.remove(&number);
                }
            }
            for (from, to) in ranges {
                let inside = |n: &u16| {
                    (match from { Bound::Included(f) => *n >= f, Bound::Excluded(f) => *n > f, Bound::Unbounded => true })
                        && (match to { Bound::Included(t) => *n <= t, Bound::Excluded(t) => *n < t, Bound::Unbounded => true })
                };
                let mut expected: Vec<_> = set.iter().copied().filter(inside).map(|n| key(n).to_vec()).collect();
                let (from, to) = (from.map(key), to.map(key));
                let (from, to) = (from.as_ref().map(|k| &k[..]), to.as_ref().map(|k| &k[..]));
                prop_assert_eq!(&keys_of(&index, from, to, Direction::Ascending).0, &expected);
                expected.reverse();
                prop_assert_eq!(&keys_of(&index, from, to, Direction::Descending).0, &expected);
            }
        }
    }

    #[test]
    fn whatever_enters_or_leaves_a_range_changes_a_leaf_that_was_seen() {
        let index = OrderedIndex::new();
        for number in (0..2_000).step_by(2) {
            index.add_applied(&key(number));
        }
        let (from, to) = (key(500), key(900));
        let range = || (Bound::Included(&from[..]), Bound::Included(&to[..]));
        for number in 500..=900 {
            for direction in [Direction::Ascending, Direction::Descending] {
                let (_, leaves) = keys_of(&index, range().0, range().1, direction);
                assert!(leaves.iter().all(|&leaf| index.is_unchanged(leaf)));
                if number % 2 == 0 {
                    index.remove(&key(number));
                    index.add_applied(&key(number));
                } else {
                    index.add_pending(&key(number), Owner(1));
                    index.remove_pending(&key(number), Owner(1));
                }
                assert!(!leaves.iter().all(|&leaf| index.is_unchanged(leaf)), "{number}");
            }
        }
    }

    #[test]
    fn a_pending_key_is_seen_by_others_and_removed_by_its_owner_alone() {
        let index = OrderedIndex::new();
        let first = index.add_pending(b"a", Owner(1));
        assert_eq!(first, LeafChange { leaf: 0, before: 0, after: Some(1), split: None });
        let all = |reader| {
            let mut keys = 0;
            index.scan_leaf(
                (Bound::Unbounded, Bound::Unbounded),
                Direction::Ascending,
                reader,
                |_| keys += 1,
            );
            keys
        };
        assert_eq!((all(Owner(1)), all(Owner(2))), (0, 1));
        index.remove_pending(b"a", Owner(2));
        assert_eq!(all(Owner(2)), 1);
        // A new holder of the bucket's lock takes the entry over.
        assert_eq!(index.add_pending(b"a", Owner(2)).after, Some(1));
        index.remove_pending(b"a", Owner(1));
        index.add_applied(b"a");
        assert_eq!((all(Owner(2)), all(Owner(1))), (1, 1));
        assert!(index.is_unchanged(LeafVersion { leaf: 0, counter: 1 }));
    }

    #[test]
    fn empty_leaves_go_and_their_ids_do_not_go_back() {
        let index = OrderedIndex::new();
        (0..1_000).for_each(|number| index.add_applied(&key(number)));
        let (_, seen) = keys_of(&index, Bound::Unbounded, Bound::Unbounded, Direction::Ascending);
        (0..1_000).for_each(|number| index.remove(&key(number)));
        let (keys, leaves) =
            keys_of(&index, Bound::Unbounded, Bound::Unbounded, Direction::Ascending);
        assert_eq!((keys.len(), leaves.len()), (0, 1));
        (0..1_000).for_each(|number| index.add_applied(&key(number)));
        assert!(seen.iter().all(|&leaf| !index.is_unchanged(leaf)));
    }
}
