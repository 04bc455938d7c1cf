//! CHECK constraints: bound conditions, and the texts that the catalog stores.
//!
//! *Invariants*: a stored text names columns without their table, so a table can be renamed.
//!
//! *Not here*: checking rows (`execute`).

use std::rc::Rc;

use gannet_syntax::{copy, rewrite};
use sqlparser::ast::{Expr, Ident};

use crate::catalog::{Check, Table};
use crate::error::SqlError;
use crate::expression::function::quote_identifier;
use crate::parser;
use crate::plan::bind::{Binder, name_of};
use crate::plan::define::NewConstraint;
use crate::plan::scope::Scope;

impl Binder {
    /// A CHECK on rows with the columns of `scope`.
    pub(super) fn check(
        &mut self,
        name: Option<String>,
        expr: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<NewConstraint, SqlError> {
        self.refuse_subquery(expr, "check constraint")?;
        let condition = self.condition(expr, scope, "CHECK")?;
        super::check_depth(condition.depth())?;
        let mut columns = Vec::new();
        condition.for_each_column(&mut |column| {
            let name = &scope.columns[column].name;
            if !columns.contains(name) {
                columns.push(name.clone());
            }
        });
        let sql = with_columns(copy(expr), |_| None);
        Ok(NewConstraint::Check { name, sql, columns, condition })
    }
}

/// The CHECK constraints of a table after one of its columns was renamed.
///
/// # Errors
/// None in practice, because the texts were parsed before.
pub(super) fn renamed(table: &Table, from: &str, to: &str) -> Result<Vec<Check>, SqlError> {
    let renamed = |check: &Check| {
        let expr = parser::parse_expression(&check.sql)?;
        let sql = with_columns(expr, |name| (name == from).then(|| quote_identifier(to)));
        Ok(Check { id: check.id, name: check.name.clone(), sql })
    };
    table.checks.iter().map(renamed).collect()
}

/// An expression as text, with columns without their table, and with the names that `written` gives.
fn with_columns(mut expr: Expr, written: impl Fn(&str) -> Option<String>) -> String {
    rewrite(&mut expr, &mut |part| {
        let column = match part {
            Expr::Identifier(column) => Some(column.clone()),
            Expr::CompoundIdentifier(names) => names.last().cloned(),
            _ => None,
        };
        if let Some(column) = column {
            let name = written(&name_of(&column));
            *part = Expr::Identifier(name.map_or(column, Ident::new));
        }
    });
    expr.to_string()
}
