//! Joins by a hash table, or by comparing all pairs.
//!
//! ```text
//! rows on the right in memory, by key or as a list ◄─ rows on the left
//! too many: both sides go into partitions by key, and each partition is joined by itself
//! ```
//!
//! *Not here*: which join a query uses (`plan/join`), its files (`partitions`), and lookups in an index (`lookup`).

use crate::error::Failure;
use crate::execute::context::{KEY_OVERHEAD_BYTES, row_bytes};
use crate::execute::operator::{Batch, Operator, open, row_key};
use crate::execute::partitions::{Partitions, Sides};
use crate::execute::{Context, Row};
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::plan::Join;
use crate::value::Value;

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

/// A row on the left, and the next row on the right that it is compared with.
struct Pairing {
    row: Row,
    next: Option<usize>,
    matched: bool,
}

#[derive(Default)]
struct Right {
    rows: Vec<RightRow>,
    /// The first and the last row with a key; empty for a nested loop.
    by_key: KeyMap<(usize, usize)>,
    charge: Charge,
}

struct RightRow {
    row: Row,
    /// The next row with the same key; in a nested loop the next one.
    next: Option<usize>,
    /// Whether it has found a partner.
    matched: bool,
}

/// Bytes of a row on the right, beside those of the row.
const LINK_BYTES: usize = size_of::<RightRow>() - size_of::<Row>();

impl Right {
    /// Adds a row, whose key is none in a nested loop.
    fn add(&mut self, key: Option<&[u8]>, row: Row) {
        let number = self.rows.len();
        let before = match key {
            None => number.checked_sub(1),
            Some(key) => match self.by_key.get_mut(key) {
                Some((_, last)) => Some(std::mem::replace(last, number)),
                None => {
                    self.by_key.insert_new(key, (number, number));
                    None
                }
            },
        };
        if let Some(before) = before {
            self.rows[before].next = Some(number);
        }
        self.rows.push(RightRow { row, next: None, matched: false });
    }
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
            right.charge.add(context.budget(), row_bytes(&row) + LINK_BYTES)?;
            right.add(None, row);
            return Ok(());
        }
        let Some(key) = self.key(&row, false, context)? else {
            self.alone_right(&row, joined);
            return Ok(());
        };
        let bytes = row_bytes(&row) + LINK_BYTES + key.len() + KEY_OVERHEAD_BYTES;
        if self.others.fits(&mut right.charge, bytes, context)? {
            right.add(Some(&key), row);
            return Ok(());
        }
        let rows = std::mem::take(&mut right.rows);
        *right = Right::default();
        for RightRow { row, .. } in rows {
            if let Some(key) = self.key(&row, false, context)? {
                self.others.put_side(&key, row, true, context)?;
            }
        }
        self.others.put_side(&key, row, true, context)
    }

    /// Begins to join a row on the left, or puts it into its partition. All rows on the right were taken.
    fn take_left(
        &mut self,
        row: Row,
        right: &Right,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let next = if self.join.keys.is_empty() {
            (!right.rows.is_empty()).then_some(0)
        } else {
            match self.key(&row, true, context)? {
                Some(key) if !self.others.is_empty() => {
                    return self.others.put_side(&key, row, false, context);
                }
                Some(key) => right.by_key.get(&key).map(|(first, _)| *first),
                None => None,
            }
        };
        self.current = Some(Pairing { row, next, matched: false });
        Ok(())
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
        while let Some(number) = pairing.next
            && !joined.is_full()
        {
            context.pace()?;
            let partner = &mut right.rows[number];
            pairing.next = partner.next;
            let row = [pairing.row.as_slice(), &partner.row].concat();
            if context.holds(self.join.condition.as_ref(), &row)? {
                partner.matched = true;
                pairing.matched = true;
                joined.push(row);
            }
        }
        if pairing.next.is_some() {
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
            && let Some(RightRow { row, matched, .. }) = right.rows.get(self.rest)
        {
            context.pace()?;
            if joined.is_full() {
                return Ok(false);
            }
            if !matched {
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
                    false => self.take_left(row, right, context)?,
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
