//! The rows of a scan that pass its filter, which the primaries evaluate: the other rows do not travel.
//!
//! ```text
//! first page, in the order of the keys ─► filter, for the keys behind it ─► each primary ─► rows that pass, in no order
//! ```
//! The filter of a range of an index that has a large part of the rows is that of the whole table, with the conditions of the range. A scan whose
//! rows may come in any order does so without a filter, too: all rows pass.
//!
//! The scan evaluates the filter again, and reads the rows that a primary has not looked at.
//!
//! *Not here*: the filter at the primaries (`fold/filter`).

use std::ops::Bound;

use gannet_engine::{Abort, Conflict, KeyRange, TableKey};

use crate::error::Failure;
use crate::execute::fold::{Answer, Rounds};
use crate::execute::scan::rows_of_entries;
use crate::execute::{Context, Row};
use crate::fold::filter::passed;
use crate::fold::{Program, is_portable};
use crate::plan::{Access, IndexChoice, Reserve, Scan};

/// Runs of a statement after which it reads the rows itself: perhaps a primary refuses the filter again and again.
const ATTEMPTS_MAX: u32 = 10;

/// A scan whose filter, if there is one, is evaluated at the primaries.
pub(super) struct Filtered<'p> {
    scan: &'p Scan,
    rounds: Rounds,
    /// What it reads, until the first rows have come.
    rest: Option<KeyRange>,
}

/// What comes next of a scan.
pub(super) enum Further {
    /// Rows, perhaps none.
    Rows(Vec<Row>),
    /// Nothing: a primary does not know the filter. This range is to be read.
    Unknown(KeyRange),
    End,
}

impl<'p> Filtered<'p> {
    /// The rest of a full scan; None if its filter cannot be evaluated at the primaries.
    pub(super) fn new(
        scan: &'p Scan,
        rest: &KeyRange,
        context: &mut Context<'_, '_>,
    ) -> Option<Self> {
        let Bound::Excluded(last) = &rest.from else { return None };
        Self::behind(scan, last, rest.clone(), context)
    }

    /// The rows of a full scan with keys greater than one. If a primary does not know the filter, `rest` is to be read.
    pub(super) fn behind(
        scan: &'p Scan,
        last: &[u8],
        rest: KeyRange,
        context: &mut Context<'_, '_>,
    ) -> Option<Self> {
        let attempts = match scan.reserves {
            None => ATTEMPTS_MAX,
            // The next ones reserve rows. These come in the order of their keys, so that statements do not wait for each other in a ring.
            Some(Reserve::Change) => 1,
            Some(Reserve::Wait | Reserve::NoWait | Reserve::Skip) => 0,
        };
        let is_possible = matches!(scan.access, Access::Full)
            && context.attempt <= attempts
            && scan.filter.as_ref().is_none_or(is_portable)
            && !context.has_written(scan.table.rows())
            // Rows are handed on before it is known that each has come once.
            && !context.is_unshared(scan.table.rows());
        if !is_possible {
            return None;
        }
        // A value that is an error is perhaps not needed. The plain scan finds that out.
        let value = &mut |fixed: &_| context.value(fixed, &[]).ok();
        let program = Program::filter(scan.filter.as_ref(), &scan.missing, last, value)?;
        let rounds = Rounds::new(scan.table.rows(), program, context);
        Some(Self { scan, rounds, rest: Some(rest) })
    }

    /// The next rows.
    pub(super) fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Further, Failure> {
        let scan = self.scan;
        let answer = match self.rounds.next(context)? {
            Answer::Part(answer) => answer,
            Answer::Unknown | Answer::Changed => {
                // Rows have been handed on: the statement is run again.
                let rest = self.rest.take().ok_or(Abort::from(Conflict::Reconfigured))?;
                return Ok(Further::Unknown(rest));
            }
            Answer::End => return Ok(Further::End),
        };
        self.rest = None;
        let passed = passed(&answer)?;
        let long = passed.iter().filter(|(_, value)| value.is_none());
        let long: Vec<TableKey> = long.map(|(key, _)| scan.table.row_key(key)).collect();
        let mut found =
            if long.is_empty() { Vec::new() } else { context.get_many(&long)? }.into_iter();
        let entries = passed.iter().filter_map(|(key, value)| {
            let value =
                value.map_or_else(|| found.next().flatten(), |value| Some(value.to_vec()))?;
            Some((key.to_vec(), value))
        });
        let rows = rows_of_entries(scan, IndexChoice::Primary, &entries.collect(), context)?;
        Ok(Further::Rows(rows))
    }
}
