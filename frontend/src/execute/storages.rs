//! The engine's tables behind those of SQL: each table has one for its rows, and one for each index.
//!
//! ```text
//! CREATE  create the engine's table ─► COMMIT, which puts it into the catalog
//! DROP                                 COMMIT, which takes it out of the catalog ─► drop the engine's table
//! name    sql <number> <node>.<incarnation>       of the process that has created it
//! ```
//! When a process ends between the two steps, another one drops the table: one that no catalog has got is known by its creator's name,
//! and one that the catalog has lost by a row of unfinished work.
//!
//! *Invariants*: no transaction uses a table of the engine before the catalog has it, but the one that puts it there. Once the catalog
//! has lost it, no transaction that uses it can commit. A table that is created and gets into no catalog is dropped.
//!
//! *Not here*: rows of unfinished work (`unfinished`).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gannet_engine::{ChangeError, ClusterError, Configuration, Coordinator, TableId};

use crate::catalog::Table;
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::Context;
use crate::execute::changes::new_object;
use crate::execute::transaction::committed;
use crate::execute::unfinished::{Owner, forget};

/// What the names of these tables begin with.
const NAME: &str = "sql ";

/// A new table of the engine, which belongs to the transaction until the catalog has it.
///
/// # Errors
/// SQLSTATE 53200 if there is no room, 54000 if there are too many tables, 57P03 if the cluster has halted.
pub(super) fn new_storage(context: &mut Context<'_, '_>) -> Result<u32, Failure> {
    let spare = context.resources.spares.borrow_mut().take_one();
    if let Some(spare) = spare {
        context.transaction.created.add(&context.resources.database, spare);
        return Ok(spare.number());
    }
    let number = new_object(context)?;
    let database = &context.resources.database;
    let Owner { node, incarnation } = Owner::of(context.coordinator, database);
    let name = format!("{NAME}{number} {node}.{incarnation}");
    let created = database.cluster.create_ordered_table_in(context.coordinator, &name, 0);
    let storage = created.map_err(refusal)?;
    context.transaction.created.add(database, storage);
    Ok(storage.number())
}

/// Gives a table and its indexes new tables of the engine, which are empty.
///
/// # Errors
/// As [`new_storage`].
pub(super) fn renew_storages(
    table: &mut Table,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    table.storage = new_storage(context)?;
    for index in &mut table.indexes {
        index.storage = new_storage(context)?;
    }
    Ok(())
}

fn refusal(error: ClusterError) -> SqlError {
    let code = match &error {
        ClusterError::Change(ChangeError::TooManyTables(_) | ChangeError::NoMoreTables) => "54000",
        ClusterError::Storage(_) | ClusterError::Change(_) => "53200",
        ClusterError::Join(_) => "57P03",
        ClusterError::Thread(_) => "53000",
        _ => "XX000",
    };
    SqlError::new(code, error.to_string())
}

/// Tables of the engine that the transaction has created, and that no other transaction knows. They are dropped with this, unless the
/// catalog has got them.
#[derive(Default)]
pub(crate) struct Created {
    database: Option<Arc<Database>>,
    tables: BTreeSet<TableId>,
}

impl Created {
    fn add(&mut self, database: &Arc<Database>, table: TableId) {
        self.database.get_or_insert_with(|| Arc::clone(database));
        lock(&database.storages.created).insert(table);
        self.tables.insert(table);
    }

    fn take_one(&mut self) -> Option<TableId> {
        self.tables.pop_first()
    }

    /// Takes all of those that a run has created which did not commit.
    pub(super) fn add_all(&mut self, others: &mut Self) {
        if !others.is_empty() {
            self.database = others.database.take();
            self.tables.append(&mut others.tables);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    pub(crate) fn contains(&self, table: TableId) -> bool {
        self.tables.contains(&table)
    }

    /// The transaction has committed: these are everybody's now.
    pub(crate) fn keep(&mut self, tables: impl Iterator<Item = TableId>) {
        let Some(database) = &self.database else { return };
        let mut created = lock(&database.storages.created);
        for table in tables.filter(|table| self.tables.remove(table)) {
            created.remove(&table);
        }
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if let Some(database) = self.database.take() {
            let tables = std::mem::take(&mut self.tables);
            Storages::discard(&database, tables.into_iter().collect());
        }
    }
}

/// The tables of the engine that the process has created, or is to drop.
#[derive(Default)]
pub(crate) struct Storages {
    /// Those that the catalog may get.
    created: Mutex<BTreeSet<TableId>>,
    discarded: Mutex<Discarded>,
}

/// Those that it is to drop, and whether a job does that.
#[derive(Default)]
struct Discarded {
    tables: BTreeSet<TableId>,
    is_served: bool,
}

impl Discarded {
    /// A table to drop. If there is none, the job ends.
    fn next(&mut self) -> Option<TableId> {
        let next = self.tables.first().copied();
        self.is_served = next.is_some();
        next
    }
}

/// Nothing panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storages {
    /// Has tables of the engine dropped that the catalog does not have, and will not; but a transaction that is lost with its node may have
    /// committed all the same.
    pub(crate) fn discard(database: &Arc<Database>, tables: Vec<TableId>) {
        let mut discarded = lock(&database.storages.discarded);
        discarded.tables.extend(tables);
        if discarded.tables.is_empty() || std::mem::replace(&mut discarded.is_served, true) {
            return;
        }
        drop(discarded);
        // A job that never runs must not keep its own cluster.
        let serving = Serving(Arc::downgrade(database));
        // If there is no room for the job, the settler has another one run.
        let _ = database.cluster.spawn_anywhere(move |coordinator| serving.run(coordinator));
    }

    /// Whether the process has created a table that the catalog may get.
    fn may_be_committed(&self, table: TableId) -> bool {
        lock(&self.created).contains(&table)
    }
}

/// The job that drops what is discarded.
struct Serving(Weak<Database>);

impl Serving {
    fn run(&self, coordinator: &mut Coordinator<'_>) {
        while let Some(database) = self.0.upgrade() {
            let Some(table) = lock(&database.storages.discarded).next() else { return };
            let dropped = match is_in_catalog(coordinator, &database, table) {
                Ok(false) => drop_storage(coordinator, &database, table),
                Ok(true) => Ok(()),
                Err(failure) => Err(failure),
            };
            // What fails is tried again with the next job.
            if dropped.is_err() {
                return;
            }
            lock(&database.storages.discarded).tables.remove(&table);
            lock(&database.storages.created).remove(&table);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(database) = self.0.upgrade() {
            lock(&database.storages.discarded).is_served = false;
        }
    }
}

/// Whether a table or an index of the newest catalog has a table of the engine.
fn is_in_catalog(
    coordinator: &mut Coordinator<'_>,
    database: &Database,
    storage: TableId,
) -> Result<bool, Failure> {
    if database.newest_version(coordinator)? > database.version() {
        database.reload(coordinator)?;
    }
    Ok(database.catalog().storages().any(|used| used == storage))
}

/// Drops a table of the engine that the catalog has lost, and then the row that tells so, if there is one.
///
/// # Errors
/// The engine's. The row remains then.
pub(super) fn drop_storage(
    coordinator: &mut Coordinator<'_>,
    database: &Database,
    storage: TableId,
) -> Result<(), Failure> {
    match database.cluster.drop_table_in(coordinator, storage) {
        // Another process may have dropped it.
        Ok(()) | Err(ClusterError::Change(ChangeError::NoSuchTable(_))) => {}
        Err(error) => return Err(refusal(error).into()),
    }
    committed(coordinator, |coordinator, deferred| {
        forget(deferred, coordinator, database, storage).map_err(Failure::from)
    })
    .map(drop)
}

/// Drops the tables of the engine that processes have created which are no members any more, and that neither the catalog nor a build
/// has got.
///
/// # Errors
/// The engine's; what is left is found again.
pub(super) fn drop_orphans(
    database: &Arc<Database>,
    coordinator: &mut Coordinator<'_>,
    filled: &BTreeSet<TableId>,
) -> Result<(), Failure> {
    let configuration = database.cluster.configuration();
    let is_orphan =
        |table: &TableId| !database.storages.may_be_committed(*table) && !filled.contains(table);
    // Whatever those processes have committed is there: the epoch in which they are no members has begun.
    for table in of_lost_nodes(&configuration).filter(is_orphan) {
        if !is_in_catalog(coordinator, database, table)? {
            drop_storage(coordinator, database, table)?;
        }
    }
    Ok(())
}

/// The tables whose creators are no members any more.
fn of_lost_nodes(configuration: &Configuration) -> impl Iterator<Item = TableId> {
    let creator = |name: &str| {
        let (_, process) = name.strip_prefix(NAME)?.split_once(' ')?;
        let (node, incarnation) = process.split_once('.')?;
        Some(Owner { node: node.parse().ok()?, incarnation: incarnation.parse().ok()? })
    };
    configuration.tables().filter_map(move |(number, entry)| {
        let owner = creator(&entry.definition.name)?;
        (!owner.is_member(configuration)).then(|| TableId::from_number(number))
    })
}

#[cfg(test)]
mod tests;
