//! Errors of statements, in the form that PostgreSQL's clients expect.
//!
//! *Source*: PostgreSQL 15 documentation, appendix A (SQLSTATEs) and section 55.8 (fields of errors).
//!
//! *Not here*: the bytes of an error on the wire (`gannet_server`).

use gannet_engine::{Abort, Conflict, Failure as EngineFailure, Misuse, Obstacle, TokenRefusal};

/// An error of a statement: a SQLSTATE, a message, and help for mending the statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// SQLSTATE, five characters (PostgreSQL's documentation, appendix A).
    pub code: &'static str,
    /// The message.
    pub message: String,
    /// Further facts.
    pub detail: Option<String>,
    /// How to mend the statement.
    pub hint: Option<String>,
    /// The error's place in the statement: a character's number, counted from 1.
    pub position: Option<usize>,
    /// The table, column or constraint concerned.
    pub subject: Option<Box<Subject>>,
}

/// The object that an error concerns, in fields of their own for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The table.
    pub table: String,
    /// The column, for NOT NULL.
    pub column: Option<String>,
    /// The constraint or unique index.
    pub constraint: Option<String>,
}

impl SqlError {
    /// An error with a code and a message.
    #[must_use]
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message, detail: None, hint: None, position: None, subject: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl SqlError {
    /// The error of a clause, LIMIT or OFFSET, with a negative number of rows.
    pub(crate) fn negative_row_count(clause: &str) -> Self {
        let code = if clause == "LIMIT" { "2201W" } else { "2201X" };
        Self::new(code, format!("{clause} must not be negative"))
    }

    /// The same error with a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same error at a place in the statement, if it has none yet.
    #[must_use]
    pub fn with_position(mut self, position: Option<usize>) -> Self {
        self.position = self.position.or(position);
        self
    }

    /// The same error, about a column.
    pub(crate) fn of_column(mut self, table: &str, column: &str) -> Self {
        let (table, column) = (table.to_owned(), Some(column.to_owned()));
        self.subject = Some(Box::new(Subject { table, column, constraint: None }));
        self
    }

    /// The same error, about a constraint or a unique index.
    pub(crate) fn of_constraint(mut self, table: &str, constraint: &str) -> Self {
        let (table, constraint) = (table.to_owned(), Some(constraint.to_owned()));
        self.subject = Some(Box::new(Subject { table, column: None, constraint }));
        self
    }

    /// The error for a construct that is not supported.
    pub fn unsupported(construct: impl std::fmt::Display) -> Self {
        Self::new("0A000", format!("{construct} is not supported"))
    }

    /// The same error with a hint that names the most similar of `names`, if one is similar.
    pub(crate) fn did_you_mean<'n>(
        self,
        wrong: &str,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let limit = (wrong.chars().count() / 3).max(1);
        let nearest = names
            .into_iter()
            .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
            .filter(|(distance, _)| *distance <= limit)
            .min();
        match nearest {
            Some((_, name)) => self.with_hint(format!("did you mean \"{name}\"?")),
            None => self,
        }
    }
}

/// Why a run of a statement gave no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An abort by the engine: a conflict, which is retried, or a limit.
    Abort(Abort),
    /// An error of the statement. It is reported only if the rows read are valid.
    Error(Box<SqlError>),
    /// The catalog's version differs from the one that the statement was planned with.
    StaleCatalog,
}

impl From<Abort> for Failure {
    fn from(abort: Abort) -> Self {
        match abort {
            // The catalog has it: another transaction has changed the catalog since, and dropped it.
            Abort::Misuse(Misuse::NoSuchTable { .. }) => Self::Abort(Conflict::Changed.into()),
            _ => Self::Abort(abort),
        }
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        Self::Error(Box::new(error))
    }
}

/// The SQLSTATE and the message for an abort by the engine.
impl From<Obstacle> for SqlError {
    fn from(obstacle: Obstacle) -> Self {
        Self::new("57P03", obstacle.to_string())
    }
}

impl From<Abort> for SqlError {
    fn from(abort: Abort) -> Self {
        match abort {
            Abort::Conflict(_) => {
                Self::new("40001", "could not serialize access due to concurrent transactions")
                    .with_detail(abort.to_string())
                    .with_hint("run the transaction again")
            }
            Abort::Misuse(misuse) => misuse.into(),
            Abort::Failure(failure) => failure.into(),
            Abort::Requested | Abort::Cancelled => Self::new("XX000", abort.to_string()),
        }
    }
}

/// Statements use the engine rightly, so that most of them are bugs.
impl From<Misuse> for SqlError {
    fn from(misuse: Misuse) -> Self {
        let code = match misuse {
            Misuse::TooLarge { .. }
            | Misuse::TooManyRows { .. }
            | Misuse::ValueBytes { .. }
            | Misuse::Token(TokenRefusal::ResultTooLong) => "54000",
            Misuse::Token(TokenRefusal::Aborted) => "40000",
            Misuse::Token(TokenRefusal::Superseded) => "55000",
            Misuse::NotFound { .. }
            | Misuse::Exists { .. }
            | Misuse::NoSuchTable { .. }
            | Misuse::NoProgram { .. }
            | Misuse::LoadEnded { .. }
            | Misuse::Row { .. }
            | Misuse::NoSuchRow
            | Misuse::Ended
            | Misuse::CommitsItself => "XX000",
        };
        Self::new(code, misuse.to_string())
    }
}

impl From<EngineFailure> for SqlError {
    fn from(failure: EngineFailure) -> Self {
        let code = match failure {
            EngineFailure::TableFull { .. } => "53200",
            EngineFailure::Halted | EngineFailure::Revoked => "57P03",
            EngineFailure::Refused | EngineFailure::Disconnected => "XX000",
            // An I/O error, as of a disk that is gone: the rows cannot be reached. What can be read is not corrupted (XX001).
            EngineFailure::Lost { .. } => "58030",
            EngineFailure::Unknown => {
                return Self::new("08007", failure.to_string())
                    .with_hint("look for its changes when the cluster has been started again");
            }
        };
        Self::new(code, failure.to_string())
    }
}
