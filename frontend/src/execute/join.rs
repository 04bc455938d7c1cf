//! Joins: by lookups in an index for batches of rows, by a hash table, or by comparing all pairs.

use std::collections::BTreeMap;

use crate::error::Failure;
use crate::execute::context::row_bytes;
use crate::execute::operator::{Operator, open, row_key};
use crate::execute::scan::{Waiting, points, range_rows};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::plan::{Access, Join, Scan};
use crate::value::Value;

/// Rows on the left whose keys are looked up in one round trip.
const LOOKUP_ROWS: usize = 256;

/// For each row on the left, the rows of a table that an index finds.
pub(super) struct LookupRows<'p> {
    left: Box<dyn Operator + 'p>,
    scan: &'p Scan,
    keep_left: bool,
    condition: Option<&'p Expression>,
    waiting: Waiting,
}

impl<'p> LookupRows<'p> {
    pub(super) fn new(
        left: Box<dyn Operator + 'p>,
        scan: &'p Scan,
        keep_left: bool,
        condition: Option<&'p Expression>,
    ) -> Self {
        Self { left, scan, keep_left, condition, waiting: Waiting::default() }
    }

    fn join(&mut self, left: &[Row], context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let found = match &self.scan.access {
            Access::Points { .. } => {
                let rows: Vec<&[Value]> = left.iter().map(Vec::as_slice).collect();
                points(self.scan, &rows, context)?
            }
            Access::Range(range) => {
                let mut found = Vec::with_capacity(left.len());
                for row in left {
                    found.push(range_rows(self.scan, range, row, context)?);
                }
                found
            }
            Access::Full { .. } => Vec::new(),
        };
        for (left, right) in left.iter().zip(found) {
            let mut joined = Vec::with_capacity(right.len());
            for right in right {
                let row = [left.as_slice(), &right].concat();
                if context.holds(self.condition, &row)? {
                    joined.push(row);
                }
            }
            if joined.is_empty() && self.keep_left {
                let mut row = left.clone();
                row.resize(left.len() + self.scan.table.columns.len(), Value::Null);
                joined.push(row);
            }
            self.waiting.extend(joined);
        }
        Ok(())
    }
}

impl Operator for LookupRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            if let Some(batch) = self.waiting.batch() {
                return Ok(Some(batch));
            }
            let Some(left) = self.left.next(context)? else { return Ok(None) };
            for chunk in left.chunks(LOOKUP_ROWS) {
                self.join(chunk, context)?;
            }
        }
    }
}

/// A join with the right side in memory.
pub(super) struct JoinRows<'p> {
    join: &'p Join,
    left: Box<dyn Operator + 'p>,
    right: Option<Right>,
    /// Rows of the left batch that are not joined yet, and where in the right side to go on.
    pending: Vec<Row>,
    waiting: Waiting,
    left_done: bool,
}

struct Right {
    rows: Vec<Row>,
    /// Whether a row found a partner.
    matched: Vec<bool>,
    /// The rows with a key; empty for a nested loop.
    by_key: BTreeMap<Vec<u8>, Vec<usize>>,
    /// All rows, for a nested loop.
    all: Vec<usize>,
}

impl<'p> JoinRows<'p> {
    pub(super) fn new(join: &'p Join) -> Self {
        Self {
            join,
            left: open(&join.left),
            right: None,
            pending: Vec::new(),
            waiting: Waiting::default(),
            left_done: false,
        }
    }

    fn read_right(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        if self.right.is_some() {
            return Ok(());
        }
        let rows = context.rows(&self.join.right)?;
        let mut by_key: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
        let mut all = Vec::new();
        for (number, row) in rows.iter().enumerate() {
            if self.join.keys.is_empty() {
                all.push(number);
            } else if let Some(key) = self.key(row, false, context)? {
                by_key.entry(key).or_default().push(number);
            }
        }
        let matched = vec![false; rows.len()];
        self.right = Some(Right { rows, matched, by_key, all });
        Ok(())
    }

    /// The key of a row; None if there is a NULL in it, which equals nothing.
    fn key(
        &self,
        row: &[Value],
        is_left: bool,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let mut values = Vec::with_capacity(self.join.keys.len());
        for (left, right) in &self.join.keys {
            let value = context.value(if is_left { left } else { right }, row)?;
            if value.is_null() {
                return Ok(None);
            }
            values.push(value);
        }
        Ok(Some(row_key(&values)))
    }

    fn join_row(&mut self, left: &Row, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        context.check_cancel()?;
        let key = if self.join.keys.is_empty() { None } else { self.key(left, true, context)? };
        let right = self.right.as_mut().expect("the right side was read before");
        let partners: &[usize] = match &key {
            Some(key) => right.by_key.get(key).map_or(&[], Vec::as_slice),
            None => &right.all,
        };
        let mut joined = Vec::new();
        let mut bytes = 0;
        for number in partners {
            let row = [left.as_slice(), &right.rows[*number]].concat();
            if context.holds(self.join.condition.as_ref(), &row)? {
                right.matched[*number] = true;
                bytes += row_bytes(&row);
                Context::check_memory(bytes)?;
                joined.push(row);
            }
        }
        if joined.is_empty() && self.join.keep_left {
            let mut row = left.clone();
            row.resize(self.join.widths[0] + self.join.widths[1], Value::Null);
            joined.push(row);
        }
        self.waiting.extend(joined);
        Ok(())
    }

    /// The rows on the right without a partner, at the end.
    fn rest(&mut self) {
        let Some(right) = self.right.as_mut().filter(|_| self.join.keep_right) else { return };
        let nulls = vec![Value::Null; self.join.widths[0]];
        let alone = right.rows.iter().zip(&right.matched).filter(|(_, matched)| !**matched);
        self.waiting.extend(alone.map(|(row, _)| [nulls.as_slice(), row].concat()));
        right.rows.clear();
        right.matched.clear();
    }
}

impl Operator for JoinRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        self.read_right(context)?;
        loop {
            // A row on the left may have many partners: no more rows than a batch wait.
            while self.waiting.len() < BATCH_ROWS
                && let Some(row) = self.pending.pop()
            {
                self.join_row(&row, context)?;
            }
            if let Some(batch) = self.waiting.batch() {
                return Ok(Some(batch));
            }
            if self.left_done {
                return Ok(None);
            }
            match self.left.next(context)? {
                Some(mut batch) => {
                    batch.reverse();
                    self.pending = batch;
                }
                None => {
                    self.left_done = true;
                    self.rest();
                }
            }
        }
    }
}
