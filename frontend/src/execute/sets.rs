//! UNION ALL, INTERSECT and EXCEPT. INTERSECT and EXCEPT count the rows on the right, then compare those on the left with the
//! counts. UNION is DISTINCT of UNION ALL.
//!
//! *Invariants*: a row is counted in memory, or goes to the partition of its key. In a partition, too, rows on the right come
//! before those on the left, so a partition is processed like the inputs.
//!
//! *Not here*: DISTINCT (`operator`), and partitions (`partitions`).

use std::collections::VecDeque;

use crate::error::Failure;
use crate::execute::context::KEY_OVERHEAD_BYTES;
use crate::execute::operator::{Operator, open, row_key};
use crate::execute::partitions::{Partitions, Sides};
use crate::execute::{Context, Row};
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::plan::{Node, SetOperation};

/// UNION ALL.
pub(super) struct Append<'p> {
    /// Inputs with rows left.
    inputs: VecDeque<Box<dyn Operator + 'p>>,
}

impl<'p> Append<'p> {
    pub(super) fn new(first: &'p Node, second: &'p Node) -> Self {
        Self { inputs: [open(first), open(second)].into() }
    }
}

impl Operator for Append<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        while let Some(input) = self.inputs.front_mut() {
            if let Some(batch) = input.next(context)? {
                return Ok(Some(batch));
            }
            self.inputs.pop_front();
        }
        Ok(None)
    }
}

/// INTERSECT and EXCEPT.
pub(super) struct SetRows<'p> {
    operation: SetOperation,
    input: Sides<'p>,
    /// How often each row occurs on the right, minus those used up by rows on the left.
    counts: KeyMap<usize>,
    charge: Charge,
    /// Rows whose keys do not fit into memory.
    others: Partitions,
}

impl Drop for SetRows<'_> {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.counts));
    }
}

/// The decision on a row.
enum Found {
    Given,
    LeftOut,
    /// None yet: the row goes to its partition.
    Unknown,
}

impl<'p> SetRows<'p> {
    pub(super) fn new(operation: SetOperation, left: &'p Node, right: &'p Node) -> Self {
        let input = Sides::new(open(left), open(right));
        let (charge, others) = (Charge::default(), Partitions::default());
        Self { operation, input, counts: KeyMap::default(), charge, others }
    }

    fn found(
        &mut self,
        key: &[u8],
        is_right: bool,
        context: &Context<'_, '_>,
    ) -> Result<Found, Failure> {
        use SetOperation::{Except, ExceptAll, Intersect, IntersectAll};
        if let Some(count) = self.counts.get_mut(key) {
            let before = *count;
            *count = match (is_right, self.operation) {
                (true, _) => before + 1,
                // A second equal row on the left does not count.
                (false, Intersect) => 0,
                (false, IntersectAll | Except | ExceptAll) => before.saturating_sub(1),
            };
            let is_given = match self.operation {
                Intersect | IntersectAll => before > 0,
                Except => false,
                ExceptAll => before == 0,
            };
            return Ok(if is_given && !is_right { Found::Given } else { Found::LeftOut });
        }
        if self.others.is_empty() && !is_right {
            // The row is not on the right.
            match self.operation {
                Intersect | IntersectAll => return Ok(Found::LeftOut),
                ExceptAll => return Ok(Found::Given),
                Except => {}
            }
        }
        if !self.others.fits(&mut self.charge, key.len() + KEY_OVERHEAD_BYTES, context)? {
            return Ok(Found::Unknown);
        }
        self.counts.insert_new(key, 1);
        Ok(if is_right { Found::LeftOut } else { Found::Given })
    }
}

impl Operator for SetRows<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            while let Some((batch, is_right)) = self.input.next(context)? {
                let mut given = Vec::with_capacity(batch.len());
                for row in batch {
                    context.pace()?;
                    let key = row_key(&row);
                    match self.found(&key, is_right, context)? {
                        Found::Given => given.push(row),
                        Found::LeftOut => {}
                        Found::Unknown => self.others.put_side(&key, row, is_right, context)?,
                    }
                }
                if !given.is_empty() {
                    return Ok(Some(given));
                }
            }
            self.charge.dispose(std::mem::take(&mut self.counts));
            match self.others.next(context)? {
                Some(others) => self.input = Sides::of_partition(others),
                None => return Ok(None),
            }
        }
    }
}
