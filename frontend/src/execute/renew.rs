//! New storages for a table that gets very many rows: workers load them there, and the commit of the transaction puts them into the catalog.
//!
//! ```text
//! INSERT ... SELECT   reads its source until enough rows wait
//! COPY inside BEGIN   gathers the client's rows until enough wait
//! enough              the table gets new storages, as TRUNCATE gives, and the rows that it has are copied there
//! not enough          the rows are written with the transaction
//! ```
//! Other transactions that are under way meet a new version of the catalog, so this is not done for few rows.
//!
//! *Not here*: how the rows are loaded (`load`).

use std::sync::Arc;

use gannet_engine::{Direction, KeyRange};

use crate::catalog::Table;
use crate::error::Failure;
use crate::execute::build::page;
use crate::execute::bulk::{Bulk, Loaded};
use crate::execute::define::truncated;
use crate::execute::load::{CHUNK_BYTES, load};
use crate::execute::operator::{Begun, Enough, Operator};
use crate::execute::scan::whole;
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::plan::Insert;

/// Rows that are more than one transaction of a load. So many wait before the table is looked at.
pub(crate) const FIRST: Enough = Enough { rows: BATCH_ROWS + 1, bytes: CHUNK_BYTES };
/// Rows for which an empty table gets new storages. Fewer are written with the transaction.
const RENEWED_ROWS: usize = 50 * BATCH_ROWS;
/// The same in bytes, as a part of the memory that a statement may keep.
const RENEWED_PART: usize = 4;
/// The same part for a table with many times as many rows, because all of those are copied. A transaction surely writes so many bytes.
const COPIED_PART: usize = 2;
/// How many times as many rows are many.
const MANY_TIMES: u64 = 8;

/// What becomes of rows that wait to be inserted.
pub(crate) enum Renewal {
    /// The transaction writes them: the table's storages stay.
    Refused,
    /// More rows must wait.
    Wants(Enough),
    /// The INSERT loads them into the new storages, which have the table's present rows. The bulk load that has brought those goes on.
    Done(Arc<Insert>, Arc<Bulk>),
}

/// The INSERT with which workers load the rows of a source, and its bulk load; None if the rows are written with the transaction.
pub(super) fn loading(
    insert: &Arc<Insert>,
    source: &mut Begun<'_>,
    context: &mut Context<'_, '_>,
) -> Result<Option<Loaded>, Failure> {
    if insert.conflict.is_some() || insert.returning.is_some() {
        return Ok(None);
    }
    if context.transaction.may_fill(&insert.rules.table) && !insert.reads_table {
        return Ok(Some((Arc::clone(insert), Arc::default())));
    }
    loop {
        match renew(insert, source.waiting(), context)? {
            Renewal::Done(renewed, bulk) => return Ok(Some((renewed, bulk))),
            Renewal::Wants(enough) if source.read(enough, context)? => {}
            Renewal::Wants(_) | Renewal::Refused => return Ok(None),
        }
    }
}

/// Gives a table new storages, if so many rows wait to be inserted that it shall have them: `waiting` is their number, and their bytes.
///
/// # Errors
/// Those of TRUNCATE, and of the table's rows.
pub(crate) fn renew(
    insert: &Insert,
    waiting: (usize, usize),
    context: &mut Context<'_, '_>,
) -> Result<Renewal, Failure> {
    let table = &*insert.rules.table;
    if !context.transaction.may_replace(table) {
        return Ok(Renewal::Refused);
    }
    if let Some(enough) = missing(table, waiting, context)? {
        return Ok(Renewal::Wants(enough));
    }
    let renewed = insert.of_same_rows(truncated(table, context)?);
    let bulk = Arc::default();
    load((&Arc::new(renewed.of_whole_rows()), &bulk), &mut Copied::new(table), context)?;
    Ok(Renewal::Done(Arc::new(renewed), bulk))
}

/// How many rows must wait for a table to have new storages, if more than those that do. The commit does not depend on that.
fn missing(
    table: &Table,
    (rows, bytes): (usize, usize),
    context: &mut Context<'_, '_>,
) -> Result<Option<Enough>, Failure> {
    let share = context.budget().share(bytes);
    let first = context.scan_unobserved(table.rows(), &whole(), Direction::Ascending, 1)?;
    let rows_max = if first.rows.is_empty() { RENEWED_ROWS } else { usize::MAX };
    let few = Enough { rows: rows_max, bytes: share / RENEWED_PART };
    if !few.is_reached(rows, bytes) {
        return Ok(Some(few));
    }
    let there = context.count_unobserved(table.rows(), &whole())?;
    let many = Enough { rows: usize::MAX, bytes: share / COPIED_PART };
    let are_enough = there / MANY_TIMES <= rows as u64 || many.is_reached(rows, bytes);
    Ok((!are_enough).then_some(many))
}

/// The rows of a table, in the order of its primary key.
struct Copied<'t> {
    table: &'t Table,
    rest: Option<KeyRange>,
}

impl<'t> Copied<'t> {
    fn new(table: &'t Table) -> Self {
        Self { table, rest: Some(whole()) }
    }
}

impl Operator for Copied<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let Some(range) = self.rest.take() else { return Ok(None) };
        let (rows, rest) = page(self.table, &range, BATCH_ROWS, context)?;
        self.rest = rest;
        let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        Ok((!rows.is_empty()).then_some(rows))
    }
}
