//! Plans become rows and changes, inside an engine coroutine.
//!
//! ```text
//! scan  operator  join  sort  sets
//! aggregate  distinct  window          rows: each operator gives batches
//! runs                                 sorted rows, in memory and in files, as one
//! partitions                           rows in files by the hash of a key
//! pace                                 whether operators give way
//! gather                               what becomes of them: memory, a file, the client
//! write                                INSERT, UPDATE, DELETE
//! define  alter  changes               definitions: what changes in the catalog
//! build  online                        rows and indexes that definitions concern
//! copy                                 COPY
//! touched                              what conflicts name
//! ```
//!
//! *Invariants*: nothing here blocks. With its first read a transaction comes to depend on the catalog's version: it reads it,
//! and ends with [`Failure::StaleCatalog`] if its plan is of another one, or relies on it and ends with a conflict.

mod aggregate;
mod alter;
mod build;
mod changes;
mod context;
pub(crate) mod copy;
pub(crate) mod define;
mod distinct;
mod gather;
mod join;
pub(crate) mod online;
mod operator;
mod pace;
mod partitions;
mod runs;
mod scan;
mod sets;
mod sort;
mod touched;
pub(crate) mod transaction;
mod window;
mod write;

pub(crate) use context::{Context, Resources, row_bytes};
pub(crate) use gather::{Beyond, Stream};
pub(crate) use touched::Touched;
pub(crate) use transaction::{Stored, Transaction};
pub(crate) use write::insert_rows;

use std::sync::Arc;

use crate::error::Failure;
use crate::execute::gather::{Gathered, gather};
use crate::memory::Charge;
use crate::plan::{Plan, PlanKind, explain};
use crate::spill::SpillFile;
use crate::value::Value;

/// Rows that an operator gives at a time.
pub(crate) const BATCH_ROWS: usize = 1_000;

/// A row.
pub(crate) type Row = Vec<Value>;

/// What a plan gave.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Rows, if the statement gives rows.
    pub(crate) rows: Option<Vec<Row>>,
    /// PostgreSQL's command tag.
    pub(crate) tag: String,
    pub(crate) notices: Vec<String>,
    /// Of the rows.
    pub(crate) charge: Charge,
    /// The rows, if they are too many for memory.
    pub(crate) file: Option<Arc<SpillFile>>,
}

/// Runs a plan in a transaction, which stays open.
///
/// # Errors
/// What ends the statement.
pub(crate) fn run(
    plan: &Plan,
    beyond: &Beyond,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    let result = run_unchecked(plan, beyond, context);
    let result = result.map_err(|failure| match (&plan.kind, failure) {
        (PlanKind::Update(_) | PlanKind::Delete(_), Failure::Error(error)) if error.code == "53200" => {
            let hint = "change fewer rows at a time, such as a range of the key per statement, or raise the limit";
            Failure::from(error.with_hint(hint))
        }
        (_, other) => other,
    });
    context.checked(result)
}

fn run_unchecked(
    plan: &Plan,
    beyond: &Beyond,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    let mut charge = Charge::default();
    let (rows, tag) = match &plan.kind {
        PlanKind::Query(node) => {
            let Gathered { rows, charge, file, count } = gather(node, beyond, context)?;
            let (tag, notices) = (format!("SELECT {count}"), Vec::new());
            return Ok(Output { rows: Some(rows), tag, notices, charge, file });
        }
        PlanKind::Insert(insert) => {
            let (count, rows) = write::insert(insert, &mut charge, context)?;
            (rows, format!("INSERT 0 {count}"))
        }
        PlanKind::Update(update) => {
            let (count, rows) = write::update(update, &mut charge, context)?;
            (rows, format!("UPDATE {count}"))
        }
        PlanKind::Delete(delete) => {
            let (count, rows) = write::delete(delete, &mut charge, context)?;
            (rows, format!("DELETE {count}"))
        }
        PlanKind::Define(definition) => return define::run(definition, context),
        PlanKind::Explain { plan, analyze } => {
            let ran =
                if *analyze { Some(run_unchecked(plan, &Beyond::Refused, context)?) } else { None };
            // Nothing is read without ANALYZE, but the plan must be of this catalog.
            context.check_version()?;
            let mut lines = explain::lines(plan);
            if let Some(ran) = ran {
                lines.push(format!("Result: {}", ran.tag));
                lines.push(format!("Round trips: {}", context.round_trips));
                lines.push(format!("Attempts: {}", context.attempt));
            }
            let rows = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
            (Some(rows), "EXPLAIN".to_owned())
        }
    };
    Ok(Output { rows, tag, notices: Vec::new(), charge, file: None })
}
