//! A hash table of keys: hash joins, GROUP BY, DISTINCT and set operations find by it what belongs to a key.
//!
//! ```text
//! key ─ XXH3 with a random seed ─┬─ some bits: the part, of one or 64
//!                                └─ the others: the place in the part
//! ```
//! A table that grows moves its entries at once, and holds the thread meanwhile. So a large map has 64 parts, which grow one by one: of a million
//! keys 15,000 move at once.
//!
//! *Invariants*: the seed is drawn once for a process, so that nobody chooses keys that fall into one place. Nothing that a statement returns
//! depends on the order of the entries.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use hashbrown::HashTable;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Entries from which on a map has [`PARTS`] parts.
const ENTRIES_OF_ONE: usize = 4 << 10;
/// Parts of a large map; a power of two.
const PARTS: usize = 64;
/// The bits of a hash that choose a part. `hashbrown` goes by the lowest ones, and by the seven highest.
const PART_SHIFT: u32 = 48;

static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// A key. One of two integers, or of a UUID, needs no memory of its own.
pub(crate) type EncodedKey = SmallVec<[u8; 24]>;

/// Values by keys, which are byte strings.
pub(crate) struct KeyMap<V> {
    /// None before the first entry, then one or [`PARTS`].
    parts: Vec<HashTable<Entry<V>>>,
    len: usize,
}

struct Entry<V> {
    hash: u64,
    key: EncodedKey,
    value: V,
}

impl<V> Default for KeyMap<V> {
    fn default() -> Self {
        Self { parts: Vec::new(), len: 0 }
    }
}

impl<V> KeyMap<V> {
    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let hash = hash(key);
        let part = self.parts.get(self.part(hash))?;
        part.find(hash, |entry| entry.is_of(hash, key)).map(|entry| &entry.value)
    }

    /// The value of a key, to be changed.
    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        let hash = hash(key);
        let part = self.part(hash);
        let part = self.parts.get_mut(part)?;
        part.find_mut(hash, |entry| entry.is_of(hash, key)).map(|entry| &mut entry.value)
    }

    /// Whether a key is in the map.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.get(key).is_some()
    }

    /// Adds a key that is not in the map.
    pub(crate) fn insert_new(&mut self, key: &[u8], value: V) {
        debug_assert!(!self.contains(key), "the key is new");
        if self.parts.is_empty() {
            self.parts.push(HashTable::new());
        } else if self.len == ENTRIES_OF_ONE {
            let whole = std::mem::take(&mut self.parts);
            self.parts.resize_with(PARTS, HashTable::new);
            whole.into_iter().flatten().for_each(|entry| self.put(entry));
        }
        self.len += 1;
        self.put(Entry { hash: hash(key), key: EncodedKey::from_slice(key), value });
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        // One part keeps its memory for the next entries.
        self.parts.truncate(1);
        self.parts.iter_mut().for_each(HashTable::clear);
        self.len = 0;
    }

    fn put(&mut self, entry: Entry<V>) {
        let part = self.part(entry.hash);
        self.parts[part].insert_unique(entry.hash, entry, |entry| entry.hash);
    }

    fn part(&self, hash: u64) -> usize {
        if self.parts.len() == PARTS { (hash >> PART_SHIFT) as usize % PARTS } else { 0 }
    }
}

impl<V> Entry<V> {
    fn is_of(&self, hash: u64, key: &[u8]) -> bool {
        self.hash == hash && *self.key == *key
    }
}

impl<V> IntoIterator for KeyMap<V> {
    type Item = (EncodedKey, V);
    type IntoIter = IntoIter<V>;

    /// The entries, in no order.
    fn into_iter(self) -> IntoIter<V> {
        IntoIter(self.parts.into_iter().flatten())
    }
}

/// The entries of a map.
pub(crate) struct IntoIter<V>(std::iter::Flatten<std::vec::IntoIter<HashTable<Entry<V>>>>);

impl<V> Iterator for IntoIter<V> {
    type Item = (EncodedKey, V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|entry| (entry.key, entry.value))
    }
}

fn hash(key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, *SEED)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Keys, of which some are equal.
    fn keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let key = prop_oneof![
            prop::collection::vec(0_u8..4, 0..5),
            // Too long for an entry.
            prop::collection::vec(Just(7), 22..28),
        ];
        prop::collection::vec(key, 0..600)
    }

    proptest! {
        #[test]
        fn it_is_a_map(keys in keys(), others in keys()) {
            let (mut map, mut expected) = (KeyMap::default(), BTreeMap::new());
            for (number, key) in keys.into_iter().enumerate() {
                match map.get_mut(&key) {
                    Some(value) => *value = number,
                    None => map.insert_new(&key, number),
                }
                expected.insert(key, number);
            }
            for key in &others {
                prop_assert_eq!(map.get(key), expected.get(key));
            }
            let found = map.into_iter().map(|(key, value)| (key.to_vec(), value));
            prop_assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);
        }
    }

    #[test]
    fn a_large_map_has_many_parts_of_about_one_size_and_a_cleared_one_is_empty() {
        let key = |number: u32| number.to_be_bytes();
        let mut map = KeyMap::default();
        for number in 0..100_000 {
            map.insert_new(&key(number), number);
            assert_eq!(map.get(&key(number)), Some(&number));
        }
        assert!((0..100_000).all(|number| map.get(&key(number)) == Some(&number)));
        assert!(!map.contains(&key(100_000)));
        assert_eq!(map.parts.len(), PARTS);
        // 1,562 each on average, with a standard deviation of 39.
        let sizes: Vec<usize> = map.parts.iter().map(HashTable::len).collect();
        assert!(sizes.iter().all(|size| (1_200..1_950).contains(size)), "{sizes:?}");
        map.clear();
        assert!(!map.contains(&key(7)));
        map.insert_new(&key(7), 8);
        assert_eq!(map.into_iter().collect::<Vec<_>>(), [(EncodedKey::from_slice(&key(7)), 8)]);
    }
}
