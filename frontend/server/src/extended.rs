//! The extended protocol: statements that are prepared, bound to parameters and executed in parts.
//!
//! ```text
//! Parse ─ Bind ─ (Describe) ─ Execute ... ─ Sync
//! └ a statement   └ a portal   └ rows        └ the end of an implicit transaction
//! ```
//!
//! *Source*: PostgreSQL 15, sections 55.2.3 and 55.2.4.
//!
//! *Invariants*: the statements between two Syncs outside of BEGIN are one transaction. A single statement is its own
//! transaction, which saves BEGIN and COMMIT.
//!
//! *Not here*: running a prepared statement (`gannet_frontend`), and sending rows (`rows`).

use std::sync::Arc;

use super::connection::Connection;
use super::interruption::Interruption;
use super::message::{self, Bind, ClientMessage, Kind, violation};
use super::query::Control;
use super::replies::{Replies, Severity};
use super::rows::Rows;
use super::wire_types::{Format, declared_type, formats, read_value};
use gannet_frontend::wire::{Charge, Row, Takes};
use gannet_frontend::{
    Column, PreparedStatement, SqlError, StatementResult, TransactionStatus, Value,
};

/// Named statements, and portals, of a connection.
const NAMES_MAX: usize = 10_000;
/// Approximate bytes of a portal beside its parameters.
const PORTAL_BYTES: usize = 256;

/// The state since the last Sync.
#[derive(Default)]
pub(super) struct Batch {
    /// Whether a message has failed: the others are skipped up to Sync.
    pub(super) skipping: bool,
    /// Whether the transaction began with the batch, and ends with it.
    implicit: bool,
}

/// A prepared statement.
#[derive(Clone)]
pub(super) struct Statement {
    /// None for an empty text.
    prepared: Option<Arc<PreparedStatement>>,
    control: Control,
}

/// A statement with its parameters.
pub(super) struct Portal {
    statement: Statement,
    formats: Vec<Format>,
    progress: Progress,
}

/// How far a portal has been executed.
enum Progress {
    /// The parameters, and their charge.
    Bound(Vec<Value>, Charge),
    /// Rows that the client has not requested yet.
    Rows {
        columns: Arc<[Column]>,
        rows: Rows,
        tag: String,
        /// The charge of the rows.
        _charge: Charge,
    },
    Done,
}

impl Connection {
    /// Executes a message of the extended protocol.
    pub(super) async fn extended(&mut self, message: ClientMessage) -> Result<(), Interruption> {
        match message {
            ClientMessage::Parse { name, query, type_oids } => {
                self.parse(name, &query, &type_oids).await
            }
            ClientMessage::Bind(bind) => Ok(self.bind(bind).await?),
            ClientMessage::Describe { kind: Kind::Statement, name } => {
                Ok(self.describe_statement(&name)?)
            }
            ClientMessage::Describe { kind: Kind::Portal, name } => {
                Ok(self.describe_portal(&name)?)
            }
            ClientMessage::Execute { portal, rows_max } => self.execute(&portal, rows_max).await,
            ClientMessage::Close { kind, name } => {
                match kind {
                    Kind::Statement => drop(self.statements.remove(&name)),
                    Kind::Portal => drop(self.portals.remove(&name)),
                }
                self.stream.replies.close_complete();
                Ok(())
            }
            ClientMessage::Flush => Ok(self.stream.flush().await?),
            _ => Err(Interruption::Fatal(violation("unexpected message"))),
        }
    }

    async fn parse(
        &mut self,
        name: String,
        query: &str,
        type_oids: &[u32],
    ) -> Result<(), Interruption> {
        if !name.is_empty() && self.statements.contains_key(&name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(SqlError::new("42P05", message).into());
        }
        if self.statements.len() >= NAMES_MAX {
            let message = format!("a connection prepares at most {NAMES_MAX} statements");
            return Err(SqlError::new("54000", message).with_hint("Close some.").into());
        }
        self.statements.remove("");
        let types =
            type_oids.iter().map(|oid| declared_type(*oid)).collect::<Result<Vec<_>, _>>()?;
        let prepared = if query.trim_matches([';', ' ', '\n', '\t', '\r']).is_empty() {
            None
        } else {
            Some(self.limits.run(&self.stream, self.session.prepare(query, &types)).await?)
        };
        self.statements.insert(name, Statement { prepared, control: Control::of(query) });
        self.stream.replies.parse_complete();
        Ok(())
    }

    fn statement(&self, name: &str) -> Result<&Statement, SqlError> {
        self.statements.get(name).ok_or_else(|| {
            SqlError::new("26000", format!("prepared statement \"{name}\" does not exist"))
        })
    }

    async fn bind(&mut self, bind: Bind) -> Result<(), SqlError> {
        let statement = self.statement(&bind.statement)?.clone();
        let Bind { portal: name, parameters, .. } = &bind;
        if !name.is_empty() && self.portals.contains_key(name) {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")));
        }
        if self.portals.len() >= NAMES_MAX {
            let message = format!("a connection has at most {NAMES_MAX} portals");
            return Err(SqlError::new("54000", message).with_hint("Close some."));
        }
        let types = statement.prepared.as_ref().map_or(&[][..], |prepared| &prepared.parameters);
        if parameters.len() != types.len() {
            return Err(violation(format!(
                "bind message supplies {} parameters, but prepared statement \"{}\" requires {}",
                parameters.len(),
                bind.statement,
                types.len()
            )));
        }
        let parameter_formats = formats(&bind.parameter_formats, parameters.len())?;
        let columns = statement.prepared.as_ref().map_or(0, |prepared| prepared.columns.len());
        let result_formats = formats(&bind.result_formats, columns)?;
        let bytes: usize = parameters.iter().flatten().map(|bytes| bytes.len()).sum();
        let charge = self.session.charged(PORTAL_BYTES + bytes)?;
        let (types, Bind { portal: name, parameters, .. }) = (types.to_vec(), bind);
        let read = move || {
            let typed = parameters.iter().zip(types).zip(parameter_formats);
            let read = typed.map(|((bytes, data_type), format)| match bytes {
                None => Ok(Value::Null),
                Some(bytes) => read_value(data_type, format, bytes),
            });
            read.collect()
        };
        let values: Vec<Value> = self.session.computed(bytes, read).await?;
        drop(charge);
        let bytes = PORTAL_BYTES + values.iter().map(Value::memory_bytes).sum::<usize>();
        let progress = Progress::Bound(values, self.session.charged(bytes)?);
        let portal = Portal { statement, formats: result_formats, progress };
        self.portals.insert(name, portal);
        self.stream.replies.bind_complete();
        Ok(())
    }

    fn describe_statement(&mut self, name: &str) -> Result<(), SqlError> {
        let prepared = self.statement(name)?.prepared.clone();
        let parameters = prepared.as_ref().map_or(&[][..], |prepared| &prepared.parameters);
        self.stream.replies.parameter_description(parameters);
        self.describe_rows(prepared.as_deref(), &[])
    }

    fn describe_portal(&mut self, name: &str) -> Result<(), SqlError> {
        let Some(portal) = self.portals.get(name) else {
            // A cursor is a portal, too.
            let columns = self.session.cursor_columns(name).ok_or_else(|| no_portal(name))?;
            return self.stream.replies.row_description(&columns, &[]);
        };
        let (prepared, formats) = (portal.statement.prepared.clone(), portal.formats.clone());
        self.describe_rows(prepared.as_deref(), &formats)
    }

    fn describe_rows(
        &mut self,
        prepared: Option<&PreparedStatement>,
        formats: &[Format],
    ) -> Result<(), SqlError> {
        match prepared {
            Some(prepared) if prepared.returns_rows => {
                self.stream.replies.row_description(&prepared.columns, formats)
            }
            _ => {
                self.stream.replies.no_data();
                Ok(())
            }
        }
    }

    async fn execute(&mut self, name: &str, rows_max: i32) -> Result<(), Interruption> {
        let mut portal = self.portals.remove(name).ok_or_else(|| no_portal(name))?;
        let result = self.advance(&mut portal, rows_max).await;
        self.portals.insert(name.to_owned(), portal);
        result
    }

    /// Runs a portal's statement, or sends more of the rows.
    async fn advance(&mut self, portal: &mut Portal, rows_max: i32) -> Result<(), Interruption> {
        let Some(prepared) = &portal.statement.prepared else {
            self.stream.replies.empty_query();
            return Ok(());
        };
        match std::mem::replace(&mut portal.progress, Progress::Done) {
            Progress::Bound(parameters, charge) => {
                // The statement charges the parameters that it keeps.
                drop(charge);
                self.enter_transaction(portal.statement.control).await?;
                // A portal that is read in parts must not block the session.
                self.session.take_large(if rows_max > 0 { Takes::Kept } else { Takes::All });
                let run = self.session.execute_prepared(prepared, parameters);
                match self.limits.run(&self.stream, run).await? {
                    StatementResult::Rows { columns, rows, tag } => {
                        let rows = Rows::new(rows, self.session.take_rest());
                        let charge = self.session.take_result();
                        portal.progress = Progress::Rows { columns, rows, tag, _charge: charge };
                    }
                    other => return self.finish(other).await,
                }
            }
            Progress::Done if prepared.returns_rows => {
                self.stream.replies.command_complete("SELECT 0");
                return Ok(());
            }
            Progress::Done => {
                return Err(SqlError::new("55000", "the portal was executed already")
                    .with_hint("Bind the statement again.")
                    .into());
            }
            rows @ Progress::Rows { .. } => {
                self.limits.go_on();
                portal.progress = rows;
            }
        }
        self.send_rows(portal, rows_max).await
    }

    /// Sends rows of a portal: all, or at most `rows_max` if that is positive.
    async fn send_rows(&mut self, portal: &mut Portal, rows_max: i32) -> Result<(), Interruption> {
        let Progress::Rows { columns, rows, tag, .. } = &mut portal.progress else {
            return Ok(());
        };
        let rows_max = usize::try_from(rows_max).ok().filter(|max| *max > 0);
        let (columns, formats) = (Arc::clone(columns), portal.formats.clone());
        let put = move |replies: &mut Replies, row: &Row| replies.row(&columns, &formats, row);
        self.send(rows, rows_max.unwrap_or(usize::MAX), put).await?;
        if rows_max.is_some() && rows.may_go_on() {
            self.stream.replies.portal_suspended();
        } else {
            self.stream.replies.command_complete(&rows.tag(tag));
            portal.progress = Progress::Done;
        }
        Ok(())
    }

    /// Begins the implicit transaction of a batch before its first statement, unless the statement is the only one.
    async fn enter_transaction(&mut self, control: Control) -> Result<(), Interruption> {
        match control {
            // The batch so far becomes part of the explicit transaction.
            Control::Begin => self.batch.implicit = false,
            Control::End | Control::Outside => {}
            Control::None => {
                let alone = message::next_type(&self.stream.input) == Some(b'S');
                if !alone && self.session.status() == TransactionStatus::Idle {
                    self.session.execute("BEGIN").await?;
                    self.batch.implicit = true;
                }
            }
        }
        Ok(())
    }

    /// Ends a batch.
    pub(super) async fn sync(&mut self) -> Result<(), Interruption> {
        let batch = std::mem::take(&mut self.batch);
        if batch.implicit && self.session.status() != TransactionStatus::Idle {
            let ending = if batch.skipping { "ROLLBACK" } else { "COMMIT" };
            match self.limits.run(&self.stream, self.session.execute(ending)).await {
                Ok(_) => {}
                Err(Interruption::Statement(error)) => {
                    self.stream.replies.error(Severity::Error, &error);
                }
                Err(ending) => return Err(ending),
            }
        }
        self.ready();
        Ok(())
    }
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new("34000", format!("portal \"{name}\" does not exist"))
}
