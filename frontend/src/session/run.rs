//! Running plans: the catalog that they are made with, the job, and what becomes of conflicts.

use std::sync::Arc;

use gannet_engine::Coordinator;

use crate::catalog::Catalog;
use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::copy::BATCH_ROWS;
use crate::execute::transaction::{committed, retried};
use crate::execute::{self, Context, Output, Resources, Row, Transaction};
use crate::expression::function::Facts;
use crate::parser;
use crate::plan::statement::{self, Command, Prepared};
use crate::plan::{Plan, PlanKind};
use crate::session::{Session, StatementResult, TransactionStatus, pad};
use crate::value::{DataType, Value};

/// Times that a statement is planned anew because the catalog has changed.
const CATALOGS_MAX: u32 = 100;

/// What a job does with the transaction.
type Work = Arc<dyn Fn(&mut Context<'_, '_>) -> Result<Output, Failure> + Send + Sync>;

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
            None => (None, newest_catalog(coordinator, &resources.database)),
            Some(mut transaction) => {
                let database = &resources.database;
                let place = (database.table, &database.versions);
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
        let completion = self
            .database
            .cluster
            .spawn_anywhere(job)
            .map_err(|error| SqlError::new("53000", error.to_string()))?;
        completion.await.map_err(|lost| SqlError::new("XX000", lost.to_string()))
    }

    fn resources(&self, catalog: &Arc<Catalog>) -> Resources {
        let facts = Facts {
            now: self.began,
            user: Arc::clone(&self.user),
            catalog: Arc::clone(catalog),
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
                let catalog = &plan.catalog;
                autocommit(coordinator, &resources, catalog, &parameters, |context| {
                    execute::run(&plan, context)
                })
            };
            return self.spawn(job).await?;
        }
        let work: Work = Arc::new(move |context| execute::run(&plan, context));
        self.run_inside(work, resources, parameters).await
    }

    /// Runs part of the session's transaction.
    async fn run_inside(
        &mut self,
        work: Work,
        resources: Resources,
        parameters: Arc<Vec<Value>>,
    ) -> Result<Option<Output>, SqlError> {
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
                    (None, Err(error_of(checked(coordinator, &mut transaction, failure))))
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

    async fn copy_batch(&mut self) -> Result<(), SqlError> {
        for _ in 0..CATALOGS_MAX {
            let copy = self.copy.as_mut().ok_or_else(no_copy)?;
            let count = copy.rows.len().min(BATCH_ROWS);
            let rows: Arc<Vec<Row>> = Arc::new(copy.rows[..count].to_vec());
            let plan = Arc::clone(&copy.insert);
            let sql = copy.sql.clone();
            if self.copy_rows(plan, rows).await? {
                let copy = self.copy.as_mut().ok_or_else(no_copy)?;
                copy.rows.drain(..count);
                copy.count += count as u64;
                return Ok(());
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
        Err(catalog_changes())
    }

    /// Inserts rows; false if the catalog has changed.
    async fn copy_rows(&mut self, plan: Arc<Plan>, rows: Arc<Vec<Row>>) -> Result<bool, SqlError> {
        let resources = self.resources(&plan.catalog);
        let catalog = Arc::clone(&plan.catalog);
        let work: Work = Arc::new(move |context| match &plan.kind {
            PlanKind::Insert(insert) => {
                let inserted = execute::insert_rows(insert, rows.to_vec(), context);
                context.checked(inserted).map(|_| Output::default())
            }
            _ => Err(no_copy().into()),
        });
        let output = if self.status == TransactionStatus::Idle {
            let job = move |coordinator: &mut Coordinator<'_>| {
                autocommit(coordinator, &resources, &catalog, &[], |context| work(context))
            };
            self.spawn(job).await??
        } else {
            self.run_inside(work, resources, Arc::default()).await?
        };
        Ok(output.is_some())
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

/// The newest catalog, told to the database; whether it is newer than what that had.
fn newest_catalog(coordinator: &mut Coordinator<'_>, database: &Database) -> Result<bool, Failure> {
    let known = database.catalog().version;
    let catalog = committed(coordinator, |coordinator, deferred| {
        Catalog::load(coordinator, deferred, (database.table, &database.versions))
    })?;
    let is_newer = catalog.version > known;
    database.publish(Arc::new(catalog));
    Ok(is_newer)
}

/// Runs work as a transaction of its own until it commits; None if the catalog has changed.
fn autocommit(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    catalog: &Arc<Catalog>,
    parameters: &[Value],
    work: impl Fn(&mut Context<'_, '_>) -> Result<Output, Failure>,
) -> Result<Option<Output>, SqlError> {
    let result = retried(coordinator, |coordinator, attempt| {
        let mut transaction = Transaction::new(Arc::clone(catalog));
        let mut context = Context::new(coordinator, &mut transaction, resources, parameters);
        context.attempt = attempt;
        match work(&mut context) {
            Ok(output) => {
                transaction.commit(coordinator, resources)?;
                Ok(output)
            }
            Err(failure) => Err(checked(coordinator, &mut transaction, failure)),
        }
    });
    match result {
        Ok(output) => Ok(Some(output)),
        Err(Failure::StaleCatalog) => Ok(None),
        Err(failure) => Err(error_of(failure)),
    }
}

/// What a transaction that is given up fails with: a conflict, if what it had read was not valid.
fn checked(
    coordinator: &mut Coordinator<'_>,
    transaction: &mut Transaction,
    failure: Failure,
) -> Failure {
    match failure {
        Failure::Error(_) => match transaction.deferred.give_up(coordinator) {
            Err(abort) if abort.is_conflict() => abort.into(),
            _ => failure,
        },
        Failure::Abort(_) | Failure::StaleCatalog => failure,
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
