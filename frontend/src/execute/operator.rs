//! The operators of queries, each a source of batches of rows.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::catalog::system::Relation;
use crate::encoding::key;
use crate::error::{Failure, SqlError};
use crate::execute::aggregate::Aggregation;
use crate::execute::context::row_bytes;
use crate::execute::join::{JoinRows, LookupRows};
use crate::execute::scan::ScanRows;
use crate::execute::window::{Elements, RowNumbers};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::{Expression, compare};
use crate::plan::{Node, SetOperation, SortKey};
use crate::value::Value;

/// Values in a batch, from which on it is handed on before it is full.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// A source of rows.
pub(super) trait Operator {
    /// The next rows, at least one; None at the end.
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure>;
}

/// Begins to execute a node.
pub(super) fn open(node: &Node) -> Box<dyn Operator + '_> {
    match node {
        Node::Values(rows) => Box::new(ValueRows { rows: rows.iter() }),
        Node::Scan(scan) => Box::new(ScanRows::new(scan)),
        Node::System { relation, filter } => {
            Box::new(SystemRows { relation, filter: filter.as_ref(), done: false })
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
        Node::Sort { input, keys, limit } => {
            Box::new(Sort { input: open(input), keys, limit: limit.as_ref(), done: false })
        }
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
        Node::Distinct { input, columns } => {
            Box::new(Distinct { input: open(input), columns: *columns, seen: BTreeSet::new() })
        }
        Node::SetOperation { operation, all, left, right } => Box::new(SetRows {
            operation: *operation,
            all: *all,
            left: open(left),
            right: open(right),
            left_done: false,
            seen: BTreeMap::new(),
            ready: false,
        }),
    }
}

struct ValueRows<'p> {
    rows: std::slice::Iter<'p, Vec<Expression>>,
}

impl Operator for ValueRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut batch = Vec::with_capacity(self.rows.len().min(BATCH_ROWS));
        for row in self.rows.by_ref().take(BATCH_ROWS) {
            batch.push(context.values(row, &[])?);
        }
        Ok((!batch.is_empty()).then_some(batch))
    }
}

struct SystemRows<'p> {
    relation: &'static Relation,
    filter: Option<&'p Expression>,
    done: bool,
}

impl Operator for SystemRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(None);
        }
        context.check_version()?;
        let mut rows = (self.relation.rows)(&context.resources.facts);
        if self.filter.is_some() {
            rows = kept(rows, self.filter, context)?;
        }
        Ok((!rows.is_empty()).then_some(rows))
    }
}

/// The rows on which a condition holds.
pub(super) fn kept(
    rows: Vec<Row>,
    condition: Option<&Expression>,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    let mut kept = Vec::with_capacity(rows.len());
    for row in rows {
        if context.holds(condition, &row)? {
            kept.push(row);
        }
    }
    Ok(kept)
}

struct Series<'p> {
    bounds: &'p [Expression; 3],
    /// The next value, the last one, the step; None before the first.
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

/// Whether expressions are the first columns of a row, in their order.
fn are_first_columns(expressions: &[Expression]) -> bool {
    let mut numbered = expressions.iter().enumerate();
    numbered.all(|(number, expression)| *expression == Expression::Column(number))
}

/// The first columns of rows, which nothing is made of.
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
    /// Rows of the input that were left when what had been made of others was large.
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

struct Sort<'p> {
    input: Box<dyn Operator + 'p>,
    keys: &'p [SortKey],
    limit: Option<&'p Expression>,
    done: bool,
}

/// The order of two rows by some columns, which stand before them.
pub(super) fn sort_order(keys: &[SortKey], a: &[Value], b: &[Value]) -> Ordering {
    for ((key, a), b) in keys.iter().zip(a).zip(b) {
        let order = match (a.is_null(), b.is_null()) {
            (false, false) if key.descending => compare(b, a),
            (false, false) => compare(a, b),
            (a, b) if key.nulls_first => b.cmp(&a),
            (a, b) => a.cmp(&b),
        };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

impl Operator for Sort<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(None);
        }
        let limit = match self.limit {
            Some(limit) => row_count(limit, context)?.unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let keep = limit.saturating_mul(2).max(2 * BATCH_ROWS);
        let mut rows: Vec<(Row, Row)> = Vec::new();
        let by_key = |a: &(Row, Row), b: &(Row, Row)| sort_order(self.keys, &a.0, &b.0);
        while let Some(batch) = self.input.next(context)? {
            if limit == usize::MAX {
                context.charge(&batch)?;
            }
            for row in batch {
                let mut key = Vec::with_capacity(self.keys.len());
                for sort_key in self.keys {
                    key.push(context.value(&sort_key.expression, &row)?);
                }
                rows.push((key, row));
            }
            // Only the first ones are wanted: the others need not be kept.
            if rows.len() > keep {
                rows.sort_by(by_key);
                rows.truncate(limit);
            }
        }
        rows.sort_by(by_key);
        rows.truncate(limit);
        let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
        Ok((!rows.is_empty()).then_some(rows))
    }
}

/// A number of rows; None is no limit.
fn row_count(
    expression: &Expression,
    context: &mut Context<'_, '_>,
) -> Result<Option<usize>, Failure> {
    match context.value(expression, &[])? {
        Value::Integer(count) => usize::try_from(count)
            .map(Some)
            .map_err(|_| SqlError::new("2201W", "LIMIT and OFFSET must not be negative").into()),
        _ => Ok(None),
    }
}

struct Limit<'p> {
    input: Box<dyn Operator + 'p>,
    limit: Option<&'p Expression>,
    offset: Option<&'p Expression>,
    /// Rows to skip and rows to give; None before the first.
    left: Option<(usize, usize)>,
}

impl Operator for Limit<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let (mut skip, mut give) = match self.left {
            Some(left) => left,
            None => {
                let limit = match self.limit {
                    Some(limit) => row_count(limit, context)?,
                    None => None,
                };
                let offset = match self.offset {
                    Some(offset) => row_count(offset, context)?,
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
    let mut bytes = Vec::with_capacity(8 * values.len());
    values.iter().for_each(|value| key::push(&mut bytes, value));
    bytes
}

struct Distinct<'p> {
    input: Box<dyn Operator + 'p>,
    columns: usize,
    seen: BTreeSet<Vec<u8>>,
}

impl Operator for Distinct<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        while let Some(mut batch) = self.input.next(context)? {
            batch.retain(|row| self.seen.insert(row_key(&row[..self.columns])));
            context.charge(&batch)?;
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

struct SetRows<'p> {
    operation: SetOperation,
    all: bool,
    left: Box<dyn Operator + 'p>,
    right: Box<dyn Operator + 'p>,
    left_done: bool,
    /// UNION: the rows that were given. Otherwise: how often a row is on the right.
    seen: BTreeMap<Vec<u8>, usize>,
    ready: bool,
}

impl SetRows<'_> {
    fn count_right(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.ready, true) {
            while let Some(batch) = self.right.next(context)? {
                context.charge(&batch)?;
                for row in batch {
                    *self.seen.entry(row_key(&row)).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Whether a row on the left is a row of the result.
    fn is_given(&mut self, row: &[Value]) -> bool {
        let key = row_key(row);
        let count = self.seen.get(&key).copied().unwrap_or(0);
        match (self.operation, self.all) {
            (SetOperation::Union, true) => true,
            (SetOperation::Union, false) => self.seen.insert(key, 1).is_none(),
            (SetOperation::Intersect, true) => {
                self.seen.insert(key, count.saturating_sub(1));
                count > 0
            }
            // A second such row on the left is no other row.
            (SetOperation::Intersect, false) => self.seen.remove(&key).is_some(),
            (SetOperation::Except, true) => {
                self.seen.insert(key, count.saturating_sub(1));
                count == 0
            }
            (SetOperation::Except, false) => self.seen.insert(key, 1).is_none(),
        }
    }
}

impl Operator for SetRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if self.operation != SetOperation::Union {
            self.count_right(context)?;
        }
        loop {
            let batch = if self.left_done {
                match self.operation {
                    SetOperation::Union => self.right.next(context)?,
                    SetOperation::Intersect | SetOperation::Except => None,
                }
            } else {
                self.left.next(context)?
            };
            let Some(mut batch) = batch else {
                if self.left_done || self.operation != SetOperation::Union {
                    return Ok(None);
                }
                self.left_done = true;
                continue;
            };
            batch.retain(|row| self.is_given(row));
            if !self.all {
                context.charge(&batch)?;
            }
            if !batch.is_empty() {
                return Ok(Some(batch));
            }
        }
    }
}

/// Rows in batches.
pub(super) fn batched(rows: &mut VecDeque<Row>) -> Option<Vec<Row>> {
    let count = rows.len().min(BATCH_ROWS);
    (count > 0).then(|| rows.drain(..count).collect())
}
