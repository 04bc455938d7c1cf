//! Joins by lookups in an index of the table on the right.
//!
//! ```text
//! points   rows on the left ─ batch of keys ─┬─ found before: the rows are remembered
//!                                            └─ else: read together
//! range    each row on the left ─► pages of its partners
//! ```
//! The rows that are remembered take bounded memory. Orders that lead to a few hundred countries look each country up once.
//!
//! *Not here*: the choice of the index (`plan/join`), and joins without one (`join`).

use std::ops::Range;

use gannet_engine::{Direction, KeyRange, TableKey};

use crate::error::Failure;
use crate::execute::context::{KEY_OVERHEAD_BYTES, row_bytes};
use crate::execute::operator::{Batch, Operator};
use crate::execute::scan::{PointKeys, key_range, rows_at, rows_of_entries};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::plan::{Access, IndexChoice, IndexRange, Scan, is_steady};
use crate::value::Value;

/// Rows on the left whose partners are looked up together.
const LOOKUP_ROWS: usize = 256;
/// Points that are looked up together, unless one row needs more.
const LOOKUP_POINTS: usize = 10_000;
/// Most bytes of rows that are remembered.
const FOUND_BYTES: usize = 1 << 20;
/// Divides the memory that an operator may keep: the remembered rows take no more than that.
const FOUND_PART: usize = 16;

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
    /// The rows that are being joined by points.
    looked_up: LookedUp,
    found: Found,
    /// Whether the filter says the same of a row whenever it is asked.
    is_steady: bool,
}

/// A row on the left, and the remaining range of its partners.
struct InRange {
    row: Row,
    rest: Option<KeyRange>,
    matched: bool,
}

/// Rows on the left whose partners are found.
#[derive(Default)]
struct LookedUp {
    /// Each row, and the part of `numbers` that is its own.
    left: std::vec::IntoIter<(Row, Range<usize>)>,
    /// The numbers of found rows, in order for each row on the left. Some are there twice.
    numbers: Vec<usize>,
}

/// The rows that keys of an index have led to.
#[derive(Default)]
struct Found {
    numbers: KeyMap<usize>,
    rows: Vec<Option<Row>>,
    bytes: usize,
    charge: Charge,
}

impl Drop for Found {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Found {
    fn forget(&mut self) {
        self.bytes = 0;
        let content = (std::mem::take(&mut self.numbers), std::mem::take(&mut self.rows));
        self.charge.dispose(content);
    }

    /// Charges the rows, or forgets them if they are many.
    fn tidy(&mut self, context: &Context<'_, '_>) {
        let bytes_max = FOUND_BYTES.min(context.budget().share(self.charge.bytes()) / FOUND_PART);
        if self.bytes > bytes_max || self.charge.set(context.budget(), self.bytes).is_err() {
            self.forget();
        }
    }

    /// Finds the rows that some keys lead to, which have the numbers after those of the rows so far.
    fn look_up(
        &mut self,
        (scan, index): (&Scan, IndexChoice),
        keys: &[TableKey],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if keys.is_empty() {
            return Ok(());
        }
        let rows = rows_at(scan, index, keys, context)?;
        let bytes_of = |(key, row): (&TableKey, &Option<Row>)| {
            2 * KEY_OVERHEAD_BYTES + key.key.len() + row.as_ref().map_or(0, row_bytes)
        };
        self.bytes += keys.iter().zip(&rows).map(bytes_of).sum::<usize>();
        self.rows.extend(rows);
        Ok(())
    }
}

impl<'p> LookupRows<'p> {
    pub(super) fn new(
        left: Box<dyn Operator + 'p>,
        scan: &'p Scan,
        keep_left: bool,
        condition: Option<&'p Expression>,
    ) -> Self {
        let pending = Vec::new().into_iter();
        let is_steady = scan.filter.as_ref().is_none_or(is_steady);
        let found = Found::default();
        Self {
            left,
            scan,
            keep_left,
            condition,
            pending,
            current: None,
            looked_up: LookedUp::default(),
            found,
            is_steady,
        }
    }

    /// Joins a row on the left with some on the right. Tells whether any pair satisfies the condition.
    fn join<'r>(
        &self,
        left: &Row,
        right: impl IntoIterator<Item = &'r Row>,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        let mut matched = false;
        for right in right {
            context.pace()?;
            let row = [left.as_slice(), right].concat();
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

    /// Finds the partners of the next rows by points: combinations of values of the key columns.
    fn look_up(
        &mut self,
        (index, columns): (IndexChoice, &[Vec<Expression>]),
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let each = columns.iter().map(Vec::len).product::<usize>().max(1);
        let count = (LOOKUP_POINTS / each).clamp(1, LOOKUP_ROWS);
        let table = index.storage(&self.scan.table);
        let (mut points, mut keys) = (PointKeys::new(), Vec::new());
        let (mut left, mut numbers) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for row in self.pending.by_ref().take(count) {
            context.pace()?;
            let start = numbers.len();
            points.fill(columns, &row, context)?;
            for key in points.iter() {
                context.pace()?;
                let next = self.found.rows.len() + keys.len();
                numbers.push(self.found.numbers.get(key).copied().unwrap_or_else(|| {
                    self.found.numbers.insert_new(key, next);
                    keys.push(TableKey { table, key: key.to_vec() });
                    next
                }));
            }
            numbers[start..].sort_unstable();
            left.push((row, start..numbers.len()));
        }
        self.found.look_up((self.scan, index), &keys, context)?;
        self.looked_up = LookedUp { left: left.into_iter(), numbers };
        Ok(())
    }

    /// Joins rows whose partners are found, until the batch is full.
    fn join_found(
        &mut self,
        joined: &mut Batch,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        while !joined.is_full()
            && let Some((row, own)) = self.looked_up.left.next()
        {
            context.pace()?;
            let own = self.looked_up.numbers[own].chunk_by(|a, b| a == b);
            let partners = own.filter_map(|equal| self.found.rows[equal[0]].as_ref());
            if !self.join(&row, partners, joined, context)? {
                self.alone(row, joined);
            }
        }
        if self.looked_up.left.len() > 0 {
            return Ok(());
        }
        if self.is_steady {
            self.found.tidy(context);
        } else {
            self.found.forget();
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
            current.matched |= self.join(&current.row, &right, joined, context)?;
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
            if self.looked_up.left.len() > 0 {
                self.join_found(&mut joined, context)?;
                continue;
            }
            if self.current.is_none() && self.pending.len() == 0 {
                match self.left.next(context)? {
                    Some(left) => self.pending = left.into_iter(),
                    None => break,
                }
            }
            let scan = self.scan;
            match &scan.access {
                Access::Points { index, columns } => self.look_up((*index, columns), context)?,
                Access::Range(range) => self.join_range(range, &mut joined, context)?,
                Access::Full => break,
            }
        }
        Ok(joined.rows())
    }
}
