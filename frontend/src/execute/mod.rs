//! Plans become rows and changes, inside an engine coroutine.
//!
//! ```text
//! scan  operator  join  aggregate      rows: each operator gives batches
//! write                                INSERT, UPDATE, DELETE
//! define  alter  changes               definitions: what changes in the catalog
//! build  online                        rows and indexes that definitions concern
//! copy                                 COPY
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
mod join;
pub(crate) mod online;
mod operator;
mod scan;
pub(crate) mod transaction;
mod window;
mod write;

pub(crate) use context::{Context, Resources};
pub(crate) use transaction::{Stored, Transaction};
pub(crate) use write::insert_rows;

use crate::error::Failure;
use crate::plan::{Plan, PlanKind, explain};
use crate::value::Value;

/// Rows that an operator gives at a time.
const BATCH_ROWS: usize = 1_000;

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
}

/// Runs a plan in a transaction, which stays open.
///
/// # Errors
/// What ends the statement.
pub(crate) fn run(plan: &Plan, context: &mut Context<'_, '_>) -> Result<Output, Failure> {
    let result = run_unchecked(plan, context);
    context.checked(result)
}

fn run_unchecked(plan: &Plan, context: &mut Context<'_, '_>) -> Result<Output, Failure> {
    let (rows, tag) = match &plan.kind {
        PlanKind::Query(node) => {
            let rows = context.rows(node)?;
            let tag = format!("SELECT {}", rows.len());
            (Some(rows), tag)
        }
        PlanKind::Insert(insert) => {
            let (count, rows) = write::insert(insert, context)?;
            (rows, format!("INSERT 0 {count}"))
        }
        PlanKind::Update(update) => {
            let (count, rows) = write::update(update, context)?;
            (rows, format!("UPDATE {count}"))
        }
        PlanKind::Delete(delete) => {
            let (count, rows) = write::delete(delete, context)?;
            (rows, format!("DELETE {count}"))
        }
        PlanKind::Define(definition) => return define::run(definition, context),
        PlanKind::Explain { plan, analyze } => {
            let ran = if *analyze { Some(run_unchecked(plan, context)?) } else { None };
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
    Ok(Output { rows, tag, notices: Vec::new() })
}
