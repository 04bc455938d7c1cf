//! Transactions of SQL: those of sessions, and those that nobody sees any data through.
//!
//! *Invariants*: what a transaction creates is part of it. What it drops is emptied after it has committed, in
//! batches, when nobody sees it any more; what an error leaves of that takes memory and nothing else.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use gannet_engine::{Abort, Coordinator, Deferred, Direction, KeyRange, Savepoint, TableId};

use crate::catalog::{Catalog, Table, index_prefix, storage_of, storage_prefix};
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::{Context, Resources};
use crate::memory::{Budget, Charge};

/// Runs of a transaction before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;
/// Runs of a query that others may overtake; then they wait for it.
pub(crate) const OVERTAKEN_MAX: u32 = 3;
/// Keys that are removed at a time.
const CLEARED_KEYS: usize = 1_000;

/// Keys of a table: of a whole storage, or of one index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    pub(crate) storage: u32,
    pub(crate) index: Option<u32>,
}

/// A transaction of a session; moves into the job of each statement and back.
pub(crate) struct Transaction {
    pub(crate) deferred: Deferred,
    /// The catalog that it sees; none if that of its statement.
    pub(crate) catalog: Option<Arc<Catalog>>,
    /// Whether its commit depends on the version of the catalog.
    pub(crate) depends_on_version: bool,
    /// Whether its catalog is another transaction's, which publishes it.
    is_part: bool,
    /// Storages that it has created, of which nobody else knows yet.
    pub(crate) created: BTreeSet<u32>,
    /// What has been written there in transactions of their own; removed unless this one commits.
    pub(crate) filled: Filled,
    /// What is emptied once it has committed.
    pub(crate) dropped: BTreeSet<Stored>,
    pub(crate) savepoints: Vec<NamedSavepoint>,
    /// Of what it has read and written.
    pub(crate) charge: Charge,
}

/// What ROLLBACK TO goes back to.
pub(crate) struct NamedSavepoint {
    name: String,
    savepoint: Savepoint,
    catalog: Option<Arc<Catalog>>,
    dropped: BTreeSet<Stored>,
    _charge: Charge,
}

impl Transaction {
    /// One that has read nothing, for a statement of its own.
    pub(crate) fn new() -> Self {
        Self {
            deferred: Deferred::new(),
            catalog: None,
            depends_on_version: false,
            is_part: false,
            created: BTreeSet::new(),
            filled: Filled::default(),
            dropped: BTreeSet::new(),
            savepoints: Vec::new(),
            charge: Charge::default(),
        }
    }

    /// One that sees this catalog, whatever statements run in it.
    pub(crate) fn seeing(catalog: Arc<Catalog>) -> Self {
        Self { catalog: Some(catalog), ..Self::new() }
    }

    /// Empties a storage once this transaction has committed.
    pub(crate) fn drop_storage(&mut self, storage: u32) {
        self.dropped.insert(Stored { storage, index: None });
    }

    /// One that writes nothing, and keeps others from writing while it scans; see [`Deferred::with_scan_barriers`].
    pub(crate) fn with_scan_barriers(self) -> Self {
        Self { deferred: self.deferred.with_scan_barriers(), ..self }
    }

    /// One that writes part of what another transaction has created, which depends on that catalog already.
    pub(crate) fn part_of(catalog: Arc<Catalog>) -> Self {
        Self { depends_on_version: true, is_part: true, ..Self::seeing(catalog) }
    }

    /// Whether nobody else can reach the row or index entry with this key.
    pub(crate) fn is_unshared(&self, key: &[u8]) -> bool {
        !self.created.is_empty() && storage_of(key).is_some_and(|own| self.created.contains(&own))
    }

    /// Whether the rows of a table may be written before this transaction commits, in transactions of their own: nobody
    /// else knows them, nothing that this one has read or written meets them, and it goes back to no savepoint.
    pub(crate) fn may_fill(&self, database: &Database, table: &Table) -> bool {
        let prefix = storage_prefix(table.storage);
        self.created.contains(&table.storage)
            && self.savepoints.is_empty()
            && !self.deferred.depends_on(database.table)
            && !self.deferred.concerns(database.table, &prefix)
    }

    /// SAVEPOINT.
    ///
    /// # Errors
    /// SQLSTATE 53200 for one that does not fit the session's memory.
    pub(crate) fn save(&mut self, name: String, budget: &Arc<Budget>) -> Result<(), SqlError> {
        let own = size_of::<NamedSavepoint>() + name.len();
        let mut charge = Charge::default();
        charge.add(budget, own + self.dropped.len() * size_of::<Stored>())?;
        self.savepoints.push(NamedSavepoint {
            _charge: charge,
            name,
            savepoint: self.deferred.savepoint(),
            catalog: self.catalog.clone(),
            dropped: self.dropped.clone(),
        });
        Ok(())
    }

    fn find(&self, name: &str) -> Result<usize, SqlError> {
        self.savepoints
            .iter()
            .rposition(|savepoint| savepoint.name == name)
            .ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }

    /// ROLLBACK TO.
    pub(crate) fn roll_back_to(&mut self, name: &str) -> Result<(), SqlError> {
        let number = self.find(name)?;
        self.savepoints.truncate(number + 1);
        let savepoint = &self.savepoints[number];
        self.deferred.rollback_to(savepoint.savepoint);
        self.catalog.clone_from(&savepoint.catalog);
        self.dropped.clone_from(&savepoint.dropped);
        Ok(())
    }

    /// RELEASE.
    pub(crate) fn release(&mut self, name: &str) -> Result<(), SqlError> {
        let number = self.find(name)?;
        self.savepoints.truncate(number);
        Ok(())
    }

    /// Commits, publishes its catalog, and empties what it dropped.
    pub(crate) fn commit(
        mut self,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Abort> {
        self.deferred.commit(coordinator)?;
        self.filled.keep();
        if let Some(catalog) = self.catalog
            && catalog.private
            && !self.is_part
        {
            resources.database.publish(catalog);
        }
        for stored in self.dropped {
            // What is left takes memory and nothing else.
            let _ = clear(coordinator, resources.database.table, stored);
        }
        Ok(())
    }
}

/// Storages with rows that are there before the transaction that created them has committed.
#[derive(Default)]
pub(crate) struct Filled(Option<(Arc<Database>, BTreeSet<u32>)>);

impl Filled {
    pub(crate) fn add(&mut self, database: &Arc<Database>, storage: u32) {
        let new = || (Arc::clone(database), BTreeSet::new());
        self.0.get_or_insert_with(new).1.insert(storage);
    }

    /// The transaction has committed.
    fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for Filled {
    /// The transaction was given up: nobody will ever see its storages.
    fn drop(&mut self) {
        let Some((database, storages)) = self.0.take() else { return };
        let table = database.table;
        // Nobody waits for it. What is left if there is no room for the job takes memory and nothing else.
        let _ = database.cluster.spawn_anywhere(move |coordinator| {
            for storage in storages {
                let _ = clear(coordinator, table, Stored { storage, index: None });
            }
        });
    }
}

/// Runs work as a transaction of its own, which `begin` makes for each attempt, until it commits; [`Failure::StaleCatalog`] if
/// the catalog has changed.
///
/// # Errors
/// Those of the last run.
pub(crate) fn alone<T>(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    begin: impl Fn(u32) -> Transaction,
    work: impl Fn(&mut Context<'_, '_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    alone_unless(coordinator, resources, begin, work, |failure| failure)
}

/// The same; `ended` tells what the failure of a run is to the statement: one that is no conflict is final.
///
/// # Errors
/// As [`alone`].
pub(crate) fn alone_unless<T>(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    begin: impl Fn(u32) -> Transaction,
    work: impl Fn(&mut Context<'_, '_>) -> Result<T, Failure>,
    ended: impl Fn(Failure) -> Failure,
) -> Result<T, Failure> {
    retried(coordinator, |coordinator, attempt| {
        let mut transaction = begin(attempt);
        let mut context = Context::new(coordinator, &mut transaction, resources);
        (context.attempt, context.commits) = (attempt, true);
        let result = match work(&mut context) {
            Ok(output) => match transaction.commit(coordinator, resources) {
                Ok(()) => Ok(output),
                Err(abort) => Err(abort.into()),
            },
            Err(failure) => Err(given_up(coordinator, &mut transaction, failure)),
        };
        result.map_err(&ended)
    })
}

/// What a transaction that is given up fails with: a conflict, if what it had read was not valid, or the bug because of which
/// nobody knows.
pub(crate) fn given_up(
    coordinator: &mut Coordinator<'_>,
    transaction: &mut Transaction,
    failure: Failure,
) -> Failure {
    match failure {
        Failure::Error(_) => match transaction.deferred.give_up(coordinator) {
            Err(abort) if abort.is_conflict() || abort == Abort::Refused => abort.into(),
            _ => failure,
        },
        Failure::Abort(_) | Failure::StaleCatalog => failure,
    }
}

/// Removes keys that nobody sees any more.
pub(crate) fn clear(
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    stored: Stored,
) -> Result<(), Failure> {
    let prefix = match stored.index {
        None => storage_prefix(stored.storage),
        Some(index) => index_prefix(stored.storage, index),
    };
    // Numbers behind a prefix are followed by bytes; 0xff bytes come after all of them.
    let mut to = prefix.clone();
    to.extend_from_slice(&[0xff; 8]);
    let range = KeyRange { from: Bound::Included(prefix), to: Bound::Excluded(to) };
    loop {
        let done = committed(coordinator, |coordinator, deferred| {
            let page =
                deferred.scan(coordinator, table, &range, Direction::Ascending, CLEARED_KEYS)?;
            let done = page.rows.is_empty() && page.rest.is_none();
            for (key, _) in page.rows.iter() {
                deferred.delete(table, key.to_vec());
            }
            Ok(done)
        })?;
        if done {
            return Ok(());
        }
    }
}

/// Runs a transaction until it commits.
///
/// # Errors
/// The engine's, a conflict after many attempts included, and those of `body`.
pub(crate) fn committed<T>(
    coordinator: &mut Coordinator<'_>,
    mut body: impl FnMut(&mut Coordinator<'_>, &mut Deferred) -> Result<T, Failure>,
) -> Result<T, Failure> {
    retried(coordinator, |coordinator, _| {
        let mut deferred = Deferred::new();
        let value = body(coordinator, &mut deferred)?;
        deferred.commit(coordinator)?;
        Ok(value)
    })
}

/// Runs `attempt`, which is given its number from 1, until it ends without a conflict.
///
/// # Errors
/// Those of the last attempt.
pub(crate) fn retried<T>(
    coordinator: &mut Coordinator<'_>,
    attempt: impl FnMut(&mut Coordinator<'_>, u32) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let is_conflict =
        |failure: &Failure| matches!(failure, Failure::Abort(abort) if abort.is_conflict());
    coordinator.retried(ATTEMPTS_MAX, is_conflict, attempt)
}
