//! Joins: by lookups in an index for batches of rows, by a hash table, or by comparing all pairs.

use std::collections::BTreeMap;

use gannet_engine::{Direction, KeyRange};

use crate::error::Failure;
use crate::execute::context::KEY_OVERHEAD_BYTES;
use crate::execute::operator::{Batch, Operator, open, row_key};
use crate::execute::scan::{key_range, points, rows_of_entries};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::memory::Charge;
use crate::plan::{Access, IndexRange, Join, Scan};
use crate::value::Value;

/// Rows on the left whose keys are looked up in one round trip.
const LOOKUP_ROWS: usize = 256;
/// Pairs of rows that are compared before others have their turn.
const PAIRS: usize = 256;

/// For each row on the left, the rows of a table that an index finds.
pub(super) struct LookupRows<'p> {
    left: Box<dyn Operator + 'p>,
    scan: &'p Scan,
    keep_left: bool,
    condition: Option<&'p Expression>,
    /// Rows on the left that are not joined yet.
    pending: std::vec::IntoIter<Row>,
    /// The one that is being joined, with a range.
    current: Option<InRange>,
}

/// A row on the left, and the range of its partners that is left.
struct InRange {
    row: Row,
    rest: Option<KeyRange>,
    matched: bool,
}

impl<'p> LookupRows<'p> {
    pub(super) fn new(
        left: Box<dyn Operator + 'p>,
        scan: &'p Scan,
        keep_left: bool,
        condition: Option<&'p Expression>,
    ) -> Self {
        let pending = Vec::new().into_iter();
        Self { left, scan, keep_left, condition, pending, current: None }
    }

    /// Joins a row on the left with some on the right; whether one was fit.
    fn join(
        &self,
        left: &Row,
        right: Vec<Row>,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        let mut matched = false;
        for right in right {
            let row = [left.as_slice(), &right].concat();
            if context.holds(self.condition, &row)? {
                matched = true;
                joined.push(row);
            }
        }
        Ok(matched)
    }

    /// The row on the left without a partner, if it is wanted.
    fn alone(&self, mut row: Row, joined: &mut Batch) {
        if self.keep_left {
            row.resize(row.len() + self.scan.table.columns.len(), Value::Null);
            joined.push(row);
        }
    }

    /// Joins the next rows by points.
    fn join_points(
        &mut self,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let left: Vec<Row> = self.pending.by_ref().take(LOOKUP_ROWS).collect();
        let rows: Vec<&[Value]> = left.iter().map(Vec::as_slice).collect();
        let found = points(self.scan, &rows, context)?;
        for (left, right) in left.into_iter().zip(found) {
            if !self.join(&left, right, joined, context)? {
                self.alone(left, joined);
            }
        }
        Ok(())
    }

    /// Joins the next row, or a part of it, by a range.
    fn join_range(
        &mut self,
        range: &IndexRange,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let mut current = match self.current.take() {
            Some(current) => current,
            None => {
                let Some(row) = self.pending.next() else { return Ok(()) };
                let rest = key_range(self.scan, range, &row, context)?;
                InRange { row, rest, matched: false }
            }
        };
        if let Some(keys) = current.rest.take() {
            let page = context.scan(&keys, Direction::Ascending, BATCH_ROWS)?;
            let right = rows_of_entries(self.scan, range.index, &page.rows, context)?;
            current.matched |= self.join(&current.row, right, joined, context)?;
            current.rest = page.rest;
        }
        match (&current.rest, current.matched) {
            (Some(_), _) => self.current = Some(current),
            (None, true) => {}
            (None, false) => self.alone(current.row, joined),
        }
        Ok(())
    }
}

impl Operator for LookupRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut joined = Batch::default();
        while !joined.is_full() {
            if self.current.is_none() && self.pending.len() == 0 {
                match self.left.next(context)? {
                    Some(left) => self.pending = left.into_iter(),
                    None => break,
                }
            }
            let scan = self.scan;
            match &scan.access {
                Access::Points { .. } => self.join_points(&mut joined, context)?,
                Access::Range(range) => self.join_range(range, &mut joined, context)?,
                Access::Full { .. } => break,
            }
        }
        Ok(joined.rows())
    }
}

/// A join with the right side in memory.
pub(super) struct JoinRows<'p> {
    join: &'p Join,
    left: Box<dyn Operator + 'p>,
    right: Option<Right>,
    /// Rows of the left batch that are not joined yet.
    pending: std::vec::IntoIter<Row>,
    current: Option<Pairing>,
    left_done: bool,
    /// Where to go on with rows on the right that may have no partner.
    rest: usize,
}

/// A row on the left, and how far its partners on the right were looked at.
struct Pairing {
    row: Row,
    /// None in a nested loop.
    key: Option<Vec<u8>>,
    place: usize,
    matched: bool,
}

#[derive(Default)]
struct Right {
    rows: Vec<Row>,
    /// Whether a row found a partner.
    matched: Vec<bool>,
    /// The rows with a key; empty for a nested loop.
    by_key: BTreeMap<Vec<u8>, Vec<usize>>,
    charge: Charge,
}

impl<'p> JoinRows<'p> {
    pub(super) fn new(join: &'p Join) -> Self {
        Self {
            join,
            left: open(&join.left),
            right: None,
            pending: Vec::new().into_iter(),
            current: None,
            left_done: false,
            rest: 0,
        }
    }

    fn read_right(&mut self, context: &mut Context<'_, '_>) -> Result<Right, Failure> {
        let mut input = open(&self.join.right);
        let mut right = Right::default();
        while let Some(batch) = input.next(context)? {
            context.check_cancel()?;
            context.keep(&mut right.charge, &batch)?;
            for row in batch {
                if !self.join.keys.is_empty()
                    && let Some(key) = self.key(&row, false, context)?
                {
                    let bytes = key.len() + KEY_OVERHEAD_BYTES;
                    right.charge.add(context.budget(), bytes)?;
                    right.by_key.entry(key).or_default().push(right.rows.len());
                }
                right.rows.push(row);
                right.matched.push(false);
            }
        }
        Ok(right)
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

    /// Joins the next row on the left, or a part of it.
    fn join_row(
        &mut self,
        mut pairing: Pairing,
        right: &mut Right,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let partners: Option<&[usize]> = match &pairing.key {
            _ if self.join.keys.is_empty() => None,
            Some(key) => Some(right.by_key.get(key).map_or(&[], Vec::as_slice)),
            None => Some(&[]),
        };
        let count = partners.map_or(right.rows.len(), <[usize]>::len);
        while pairing.place < count && !joined.is_full() {
            if pairing.place.is_multiple_of(PAIRS) {
                context.check_cancel()?;
            }
            let number = partners.map_or(pairing.place, |partners| partners[pairing.place]);
            pairing.place += 1;
            let row = [pairing.row.as_slice(), &right.rows[number]].concat();
            if context.holds(self.join.condition.as_ref(), &row)? {
                right.matched[number] = true;
                pairing.matched = true;
                joined.push(row);
            }
        }
        if pairing.place < count {
            self.current = Some(pairing);
        } else if !pairing.matched && self.join.keep_left {
            let mut row = pairing.row;
            row.resize(self.join.widths[0] + self.join.widths[1], Value::Null);
            joined.push(row);
        }
        Ok(())
    }

    /// The rows on the right without a partner, at the end.
    fn rest(&mut self, right: &Right, joined: &mut Batch) {
        let nulls = vec![Value::Null; self.join.widths[0]];
        while !joined.is_full()
            && self.join.keep_right
            && let Some(row) = right.rows.get(self.rest)
        {
            if !right.matched[self.rest] {
                joined.push([nulls.as_slice(), row].concat());
            }
            self.rest += 1;
        }
    }

    fn next_of(
        &mut self,
        right: &mut Right,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Vec<Row>>, Failure> {
        let mut joined = Batch::default();
        while !joined.is_full() {
            if let Some(pairing) = self.current.take() {
                self.join_row(pairing, right, &mut joined, context)?;
            } else if let Some(row) = self.pending.next() {
                let has_keys = !self.join.keys.is_empty();
                let key = if has_keys { self.key(&row, true, context)? } else { None };
                self.current = Some(Pairing { row, key, place: 0, matched: false });
            } else if self.left_done {
                self.rest(right, &mut joined);
                break;
            } else {
                context.check_cancel()?;
                match self.left.next(context)? {
                    Some(batch) => self.pending = batch.into_iter(),
                    None => self.left_done = true,
                }
            }
        }
        Ok(joined.rows())
    }
}

impl Operator for JoinRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut right = match self.right.take() {
            Some(right) => right,
            None => self.read_right(context)?,
        };
        let batch = self.next_of(&mut right, context);
        self.right = Some(right);
        batch
    }
}
