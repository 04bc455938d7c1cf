//! The catalog: the definitions of tables, read and changed in transactions like any other data.
//!
//! ```text
//! engine's table       key                      value
//! sql catalog          01 number (4 bytes)      version, 8 bytes, big-endian; a copy in each partition
//!                      03 table (4 bytes)       the table's descriptor, JSON
//!                      05 storage (4 bytes)     work that is not finished: see `execute/unfinished`
//! sql counters         04 counter (4 bytes)     the last value handed out, 8 bytes, big-endian
//! each table's own     primary key              the row
//! each index's own     see `descriptor`
//! ```
//! A *storage* is the number of the engine's table with the rows of a table, or with the entries of an index.
//!
//! Every transaction depends on the nearest copy of the version, which costs no message. A change of the catalog writes all
//! copies, so one of two concurrent changes meets a conflict. A statement that was planned with an older version is planned
//! and run again.
//!
//! *Invariants*: names are unique, because a change reads the whole catalog. Objects take their numbers from a counter that
//! no rollback undoes, so no number is used twice.
//!
//! *Not here*: the definitions that change the catalog (`execute/define`, `execute/alter`); the tables of `pg_catalog`
//! (`system`).

mod descriptor;
pub(crate) mod system;
mod version;

pub(crate) use descriptor::{AsSerial, Check, Column, Counter, Default, Index, PrimaryKey, Table};

pub(crate) use version::{SeenVersions, VersionKeys};

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use gannet_engine::{Coordinator, Deferred, Direction, KeyRange, TableId};
use gannet_rules::rule;

use crate::error::{Failure, SqlError};

const TABLE: u8 = 0x03;
const COUNTER: u8 = 0x04;
const WORK: u8 = 0x05;

/// The counter of objects' numbers.
pub(crate) const OBJECT_COUNTER: u32 = 0;
/// Object numbers up to this are PostgreSQL's own.
pub(crate) const OBJECTS_RESERVED: u32 = 16_383;
/// Descriptors per page when the catalog is read.
const PAGE_ROWS: usize = 256;

/// The key of a table's descriptor.
pub(crate) fn table_key(table: u32) -> Vec<u8> {
    numbered(TABLE, table)
}

/// The key of a counter.
pub(crate) fn counter_key(counter: u32) -> Vec<u8> {
    numbered(COUNTER, counter)
}

/// The key of work on a storage.
pub(crate) fn work_key(storage: TableId) -> Vec<u8> {
    numbered(WORK, storage.number())
}

/// The first of all keys of work, and the first key after them.
pub(crate) fn work_keys() -> (Vec<u8>, Vec<u8>) {
    (vec![WORK], vec![WORK + 1])
}

/// The storage that the work with a key concerns.
pub(crate) fn work_of(key: &[u8]) -> Option<TableId> {
    let storage = key.get(1..)?.try_into().ok()?;
    Some(TableId::from_number(u32::from_be_bytes(storage)))
}

fn numbered(space: u8, number: u32) -> Vec<u8> {
    let mut key = Vec::with_capacity(5);
    key.push(space);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The tables, at one version.
#[derive(Clone, Debug)]
pub(crate) struct Catalog {
    /// Counts the changes.
    pub(crate) version: u64,
    /// Whether it contains changes of a transaction that has not committed.
    pub(crate) private: bool,
    tables: BTreeMap<String, Arc<Table>>,
}

impl Catalog {
    /// A catalog without tables.
    pub(crate) fn empty() -> Self {
        Self { version: 0, private: false, tables: BTreeMap::new() }
    }

    /// The table with that name.
    pub(crate) fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.get(name)
    }

    /// The tables by name.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.values()
    }

    /// The storages of all tables and indexes.
    pub(crate) fn storages(&self) -> impl Iterator<Item = TableId> {
        self.tables().flat_map(|table| table.storages())
    }

    /// The table with that name, or an error with a hint.
    ///
    /// # Errors
    /// SQLSTATE 42P01.
    pub(crate) fn require(&self, name: &str) -> Result<&Arc<Table>, SqlError> {
        self.table(name).ok_or_else(|| {
            SqlError::new("42P01", format!("relation \"{name}\" does not exist"))
                .did_you_mean(name, self.tables.keys().map(String::as_str))
        })
    }

    /// The table with that number.
    pub(crate) fn table_numbered(&self, id: u32) -> Option<&Arc<Table>> {
        self.tables().find(|table| table.id == id)
    }

    /// The table of an index, and the index's number in that table.
    pub(crate) fn index_owner(&self, name: &str) -> Option<(&Arc<Table>, usize)> {
        self.tables().find_map(|table| {
            let number = table.indexes.iter().position(|index| index.name == name)?;
            Some((table, number))
        })
    }

    /// The counter with that name (`table_column_seq`).
    pub(crate) fn counter(&self, name: &str) -> Option<u32> {
        let mut columns = self.tables().flat_map(|table| &table.columns);
        columns.find_map(|column| {
            column.counter.as_ref().filter(|counter| counter.name == name).map(|counter| counter.id)
        })
    }

    /// Whether a table, index or counter has that name.
    pub(crate) fn has_relation(&self, name: &str) -> bool {
        self.tables.contains_key(name)
            || self.index_owner(name).is_some()
            || self.counter(name).is_some()
            || self.tables().any(|t| t.primary_key.as_ref().is_some_and(|key| key.name == name))
    }

    /// A name that no relation has: the given one, with a number appended if necessary.
    pub(crate) fn free_name(&self, name: &str, taken: &[String]) -> String {
        let is_free = |name: &str| !self.has_relation(name) && !taken.iter().any(|t| t == name);
        if is_free(name) {
            return name.to_owned();
        }
        (1..)
            .map(|number| format!("{name}{number}"))
            .find(|name| is_free(name))
            .expect("there are more numbers than relations")
    }

    /// Adds a table, or replaces the table with the same number.
    pub(crate) fn put(&mut self, table: Table) {
        self.remove(table.id);
        self.tables.insert(table.name.clone(), Arc::new(table));
    }

    /// Removes a table.
    pub(crate) fn remove(&mut self, id: u32) {
        self.tables.retain(|_, table| table.id != id);
    }

    /// Decodes a copy of the version; 0 before the first change.
    ///
    /// # Errors
    /// SQLSTATE XX001 if the bytes are not a version.
    pub(crate) fn version_from_bytes(bytes: Option<&[u8]>) -> Result<u64, SqlError> {
        let Some(bytes) = bytes else { return Ok(0) };
        let version = bytes.try_into();
        let version =
            version.map_err(|_| SqlError::new("XX001", "the catalog's version is malformed"))?;
        Ok(u64::from_be_bytes(version))
    }

    /// Reads the whole catalog in a transaction.
    ///
    /// # Errors
    /// The engine's, or SQLSTATE XX001 for malformed descriptors.
    pub(crate) fn load(
        coordinator: &mut Coordinator<'_>,
        deferred: &mut Deferred,
        (table, versions): (TableId, &VersionKeys),
    ) -> Result<Self, Failure> {
        let key = versions.near(coordinator.home_partition());
        let version = deferred.get_many(coordinator, table, std::slice::from_ref(key))?;
        let version = Self::version_from_bytes(version[0].as_deref())?;
        let mut catalog = Self { version, ..Self::empty() };
        let mut rest = Some(KeyRange {
            from: Bound::Included(vec![TABLE]),
            to: Bound::Excluded(vec![TABLE + 1]),
        });
        while let Some(range) = rest {
            let page =
                deferred.scan(coordinator, table, &range, Direction::Ascending, PAGE_ROWS)?;
            for (_, bytes) in page.rows.iter() {
                let table: Table = serde_json::from_slice(bytes).map_err(|error| {
                    SqlError::new("XX001", format!("a table's descriptor is malformed: {error}"))
                })?;
                catalog.put(table);
            }
            rest = page.rest;
        }
        Ok(catalog)
    }

    /// Writes a new version with some tables changed or removed.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) fn write(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        deferred: &mut Deferred,
        (engine_table, versions): (TableId, &VersionKeys),
        changed: &[u32],
    ) -> Result<(), Failure> {
        self.version += 1;
        self.private = true;
        let mut keys = versions.all().to_vec();
        keys.extend(changed.iter().copied().map(table_key));
        // The engine requires that a key is read before it is written.
        deferred.get_many(coordinator, engine_table, &keys)?;
        let written = if rule!(ALL_CATALOG_VERSIONS) { versions.all().len() } else { 1 };
        for key in &versions.all()[..written] {
            deferred.put(engine_table, key.clone(), self.version.to_be_bytes().to_vec());
        }
        for id in changed {
            match self.table_numbered(*id) {
                Some(table) => {
                    let bytes = serde_json::to_vec(&**table).map_err(|error| {
                        SqlError::new(
                            "XX000",
                            format!("a descriptor could not be written: {error}"),
                        )
                    })?;
                    deferred.put(engine_table, table_key(*id), bytes);
                }
                None => deferred.delete(engine_table, table_key(*id)),
            }
        }
        Ok(())
    }
}
