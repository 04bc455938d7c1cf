//! Something for each table, by the table's number. A copy shares all parts that do not change.
//!
//! ```text
//! number     slot (20 bits) | use (12 bits)       a slot is used again under the next number, at most 4,096 times
//! ByNumber   first part, other parts ─► 256 slots each    a change copies one part, and the list of the others
//! ```
//! So a cluster can create 2^32 tables in its life, one of the first 256 is found with two loads, and the next view of
//! 65,536 tables costs as much as one of a few hundred.
//!
//! *Invariant*: what is stored under a number is found under that number alone, not under another one of the same slot.
//!
//! *Not here*: which number a new table gets (`configuration/tables.rs`).

use std::sync::Arc;

/// Slots of a cluster.
pub(crate) const SLOTS_MAX: usize = 1 << (u32::BITS - USE_BITS);
/// Tables that a slot has, one after the other.
pub(crate) const USES_MAX: u32 = 1 << USE_BITS;

const USE_BITS: u32 = 12;
/// Slots of a part.
const PART_SLOTS: usize = 256;

type Part<T> = [Option<(u32, T)>; PART_SLOTS];

/// Values by numbers of tables.
#[derive(Clone, Debug)]
pub(crate) struct ByNumber<T> {
    first: Arc<Part<T>>,
    others: Vec<Arc<Part<T>>>,
}

impl<T> Default for ByNumber<T> {
    fn default() -> Self {
        Self { first: empty_part(), others: Vec::new() }
    }
}

fn empty_part<T>() -> Arc<Part<T>> {
    Arc::new([const { None }; PART_SLOTS])
}

/// The number of the slot's table with that use.
pub(crate) fn number_of(slot: usize, usage: u32) -> u32 {
    let slot = u32::try_from(slot).ok().filter(|_| slot < SLOTS_MAX && usage < USES_MAX);
    slot.expect("a slot and a use have bits for their numbers") << USE_BITS | usage
}

/// The slot of a table.
#[inline(always)]
pub(crate) fn slot_of(number: u32) -> usize {
    (number >> USE_BITS) as usize
}

impl<T> ByNumber<T> {
    /// What is stored for a table.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = slot_of(number);
        let part = if slot < PART_SLOTS { &self.first } else { self.other_part(slot)? };
        let (own, value) = part[slot % PART_SLOTS].as_ref()?;
        (*own == number).then_some(value)
    }

    /// The part of a slot that is not in the first one.
    #[inline(never)]
    fn other_part(&self, slot: usize) -> Option<&Arc<Part<T>>> {
        self.others.get(slot / PART_SLOTS - 1)
    }

    fn parts(&self) -> impl Iterator<Item = &Arc<Part<T>>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// All values, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.parts().flat_map(|part| part.iter());
        slots.filter_map(|slot| slot.as_ref().map(|(number, value)| (*number, value)))
    }

    /// The values of parts that the two do not share, by number. Those in parts that are shared are the same in both.
    pub(crate) fn iter_unshared<'s>(
        &'s self,
        other: &'s Self,
    ) -> impl Iterator<Item = (u32, &'s T)> {
        let is_unshared = |(number, part): &(usize, &Arc<Part<T>>)| {
            other.parts().nth(*number).is_none_or(|other| !Arc::ptr_eq(part, other))
        };
        let slots = self.parts().enumerate().filter(is_unshared);
        let slots = slots.flat_map(|(_, part)| part.iter());
        slots.filter_map(|slot| slot.as_ref().map(|(number, value)| (*number, value)))
    }
}

impl<T: Clone> ByNumber<T> {
    /// Stores something for a table, in place of what its slot had.
    pub(crate) fn insert(&mut self, number: u32, value: T) {
        let slot = slot_of(number);
        while self.others.len() < slot / PART_SLOTS {
            self.others.push(empty_part());
        }
        self.slot_mut(slot).replace((number, value));
    }

    /// Removes what is stored for a table.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        self.slot_mut(slot_of(number)).take().map(|(_, value)| value)
    }

    /// The slot, in a part that nobody else has.
    fn slot_mut(&mut self, slot: usize) -> &mut Option<(u32, T)> {
        let part = match slot / PART_SLOTS {
            0 => &mut self.first,
            number => &mut self.others[number - 1],
        };
        &mut Arc::make_mut(part)[slot % PART_SLOTS]
    }
}

impl<T: PartialEq> PartialEq for ByNumber<T> {
    fn eq(&self, other: &Self) -> bool {
        let differs = |of: &Self, other: &Self| {
            of.iter_unshared(other).any(|(number, value)| other.get(number) != Some(value))
        };
        !differs(self, other) && !differs(other, self)
    }
}

impl<T: Eq> Eq for ByNumber<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_under_its_number_alone() {
        let mut values = ByNumber::default();
        for slot in [0, 1, 255, 256, 70_000] {
            values.insert(number_of(slot, 3), slot);
        }
        let last = number_of(70_000, 3);
        assert_eq!(values.get(last), Some(&70_000));
        for other in
            [last - 1, last + 1, number_of(69_999, 3), number_of(SLOTS_MAX - 1, USES_MAX - 1)]
        {
            assert_eq!(values.get(other), None, "{other}");
            assert_eq!(values.remove(other), None, "{other}");
        }
        let found: Vec<_> = values.iter().map(|(number, _)| slot_of(number)).collect();
        assert_eq!(found, [0, 1, 255, 256, 70_000]);
        values.insert(last + 1, 7);
        assert_eq!((values.get(last), values.get(last + 1)), (None, Some(&7)));
        assert_eq!(values.remove(last + 1), Some(7));
        assert_eq!(values.iter().count(), 4);
    }

    #[test]
    fn a_change_is_seen_in_one_part_and_not_in_the_copy() {
        let mut values = ByNumber::default();
        (0..1_000).for_each(|slot| values.insert(number_of(slot, 0), slot));
        let copy = values.clone();
        assert_eq!(values, copy);
        assert_eq!(values.iter_unshared(&copy).count(), 0);
        values.insert(number_of(300, 1), 7);
        assert_ne!(values, copy);
        assert_eq!(copy.get(number_of(300, 0)), Some(&300));
        assert_eq!(values.iter_unshared(&copy).count(), PART_SLOTS);
        values.remove(number_of(300, 1));
        assert_ne!(values, copy);
        assert_ne!(copy, values);
        values.insert(number_of(300, 0), 300);
        assert_eq!(values, copy, "parts with the same values are equal, shared or not");
    }
}
