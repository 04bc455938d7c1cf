//! Searches, changes, comparisons and copies of the expressions in a syntax tree.
//!
//! An expression reaches the whole syntax tree through subqueries: each of these functions is some five hundred of sqlparser's,
//! which each crate that uses them would compile anew. This crate compiles them once, and for size.
//!
//! *Invariant*: no function here is generic.
//!
//! *Not here*: texts that become syntax trees, and what the trees mean (`gannet_frontend`).
#![forbid(unsafe_code)]

use std::ops::ControlFlow;

use sqlparser::ast::{
    Cte, Expr, FunctionArguments, OrderByExpr, Query, SelectItem, Spanned, Visit, VisitMut,
    Visitor, VisitorMut,
};
use sqlparser::tokenizer::Span;

/// What a search does at an expression.
pub enum Next {
    /// Ends: the expression is found.
    Stop,
    /// Goes on with the parts of the expression.
    Into,
    /// Goes on past the expression.
    Past,
}

/// The place of the part of `expr`, or of `expr` itself, where `look` stops the search. An expression comes before its parts.
pub fn find(expr: &Expr, look: &dyn Fn(&Expr) -> Next) -> Option<Span> {
    expr.visit(&mut Search { look, past: 0 }).break_value()
}

/// The same in an item of a SELECT.
pub fn find_in_item(item: &SelectItem, look: &dyn Fn(&Expr) -> Next) -> Option<Span> {
    item.visit(&mut Search { look, past: 0 }).break_value()
}

/// The same in a key of an ORDER BY.
pub fn find_in_key(key: &OrderByExpr, look: &dyn Fn(&Expr) -> Next) -> Option<Span> {
    key.visit(&mut Search { look, past: 0 }).break_value()
}

/// Whether an expression is a subquery, or a test or an array of the rows of one.
#[must_use]
pub fn is_subquery(expr: &Expr) -> bool {
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
pub fn rewrite(expr: &mut Expr, change: &mut dyn FnMut(&mut Expr)) {
    let _: ControlFlow<()> = expr.visit(&mut Rewriting { change, queries: 0 });
}

struct Rewriting<'a> {
    change: &'a mut dyn FnMut(&mut Expr),
    /// The number of subqueries around the expression.
    queries: usize,
}

impl VisitorMut for Rewriting<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.queries == 0 {
            (self.change)(expr);
        }
        ControlFlow::Continue(())
    }
}

/// Whether two expressions are the same, wherever they stand.
#[must_use]
pub fn is_same(one: &Expr, other: &Expr) -> bool {
    one == other
}

/// A copy of an expression.
#[must_use]
pub fn copy(expr: &Expr) -> Expr {
    expr.clone()
}

/// A copy of a query.
#[must_use]
pub fn copy_query(query: &Query) -> Query {
    query.clone()
}

/// A copy of a WITH query.
#[must_use]
pub fn copy_common_table(common: &Cte) -> Cte {
    common.clone()
}

/// A copy of an item of a SELECT.
#[must_use]
pub fn copy_item(item: &SelectItem) -> SelectItem {
    item.clone()
}
