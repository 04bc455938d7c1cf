//! Outcomes of statements: tables of text, tags, and errors, of a session or a server.
//!
//! *Invariants*: NULL is no text. A failure without an SQLSTATE is one of the shell itself. A position is the number of a
//! character in the statement, from 1; the report shows its line, 60 characters on each side, with a caret under it.
//! Control characters of that line are blanks.
//!
//! *Not here*: the formats of results (`render`); where outcomes come from (`target`, `remote`).

use gannet_frontend::{DataType, SqlError, Value};

/// The kind of a column, which determines its form in JSON and its alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Number,
    Boolean,
    Text,
}

impl From<DataType> for ColumnKind {
    fn from(data_type: DataType) -> Self {
        match data_type {
            DataType::SmallInt
            | DataType::Integer
            | DataType::BigInt
            | DataType::Real
            | DataType::Double
            | DataType::Numeric(_) => Self::Number,
            DataType::Boolean => Self::Boolean,
            DataType::Text
            | DataType::Varchar(_)
            | DataType::Char(_)
            | DataType::Padded
            | DataType::Bytea
            | DataType::Date
            | DataType::Timestamp
            | DataType::TimestampTz
            | DataType::Uuid
            | DataType::Array(_) => Self::Text,
        }
    }
}

/// A column of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heading {
    pub(super) name: String,
    pub(super) kind: ColumnKind,
}

/// Rows as text; None is NULL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) headings: Vec<Heading>,
    pub(super) rows: Vec<Vec<Option<String>>>,
}

/// The outcome of a statement.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Rows.
    Rows(Rows),
    /// A command tag, and notices.
    Done { tag: String, notices: Vec<String> },
    /// Nothing, for an empty statement.
    Empty,
    /// The statement is a COPY that waits for data.
    CopyIn,
    /// The lines of a COPY.
    CopyOut { lines: Vec<Vec<u8>>, tag: String },
}

/// Values as text.
pub(super) fn texts(types: &[DataType], row: &[Value]) -> Vec<Option<String>> {
    let text = |(value, data_type): (&Value, &DataType)| match value {
        Value::Null => None,
        value => Some(value.to_text(*data_type)),
    };
    row.iter().zip(types).map(text).collect()
}

/// Why a statement failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// SQLSTATE; empty for a failure of the shell itself.
    pub(super) code: String,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
    /// A character's number in the statement, from 1.
    pub(super) position: Option<usize>,
}

impl Failure {
    /// A failure of the shell itself.
    pub(super) fn new(message: impl Into<String>) -> Self {
        let code = String::new();
        Self { code, message: message.into(), detail: None, hint: None, position: None }
    }

    /// The text shown to the user: the message, the place in the statement, the hint.
    pub(super) fn report(&self, statement: &str) -> String {
        let code = if self.code.is_empty() { String::new() } else { format!(" {}", self.code) };
        let mut lines = vec![format!("ERROR{code}: {}", self.message)];
        lines.extend(self.position.and_then(|position| place(statement, position)));
        lines.extend(self.detail.iter().map(|detail| format!("DETAIL: {detail}")));
        lines.extend(self.hint.iter().map(|hint| format!("HINT: {hint}")));
        lines.join("\n")
    }
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Self {
        let SqlError { code, message, detail, hint, position, subject: _ } = error;
        Self { code: code.to_owned(), message, detail, hint, position }
    }
}

/// Characters of a line to show on each side of the place.
const CONTEXT_CHARACTERS: usize = 60;

/// The statement's line with character `position`, counted from 1, and a caret under that character.
fn place(statement: &str, position: usize) -> Option<String> {
    if statement.trim().is_empty() {
        // The shell's own statement, which the user has not written.
        return None;
    }
    let before: usize = statement.chars().take(position.checked_sub(1)?).map(char::len_utf8).sum();
    let start = statement[..before].rfind('\n').map_or(0, |newline| newline + 1);
    let line_number = 1 + statement[..start].matches('\n').count();
    let end = statement[before..].find('\n').map_or(statement.len(), |newline| before + newline);
    let left: Vec<char> = statement[start..before].chars().collect();
    let cut = left.len().saturating_sub(CONTEXT_CHARACTERS);
    let dots = if cut > 0 { "..." } else { "" };
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let left: String = dots.chars().chain(left[cut..].iter().copied().map(visible)).collect();
    let right: String =
        statement[before..end].chars().take(CONTEXT_CHARACTERS).map(visible).collect();
    let prefix = format!("LINE {line_number}: ");
    let width = unicode_width::UnicodeWidthStr::width(left.as_str()) + prefix.len();
    Some(format!("{prefix}{left}{right}\n{:width$}^", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_is_under_the_place() {
        let failure = Failure {
            code: "42703".to_owned(),
            position: Some(20),
            hint: Some("did you mean \"b\"?".to_owned()),
            ..Failure::new("no column \"x\"")
        };
        let report = failure.report("SELECT 'é',\n  '日本' x FROM t");
        let expected = "ERROR 42703: no column \"x\"\n\
            LINE 2:   '日本' x FROM t\n                 ^\nHINT: did you mean \"b\"?";
        assert_eq!(report, expected);
    }

    #[test]
    fn places_outside_of_the_statement_do_no_harm() {
        for position in [0, 1, 8, 9, 100] {
            let failure = Failure { position: Some(position), ..Failure::new("m") };
            assert!(failure.report("SELECT\n1").starts_with("ERROR: m"));
        }
        let long = "x".repeat(1000);
        let failure = Failure { position: Some(500), ..Failure::new("m") };
        assert!(failure.report(&long).len() < 400);
    }
}
