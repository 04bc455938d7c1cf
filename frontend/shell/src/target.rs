//! The target of statements: a database in this process, or a server.
//!
//! ```text
//! Target ─┬─ Embedded   a session, whose values become text here
//!         └─ Remote     a connection (`remote`), whose values are text
//! ```
//!
//! *Not here*: formats of results (`render`).

use std::sync::Arc;

use super::outcome::{Failure, Heading, Outcome, Rows, texts};
use super::remote::{self, Remote};
use gannet_frontend::{CancelHandle, Database, Session, StatementResult};

/// The target of statements.
pub(super) enum Target {
    Embedded(Box<Session>),
    Remote(Box<Remote>),
}

/// Cancels the target's running statement.
#[derive(Clone)]
pub(super) enum Cancel {
    Embedded(CancelHandle),
    Remote(remote::Cancel),
}

impl Cancel {
    pub(super) async fn cancel(&self) {
        match self {
            Self::Embedded(handle) => handle.cancel(),
            Self::Remote(cancel) => cancel.cancel().await,
        }
    }
}

impl Target {
    /// A session on a database in this process.
    pub(super) fn embedded(database: &Arc<Database>) -> Self {
        Self::Embedded(Box::new(database.session("gannet")))
    }

    /// Runs one statement.
    pub(super) async fn run(&mut self, statement: &str) -> Result<Outcome, Failure> {
        match self {
            Self::Embedded(session) => Ok(outcome(session.execute(statement).await?)),
            Self::Remote(remote) => remote.run(statement).await,
        }
    }

    /// Runs a statement that returns rows.
    pub(super) async fn rows(&mut self, statement: &str) -> Result<Rows, Failure> {
        match self.run(statement).await? {
            Outcome::Rows(rows) => Ok(rows),
            Outcome::Done { .. } | Outcome::Empty | Outcome::CopyIn | Outcome::CopyOut { .. } => {
                Err(Failure::new("the statement gives no rows"))
            }
        }
    }

    /// Passes data to the COPY that answered with [`Outcome::CopyIn`].
    pub(super) async fn copy_data(&mut self, chunk: Vec<u8>) -> Result<(), Failure> {
        match self {
            Self::Embedded(session) => {
                session.copy_in(&chunk).await?;
                Ok(())
            }
            Self::Remote(remote) => remote.copy_data(chunk).await,
        }
    }

    /// Ends the COPY's data, or abandons the COPY for a reason. Returns the command tag.
    pub(super) async fn copy_end(&mut self, abandon: Option<String>) -> Result<String, Failure> {
        match self {
            Self::Embedded(session) => Ok(session.copy_end(abandon).await?),
            Self::Remote(remote) => remote.copy_end(abandon).await,
        }
    }

    pub(super) fn cancel(&self) -> Cancel {
        match self {
            Self::Embedded(session) => Cancel::Embedded(session.cancel_handle()),
            Self::Remote(remote) => Cancel::Remote(remote.cancel()),
        }
    }

    /// Names of tables and columns, for completion.
    pub(super) async fn names(&mut self) -> Vec<String> {
        match self {
            Self::Embedded(session) => session.names().await,
            Self::Remote(remote) => remote.names().await,
        }
    }
}

fn outcome(result: StatementResult) -> Outcome {
    match result {
        StatementResult::Rows { columns, rows, .. } => {
            let types: Vec<_> = columns.iter().map(|column| column.data_type).collect();
            let headings = columns
                .iter()
                .map(|column| Heading { name: column.name.clone(), kind: column.data_type.into() })
                .collect();
            Outcome::Rows(Rows {
                headings,
                rows: rows.iter().map(|row| texts(&types, row)).collect(),
            })
        }
        StatementResult::Done { tag, notices } => Outcome::Done { tag, notices },
        StatementResult::Empty => Outcome::Empty,
        StatementResult::CopyIn { .. } => Outcome::CopyIn,
        StatementResult::CopyOut { lines, tag, .. } => Outcome::CopyOut { lines, tag },
    }
}
