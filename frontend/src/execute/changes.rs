//! The catalog while a definition changes it, and the builds that remain.
//!
//! *Invariants*: the changes are made to a copy of the catalog that the transaction depends on. `write` puts the changed
//! tables and the next version into the transaction, and nothing if no table has changed; others see the changes with the
//! commit. A build goes on only while its declaration is there. A number of an object is given once.
//!
//! *Not here*: the definitions (`define`, `alter`); the builds (`build`, `online`); how the catalog is stored
//! (`catalog`).

use std::sync::Arc;

use gannet_engine::TableId;
use serde::{Deserialize, Serialize};

use crate::catalog::{Catalog, OBJECT_COUNTER, OBJECTS_RESERVED, Table};
use crate::error::{Failure, SqlError};
use crate::execute::Context;

/// A catalog that is being changed.
pub(super) struct Changes {
    pub(super) catalog: Catalog,
    changed: Vec<u32>,
    pub(super) notices: Vec<String>,
    /// Whether large builds take place after the commit.
    pub(super) builds_later: bool,
    pub(super) build: Option<Build>,
}

/// A build that follows a declaration.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Build {
    /// The entries of an index that is not ready.
    Index { table: u32, index: u32, storage: u32 },
    /// The rows of a frozen table, in their future storage and under their future primary key.
    PrimaryKey { frozen: Box<Table>, rebuilt: Box<Table> },
}

impl Build {
    /// The number of the table.
    pub(super) fn table(&self) -> u32 {
        match self {
            Self::Index { table, .. } => *table,
            Self::PrimaryKey { frozen, .. } => frozen.id,
        }
    }

    /// What it fills.
    pub(super) fn storages(&self) -> Vec<TableId> {
        match self {
            Self::Index { storage, .. } => vec![TableId::from_number(*storage)],
            Self::PrimaryKey { rebuilt, .. } => rebuilt.storages().collect(),
        }
    }

    /// The first of those.
    pub(super) fn storage(&self) -> TableId {
        self.storages()[0]
    }
}

impl Changes {
    pub(super) fn new(builds_later: bool, context: &mut Context<'_, '_>) -> Result<Self, Failure> {
        context.check_version()?;
        let catalog = context.catalog().clone();
        let (changed, notices) = (Vec::new(), Vec::new());
        Ok(Self { catalog, changed, notices, builds_later, build: None })
    }

    /// Writes the changes in the transaction; returns the notices.
    pub(super) fn write(self, context: &mut Context<'_, '_>) -> Result<Vec<String>, Failure> {
        let Self { mut catalog, changed, notices, .. } = self;
        if !changed.is_empty() {
            let database = &context.resources.database;
            let place = (database.catalog_table, &database.versions);
            let deferred = &mut context.transaction.deferred;
            catalog.write(context.coordinator, deferred, place, &changed)?;
            context.transaction.catalog = Some(Arc::new(catalog));
        }
        Ok(notices)
    }

    /// The table of a build, as it was declared.
    pub(super) fn declared(&self, build: &Build) -> Result<Table, SqlError> {
        let table = match build {
            Build::Index { table, .. } => self.catalog.table_numbered(*table),
            Build::PrimaryKey { frozen, .. } => self.catalog.table_numbered(frozen.id),
        };
        let is_declared = |table: &&Arc<Table>| match build {
            Build::Index { index, .. } => table.indexes.iter().any(|i| i.id == *index && !i.ready),
            Build::PrimaryKey { .. } => table.frozen,
        };
        table.filter(is_declared).map(|table| Table::clone(table)).ok_or_else(changed_meanwhile)
    }

    pub(super) fn put(&mut self, table: Table) {
        self.changed.push(table.id);
        self.catalog.put(table);
    }

    pub(super) fn remove(&mut self, table: u32) {
        self.changed.push(table);
        self.catalog.remove(table);
    }

    /// Whether a relation with that name is to be created.
    pub(super) fn is_new(&mut self, name: &str, if_not_exists: bool) -> Result<bool, SqlError> {
        if !self.catalog.has_relation(name) {
            return Ok(true);
        }
        let message = format!("relation \"{name}\" already exists");
        if !if_not_exists {
            return Err(SqlError::new("42P07", message));
        }
        self.notices.push(format!("{message}, skipping"));
        Ok(false)
    }

    /// A table to change; None if the table is missing and may be.
    pub(super) fn table(&mut self, name: &str, if_exists: bool) -> Result<Option<Table>, SqlError> {
        match self.catalog.require(name) {
            Ok(table) => Ok(Some(Table::clone(table))),
            Err(_) if if_exists => {
                self.notices.push(format!("relation \"{name}\" does not exist, skipping"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A number for a new object.
pub(super) fn new_object(context: &mut Context<'_, '_>) -> Result<u32, Failure> {
    let database = Arc::clone(&context.resources.database);
    let number = database.next_value(context.coordinator, OBJECT_COUNTER)?;
    u32::try_from(number)
        .ok()
        .and_then(|number| number.checked_add(OBJECTS_RESERVED))
        .ok_or_else(|| SqlError::new("54000", "all object numbers are taken").into())
}

/// The error for a table that another definition has changed during a build.
pub(super) fn changed_meanwhile() -> SqlError {
    SqlError::new("55006", "the table was changed by another definition while this one was built")
        .with_hint("run the statement again")
}
