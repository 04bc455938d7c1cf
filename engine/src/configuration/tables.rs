//! The tables of a configuration: their numbers, and their names.
//!
//! *Invariants*: a number is never given to a second table. A name has one table. A new table gets the lowest slot that is free, so that
//! views of few tables are small. All tables have room in a message.
//!
//! *Not here*: what a number consists of (`by_number`), and when a table is removed (`configuration`).

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use serde::{Deserialize, Serialize};

use crate::by_number::{ByNumber, SLOTS_MAX, USES_MAX, number_of, slot_of};
use crate::configuration::{ChangeError, TableEntry};

/// Bytes of all tables as they are sent. A configuration is sent whole, in one message of at most 8 MiB, when a member is lost: no table
/// may make it larger.
const STORED_BYTES_MAX: usize = 6 << 20;
/// Most bytes of a slot that has no table any more.
const SLOT_BYTES: usize = 3;
/// Most bytes of a table without its name, its slot included.
pub(super) const TABLE_BYTES: usize = 24 + SLOT_BYTES;

/// Tables by number and by name. A copy costs little, however many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub(super) struct Tables {
    entries: ByNumber<Arc<TableEntry>>,
    names: OrdMap<Arc<str>, u32>,
    /// By slot: how many tables it has had, at least one.
    uses: OrdMap<usize, u32>,
    /// Slots that had a table, have none, and can have another one.
    free: OrdSet<usize>,
    /// Bytes of all names.
    name_bytes: usize,
}

/// Tables as they are sent and stored: how many each slot has had, and the one that it has.
#[derive(Clone, Serialize, Deserialize)]
struct Stored(Vec<(u32, Option<Arc<TableEntry>>)>);

impl Tables {
    pub(super) fn count(&self) -> usize {
        self.names.len()
    }

    pub(super) fn get(&self, number: u32) -> Option<&TableEntry> {
        self.entries.get(number).map(|entry| &**entry)
    }

    pub(super) fn named(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// Whether no table has had that number yet, and one can get it.
    pub(super) fn is_to_come(&self, number: u32) -> bool {
        self.uses
            .get(&slot_of(number))
            .is_none_or(|uses| number_of(slot_of(number), *uses - 1) < number)
    }

    /// By number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &TableEntry)> {
        self.entries.iter().map(|(number, entry)| (number, &**entry))
    }

    /// Those that others may not have, by number; many of them the others have all the same.
    pub(super) fn iter_unshared<'s>(
        &'s self,
        others: &'s Self,
    ) -> impl Iterator<Item = (u32, &'s TableEntry)> {
        let entries = self.entries.iter_unshared(&others.entries);
        entries.map(|(number, entry)| (number, &**entry))
    }

    /// Adds a table, whose name no other has.
    ///
    /// # Errors
    /// [`ChangeError::TooManyTables`], [`ChangeError::NoMoreTables`].
    pub(super) fn create(&mut self, entry: TableEntry) -> Result<(), ChangeError> {
        let unused = self.uses.len();
        let slot = self.free.get_min().copied().unwrap_or(unused);
        if slot == SLOTS_MAX {
            return Err(ChangeError::NoMoreTables);
        }
        let name_bytes = self.name_bytes + entry.definition.name.len();
        let (tables, slots) = (self.count() + 1, unused.max(slot + 1));
        let bytes = name_bytes + tables * TABLE_BYTES + (slots - tables) * SLOT_BYTES;
        if bytes > STORED_BYTES_MAX {
            return Err(ChangeError::TooManyTables(STORED_BYTES_MAX));
        }
        self.name_bytes = name_bytes;
        let usage = self.uses.get(&slot).copied().unwrap_or(0);
        let number = number_of(slot, usage);
        self.free.remove(&slot);
        self.uses.insert(slot, usage + 1);
        self.names.insert(Arc::from(&*entry.definition.name), number);
        self.entries.insert(number, Arc::new(entry));
        Ok(())
    }

    /// New transactions do not find the table.
    ///
    /// # Errors
    /// [`ChangeError::NoSuchTable`].
    pub(super) fn leave(&mut self, number: u32) -> Result<(), ChangeError> {
        let entry = self.get(number).ok_or(ChangeError::NoSuchTable(number))?;
        let left = TableEntry { is_leaving: true, ..entry.clone() };
        self.entries.insert(number, Arc::new(left));
        Ok(())
    }

    /// Removes a table that was left.
    ///
    /// # Errors
    /// [`ChangeError::NoSuchTable`], also if the table was not left.
    pub(super) fn remove(&mut self, number: u32) -> Result<(), ChangeError> {
        let left = self.get(number).filter(|table| table.is_leaving);
        let name = left.ok_or(ChangeError::NoSuchTable(number))?.definition.name.clone();
        self.names.remove(&*name);
        self.name_bytes -= name.len();
        self.entries.remove(number);
        let slot = slot_of(number);
        if self.uses.get(&slot).is_some_and(|uses| *uses < USES_MAX) {
            self.free.insert(slot);
        }
        Ok(())
    }
}

/// No tables of a configuration were stored.
#[derive(Debug, thiserror::Error)]
#[error("slot {0} has a number that no table has, or a name that another table has")]
struct Malformed(usize);

impl TryFrom<Stored> for Tables {
    type Error = Malformed;

    fn try_from(Stored(slots): Stored) -> Result<Self, Malformed> {
        let mut tables = Self::default();
        for (slot, (uses, entry)) in slots.into_iter().enumerate() {
            if slot >= SLOTS_MAX || !(1..=USES_MAX).contains(&uses) {
                return Err(Malformed(slot));
            }
            tables.uses.insert(slot, uses);
            match entry {
                Some(entry) => {
                    let (number, name) = (number_of(slot, uses - 1), &entry.definition.name);
                    if tables.names.insert(Arc::from(&**name), number).is_some() {
                        return Err(Malformed(slot));
                    }
                    tables.name_bytes += name.len();
                    tables.entries.insert(number, entry);
                }
                None if uses < USES_MAX => {
                    tables.free.insert(slot);
                }
                None => {}
            }
        }
        Ok(tables)
    }
}

impl From<Tables> for Stored {
    fn from(tables: Tables) -> Self {
        let slot = |(slot, uses): (&usize, &u32)| {
            (*uses, tables.entries.get(number_of(*slot, *uses - 1)).cloned())
        };
        Self(tables.uses.iter().map(slot).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gannet_storage::{TableDefinition, TableKind};
    use proptest::prelude::*;

    use super::*;

    fn entry(name: &str) -> TableEntry {
        let kind = TableKind::Ordered;
        let definition = TableDefinition {
            name: name.to_owned(),
            kind,
            value_bytes: 0,
            rows: 0,
            is_system: false,
        };
        TableEntry { definition, is_leaving: false }
    }

    fn drop_table(tables: &mut Tables, number: u32) {
        tables.leave(number).unwrap();
        tables.remove(number).unwrap();
    }

    #[test]
    fn a_slot_is_used_until_its_numbers_are_used_up() {
        let mut tables = Tables::default();
        let mut numbers = BTreeSet::new();
        for round in 0..2 * USES_MAX + 10 {
            let before = tables.clone();
            tables.create(entry("t")).unwrap();
            let number = tables.named("t").unwrap();
            assert_eq!(slot_of(number), (round / USES_MAX) as usize);
            assert!(before.is_to_come(number) && !tables.is_to_come(number));
            assert!(numbers.insert(number), "{number} was given twice");
            assert_eq!(tables.remove(number), Err(ChangeError::NoSuchTable(number)), "not left");
            drop_table(&mut tables, number);
            assert!(!tables.is_to_come(number), "it was there");
            assert_eq!(tables.leave(number), Err(ChangeError::NoSuchTable(number)));
        }
    }

    #[test]
    fn there_is_an_end_to_slots() {
        // Every slot has had all its tables but the last two, of which one has a table.
        let retired = (USES_MAX, None);
        let mut slots = vec![retired; SLOTS_MAX - 2];
        slots.extend([(USES_MAX - 1, None), (1, Some(Arc::new(entry("last"))))]);
        let mut tables = Tables::try_from(Stored(slots)).unwrap();
        tables.create(entry("t")).unwrap();
        assert_eq!(tables.named("t"), Some(number_of(SLOTS_MAX - 2, USES_MAX - 1)));
        assert_eq!(tables.create(entry("u")), Err(ChangeError::NoMoreTables));
        drop_table(&mut tables, number_of(SLOTS_MAX - 1, 0));
        tables.create(entry("u")).unwrap();
        assert_eq!(tables.named("u"), Some(number_of(SLOTS_MAX - 1, 1)));
    }

    #[test]
    fn a_configuration_never_outgrows_a_message() {
        let mut tables = Tables::default();
        let long = |number: usize| {
            let mut long = entry(&format!("{number:0>255}"));
            (long.definition.value_bytes, long.definition.rows) = (4_096, u64::MAX);
            long
        };
        let mut names = (0..).map(long);
        let refused = names.find_map(|entry| tables.create(entry).err());
        assert_eq!(refused, Some(ChangeError::TooManyTables(STORED_BYTES_MAX)));
        tables.iter().map(|(number, _)| number).collect::<Vec<_>>().into_iter().for_each(
            |number| {
                tables.leave(number).unwrap();
            },
        );
        let bytes = postcard::to_stdvec(&tables).unwrap().len();
        assert!((STORED_BYTES_MAX - (1 << 20)..STORED_BYTES_MAX).contains(&bytes), "{bytes}");
        let first = tables.iter().next().unwrap().0;
        tables.remove(first).unwrap();
        tables.create(names.next().unwrap()).unwrap();
    }

    #[test]
    fn what_no_tables_are_is_refused() {
        let refused = |slots: Vec<(u32, Option<&str>)>| {
            let slot =
                |(uses, name): (u32, Option<&str>)| (uses, name.map(|name| Arc::new(entry(name))));
            let bytes =
                postcard::to_stdvec(&Stored(slots.into_iter().map(slot).collect())).unwrap();
            postcard::from_bytes::<Tables>(&bytes).is_err()
        };
        assert!(!refused(vec![(1, Some("t")), (USES_MAX, None), (USES_MAX, Some("u"))]));
        assert!(refused(vec![(0, None)]), "no use");
        assert!(refused(vec![(USES_MAX + 1, None)]), "too many uses");
        assert!(refused(vec![(1, Some("t")), (1, Some("t"))]), "a name twice");
        assert!(refused(vec![(1, None); SLOTS_MAX + 1]), "too many slots");
    }

    proptest! {
        #[test]
        fn tables_are_the_same_after_they_were_sent(
            steps in proptest::collection::vec((0_u8..20, 0_u8..3), 1..200),
        ) {
            let mut tables = Tables::default();
            for (name, step) in steps {
                let name = name.to_string();
                match (tables.named(&name), step) {
                    (None, _) => tables.create(entry(&name)).unwrap(),
                    (Some(number), 0) => tables.leave(number).unwrap(),
                    (Some(number), _) => {
                        let is_leaving = tables.get(number).unwrap().is_leaving;
                        prop_assert_eq!(tables.remove(number).is_ok(), is_leaving);
                    }
                }
                let bytes = postcard::to_stdvec(&tables).unwrap();
                let sent: Tables = postcard::from_bytes(&bytes).unwrap();
                prop_assert_eq!(&sent, &tables);
                for (number, entry) in tables.iter() {
                    prop_assert_eq!(tables.named(&entry.definition.name), Some(number));
                }
                prop_assert_eq!(tables.iter().count(), tables.count());
            }
        }
    }
}
