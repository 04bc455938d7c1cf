//! Transactions of SQL: those of sessions, and those that nobody sees any data through.
//!
//! *Invariants*: what a transaction creates is part of it. What it drops is emptied after it has committed, in
//! batches, when nobody sees it any more; what an error leaves of that takes memory and nothing else.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use gannet_engine::{Abort, Coordinator, Deferred, Direction, KeyRange, Savepoint};

use crate::catalog::{Catalog, index_prefix, storage_prefix};
use crate::error::{Failure, SqlError};
use crate::execute::Resources;

/// Runs of a transaction before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;
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
    /// The catalog that it sees.
    pub(crate) catalog: Arc<Catalog>,
    /// Whether the version of the catalog has been read.
    pub(crate) version_read: bool,
    /// What is emptied once it has committed.
    pub(crate) dropped: BTreeSet<Stored>,
    pub(crate) savepoints: Vec<NamedSavepoint>,
}

/// What ROLLBACK TO goes back to.
pub(crate) struct NamedSavepoint {
    name: String,
    savepoint: Savepoint,
    catalog: Arc<Catalog>,
    dropped: BTreeSet<Stored>,
}

impl Transaction {
    /// One that has read nothing.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        Self {
            deferred: Deferred::new(),
            catalog,
            version_read: false,
            dropped: BTreeSet::new(),
            savepoints: Vec::new(),
        }
    }

    /// SAVEPOINT.
    pub(crate) fn save(&mut self, name: String) {
        self.savepoints.push(NamedSavepoint {
            name,
            savepoint: self.deferred.savepoint(),
            catalog: Arc::clone(&self.catalog),
            dropped: self.dropped.clone(),
        });
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
        self.catalog = Arc::clone(&savepoint.catalog);
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
        if self.catalog.private {
            resources.database.publish(Arc::clone(&self.catalog));
        }
        for stored in self.dropped {
            // What is left takes memory and nothing else.
            let _ = clear(coordinator, resources, stored);
        }
        Ok(())
    }
}

/// Removes keys that nobody sees any more.
fn clear(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    stored: Stored,
) -> Result<(), Failure> {
    let table = resources.database.table;
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
            for (key, _) in page.rows {
                deferred.delete(table, key);
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
