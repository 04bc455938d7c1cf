//! A client's session: statements in, results out.
//!
//! ```text
//! Session::execute ─► parse, plan: a large stack ─► run: a coroutine of the engine ─► StatementResult, rest of the rows
//!                           ▲                                  │
//!                           └── the catalog has changed ───────┘      conflicts are retried in the coroutine
//! ```
//!
//! The session awaits the coroutine as a future, and the thread that parses a long text. Between statements the session holds its transaction, which
//! moves into each statement's job and back.
//!
//! *Invariants*: one statement at a time runs in a session. Statements, cursors and results that a session keeps are charged
//! to its budget.
//!
//! *Not here*: statements that end before their results (`session/cancel`), commands such as SET and PREPARE (`session/command`),
//! plans that run (`session/run`), idempotency tokens (`session/once`), kept rows (`session/rest`), wire protocols.

mod administer;
mod cancel;
mod command;
mod cursor;
mod once;
mod rest;
mod run;
mod template;

pub use cancel::CancelHandle;
use cursor::Cursor;
pub(crate) use cursor::Fetch;
use once::Once;
pub use rest::{Rest, Takes};

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use chrono::NaiveDateTime;
use tokio::sync::oneshot;

use crate::aside::HELD_BYTES_MAX;
use crate::database::Database;
use crate::error::SqlError;
use crate::execute::{Resources, Row, Transaction};
use crate::memory::{Budget, Charge};
use crate::parser;
use crate::plan::PlanKind;
use crate::plan::statement::Prepared;
use crate::session::run::CopyIn;
use crate::session::template::Template;
use crate::settings;
use crate::text::padded;
use crate::value::{DataType, Value};

/// Approximate bytes of a prepared statement beside its text and plan.
const PREPARED_BYTES: usize = 1 << 10;
/// Bytes of text and plan for each byte of the text.
const PREPARED_FACTOR: usize = 8;

/// A step of a statement that is compiled with this crate: each crate that awaits an `async fn` compiles it, and all that it awaits, anew.
type Step<'s, T> = Pin<Box<dyn Future<Output = T> + Send + 's>>;

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
}

/// The format of COPY's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    /// PostgreSQL's text format: tabs, backslashes, `\N`.
    Text,
    /// CSV, RFC 4180 with PostgreSQL's NULL and quoting rules.
    Csv,
}

/// Options of a COPY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    /// The format.
    pub format: CopyFormat,
    /// The byte between two columns.
    pub delimiter: u8,
    /// The text for NULL.
    pub null: String,
    /// Whether the first line names the columns (csv).
    pub header: bool,
}

/// The result of a statement.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementResult {
    /// Rows, and the command tag: `SELECT 3`, `INSERT 0 1` with RETURNING, `SHOW`, `EXPLAIN`.
    Rows {
        /// The columns.
        columns: Arc<[Column]>,
        /// The rows, each as long as `columns`.
        rows: Vec<Vec<Value>>,
        /// PostgreSQL's command tag.
        tag: String,
    },
    /// No rows: the command tag, such as `CREATE TABLE`, `INSERT 0 2`, `BEGIN`; and notices to show.
    Done {
        /// PostgreSQL's command tag.
        tag: String,
        /// Notices (`NOTICE: table "t" does not exist, skipping`).
        notices: Vec<String>,
    },
    /// An empty statement.
    Empty,
    /// COPY ... FROM STDIN: the caller now calls [`Session::copy_in`] with the data, then [`Session::copy_end`].
    CopyIn {
        /// Columns expected.
        columns: Vec<Column>,
        /// How the data is written.
        options: CopyOptions,
    },
    /// COPY ... TO STDOUT: the whole text in lines, and the command tag `COPY n`.
    CopyOut {
        /// Columns sent.
        columns: Vec<Column>,
        /// How the data is written.
        options: CopyOptions,
        /// The lines, each with its newline.
        lines: Vec<Vec<u8>>,
        /// PostgreSQL's command tag.
        tag: String,
    },
}

/// The transaction status of a session, as ReadyForQuery reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction.
    Idle,
    /// In a transaction.
    InTransaction,
    /// In a transaction that has failed: only ROLLBACK is of use.
    Failed,
}

/// A statement that was parsed and planned.
#[derive(Clone, Debug)]
pub struct PreparedStatement {
    /// The types of $1, $2, ...
    pub parameters: Vec<DataType>,
    /// Columns of its result; empty if it gives no rows.
    pub columns: Arc<[Column]>,
    /// Whether the statement returns rows.
    pub returns_rows: bool,
    sql: Arc<str>,
    /// The types that the client declared.
    types: Arc<[Option<DataType>]>,
    /// None for an empty statement.
    prepared: Option<Prepared>,
    _charge: Arc<Charge>,
}

/// A client's session.
pub struct Session {
    database: Arc<Database>,
    user: Arc<str>,
    cancel: CancelHandle,
    settings: Arc<BTreeMap<String, String>>,
    /// The values that RESET restores.
    first_settings: Arc<BTreeMap<String, String>>,
    status: TransactionStatus,
    /// None outside a transaction, and after the transaction was lost.
    transaction: Option<Box<Transaction>>,
    /// The idempotency token of the transaction, if it has one.
    once: Option<Once>,
    /// Resources that the last statement has returned.
    resources: Option<Box<Resources>>,
    /// When the transaction began.
    began: NaiveDateTime,
    /// The statements of PREPARE.
    statements: BTreeMap<String, Arc<PreparedStatement>>,
    copy: Option<CopyIn>,
    /// The open cursors of the transaction.
    cursors: BTreeMap<String, Cursor>,
    /// The budget for what the session, its statements and its transaction keep.
    budget: Arc<Budget>,
    /// The charge of the last result, whose rows may still be on their way to the client.
    result: Charge,
    /// Which large results the running statement may return; `next_takes` is for the next one.
    takes: Takes,
    next_takes: Takes,
    /// The remaining rows of the last result.
    rest: Option<Rest>,
    /// Counts the files that keep the session's results.
    files: Arc<AtomicUsize>,
    /// Whether jobs are refused while the node has had no lease for long.
    refuses_without_lease: bool,
}

/// The rows of a statement, one by one. Dropping this drops the remaining rows.
pub struct QueryRows<'s> {
    session: &'s mut Session,
    columns: Arc<[Column]>,
    first: std::vec::IntoIter<Row>,
    rest: Option<Rest>,
    tag: String,
}

impl QueryRows<'_> {
    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// PostgreSQL's command tag.
    #[must_use]
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The next row; None at the end.
    ///
    /// # Errors
    /// SQLSTATE 58030 if the directory for temporary files cannot be read.
    pub async fn next(&mut self) -> Result<Option<Vec<Value>>, SqlError> {
        loop {
            if let Some(row) = self.first.next() {
                return Ok(Some(row));
            }
            let Some(rest) = &mut self.rest else { return Ok(None) };
            match rest.next(self.session).await? {
                Some(rows) => self.first = rows.into_iter(),
                None => self.rest = None,
            }
        }
    }
}

impl Session {
    pub(crate) fn new(database: Arc<Database>, user: &str) -> Self {
        let settings = Arc::new(settings::defaults(user));
        Self {
            budget: database.budget(),
            result: Charge::default(),
            takes: Takes::default(),
            next_takes: Takes::default(),
            rest: None,
            files: Arc::default(),
            refuses_without_lease: false,
            database,
            user: Arc::from(user),
            cancel: CancelHandle::default(),
            first_settings: Arc::clone(&settings),
            settings,
            status: TransactionStatus::Idle,
            transaction: None,
            once: None,
            resources: None,
            began: crate::clock::now(),
            statements: BTreeMap::new(),
            copy: None,
            cursors: BTreeMap::new(),
        }
    }

    /// From now on a statement that needs the cluster fails at once (57P03) while the node has had no lease for longer than a lease
    /// lasts.
    #[doc(hidden)]
    pub fn refuse_without_lease(&mut self) {
        self.refuses_without_lease = true;
    }

    /// Splits a script into statements, without running them; a long one on another thread, because that would hold this one. Each
    /// statement comes with its offset in characters, to which positions of its errors are added.
    ///
    /// # Errors
    /// SQLSTATE 42601 for a text that cannot be split into words, 54001 for a text that is too long.
    #[doc(hidden)]
    pub async fn split_aside(&mut self, sql: &str) -> Result<Vec<(usize, String)>, SqlError> {
        let text = sql.to_owned();
        self.database.parser.run(sql.len(), move || parser::split(&text)).await
    }

    /// The result of a job that processes so many bytes. Another thread runs the job if it would hold this one for long.
    ///
    /// # Errors
    /// The job's errors, and SQLSTATE XX000 if the job panicked.
    #[doc(hidden)]
    pub async fn computed<T: Send + 'static>(
        &mut self,
        bytes: usize,
        job: impl FnOnce() -> Result<T, SqlError> + Send + 'static,
    ) -> Result<T, SqlError> {
        if bytes <= HELD_BYTES_MAX {
            return job();
        }
        let (sender, done) = oneshot::channel();
        // Dropping this abandons the job.
        let _pending = self.database.aside.submit(move |_| {
            let _ = sender.send(job());
            Ok(())
        });
        done.await.map_err(|_| SqlError::new("XX000", "a value could not be computed"))?
    }

    /// A charge for bytes that the session keeps between statements.
    ///
    /// # Errors
    /// SQLSTATE 53200 if the bytes do not fit.
    #[doc(hidden)]
    pub fn charged(&self, bytes: usize) -> Result<Charge, SqlError> {
        let mut charge = Charge::default();
        charge.add(&self.budget, bytes)?;
        Ok(charge)
    }

    /// Runs one statement.
    ///
    /// # Errors
    /// The statement's error; a transaction around the statement has then failed.
    pub async fn execute(&mut self, statement: &str) -> Result<StatementResult, SqlError> {
        self.start_statement();
        let result = self.execute_inner(statement).await;
        self.end_statement(result)
    }

    async fn execute_inner(&mut self, statement: &str) -> Result<StatementResult, SqlError> {
        if let Some(template) = Template::of(statement)
            && let Some(prepared) = self.plan_of_template(&template).await
        {
            let Template { sql, types, values } = template;
            let result = self.run(prepared, &sql, &types, values).await;
            // A place would be one in the template.
            return result.map_err(|error| SqlError { position: None, ..error });
        }
        match self.plan(statement, &[]).await? {
            None => Ok(StatementResult::Empty),
            Some(prepared) => self.run(prepared, statement, &[], Vec::new()).await,
        }
    }

    /// Parses and plans one statement with parameters `$1`, `$2`, ...; `types` has the types that the client declares.
    ///
    /// # Errors
    /// The statement's error.
    pub async fn prepare(
        &mut self,
        statement: &str,
        types: &[Option<DataType>],
    ) -> Result<Arc<PreparedStatement>, SqlError> {
        self.start_statement();
        let result = self.prepare_inner(statement, types).await;
        self.end_statement(result)
    }

    async fn prepare_inner(
        &mut self,
        statement: &str,
        types: &[Option<DataType>],
    ) -> Result<Arc<PreparedStatement>, SqlError> {
        let charge = self.charged(PREPARED_BYTES + PREPARED_FACTOR * statement.len())?;
        let prepared = self.plan(statement, types).await?;
        let (parameters, columns) = match &prepared {
            Some(Prepared::Plan(plan)) => (plan.parameters.clone(), Arc::clone(&plan.columns)),
            Some(Prepared::Command(command)) => {
                let query = cursor::query_of(command);
                let parameters = query.map_or_else(Vec::new, |query| query.parameters.clone());
                (parameters, self.command_columns(command).into())
            }
            None => (Vec::new(), Arc::default()),
        };
        Ok(Arc::new(PreparedStatement {
            parameters,
            returns_rows: !columns.is_empty() || is_query(prepared.as_ref()),
            columns,
            sql: Arc::from(statement),
            types: Arc::from(types),
            prepared,
            _charge: Arc::new(charge),
        }))
    }

    /// Runs a prepared statement.
    ///
    /// # Errors
    /// As [`Self::execute`], and SQLSTATE 08P01 for a wrong number of parameters.
    pub async fn execute_prepared(
        &mut self,
        statement: &Arc<PreparedStatement>,
        parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        self.start_statement();
        let result = self.execute_prepared_inner(statement, parameters).await;
        self.end_statement(result)
    }

    async fn execute_prepared_inner(
        &mut self,
        statement: &PreparedStatement,
        parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        let Some(prepared) = &statement.prepared else { return Ok(StatementResult::Empty) };
        if parameters.len() != statement.parameters.len() {
            let (given, needed) = (parameters.len(), statement.parameters.len());
            let message = format!("the statement takes {needed} parameters and {given} were given");
            return Err(SqlError::new("08P01", message));
        }
        let bytes = parameters.iter().map(Value::memory_bytes).sum();
        let types = statement.parameters.clone();
        let typed = move || {
            let typed = parameters.into_iter().zip(types);
            typed.map(|(value, data_type)| in_type(value, data_type)).collect()
        };
        let parameters: Vec<Value> = self.computed(bytes, typed).await?;
        let is_current = matches!(prepared, Prepared::Plan(plan) if self.is_current(plan));
        if is_current && self.status != TransactionStatus::Failed {
            let prepared = prepared.clone();
            return self.run(prepared, &statement.sql, &statement.types, parameters).await;
        }
        let Some(prepared) = self.plan(&statement.sql, &statement.types).await? else {
            return Ok(StatementResult::Empty);
        };
        if let Prepared::Plan(plan) = &prepared
            && plan.columns != statement.columns
        {
            return Err(SqlError::new("0A000", "cached plan must not change result type")
                .with_hint("prepare the statement again"));
        }
        self.run(prepared, &statement.sql, &statement.types, parameters).await
    }

    /// Runs a prepared statement whose rows are taken one by one. Rows that do not fit into memory are in the directory for
    /// temporary files, if there is one: [`crate::MemoryLimits::spill`].
    ///
    /// # Errors
    /// As [`Self::execute_prepared`], and SQLSTATE 42809 for a COPY.
    pub async fn query(
        &mut self,
        statement: &Arc<PreparedStatement>,
        parameters: Vec<Value>,
    ) -> Result<QueryRows<'_>, SqlError> {
        self.take_large(Takes::Kept);
        let (columns, rows, tag) = match self.execute_prepared(statement, parameters).await? {
            StatementResult::Rows { columns, rows, tag } => (columns, rows, tag),
            StatementResult::Done { tag, .. } => (Arc::default(), Vec::new(), tag),
            StatementResult::Empty => Default::default(),
            StatementResult::CopyIn { .. } | StatementResult::CopyOut { .. } => {
                self.copy = None;
                self.rest = None;
                let message = "a COPY gives no rows one by one";
                let error = SqlError::new("42809", message).with_hint("run it with execute");
                return self.end_statement(Err(error));
            }
        };
        let rest = self.take_rest();
        Ok(QueryRows { session: self, columns, first: rows.into_iter(), rest, tag })
    }

    /// Takes data of the COPY that `execute` answered with `CopyIn`, in chunks cut anywhere. Returns the number of rows so
    /// far.
    ///
    /// Outside a transaction up to 1,000 rows are committed at a time: an error leaves the rows before that batch.
    ///
    /// # Errors
    /// The error of the rows; it ends the COPY.
    pub async fn copy_in(&mut self, chunk: &[u8]) -> Result<u64, SqlError> {
        let result = self.copy_chunk(chunk).await;
        self.end_statement(result)
    }

    /// Ends the COPY's data, and returns its command tag. `abandon` is the message of a client that gives up.
    ///
    /// # Errors
    /// The error of the last rows; SQLSTATE 57014 if the client gives up.
    pub async fn copy_end(&mut self, abandon: Option<String>) -> Result<String, SqlError> {
        let result = match abandon {
            None => self.copy_rest().await,
            Some(message) => {
                Err(SqlError::new("57014", format!("COPY from stdin failed: {message}")))
            }
        };
        self.give_up_copy();
        self.end_statement(result)
    }

    /// The charge of the last result, for a caller that keeps the rows beyond the next statement.
    #[doc(hidden)]
    pub fn take_result(&mut self) -> Charge {
        std::mem::take(&mut self.result)
    }

    /// The transaction status.
    #[must_use]
    pub fn status(&self) -> TransactionStatus {
        self.status
    }

    /// A handle that cancels statements from another thread.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The value of a setting (server_version, client_encoding, DateStyle, ...), if there is such a setting.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<String> {
        self.settings.get(&name.to_ascii_lowercase()).cloned()
    }

    /// Makes the present values of the settings those that RESET restores.
    #[doc(hidden)]
    pub fn keep_settings(&mut self) {
        self.first_settings = Arc::clone(&self.settings);
    }

    /// Names for completion: tables, then columns.
    pub async fn names(&mut self) -> Vec<String> {
        if self.status == TransactionStatus::Idle {
            // If the newest catalog cannot be read, the last known one serves as well.
            let _ = self.reload().await;
        }
        let catalog = self.catalog();
        let mut names: Vec<String> = catalog.tables().map(|table| table.name.clone()).collect();
        for column in catalog.tables().flat_map(|table| &table.columns) {
            if !names.contains(&column.name) {
                names.push(column.name.clone());
            }
        }
        names
    }

    fn start_statement(&mut self) {
        self.result.clear();
        self.rest = None;
        if self.copy.as_ref().is_some_and(CopyIn::has_begun) {
            // The caller has not ended the COPY, whose rows are part of the transaction.
            self.give_up_copy();
            if self.status == TransactionStatus::InTransaction {
                self.status = TransactionStatus::Failed;
            }
        }
        self.takes = std::mem::take(&mut self.next_takes);
        self.cancel.reset();
        if self.status == TransactionStatus::Idle {
            self.began = crate::clock::now();
        }
    }

    /// Marks the transaction as failed if its statement has failed.
    fn end_statement<T>(&mut self, result: Result<T, SqlError>) -> Result<T, SqlError> {
        if result.is_err() && self.status == TransactionStatus::InTransaction {
            self.status = TransactionStatus::Failed;
        }
        if let Some(resources) = &mut self.resources {
            drop(resources.spares.take());
        }
        result
    }
}

/// Whether a statement returns rows, even rows without columns.
fn is_query(prepared: Option<&Prepared>) -> bool {
    match prepared {
        Some(Prepared::Plan(plan)) => matches!(plan.kind, PlanKind::Query(_)),
        _ => false,
    }
}

/// A parameter converted to the type that the plan has for it.
fn in_type(value: Value, data_type: DataType) -> Result<Value, SqlError> {
    let fits = match (&value, data_type) {
        (Value::Null, _) => true,
        (Value::Boolean(_), DataType::Boolean) => true,
        (Value::Integer(number), data_type) if data_type.is_integer() => {
            if !crate::text::integer_fits(*number, data_type) {
                let name = data_type.base_name();
                return Err(SqlError::new("22003", format!("{name} out of range")));
            }
            true
        }
        (Value::Float(_), DataType::Real | DataType::Double) => true,
        (Value::Numeric(_), DataType::Numeric(None)) => true,
        (Value::Text(_), DataType::Text) => true,
        (Value::Bytea(_), DataType::Bytea) => true,
        (Value::Date(_), DataType::Date) => true,
        (Value::Timestamp(_), DataType::Timestamp | DataType::TimestampTz) => true,
        (Value::Uuid(_), DataType::Uuid) => true,
        _ => false,
    };
    if fits { Ok(value) } else { Value::from_text(&value.to_text(DataType::Text), data_type) }
}

/// Pads the values of CHAR columns, as clients expect them.
fn pad(rows: &mut [Row], columns: &[Column]) {
    for (number, column) in columns.iter().enumerate() {
        let DataType::Char(Some(length)) = column.data_type else { continue };
        for row in rows.iter_mut() {
            if let Value::Text(text) = &mut row[number] {
                *text = padded(text, length);
            }
        }
    }
}
