//! Executes plans inside a coroutine of the engine.
//!
//! ```text
//! scan  operator  join  lookup  sort  sets
//! aggregate  fold  distinct  window          rows: each operator gives batches
//! runs                                 merges sorted rows, in memory and in files
//! partitions                           rows in files by the hash of a key
//! pace                                 checks that operators yield
//! gather                               the result: memory, a file, the client
//! write                                INSERT, UPDATE, DELETE
//! define  alter  changes               definitions: changes of the catalog
//! build  online  fill                  rows and indexes that definitions concern
//! storages                             the engine's tables with rows and index entries
//! unfinished                           builds and storages of nodes that were lost
//! copy                                 COPY
//! load  bulk                           COPY and INSERT ... SELECT into storages that no other transaction knows
//! sharing                              work that the workers of a node share
//! touched                              tables that conflicts name
//! ```
//!
//! *Invariants*: nothing here blocks a thread. From its first read on, a transaction depends on the catalog's version. Either
//! it reads the version, and ends with [`Failure::StaleCatalog`] if its plan has another one; or it relies on the version
//! last seen, and ends with a conflict.
//!
//! *Not here*: plans (`plan`), values of expressions (`expression`), keys and rows as bytes (`encoding`).

mod aggregate;
mod alter;
mod build;
pub(crate) mod bulk;
mod changes;
pub(crate) mod contended;
mod context;
pub(crate) mod copy;
pub(crate) mod define;
mod distinct;
mod fill;
mod filtered;
mod fold;
mod gather;
mod join;
pub(crate) mod load;
mod lookup;
pub(crate) mod online;
pub(crate) mod operator;
mod pace;
mod partitions;
mod read_ahead;
pub(crate) mod renew;
pub(crate) mod reserved;
mod runs;
mod scan;
mod sets;
mod sharing;
mod sort;
pub(crate) mod storages;
mod touched;
pub(crate) mod transaction;
pub(crate) mod unfinished;
mod window;
mod write;

pub use context::row_bytes;
pub(crate) use context::{Context, Resources};
pub(crate) use gather::{Beyond, Gathering, Stream};
pub(crate) use touched::Touched;
pub(crate) use transaction::Transaction;
pub(crate) use write::insert_rows;

use std::sync::Arc;

use crate::error::{Failure, SqlError};
use crate::execute::gather::{Gathered, gather};
use crate::memory::Charge;
use crate::plan::{Plan, PlanKind, explain};
use crate::spill::SpillFile;
use crate::value::Value;

/// Rows in a batch of an operator.
pub(crate) const BATCH_ROWS: usize = 1_000;

/// A row.
pub type Row = Vec<Value>;

/// The output of a plan.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Rows, if the statement gives rows.
    pub(crate) rows: Option<Vec<Row>>,
    /// PostgreSQL's command tag; empty until the number of rows is known.
    pub(crate) tag: String,
    pub(crate) notices: Vec<String>,
    /// The charge of the rows.
    pub(crate) charge: Charge,
    /// The rows, if they do not fit into memory.
    pub(crate) file: Option<Arc<SpillFile>>,
}

/// Runs a plan in a transaction, which stays open.
///
/// # Errors
/// The statement's error.
pub(crate) fn run(
    plan: &Plan,
    beyond: &Beyond,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    let result = run_unchecked(plan, beyond, context);
    let result = result.map_err(|failure| match failure {
        Failure::Error(error) if error.code == "53200" => too_large(plan, *error, context),
        other => other,
    });
    context.checked(result)
}

/// The error of a statement that needs too much memory, with a hint.
fn too_large(plan: &Plan, mut error: SqlError, context: &Context<'_, '_>) -> Failure {
    let gives_rows = !plan.columns.is_empty() && !matches!(plan.kind, PlanKind::Query(_));
    if gives_rows && !context.may_spill() {
        let detail = "The rows of RETURNING need memory, too. A directory for temporary files takes them: --spill, or \
                      MemoryLimits::spill in a program.";
        error.detail = Some(detail.to_owned());
    }
    if matches!(plan.kind, PlanKind::Update(_) | PlanKind::Delete(_)) {
        let hint = "change fewer rows at a time, such as a range of the key per statement, or raise the limit";
        error = error.with_hint(hint);
    }
    error.into()
}

fn run_unchecked(
    plan: &Plan,
    beyond: &Beyond,
    context: &mut Context<'_, '_>,
) -> Result<Output, Failure> {
    let mut returned = Gathering::new(beyond);
    let (gives_rows, tag) = match &plan.kind {
        PlanKind::Query(node) => {
            let gathered = gather(node, beyond, context)?;
            let tag = format!("SELECT {}", gathered.count);
            return Ok(Output::of(gathered, true, tag));
        }
        PlanKind::Insert(insert) => {
            let count = write::insert(insert, &mut returned, context)?;
            (insert.returning.is_some(), format!("INSERT 0 {count}"))
        }
        PlanKind::Update(update) => {
            let count = write::update(update, &mut returned, context)?;
            (update.returning.is_some(), format!("UPDATE {count}"))
        }
        PlanKind::Delete(delete) => {
            let count = write::delete(delete, &mut returned, context)?;
            (delete.returning.is_some(), format!("DELETE {count}"))
        }
        PlanKind::Define(definition) => return define::run(definition, context),
        PlanKind::Explain { plan, analyze } => {
            let ran =
                if *analyze { Some(run_unchecked(plan, &Beyond::Refused, context)?) } else { None };
            // Without ANALYZE nothing is read, but the plan must belong to this catalog.
            context.check_version()?;
            let mut lines = explain::lines(plan);
            if let Some(ran) = ran {
                lines.push(format!("Result: {}", ran.tag));
                lines.push(format!("Round trips: {}", context.round_trips));
                lines.push(format!("Attempts: {}", context.attempt));
            }
            let rows = lines.into_iter().map(|line| vec![Value::Text(line)]).collect();
            return Ok(Output { rows: Some(rows), tag: "EXPLAIN".to_owned(), ..Output::default() });
        }
    };
    Ok(Output::of(returned.finish(context)?, gives_rows, tag))
}

impl Output {
    fn of(gathered: Gathered, gives_rows: bool, tag: String) -> Self {
        let Gathered { rows, charge, file, count: _ } = gathered;
        Self { rows: gives_rows.then_some(rows), tag, notices: Vec::new(), charge, file }
    }
}
