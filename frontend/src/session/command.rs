//! Commands to the session: transactions, settings, PREPARE, COPY.

use std::sync::Arc;

use crate::error::SqlError;
use crate::execute::Transaction;
use crate::execute::copy::{Reader, header, line};
use crate::expression::Expression;
use crate::plan::statement::{Command, constant};
use crate::session::run::aborted;
use crate::session::{Column, CopyIn, Session, StatementResult, TransactionStatus, pad};
use crate::settings;
use crate::value::{DataType, Value};

fn done(tag: &str) -> StatementResult {
    StatementResult::Done { tag: tag.to_owned(), notices: Vec::new() }
}

fn warned(tag: &str, notice: &str) -> StatementResult {
    StatementResult::Done { tag: tag.to_owned(), notices: vec![format!("WARNING: {notice}")] }
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
            Command::Show(name) => vec![text_column(name)],
            Command::ShowTables => vec![text_column("table_name")],
            Command::Execute { name, .. } => {
                self.statements.get(name).map_or_else(Vec::new, |s| s.columns.to_vec())
            }
            _ => Vec::new(),
        }
    }

    /// Runs a command.
    pub(super) async fn command(
        &mut self,
        command: &Command,
        sql: &str,
    ) -> Result<StatementResult, SqlError> {
        let ends = matches!(command, Command::Commit | Command::Rollback | Command::RollbackTo(_));
        if self.status == TransactionStatus::Failed && !ends {
            return Err(aborted());
        }
        match command {
            Command::Begin => Ok(self.begin()),
            Command::Commit => self.commit_command().await,
            Command::Rollback => self.rollback_command(),
            Command::Savepoint(name) => {
                self.open_transaction("SAVEPOINT")?.save(name.clone());
                Ok(done("SAVEPOINT"))
            }
            Command::RollbackTo(name) => {
                self.open_transaction("ROLLBACK TO SAVEPOINT")?.roll_back_to(name)?;
                self.status = TransactionStatus::InTransaction;
                Ok(done("ROLLBACK"))
            }
            Command::Release(name) => {
                self.open_transaction("RELEASE SAVEPOINT")?.release(name)?;
                Ok(done("RELEASE"))
            }
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
                self.settings = Arc::new(settings::defaults(&self.user));
                Ok(done("DISCARD ALL"))
            }
            Command::CopyIn { insert, columns, options } => {
                self.copy = Some(CopyIn {
                    sql: sql.to_owned(),
                    insert: Arc::clone(insert),
                    reader: Reader::new(columns.clone(), options.clone()),
                    rows: Vec::new(),
                    count: 0,
                });
                Ok(StatementResult::CopyIn { columns: columns.clone(), options: options.clone() })
            }
            Command::CopyOut { .. } => self.copy_out(command, sql).await,
            Command::Nothing("VACUUM") if self.status != TransactionStatus::Idle => {
                let message = "VACUUM cannot run inside a transaction block";
                Err(SqlError::new("25001", message).with_hint("end it first, or leave VACUUM out"))
            }
            Command::Nothing(tag) => Ok(done(tag)),
        }
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
        // Too many arguments are an error like too few.
        parameters.resize(arguments.len(), Value::Null);
        self.execute_prepared_inner(&statement, parameters).await
    }

    fn statement(&self, name: &str) -> Result<Arc<super::PreparedStatement>, SqlError> {
        self.statements.get(name).cloned().ok_or_else(|| {
            SqlError::new("26000", format!("prepared statement \"{name}\" does not exist"))
                .did_you_mean(name, self.statements.keys().map(String::as_str))
        })
    }

    fn begin(&mut self) -> StatementResult {
        if self.status != TransactionStatus::Idle {
            return warned("BEGIN", "there is already a transaction in progress");
        }
        self.transaction = Some(Transaction::seeing(self.database.catalog()));
        self.status = TransactionStatus::InTransaction;
        done("BEGIN")
    }

    async fn commit_command(&mut self) -> Result<StatementResult, SqlError> {
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
        self.transaction.as_mut().ok_or_else(|| {
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
        let tag = if value.is_some() { "SET" } else { "RESET" };
        let value = match value {
            Some(value) => {
                settings::check(&name, value)?;
                value.to_owned()
            }
            None => settings::default_of(&name).unwrap_or_default().to_owned(),
        };
        Arc::make_mut(&mut self.settings).insert(name, value);
        Ok(done(tag))
    }

    fn show(&self, name: &str) -> Result<StatementResult, SqlError> {
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

    async fn copy_out(
        &mut self,
        command: &Command,
        sql: &str,
    ) -> Result<StatementResult, SqlError> {
        let Command::CopyOut { query, options } = command else { return Err(aborted()) };
        let mut query = Arc::clone(query);
        let output = loop {
            if let Some(output) = self.run_plan(&query, Vec::new()).await? {
                break output;
            }
            self.reload().await?;
            if let Some(crate::plan::statement::Prepared::Command(command)) =
                self.plan(sql, &[]).await?
                && let Command::CopyOut { query: newer, .. } = &*command
            {
                query = Arc::clone(newer);
            }
        };
        let columns = query.columns.to_vec();
        let mut rows = output.rows.unwrap_or_default();
        pad(&mut rows, &columns);
        let tag = format!("COPY {}", rows.len());
        let first = options.header.then(|| header(&columns, options));
        let lines = rows.iter().map(|row| line(row, &columns, options));
        let lines = first.into_iter().chain(lines).collect();
        Ok(StatementResult::CopyOut { columns, options: options.clone(), lines, tag })
    }
}
