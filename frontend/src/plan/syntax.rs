//! Searches and rewrites of the expressions in a syntax tree.
//!
//! *Invariant*: one visitor reads and one changes. A visit of sqlparser is generic over its visitor, and reaches the whole syntax tree
//! through subqueries, so each further visitor would compile some five hundred functions again.
//!
//! *Not here*: bound expressions (`expression`).

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, FunctionArguments, Query, Spanned, Visit, VisitMut, Visitor, VisitorMut,
};
use sqlparser::tokenizer::Span;

use crate::error::SqlError;

/// What a search does at an expression.
pub(super) enum Next {
    /// Ends: the expression is found.
    Stop,
    /// Goes on with the parts of the expression.
    Into,
    /// Goes on past the expression.
    Past,
}

/// The place of the expression of `tree` where `look` stops the search. An expression comes before its parts.
pub(super) fn find(tree: &impl Visit, look: &dyn Fn(&Expr) -> Next) -> Option<Span> {
    tree.visit(&mut Search { look, past: 0 }).break_value()
}

/// Whether an expression is a subquery, or a test or an array of the rows of one.
pub(super) fn is_subquery(expr: &Expr) -> bool {
    match expr {
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => true,
        Expr::Function(call) => matches!(call.args, FunctionArguments::Subquery(_)),
        _ => false,
    }
}

struct Search<'a> {
    look: &'a dyn Fn(&Expr) -> Next,
    /// The depth inside of an expression that the search goes past.
    past: usize,
}

impl Visitor for Search<'_> {
    type Break = Span;

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<Span> {
        if self.past > 0 {
            self.past += 1;
            return ControlFlow::Continue(());
        }
        match (self.look)(expr) {
            Next::Stop => return ControlFlow::Break(expr.span()),
            Next::Into => {}
            Next::Past => self.past = 1,
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _: &Expr) -> ControlFlow<Span> {
        self.past = self.past.saturating_sub(1);
        ControlFlow::Continue(())
    }
}

/// Changes an expression by `change`, its parts first. Subqueries stay as they are.
///
/// # Errors
/// The first one of `change`.
pub(super) fn rewrite(
    expr: &mut Expr,
    change: &mut dyn FnMut(&mut Expr) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    match expr.visit(&mut Rewriting { change, queries: 0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rewriting<'a> {
    change: &'a mut dyn FnMut(&mut Expr) -> Result<(), SqlError>,
    /// The number of subqueries around the expression.
    queries: usize,
}

impl VisitorMut for Rewriting<'_> {
    type Break = SqlError;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<SqlError> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<SqlError> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if self.queries > 0 {
            return ControlFlow::Continue(());
        }
        (self.change)(expr).map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }
}
