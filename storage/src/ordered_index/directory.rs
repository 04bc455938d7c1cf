//! The leaves of an index by their first keys, in two levels.
//!
//! ```text
//! blocks  first bytes of the block's first key | first keys, leaves      at most 64 of each
//! ```
//! A search is one among the blocks and one in a block. A leaf that comes or goes moves those behind it in its block alone.
//!
//! *Invariants*: the first keys ascend. No block is empty. Until leaves are taken from its end, the directory begins with the leaf that it was
//! made with, whose first key is the empty one.

use std::cmp::Ordering;

use crate::ordered_index::keys::first_bytes;

/// Leaves of a block before it is split.
const BLOCK_LEAVES_MAX: usize = if cfg!(test) { 4 } else { 64 };

/// A key that a leaf begins with, or that is looked for.
#[derive(Clone, Copy)]
struct Searched<'k> {
    /// As a number, filled up with zeros: an order of numbers that differ is that of the keys.
    first_bytes: u64,
    key: &'k [u8],
}

impl<'k> Searched<'k> {
    fn new(key: &'k [u8]) -> Self {
        Self { first_bytes: first_bytes(key, 0, key.len()), key }
    }

    /// How a first key is ordered to this one.
    #[inline(always)]
    fn order_of(&self, first_bytes: u64, key: impl FnOnce() -> &'k [u8]) -> Ordering {
        first_bytes.cmp(&self.first_bytes).then_with(|| key().cmp(self.key))
    }
}

/// The first key of a leaf. Most comparisons need its first bytes alone.
struct First {
    first_bytes: u64,
    key: Box<[u8]>,
}

struct Block<L> {
    /// Those of its first key.
    first_bytes: u64,
    firsts: Vec<First>,
    leaves: Vec<L>,
}

/// Where a leaf is, as long as none comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeafPosition {
    block: usize,
    at: usize,
}

/// See the module's text.
pub(super) struct Directory<L> {
    blocks: Vec<Block<L>>,
}

impl<L> Directory<L> {
    /// Of a single leaf.
    pub(super) fn new(leaf: L) -> Self {
        let first = First { first_bytes: 0, key: Box::default() };
        Self { blocks: vec![Block { first_bytes: 0, firsts: vec![first], leaves: vec![leaf] }] }
    }

    /// The last leaf whose first key is not beyond this one; none in a directory that has lost its first leaf.
    #[inline]
    pub(super) fn up_to(&self, key: &[u8]) -> Option<LeafPosition> {
        self.last_where(key, Ordering::is_le)
    }

    /// The last leaf whose first key is smaller than this one.
    pub(super) fn before(&self, key: &[u8]) -> Option<LeafPosition> {
        self.last_where(key, Ordering::is_lt)
    }

    /// The last leaf whose first key is ordered so to this one, as all before it are.
    #[inline(always)]
    fn last_where(&self, key: &[u8], is_meant: impl Fn(Ordering) -> bool) -> Option<LeafPosition> {
        let searched = Searched::new(key);
        let order = |first: &First| searched.order_of(first.first_bytes, || &*first.key);
        let begins = |block: &Block<L>| {
            is_meant(searched.order_of(block.first_bytes, || &*block.firsts[0].key))
        };
        let block = self.blocks.partition_point(begins).checked_sub(1)?;
        let firsts = &self.blocks[block].firsts;
        Some(LeafPosition { block, at: firsts.partition_point(|first| is_meant(order(first))) - 1 })
    }

    pub(super) fn last(&self) -> Option<LeafPosition> {
        let block = self.blocks.len().checked_sub(1)?;
        Some(LeafPosition { block, at: self.blocks[block].leaves.len() - 1 })
    }

    /// The leaf behind another.
    pub(super) fn next(&self, LeafPosition { block, at }: LeafPosition) -> Option<LeafPosition> {
        if at + 1 < self.blocks[block].leaves.len() {
            return Some(LeafPosition { block, at: at + 1 });
        }
        (block + 1 < self.blocks.len()).then_some(LeafPosition { block: block + 1, at: 0 })
    }

    /// A leaf, and its first key.
    #[inline(always)]
    pub(super) fn get(&self, LeafPosition { block, at }: LeafPosition) -> (&[u8], &L) {
        let block = &self.blocks[block];
        (&block.firsts[at].key, &block.leaves[at])
    }

    /// Leaves with their first keys, from this one on.
    pub(super) fn from(&self, place: Option<LeafPosition>) -> impl Iterator<Item = (&[u8], &L)> {
        std::iter::successors(place, |place| self.next(*place)).map(|place| self.get(place))
    }

    /// All leaves, with their first keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &L)> {
        self.from((!self.blocks.is_empty()).then_some(LeafPosition { block: 0, at: 0 }))
    }

    /// Adds a leaf with a first key that no other has.
    ///
    /// # Panics
    /// If the directory has lost its first leaf.
    pub(super) fn insert(&mut self, key: Box<[u8]>, leaf: L) {
        let mut before = self.up_to(&key).expect("the first leaf is there");
        if self.blocks[before.block].leaves.len() == BLOCK_LEAVES_MAX {
            before = self.split(before);
        }
        let (block, at) = (&mut self.blocks[before.block], before.at + 1);
        block.firsts.insert(at, First { first_bytes: first_bytes(&key, 0, key.len()), key });
        block.leaves.insert(at, leaf);
    }

    /// Splits the block of a leaf behind which another one comes. Where the leaf is then.
    fn split(&mut self, LeafPosition { block: number, at }: LeafPosition) -> LeafPosition {
        let block = &mut self.blocks[number];
        let count = block.leaves.len();
        // A block that grows at its end, as one of ascending keys does, stays nearly full.
        let kept = if at + 1 == count { count - 1 } else { count / 2 };
        let (firsts, leaves) = (block.firsts.split_off(kept), block.leaves.split_off(kept));
        let first_bytes = firsts[0].first_bytes;
        self.blocks.insert(number + 1, Block { first_bytes, firsts, leaves });
        match at.checked_sub(kept) {
            Some(at) => LeafPosition { block: number + 1, at },
            None => LeafPosition { block: number, at },
        }
    }

    /// Removes a leaf.
    pub(super) fn remove(&mut self, LeafPosition { block: number, at }: LeafPosition) -> L {
        let block = &mut self.blocks[number];
        block.firsts.remove(at);
        let leaf = block.leaves.remove(at);
        match block.firsts.first() {
            Some(first) => block.first_bytes = first.first_bytes,
            None => _ = self.blocks.remove(number),
        }
        leaf
    }

    /// Bytes that a leaf takes here, beside those of its first key.
    pub(super) const ENTRY_BYTES: usize = size_of::<First>() + size_of::<L>();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys of up to ten bytes that differ in few of them, or in their length alone.
    fn similar_key() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(255)];
        (0_usize..10, prop::collection::vec(byte, 0..3)).prop_map(|(zeros, end)| {
            let mut key = vec![0; zeros.min(10 - end.len())];
            key.extend(end);
            key
        })
    }

    proptest! {
        #[test]
        fn leaves_are_those_of_a_map(
            changes in prop::collection::vec((similar_key(), 0_u8..4), 0..300),
            searched in prop::collection::vec(similar_key(), 20),
            is_sorted: bool,
        ) {
            let (mut directory, mut map) = (Directory::new(0), BTreeMap::from([(Vec::new(), 0)]));
            let mut changes = changes;
            if is_sorted {
                changes.sort();
            }
            for (number, (key, kind)) in (1..).zip(changes) {
                let place = directory.up_to(&key).unwrap();
                if *directory.get(place).0 != *key {
                    directory.insert(key.clone().into(), number);
                    map.insert(key, number);
                } else if kind == 0 && !key.is_empty() {
                    prop_assert_eq!(Some(directory.remove(place)), map.remove(&key));
                }
            }
            let all: Vec<_> = directory.iter().map(|(key, leaf)| (key.to_vec(), *leaf)).collect();
            prop_assert_eq!(&all, &map.clone().into_iter().collect::<Vec<_>>());
            let found = |place: Option<LeafPosition>| {
                place.map(|place| directory.get(place)).map(|(key, leaf)| (key.to_vec(), *leaf))
            };
            let expected = |entry: Option<(&Vec<u8>, &i32)>| entry.map(|(key, leaf)| (key.clone(), *leaf));
            for key in searched {
                prop_assert_eq!(found(directory.up_to(&key)), expected(map.range(..=key.clone()).next_back()));
                prop_assert_eq!(found(directory.before(&key)), expected(map.range(..key.clone()).next_back()));
                let behind = directory.from(directory.up_to(&key)).count();
                prop_assert_eq!(behind, map.range(key.clone()..).count() + usize::from(!map.contains_key(&key)));
            }
            while let Some(last) = directory.last() {
                prop_assert_eq!(found_last(&directory), map.pop_last());
                directory.remove(last);
            }
            prop_assert!(map.is_empty() && directory.iter().next().is_none());
        }
    }

    fn found_last(directory: &Directory<i32>) -> Option<(Vec<u8>, i32)> {
        let (key, leaf) = directory.get(directory.last()?);
        Some((key.to_vec(), *leaf))
    }
}
