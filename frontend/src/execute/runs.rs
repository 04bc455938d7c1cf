//! Sorted runs of rows, in memory and in temporary files, and their merge.
//!
//! ```text
//! level 1   run ── run ── ...      each of RUNS_MAX runs of level 0
//! level 0   run ── run ── ...      rows beyond memory
//! memory    run ── run ── ...      the last rows
//! ```
//!
//! *Source*: Knuth, The Art of Computer Programming, volume 3, section 5.4.1: multiway merging.
//!
//! *Invariants*: runs are in the order in which their rows came; of equal rows, those of the first run come first. A level is
//! one file. The rows that a merge has read from its files are charged: at most a quarter of the statement's memory, unless
//! rows are long.
//!
//! *Not here*: sorting a run (`sort`).

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::error::Failure;
use crate::execute::context::row_bytes;
use crate::execute::gather::Writer;
use crate::execute::{Context, Row};
use crate::expression::compare;
use crate::memory::Charge;
use crate::plan::SortKey;
use crate::spill::SpillFile;
use crate::value::Value;

/// Runs of a level, before they become one run of the next.
const RUNS_MAX: usize = 32;

/// The values that a row is sorted by, and the row.
pub(super) type Keyed = (Row, Row);

/// Approximate bytes of a row and its key.
pub(super) fn bytes_of((key, row): &Keyed) -> usize {
    row_bytes(key) + row_bytes(row)
}

/// The order of two rows by their key columns.
pub(super) fn sort_order(keys: &[SortKey], a: &[Value], b: &[Value]) -> Ordering {
    for ((key, a), b) in keys.iter().zip(a).zip(b) {
        let order = match (a.is_null(), b.is_null()) {
            (false, false) if key.descending => compare(b, a),
            (false, false) => compare(a, b),
            (a, b) if key.nulls_first => b.cmp(&a),
            (a, b) => a.cmp(&b),
        };
        if order.is_ne() {
            return order;
        }
    }
    Ordering::Equal
}

/// A run: rows in memory, and the place of the rows behind them.
pub(super) struct Run {
    rows: std::vec::IntoIter<Keyed>,
    rest: Option<(Arc<SpillFile>, Range<u64>)>,
}

impl Run {
    pub(super) fn in_memory(rows: Vec<Keyed>) -> Self {
        Self { rows: rows.into_iter(), rest: None }
    }
}

/// Runs in files.
#[derive(Default)]
pub(super) struct Levels(Vec<Level>);

#[derive(Default)]
struct Level {
    file: Option<SpillFile>,
    runs: Vec<Range<u64>>,
}

impl Levels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes rows as the last run.
    pub(super) fn add(
        &mut self,
        rows: &mut Merge<'_>,
        charge: &mut Charge,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.add_at(0, rows, charge, context)?;
        let keys = rows.keys;
        let mut number = 0;
        while self.0[number].runs.len() == RUNS_MAX {
            let full = std::mem::take(&mut self.0[number]);
            let mut merged = Merge::new(keys, full.into_runs(), context);
            number += 1;
            self.add_at(number, &mut merged, charge, context)?;
        }
        Ok(())
    }

    fn add_at(
        &mut self,
        number: usize,
        rows: &mut Merge<'_>,
        charge: &mut Charge,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if self.0.len() == number {
            self.0.push(Level::default());
        }
        let level = &mut self.0[number];
        let from = level.file.as_ref().map_or(0, SpillFile::bytes);
        let mut writer = Writer::behind(level.file.take());
        while let Some(keyed) = rows.next(charge, context)? {
            let (mut values, row) = keyed;
            values.extend(row);
            writer.put(&values, context)?;
        }
        let file = writer.finish(context)?;
        level.runs.push(from..file.bytes());
        level.file = Some(file);
        Ok(())
    }

    /// All runs, in the order of their rows.
    pub(super) fn into_runs(self) -> Vec<Run> {
        self.0.into_iter().rev().flat_map(Level::into_runs).collect()
    }
}

impl Level {
    fn into_runs(self) -> Vec<Run> {
        let Some(file) = self.file.map(Arc::new) else { return Vec::new() };
        let rest = |places| Some((Arc::clone(&file), places));
        let run = |places| Run { rows: Vec::new().into_iter(), rest: rest(places) };
        self.runs.into_iter().map(run).collect()
    }
}

/// A merge of sorted runs.
pub(super) struct Merge<'p> {
    keys: &'p [SortKey],
    runs: Vec<Run>,
    /// Runs that have rows left, as a heap: no run comes after those at twice its place.
    heap: Vec<usize>,
    /// Runs that are not read yet.
    unread: Vec<usize>,
    /// Whether the first run has no rows in memory, but some in its file.
    is_starved: bool,
    /// Bytes of rows that are read from a file at a time.
    read_bytes: usize,
}

impl<'p> Merge<'p> {
    pub(super) fn new(keys: &'p [SortKey], runs: Vec<Run>, context: &Context<'_, '_>) -> Self {
        let read_bytes = context.budget().share(0) / 2 / runs.len().max(1);
        Self::within(keys, runs, read_bytes)
    }

    fn within(keys: &'p [SortKey], runs: Vec<Run>, read_bytes: usize) -> Self {
        let heap: Vec<usize> = (0..runs.len()).filter(|run| runs[*run].rows.len() > 0).collect();
        let unread = (0..runs.len()).filter(|run| runs[*run].rest.is_some()).collect();
        let mut merge = Self { keys, runs, heap, unread, is_starved: false, read_bytes };
        merge.order();
        merge
    }

    /// The remaining runs, when the merge stops.
    pub(super) fn take_runs(&mut self) -> Vec<Run> {
        self.heap.clear();
        self.unread.clear();
        std::mem::take(&mut self.runs)
    }

    fn order(&mut self) {
        (0..self.heap.len() / 2).rev().for_each(|place| self.sink(place));
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        let key = |run: usize| &self.runs[run].rows.as_slice()[0].0;
        sort_order(self.keys, key(a), key(b)).then(a.cmp(&b)).is_lt()
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let mut first = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.is_before(self.heap[child], self.heap[first]) {
                    first = child;
                }
            }
            if first == place {
                return;
            }
            self.heap.swap(place, first);
            place = first;
        }
    }

    /// The next row, which is no longer charged.
    pub(super) fn next(
        &mut self,
        charge: &mut Charge,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Keyed>, Failure> {
        if !self.unread.is_empty() {
            for run in std::mem::take(&mut self.unread) {
                self.read(run, charge, context)?;
                self.heap.push(run);
            }
            self.order();
        }
        if std::mem::take(&mut self.is_starved) {
            self.read(self.heap[0], charge, context)?;
            self.sink(0);
        }
        let keyed = self.pop();
        charge.release(keyed.as_ref().map_or(0, bytes_of));
        Ok(keyed)
    }

    /// The next row in memory.
    fn pop(&mut self) -> Option<Keyed> {
        let number = *self.heap.first()?;
        let run = &mut self.runs[number];
        let keyed = run.rows.next();
        if run.rows.len() == 0 {
            if run.rest.is_some() {
                self.is_starved = true;
                return keyed;
            }
            run.rows = Vec::new().into_iter();
            self.heap.swap_remove(0);
        }
        self.sink(0);
        keyed
    }

    /// Reads more rows of a run that has some left.
    fn read(
        &mut self,
        number: usize,
        charge: &mut Charge,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let Some((file, places)) = self.runs[number].rest.take() else { return Ok(()) };
        let (of, from, bytes) = (Arc::clone(&file), places.clone(), self.read_bytes);
        let (rows, next) = context.on_disk(move |_| of.read(from, bytes))?;
        let width = self.keys.len();
        let keyed = |mut key: Row| {
            let row = key.split_off(width.min(key.len()));
            (key, row)
        };
        let rows: Vec<Keyed> = rows.into_iter().map(keyed).collect();
        charge.add(context.budget(), rows.iter().map(bytes_of).sum())?;
        let run = &mut self.runs[number];
        run.rows = rows.into_iter();
        run.rest = (next < places.end).then_some((file, next..places.end));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Expression;

    fn key(descending: bool) -> SortKey {
        SortKey { expression: Expression::Column(0), descending, nulls_first: descending }
    }

    #[test]
    fn merged_runs_are_in_order_and_equal_rows_as_they_came() {
        let keys = [key(false), key(true)];
        let mut number = 0;
        let mut expected = Vec::new();
        let mut runs = Vec::new();
        for length in [0, 1, 7, 100, 3, 64, 0, 31] {
            let mut run: Vec<Keyed> = Vec::new();
            for _ in 0..length {
                number += 1;
                let first = match number % 7 {
                    0 => Value::Null,
                    value => Value::Integer(value),
                };
                let key = vec![first, Value::Integer(number * 31 % 5)];
                run.push((key, vec![Value::Integer(number)]));
            }
            expected.extend(run.iter().cloned());
            run.sort_by(|a, b| sort_order(&keys, &a.0, &b.0));
            runs.push(Run::in_memory(run));
        }
        expected.sort_by(|a, b| sort_order(&keys, &a.0, &b.0));
        let mut merge = Merge::within(&keys, runs, 0);
        let merged: Vec<Keyed> = std::iter::from_fn(|| merge.pop()).collect();
        assert_eq!(merged, expected);
    }
}
