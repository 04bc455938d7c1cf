//! Cursors: DECLARE, FETCH and CLOSE inside a transaction.
//!
//! *Source*: PostgreSQL 15 documentation, DECLARE, FETCH and CLOSE.
//!
//! *Invariants*: DECLARE runs the query, so later writes of the transaction do not change the cursor's rows. The rows are
//! kept until the cursor is closed, at the latest with the transaction.
//!
//! *Not here*: WITH HOLD, MOVE, and `WHERE CURRENT OF`, which are refused.

use std::ops::Range;
use std::sync::Arc;

use crate::error::SqlError;
use crate::execute::row_bytes;
use crate::plan::Plan;
use crate::plan::statement::Command;
use crate::session::command::done;
use crate::session::rest::{Kept, Part};
use crate::session::{Column, Rest, Session, StatementResult, Takes, TransactionStatus};
use crate::value::Value;

/// Approximate bytes of a cursor beside its rows.
const CURSOR_BYTES: usize = 1 << 10;

/// The rows of a query, and a place among them.
pub(super) struct Cursor {
    columns: Arc<[Column]>,
    kept: Arc<Kept>,
    /// 0 is before the first row, 1 on the first row, and the number of rows + 1 behind the last.
    place: usize,
    forward_only: bool,
    /// The number of savepoints when the cursor was declared.
    savepoints: usize,
}

/// The rows that FETCH requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// So many rows forward, or backward if negative; 0 is the present row.
    Forward(i64),
    /// The row with a number from 1, or from the end if negative.
    Absolute(i64),
    /// The row so many places away.
    Relative(i64),
}

impl Cursor {
    /// Moves to a place; a place outside becomes the nearest end.
    fn go_to(&mut self, place: i64) -> Result<(), SqlError> {
        let place = usize::try_from(place).unwrap_or(0).min(self.kept.count() + 1);
        if self.forward_only && place < self.place {
            return Err(SqlError::new("55000", "cursor can only scan forward")
                .with_hint("Declare it with SCROLL option to enable backward scan."));
        }
        self.place = place;
        Ok(())
    }

    fn present(&self) -> Range<usize> {
        self.between(self.place.saturating_sub(1), self.place)
    }

    /// The existing rows between these numbers from 0.
    fn between(&self, from: usize, to: usize) -> Range<usize> {
        let count = self.kept.count();
        from.min(count)..to.min(count)
    }

    /// Moves as FETCH requests. Gives the rows, and whether the last one comes first.
    fn fetch(&mut self, fetch: Fetch) -> Result<(Range<usize>, bool), SqlError> {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let (before, place) = (self.place, signed(self.place));
        let end = signed(self.kept.count()) + 1;
        match fetch {
            Fetch::Forward(0) => {}
            Fetch::Forward(count) => {
                self.go_to(place.saturating_add(count))?;
                return Ok(match count > 0 {
                    true => (self.between(before, self.place), false),
                    false => (self.between(self.place.max(1) - 1, before.max(1) - 1), true),
                });
            }
            Fetch::Absolute(number) => {
                self.go_to(if number < 0 { end.saturating_add(number) } else { number })?;
            }
            Fetch::Relative(count) => self.go_to(place.saturating_add(count))?,
        }
        Ok((self.present(), false))
    }
}

impl Session {
    /// The columns of a cursor.
    #[doc(hidden)]
    pub fn cursor_columns(&self, name: &str) -> Option<Arc<[Column]>> {
        self.cursors.get(name).map(|cursor| Arc::clone(&cursor.columns))
    }

    /// DECLARE.
    pub(super) async fn declare(
        &mut self,
        (name, query, forward_only): (&str, &Arc<Plan>, bool),
        sql: &str,
        parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        if self.status == TransactionStatus::Idle {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(SqlError::new("25P01", message));
        }
        if self.cursors.contains_key(name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        let (query, mut output) = self.query_output(query, sql, parameters, Takes::Kept).await?;
        let mut kept = Kept::of(&mut output, &self.files)?;
        kept.charge(&self.budget, CURSOR_BYTES + name.len())?;
        let cursor = Cursor {
            columns: Arc::clone(&query.columns),
            kept: Arc::new(kept),
            place: 0,
            forward_only,
            savepoints: self.transaction.as_ref().map_or(0, |own| own.savepoints.len()),
        };
        self.cursors.insert(name.to_owned(), cursor);
        Ok(done("DECLARE CURSOR"))
    }

    /// FETCH.
    pub(super) async fn fetch(
        &mut self,
        name: &str,
        fetch: Fetch,
    ) -> Result<StatementResult, SqlError> {
        let cursor = self.cursors.get_mut(name).ok_or_else(|| no_cursor(name))?;
        let (rows, is_backward) = cursor.fetch(fetch)?;
        let (columns, tag) = (Arc::clone(&cursor.columns), format!("FETCH {}", rows.len()));
        let part = Part { kept: Arc::clone(&cursor.kept), rows, is_backward };
        let mut rest = Rest::of_kept(part, &columns);
        let mut rows = Vec::new();
        if self.takes == Takes::None {
            while let Some(mut some) = rest.next(self).await? {
                self.result.add(&self.budget, some.iter().map(row_bytes).sum())?;
                rows.append(&mut some);
            }
        } else {
            self.rest = Some(rest);
        }
        Ok(StatementResult::Rows { columns, rows, tag })
    }

    /// CLOSE; without a name, of all cursors.
    pub(super) fn close_cursor(&mut self, name: Option<&str>) -> Result<StatementResult, SqlError> {
        let Some(name) = name else {
            self.cursors.clear();
            return Ok(done("CLOSE CURSOR ALL"));
        };
        self.cursors.remove(name).ok_or_else(|| no_cursor(name))?;
        Ok(done("CLOSE CURSOR"))
    }

    /// After ROLLBACK TO: removes cursors that were declared after the savepoint.
    pub(super) fn roll_back_cursors(&mut self) {
        let savepoints = self.transaction.as_ref().map_or(0, |own| own.savepoints.len());
        self.cursors.retain(|_, cursor| cursor.savepoints < savepoints);
    }

    /// After RELEASE: cursors that were declared after the savepoint belong to the surrounding one.
    pub(super) fn release_cursors(&mut self) {
        let savepoints = self.transaction.as_ref().map_or(0, |own| own.savepoints.len());
        for cursor in self.cursors.values_mut() {
            cursor.savepoints = cursor.savepoints.min(savepoints);
        }
    }
}

/// The query inside a command.
pub(super) fn query_of(command: &Command) -> Option<&Arc<Plan>> {
    match command {
        Command::CopyOut { query, .. } | Command::Declare { query, .. } => Some(query),
        _ => None,
    }
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new("34000", format!("cursor \"{name}\" does not exist"))
}
