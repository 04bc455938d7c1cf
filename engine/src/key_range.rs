//! Ranges of the keys of an ordered table.
//!
//! *Invariants*: keys are compared as bytes. A range whose bounds contradict each other has no key.
//!
//! *Not here*: ranges as bytes in requests (`scan_page`); ranges that were scanned, and are validated (`transaction/scan.rs`).

use std::ops::Bound;

use gannet_storage::Direction;

use crate::scan_page::Bounds;

/// The keys of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Where it starts.
    pub from: Bound<Vec<u8>>,
    /// Where it ends.
    pub to: Bound<Vec<u8>>,
}

impl KeyRange {
    /// The range between two bounds.
    pub(crate) fn of((from, to): Bounds<'_>) -> Self {
        Self { from: from.map(<[u8]>::to_vec), to: to.map(<[u8]>::to_vec) }
    }

    /// Whether the range has a key.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        is_inside(key, self.bounds())
    }

    /// Whether the range has all keys of another one, as the bounds tell.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let (from, to) = (&other.from, &other.to);
        let has_from = match from {
            Bound::Unbounded => self.from == Bound::Unbounded,
            Bound::Included(key) => self.has_from(key),
            Bound::Excluded(key) => self.from == *from || self.has_from(key),
        };
        has_from
            && match to {
                Bound::Unbounded => self.to == Bound::Unbounded,
                Bound::Included(key) => self.has_to(key),
                Bound::Excluded(key) => self.to == *to || self.has_to(key),
            }
    }

    fn has_from(&self, key: &[u8]) -> bool {
        is_inside(key, (self.bounds().0, Bound::Unbounded))
    }

    fn has_to(&self, key: &[u8]) -> bool {
        is_inside(key, (Bound::Unbounded, self.bounds().1))
    }

    /// Bytes of the longer bound.
    pub(crate) fn bytes(&self) -> usize {
        let bytes = |bound: &Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.len(),
            Bound::Unbounded => 0,
        };
        bytes(&self.from).max(bytes(&self.to))
    }

    /// Both bounds, borrowed.
    #[must_use]
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.from.as_ref().map(Vec::as_slice), self.to.as_ref().map(Vec::as_slice))
    }

    /// The part of the range up to a key that a scan in `direction` comes to; all of it if there is none.
    pub(crate) fn up_to(&self, last: Option<Vec<u8>>, direction: Direction) -> Self {
        let Some(last) = last.map(Bound::Included) else { return self.clone() };
        match direction {
            Direction::Ascending => Self { from: self.from.clone(), to: last },
            Direction::Descending => Self { from: last, to: self.to.clone() },
        }
    }

    /// What is left of the range behind `last`, when it is scanned in `direction`.
    #[must_use]
    pub fn after(&self, last: Vec<u8>, direction: Direction) -> Self {
        let last = Bound::Excluded(last);
        match direction {
            Direction::Ascending => Self { from: last, to: self.to.clone() },
            Direction::Descending => Self { from: self.from.clone(), to: last },
        }
    }
}

/// Whether a key lies between two bounds.
pub(crate) fn is_inside(key: &[u8], (from, to): (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    let is_after = match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let is_before = match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    is_after && is_before
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Bound::{Excluded, Included, Unbounded};

    /// A range of numbers covers another one if it has all numbers of that one, as the bounds tell.
    #[test]
    fn a_range_covers_those_inside_of_it() {
        let bounds = |key: u8| [Included(vec![key]), Excluded(vec![key])];
        let all = || (1..4).flat_map(bounds).chain([Unbounded]);
        let ranges: Vec<KeyRange> = all()
            .flat_map(|from| all().map(move |to| KeyRange { from: from.clone(), to }))
            .collect();
        // Each key, those between two of them, and those before and behind all.
        let keys: Vec<Vec<u8>> =
            (0..5).flat_map(|key| [vec![key], vec![key, 1]]).chain([vec![]]).collect();
        let mut covered = 0;
        for (first, second) in ranges.iter().flat_map(|one| ranges.iter().map(move |it| (one, it)))
        {
            let has_keys = keys.iter().any(|key| second.has(key));
            let has_all = keys.iter().all(|key| first.has(key) || !second.has(key));
            if first.covers(second) {
                assert!(has_all, "{first:?} {second:?}");
                covered += 1;
            } else {
                assert!(!has_all || !has_keys, "{first:?} {second:?}");
            }
        }
        assert!(covered > ranges.len(), "each range covers itself, and some cover others");
        assert_eq!(ranges[0].bytes(), 1);
    }
}
