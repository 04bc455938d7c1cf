//! Scopes: the columns that a name may denote.
//!
//! *Invariants*: the number of a column is its place in the row. Names compare byte for byte: the parser's names are in
//! lower case unless they were quoted. A name that denotes two columns is 42702. A column that USING has merged is found
//! with its table's name alone.
//!
//! *Source*: PostgreSQL 15, sections 4.2.1 and 7.2.1.
//!
//! *Not here*: expressions (`bind`), and relations (`from`).

use std::rc::Rc;

use crate::error::SqlError;
use crate::expression::Expression;
use crate::value::DataType;

/// The columns of the row that an expression is bound on.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    pub(super) columns: Vec<ScopeColumn>,
}

/// A column in scope.
#[derive(Clone, Debug)]
pub(super) struct ScopeColumn {
    /// The table's name or alias.
    pub(super) table: Option<String>,
    pub(super) name: String,
    pub(super) data_type: DataType,
    /// The second of two columns that USING has merged: it is visible only with its table's name.
    pub(super) hidden: bool,
}

/// An enclosing query.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) scope: Rc<Scope>,
    /// The expressions on this scope that the inner query uses.
    pub(super) captured: Vec<Expression>,
}

impl Scope {
    /// The number of the column that a name denotes.
    ///
    /// # Errors
    /// SQLSTATE 42702 if the name denotes two columns.
    pub(super) fn find(&self, table: Option<&str>, name: &str) -> Result<Option<usize>, SqlError> {
        let mut found = None;
        for (number, column) in self.columns.iter().enumerate() {
            let is_meant = column.name == name
                && match table {
                    Some(table) => column.table.as_deref() == Some(table),
                    None => !column.hidden,
                };
            if is_meant && found.replace(number).is_some() {
                let message = format!("column reference \"{name}\" is ambiguous");
                return Err(SqlError::new("42702", message)
                    .with_hint("put the table's name before the column"));
            }
        }
        Ok(found)
    }

    /// Whether a table has that name.
    pub(super) fn has_table(&self, table: &str) -> bool {
        self.columns.iter().any(|column| column.table.as_deref() == Some(table))
    }

    /// Appends the columns of another scope.
    pub(super) fn append(&mut self, other: Self) {
        self.columns.extend(other.columns);
    }

    /// Adds columns under a table's name.
    pub(super) fn named(
        table: &str,
        columns: impl IntoIterator<Item = (String, DataType)>,
    ) -> Self {
        let column = |(name, data_type)| ScopeColumn {
            table: Some(table.to_owned()),
            name,
            data_type,
            hidden: false,
        };
        Self { columns: columns.into_iter().map(column).collect() }
    }

    /// The error for an unknown name, with a hint.
    pub(super) fn unknown(&self, table: Option<&str>, name: &str) -> SqlError {
        if let Some(table) = table {
            if !self.has_table(table) {
                let message = format!("missing FROM-clause entry for table \"{table}\"");
                let tables = self.columns.iter().filter_map(|column| column.table.as_deref());
                return SqlError::new("42P01", message).did_you_mean(table, tables);
            }
            let columns = self.columns.iter().filter(|c| c.table.as_deref() == Some(table));
            let names = columns.map(|column| column.name.as_str());
            return SqlError::new("42703", format!("column {table}.{name} does not exist"))
                .did_you_mean(name, names);
        }
        let names = self.columns.iter().map(|column| column.name.as_str());
        SqlError::new("42703", format!("column \"{name}\" does not exist"))
            .did_you_mean(name, names)
    }
}
