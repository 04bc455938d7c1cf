//! The operators of queries. Each is a source of batches of rows: a parent asks its input for the next batch.
//!
//! ```text
//! open(node) ─► operator ── next ─► batch ── next ─► batch ... None
//! ```
//!
//! *Invariants*: a batch has at least one row, and bounded memory. Operators yield between batches (`pace`).
//!
//! *Not here*: operators with a file of their own: scan, join, lookup, sort, sets, aggregate, window.

use std::collections::VecDeque;

use crate::catalog::system::Relation;
use crate::encoding::key;
use crate::error::{Failure, SqlError};
use crate::execute::aggregate::Aggregation;
use crate::execute::context::row_bytes;
use crate::execute::fold::Folded;
use crate::execute::join::JoinRows;
use crate::execute::lookup::LookupRows;
use crate::execute::pace::Paced;
use crate::execute::partitions::Seen;
use crate::execute::scan::{CountRow, ScanRows};
use crate::execute::sets::{Append, SetRows};
use crate::execute::sort::Sort;
use crate::execute::window::{Elements, RowNumbers};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::memory::Charge;
use crate::plan::Node;
use crate::value::Value;

/// Bytes of values from which on a batch is passed on before it is full.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// A source of rows.
pub(super) trait Operator {
    /// The next rows, at least one; None at the end.
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure>;
}

/// How many rows of a source are to wait, or how many bytes of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

impl Enough {
    /// All rows of a source.
    pub(super) const ALL: Self = Self::rows(usize::MAX);

    pub(super) const fn rows(rows: usize) -> Self {
        Self { rows, bytes: usize::MAX }
    }

    /// Whether so many suffice.
    pub(crate) fn is_reached(self, rows: usize, bytes: usize) -> bool {
        rows >= self.rows || bytes >= self.bytes
    }
}

/// A source, some of whose rows have been read.
pub(super) struct Begun<'p> {
    rows: VecDeque<Row>,
    /// The charge of those rows, and of the last ones that were passed on.
    kept: Charge,
    /// Bytes of the last rows that were passed on.
    passed_bytes: usize,
    /// The source of the others.
    rest: Option<Box<dyn Operator + 'p>>,
}

impl Begun<'static> {
    /// All rows of a source, which are charged if they have waited.
    pub(super) fn all(rows: VecDeque<Row>, kept: Charge) -> Self {
        Self { rows, kept, passed_bytes: 0, rest: None }
    }
}

impl<'p> Begun<'p> {
    pub(super) fn new(rest: Box<dyn Operator + 'p>) -> Self {
        Self { rows: VecDeque::new(), kept: Charge::default(), passed_bytes: 0, rest: Some(rest) }
    }

    /// How many rows wait to be passed on, and their bytes.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.rows.len(), self.kept.bytes())
    }

    /// Reads until enough rows wait to be passed on. Tells whether they do; if not, they are the last.
    pub(super) fn read(
        &mut self,
        enough: Enough,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        self.release_passed();
        while !enough.is_reached(self.rows.len(), self.kept.bytes()) {
            let Some(rest) = &mut self.rest else { return Ok(false) };
            let Some(batch) = rest.next(context)? else { return Ok(false) };
            context.keep(&mut self.kept, &batch)?;
            self.rows.extend(batch);
        }
        Ok(true)
    }

    fn release_passed(&mut self) {
        self.kept.release(std::mem::take(&mut self.passed_bytes));
    }
}

impl Operator for Begun<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        self.release_passed();
        if self.rows.is_empty() {
            return self.rest.as_mut().map_or(Ok(None), |rest| rest.next(context));
        }
        let count = self.rows.len().min(BATCH_ROWS);
        let rows: Vec<Row> = self.rows.drain(..count).collect();
        self.passed_bytes = rows.iter().map(row_bytes).sum();
        Ok(Some(rows))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.kept.dispose(std::mem::take(&mut self.rows));
    }
}

/// A batch under construction.
#[derive(Default)]
pub(super) struct Batch {
    rows: Vec<Row>,
    bytes: usize,
}

impl Batch {
    pub(super) fn push(&mut self, row: Row) {
        self.bytes += row_bytes(&row);
        self.rows.push(row);
    }

    /// Whether the batch must be passed on.
    pub(super) fn is_full(&self) -> bool {
        self.rows.len() >= BATCH_ROWS || self.bytes > BATCH_BYTES_MAX
    }

    /// The rows, if there are any.
    pub(super) fn rows(self) -> Option<Vec<Row>> {
        (!self.rows.is_empty()).then_some(self.rows)
    }
}

/// Opens a node.
pub(super) fn open(node: &Node) -> Box<dyn Operator + '_> {
    let operator = begun(node);
    if !cfg!(debug_assertions) {
        return operator;
    }
    let hands_on = matches!(node, Node::Limit { .. } | Node::SetOperation { operation: None, .. })
        || matches!(node, Node::Project { expressions, .. } if are_first_columns(expressions));
    Box::new(Paced::checked(operator, hands_on))
}

fn begun(node: &Node) -> Box<dyn Operator + '_> {
    match node {
        Node::Values(rows) => Box::new(ValueRows { rows: rows.iter() }),
        Node::Scan(scan) => Box::new(ScanRows::new(scan)),
        Node::Count(scan) => Box::new(CountRow { scan: Some(scan) }),
        Node::System { relation, filter } => {
            let charge = Charge::default();
            Box::new(SystemRows { relation, filter: filter.as_ref(), rows: None, charge })
        }
        Node::Series(bounds) => Box::new(Series { bounds, state: None }),
        Node::Filter { input, condition } => Box::new(Filter { input: open(input), condition }),
        Node::Project { input, expressions } if are_first_columns(expressions) => {
            Box::new(FirstColumns { input: open(input), count: expressions.len() })
        }
        Node::Project { input, expressions } => {
            Box::new(Project { input: open(input), expressions, waiting: Vec::new() })
        }
        Node::Lookup { left, scan, keep_left, condition } => {
            Box::new(LookupRows::new(open(left), scan, *keep_left, condition.as_ref()))
        }
        Node::Join(join) => Box::new(JoinRows::new(join)),
        Node::Aggregate { input, keys, aggregates } => {
            Box::new(Aggregation::new(open(input), keys, aggregates))
        }
        Node::Fold(fold) => Box::new(Folded::new(fold)),
        Node::Sort { input, keys, limit } => Box::new(Sort::new(open(input), keys, limit.as_ref())),
        Node::Limit { input, limit, offset } => Box::new(Limit {
            input: open(input),
            limit: limit.as_ref(),
            offset: offset.as_ref(),
            left: None,
        }),
        Node::RowNumber { input, column, partition } => {
            Box::new(RowNumbers::new(open(input), *column, partition))
        }
        Node::Elements { input, vectors } => Box::new(Elements::new(open(input), vectors)),
        Node::Distinct { input, columns, is_sorted: true } => {
            Box::new(FirstOfEach { input: open(input), columns: *columns, last: None })
        }
        Node::Distinct { input, columns, is_sorted: false } => {
            Box::new(Distinct { input: open(input), columns: *columns, seen: Seen::default() })
        }
        Node::SetOperation { operation: None, left, right } => Box::new(Append::new(left, right)),
        Node::SetOperation { operation: Some(operation), left, right } => {
            Box::new(SetRows::new(*operation, left, right))
        }
    }
}

struct ValueRows<'p> {
    rows: std::slice::Iter<'p, Vec<Expression>>,
}

impl Operator for ValueRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut batch = Vec::with_capacity(self.rows.len().min(BATCH_ROWS));
        for row in self.rows.by_ref().take(BATCH_ROWS) {
            context.pace()?;
            batch.push(context.values(row, &[])?);
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
}

/// The rows of a relation of the system. They are all made first, yielding the thread at intervals.
struct SystemRows<'p> {
    relation: &'static Relation,
    filter: Option<&'p Expression>,
    /// None before they are made.
    rows: Option<std::vec::IntoIter<Row>>,
    charge: Charge,
}

impl Operator for SystemRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let rows = match &mut self.rows {
            Some(rows) => rows,
            None => {
                context.check_version()?;
                let (resources, mut rows) = (context.resources, Vec::new());
                (self.relation.rows)(&resources.facts, &mut |row| {
                    context.pace()?;
                    if context.holds(self.filter, &row)? {
                        context.keep(&mut self.charge, std::slice::from_ref(&row))?;
                        rows.push(row);
                    }
                    Ok(())
                })?;
                self.rows.insert(rows.into_iter())
            }
        };
        let batch: Vec<Row> = rows.take(BATCH_ROWS).collect();
        self.charge.release(batch.iter().map(row_bytes).sum());
        Ok((!batch.is_empty()).then_some(batch))
    }
}

/// The rows that satisfy a condition.
pub(super) fn kept(
    rows: Vec<Row>,
    condition: Option<&Expression>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    let mut kept = Vec::with_capacity(rows.len());
    for row in rows {
        context.pace()?;
        if context.holds(condition, &row)? {
            kept.push(row);
        }
    }
    Ok(kept)
}

struct Series<'p> {
    bounds: &'p [Expression; 3],
    /// The next value, the last value, the step; None before the first.
    state: Option<(Option<i64>, i64, i64)>,
}

impl Operator for Series<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        context.check_cancel()?;
        let (mut next, last, step) = match self.state {
            Some(state) => state,
            None => {
                let bounds = context.values(self.bounds, &[])?;
                let [Value::Integer(first), Value::Integer(last), Value::Integer(step)] =
                    bounds.as_slice()
                else {
                    return Ok(None);
                };
                if *step == 0 {
                    return Err(SqlError::new("22023", "step size cannot equal zero").into());
                }
                (Some(*first), *last, *step)
            }
        };
        let mut batch = Vec::new();
        while let Some(value) = next
            && batch.len() < BATCH_ROWS
            && (if step > 0 { value <= last } else { value >= last })
        {
            context.pace()?;
            batch.push(vec![Value::Integer(value)]);
            next = value.checked_add(step);
        }
        self.state = Some((next, last, step));
        Ok((!batch.is_empty()).then_some(batch))
    }
}

struct Filter<'p> {
    input: Box<dyn Operator + 'p>,
    condition: &'p Expression,
}

impl Operator for Filter<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        while let Some(batch) = self.input.next(context)? {
            let batch = kept(batch, Some(self.condition), context)?;
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

/// Whether expressions are the first columns of a row, in order.
fn are_first_columns(expressions: &[Expression]) -> bool {
    let mut numbered = expressions.iter().enumerate();
    numbered.all(|(number, expression)| *expression == Expression::Column(number))
}

/// The first columns of rows, unchanged.
struct FirstColumns<'p> {
    input: Box<dyn Operator + 'p>,
    count: usize,
}

impl Operator for FirstColumns<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut batch = self.input.next(context)?;
        batch.iter_mut().flatten().for_each(|row| row.truncate(self.count));
        Ok(batch)
    }
}

struct Project<'p> {
    input: Box<dyn Operator + 'p>,
    expressions: &'p [Expression],
    /// Input rows that wait because the results of the rows before them were large.
    waiting: Vec<Row>,
}

impl Operator for Project<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut batch = std::mem::take(&mut self.waiting);
        if batch.is_empty() {
            let Some(next) = self.input.next(context)? else { return Ok(None) };
            batch = next;
        }
        let mut bytes = 0;
        for number in 0..batch.len() {
            context.pace()?;
            batch[number] = context.values(self.expressions, &batch[number])?;
            bytes += row_bytes(&batch[number]);
            if bytes > BATCH_BYTES_MAX {
                self.waiting = batch.split_off(number + 1);
                break;
            }
        }
        Ok(Some(batch))
    }
}

/// The number of rows of a clause, LIMIT or OFFSET; None is no limit.
pub(super) fn row_count(
    (clause, expression): (&str, &Expression),
    context: &mut Context<'_, '_>,
) -> Result<Option<usize>, Failure> {
    match context.value(expression, &[])? {
        Value::Integer(count) => usize::try_from(count)
            .map(Some)
            .map_err(|_| SqlError::negative_row_count(clause).into()),
        _ => Ok(None),
    }
}

struct Limit<'p> {
    input: Box<dyn Operator + 'p>,
    limit: Option<&'p Expression>,
    offset: Option<&'p Expression>,
    /// Rows to skip, and rows to return; None before the first.
    left: Option<(usize, usize)>,
}

impl Operator for Limit<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let (mut skip, mut give) = match self.left {
            Some(left) => left,
            None => {
                let limit = match self.limit {
                    Some(limit) => row_count(("LIMIT", limit), context)?,
                    None => None,
                };
                let offset = match self.offset {
                    Some(offset) => row_count(("OFFSET", offset), context)?,
                    None => None,
                };
                (offset.unwrap_or(0), limit.unwrap_or(usize::MAX))
            }
        };
        let mut found = None;
        while give > 0 {
            let Some(mut batch) = self.input.next(context)? else { break };
            if skip >= batch.len() {
                skip -= batch.len();
                continue;
            }
            batch.drain(..skip);
            skip = 0;
            batch.truncate(give);
            give -= batch.len();
            found = Some(batch);
            break;
        }
        if found.is_none() {
            give = 0;
        }
        self.left = Some((skip, give));
        Ok(found)
    }
}

/// Some columns of a row as one key.
pub(super) fn row_key(values: &[Value]) -> Vec<u8> {
    // An empty vector without memory points to no page: to compare it takes the processor a hundred cycles.
    let mut bytes = Vec::with_capacity(8 * values.len().max(1));
    values.iter().for_each(|value| key::push(&mut bytes, value));
    bytes
}

struct Distinct<'p> {
    input: Box<dyn Operator + 'p>,
    columns: usize,
    seen: Seen,
}

impl Operator for Distinct<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            while let Some(batch) = self.input.next(context)? {
                let mut given = Vec::with_capacity(batch.len());
                for row in batch {
                    context.pace()?;
                    let key = row_key(&row[..self.columns]);
                    if !self.seen.contains(&key) && self.seen.add(&key, || row.clone(), context)? {
                        given.push(row);
                    }
                }
                if !given.is_empty() {
                    return Ok(Some(given));
                }
            }
            match self.seen.next(context)? {
                Some(others) => self.input = others,
                None => return Ok(None),
            }
        }
    }
}

/// The first of each run of rows whose first columns are equal.
struct FirstOfEach<'p> {
    input: Box<dyn Operator + 'p>,
    columns: usize,
    last: Option<Vec<u8>>,
}

impl Operator for FirstOfEach<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        while let Some(batch) = self.input.next(context)? {
            let mut given = Vec::new();
            for row in batch {
                context.pace()?;
                let key = Some(row_key(&row[..self.columns]));
                if self.last != key {
                    self.last = key;
                    given.push(row);
                }
            }
            if !given.is_empty() {
                return Ok(Some(given));
            }
        }
        Ok(None)
    }
}
