//! Running plans: the catalog that they are made with, the job, and what becomes of conflicts.

use std::sync::Arc;

use gannet_engine::{ClusterError, Coordinator};

use crate::catalog::Catalog;
use crate::error::{Failure, SqlError};
use crate::execute::copy::BATCH_ROWS;
use crate::execute::transaction::{OVERTAKEN_MAX, alone, given_up};
use crate::execute::{self, Context, Output, Resources, Row, Transaction, online};
use crate::expression::function::Facts;
use crate::parser;
use crate::plan::statement::{self, Command, Prepared};
use crate::plan::{Plan, PlanKind};
use crate::session::{Session, StatementResult, TransactionStatus, pad};
use crate::value::{DataType, Value};

/// Times that a statement is planned anew because the catalog has changed.
const CATALOGS_MAX: u32 = 100;

impl Session {
    /// The catalog that the next statement is planned with.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        match &self.transaction {
            Some(transaction) => Arc::clone(&transaction.catalog),
            None => self.database.catalog(),
        }
    }

    /// Plans a statement; None if it is empty.
    pub(super) async fn plan(
        &mut self,
        sql: &str,
        types: &[Option<DataType>],
    ) -> Result<Option<Prepared>, SqlError> {
        let mut error = match self.plan_once(sql, types).await {
            Err(error) if error.code != "42601" => error,
            result => return result,
        };
        if self.status == TransactionStatus::Failed {
            return Err(aborted());
        }
        // The error may be the old catalog's.
        for _ in 0..CATALOGS_MAX {
            if !self.reload().await? {
                break;
            }
            error = match self.plan_once(sql, types).await {
                Err(error) => error,
                result => return result,
            };
        }
        Err(error)
    }

    async fn plan_once(
        &mut self,
        sql: &str,
        types: &[Option<DataType>],
    ) -> Result<Option<Prepared>, SqlError> {
        let catalog = self.catalog();
        if let Some(plan) = self.database.plan(sql, types, &catalog) {
            return Ok(Some(plan));
        }
        let (text, known) = (sql.to_owned(), types.to_vec());
        let planned_with = Arc::clone(&catalog);
        let planned = self.database.parser.run(move || {
            if parser::is_empty(&text)? {
                return Ok(None);
            }
            let statement = parser::parse(&text)?;
            statement::plan(&statement, &text, &planned_with, &known).map(Some)
        });
        let planned = planned.await?;
        if let Some(prepared) = planned.as_ref().filter(|prepared| is_kept(prepared)) {
            self.database.keep_plan(sql, types, &catalog, prepared);
        }
        Ok(planned)
    }

    /// Reads the catalog if there is a newer one; tells whether there is.
    pub(super) async fn reload(&mut self) -> Result<bool, SqlError> {
        let resources = self.resources(&self.catalog());
        let transaction = self.transaction.take();
        let job = move |coordinator: &mut Coordinator<'_>| match transaction {
            None => (None, resources.database.reload(coordinator)),
            Some(mut transaction) => {
                let database = &resources.database;
                let place = (database.catalog_table, &database.versions);
                let result = Catalog::load(coordinator, &mut transaction.deferred, place);
                let result = result.map(|catalog| {
                    let is_newer = catalog.version != transaction.catalog.version;
                    if is_newer {
                        transaction.catalog = Arc::new(catalog);
                    }
                    transaction.version_read = true;
                    is_newer
                });
                (Some(transaction), result)
            }
        };
        let (transaction, result) = self.spawn(job).await?;
        self.transaction = transaction;
        result.map_err(error_of)
    }

    /// Runs a job on a coroutine.
    async fn spawn<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Coordinator<'_>) -> T + Send + 'static,
    ) -> Result<T, SqlError> {
        let cluster = &self.database.cluster;
        let completion = cluster.spawn_anywhere(job).map_err(|error| match &error {
            ClusterError::Busy => SqlError::new("53000", error.to_string()),
            _ => SqlError::new("57P03", error.to_string()),
        })?;
        completion.await.map_err(|lost| match cluster.halted() {
            Some(reason) => SqlError::new("08007", reason)
                .with_hint("whether what was under way has committed is unknown"),
            None => SqlError::new("XX000", lost.to_string()),
        })
    }

    fn resources(&self, catalog: &Arc<Catalog>) -> Resources {
        let facts = Facts {
            now: self.began,
            user: Arc::clone(&self.user),
            catalog: Arc::clone(catalog),
            cluster: Arc::clone(&self.database.cluster),
            settings: Arc::clone(&self.settings),
        };
        Resources {
            database: Arc::clone(&self.database),
            facts: Arc::new(facts),
            cancel: Arc::clone(&self.cancel.0),
        }
    }

    /// Runs what was planned; plans it again while the catalog changes.
    pub(super) async fn run(
        &mut self,
        mut prepared: Prepared,
        sql: &str,
        types: &[Option<DataType>],
        parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        let parameters = Arc::new(parameters);
        for _ in 0..CATALOGS_MAX {
            let plan = match &prepared {
                Prepared::Command(command) => {
                    let command = Arc::clone(command);
                    return Box::pin(self.command(&command, sql)).await;
                }
                Prepared::Plan(plan) => Arc::clone(plan),
            };
            if self.status == TransactionStatus::Failed {
                return Err(aborted());
            }
            match self.run_plan(&plan, &parameters).await? {
                Some(output) => return Ok(result_of(&plan, output)),
                None => {
                    self.reload().await?;
                    prepared = self.plan(sql, types).await?.ok_or_else(catalog_changes)?;
                }
            }
        }
        Err(catalog_changes())
    }

    /// Runs a plan; None if the catalog has changed.
    pub(super) async fn run_plan(
        &mut self,
        plan: &Arc<Plan>,
        parameters: &Arc<Vec<Value>>,
    ) -> Result<Option<Output>, SqlError> {
        let resources = self.resources(&plan.catalog);
        let (plan, parameters) = (Arc::clone(plan), Arc::clone(parameters));
        if self.status == TransactionStatus::Idle {
            let job = move |coordinator: &mut Coordinator<'_>| {
                current(match &plan.kind {
                    PlanKind::Define(definition) if online::applies_to(definition) => {
                        online::run(definition, &plan.catalog, coordinator, &resources)
                    }
                    _ => {
                        let begin = |attempt| {
                            let transaction = Transaction::new(Arc::clone(&plan.catalog));
                            let is_overtaken = attempt > OVERTAKEN_MAX && plan.kind.only_reads();
                            if is_overtaken { transaction.guarding() } else { transaction }
                        };
                        alone(coordinator, &resources, &parameters, begin, |context| {
                            execute::run(&plan, context)
                        })
                    }
                })
            };
            return self.spawn(job).await?;
        }
        self.run_inside(move |context| execute::run(&plan, context), resources, parameters).await
    }

    /// Runs part of the session's transaction; None if the catalog has changed.
    async fn run_inside<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Context<'_, '_>) -> Result<T, Failure> + Send + 'static,
        resources: Resources,
        parameters: Arc<Vec<Value>>,
    ) -> Result<Option<T>, SqlError> {
        let Some(mut transaction) = self.transaction.take() else { return Err(aborted()) };
        let job = move |coordinator: &mut Coordinator<'_>| {
            let result = {
                let mut context =
                    Context::new(coordinator, &mut transaction, &resources, &parameters);
                work(&mut context)
            };
            match result {
                Ok(output) => (Some(transaction), Ok(Some(output))),
                Err(Failure::StaleCatalog) => (Some(transaction), Ok(None)),
                Err(failure) if !transaction.savepoints.is_empty() => {
                    // The client may go back to a savepoint, and what was read is checked at the end.
                    (Some(transaction), Err(error_of(failure)))
                }
                Err(failure) => {
                    (None, Err(error_of(given_up(coordinator, &mut transaction, failure))))
                }
            }
        };
        let (transaction, result) = self.spawn(job).await?;
        self.transaction = transaction;
        result
    }

    /// Commits the session's transaction.
    pub(super) async fn commit(&mut self) -> Result<(), SqlError> {
        self.status = TransactionStatus::Idle;
        let Some(transaction) = self.transaction.take() else { return Err(aborted()) };
        let resources = self.resources(&transaction.catalog);
        let job =
            move |coordinator: &mut Coordinator<'_>| transaction.commit(coordinator, &resources);
        self.spawn(job).await?.map_err(SqlError::from)
    }

    /// Gives the session's transaction up, of which nothing is anywhere else.
    pub(super) fn roll_back(&mut self) {
        self.status = TransactionStatus::Idle;
        self.transaction = None;
    }

    /// Takes data of a COPY.
    pub(super) async fn copy_chunk(&mut self, chunk: &[u8]) -> Result<u64, SqlError> {
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let rows = copy.reader.read(chunk)?;
        copy.rows.extend(rows);
        while self.copy.as_ref().is_some_and(|copy| copy.rows.len() >= BATCH_ROWS) {
            self.copy_batch().await?;
        }
        Ok(self.copy.as_ref().map_or(0, |copy| copy.count))
    }

    /// Ends a COPY: its command tag.
    pub(super) async fn copy_rest(&mut self) -> Result<String, SqlError> {
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let rows = copy.reader.finish()?;
        copy.rows.extend(rows);
        while self.copy.as_ref().is_some_and(|copy| !copy.rows.is_empty()) {
            self.copy_batch().await?;
        }
        Ok(format!("COPY {}", self.copy.as_ref().map_or(0, |copy| copy.count)))
    }

    /// Tells with an error of COPY what it leaves.
    pub(super) fn copied_so_far(&self, error: SqlError) -> SqlError {
        let count = self.copy.as_ref().map_or(0, |copy| copy.count);
        if self.transaction.is_some() || error.hint.is_some() || count == 0 {
            return error;
        }
        let hint = format!(
            "COPY outside a transaction commits every {BATCH_ROWS} rows: the first {count} rows are in the table"
        );
        error.with_hint(hint)
    }

    async fn copy_batch(&mut self) -> Result<(), SqlError> {
        let copy = self.copy.as_mut().ok_or_else(no_copy)?;
        let count = copy.rows.len().min(BATCH_ROWS);
        let batch: Arc<Vec<Row>> = Arc::new(copy.rows.drain(..count).collect());
        let sql = copy.sql.clone();
        let (mut first, mut catalogs) = (0, 0);
        while first < count {
            let plan = Arc::clone(&self.copy.as_ref().ok_or_else(no_copy)?.insert);
            let inserted = self.copy_rows(plan, Arc::clone(&batch), first).await?;
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            if let Some(inserted) = inserted {
                first += inserted;
                copy.count += inserted as u64;
                continue;
            }
            catalogs += 1;
            if catalogs == CATALOGS_MAX {
                return Err(catalog_changes());
            }
            self.reload().await?;
            let prepared = self.plan(&sql, &[]).await?;
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            if let Some(Prepared::Command(command)) = prepared
                && let Command::CopyIn { insert, .. } = &*command
            {
                copy.insert = Arc::clone(insert);
            }
        }
        Ok(())
    }

    /// Inserts rows of a batch from `first` on: how many; None if the catalog has changed.
    ///
    /// They are a transaction of their own outside of one, and where the session's transaction has just created the table.
    async fn copy_rows(
        &mut self,
        plan: Arc<Plan>,
        batch: Arc<Vec<Row>>,
        first: usize,
    ) -> Result<Option<usize>, SqlError> {
        let PlanKind::Insert(insert) = &plan.kind else { return Err(no_copy()) };
        let resources = self.resources(&plan.catalog);
        let table = Arc::clone(&insert.rules.table);
        let fills = match &mut self.transaction {
            None => false,
            Some(transaction) => {
                let fills = transaction.may_fill(&self.database, &table);
                if fills {
                    transaction.filled.add(&self.database, table.storage);
                }
                fills
            }
        };
        let insert = move |context: &mut Context<'_, '_>| {
            let PlanKind::Insert(insert) = &plan.kind else { return Err(no_copy().into()) };
            // Where others insert too, fewer at a time get through. The second attempt tells duplicates.
            let rows = &batch[first..];
            let fewer = context.attempt.saturating_sub(2).min(6);
            let rows = &rows[..(rows.len() >> fewer).max(1)];
            let inserted = execute::insert_rows(insert, rows, context);
            context.checked(inserted).map(|_| rows.len())
        };
        if self.transaction.is_some() && !fills {
            return self.run_inside(insert, resources, Arc::default()).await;
        }
        let catalog = Arc::clone(&resources.facts.catalog);
        let job = move |coordinator: &mut Coordinator<'_>| {
            let begin = |_| match fills {
                true => Transaction::part_of(Arc::clone(&catalog)),
                false => Transaction::new(Arc::clone(&catalog)),
            };
            current(alone(coordinator, &resources, &[], begin, insert))
        };
        self.spawn(job).await?
    }
}

/// Whether a plan may be asked for again soon: BEGIN and COMMIT stand around every transaction.
fn is_kept(prepared: &Prepared) -> bool {
    match prepared {
        Prepared::Plan(plan) => !matches!(plan.kind, PlanKind::Define(_)),
        Prepared::Command(command) => {
            matches!(**command, Command::Begin | Command::Commit | Command::Rollback)
        }
    }
}

/// What a transaction of its own gave; None if the catalog has changed.
fn current<T>(result: Result<T, Failure>) -> Result<Option<T>, SqlError> {
    match result {
        Ok(output) => Ok(Some(output)),
        Err(Failure::StaleCatalog) => Ok(None),
        Err(failure) => Err(error_of(failure)),
    }
}

fn error_of(failure: Failure) -> SqlError {
    match failure {
        Failure::Abort(abort) => abort.into(),
        Failure::Error(error) => *error,
        Failure::StaleCatalog => catalog_changes(),
    }
}

fn catalog_changes() -> SqlError {
    SqlError::new("40001", "the catalog kept changing while the statement was planned")
        .with_hint("run the statement again")
}

/// The error of a statement in a transaction that has failed.
pub(super) fn aborted() -> SqlError {
    let message = "current transaction is aborted, commands ignored until end of transaction block";
    SqlError::new("25P02", message).with_hint("end it with ROLLBACK")
}

fn no_copy() -> SqlError {
    SqlError::new("08P01", "there is no COPY under way")
}

/// What a client gets of a plan's output.
fn result_of(plan: &Plan, output: Output) -> StatementResult {
    match output.rows {
        Some(mut rows) => {
            pad(&mut rows, &plan.columns);
            StatementResult::Rows { columns: Arc::clone(&plan.columns), rows, tag: output.tag }
        }
        None => StatementResult::Done { tag: output.tag, notices: output.notices },
    }
}
