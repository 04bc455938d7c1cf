//! Aggregates of all rows of a table, which the primaries compute of their rows.
//!
//! ```text
//! program ─► each primary ─► states of groups ─► merged
//!     └ a primary has given up, or the transaction has written rows of the table, or buckets are split again and again: the rows are
//!       read instead
//! ```
//! Of a range of an index they compute them if the range is wide (`scan`).
//!
//! *Not here*: programs (`fold`), how the answers come (`fold/rounds`), and groups that do not fit into memory (`aggregate`).

mod rounds;
mod shares;

use std::cell::Cell;
use std::rc::Rc;

use crate::error::Failure;
use crate::execute::aggregate::Aggregation;
use crate::execute::operator::Operator;
use crate::execute::scan::ScanRows;
use crate::execute::{Context, Row};
use crate::fold::{Program, partial};
use crate::plan::Fold;

pub(super) use rounds::{Answer, Rounds};

/// Folds of a table whose buckets were split meanwhile, before its rows are read.
const FOLDS_MAX: usize = 3;

/// The groups of a fold, as rows of keys and results.
pub(super) struct Folded<'p> {
    fold: &'p Fold,
    groups: Option<Aggregation<'p>>,
}

impl<'p> Folded<'p> {
    pub(super) fn new(fold: &'p Fold) -> Self {
        Self { fold, groups: None }
    }

    /// The first groups of the states from the primaries, for which all states were merged. None if these are not the groups of all rows.
    fn first_merged(
        &mut self,
        program: &[u8],
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Option<Vec<Row>>>, Failure> {
        let Fold { scan, keys, aggregates, merged_keys } = self.fold;
        for _ in 0..FOLDS_MAX {
            let end = Rc::new(Cell::new(End::Whole));
            let states = States {
                rounds: Rounds::new(scan.table.rows(), program.to_vec(), context),
                columns: partial::columns(keys.len(), aggregates.len()),
                end: Rc::clone(&end),
            };
            let mut merged = Aggregation::of_states(Box::new(states), merged_keys, aggregates);
            let first = match merged.next(context) {
                // In another order of the rows the totals may be in range.
                Err(Failure::Error(error)) if error.code == "22003" => return Ok(None),
                first => first?,
            };
            match end.get() {
                End::Whole => {
                    self.groups = Some(merged);
                    return Ok(Some(first));
                }
                End::Changed => {}
                End::GivenUp => return Ok(None),
            }
        }
        Ok(None)
    }

    fn program(&self, context: &mut Context<'_, '_>) -> Option<Vec<u8>> {
        let Fold { scan, keys, aggregates, .. } = self.fold;
        let scan = scan.whole.as_deref().unwrap_or(scan);
        if context.has_written(scan.table.rows()) {
            return None;
        }
        let rows = (&scan.wanted, &scan.missing[..], scan.filter.as_ref());
        // A value that is an error is perhaps not needed. The plain scan finds that out.
        Program::groups(rows, keys, aggregates, &mut |fixed| context.value(fixed, &[]).ok())
    }
}

impl Operator for Folded<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if let Some(groups) = &mut self.groups {
            return groups.next(context);
        }
        let Fold { scan, keys, aggregates, .. } = self.fold;
        let mut rows = ScanRows::new(scan);
        let is_narrow = scan.whole.is_some() && !rows.begin_range(context)?;
        if !is_narrow
            && let Some(program) = self.program(context)
            && let Some(first) = self.first_merged(&program, context)?
        {
            return Ok(first);
        }
        self.groups.insert(Aggregation::new(Box::new(rows), keys, aggregates)).next(context)
    }
}

/// How the states of groups have ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Each row has counted once.
    Whole,
    /// Buckets were split meanwhile.
    Changed,
    /// A primary has given up.
    GivenUp,
}

/// The states of groups of parts of a table, as rows.
struct States {
    rounds: Rounds,
    columns: usize,
    end: Rc<Cell<End>>,
}

impl Operator for States {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            let states = match self.rounds.next(context)? {
                Answer::Part(answer) => partial::Answer::rows(&answer, self.columns)?,
                Answer::Unknown => None,
                Answer::Changed => {
                    self.end.set(End::Changed);
                    return Ok(None);
                }
                Answer::End => return Ok(None),
            };
            match states {
                Some(rows) if rows.is_empty() => {}
                Some(rows) => return Ok(Some(rows)),
                None => {
                    self.end.set(End::GivenUp);
                    return Ok(None);
                }
            }
        }
    }
}
