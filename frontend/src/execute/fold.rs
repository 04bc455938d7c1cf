//! Aggregates of all rows of a table, which the primaries compute of their rows.
//!
//! ```text
//! program ─► each primary ─► states of groups ─► merged
//!     └ a primary has given up, or the transaction has written rows of the table: the rows are read instead
//! ```
//! Workers of the statement's node share a large table (`shares`).
//!
//! *Not here*: programs (`fold`), and groups that do not fit into memory (`aggregate`).

mod shares;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Abort, Conflict, FoldRest, TableId};

use crate::error::Failure;
use crate::execute::aggregate::Aggregation;
use crate::execute::fold::shares::{Next, Shares};
use crate::execute::operator::Operator;
use crate::execute::scan::ScanRows;
use crate::execute::{Context, Row};
use crate::fold::{Program, partial};
use crate::plan::Fold;

/// Rounds of a fold before other workers help: the table is large.
const ROUNDS_ALONE: usize = 2;
/// How long a statement waits for its helpers before it looks again.
const HELPER_WAIT: Duration = Duration::from_micros(20);
/// How long helpers may answer nothing.
const HELPER_SILENCE_NS: u64 = 2_000_000_000;

/// The groups of a fold, as rows of keys and results.
pub(super) struct Folded<'p> {
    fold: &'p Fold,
    groups: Option<Aggregation<'p>>,
}

impl<'p> Folded<'p> {
    pub(super) fn new(fold: &'p Fold) -> Self {
        Self { fold, groups: None }
    }

    /// The first groups of the states from the primaries, for which all states were merged. None if one of the primaries has given up.
    fn first_merged(
        &mut self,
        program: Vec<u8>,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Option<Vec<Row>>>, Failure> {
        let Fold { scan, keys, aggregates, merged_keys } = self.fold;
        let is_given_up = Rc::new(Cell::new(false));
        let states = States {
            table: scan.table.rows(),
            columns: partial::columns(keys.len(), aggregates.len()),
            program: program.into(),
            rest: FoldRest::whole(),
            rounds: 0,
            shares: None,
            waits_since_ns: None,
            waiting: VecDeque::new(),
            is_given_up: Rc::clone(&is_given_up),
        };
        let mut merged = Aggregation::of_states(Box::new(states), merged_keys, aggregates);
        let first = match merged.next(context) {
            // In the order of the rows the totals may be in range.
            Err(Failure::Error(error)) if error.code == "22003" => return Ok(None),
            first => first?,
        };
        if is_given_up.get() {
            return Ok(None);
        }
        self.groups = Some(merged);
        Ok(Some(first))
    }

    fn program(&self, context: &mut Context<'_, '_>) -> Option<Vec<u8>> {
        let Fold { scan, keys, aggregates, .. } = self.fold;
        if context.has_written(scan.table.rows()) {
            return None;
        }
        let rows = (&scan.wanted, &scan.missing[..], scan.filter.as_ref());
        // A value that is an error is perhaps not needed. Whoever reads the rows finds that out.
        Program::bytes(rows, keys, aggregates, &mut |fixed| context.value(fixed, &[]).ok())
    }
}

impl Operator for Folded<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if let Some(groups) = &mut self.groups {
            return groups.next(context);
        }
        if let Some(program) = self.program(context)
            && let Some(first) = self.first_merged(program, context)?
        {
            return Ok(first);
        }
        let Fold { scan, keys, aggregates, .. } = self.fold;
        let rows = Box::new(ScanRows::new(scan));
        self.groups.insert(Aggregation::new(rows, keys, aggregates)).next(context)
    }
}

/// The states of groups of parts of a table, as rows.
struct States {
    table: TableId,
    columns: usize,
    program: Arc<[u8]>,
    /// What is left that the statement folds itself.
    rest: FoldRest,
    rounds: usize,
    /// Of a large table, what is left for the statement and its helpers.
    shares: Option<Shares>,
    /// Since when it has waited for helpers.
    waits_since_ns: Option<u64>,
    /// Answers that were not read yet.
    waiting: VecDeque<Vec<u8>>,
    is_given_up: Rc<Cell<bool>>,
}

impl Operator for States {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            let Some(answer) = self.waiting.pop_front() else {
                if !self.fill(context)? {
                    return Ok(None);
                }
                continue;
            };
            match partial::Answer::rows(&answer, self.columns)? {
                Some(rows) if rows.is_empty() => {}
                Some(rows) => return Ok(Some(rows)),
                None => self.give_up(),
            }
        }
    }
}

impl States {
    /// Gets further answers, perhaps. Whether there is anything left to answer, or was.
    fn fill(&mut self, context: &mut Context<'_, '_>) -> Result<bool, Failure> {
        let next = match &self.shares {
            Some(shares) => shares.next(!self.rest.is_empty()),
            None if self.rest.is_empty() => Next::End,
            None => Next::GoOn,
        };
        let answers = match next {
            Next::Round(round) => {
                self.waits_since_ns = None;
                context.adopt_fold(self.table, round)?
            }
            Next::GoOn => {
                self.rounds += 1;
                context.fold(self.table, &self.program, &mut self.rest)?
            }
            Next::Share(share) => {
                self.rest = share;
                return Ok(true);
            }
            Next::Wait => {
                self.wait(context)?;
                return Ok(true);
            }
            Next::End => return Ok(false),
        };
        match answers {
            Some(answers) => self.waiting.extend(answers),
            None => self.give_up(),
        }
        if self.shares.is_none() && self.rounds == ROUNDS_ALONE && !self.rest.is_empty() {
            let at = (&*context.resources.database.cluster, context.coordinator.node());
            self.shares = Some(Shares::new(at, self.table, &self.program, &self.rest));
            self.rest = FoldRest::nothing();
        }
        Ok(true)
    }

    /// Waits for helpers. A helper may wait for a silent node for ever: then the statement is run again, and waits for that node itself, as
    /// others that need it do.
    fn wait(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        context.check_cancel()?;
        let since_ns = *self.waits_since_ns.get_or_insert(context.coordinator.now_ns());
        if context.coordinator.now_ns().saturating_sub(since_ns) > HELPER_SILENCE_NS {
            return Err(Abort::from(Conflict::Reconfigured).into());
        }
        context.wait(HELPER_WAIT);
        Ok(())
    }

    fn give_up(&mut self) {
        self.is_given_up.set(true);
        self.waiting.clear();
        self.shares = None;
        self.rest = FoldRest::nothing();
    }
}
