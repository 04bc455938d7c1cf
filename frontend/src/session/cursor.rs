//! Cursors: DECLARE, FETCH and CLOSE inside a transaction.
//!
//! *Source*: PostgreSQL 15 documentation, DECLARE, FETCH and CLOSE.
//! *Invariants*: a cursor's query runs when it is declared, so that nothing its transaction writes afterwards changes its rows. They
//! are charged to the session until the cursor is closed, at the latest with its transaction.
//! *Not here*: WITH HOLD, MOVE, and `WHERE CURRENT OF`.

use std::sync::Arc;

use crate::error::SqlError;
use crate::execute::{Row, row_bytes};
use crate::memory::Charge;
use crate::plan::Plan;
use crate::plan::statement::Command;
use crate::session::command::done;
use crate::session::{Column, Session, StatementResult, Takes, TransactionStatus, pad};
use crate::value::Value;

/// The rows of a query, and a place among them.
pub(super) struct Cursor {
    columns: Arc<[Column]>,
    rows: Vec<Row>,
    /// 0 is before the first row, 1 on it, and one more than there are behind the last.
    place: usize,
    forward_only: bool,
    /// Savepoints that there were before it.
    savepoints: usize,
    _charge: Charge,
}

/// What FETCH asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// So many rows on, or back if negative; 0 is the present one again.
    Forward(i64),
    /// The row with a number from 1, or from the end if negative.
    Absolute(i64),
    /// The row so many places on.
    Relative(i64),
}

impl Cursor {
    /// Goes to a place, which may lie outside.
    fn go_to(&mut self, place: i64) -> Result<(), SqlError> {
        let place = usize::try_from(place).unwrap_or(0).min(self.rows.len() + 1);
        if self.forward_only && place < self.place {
            return Err(SqlError::new("55000", "cursor can only scan forward")
                .with_hint("Declare it with SCROLL option to enable backward scan."));
        }
        self.place = place;
        Ok(())
    }

    fn present(&self) -> Vec<Row> {
        let row = self.place.checked_sub(1).and_then(|number| self.rows.get(number));
        row.cloned().into_iter().collect()
    }

    fn fetch(&mut self, fetch: Fetch) -> Result<Vec<Row>, SqlError> {
        let signed = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let (place, end) = (signed(self.place), signed(self.rows.len()) + 1);
        match fetch {
            Fetch::Forward(0) => Ok(self.present()),
            Fetch::Forward(count) if count > 0 => {
                let before = self.place;
                self.go_to(place.saturating_add(count))?;
                Ok(self.rows[before.min(self.rows.len())..self.place.min(self.rows.len())].to_vec())
            }
            Fetch::Forward(count) => {
                let before = self.place;
                self.go_to(place.saturating_add(count))?;
                let passed = &self.rows[self.place.max(1) - 1..before.max(1) - 1];
                Ok(passed.iter().rev().cloned().collect())
            }
            Fetch::Absolute(number) => {
                self.go_to(if number < 0 { end.saturating_add(number) } else { number })?;
                Ok(self.present())
            }
            Fetch::Relative(count) => {
                self.go_to(place.saturating_add(count))?;
                Ok(self.present())
            }
        }
    }
}

impl Session {
    /// The columns of a cursor.
    pub(crate) fn cursor_columns(&self, name: &str) -> Option<Arc<[Column]>> {
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
        let (query, output) = self.query_output(query, sql, parameters, Takes::None).await?;
        let mut rows = output.rows.unwrap_or_default();
        pad(&mut rows, &query.columns);
        let cursor = Cursor {
            columns: Arc::clone(&query.columns),
            rows,
            place: 0,
            forward_only,
            savepoints: self.transaction.as_ref().map_or(0, |own| own.savepoints.len()),
            _charge: output.charge,
        };
        self.cursors.insert(name.to_owned(), cursor);
        Ok(done("DECLARE CURSOR"))
    }

    /// FETCH.
    pub(super) fn fetch(&mut self, name: &str, fetch: Fetch) -> Result<StatementResult, SqlError> {
        let cursor = self.cursors.get_mut(name).ok_or_else(|| no_cursor(name))?;
        let rows = cursor.fetch(fetch)?;
        self.result.set(&self.budget, rows.iter().map(row_bytes).sum())?;
        let tag = format!("FETCH {}", rows.len());
        Ok(StatementResult::Rows { columns: Arc::clone(&cursor.columns), rows, tag })
    }

    /// CLOSE; all cursors without a name.
    pub(super) fn close_cursor(&mut self, name: Option<&str>) -> Result<StatementResult, SqlError> {
        let Some(name) = name else {
            self.cursors.clear();
            return Ok(done("CLOSE CURSOR ALL"));
        };
        self.cursors.remove(name).ok_or_else(|| no_cursor(name))?;
        Ok(done("CLOSE CURSOR"))
    }

    /// After ROLLBACK TO: cursors that were declared after the savepoint are gone.
    pub(super) fn roll_back_cursors(&mut self) {
        let savepoints = self.transaction.as_ref().map_or(0, |own| own.savepoints.len());
        self.cursors.retain(|_, cursor| cursor.savepoints < savepoints);
    }

    /// After RELEASE: cursors that were declared after the savepoint belong to what is around it.
    pub(super) fn release_cursors(&mut self) {
        let savepoints = self.transaction.as_ref().map_or(0, |own| own.savepoints.len());
        for cursor in self.cursors.values_mut() {
            cursor.savepoints = cursor.savepoints.min(savepoints);
        }
    }
}

/// The query that a command has inside.
pub(super) fn query_of(command: &Command) -> Option<&Arc<Plan>> {
    match command {
        Command::CopyOut { query, .. } | Command::Declare { query, .. } => Some(query),
        _ => None,
    }
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new("34000", format!("cursor \"{name}\" does not exist"))
}
