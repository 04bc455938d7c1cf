//! COPY ... FROM STDIN: the client's data as batches of rows.
//!
//! ```text
//! data ─► rows ─► batch ─┬─► a transaction of its own, or a part of the session's
//!                        └─► a load by several workers, if nobody else knows the table; the session goes on reading meanwhile
//! ```
//! Inside BEGIN the first rows wait until they are enough for the table to get new storages, which nobody else knows.
//!
//! *Not here*: data as rows (`execute/copy`), new storages (`execute/renew`), and shares of a batch (`execute/load`).

use std::collections::VecDeque;
use std::sync::Arc;

use gannet_engine::Coordinator;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{Sender, channel};

use crate::catalog::Table;
use crate::error::SqlError;
use crate::execute::bulk::Bulk;
use crate::execute::copy::{BATCH_ROWS, Reader, next_batch_rows};
use crate::execute::load::{CHUNK_BYTES, CHUNK_ROWS, load_fed};
use crate::execute::operator::Enough;
use crate::execute::renew::{FIRST, Renewal, renew};
use crate::execute::transaction::alone;
use crate::execute::{self, Beyond, Context, Gathering, Resources, Row, Transaction, row_bytes};
use crate::memory::Charge;
use crate::plan::statement::{Command, Prepared};
use crate::plan::{Insert, Plan, PlanKind};
use crate::session::run::errors::{canceled, catalog_changes, current, error_of, no_copy, unknown};
use crate::session::run::{CATALOGS_MAX, JobPlace, Started};
use crate::session::{Session, Step, TransactionStatus};

/// Bytes of COPY that become rows at a time; the rows take many times as much memory.
const COPY_PART_BYTES: usize = 64 << 10;

/// Batches that wait for workers.
const BATCHES_WAITING_MAX: usize = 1;

/// A COPY FROM in progress.
pub(in crate::session) struct CopyIn {
    sql: String,
    insert: Arc<Plan>,
    reader: Reader,
    rows: VecDeque<Row>,
    /// Of rows that wait for new storages.
    charge: Charge,
    /// How many wait, unless they are written as they come.
    enough: Option<Enough>,
    /// Bytes that have come since the last batch.
    bytes: usize,
    begun: Option<BegunLoad>,
    /// The bulk load of the table, which all loads of this COPY share.
    bulk: Arc<Bulk>,
    /// Whether the session has begun to wait for the load, and was interrupted.
    is_lost: bool,
    /// Rows of the next batch.
    batch_rows: usize,
    count: u64,
}

/// Workers that insert batches of COPY.
struct BegunLoad {
    feed: Sender<(VecDeque<Row>, Charge)>,
    started: Started<Result<(), SqlError>>,
}

impl CopyIn {
    /// A COPY whose rows `insert`, the plan of `sql`, inserts: inside of a transaction, or in transactions of its own.
    pub(in crate::session) fn new(
        sql: String,
        insert: Arc<Plan>,
        reader: Reader,
        is_inside: bool,
    ) -> Self {
        Self {
            sql,
            insert,
            reader,
            rows: VecDeque::new(),
            charge: Charge::default(),
            enough: is_inside.then_some(FIRST),
            bytes: 0,
            begun: None,
            bulk: Arc::default(),
            is_lost: false,
            batch_rows: BATCH_ROWS,
            count: 0,
        }
    }

    /// Whether workers may insert rows now.
    pub(in crate::session) fn has_begun(&self) -> bool {
        self.begun.is_some() || self.is_lost
    }
}

impl Session {
    /// Takes data of a COPY, and returns the number of rows so far.
    pub(in crate::session) fn copy_chunk<'s>(
        &'s mut self,
        chunk: &'s [u8],
    ) -> Step<'s, Result<u64, SqlError>> {
        Box::pin(async move {
            match self.take_chunk(chunk).await {
                Err(error) => Err(self.copy_failed(error).await),
                count => count,
            }
        })
    }

    async fn take_chunk(&mut self, chunk: &[u8]) -> Result<u64, SqlError> {
        for part in chunk.chunks(COPY_PART_BYTES) {
            // Yields to other sessions.
            tokio::task::consume_budget().await;
            let waits = self.copy_waits();
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            let rows = copy.reader.read(part)?;
            if waits {
                copy.charge.add(&self.budget, rows.iter().map(row_bytes).sum())?;
            }
            copy.rows.extend(rows);
            copy.bytes += part.len();
            while self.has_batch() {
                self.copy_batch().await?;
            }
        }
        Ok(self.copy.as_ref().map_or(0, |copy| copy.count))
    }

    /// Whether the rows that have come make a batch.
    fn has_batch(&self) -> bool {
        let Some(copy) = &self.copy else { return false };
        let rows = copy.rows.len();
        match copy.enough {
            _ if self.shares_copy() => {
                rows >= CHUNK_ROWS || (rows > 0 && copy.bytes >= CHUNK_BYTES)
            }
            Some(enough) => enough.is_reached(rows, copy.charge.bytes()),
            None => rows >= BATCH_ROWS,
        }
    }

    /// Whether rows wait until they are enough for new storages of their table.
    fn copy_waits(&self) -> bool {
        self.copy.as_ref().is_some_and(|copy| copy.enough.is_some()) && !self.shares_copy()
    }

    /// Whether workers share the batches of the COPY.
    fn shares_copy(&self) -> bool {
        self.copied().is_some_and(|insert| self.fills(&insert.rules.table))
    }

    /// The INSERT of the COPY.
    fn copied(&self) -> Option<&Arc<Insert>> {
        match &self.copy.as_ref()?.insert.kind {
            PlanKind::Insert(insert) => Some(insert),
            _ => None,
        }
    }

    /// Whether transactions of their own may write rows of a table for the session's transaction.
    fn fills(&self, table: &Table) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.may_fill(table))
    }

    /// Ends a COPY, and returns its command tag.
    pub(in crate::session) fn copy_rest(&mut self) -> Step<'_, Result<String, SqlError>> {
        Box::pin(async move {
            match self.take_rest_of_copy().await {
                Err(error) => Err(self.copy_failed(error).await),
                tag => tag,
            }
        })
    }

    async fn take_rest_of_copy(&mut self) -> Result<String, SqlError> {
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let rows = copy.reader.finish()?;
        copy.rows.extend(rows);
        copy.enough = None;
        while self.copy.as_ref().is_some_and(|copy| !copy.rows.is_empty()) {
            self.copy_batch().await?;
        }
        self.end_loads().await?;
        Ok(format!("COPY {}", self.copy.as_ref().map_or(0, |copy| copy.count)))
    }

    /// Ends a COPY after an error. One of rows that came before comes first.
    async fn copy_failed(&mut self, error: SqlError) -> SqlError {
        let error = self.end_load().await.err().unwrap_or(error);
        let error = self.copied_so_far(error);
        self.give_up_copy();
        error
    }

    /// Adds to an error of COPY which rows are in the table.
    fn copied_so_far(&self, error: SqlError) -> SqlError {
        let count = self.copy.as_ref().map_or(0, |copy| copy.count);
        if self.status != TransactionStatus::Idle || error.hint.is_some() || count == 0 {
            return error;
        }
        let hint = format!(
            "COPY outside a transaction commits up to {BATCH_ROWS} rows at a time: the first {count} rows are in the table"
        );
        error.with_hint(hint)
    }

    async fn copy_batch(&mut self) -> Result<(), SqlError> {
        if self.copy_waits() {
            return self.renew_copied().await;
        }
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        // Fewer rows are one transaction, but for the last ones of a load.
        let bytes = std::mem::take(&mut copy.bytes);
        let are_many = copy.begun.is_some() || copy.rows.len() > BATCH_ROWS || bytes >= CHUNK_BYTES;
        if are_many && self.shares_copy() {
            return self.feed_load().await;
        }
        self.end_loads().await?;
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let count = copy.rows.len().min(BATCH_ROWS);
        let batch: Arc<Vec<Row>> = Arc::new(copy.rows.drain(..count).collect());
        if copy.charge.bytes() > 0 {
            copy.charge.release(batch.iter().map(row_bytes).sum());
        }
        let (mut first, mut catalogs) = (0, 0);
        while first < count {
            let plan = Arc::clone(&self.copy.as_ref().ok_or_else(no_copy)?.insert);
            let inserted = self.copy_rows(plan, Arc::clone(&batch), first).await?;
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            if let Some((inserted, attempt)) = inserted {
                first += inserted;
                copy.count += inserted as u64;
                copy.batch_rows = next_batch_rows(copy.batch_rows, attempt > 1);
                continue;
            }
            catalogs += 1;
            if catalogs == CATALOGS_MAX {
                return Err(catalog_changes());
            }
            self.reload().await?;
            self.plan_copy().await?;
        }
        Ok(())
    }

    /// Plans the COPY with the catalog that is present.
    async fn plan_copy(&mut self) -> Result<(), SqlError> {
        let sql = self.copy.as_ref().ok_or_else(no_copy)?.sql.clone();
        let prepared = self.plan(&sql, &[]).await?;
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        if let Some(Prepared::Command(command)) = prepared
            && let Command::CopyIn { insert, .. } = &*command
        {
            copy.insert = Arc::clone(insert);
        }
        Ok(())
    }

    /// Gives the table new storages for the rows that wait, if they are enough.
    async fn renew_copied(&mut self) -> Result<(), SqlError> {
        for _ in 0..CATALOGS_MAX {
            let insert = self.copied().map(Arc::clone).ok_or_else(no_copy)?;
            let copy = self.copy.as_ref().ok_or_else(no_copy)?;
            let waiting = (copy.rows.len(), copy.charge.bytes());
            let catalog = Arc::clone(&copy.insert.catalog);
            let resources = self.resources(&catalog);
            let work = move |context: &mut Context<'_, '_>| renew(&insert, waiting, context);
            let renewal = self.run_inside(None, resources, work).await?;
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            match renewal {
                Some(Renewal::Wants(enough)) => {
                    copy.enough = Some(enough);
                    return Ok(());
                }
                Some(Renewal::Refused) => {
                    copy.enough = None;
                    return Ok(());
                }
                Some(Renewal::Done(_, bulk)) => {
                    (copy.enough, copy.bulk) = (None, bulk);
                    return self.plan_copy().await;
                }
                None => {
                    self.reload().await?;
                    self.plan_copy().await?;
                }
            }
        }
        Err(catalog_changes())
    }

    /// Gives all rows that have come to workers, in a table that only the session's transaction knows.
    async fn feed_load(&mut self) -> Result<(), SqlError> {
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        copy.count += copy.rows.len() as u64;
        let mut batch = (std::mem::take(&mut copy.rows), std::mem::take(&mut copy.charge));
        loop {
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            if copy.is_lost {
                return Err(unknown());
            }
            let Some(load) = &copy.begun else {
                self.begin_load()?;
                continue;
            };
            let feed = load.feed.clone();
            copy.is_lost = true;
            let sent = self.cancel.unless_given_up(feed.send(batch)).await;
            self.copy.as_mut().ok_or_else(no_copy)?.is_lost = false;
            match sent {
                None => return Err(canceled()),
                Some(Ok(())) => return Ok(()),
                // It has ended, because of an error, or because no rows came for a while.
                Some(Err(SendError(unsent))) => {
                    self.end_load().await?;
                    batch = unsent;
                }
            }
        }
    }

    fn begin_load(&mut self) -> Result<(), SqlError> {
        let insert = self.copied().map(Arc::clone).ok_or_else(no_copy)?;
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let catalog = Arc::clone(&copy.insert.catalog);
        let resources = self.resources(&catalog);
        let (feed, rows) = channel(BATCHES_WAITING_MAX);
        let bulk = Arc::clone(&self.copy.as_ref().ok_or_else(no_copy)?.bulk);
        let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
            load_fed((&insert, &bulk), rows, coordinator, resources).map_err(error_of)
        };
        let started = self.start(JobPlace::Beside, resources, job)?;
        self.copy.as_mut().ok_or_else(no_copy)?.begun = Some(BegunLoad { feed, started });
        Ok(())
    }

    /// As [`Self::end_load`], and ends the bulk load: transactions insert the rows that follow.
    async fn end_loads(&mut self) -> Result<(), SqlError> {
        self.end_load().await?;
        let Some(copy) = &mut self.copy else { return Ok(()) };
        let bulk = std::mem::replace(&mut copy.bulk, Arc::new(Bulk::over()));
        if bulk.load().is_none() {
            return Ok(());
        }
        let catalog = Arc::clone(&copy.insert.catalog);
        let resources = self.resources(&catalog);
        let job = move |coordinator: &mut Coordinator<'_>, _: &Resources| {
            bulk.end(coordinator).map_err(error_of)
        };
        self.spawn(None, resources, job).await?.map_err(|error| self.located(error))
    }

    /// Waits until workers have inserted all rows that they were given.
    async fn end_load(&mut self) -> Result<(), SqlError> {
        let Some(copy) = &mut self.copy else { return Ok(()) };
        if copy.is_lost {
            return Err(unknown());
        }
        let Some(BegunLoad { feed, started }) = copy.begun.take() else { return Ok(()) };
        drop(feed);
        copy.is_lost = true;
        let ended = started.end(&self.cancel, &self.database.cluster).await;
        self.copy.as_mut().ok_or_else(no_copy)?.is_lost = false;
        let (resources, inserted) = ended?;
        self.resources = Some(resources);
        inserted.map_err(|error| self.located(error))
    }

    /// Ends a COPY, without waiting for workers that insert some of its rows.
    pub(in crate::session) fn give_up_copy(&mut self) {
        let Some(mut copy) = self.copy.take() else { return };
        copy.charge.dispose(copy.rows);
        if let Some(load) = copy.begun {
            // Its rows go with the table, however far it has come.
            let _ = load.started.cancellation.cancel();
        }
    }

    /// Inserts rows of a batch from `first` on, and returns their number and that of the attempt; None if the catalog has changed.
    ///
    /// They are a transaction of their own outside of one, and where the session's transaction has just created the table.
    async fn copy_rows(
        &mut self,
        plan: Arc<Plan>,
        batch: Arc<Vec<Row>>,
        first: usize,
    ) -> Result<Option<(usize, u32)>, SqlError> {
        let PlanKind::Insert(insert) = &plan.kind else { return Err(no_copy()) };
        let rows_max = self.copy.as_ref().map_or(BATCH_ROWS, |copy| copy.batch_rows);
        let resources = self.resources(&plan.catalog);
        let fills = self.fills(&insert.rules.table);
        let insert = move |context: &mut Context<'_, '_>| {
            let PlanKind::Insert(insert) = &plan.kind else { return Err(no_copy().into()) };
            // Under contention smaller batches get through. The second attempt tells duplicates.
            let rows = &batch[first..batch.len().min(first + rows_max)];
            let fewer = context.attempt.saturating_sub(2).min(6);
            let rows = &rows[..(rows.len() >> fewer).max(1)];
            let returned = &mut Gathering::new(&Beyond::Refused);
            let inserted = execute::insert_rows(insert, rows, returned, context);
            context.checked(inserted).map(|_| (rows.len(), context.attempt))
        };
        if self.transaction.is_some() && !fills {
            return self.run_inside(None, resources, insert).await;
        }
        let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
            let begin = |_| match fills {
                true => Transaction::part_of(Arc::clone(&resources.facts.catalog)),
                false => Transaction::new(),
            };
            current(alone(coordinator, resources, begin, insert))
        };
        let inserted = self.spawn(None, resources, job).await?;
        inserted.map_err(|error| self.located(error))
    }
}
