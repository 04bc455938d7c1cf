//! Joins: by lookups in an index for batches of rows, by a hash table, or by comparing all pairs.
//!
//! ```text
//! LookupRows   rows on the left ─ batch of keys ─► index of the table on the right     one round trip per batch
//! JoinRows     rows on the right in memory, by key or as a list ◄─ rows on the left
//!              too many: both sides go into partitions by key, and each partition is joined by itself
//! ```
//!
//! *Not here*: which join a query uses (`plan/join`), and its files (`partitions`).

use std::collections::BTreeMap;

use gannet_engine::{Direction, KeyRange};

use crate::error::Failure;
use crate::execute::context::{KEY_OVERHEAD_BYTES, row_bytes};
use crate::execute::operator::{Batch, Operator, open, row_key};
use crate::execute::partitions::{Partitions, Sides};
use crate::execute::scan::{key_range, points, rows_of_entries};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::memory::Charge;
use crate::plan::{Access, IndexRange, Join, Scan};
use crate::value::Value;

/// Rows on the left whose partners are looked up in one round trip.
const LOOKUP_ROWS: usize = 256;
/// Points in one round trip, unless one row needs more.
const LOOKUP_POINTS: usize = 10_000;

/// Joins each row on the left with the rows of a table that an index finds.
pub(super) struct LookupRows<'p> {
    left: Box<dyn Operator + 'p>,
    scan: &'p Scan,
    keep_left: bool,
    condition: Option<&'p Expression>,
    /// Rows on the left that are not joined yet.
    pending: std::vec::IntoIter<Row>,
    /// The row that is being joined by a range.
    current: Option<InRange>,
}

/// A row on the left, and the remaining range of its partners.
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

    /// Joins a row on the left with some on the right. Tells whether any pair satisfies the condition.
    fn join(
        &self,
        left: &Row,
        right: Vec<Row>,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        let mut matched = false;
        for right in right {
            context.pace()?;
            let row = [left.as_slice(), &right].concat();
            if context.holds(self.condition, &row)? {
                matched = true;
                joined.push(row);
            }
        }
        Ok(matched)
    }

    /// Adds the row on the left without a partner, if the join includes such rows.
    fn alone(&self, mut row: Row, joined: &mut Batch) {
        if self.keep_left {
            row.resize(row.len() + self.scan.table.columns.len(), Value::Null);
            joined.push(row);
        }
    }

    /// Joins the next rows by points: combinations of values of the key columns.
    fn join_points(
        &mut self,
        columns: &[Vec<Expression>],
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let each = columns.iter().map(Vec::len).product::<usize>().max(1);
        let count = (LOOKUP_POINTS / each).clamp(1, LOOKUP_ROWS);
        let left: Vec<Row> = self.pending.by_ref().take(count).collect();
        let rows: Vec<&[Value]> = left.iter().map(Vec::as_slice).collect();
        let found = points(self.scan, &rows, context)?;
        for (left, right) in left.into_iter().zip(found) {
            context.pace()?;
            if !self.join(&left, right, joined, context)? {
                self.alone(left, joined);
            }
        }
        Ok(())
    }

    /// Joins the next row, or a part of its partners, by a range.
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
                let rest = key_range(range, &row, context)?;
                InRange { row, rest, matched: false }
            }
        };
        if let Some(keys) = current.rest.take() {
            let storage = range.index.storage(&self.scan.table);
            let page = context.scan(storage, &keys, Direction::Ascending, BATCH_ROWS)?;
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
                Access::Points { columns, .. } => {
                    self.join_points(columns, &mut joined, context)?
                }
                Access::Range(range) => self.join_range(range, &mut joined, context)?,
                Access::Full => break,
            }
        }
        Ok(joined.rows())
    }
}

/// A join with the right side in memory. If the right side does not fit and the join has keys, both sides go into partitions,
/// and each partition is joined by itself.
pub(super) struct JoinRows<'p> {
    join: &'p Join,
    input: Sides<'p>,
    input_done: bool,
    /// Rows of the last batch that are not joined yet, and whether they belong to the right side.
    pending: (std::vec::IntoIter<Row>, bool),
    right: Right,
    current: Option<Pairing>,
    /// The next row on the right to check for a partner.
    rest: usize,
    /// The rows of both sides in files, if the right side does not fit.
    others: Partitions,
}

/// A row on the left, and the number of its partners that were compared.
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
    /// Whether each row has found a partner.
    matched: Vec<bool>,
    /// The rows with a key; empty for a nested loop.
    by_key: BTreeMap<Vec<u8>, Vec<usize>>,
    charge: Charge,
}

impl Drop for Right {
    fn drop(&mut self) {
        let keys = std::mem::take(&mut self.by_key);
        self.charge.dispose((keys, std::mem::take(&mut self.rows)));
    }
}

impl<'p> JoinRows<'p> {
    pub(super) fn new(join: &'p Join) -> Self {
        Self {
            join,
            input: Sides::new(open(&join.left), open(&join.right)),
            input_done: false,
            pending: (Vec::new().into_iter(), false),
            right: Right::default(),
            current: None,
            rest: 0,
            others: Partitions::default(),
        }
    }

    /// Keeps a row on the right, or puts it into its partition.
    fn take_right(
        &mut self,
        row: Row,
        right: &mut Right,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if self.join.keys.is_empty() {
            right.charge.add(context.budget(), row_bytes(&row))?;
        } else if let Some(key) = self.key(&row, false, context)? {
            let bytes = row_bytes(&row) + key.len() + KEY_OVERHEAD_BYTES;
            if !self.others.fits(&mut right.charge, bytes, context)? {
                let rows = std::mem::take(&mut right.rows);
                *right = Right::default();
                for row in rows {
                    if let Some(key) = self.key(&row, false, context)? {
                        self.others.put_side(&key, row, true, context)?;
                    }
                }
                return self.others.put_side(&key, row, true, context);
            }
            right.by_key.entry(key).or_default().push(right.rows.len());
        } else {
            self.alone_right(&row, joined);
            return Ok(());
        }
        right.rows.push(row);
        right.matched.push(false);
        Ok(())
    }

    /// Begins to join a row on the left, or puts it into its partition.
    fn take_left(&mut self, row: Row, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let has_keys = !self.join.keys.is_empty();
        let key = if has_keys { self.key(&row, true, context)? } else { None };
        match key {
            Some(key) if !self.others.is_empty() => self.others.put_side(&key, row, false, context),
            key => {
                self.current = Some(Pairing { row, key, place: 0, matched: false });
                Ok(())
            }
        }
    }

    /// Adds the row on the right without a partner, if the join includes such rows.
    fn alone_right(&self, row: &[Value], joined: &mut Batch) {
        if self.join.keep_right {
            let nulls = vec![Value::Null; self.join.widths[0]];
            joined.push([nulls.as_slice(), row].concat());
        }
    }

    /// The key of a row; None if it contains a NULL, which equals nothing.
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

    /// Joins the next row on the left, or a part of its partners.
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
            context.pace()?;
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

    /// Adds rows on the right without a partner, at the end. Tells whether all were checked.
    fn rest(
        &mut self,
        right: &Right,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        while self.join.keep_right
            && let Some(row) = right.rows.get(self.rest)
        {
            context.pace()?;
            if joined.is_full() {
                return Ok(false);
            }
            if !right.matched[self.rest] {
                self.alone_right(row, joined);
            }
            self.rest += 1;
        }
        Ok(true)
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
            } else if let Some(row) = self.pending.0.next() {
                context.pace()?;
                match self.pending.1 {
                    true => self.take_right(row, right, &mut joined, context)?,
                    false => self.take_left(row, context)?,
                }
            } else if !self.input_done {
                context.check_cancel()?;
                match self.input.next(context)? {
                    Some((batch, is_right)) => self.pending = (batch.into_iter(), is_right),
                    None => self.input_done = true,
                }
            } else if self.rest(right, &mut joined, context)? {
                *right = Right::default();
                self.rest = 0;
                match self.others.next(context)? {
                    Some(others) => {
                        self.input = Sides::of_partition(others);
                        self.input_done = false;
                    }
                    None => break,
                }
            }
        }
        Ok(joined.rows())
    }
}

impl Operator for JoinRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut right = std::mem::take(&mut self.right);
        let batch = self.next_of(&mut right, context);
        self.right = right;
        batch
    }
}
