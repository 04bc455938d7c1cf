//! Transactions of SQL: those of sessions, and those that fill storages invisible to others.
//!
//! *Invariants*: storages that a transaction creates are part of it. Storages that it drops are there until it has committed.
//!
//! *Not here*: the transaction of the engine (`Deferred`); conflicts' errors (`touched`).

use std::collections::BTreeSet;
use std::sync::Arc;

use gannet_engine::{Abort, Coordinator, Deferred, Failure as EngineFailure, Savepoint, TableId};

use crate::catalog::{Catalog, Table};
use crate::error::{Failure, SqlError};
use crate::execute::reserved::Reserved;
use crate::execute::storages::{Created, Storages, drop_storage};
use crate::execute::unfinished::note_dropped;
use crate::execute::{Context, Resources};
use crate::memory::{Budget, Charge};

/// Runs of a transaction before its conflict is reported. They take about four seconds, and so outlast threads that have lost their cores
/// with rows locked.
const ATTEMPTS_MAX: u32 = 200;
/// Runs of a statement after which its commits wait for rows that others have reserved, if it cannot reserve them itself.
const PATIENT_ATTEMPT: u32 = 3;
/// Runs of a query that other transactions may overtake; afterwards they wait for the query.
pub(crate) const OVERTAKEN_MAX: u32 = 3;

/// A transaction of a session; moves into the job of each statement and back.
pub(crate) struct Transaction {
    pub(crate) deferred: Deferred,
    /// Whether others wait for its scans.
    pub(crate) has_barriers: bool,
    /// The catalog that the transaction sees; None if it is the statement's.
    pub(crate) catalog: Option<Arc<Catalog>>,
    /// Whether the commit depends on the version of the catalog.
    pub(crate) depends_on_version: bool,
    /// Whether the catalog belongs to another transaction, which publishes it.
    pub(super) is_part: bool,
    /// Storages that the transaction has created, unknown to all others.
    pub(crate) created: Created,
    /// Whether rows were loaded into some of them.
    pub(crate) has_loaded: bool,
    /// Those that a build is to fill, which puts them into the catalog.
    pub(crate) filled_later: Vec<TableId>,
    /// Storages to drop after the commit.
    pub(crate) dropped: BTreeSet<TableId>,
    pub(crate) savepoints: Vec<NamedSavepoint>,
    /// The rows that it has reserved.
    pub(crate) reserved: Reserved,
    /// The charge of the rows read and written.
    pub(crate) charge: Charge,
}

/// The target of ROLLBACK TO.
pub(crate) struct NamedSavepoint {
    name: String,
    savepoint: Savepoint,
    catalog: Option<Arc<Catalog>>,
    dropped: BTreeSet<TableId>,
    _charge: Charge,
}

impl Transaction {
    /// A new transaction, for a statement of its own.
    pub(crate) fn new() -> Self {
        Self {
            deferred: Deferred::new(),
            catalog: None,
            depends_on_version: false,
            is_part: false,
            created: Created::default(),
            has_barriers: false,
            has_loaded: false,
            filled_later: Vec::new(),
            dropped: BTreeSet::new(),
            savepoints: Vec::new(),
            reserved: Reserved::default(),
            charge: Charge::default(),
        }
    }

    /// A transaction that sees this catalog in all its statements.
    pub(crate) fn seeing(catalog: Arc<Catalog>) -> Self {
        let deferred = Deferred::new().waiting_for_reservations();
        Self { catalog: Some(catalog), deferred, ..Self::new() }
    }

    /// For a transaction that is not run again by itself: see [`Deferred::run_once`].
    pub(crate) fn run_once(self) -> Self {
        Self { deferred: self.deferred.run_once(), ..self }
    }

    /// A transaction that writes nothing, and keeps others from writing while it scans: see [`Deferred::with_scan_barriers`].
    pub(crate) fn with_scan_barriers(self) -> Self {
        Self { deferred: self.deferred.with_scan_barriers(), has_barriers: true, ..self }
    }

    /// A transaction that writes part of what another one has created, and depends on that one's catalog.
    pub(crate) fn part_of(catalog: Arc<Catalog>) -> Self {
        Self { depends_on_version: true, is_part: true, ..Self::seeing(catalog) }
    }

    /// Whether no other transaction can reach the rows or index entries in a storage.
    pub(crate) fn is_unshared(&self, storage: TableId) -> bool {
        self.created.contains(storage)
    }

    /// Whether transactions of their own may write rows of a table before this one commits. No other transaction may know the
    /// table, this one must not have read or written its rows, and must have no savepoint.
    pub(crate) fn may_fill(&self, table: &Table) -> bool {
        let is_untouched = |storage| {
            self.is_unshared(storage)
                && !self.deferred.depends_on(storage)
                && !self.deferred.concerns(storage)
        };
        self.savepoints.is_empty() && table.storages().all(is_untouched)
    }

    /// Whether another storage may take the place of a table's, with its rows: no savepoint and no build knows the present one, and
    /// nothing is to be written there.
    pub(crate) fn may_replace(&self, table: &Table) -> bool {
        self.savepoints.is_empty()
            && table.indexes.iter().all(|index| index.ready)
            && !table.storages().any(|storage| self.deferred.concerns(storage))
    }

    /// SAVEPOINT.
    ///
    /// # Errors
    /// SQLSTATE 53200 if the savepoint does not fit into the session's memory.
    pub(crate) fn save(&mut self, name: String, budget: &Arc<Budget>) -> Result<(), SqlError> {
        let own = size_of::<NamedSavepoint>() + name.len();
        let mut charge = Charge::default();
        charge.add(budget, own + self.dropped.len() * size_of::<TableId>())?;
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

    /// Commits, publishes the catalog, and drops storages.
    pub(crate) fn commit(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Abort> {
        let database = &resources.database;
        // Nobody knows those that the transaction has created itself.
        self.dropped.retain(|storage| !self.created.contains(*storage));
        for storage in &self.dropped {
            note_dropped(&mut self.deferred, coordinator, database, *storage)?;
        }
        if !self.reserved.is_empty() {
            self.deferred.pass_reservations();
        }
        self.deferred.commit(coordinator)?;
        if let Some(catalog) = &self.catalog {
            self.created.keep(catalog.storages().chain(self.filled_later.iter().copied()));
        }
        if let Some(catalog) = self.catalog.take()
            && catalog.private
            && !self.is_part
        {
            database.publish(catalog);
        }
        let is_there = |storage: &TableId| drop_storage(coordinator, database, *storage).is_err();
        // What could not be dropped is dropped later, by another node if this one is lost.
        let dropped = std::mem::take(&mut self.dropped);
        Storages::discard(database, dropped.into_iter().filter(is_there).collect());
        Ok(())
    }
}

/// Runs work as a transaction of its own, until it commits; `begin` makes a transaction for each attempt. The result is
/// [`Failure::StaleCatalog`] if the catalog has changed.
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

/// As [`alone`]; `ended` converts the failure of a run into that of the statement: a failure that is no conflict is final.
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
    // Rows that a run has reserved are those of the next one.
    let mut reserved = Reserved::default();
    let result = retried(coordinator, |coordinator, attempt| {
        let mut transaction = begin(attempt);
        transaction.reserved = std::mem::take(&mut reserved);
        if attempt > 1 {
            // What it could reserve it has reserved by now.
            transaction.deferred.pass_readers();
        }
        if attempt > PATIENT_ATTEMPT {
            transaction.deferred = transaction.deferred.waiting_for_reservations();
        }
        let mut context = Context::new(coordinator, &mut transaction, resources);
        (context.attempt, context.commits) = (attempt, true);
        // After a conflict, which may have lasted.
        let wanted = if attempt > 1 { context.check_cancel() } else { Ok(()) };
        let result = match wanted.and_then(|()| work(&mut context)) {
            Ok(output) => match transaction.commit(coordinator, resources) {
                Ok(()) => Ok(output),
                Err(abort) => Err(abort.into()),
            },
            Err(failure) => Err(given_up(coordinator, &mut transaction, failure)),
        };
        // The next run needs empty ones.
        if !transaction.has_loaded {
            resources.spares.borrow_mut().add_all(&mut transaction.created);
        }
        reserved = std::mem::take(&mut transaction.reserved);
        result.map_err(&ended)
    });
    reserved.release(coordinator);
    result
}

/// The failure of a transaction that the engine has ended: a conflict if its reads were invalid, or else an error for a bug.
pub(crate) fn given_up(
    coordinator: &mut Coordinator<'_>,
    transaction: &mut Transaction,
    failure: Failure,
) -> Failure {
    match failure {
        Failure::Error(_) => match transaction.deferred.give_up(coordinator) {
            Err(abort @ (Abort::Conflict(_) | Abort::Failure(EngineFailure::Refused))) => {
                abort.into()
            }
            _ => failure,
        },
        Failure::Abort(_) | Failure::StaleCatalog => failure,
    }
}

/// Runs a transaction until it commits.
///
/// # Errors
/// The engine's, such as a conflict after many attempts, and those of `body`.
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

/// Runs `attempt` with its number, from 1, until it ends without a conflict.
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
