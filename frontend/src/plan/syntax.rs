//! Searches and rewrites of the expressions in a syntax tree.
//!
//! *Invariant*: one visitor reads and one changes. A visit of sqlparser is generic over its visitor, and reaches the whole syntax tree
//! through subqueries, so each further visitor would compile some five hundred functions again.
//!
//! *Not here*: bound expressions (`expression`).

use std::ops::ControlFlow;

use sqlparser::ast::{Expr, Query, Spanned, Visit, VisitMut, Visitor, VisitorMut};
use sqlparser::tokenizer::Span;

use crate::error::SqlError;

/// What a search does at an expression.
pub(super) enum Found {
    /// Ends there.
    Here,
    /// Goes on with the parts of the expression.
    Into,
    /// Goes on past the expression.
    Past,
}

/// The place of the first expression of `tree` that `look` says is there. An expression comes before its parts.
pub(super) fn find(tree: &impl Visit, look: &dyn Fn(&Expr) -> Found) -> Option<Span> {
    tree.visit(&mut Search { look, past: 0 }).break_value()
}

struct Search<'a> {
    look: &'a dyn Fn(&Expr) -> Found,
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
            Found::Here => return ControlFlow::Break(expr.span()),
            Found::Into => {}
            Found::Past => self.past = 1,
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
