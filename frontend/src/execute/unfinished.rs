//! Work that takes a node more than a transaction: a build, and the end of a storage. The catalog tells who does which.
//!
//! ```text
//! key     05 storage (4 bytes)
//! value   node (2 bytes) incarnation (4 bytes), big-endian; a build as JSON, or nothing: the storage is to be dropped
//! ```
//! When the node is no member any more, another one undoes its builds, and drops what it has not dropped.
//!
//! *Invariants*: the transaction that begins work writes its row, and the one that ends a build removes that row. So a declared
//! build has a row, and so has a storage that the catalog has lost and that is there.
//!
//! *Not here*: when another node looks for such work (`settler`, and `online` before a build).

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gannet_engine::{Abort, Configuration, Coordinator, Deferred, Direction, KeyRange, TableId};
use gannet_rules::rule;

use crate::catalog::{SeenVersions, work_key, work_keys, work_of};
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::changes::Build;
use crate::execute::online::{take_back, with_newest};
use crate::execute::storages::{drop_orphans, drop_storage};
use crate::execute::transaction::committed;
use crate::execute::{Context, Resources, Touched};
use crate::expression::function::Facts;
use crate::settings;

/// The epoch in which no node was lost yet.
pub(crate) const FIRST_EPOCH: u32 = 1;
/// Rows per page when all work is read.
const PAGE_ROWS: usize = 256;
/// The user as whom this work is done; it has no effect.
const USER: &str = "gannet";

/// The process that does some work.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    pub(super) node: u16,
    pub(super) incarnation: u32,
}

impl Owner {
    /// The node that a coordinator runs at.
    pub(super) fn of(coordinator: &Coordinator<'_>, database: &Database) -> Self {
        let node = coordinator.node();
        let configuration = database.cluster.configuration();
        let member = configuration.members.get(usize::from(node));
        Self { node, incarnation: member.map_or(0, |member| member.incarnation) }
    }

    pub(super) fn is_member(self, configuration: &Configuration) -> bool {
        let member = configuration.members.get(usize::from(self.node));
        configuration.is_member(self.node)
            && member.is_some_and(|member| member.incarnation == self.incarnation)
    }
}

/// Work that is not finished.
struct Work {
    storage: TableId,
    owner: Owner,
    /// None: the storage is to be dropped.
    build: Option<Build>,
}

impl Work {
    fn from_row(key: &[u8], value: &[u8]) -> Result<Self, SqlError> {
        let malformed = || SqlError::new("XX001", "a row of unfinished work is malformed");
        let (node, rest) = value.split_first_chunk().ok_or_else(malformed)?;
        let (incarnation, build) = rest.split_first_chunk().ok_or_else(malformed)?;
        let owner = Owner {
            node: u16::from_be_bytes(*node),
            incarnation: u32::from_be_bytes(*incarnation),
        };
        let build = if build.is_empty() {
            None
        } else {
            Some(serde_json::from_slice(build).map_err(|_| malformed())?)
        };
        Ok(Self { storage: work_of(key).ok_or_else(malformed)?, owner, build })
    }
}

/// Notes in a transaction that this node builds something.
///
/// # Errors
/// The engine's.
pub(super) fn note_build(build: &Build, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(build).map_err(|error| {
        SqlError::new("XX000", format!("a build could not be written: {error}"))
    })?;
    let database = &context.resources.database;
    context.transaction.filled_later = build.storages();
    let deferred = &mut context.transaction.deferred;
    note(deferred, context.coordinator, database, (build.storage(), &bytes)).map_err(Failure::from)
}

/// Notes in a transaction that this node drops a storage after the commit.
///
/// # Errors
/// The engine's.
pub(super) fn note_dropped(
    deferred: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    database: &Database,
    storage: TableId,
) -> Result<(), Abort> {
    note(deferred, coordinator, database, (storage, &[]))
}

fn note(
    deferred: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    database: &Database,
    (storage, build): (TableId, &[u8]),
) -> Result<(), Abort> {
    let owner = Owner::of(coordinator, database);
    let key = work_key(storage);
    // The engine requires that a key is read before it is written.
    deferred.get_many(coordinator, database.catalog_table, std::slice::from_ref(&key))?;
    let mut value = owner.node.to_be_bytes().to_vec();
    value.extend_from_slice(&owner.incarnation.to_be_bytes());
    value.extend_from_slice(build);
    deferred.put(database.catalog_table, key, value);
    Ok(())
}

/// Removes the row of work that the transaction ends. Whether there was one.
///
/// # Errors
/// The engine's.
pub(super) fn forget(
    deferred: &mut Deferred,
    coordinator: &mut Coordinator<'_>,
    database: &Database,
    storage: TableId,
) -> Result<bool, Abort> {
    let (table, key) = (database.catalog_table, work_key(storage));
    let found = deferred.get_many(coordinator, table, std::slice::from_ref(&key))?;
    let is_there = found.into_iter().next().flatten().is_some();
    if is_there {
        deferred.delete(table, key);
    }
    Ok(is_there)
}

/// Undoes the builds of nodes that are no members any more, and drops the storages that those were to drop.
///
/// # Errors
/// The engine's; what is left is found again.
pub(crate) fn settle(
    database: &Arc<Database>,
    coordinator: &mut Coordinator<'_>,
) -> Result<(), Failure> {
    undo_builds(database, coordinator)?;
    let left = of_lost_nodes(database, coordinator)?;
    let mut dropped = left.iter().filter(|work| work.build.is_none());
    dropped.try_for_each(|work| drop_storage(coordinator, database, work.storage))?;
    let table = database.catalog_table;
    let works = committed(coordinator, |coordinator, deferred| all(coordinator, deferred, table))?;
    // The catalog gets those with the end of their builds.
    let builds = works.iter().filter_map(|work| work.build.as_ref());
    let filled = builds.flat_map(Build::storages).collect();
    drop_orphans(database, coordinator, &filled)
}

/// Undoes the builds of nodes that are no members any more.
///
/// # Errors
/// As [`settle`].
pub(super) fn undo_builds(
    database: &Arc<Database>,
    coordinator: &mut Coordinator<'_>,
) -> Result<(), Failure> {
    if database.cluster.configuration().epoch == FIRST_EPOCH || !rule!(LOST_BUILDS) {
        return Ok(());
    }
    let resources = resources(database);
    for work in of_lost_nodes(database, coordinator)? {
        if let Some(build) = &work.build {
            with_newest(coordinator, &resources, |context| take_back(build, context))?;
        }
    }
    Ok(())
}

/// The work of nodes that are no members any more.
fn of_lost_nodes(
    database: &Arc<Database>,
    coordinator: &mut Coordinator<'_>,
) -> Result<Vec<Work>, Failure> {
    let table = database.catalog_table;
    let works = committed(coordinator, |coordinator, deferred| all(coordinator, deferred, table))?;
    let configuration = database.cluster.configuration();
    Ok(works.into_iter().filter(|work| !work.owner.is_member(&configuration)).collect())
}

fn all(
    coordinator: &mut Coordinator<'_>,
    deferred: &mut Deferred,
    table: TableId,
) -> Result<Vec<Work>, Failure> {
    let (from, to) = work_keys();
    let mut rest = Some(KeyRange { from: Bound::Included(from), to: Bound::Excluded(to) });
    let mut works = Vec::new();
    while let Some(range) = rest {
        let page = deferred.scan(coordinator, table, &range, Direction::Ascending, PAGE_ROWS)?;
        for (key, value) in page.rows.iter() {
            works.push(Work::from_row(key, value)?);
        }
        rest = page.rest;
    }
    Ok(works)
}

fn resources(database: &Arc<Database>) -> Resources {
    let facts = Facts {
        now: crate::clock::now(),
        user: Arc::from(USER),
        catalog: database.catalog(),
        cluster: Arc::clone(&database.cluster),
        settings: Arc::new(settings::defaults(USER)),
        budget: database.budget(),
    };
    Resources {
        database: Arc::clone(database),
        facts,
        seen_versions: SeenVersions::default(),
        touched: Touched::default(),
        spares: Default::default(),
        parameters: Vec::new(),
        cancel: Arc::new(AtomicBool::new(false)),
    }
}

#[cfg(test)]
mod tests;
