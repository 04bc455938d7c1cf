//! Running plans: the catalog that they are made with, the job in a coroutine, and its conflicts.
//!
//! ```text
//! plan ─► run ─┬─ outside a transaction: run_alone, retried in its coroutine until it commits
//!              └─ inside: the transaction moves into the job and back; conflicts show at COMMIT
//!              None: the catalog has changed; planned again, at most CATALOGS_MAX times
//! ```
//!
//! *Invariants*: a result is reported only if it was made with the catalog that the transaction depends on.
//!
//! *Not here*: what a plan does in its coroutine (`execute`).

use std::sync::Arc;

use gannet_engine::{
    CancellationToken, Cluster, ClusterError, Completion, Coordinator, Lost, Token,
};

use crate::catalog::{Catalog, SeenVersions};
use crate::error::{Failure, SqlError};
use crate::execute::transaction::{OVERTAKEN_MAX, alone_unless, given_up};
use crate::execute::{self, Beyond, Context, Output, Resources, Touched, Transaction, online};
use crate::expression::function::Facts;
use crate::parser;
use crate::plan::statement::{self, Command, Prepared};
use crate::plan::{Plan, PlanKind};
use crate::session::once;
use crate::session::rest::{Ended, Kept, Part, Rest, Takes};
use crate::session::{
    CancelHandle, Column, Session, StatementResult, Step, TransactionStatus, pad,
};
use crate::value::{DataType, Value};

mod copy;
mod errors;

pub(super) use copy::CopyIn;
pub(super) use errors::{aborted, canceled, catalog_changes, error_of};
use errors::{current, unknown};

/// How often a statement is planned again because the catalog has changed.
const CATALOGS_MAX: u32 = 100;

/// Where a job of a session runs.
enum JobPlace<'k> {
    Anywhere,
    /// On the node that is the primary of this key.
    Near(&'k [u8]),
    /// On another thread than the session's, which goes on meanwhile.
    Beside,
}

impl Session {
    /// The catalog that the next statement is planned with.
    pub(super) fn catalog(&self) -> Arc<Catalog> {
        match self.transaction.as_deref() {
            Some(Transaction { catalog: Some(catalog), .. }) => Arc::clone(catalog),
            _ => self.database.catalog(),
        }
    }

    /// Whether a plan was made with that catalog, and the catalog is a committed one.
    pub(super) fn is_current(&self, plan: &Plan) -> bool {
        let (version, private) = match self.transaction.as_deref() {
            Some(Transaction { catalog: Some(catalog), .. }) => (catalog.version, catalog.private),
            _ => (self.database.version(), false),
        };
        plan.catalog.version == version && !private && !plan.catalog.private
    }

    /// Plans a statement; None if it is empty.
    pub(super) async fn plan(
        &mut self,
        sql: &str,
        types: &[Option<DataType>],
    ) -> Result<Option<Prepared>, SqlError> {
        let mut version = self.catalog().version;
        let mut error = match self.plan_once(sql, types).await {
            Err(error) if error.code != "42601" => error,
            result => return result,
        };
        if self.status == TransactionStatus::Failed {
            return Err(aborted());
        }
        // The error may be due to an old catalog. Another session may have read the newest one meanwhile.
        for _ in 0..CATALOGS_MAX {
            self.reload().await?;
            let newest = self.catalog().version;
            if newest == version {
                break;
            }
            version = newest;
            error = match self.plan_once(sql, types).await {
                Err(error) => error,
                result => return result,
            };
        }
        Err(error)
    }

    /// Plans a statement with the last known catalog, unless its plan is kept.
    pub(super) async fn plan_once(
        &mut self,
        sql: &str,
        types: &[Option<DataType>],
    ) -> Result<Option<Prepared>, SqlError> {
        let catalog = self.catalog();
        match self.database.plan(sql, types, &catalog) {
            Some(kept) => Ok(Some(kept)),
            None => self.plan_with(catalog, sql, types).await,
        }
    }

    fn plan_with<'s>(
        &'s mut self,
        catalog: Arc<Catalog>,
        sql: &'s str,
        types: &'s [Option<DataType>],
    ) -> Step<'s, Result<Option<Prepared>, SqlError>> {
        Box::pin(async move {
            let (text, known) = (sql.to_owned(), types.to_vec());
            let planned_with = Arc::clone(&catalog);
            let planned = self.database.parser.run(sql.len(), move || {
                let Some(statement) = parser::parse(&text)? else { return Ok(None) };
                statement::plan(&statement, &text, &planned_with, &known).map(Some)
            });
            let planned = self.cancel.unless_given_up(planned).await;
            let planned = planned.unwrap_or_else(|| Err(canceled()))?;
            if let Some(prepared) = planned.as_ref().filter(|prepared| is_kept(prepared)) {
                self.database.keep_plan(sql, types, &catalog, prepared);
            }
            Ok(planned)
        })
    }

    /// Reads the catalog if there is a newer one, and tells whether there is.
    pub(super) fn reload(&mut self) -> Step<'_, Result<bool, SqlError>> {
        Box::pin(async move {
            let catalog = self.catalog();
            let resources = self.resources(&catalog);
            let transaction = self.transaction.take();
            let job =
                move |coordinator: &mut Coordinator<'_>, resources: &Resources| match transaction {
                    None => (None, resources.database.reload(coordinator)),
                    Some(mut transaction) => {
                        let database = &resources.database;
                        let place = (database.catalog_table, &database.versions);
                        let result = Catalog::load(coordinator, &mut transaction.deferred, place);
                        let result = result.map(|catalog| {
                            let is_newer = catalog.version != resources.facts.catalog.version;
                            if is_newer {
                                transaction.catalog = Some(Arc::new(catalog));
                            }
                            transaction.depends_on_version = true;
                            is_newer
                        });
                        (Some(transaction), result)
                    }
                };
            let (transaction, result) = self.spawn(None, resources, job).await?;
            self.transaction = transaction;
            result.map_err(error_of)
        })
    }

    /// Runs a job on a coroutine: on the node that is the primary of a key, if a key is given.
    pub(super) async fn spawn<T: Send + 'static>(
        &mut self,
        home: Option<&[u8]>,
        resources: Box<Resources>,
        job: impl FnOnce(&mut Coordinator<'_>, &Resources) -> T + Send + 'static,
    ) -> Result<T, SqlError> {
        let place = home.map_or(JobPlace::Anywhere, JobPlace::Near);
        let started = self.start(place, resources, job)?;
        let (resources, output) = started.end(&self.cancel, &self.database.cluster).await?;
        self.resources = Some(resources);
        Ok(output)
    }

    /// Starts a job as [`Self::spawn`] does.
    fn start<T: Send + 'static>(
        &self,
        place: JobPlace<'_>,
        resources: Box<Resources>,
        job: impl FnOnce(&mut Coordinator<'_>, &Resources) -> T + Send + 'static,
    ) -> Result<Started<T>, SqlError> {
        let cluster = &self.database.cluster;
        if self.refuses_without_lease
            && let Some(obstacle) = cluster.obstacle_to_all()
        {
            return Err(obstacle.into());
        }
        let cancellation = Arc::new(CancellationToken::default());
        let token = Arc::clone(&cancellation);
        let job = move |coordinator: &mut Coordinator<'_>| {
            if token.is_cancelled() {
                // The session gave up before the coroutine began.
                return None;
            }
            coordinator.set_cancellation(token);
            let output = job(coordinator, &resources);
            Some((resources, output))
        };
        let spawned = match place {
            JobPlace::Near(key) => {
                cluster.spawn_near(cluster.configuration().primary_of_row(key), job)
            }
            JobPlace::Anywhere => cluster.spawn_anywhere(job),
            JobPlace::Beside => cluster.spawn_beside(job),
        };
        let completion = spawned.map_err(|error| match &error {
            ClusterError::Busy => SqlError::new("53000", error.to_string()),
            _ => SqlError::new("57P03", error.to_string()),
        })?;
        self.cancel.set_job(&cancellation);
        Ok(Started { completion, cancellation })
    }

    /// The facts that functions depend on.
    pub(crate) fn facts(&self) -> Facts {
        Facts {
            now: self.began,
            user: Arc::clone(&self.user),
            catalog: self.catalog(),
            cluster: Arc::clone(&self.database.cluster),
            settings: Arc::clone(&self.settings),
            budget: Arc::clone(&self.budget),
        }
    }

    /// The resources for a statement. Those of the last statement are used again, with the session's view of the catalog's
    /// version. This avoids reference counts that other cores change, too.
    pub(super) fn resources(&mut self, catalog: &Arc<Catalog>) -> Box<Resources> {
        let Some(mut resources) = self.resources.take() else {
            let facts = Facts { catalog: Arc::clone(catalog), ..self.facts() };
            let (database, cancel) = (Arc::clone(&self.database), self.cancel.flag());
            return Box::new(Resources {
                database,
                facts,
                seen_versions: SeenVersions::default(),
                touched: Touched::default(),
                spares: Default::default(),
                parameters: Vec::new(),
                cancel,
            });
        };
        if self.transaction.is_none() {
            resources.touched.clear();
        }
        let facts = &mut resources.facts;
        facts.now = self.began;
        if !Arc::ptr_eq(&facts.catalog, catalog) {
            facts.catalog = Arc::clone(catalog);
        }
        if !Arc::ptr_eq(&facts.settings, &self.settings) {
            facts.settings = Arc::clone(&self.settings);
        }
        resources
    }

    /// Runs a prepared statement; plans it again while the catalog changes.
    pub(super) async fn run(
        &mut self,
        mut prepared: Prepared,
        sql: &str,
        types: &[Option<DataType>],
        mut parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        for _ in 0..CATALOGS_MAX {
            let plan = match prepared {
                Prepared::Command(command) => {
                    return self.command(&command, sql, parameters).await;
                }
                Prepared::Plan(plan) => plan,
            };
            if self.status == TransactionStatus::Failed {
                return Err(aborted());
            }
            self.check_not_committed()?;
            let output = self.run_plan(&plan, parameters, self.takes).await;
            if !matches!(output, Ok(None)) {
                self.use_token(&plan);
            }
            let back = self.resources.as_mut().map(|resources| &mut resources.parameters);
            parameters = back.map(std::mem::take).unwrap_or_default();
            if let Some(mut output) = output? {
                self.keep_file(&mut output, &plan.columns)?;
                self.result = std::mem::take(&mut output.charge);
                return Ok(result_of(&plan, output));
            }
            self.reload().await?;
            prepared = self.plan(sql, types).await?.ok_or_else(catalog_changes)?;
        }
        Err(catalog_changes())
    }

    /// Runs a plan, and leaves the parameters in the resources; None if the catalog has changed. If the query may still run
    /// when its first rows come, the rest of the result is in `rest`.
    pub(super) async fn run_plan(
        &mut self,
        plan: &Arc<Plan>,
        parameters: Vec<Value>,
        takes: Takes,
    ) -> Result<Option<Output>, SqlError> {
        let token = self.token_for(plan)?;
        let home = plan.home.as_ref().and_then(|home| home.key(&parameters));
        let mut resources = self.resources(&plan.catalog);
        resources.parameters = parameters;
        let is_idle = self.status == TransactionStatus::Idle;
        let transaction = match is_idle {
            true => None,
            false => Some(self.transaction.take().ok_or_else(aborted)?),
        };
        let (beyond, rows) = self.beyond(plan, takes);
        let own = Arc::clone(plan);
        let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| match transaction
        {
            None => {
                let parts = (&*own, &beyond, token.as_ref());
                (None, current(run_alone(parts, coordinator, resources)))
            }
            Some(transaction) => {
                let work = |context: &mut Context<'_, '_>| execute::run(&own, &beyond, context);
                inside(transaction, work, coordinator, resources)
            }
        };
        let place = home.as_deref().map_or(JobPlace::Anywhere, JobPlace::Near);
        let started = self.start(place, resources, job)?;
        if let Some(mut rows) = rows
            && let Some(Some(first)) = self.cancel.unless_given_up(rows.recv()).await
        {
            let (cancel, database) = (self.cancel.clone(), Arc::clone(&self.database));
            let end = Box::pin(async move { started.end(&cancel, &database.cluster).await });
            self.rest = Some(Rest::of_query(rows, end, &plan.columns));
            return Ok(Some(Output { rows: Some(first), ..Output::default() }));
        }
        let ended = started.end(&self.cancel, &self.database.cluster).await?;
        self.take_back(ended)
    }

    /// Leaves the rows to [`Self::take_rest`] if they are in a file.
    pub(super) fn keep_file(
        &mut self,
        output: &mut Output,
        columns: &Arc<[Column]>,
    ) -> Result<(), SqlError> {
        if output.file.is_some() { self.keep(output, columns) } else { Ok(()) }
    }

    /// Leaves all rows to [`Self::take_rest`].
    pub(super) fn keep(
        &mut self,
        output: &mut Output,
        columns: &Arc<[Column]>,
    ) -> Result<(), SqlError> {
        let kept = Arc::new(Kept::of(output, &self.files)?);
        let part = Part { rows: 0..kept.count(), kept, is_backward: false };
        self.rest = Some(Rest::of_kept(part, columns));
        output.rows = Some(Vec::new());
        Ok(())
    }

    /// Takes back the resources and the transaction of a statement.
    pub(super) fn take_back(&mut self, ended: Ended) -> Result<Option<Output>, SqlError> {
        let (resources, (transaction, result)) = ended;
        self.resources = Some(resources);
        if transaction.is_some() {
            self.transaction = transaction;
        }
        result.map_err(|error| self.located(error))
    }

    /// Runs part of the session's transaction; None if the catalog has changed.
    async fn run_inside<T: Send + 'static>(
        &mut self,
        home: Option<&[u8]>,
        resources: Box<Resources>,
        work: impl FnOnce(&mut Context<'_, '_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<Option<T>, SqlError> {
        let Some(transaction) = self.transaction.take() else { return Err(aborted()) };
        let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
            inside(transaction, work, coordinator, resources)
        };
        let (transaction, result) = self.spawn(home, resources, job).await?;
        self.transaction = transaction;
        result.map_err(|error| self.located(error))
    }

    /// Commits the session's transaction.
    pub(super) async fn commit(&mut self) -> Result<(), SqlError> {
        self.cursors.clear();
        self.status = TransactionStatus::Idle;
        let catalog = self.catalog();
        let resources = self.resources(&catalog);
        let token = self.take_token();
        let Some(transaction) = self.transaction.take() else { return Err(aborted()) };
        let home = transaction.deferred.first_written().map(<[u8]>::to_vec);
        let job = move |coordinator: &mut Coordinator<'_>, resources: &Resources| {
            once::commit(transaction, token.as_ref(), coordinator, resources)
        };
        let committed = self.spawn(home.as_deref(), resources, job).await?;
        committed.map_err(|abort| self.located(error_of(abort.into())))
    }

    /// The same error; a conflict names the tables that the transaction has used.
    fn located(&self, error: SqlError) -> SqlError {
        let error = match self.database.cluster.halted() {
            Some(reason) if matches!(error.code, "57P03" | "08007") && error.message != reason => {
                SqlError { detail: Some(error.message), message: reason, ..error }
            }
            _ => error,
        };
        match &self.resources {
            Some(resources) => resources.touched.named(error, &resources.facts.catalog),
            None => error,
        }
    }

    /// Drops the session's transaction, none of whose writes have left it.
    pub(super) fn roll_back(&mut self) {
        self.cursors.clear();
        self.status = TransactionStatus::Idle;
        self.once = None;
        self.transaction = None;
    }
}

/// A job that has been started.
struct Started<T> {
    completion: Completion<Option<(Box<Resources>, T)>>,
    cancellation: Arc<CancellationToken>,
}

impl<T> Started<T> {
    /// The job's result, with its resources.
    async fn end(
        self,
        cancel: &CancelHandle,
        cluster: &Cluster,
    ) -> Result<(Box<Resources>, T), SqlError> {
        let Some(done) = cancel.unless_given_up(self.completion).await else {
            // The coroutine goes on when it is answered, and undoes or completes its work.
            return Err(if self.cancellation.cancel() { unknown() } else { canceled() });
        };
        let done = done.map_err(|lost| match (cluster.halted(), lost) {
            (Some(reason), Lost::NotBegun) => SqlError::new("57P03", reason),
            (Some(reason), Lost::Unfinished) => SqlError::new("08007", reason)
                .with_hint("whether a commit in progress has succeeded is unknown"),
            (None, lost) => SqlError::new("XX000", lost.to_string()),
        });
        done?.ok_or_else(canceled)
    }
}

/// Runs a plan as a transaction of its own, under a token if there is one.
fn run_alone(
    (plan, beyond, token): (&Plan, &Beyond, Option<&Token>),
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<Output, Failure> {
    if let PlanKind::Define(definition) = &plan.kind
        && online::applies_to(definition)
    {
        return online::run(definition, &plan.catalog, coordinator, resources);
    }
    let begin = |attempt| {
        // One that waits for others does not keep these from writing.
        let is_overtaken =
            attempt > OVERTAKEN_MAX && plan.kind.only_reads() && !plan.kind.reserves();
        let transaction = Transaction::new();
        if is_overtaken { transaction.with_scan_barriers() } else { transaction }
    };
    let work = |context: &mut Context<'_, '_>| match token {
        None => execute::run(plan, beyond, context),
        Some(token) => once::run(token, (plan, beyond), context),
    };
    let ended = |failure: Failure| beyond.ended(failure);
    let output = alone_unless(coordinator, resources, begin, work, ended)?;
    if token.is_some() {
        resources.database.tokens.sweep(coordinator);
    }
    Ok(output)
}

/// Runs part of a session's transaction, and returns the transaction unless it is lost.
fn inside<T>(
    mut transaction: Box<Transaction>,
    work: impl FnOnce(&mut Context<'_, '_>) -> Result<T, Failure>,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> (Option<Box<Transaction>>, Result<Option<T>, SqlError>) {
    match work(&mut Context::new(coordinator, &mut transaction, resources)) {
        Ok(output) => (Some(transaction), Ok(Some(output))),
        Err(Failure::StaleCatalog) => (Some(transaction), Ok(None)),
        Err(failure) if !transaction.savepoints.is_empty() => {
            // The client may go back to a savepoint; COMMIT validates the rows read.
            (Some(transaction), Err(error_of(failure)))
        }
        Err(failure) => {
            let failure = given_up(coordinator, &mut transaction, failure);
            transaction.reserved.release(coordinator);
            (None, Err(error_of(failure)))
        }
    }
}

/// Whether the plan is worth caching, as those of BEGIN and COMMIT are.
fn is_kept(prepared: &Prepared) -> bool {
    match prepared {
        Prepared::Plan(plan) => !matches!(plan.kind, PlanKind::Define(_)),
        Prepared::Command(command) => {
            matches!(**command, Command::Begin | Command::Commit | Command::Rollback)
        }
    }
}

/// The part of a plan's output that a client gets.
fn result_of(plan: &Plan, output: Output) -> StatementResult {
    match output.rows {
        Some(mut rows) => {
            pad(&mut rows, &plan.columns);
            StatementResult::Rows { columns: Arc::clone(&plan.columns), rows, tag: output.tag }
        }
        None => StatementResult::Done { tag: output.tag, notices: output.notices },
    }
}
