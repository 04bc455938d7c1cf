//! What is left of a result that is too large for memory: rows in a temporary file, or those of a query that still runs.
//!
//! *Invariants*: the session runs nothing else before a query that still runs has ended, or was abandoned.
//! *Not here*: when rows leave memory, in `execute/gather`.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;

use crate::error::SqlError;
use crate::execute::{Beyond, Output, Resources, Row, Stream, Transaction};
use crate::plan::{Plan, PlanKind};
use crate::session::run::{canceled, catalog_changes};
use crate::session::{Column, Session, pad};
use crate::spill::{Spill, SpillFile};

/// Batches of rows that a query is ahead of its client.
const BATCHES_AHEAD: usize = 2;

/// Bytes in memory of rows that are read at a time.
const READ_BYTES: usize = 1 << 20;

/// Which results beyond memory whoever asks for them takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Takes {
    /// None.
    #[default]
    None,
    /// Those that are kept in a file, at any time.
    Kept,
    /// Those of queries that run meanwhile, too, to their ends and before anything else.
    All,
}

/// What a statement was given, and what it gave.
pub(super) type Ended = (Box<Resources>, (Option<Transaction>, Result<Option<Output>, SqlError>));
type End = Pin<Box<dyn Future<Output = Result<Ended, SqlError>> + Send>>;

/// The rows of a result that are left.
pub(crate) struct Rest {
    columns: Arc<[Column]>,
    source: Source,
}

enum Source {
    /// The next row's place.
    File(Arc<SpillFile>, u64),
    Query(Receiver<Vec<Row>>, End),
    Ended,
}

impl Rest {
    pub(super) fn of_file(file: Arc<SpillFile>, columns: &Arc<[Column]>) -> Self {
        Self { columns: Arc::clone(columns), source: Source::File(file, 0) }
    }

    pub(super) fn of_query(rows: Receiver<Vec<Row>>, end: End, columns: &Arc<[Column]>) -> Self {
        Self { columns: Arc::clone(columns), source: Source::Query(rows, end) }
    }

    /// The next rows; None at the end.
    ///
    /// # Errors
    /// What ends the statement: the rows before are void.
    pub(crate) async fn next(
        &mut self,
        session: &mut Session,
    ) -> Result<Option<Vec<Row>>, SqlError> {
        let rows = match &mut self.source {
            Source::Ended => None,
            Source::File(file, place) => {
                read_file(session.database.spill.clone(), file, place).await?
            }
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
        // A query that has rows left ends, too.
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

    /// Ends the query if it still runs: the client will not have its rows.
    pub(crate) async fn abandon(mut self, session: &mut Session) {
        // The client is told why it was abandoned.
        let _ = self.end(session).await;
        let _: Result<(), SqlError> = session.end_statement(Err(canceled()));
    }
}

impl Session {
    /// From now on, statements may leave the rows beyond memory to [`Self::take_rest`].
    pub(crate) fn take_large(&mut self, takes: Takes) {
        self.takes = takes;
    }

    /// What is left of the last result.
    pub(crate) fn take_rest(&mut self) -> Option<Rest> {
        self.rest.take()
    }

    /// What becomes of rows of a plan that are too many for memory, and where those come that are sent.
    pub(super) fn beyond(&self, plan: &Plan, takes: Takes) -> (Beyond, Option<Receiver<Vec<Row>>>) {
        if !matches!(plan.kind, PlanKind::Query(_)) || takes == Takes::None {
            return (Beyond::Refused, None);
        }
        if self.database.spill.is_some() {
            return (Beyond::Kept, None);
        }
        // What begins with a row by its key is short as a rule, and not worth a channel.
        if takes == Takes::Kept || plan.home.is_some() {
            return (Beyond::Refused, None);
        }
        let (sender, receiver) = channel(BATCHES_AHEAD);
        (Beyond::Sent(Stream::new(sender)), Some(receiver))
    }
}

/// The rows from a place on, which moves behind them; None at the end.
async fn read_file(
    spill: Option<Arc<Spill>>,
    file: &Arc<SpillFile>,
    place: &mut u64,
) -> Result<Option<Vec<Row>>, SqlError> {
    let lost = || SqlError::new("XX000", "a temporary file could not be read");
    let places = *place..file.bytes();
    if places.is_empty() {
        return Ok(None);
    }
    let (sender, read) = oneshot::channel();
    let file = Arc::clone(file);
    // Whoever drops this does not wait for the rows.
    let _pending = spill.ok_or_else(lost)?.submit(move || {
        let _ = sender.send(file.read(places, READ_BYTES));
        Ok(())
    });
    let (rows, next) = read.await.map_err(|_| lost())??;
    *place = next;
    Ok(Some(rows))
}
