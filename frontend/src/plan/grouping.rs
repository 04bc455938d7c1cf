//! Expressions on groups: keys and aggregates become columns of a group, and other columns are refused.
//!
//! *Source*: PostgreSQL 15, section 7.2.3.
//!
//! *Not here*: the keys themselves (`select`), and aggregates (`call`).

use gannet_syntax::{Next, find, find_in_item, find_in_key, is_same, is_subquery};
use sqlparser::ast::{Expr, GroupByExpr, OrderByExpr, Select};

use crate::error::SqlError;
use crate::expression::Expression;
use crate::expression::aggregate::Kind;
use crate::plan::bind::{Binder, name_of, names_of};
use crate::plan::scope::Scope;

/// Rewrites an expression on rows as one on groups.
///
/// # Errors
/// SQLSTATE 42803 for a column that is not a key.
pub(super) fn replace_groups(
    expression: &mut Expression,
    keys: &[Expression],
    error: &impl Fn(usize) -> SqlError,
) -> Result<(), SqlError> {
    expression.rewrite(&mut |part| {
        if let Some(number) = keys.iter().position(|key| key == part) {
            return Ok(Some(Expression::Column(number)));
        }
        match part {
            Expression::Aggregate(number) => Ok(Some(Expression::Column(keys.len() + number))),
            Expression::Column(number) => Err(error(*number)),
            // It is computed without a row, so it stays as it is: a part of it may be equal to a key.
            Expression::Once(..) => Ok(Some(part.clone())),
            _ => Ok(None),
        }
    })
}

impl Binder {
    /// The error for a column that is neither a key nor in an aggregate.
    pub(super) fn ungrouped(
        &self,
        number: usize,
        select: &Select,
        order_by: &[OrderByExpr],
        scope: &Scope,
    ) -> SqlError {
        let column = &scope.columns[number];
        let table = column.table.as_ref().map_or(String::new(), |table| format!("{table}."));
        let message = format!(
            "column \"{table}{}\" must appear in the GROUP BY clause or be used in an aggregate function",
            column.name
        );
        let keys = match &select.group_by {
            GroupByExpr::Expressions(keys, _) => keys.as_slice(),
            GroupByExpr::All(_) => &[],
        };
        let search = Search { number, keys, scope };
        let look = |expr: &Expr| search.look(expr);
        let found = (select.projection.iter().find_map(|item| find_in_item(item, &look)))
            .or_else(|| select.having.as_ref().and_then(|having| find(having, &look)))
            .or_else(|| order_by.iter().find_map(|key| find_in_key(key, &look)));
        let place = found.and_then(|span| self.position(span));
        SqlError::new("42803", message).with_position(place)
    }
}

/// Searches for a column outside of keys, aggregates and subqueries.
struct Search<'a> {
    number: usize,
    keys: &'a [Expr],
    scope: &'a Scope,
}

impl Search<'_> {
    fn look(&self, expr: &Expr) -> Next {
        if self.is_left_out(expr) {
            Next::Past
        } else if self.is_meant(expr) {
            Next::Stop
        } else {
            Next::Into
        }
    }

    fn is_left_out(&self, expr: &Expr) -> bool {
        let is_aggregate = |expr: &Expr| {
            let Expr::Function(call) = expr else { return false };
            let name = names_of(&call.name).ok().and_then(|mut names| names.pop());
            name.is_some_and(|name| Kind::of(&name).is_some())
        };
        is_subquery(expr) || self.keys.iter().any(|key| is_same(key, expr)) || is_aggregate(expr)
    }

    fn is_meant(&self, expr: &Expr) -> bool {
        let found = match expr {
            Expr::Identifier(name) => self.scope.find(None, &name_of(name)),
            Expr::CompoundIdentifier(names) => match names.as_slice() {
                [.., table, name] => self.scope.find(Some(&name_of(table)), &name_of(name)),
                _ => Ok(None),
            },
            _ => Ok(None),
        };
        found.is_ok_and(|found| found == Some(self.number))
    }
}
