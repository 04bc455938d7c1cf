//! Commands to the session: transactions, settings, PREPARE, COPY.
//!
//! *Invariants*: in a transaction that has failed only COMMIT, ROLLBACK and ROLLBACK TO run, and COMMIT rolls back. The
//! settings of a session have at most 1 MiB. A token is set outside of transactions. SHOW of the cluster's relations
//! needs no transaction. A query inside a command is planned again if the catalog has changed.
//!
//! *Source*: PostgreSQL 15 documentation, reference pages of these statements.
//!
//! *Not here*: cursors (`cursor`), operators' procedures (`administer`), and statements with a plan (`run`).

use std::sync::Arc;

use crate::catalog::system::{self, Relation};
use crate::error::SqlError;
use crate::execute::copy::{Reader, header, line};
use crate::execute::{Output, Transaction};
use crate::expression::Expression;
use crate::plan::Plan;
use crate::plan::statement::{Command, Prepared, constant};
use crate::session::cursor::query_of;
use crate::session::run::{aborted, error_of};
use crate::session::{
    Column, CopyIn, CopyOptions, Session, StatementResult, Step, Takes, TransactionStatus, pad,
};
use crate::settings;
use crate::value::{DataType, Value};

/// Bytes of a session's settings. Applications may invent settings, hence the limit.
const SETTINGS_BYTES_MAX: usize = 1 << 20;

pub(super) fn done(tag: &str) -> StatementResult {
    StatementResult::Done { tag: tag.to_owned(), notices: Vec::new() }
}

fn warned(tag: &str, notice: &str) -> StatementResult {
    StatementResult::Done { tag: tag.to_owned(), notices: vec![format!("WARNING: {notice}")] }
}

fn relation_columns(relation: &Relation) -> Vec<Column> {
    let column = |(name, data_type): &(&str, DataType)| Column {
        name: (*name).to_owned(),
        data_type: *data_type,
    };
    relation.columns.iter().map(column).collect()
}

fn text_column(name: &str) -> Column {
    Column { name: name.to_owned(), data_type: DataType::Text }
}

impl Session {
    /// The columns of a command's result.
    pub(super) fn command_columns(&self, command: &Command) -> Vec<Column> {
        match command {
            Command::Show(name) if name == "all" => {
                vec![text_column("name"), text_column("setting")]
            }
            Command::Show(name) => match system::of_cluster(name) {
                Some(relation) => relation_columns(relation),
                None => vec![text_column(name)],
            },
            Command::ShowTables => vec![text_column("table_name")],
            Command::Fetch { name, .. } => {
                self.cursor_columns(name).map_or_else(Vec::new, |columns| columns.to_vec())
            }
            Command::Execute { name, .. } => {
                self.statements.get(name).map_or_else(Vec::new, |s| s.columns.to_vec())
            }
            _ => Vec::new(),
        }
    }

    /// Runs a command.
    pub(super) fn command<'s>(
        &'s mut self,
        command: &'s Command,
        sql: &'s str,
        parameters: Vec<Value>,
    ) -> Step<'s, Result<StatementResult, SqlError>> {
        Box::pin(self.run_command(command, sql, parameters))
    }

    async fn run_command(
        &mut self,
        command: &Command,
        sql: &str,
        parameters: Vec<Value>,
    ) -> Result<StatementResult, SqlError> {
        let ends = matches!(command, Command::Commit | Command::Rollback | Command::RollbackTo(_));
        if self.status == TransactionStatus::Failed && !ends {
            return Err(aborted());
        }
        if !ends {
            self.check_not_committed()?;
        }
        match command {
            Command::Begin => self.begin().await,
            Command::Commit => self.commit_command().await,
            Command::Rollback => self.rollback_command(),
            Command::Savepoint(name) => self.savepoint(name),
            Command::RollbackTo(name) => self.roll_back_to(name),
            Command::Release(name) => self.release(name),
            Command::Set { name, value } => self.set(name, value.as_deref()),
            Command::Show(name) => self.show(name),
            Command::ShowTables => Ok(self.show_tables()),
            Command::Prepare { name, types, sql } => self.prepare_command(name, types, sql).await,
            Command::Execute { name, arguments } => self.execute_command(name, arguments).await,
            Command::Deallocate(None) => {
                self.statements.clear();
                Ok(done("DEALLOCATE ALL"))
            }
            Command::Deallocate(Some(name)) => {
                self.statement(name)?;
                self.statements.remove(name);
                Ok(done("DEALLOCATE"))
            }
            Command::DiscardAll => {
                self.statements.clear();
                self.settings = Arc::clone(&self.first_settings);
                Ok(done("DISCARD ALL"))
            }
            Command::ResetAll => {
                self.settings = Arc::clone(&self.first_settings);
                Ok(done("RESET"))
            }
            Command::CopyIn { insert, columns, options } => {
                self.refuse_token("COPY")?;
                let reader = Reader::new(columns.clone(), options.clone());
                let is_inside = self.transaction.is_some();
                let copy = CopyIn::new(sql.to_owned(), Arc::clone(insert), reader, is_inside);
                self.copy = Some(copy);
                Ok(StatementResult::CopyIn { columns: columns.clone(), options: options.clone() })
            }
            Command::CopyOut { query, options } => self.copy_out(query, options, sql).await,
            Command::Declare { name, query, forward_only } => {
                self.declare((name, query, *forward_only), sql, parameters).await
            }
            Command::Fetch { name, fetch } => self.fetch(name, *fetch).await,
            Command::Close(name) => self.close_cursor(name.as_deref()),
            Command::Administer(administration) => self.administer(administration.clone()).await,
            Command::Nothing("VACUUM") if self.status != TransactionStatus::Idle => {
                let message = "VACUUM cannot run inside a transaction block";
                Err(SqlError::new("25001", message).with_hint("end it first, or leave VACUUM out"))
            }
            Command::Nothing(tag) => Ok(done(tag)),
        }
    }

    fn roll_back_to(&mut self, name: &str) -> Result<StatementResult, SqlError> {
        self.open_transaction("ROLLBACK TO SAVEPOINT")?.roll_back_to(name)?;
        self.roll_back_cursors();
        self.status = TransactionStatus::InTransaction;
        Ok(done("ROLLBACK"))
    }

    fn release(&mut self, name: &str) -> Result<StatementResult, SqlError> {
        self.open_transaction("RELEASE SAVEPOINT")?.release(name)?;
        self.release_cursors();
        Ok(done("RELEASE"))
    }

    fn savepoint(&mut self, name: &str) -> Result<StatementResult, SqlError> {
        let budget = Arc::clone(&self.budget);
        self.open_transaction("SAVEPOINT")?.save(name.to_owned(), &budget)?;
        Ok(done("SAVEPOINT"))
    }

    fn rollback_command(&mut self) -> Result<StatementResult, SqlError> {
        if self.status == TransactionStatus::Idle {
            return Ok(warned("ROLLBACK", "there is no transaction in progress"));
        }
        self.roll_back();
        Ok(done("ROLLBACK"))
    }

    fn show_tables(&self) -> StatementResult {
        let catalog = self.catalog();
        let row = |table: &Arc<crate::catalog::Table>| vec![Value::Text(table.name.clone())];
        let rows = catalog.tables().map(row).collect();
        let columns = [text_column("table_name")].into();
        StatementResult::Rows { columns, rows, tag: "SHOW".to_owned() }
    }

    async fn prepare_command(
        &mut self,
        name: &str,
        types: &[DataType],
        sql: &str,
    ) -> Result<StatementResult, SqlError> {
        if self.statements.contains_key(name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new("42P05", message));
        }
        let types: Vec<Option<DataType>> = types.iter().copied().map(Some).collect();
        let statement = self.prepare_inner(sql, &types).await?;
        self.statements.insert(name.to_owned(), statement);
        Ok(done("PREPARE"))
    }

    async fn execute_command(
        &mut self,
        name: &str,
        arguments: &[Expression],
    ) -> Result<StatementResult, SqlError> {
        let statement = self.statement(name)?;
        let given = arguments.iter().zip(&statement.parameters);
        let parameters: Result<Vec<Value>, SqlError> = given
            .map(|(argument, data_type)| match constant(argument)? {
                Value::Text(text) => Value::from_text(&text, *data_type),
                other => Ok(other),
            })
            .collect();
        let mut parameters = parameters?;
        // Too many arguments are an error, as too few are.
        parameters.resize(arguments.len(), Value::Null);
        self.execute_prepared_inner(&statement, parameters).await
    }

    fn statement(&self, name: &str) -> Result<Arc<super::PreparedStatement>, SqlError> {
        self.statements.get(name).cloned().ok_or_else(|| {
            SqlError::new("26000", format!("prepared statement \"{name}\" does not exist"))
                .did_you_mean(name, self.statements.keys().map(String::as_str))
        })
    }

    async fn begin(&mut self) -> Result<StatementResult, SqlError> {
        if self.status != TransactionStatus::Idle {
            return Ok(warned("BEGIN", "there is already a transaction in progress"));
        }
        self.begin_transaction().await?;
        Ok(done("BEGIN"))
    }

    async fn commit_command(&mut self) -> Result<StatementResult, SqlError> {
        if let Some(tag) = self.committed_tag() {
            self.roll_back();
            return Ok(done(&tag));
        }
        match self.status {
            TransactionStatus::Idle => Ok(warned("COMMIT", "there is no transaction in progress")),
            TransactionStatus::Failed => {
                self.roll_back();
                Ok(done("ROLLBACK"))
            }
            TransactionStatus::InTransaction => {
                self.commit().await?;
                Ok(done("COMMIT"))
            }
        }
    }

    fn open_transaction(&mut self, statement: &str) -> Result<&mut Transaction, SqlError> {
        let idle = self.status == TransactionStatus::Idle;
        self.transaction.as_deref_mut().ok_or_else(|| {
            if idle {
                let message = format!("{statement} can only be used in transaction blocks");
                SqlError::new("25P01", message)
            } else {
                aborted()
            }
        })
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<StatementResult, SqlError> {
        let name = name.to_ascii_lowercase();
        if name == settings::TOKEN && self.status != TransactionStatus::Idle {
            let message = "the token of a transaction is set before the transaction begins";
            return Err(
                SqlError::new("25001", message).with_hint("end it, and run it under a token")
            );
        }
        let tag = if value.is_some() { "SET" } else { "RESET" };
        let value = match value {
            Some(value) => {
                settings::check(&name, value)?;
                settings::kept(&name, value)
            }
            None => self.first_settings.get(&name).cloned().unwrap_or_default(),
        };
        let others = self.settings.iter().filter(|(other, _)| **other != name);
        let bytes: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if bytes + name.len() + value.len() > SETTINGS_BYTES_MAX {
            let message =
                format!("the settings of a session have at most {SETTINGS_BYTES_MAX} bytes");
            return Err(SqlError::new("54000", message));
        }
        Arc::make_mut(&mut self.settings).insert(name, value);
        Ok(done(tag))
    }

    fn show(&mut self, name: &str) -> Result<StatementResult, SqlError> {
        if let Some(relation) = system::of_cluster(name) {
            return self.show_relation(relation);
        }
        let tag = "SHOW".to_owned();
        if name == "all" {
            let pair = |(name, value): (&String, &String)| {
                vec![Value::Text(name.clone()), Value::Text(value.clone())]
            };
            let rows = self.settings.iter().map(pair).collect();
            let columns = [text_column("name"), text_column("setting")].into();
            return Ok(StatementResult::Rows { columns, rows, tag });
        }
        let value = self.setting(name).ok_or_else(|| {
            SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\""))
                .did_you_mean(name, self.settings.keys().map(String::as_str))
        })?;
        let rows = vec![vec![Value::Text(value)]];
        Ok(StatementResult::Rows { columns: [text_column(name)].into(), rows, tag })
    }

    /// The rows of a relation that describes the cluster. They are available even if the cluster has halted.
    fn show_relation(&mut self, relation: &Relation) -> Result<StatementResult, SqlError> {
        let mut rows = Vec::new();
        let put = (relation.rows)(&self.facts(), &mut |row| {
            rows.push(row);
            Ok(())
        });
        put.map_err(error_of)?;
        let columns = relation_columns(relation).into();
        Ok(StatementResult::Rows { columns, rows, tag: "SHOW".to_owned() })
    }

    /// The output of the query inside a command, and the plan, which may be newer than the command's.
    pub(super) async fn query_output(
        &mut self,
        query: &Arc<Plan>,
        sql: &str,
        parameters: Vec<Value>,
        takes: Takes,
    ) -> Result<(Arc<Plan>, Output), SqlError> {
        let types: Vec<_> = query.parameters.iter().copied().map(Some).collect();
        let mut query = Arc::clone(query);
        loop {
            if let Some(output) = self.run_plan(&query, parameters.clone(), takes).await? {
                return Ok((query, output));
            }
            self.reload().await?;
            if let Some(Prepared::Command(command)) = self.plan(sql, &types).await?
                && let Some(newer) = query_of(&command)
            {
                query = Arc::clone(newer);
            }
        }
    }

    async fn copy_out(
        &mut self,
        query: &Arc<Plan>,
        options: &CopyOptions,
        sql: &str,
    ) -> Result<StatementResult, SqlError> {
        let (query, mut output) = self.query_output(query, sql, Vec::new(), self.takes).await?;
        if self.takes == Takes::None || self.rest.is_some() {
            self.result = std::mem::take(&mut output.charge);
        } else {
            // The rows become lines one by one.
            self.keep(&mut output, &query.columns)?;
        }
        let columns = query.columns.to_vec();
        let mut rows = output.rows.unwrap_or_default();
        pad(&mut rows, &columns);
        let tag = output.tag.replace("SELECT", "COPY");
        let first = options.header.then(|| header(&columns, options));
        let lines = rows.into_iter().map(|row| line(&row, &columns, options));
        let lines = first.into_iter().chain(lines).collect();
        Ok(StatementResult::CopyOut { columns, options: options.clone(), lines, tag })
    }
}
