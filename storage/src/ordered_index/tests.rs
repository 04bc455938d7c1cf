//! Scans, counts and validations of one index.
//!
//! One thread changes an index that belongs to no table. A property test compares scans with a `BTreeSet`. A test fails
//! if a validation misses a key of the range that came, went, is pending or is leaving, or if keys that are added beside
//! the range, or removed far from it, make it fail. Another test fails if keys take more memory than is counted for them.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".
//!
//! *Not here*: validations without one of the rules (`storage/tests/rows_mutant.rs`).

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A transaction.
fn owner(number: u64) -> Owner {
    Owner(Owner::of_epoch(1).0 + number)
}

fn keys_of(
    index: &OrderedIndex,
    from: Bound<&[u8]>,
    to: Bound<&[u8]>,
    direction: Direction,
) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut position: Option<Bound<Box<[u8]>>> = None;
    loop {
        let at = position.as_ref().map(|bound| bound.as_ref().map(|key| &**key));
        let range = match direction {
            Direction::Ascending => (at.unwrap_or(from), to),
            Direction::Descending => (from, at.unwrap_or(to)),
        };
        match index.scan_leaf(range, direction, owner(9), |key| keys.push(key.to_vec())) {
            Some(next) => position = Some(next),
            None => return keys,
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
            prop_assert_eq!(&keys_of(&index, from, to, Direction::Ascending), &expected);
            expected.reverse();
            prop_assert_eq!(&keys_of(&index, from, to, Direction::Descending), &expected);
        }
    }
}

const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

#[test]
fn whatever_enters_or_leaves_a_range_is_noticed_and_what_is_beside_it_mostly_not() {
    let index = OrderedIndex::new();
    for number in (0..2_000).step_by(2) {
        index.add_applied(&key(number));
    }
    let (from, to) = (key(500), key(900));
    let range = (Bound::Included(&from[..]), Bound::Included(&to[..]));
    for number in 300..=1_100_u16 {
        let (before, is_inside) = (index.number(), (500..=900).contains(&number));
        let validate = || index.validate(range, before, owner(9));
        assert_eq!(validate(), Validation::Unchanged, "{number}");
        let is_removed = number % 2 == 0;
        if is_removed {
            index.remove(&key(number));
            index.add_applied(&key(number));
        } else {
            index.add_pending(&key(number), owner(1));
            assert_eq!(validate() == Validation::Locked, is_inside, "{number}");
            index.remove_pending(&key(number), owner(1));
            assert_eq!(validate(), Validation::Unchanged, "nobody could read it: {number}");
            index.add_applied(&key(number));
        }
        let found = validate();
        // A removal beside the range is noticed where it was in a leaf of the range.
        let is_near = (350..=1_050).contains(&number) && is_removed;
        assert!(found == Validation::Unchanged || is_inside || is_near, "{number}");
        assert!(found == Validation::Changed || !is_inside, "{number}");
        if !is_removed {
            index.remove(&key(number));
        }
    }
}

#[test]
fn keys_are_counted_page_by_page_unless_others_change_them() {
    let index = OrderedIndex::new();
    (0..1_000).for_each(|number| index.add_applied(&key(number)));
    let count = |(from, to), leaves_max| {
        let (mut keys, mut from): (u64, Bound<Box<[u8]>>) = (0, from);
        loop {
            let start = from.as_ref().map(|key| &**key);
            let counted = index.count((start, to), owner(1), leaves_max)?;
            keys += counted.keys;
            match counted.next {
                Some(next) => from = Bound::Included(next),
                None => return Some(keys),
            }
        }
    };
    let (from, to) = (key(90), key(910));
    let some = || (Bound::Excluded(Box::from(from)), Bound::Included(&to[..]));
    let all = || (Bound::Unbounded, Bound::Unbounded);
    for leaves_max in [1, 3, 1_000] {
        assert_eq!(count(some(), leaves_max), Some(820));
        assert_eq!(count(all(), leaves_max), Some(1_000));
    }
    index.add_pending(&key(2_000), owner(2));
    assert_eq!((count(all(), 9), count(some(), 9)), (None, Some(820)));
    index.remove_pending(&key(2_000), owner(2));
    index.add_pending(&key(2_000), owner(1));
    assert_eq!(count(all(), 9), Some(1_000), "the own key that is pending");
    index.add_leaving(&key(500), owner(2));
    assert_eq!(
        (count(some(), 9), index.validate(ALL, 9_999, owner(1))),
        (None, Validation::Locked)
    );
    index.remove_leaving(&key(500), owner(1));
    assert_eq!(count(some(), 9), None);
    index.remove_leaving(&key(500), owner(2));
    assert_eq!(count(some(), 9), Some(820));
    index.add_leaving(&key(500), owner(2));
    index.remove(&key(500));
    assert_eq!(count(some(), 9), Some(819));
    index.add_leaving(&key(501), owner(2));
    index.end_dead(Owner::of_epoch(2));
    assert_eq!(count(some(), 9), Some(819));
}

#[test]
fn a_pending_key_is_seen_by_others_and_removed_by_its_owner_alone() {
    let index = OrderedIndex::new();
    index.add_pending(b"a", owner(1));
    let all = |reader| {
        let mut keys = 0;
        index.scan_leaf(ALL, Direction::Ascending, reader, |_| keys += 1);
        keys
    };
    assert_eq!((all(owner(1)), all(owner(2))), (0, 1));
    let validate = |reader| index.validate(ALL, 0, reader);
    assert_eq!(validate(owner(1)), Validation::Unchanged);
    assert_eq!(validate(owner(2)), Validation::Locked);
    index.remove_pending(b"a", owner(2));
    assert_eq!(all(owner(2)), 1);
    // A new holder of the bucket's lock takes the entry over.
    index.add_pending(b"a", owner(2));
    index.remove_pending(b"a", owner(1));
    index.add_applied(b"a");
    assert_eq!((all(owner(2)), all(owner(1))), (1, 1));
    assert_eq!(validate(owner(1)), Validation::Changed);
    assert_eq!(index.validate(ALL, index.number(), owner(1)), Validation::Unchanged);
}

#[test]
fn what_has_come_and_gone_is_noticed_though_its_leaf_has_split_or_vanished() {
    let index = OrderedIndex::new();
    (0..1_000).for_each(|number| index.add_applied(&key(number)));
    let range = |number: u16| (key(number), key(number + 1));
    for number in (1_000..3_000_u16).step_by(10) {
        let (from, to) = range(number);
        let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
        let before = index.number();
        // Leaves beyond the last key split as they fill, and vanish when they are empty.
        (number..number + 200).for_each(|it| index.add_applied(&key(it)));
        (number..number + 200).for_each(|it| index.remove(&key(it)));
        assert_eq!(index.validate(range, before, owner(9)), Validation::Changed, "{number}");
    }
    (0..1_000).for_each(|number| index.remove(&key(number)));
    let keys = keys_of(&index, Bound::Unbounded, Bound::Unbounded, Direction::Ascending);
    assert_eq!((keys.len(), index.directory.read().iter().count()), (0, 1));
}

#[test]
fn keys_take_no_more_memory_than_is_counted_for_them() {
    let index = OrderedIndex::new();
    let counted: usize = (0..20_000_u64)
        .map(|number| {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            let key = &hash[..3 + (number % 6) as usize];
            index.add_applied(key);
            OrderedIndex::entry_bytes(key.len())
        })
        .sum();
    let (keys, bytes) = index.memory();
    assert!(keys > 19_000 && (12 * keys..=counted).contains(&bytes), "{bytes} of {counted}");
}
