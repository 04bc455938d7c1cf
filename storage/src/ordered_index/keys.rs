//! The keys of a leaf, side by side, without the prefix that all of them have.
//!
//! ```text
//! bytes  prefix | rest of key 0 | rest of key 1 | ...      ends  where each rest ends
//! ```
//! A search looks at a few neighbouring lines, and a key takes its rest and 4 bytes.
//!
//! *Invariant*: the keys ascend.

use std::cmp::Ordering;
use std::ops::Bound;

/// Keys in ascending order.
#[derive(Clone, Default, Debug)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    prefix_bytes: usize,
    ends: Vec<u32>,
}

/// Bytes that two keys begin with.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The first bytes of a part of `bytes` as a number, filled up with zeros: an order of numbers that differ is that of the parts.
#[inline(always)]
pub(super) fn first_bytes(bytes: &[u8], start: usize, end: usize) -> u64 {
    let count = (end - start).min(8);
    match bytes[start..].first_chunk() {
        // Bytes behind the part do not count.
        Some(first) if count > 0 => u64::from_be_bytes(*first) & (u64::MAX << (64 - 8 * count)),
        _ => {
            let mut first = [0; 8];
            first[..count].copy_from_slice(&bytes[start..start + count]);
            u64::from_be_bytes(first)
        }
    }
}

/// Makes room for some more: a quarter of what is there, and eight at least.
#[inline(always)]
pub(super) fn reserve<T>(vector: &mut Vec<T>, more: usize) {
    if vector.capacity() - vector.len() < more {
        vector.reserve_exact(more.max(vector.len() / 4).max(8));
    }
}

/// Gives most of the room back if there is four times as much as is needed.
pub(super) fn give_back<T>(vector: &mut Vec<T>) {
    if vector.capacity() > 4 * vector.len() {
        vector.shrink_to(2 * vector.len());
    }
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes that were allocated.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    fn prefix(&self) -> &[u8] {
        &self.bytes[..self.prefix_bytes]
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(self.prefix_bytes, |before| self.ends[before] as usize)
    }

    /// A key without the prefix.
    fn rest(&self, at: usize) -> &[u8] {
        &self.bytes[self.start(at)..self.ends[at] as usize]
    }

    /// Puts a key in the place of what `out` has.
    pub(super) fn copy(&self, at: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(self.prefix());
        out.extend_from_slice(self.rest(at));
    }

    /// A key.
    pub(super) fn boxed(&self, at: usize) -> Box<[u8]> {
        [self.prefix(), self.rest(at)].concat().into()
    }

    /// Whether a key is this one.
    pub(super) fn is(&self, at: usize, key: &[u8]) -> bool {
        key.strip_prefix(self.prefix()) == Some(self.rest(at))
    }

    /// Where a key is, or would be.
    pub(super) fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let Some(rest) = key.strip_prefix(self.prefix()) else {
            return Err(if key < self.prefix() { 0 } else { self.len() });
        };
        let first = first_bytes(rest, 0, rest.len());
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            let (start, end) = (self.start(middle), self.ends[middle] as usize);
            let order = first_bytes(&self.bytes, start, end).cmp(&first);
            match order.then_with(|| self.bytes[start..end].cmp(rest)) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => return Ok(middle),
                Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The places of the keys in a range.
    pub(super) fn range(&self, (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> std::ops::Range<usize> {
        let before = |found: Result<usize, usize>| found.unwrap_or_else(|at| at);
        let behind = |found: Result<usize, usize>| found.map_or_else(|at| at, |at| at + 1);
        let start = match from {
            Bound::Included(key) => before(self.find(key)),
            Bound::Excluded(key) => behind(self.find(key)),
            Bound::Unbounded => 0,
        };
        let end = match to {
            Bound::Included(key) => behind(self.find(key)),
            Bound::Excluded(key) => before(self.find(key)),
            Bound::Unbounded => self.len(),
        };
        start.min(end)..end
    }

    /// Adds a key, at the place where [`Self::find`] misses it.
    pub(super) fn insert(&mut self, at: usize, key: &[u8]) {
        if self.ends.is_empty() {
            (self.bytes, self.prefix_bytes) = (key.to_vec(), key.len());
        }
        if !key.starts_with(self.prefix()) {
            self.lengthen(common(self.prefix(), key));
        }
        let (start, rest) = (self.start(at), &key[self.prefix_bytes..]);
        reserve(&mut self.bytes, rest.len());
        let end = self.bytes.len();
        self.bytes.extend_from_slice(rest);
        self.bytes.copy_within(start..end, start + rest.len());
        self.bytes[start..start + rest.len()].copy_from_slice(rest);
        let bytes = length(rest.len());
        self.ends[at..].iter_mut().for_each(|end| *end += bytes);
        reserve(&mut self.ends, 1);
        self.ends.insert(at, length(start) + bytes);
    }

    pub(super) fn remove(&mut self, at: usize) {
        let (start, end) = (self.start(at), self.ends.remove(at));
        self.bytes.drain(start..end as usize);
        let bytes = end - length(start);
        self.ends[at..].iter_mut().for_each(|end| *end -= bytes);
        give_back(&mut self.bytes);
        give_back(&mut self.ends);
    }

    /// Splits the keys from this one on off. Both parts take no more memory than they need.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let upper = self.part(at..self.len());
        *self = self.part(0..at);
        upper
    }

    /// Some of the keys, with the prefix that those have.
    fn part(&self, places: std::ops::Range<usize>) -> Self {
        let Some(last) = places.clone().next_back() else { return Self::default() };
        let more = common(self.rest(places.start), self.rest(last));
        let bytes = self.ends[last] as usize - self.start(places.start);
        let mut part = Self {
            bytes: Vec::with_capacity(self.prefix_bytes + more + bytes - more * places.len()),
            prefix_bytes: self.prefix_bytes + more,
            ends: Vec::with_capacity(places.len()),
        };
        part.bytes.extend_from_slice(self.prefix());
        part.bytes.extend_from_slice(&self.rest(places.start)[..more]);
        for at in places {
            part.bytes.extend_from_slice(&self.rest(at)[more..]);
            part.ends.push(length(part.bytes.len()));
        }
        part
    }

    /// Gives each key what the prefix has beyond so many bytes.
    fn lengthen(&mut self, prefix_bytes: usize) {
        let more = &self.bytes[prefix_bytes..self.prefix_bytes];
        let longer = self.bytes.len() + more.len() * (self.len() - usize::from(self.len() > 0));
        let mut bytes = Vec::with_capacity(longer);
        bytes.extend_from_slice(&self.bytes[..prefix_bytes]);
        let mut ends = Vec::with_capacity(self.ends.capacity());
        for at in 0..self.len() {
            bytes.extend_from_slice(more);
            bytes.extend_from_slice(self.rest(at));
            ends.push(length(bytes.len()));
        }
        (self.bytes, self.prefix_bytes, self.ends) = (bytes, prefix_bytes, ends);
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a leaf has few keys, of 4 KiB at most")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::RangeBounds;

    use proptest::prelude::*;

    use super::*;

    /// Keys with long and short prefixes in common.
    fn key() -> impl Strategy<Value = Vec<u8>> {
        let long = any::<u8>().prop_map(|last| [&b"a long prefix/"[..], &[last]].concat());
        prop_oneof![long, proptest::collection::vec(0_u8..3, 0..6)]
    }

    proptest! {
        #[test]
        fn keys_are_those_of_a_set(
            changes in proptest::collection::vec((key(), 0_u8..4), 0..200),
            others in proptest::collection::vec(key(), 8),
            cut in 0_usize..60,
        ) {
            let (mut keys, mut set) = (Keys::default(), BTreeSet::new());
            for (key, kind) in changes {
                match (keys.find(&key), kind) {
                    (Ok(at), 0) => {
                        prop_assert!(set.remove(&key));
                        keys.remove(at);
                    }
                    (Ok(at), _) => prop_assert!(set.contains(&key) && keys.is(at, &key)),
                    (Err(at), _) => {
                        prop_assert!(set.insert(key.clone()));
                        keys.insert(at, &key);
                    }
                }
            }
            let all = |keys: &Keys| -> Vec<Vec<u8>> {
                let key = |at| {
                    let mut key = b"other".to_vec();
                    keys.copy(at, &mut key);
                    key
                };
                (0..keys.len()).map(key).collect()
            };
            prop_assert_eq!(all(&keys), set.iter().cloned().collect::<Vec<_>>());
            for pair in others.chunks(2) {
                let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
                for from in bounds(&pair[0][..]) {
                    for to in bounds(&pair[1][..]) {
                        let is_inside = |key: &&Vec<u8>| (from, to).contains(&key[..]);
                        let inside = set.iter().filter(is_inside).cloned();
                        let found = keys.range((from, to));
                        prop_assert_eq!(all(&keys)[found].to_vec(), inside.collect::<Vec<_>>());
                    }
                }
            }
            let cut = cut.min(keys.len());
            let upper = keys.split_off(cut);
            let parts = [all(&keys), all(&upper)].concat();
            prop_assert_eq!((keys.len(), parts), (cut, set.into_iter().collect::<Vec<_>>()));
        }
    }
}
