//! Sorting in small steps: short runs are sorted as rows come, and merged. Rows that take more than half of the statement's
//! memory go to a temporary file as one run, if there is a directory for it.
//!
//! *Invariants*: rows with equal keys stay in the order in which they came. No step takes longer than the sort of a run, and
//! other coroutines have the thread between two steps.
//!
//! *Not here*: runs in files, and their merge (`runs`).

use crate::error::Failure;
use crate::execute::operator::{Batch, Operator, row_count};
use crate::execute::runs::{Keyed, Levels, Merge, Run, bytes_of, sort_order};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::memory::Charge;
use crate::plan::SortKey;

/// Rows that are sorted at once: well under a millisecond.
const RUN_ROWS: usize = 1_000;
/// Fewer bytes are not worth a run in a file.
const SPILLED_BYTES_MIN: usize = 64 << 10;

/// A sort in progress.
pub(super) struct Sorter<'p> {
    keys: &'p [SortKey],
    /// The number of first rows that are needed.
    limit: usize,
    /// Sorted runs, in the order in which their rows came.
    runs: Vec<Vec<Keyed>>,
    recent: Vec<Keyed>,
    /// Number of rows in memory.
    rows: usize,
    /// The runs in files, with earlier rows.
    levels: Levels,
    charge: Charge,
}

impl<'p> Sorter<'p> {
    pub(super) fn new(keys: &'p [SortKey], limit: usize) -> Self {
        let (runs, recent) = (Vec::new(), Vec::new());
        let (levels, charge) = (Levels::default(), Charge::default());
        Self { keys, limit, runs, recent, rows: 0, levels, charge }
    }

    /// Adds a row.
    fn push(&mut self, row: Row, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let key = self.key(&row, context)?;
        self.put((key, row), context)
    }

    /// Adds a row with its sort key. Earlier rows may go to a file if memory is short.
    pub(super) fn put(
        &mut self,
        keyed: Keyed,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        context.pace()?;
        let (bytes, budget) = (bytes_of(&keyed), context.budget());
        let fits = self.charge.bytes() + bytes <= budget.share(self.charge.bytes());
        if !fits || self.charge.add(budget, bytes).is_err() {
            if context.may_spill() && self.charge.bytes() >= SPILLED_BYTES_MIN {
                self.spill(context)?;
            }
            self.charge.add(budget, bytes)?;
        }
        self.keep(keyed, context)
    }

    /// The sort key of a row.
    pub(super) fn key(&self, row: &Row, context: &mut Context<'_, '_>) -> Result<Row, Failure> {
        let mut key = Vec::with_capacity(self.keys.len());
        for sort_key in self.keys {
            key.push(context.value(&sort_key.expression, row)?);
        }
        Ok(key)
    }

    fn keep(&mut self, keyed: Keyed, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        self.recent.push(keyed);
        self.rows += 1;
        if self.recent.len() == RUN_ROWS { self.end_run(context) } else { Ok(()) }
    }

    /// Writes all rows in memory to a file.
    fn spill(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        self.sort_recent();
        let runs = std::mem::take(&mut self.runs).into_iter().map(Run::in_memory).collect();
        let mut merged = Merge::new(self.keys, runs, context);
        self.rows = 0;
        self.levels.add(&mut merged, &mut self.charge, context)
    }

    fn sort_recent(&mut self) {
        let mut run = std::mem::take(&mut self.recent);
        run.sort_by(|a, b| sort_order(self.keys, &a.0, &b.0));
        self.runs.push(run);
    }

    fn end_run(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        self.sort_recent();
        context.check_cancel()?;
        // Rows beyond the needed first ones can be dropped.
        if self.rows / 2 > self.limit.max(RUN_ROWS) {
            let mut first = Vec::with_capacity(self.limit);
            let runs = std::mem::take(&mut self.runs).into_iter().map(Run::in_memory).collect();
            let mut merged = Merge::new(self.keys, runs, context);
            while first.len() < self.limit
                && let Some(keyed) = merged.next(&mut Charge::default(), context)?
            {
                context.pace()?;
                first.push(keyed);
            }
            self.rows = first.len();
            self.charge.set(context.budget(), first.iter().map(bytes_of).sum())?;
            self.runs.push(first);
        }
        Ok(())
    }

    /// All rows, sorted.
    pub(super) fn finish(mut self, context: &mut Context<'_, '_>) -> Result<Sorted<'p>, Failure> {
        self.end_run(context)?;
        if !self.levels.is_empty() {
            // The reader of the rows needs memory, too.
            self.spill(context)?;
        }
        let mut runs = std::mem::take(&mut self.levels).into_runs();
        runs.extend(std::mem::take(&mut self.runs).into_iter().map(Run::in_memory));
        let merge = Merge::new(self.keys, runs, context);
        Ok(Sorted { merge, left: self.limit, charge: std::mem::take(&mut self.charge) })
    }
}

impl Drop for Sorter<'_> {
    fn drop(&mut self) {
        self.charge.dispose((std::mem::take(&mut self.runs), std::mem::take(&mut self.recent)));
    }
}

/// Sorted rows.
pub(super) struct Sorted<'p> {
    merge: Merge<'p>,
    /// The number of rows still needed.
    left: usize,
    charge: Charge,
}

impl Drop for Sorted<'_> {
    fn drop(&mut self) {
        self.charge.dispose(self.merge.take_runs());
    }
}

impl Sorted<'_> {
    /// The next row with its sort key; None at the end.
    pub(super) fn next_keyed(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Keyed>, Failure> {
        context.pace()?;
        self.merge.next(&mut self.charge, context)
    }

    /// The next rows; None at the end.
    pub(super) fn next(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Vec<Row>>, Failure> {
        context.check_cancel()?;
        let mut batch = Batch::default();
        while self.left > 0
            && !batch.is_full()
            && let Some(keyed) = self.merge.next(&mut self.charge, context)?
        {
            context.pace()?;
            self.left -= 1;
            batch.push(keyed.1);
        }
        Ok(batch.rows())
    }
}

/// ORDER BY.
pub(super) struct Sort<'p> {
    /// None after the input was read.
    input: Option<Box<dyn Operator + 'p>>,
    keys: &'p [SortKey],
    limit: Option<&'p Expression>,
    sorted: Option<Sorted<'p>>,
}

impl<'p> Sort<'p> {
    pub(super) fn new(
        input: Box<dyn Operator + 'p>,
        keys: &'p [SortKey],
        limit: Option<&'p Expression>,
    ) -> Self {
        Self { input: Some(input), keys, limit, sorted: None }
    }
}

impl Operator for Sort<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if let Some(mut input) = self.input.take() {
            let limit = match self.limit {
                Some(limit) => row_count(("LIMIT", limit), context)?.unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            let mut sorter = Sorter::new(self.keys, limit);
            while let Some(batch) = input.next(context)? {
                for row in batch {
                    sorter.push(row, context)?;
                }
            }
            self.sorted = Some(sorter.finish(context)?);
        }
        match &mut self.sorted {
            Some(sorted) => sorted.next(context),
            None => Ok(None),
        }
    }
}

const _: () = assert!(RUN_ROWS <= BATCH_ROWS, "an operator holds its thread for a batch at most");
