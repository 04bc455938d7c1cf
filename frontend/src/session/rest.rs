//! The remaining rows of a result: kept rows, or the rows of a query that still runs.
//!
//! ```text
//! Rest ─┬─ Kept ─┬─ rows in memory      of a cursor
//!       │        └─ a temporary file    of a cursor, and of a result that memory does not take
//!       └─ a query that still runs
//! ```
//!
//! *Invariants*: a file is deleted with its last reader: the cursor, the portal, the statement, or the session. While a query
//! still runs, the session runs nothing else: the query ends first, or is abandoned.
//!
//! *Not here*: when rows leave memory (`execute/gather`).

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;

use crate::error::SqlError;
use crate::execute::{BATCH_ROWS, Beyond, Output, Resources, Row, Stream, Transaction};
use crate::memory::{Budget, Charge};
use crate::plan::{Plan, PlanKind};
use crate::session::run::{canceled, catalog_changes};
use crate::session::{Column, Session, pad};
use crate::spill::{Counted, Spill, SpillFile};

/// Batches of rows that a query may be ahead of its client.
const BATCHES_AHEAD: usize = 2;

/// Files of a session: few, so that one session cannot take all files.
const FILES_MAX: usize = 16;
/// Bytes in memory of rows that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// The results beyond memory that a caller can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// None of them.
    #[default]
    None,
    /// Results in files, at any time.
    Kept,
    /// Also results of queries that still run; the caller takes them to their end before anything else.
    All,
}

/// A statement's resources and transaction, which it returns, and its output.
pub(super) type Ended =
    (Box<Resources>, (Option<Box<Transaction>>, Result<Option<Output>, SqlError>));
type End = Pin<Box<dyn Future<Output = Result<Ended, SqlError>> + Send>>;

/// The remaining rows of a result.
pub struct Rest {
    columns: Arc<[Column]>,
    source: Source,
}

enum Source {
    Kept(Part),
    Query(Receiver<Vec<Row>>, End),
    Ended,
}

/// Some of the kept rows.
pub(super) struct Part {
    pub(super) kept: Arc<Kept>,
    /// Their numbers, from 0.
    pub(super) rows: Range<usize>,
    /// Whether the last one comes first.
    pub(super) is_backward: bool,
}

/// All rows of a result.
pub(super) struct Kept {
    rows: Vec<Row>,
    /// The rows, unless they are in memory.
    file: Option<Arc<SpillFile>>,
    charge: Charge,
    _counted: Option<Counted>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.rows));
    }
}

impl Kept {
    /// The rows of a plan's output, with their charge.
    ///
    /// # Errors
    /// SQLSTATE 53400 if the session keeps too many files.
    pub(super) fn of(output: &mut Output, files: &Arc<AtomicUsize>) -> Result<Self, SqlError> {
        let count = || {
            Counted::new(files, FILES_MAX).ok_or_else(|| {
                let message = format!("a session keeps at most {FILES_MAX} large results");
                SqlError::new("53400", message).with_hint("close cursors or portals")
            })
        };
        Ok(Self {
            _counted: output.file.as_ref().map(|_| count()).transpose()?,
            rows: output.rows.take().unwrap_or_default(),
            file: output.file.take(),
            charge: std::mem::take(&mut output.charge),
        })
    }

    /// Charges bytes beside those of the rows.
    pub(super) fn charge(&mut self, budget: &Arc<Budget>, bytes: usize) -> Result<(), SqlError> {
        self.charge.add(budget, bytes)
    }

    /// The number of rows.
    pub(super) fn count(&self) -> usize {
        self.file.as_ref().map_or(self.rows.len(), |file| file.rows())
    }
}

impl Part {
    /// The next rows; None at the end.
    async fn next(&mut self, spill: Option<Arc<Spill>>) -> Result<Option<Vec<Row>>, SqlError> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let rows = match &self.kept.file {
            Some(file) => read(spill, file, self.rows.clone(), self.is_backward).await?,
            None if self.is_backward => {
                let first = self.rows.end.saturating_sub(BATCH_ROWS).max(self.rows.start);
                self.kept.rows[first..self.rows.end].iter().rev().cloned().collect()
            }
            None => {
                let end = self.rows.end.min(self.rows.start + BATCH_ROWS);
                self.kept.rows[self.rows.start..end].to_vec()
            }
        };
        if self.is_backward {
            self.rows.end -= rows.len();
        } else {
            self.rows.start += rows.len();
        }
        Ok(Some(rows))
    }
}

impl Rest {
    pub(super) fn of_kept(part: Part, columns: &Arc<[Column]>) -> Self {
        Self { columns: Arc::clone(columns), source: Source::Kept(part) }
    }

    pub(super) fn of_query(rows: Receiver<Vec<Row>>, end: End, columns: &Arc<[Column]>) -> Self {
        Self { columns: Arc::clone(columns), source: Source::Query(rows, end) }
    }

    /// The next rows; None at the end.
    ///
    /// # Errors
    /// The statement's error: the rows before it are void.
    pub async fn next(&mut self, session: &mut Session) -> Result<Option<Vec<Row>>, SqlError> {
        let rows = match &mut self.source {
            Source::Ended => None,
            Source::Kept(part) => part.next(session.database.spill.clone()).await?,
            Source::Query(rows, _) => {
                let next = session.cancel.unless_given_up(rows.recv()).await;
                match next {
                    Some(Some(rows)) => Some(rows),
                    None | Some(None) => {
                        self.end(session).await?;
                        None
                    }
                }
            }
        };
        Ok(rows.map(|mut rows| {
            pad(&mut rows, &self.columns);
            rows
        }))
    }

    async fn end(&mut self, session: &mut Session) -> Result<(), SqlError> {
        let Source::Query(rows, end) = std::mem::replace(&mut self.source, Source::Ended) else {
            return Ok(());
        };
        // A query that has rows left ends when its channel closes.
        drop(rows);
        let result = match end.await {
            Ok(ended) => match session.take_back(ended) {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err(catalog_changes()),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        session.end_statement(result)
    }

    /// Ends the query if it still runs; the client will not get its rows.
    pub async fn abandon(mut self, session: &mut Session) {
        // The client learns the reason from the caller.
        let _ = self.end(session).await;
        let _: Result<(), SqlError> = session.end_statement(Err(canceled()));
    }
}

impl Session {
    /// Allows the next statement to leave rows to [`Self::take_rest`].
    #[doc(hidden)]
    pub fn take_large(&mut self, takes: Takes) {
        self.next_takes = takes;
    }

    /// The remaining rows of the last result.
    #[doc(hidden)]
    pub fn take_rest(&mut self) -> Option<Rest> {
        self.rest.take()
    }

    /// The destination of a plan's rows that do not fit into memory, and the channel if they are sent.
    pub(super) fn beyond(&self, plan: &Plan, takes: Takes) -> (Beyond, Option<Receiver<Vec<Row>>>) {
        if takes != Takes::None && self.database.spill.is_some() {
            return (Beyond::Kept, None);
        }
        // A query whose first row is read by its key is usually short, and not worth a channel.
        let is_query = matches!(plan.kind, PlanKind::Query(_));
        if takes != Takes::All || !is_query || plan.home.is_some() {
            return (Beyond::Refused, None);
        }
        let (sender, receiver) = channel(BATCHES_AHEAD);
        (Beyond::Sent(Stream::new(sender)), Some(receiver))
    }
}

/// Some of the rows with these numbers, as [`SpillFile::read_rows`] gives them.
async fn read(
    spill: Option<Arc<Spill>>,
    file: &Arc<SpillFile>,
    rows: Range<usize>,
    is_backward: bool,
) -> Result<Vec<Row>, SqlError> {
    let lost = || SqlError::new("XX000", "a temporary file could not be read");
    let (sender, read) = oneshot::channel();
    let file = Arc::clone(file);
    // Dropping this abandons the job.
    let _pending = spill.ok_or_else(lost)?.submit(move || {
        let _ = sender.send(file.read_rows(rows, is_backward, READ_BYTES));
        Ok(())
    });
    read.await.map_err(|_| lost())?
}
