//! The rows of a query: in memory, in a temporary file, or on their way to the client.
//!
//! ```text
//! in memory    up to half of a statement's memory; sent after validation
//! in a file    if there is a directory for files: all rows; sent after validation
//! sent         if there is none: rows are sent while the query runs, and a conflict at the end makes them void
//! ```
//!
//! *Invariants*: a query that has sent rows is not run again, and does not keep other transactions from writing. It waits for
//! its client with a bounded number of rows in memory.
//!
//! *Not here*: rows after the query has ended (`session/rest`), and the wire (`gannet_server`).

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use gannet_engine::Abort;

use crate::error::{Failure, SqlError};
use crate::execute::context::row_bytes;
use crate::execute::operator::open;
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::memory::Charge;
use crate::plan::Node;
use crate::spill::{RowBuffer, SpillFile};
use crate::value::Value;

/// First wait for a client that has not taken the last rows; every further wait is twice as long.
const CLIENT_WAIT_MIN: Duration = Duration::from_micros(50);
/// Longest wait for such a client.
const CLIENT_WAIT_MAX: Duration = Duration::from_millis(10);

/// The destination of a result that is too large for memory.
#[derive(Default)]
pub(crate) enum Beyond {
    /// None: the statement is refused.
    #[default]
    Refused,
    /// A file.
    Kept,
    /// The client, while the query runs.
    Sent(Stream),
}

/// The channel to the client.
pub(crate) struct Stream {
    rows: Sender<Vec<Row>>,
    /// Held from the first rows on.
    permit: RefCell<Option<OwnedSemaphorePermit>>,
}

/// The rows of a query.
#[derive(Default)]
pub(crate) struct Gathered {
    /// The rows in memory.
    pub(crate) rows: Vec<Row>,
    pub(crate) charge: Charge,
    /// All rows, unless they are in memory.
    pub(crate) file: Option<Arc<SpillFile>>,
    /// The number of rows, with those that were sent.
    pub(crate) count: usize,
}

impl Beyond {
    /// Whether rows have been sent.
    pub(crate) fn has_begun(&self) -> bool {
        matches!(self, Self::Sent(stream) if stream.permit.borrow().is_some())
    }

    /// The failure of a run. Once rows have been sent, the failure is none that would be retried.
    pub(crate) fn ended(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Abort(abort)
                if self.has_begun()
                    && (abort.is_conflict()
                        || abort == Abort::Failure(gannet_engine::Failure::Revoked)) =>
            {
                void(&abort.to_string()).into()
            }
            Failure::StaleCatalog if self.has_begun() => void("the catalog has changed").into(),
            other => other,
        }
    }
}

fn void(reason: &str) -> SqlError {
    let message = "could not serialize access due to concurrent transactions: the rows that were sent are void";
    SqlError::new("40001", message).with_detail(reason).with_hint(
        "run the statement again; a server with --spill sends large results when they are valid",
    )
}

fn unread(timeout: Duration) -> SqlError {
    let message = format!(
        "canceling statement as its client has taken no rows for {timeout:?}: those that were sent are void"
    );
    SqlError::new("57014", message).with_hint(
        "read faster, raise --unread-timeout, or start the server with --spill, which keeps large results",
    )
}

impl Stream {
    pub(crate) fn new(rows: Sender<Vec<Row>>) -> Self {
        Self { rows, permit: RefCell::new(None) }
    }

    fn begin(&self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let streams = Arc::clone(&context.resources.database.streams);
        let Ok(permit) = streams.try_acquire_owned() else {
            let mut error = context.budget().exceeded();
            error.detail = Some(
                "as many results as may be sent while their queries run are being sent".to_owned(),
            );
            return Err(error
                .with_hint("run it when they are read, or start the server with --spill")
                .into());
        };
        *self.permit.borrow_mut() = Some(permit);
        context.transaction.deferred.release_barriers(context.coordinator);
        Ok(())
    }

    /// Sends rows as soon as the client has taken those before them. A client that takes none for long loses its query,
    /// because coroutines are few.
    fn put(&self, rows: Vec<Row>, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let (mut rows, mut wait) = (rows, CLIENT_WAIT_MIN);
        let timeout = context.resources.database.unread_timeout;
        let since_ns = context.coordinator.now_ns();
        loop {
            context.check_cancel()?;
            let waited_ns = context.coordinator.now_ns().saturating_sub(since_ns);
            if Duration::from_nanos(waited_ns) >= timeout {
                return Err(unread(timeout).into());
            }
            rows = match self.rows.try_send(rows) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(rows)) => rows,
                Err(TrySendError::Closed(_)) => {
                    return Err(SqlError::new("57014", "the client takes no more rows").into());
                }
            };
            context.wait(wait);
            wait = (2 * wait).min(CLIENT_WAIT_MAX);
        }
    }
}

/// Rows on their way to a file.
#[derive(Default)]
pub(super) struct Writer {
    file: Option<SpillFile>,
    buffer: RowBuffer,
}

impl Writer {
    /// Appends to a file, if there is one.
    pub(super) fn behind(file: Option<SpillFile>) -> Self {
        Self { file, buffer: RowBuffer::default() }
    }

    /// Bytes in memory of the file's table of blocks.
    fn index_bytes(&self) -> usize {
        self.file.as_ref().map_or(0, SpillFile::index_bytes)
    }

    /// Whether no row was put.
    pub(super) fn is_empty(&self) -> bool {
        self.file.is_none() && self.buffer.is_empty()
    }

    pub(super) fn put(
        &mut self,
        row: &[Value],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.buffer.push(row)?;
        if self.buffer.is_full() { self.write(context) } else { context.pace() }
    }

    fn write(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let (file, buffer) = (self.file.take(), std::mem::take(&mut self.buffer));
        let written = context.on_disk(move |spill| {
            let mut file = file.map_or_else(|| spill.file(), Ok)?;
            file.append(&buffer)?;
            Ok(file)
        });
        self.file = Some(written?);
        Ok(())
    }

    /// The file with all rows.
    pub(super) fn finish(mut self, context: &mut Context<'_, '_>) -> Result<SpillFile, Failure> {
        self.write(context)?;
        let none = || SqlError::new("XX000", "a temporary file is missing").into();
        self.file.ok_or_else(none)
    }
}

/// The destination of rows.
enum Sink<'b> {
    Memory,
    File(Writer),
    Client(&'b Stream),
}

/// A result under construction.
pub(crate) struct Gathering<'b> {
    beyond: &'b Beyond,
    sink: Sink<'b>,
    gathered: Gathered,
}

/// All rows of a query.
pub(super) fn gather(
    node: &Node,
    beyond: &Beyond,
    context: &mut Context<'_, '_>,
) -> Result<Gathered, Failure> {
    let mut operator = open(node);
    let mut gathering = Gathering::new(beyond);
    while let Some(batch) = operator.next(context)? {
        gathering.put(batch, context)?;
    }
    gathering.finish(context)
}

impl<'b> Gathering<'b> {
    pub(crate) fn new(beyond: &'b Beyond) -> Self {
        Self { beyond, sink: Sink::Memory, gathered: Gathered::default() }
    }

    /// Adds rows.
    pub(super) fn put(
        &mut self,
        mut rows: Vec<Row>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.gathered.count += rows.len();
        if matches!(self.sink, Sink::Memory) {
            match self.keep(&rows, context) {
                Ok(()) if self.gathered.rows.is_empty() => self.gathered.rows = rows,
                Ok(()) => self.gathered.rows.append(&mut rows),
                Err(refused) => {
                    self.leave_memory(refused, context)?;
                    self.pass_on(rows, context)?;
                }
            }
            return Ok(());
        }
        self.pass_on(rows, context)
    }

    /// The result, after all rows were put.
    pub(super) fn finish(mut self, context: &mut Context<'_, '_>) -> Result<Gathered, Failure> {
        if let Sink::File(writer) = self.sink {
            self.gathered.file = Some(Arc::new(writer.finish(context)?));
        }
        Ok(self.gathered)
    }

    /// Charges rows before they are kept in memory.
    fn keep(&mut self, rows: &[Row], context: &Context<'_, '_>) -> Result<(), Failure> {
        let charge = &mut self.gathered.charge;
        let before = charge.bytes();
        context.keep(charge, rows)?;
        let most = match self.beyond {
            Beyond::Refused => return Ok(()),
            // A transaction that writes needs the rest.
            Beyond::Kept => context.budget().share(charge.bytes()),
            Beyond::Sent(_) => context.budget().result_bytes(),
        };
        if charge.bytes() <= most {
            return Ok(());
        }
        charge.release(charge.bytes() - before);
        Err(context.budget().exceeded().into())
    }

    /// Moves the rows elsewhere, because memory has refused more.
    fn leave_memory(
        &mut self,
        refused: Failure,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.sink = match self.beyond {
            Beyond::Refused => return Err(too_large(refused, context)),
            Beyond::Kept => Sink::File(Writer::default()),
            Beyond::Sent(stream) => {
                stream.begin(context)?;
                Sink::Client(stream)
            }
        };
        let mut rows = std::mem::take(&mut self.gathered.rows).into_iter();
        while rows.len() > 0 {
            let some: Vec<Row> = rows.by_ref().take(BATCH_ROWS).collect();
            let bytes = some.iter().map(row_bytes).sum();
            self.pass_on(some, context)?;
            self.gathered.charge.release(bytes);
        }
        Ok(())
    }

    fn pass_on(&mut self, rows: Vec<Row>, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        match &mut self.sink {
            Sink::Memory => Ok(()),
            Sink::Client(stream) => stream.put(rows, context),
            Sink::File(writer) => {
                let before = writer.index_bytes();
                rows.iter().try_for_each(|row| writer.put(row, context))?;
                let more = writer.index_bytes() - before;
                Ok(self.gathered.charge.add(context.budget(), more)?)
            }
        }
    }
}

/// The error of a result that does not fit into memory and may not go elsewhere.
fn too_large(refused: Failure, context: &Context<'_, '_>) -> Failure {
    let Failure::Error(mut error) = refused else { return refused };
    let detail = if context.may_spill() {
        "The result does not fit. Session::query gives it row by row."
    } else {
        "The result does not fit. A directory for temporary files takes larger ones: --spill, or MemoryLimits::spill in a program."
    };
    error.detail = Some(detail.to_owned());
    Failure::Error(error)
}
