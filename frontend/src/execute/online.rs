//! Definitions that are built in batches while other transactions run: an index of a table that has rows, a new primary key.
//!
//! ```text
//! declare   the index is part of its table, not ready: changes of rows keep its entries, no query reads it
//!           (ADD PRIMARY KEY: the table is frozen: its rows can be read and not changed)
//! fill      in transactions of their own (`fill`): entries of the rows that were there before
//!           (ADD PRIMARY KEY: the rows, under their new keys, in another storage)
//! finish    the index is ready (the other storage takes the place of the first)
//! ```
//! Every transaction depends on the version of the catalog, so every writer maintains a declared index.
//!
//! Until a unique index is ready, an entry leads to *one* row with its value, and other rows may have the same value. A
//! change that would add the entry of a second row fails with 23505, as during PostgreSQL's CREATE INDEX CONCURRENTLY. A
//! change of a row that has no entry leaves the other row's entry. A fill that meets another row's entry ends the build.
//!
//! *Invariants*: a row that the fill has written has its entry, and an entry leads to an existing row with its value. So a
//! finished build has lost no entry and let no duplicate in. A page depends on the table's descriptor, so a build ends when
//! another definition changes the table. A failed build, or a cancelled one, withdraws the declaration and drops the
//! storage. If its node is lost, another one does so (`unfinished`), and a session that lives runs the definition again.
//!
//! *Source*: the states of Rae et al., "Online, Asynchronous Schema Change in F1", VLDB 2013, section 3. No transaction runs
//! on an older version, so one intermediate state is enough.
//!
//! *Not here*: definitions inside BEGIN, which build everything in their own transaction (`build`).

use std::sync::Arc;

use gannet_engine::{Abort, Conflict, Coordinator};

use crate::catalog::{Catalog, Table};
use crate::error::Failure;
use crate::execute::changes::{Build, Changes, changed_meanwhile};
use crate::execute::define::declare;
use crate::execute::fill::fill;
use crate::execute::transaction::alone;
use crate::execute::unfinished::{forget, note_build, undo_builds};
use crate::execute::{Context, Output, Resources, Transaction};
use crate::plan::define::{Change, Definition, NewConstraint};

/// Whether a definition may be built in batches.
pub(crate) fn applies_to(definition: &Definition) -> bool {
    match definition {
        Definition::CreateIndex(_) => true,
        Definition::AlterTable { changes, .. } => matches!(
            &changes[..],
            [Change::AddConstraint(
                NewConstraint::PrimaryKey { .. } | NewConstraint::Unique { .. }
            )]
        ),
        _ => false,
    }
}

/// Runs a definition outside of any transaction.
///
/// # Errors
/// [`Failure::StaleCatalog`] if the plan was made with an older catalog; the statement's error.
pub(crate) fn run(
    definition: &Definition,
    catalog: &Arc<Catalog>,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<Output, Failure> {
    // This may be a second run, as the node of the first was lost.
    undo_builds(&resources.database, coordinator)?;
    let begin = |_| Transaction::seeing(Arc::clone(catalog));
    let (output, build) = alone(coordinator, resources, begin, |context| {
        let declared = declare(definition, context);
        let (output, build) = context.checked(declared)?;
        if let Some(build) = &build {
            note_build(build, context)?;
        }
        Ok((output, build))
    })?;
    let Some(build) = build else { return Ok(output) };
    let built = fill(&build, coordinator, resources)
        .and_then(|()| with_newest(coordinator, resources, |context| finish(&build, context)));
    if let Err(failure) = built {
        // If this fails too, the client still gets the error above.
        let cleaned = clean_up(coordinator, resources, |context| take_back(&build, context));
        return Err(match failure {
            // A copy that has come or gone has ended a bulk load: the session runs the definition again, with a catalog without the declaration.
            Failure::Abort(Abort::Conflict(Conflict::Reconfigured)) if cleaned.is_ok() => {
                Failure::StaleCatalog
            }
            failure => failure,
        });
    }
    Ok(output)
}

/// Runs a change on the newest catalog.
pub(super) fn with_newest(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    change: impl Fn(&mut Context<'_, '_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    loop {
        let begin = |_| Transaction::seeing(resources.database.catalog());
        match alone(coordinator, resources, begin, &change) {
            Err(Failure::StaleCatalog) => resources.database.reload(coordinator)?,
            result => return result,
        };
    }
}

/// As [`with_newest`], for what has to be done when a statement has failed. A cancellation of the statement does not end it.
fn clean_up(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    change: impl Fn(&mut Context<'_, '_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let resources = Resources { cancel: Arc::default(), ..resources.lent() };
    coordinator.without_cancellation(|coordinator| with_newest(coordinator, &resources, change))
}

/// Makes the build visible: the index is ready, or the new storage replaces the old one.
fn finish(build: &Build, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let mut changes = Changes::new(false, context)?;
    let mut table = changes.declared(build)?;
    if !end_work(build, context)? {
        return Err(changed_meanwhile().into());
    }
    match build {
        Build::Index { index, .. } => {
            let built = table.indexes.iter_mut().filter(|other| other.id == *index);
            built.for_each(|index| index.ready = true);
        }
        Build::PrimaryKey { frozen, rebuilt } => {
            // The build lacks what another definition has changed.
            if table != **frozen {
                return Err(changed_meanwhile().into());
            }
            context.transaction.dropped.extend(table.storages());
            table = Table::clone(rebuilt);
        }
    }
    changes.put(table);
    changes.write(context).map(|_| ())
}

/// Withdraws a declaration whose build has failed, unless the build was ended before.
pub(super) fn take_back(build: &Build, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let mut changes = Changes::new(false, context)?;
    if !end_work(build, context)? {
        return Ok(());
    }
    context.transaction.dropped.extend(build.storages());
    // If the table differs from the declaration, another definition has withdrawn it.
    let Ok(mut table) = changes.declared(build) else { return Ok(()) };
    match build {
        Build::Index { index, .. } => table.indexes.retain(|other| other.id != *index),
        Build::PrimaryKey { .. } => table.frozen = false,
    }
    changes.put(table);
    changes.write(context).map(|_| ())
}

/// Removes the row that tells which node builds this. Whether there was one.
fn end_work(build: &Build, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
    let database = &context.resources.database;
    let deferred = &mut context.transaction.deferred;
    forget(deferred, context.coordinator, database, build.storage()).map_err(Failure::from)
}

#[cfg(test)]
mod tests;
