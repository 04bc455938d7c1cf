//! Queries: WITH, set operations, VALUES, and ORDER BY and LIMIT around them.
//!
//! *Source*: PostgreSQL 15, sections 7.4 to 7.8.
//!
//! *Not here*: a single SELECT (`select`).

use std::rc::Rc;

use gannet_syntax::copy_common_table;
use sqlparser::ast::{
    self, Cte, Expr, LimitClause, LockType, NonBlock, OrderByExpr, OrderByKind, Query, SelectItem,
    SetExpr, SetOperator, SetQuantifier, Spanned,
};
use sqlparser::tokenizer::Span;

use crate::error::SqlError;
use crate::expression::Expression;
use crate::plan::bind::{Binder, Typed, name_of, names_of};
use crate::plan::scope::Scope;
use crate::plan::select::{is_descending, sorted};
use crate::plan::{Node, Reserve, SetOperation, SortKey, types};
use crate::session::Column;
use crate::value::{DataType, Value};

/// WITH queries of a statement.
const COMMON_TABLES_MAX: usize = 64;
/// Uses of WITH queries, each of which is planned by itself. In a chain of queries that use the previous one twice, the
/// number doubles with each query.
pub(super) const COMMON_USES_MAX: usize = 1_000;

/// A query and its output columns.
pub(super) struct Planned {
    pub(super) node: Node,
    pub(super) columns: Vec<Column>,
}

/// A WITH query.
#[derive(Debug)]
pub(super) struct CommonTable {
    pub(super) name: String,
    pub(super) table: Cte,
    /// The number of WITH queries in its own scope.
    pub(super) visible: usize,
}

impl Planned {
    /// The type of the only column.
    pub(super) fn only_column(&self) -> Result<DataType, SqlError> {
        match self.columns.as_slice() {
            [column] => Ok(column.data_type),
            _ => Err(SqlError::new("42601", "subquery must return only one column")),
        }
    }

    /// Casts the output columns.
    pub(super) fn cast_to(
        &mut self,
        binder: &mut Binder,
        data_types: &[DataType],
    ) -> Result<(), SqlError> {
        let same = self
            .columns
            .iter()
            .zip(data_types)
            .all(|(column, to)| types::is_same_form(column.data_type, *to));
        if !same {
            let mut expressions = Vec::with_capacity(data_types.len());
            for (number, (column, to)) in self.columns.iter().zip(data_types).enumerate() {
                let typed = Typed::new(Expression::Column(number), column.data_type);
                expressions.push(binder.coerced(typed, *to, false)?);
            }
            let input = Box::new(std::mem::replace(&mut self.node, Node::Values(Vec::new())));
            self.node = Node::Project { input, expressions };
        }
        for (column, to) in self.columns.iter_mut().zip(data_types) {
            column.data_type = *to;
        }
        Ok(())
    }

    /// Converts output columns that are written as `::regclass` to the relations' names; inside a statement they are numbers.
    ///
    /// # Errors
    /// None in practice.
    pub(super) fn show_relations(
        &mut self,
        binder: &mut Binder,
        query: &Query,
    ) -> Result<(), SqlError> {
        let SetExpr::Select(select) = &*query.body else { return Ok(()) };
        let is_relation = |item: &SelectItem| match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                is_regclass(expr)
            }
            _ => false,
        };
        let relations: Vec<bool> = select.projection.iter().map(is_relation).collect();
        // A wildcard stands for several columns.
        if relations.len() != self.columns.len() || !relations.contains(&true) {
            return Ok(());
        }
        let mut expressions = Vec::with_capacity(relations.len());
        for (number, is_relation) in relations.into_iter().enumerate() {
            let column = &mut self.columns[number];
            let typed = Typed::new(Expression::Column(number), column.data_type);
            if is_relation && column.data_type.is_integer() {
                let named = binder.named_call("pg_relation_name", vec![typed])?;
                column.data_type = DataType::Text;
                expressions.push(named.expression);
            } else {
                expressions.push(typed.expression);
            }
        }
        let input = Box::new(std::mem::replace(&mut self.node, Node::Values(Vec::new())));
        self.node = Node::Project { input, expressions };
        Ok(())
    }
}

/// Whether an expression is cast to `regclass`.
pub(super) fn is_regclass(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_regclass(inner),
        Expr::Cast { data_type, .. } => {
            data_type.to_string().to_lowercase().trim_start_matches("pg_catalog.") == "regclass"
        }
        _ => false,
    }
}

/// Whether a key of ORDER BY is descending, and whether NULLs come first.
pub(super) fn sort_options(key: &OrderByExpr) -> Result<(bool, bool), SqlError> {
    if key.with_fill.is_some() {
        return Err(SqlError::unsupported("WITH FILL"));
    }
    let descending = is_descending(key.options.sort.as_ref())?;
    Ok((descending, key.options.nulls_first.unwrap_or(descending)))
}

impl Binder {
    /// A query.
    pub(super) fn query(&mut self, query: &Query) -> Result<Planned, SqlError> {
        let visible = self.common_tables.len();
        let planned = self.query_with(query);
        self.common_tables.truncate(visible);
        planned
    }

    fn query_with(&mut self, query: &Query) -> Result<Planned, SqlError> {
        if !query.pipe_operators.is_empty() || query.for_clause.is_some() {
            return Err(SqlError::unsupported(format_args!("the query {query}")));
        }
        if let Some(with) = &query.with {
            if with.recursive {
                return Err(SqlError::unsupported("WITH RECURSIVE"));
            }
            for common in &with.cte_tables {
                if self.common_tables.len() >= COMMON_TABLES_MAX {
                    return Err(SqlError::new("54001", "too many WITH queries"));
                }
                self.common_tables.push(Rc::new(CommonTable {
                    name: name_of(&common.alias.name),
                    table: copy_common_table(common),
                    visible: self.common_tables.len(),
                }));
            }
        }
        let order_by: &[OrderByExpr] = match &query.order_by {
            None => &[],
            Some(order_by) => match &order_by.kind {
                OrderByKind::Expressions(keys) => keys,
                OrderByKind::All(_) => return Err(SqlError::unsupported("ORDER BY ALL")),
            },
        };
        let (limit, offset) = self.limits(query)?;
        let sort_limit = offset.is_none().then_some(limit.as_ref()).flatten();
        let mut planned = match &*query.body {
            SetExpr::Select(select) => self.select(select, order_by, sort_limit)?,
            body => {
                let mut planned = self.body(body)?;
                let keys = output_order(order_by, &planned.columns)?;
                planned.node = sorted(planned.node, keys, sort_limit);
                planned
            }
        };
        let (updates, shares): (Vec<_>, Vec<_>) =
            query.locks.iter().partition(|lock| lock.lock_type == LockType::Update);
        if shares.iter().any(|lock| lock.nonblock.is_some()) {
            // FOR SHARE reserves nothing, so there is nothing to wait for.
            return Err(SqlError::unsupported("FOR SHARE with NOWAIT or SKIP LOCKED"));
        }
        for lock in updates {
            let how = match lock.nonblock {
                None => Reserve::Wait,
                Some(NonBlock::Nowait) => Reserve::NoWait,
                Some(NonBlock::SkipLocked) => Reserve::Skip,
            };
            let of = lock.of.as_ref().map(names_of).transpose()?.and_then(|mut names| names.pop());
            if !planned.node.reserve(how, of.as_deref())?
                && let Some(of) = of
            {
                let message =
                    format!("relation \"{of}\" in FOR UPDATE clause not found in FROM clause");
                return Err(SqlError::new("42P01", message));
            }
        }
        if limit.is_some() || offset.is_some() {
            planned.node = Node::Limit { input: Box::new(planned.node), limit, offset };
        }
        Ok(planned)
    }

    fn limits(
        &mut self,
        query: &Query,
    ) -> Result<(Option<Expression>, Option<Expression>), SqlError> {
        let (limit, offset) = match &query.limit_clause {
            None => (None, None),
            Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => {
                (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
            }
            Some(LimitClause::LimitOffset { .. }) => {
                return Err(SqlError::unsupported("LIMIT BY"));
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => (Some(limit), Some(offset)),
        };
        let fetch = match &query.fetch {
            Some(fetch) if fetch.with_ties || fetch.percent => {
                return Err(SqlError::unsupported("FETCH WITH TIES"));
            }
            Some(fetch) => Some(fetch.quantity.as_ref()),
            None => None,
        };
        let one = || Ok(Some(Expression::Constant(Value::Integer(1))));
        let limit = match fetch {
            Some(None) => one(),
            Some(quantity) => self.row_count(quantity, "LIMIT"),
            None => self.row_count(limit, "LIMIT"),
        };
        Ok((limit?, self.row_count(offset, "OFFSET")?))
    }

    fn row_count(
        &mut self,
        expr: Option<&Expr>,
        clause: &str,
    ) -> Result<Option<Expression>, SqlError> {
        let Some(expr) = expr else { return Ok(None) };
        if let Expr::Identifier(ident) = expr
            && name_of(ident) == "all"
        {
            return Ok(None);
        }
        let typed = self.expression(expr, &Rc::new(Scope::default()))?;
        if let Expression::Constant(Value::Integer(..0)) = typed.expression {
            return Err(SqlError::negative_row_count(clause));
        }
        Ok(Some(self.coerced(typed, DataType::BigInt, false)?))
    }

    fn body(&mut self, body: &SetExpr) -> Result<Planned, SqlError> {
        match body {
            SetExpr::Select(select) => self.select(select, &[], None),
            SetExpr::Query(query) => self.query(query),
            SetExpr::Values(values) => self.values(values),
            SetExpr::SetOperation { left, op, set_quantifier, right } => {
                self.set_operation(left, *op, *set_quantifier, right)
            }
            SetExpr::Table(table) => {
                let name = table.table_name.clone().unwrap_or_default();
                Err(SqlError::unsupported(format_args!("TABLE {name}")))
            }
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                Err(SqlError::unsupported("a change inside a query"))
            }
        }
    }

    fn values(&mut self, values: &ast::Values) -> Result<Planned, SqlError> {
        let scope = Rc::new(Scope::default());
        let width = values.rows.first().map_or(0, |row| row.content.len());
        let mut columns: Vec<Vec<Typed>> = (0..width).map(|_| Vec::new()).collect();
        for row in &values.rows {
            if row.content.len() != width {
                return Err(SqlError::new("42601", "VALUES lists must all be the same length"));
            }
            for (column, expr) in columns.iter_mut().zip(&row.content) {
                column.push(self.expression(expr, &scope)?);
            }
        }
        let mut rows: Vec<Vec<Expression>> =
            values.rows.iter().map(|_| Vec::with_capacity(width)).collect();
        let mut output = Vec::with_capacity(width);
        for (number, column) in columns.into_iter().enumerate() {
            let (expressions, data_type) = self.one_type(column, "VALUES")?;
            for (row, expression) in rows.iter_mut().zip(expressions) {
                row.push(expression);
            }
            let data_type = data_type.unwrap_or(DataType::Text);
            output.push(Column { name: format!("column{}", number + 1), data_type });
        }
        Ok(Planned { node: Node::Values(rows), columns: output })
    }

    fn set_operation(
        &mut self,
        left: &SetExpr,
        operator: SetOperator,
        quantifier: SetQuantifier,
        right: &SetExpr,
    ) -> Result<Planned, SqlError> {
        let all = match quantifier {
            SetQuantifier::All => true,
            SetQuantifier::Distinct | SetQuantifier::None => false,
            _ => return Err(SqlError::unsupported("BY NAME")),
        };
        let (operation, name) = match (operator, all) {
            (SetOperator::Union, _) => (None, "UNION"),
            (SetOperator::Intersect, false) => (Some(SetOperation::Intersect), "INTERSECT"),
            (SetOperator::Intersect, true) => (Some(SetOperation::IntersectAll), "INTERSECT"),
            (SetOperator::Except | SetOperator::Minus, false) => {
                (Some(SetOperation::Except), "EXCEPT")
            }
            (SetOperator::Except | SetOperator::Minus, true) => {
                (Some(SetOperation::ExceptAll), "EXCEPT")
            }
        };
        let written = right;
        let mut left = self.body(left)?;
        let mut right = self.body(right)?;
        if left.columns.len() != right.columns.len() {
            let message = format!("each {name} query must have the same number of columns");
            let place = output(written, 0).and_then(|span| self.position(span));
            return Err(SqlError::new("42601", message).with_position(place));
        }
        let mut data_types = Vec::with_capacity(left.columns.len());
        for (number, (a, b)) in left.columns.iter().zip(&right.columns).enumerate() {
            let common = match types::branch(a.data_type, b.data_type) {
                Some(common) if all => common,
                Some(common) => types::of_keys(common),
                None if is_null_column(&left.node, number) => b.data_type,
                None if is_null_column(&right.node, number) => a.data_type,
                None => {
                    let (types, column) = ((a.data_type.name(), b.data_type.name()), &a.name);
                    let message =
                        format!("{name} types {} and {} cannot be matched", types.0, types.1);
                    let place = output(written, number).and_then(|span| self.position(span));
                    return Err(SqlError::new("42804", message)
                        .with_detail(format!("column {} is \"{column}\"", number + 1))
                        .with_position(place));
                }
            };
            data_types.push(common);
        }
        for side in [&mut left, &mut right] {
            for (number, to) in data_types.iter().enumerate() {
                if is_null_column(&side.node, number) {
                    side.columns[number].data_type = *to;
                }
            }
            side.cast_to(self, &data_types)?;
        }
        let (left_node, right_node) = (Box::new(left.node), Box::new(right.node));
        let mut node = Node::SetOperation { operation, left: left_node, right: right_node };
        if operation.is_none() && !all {
            let (input, columns) = (Box::new(node), left.columns.len());
            node = Node::Distinct { input, columns, is_sorted: false };
        }
        Ok(Planned { node, columns: left.columns })
    }
}

/// The place of an output column in the statement; None for a column of `*`.
fn output(body: &SetExpr, number: usize) -> Option<Span> {
    match body {
        SetExpr::Select(select) => {
            let before = select.projection.get(..=number)?;
            let is_one = |item: &SelectItem| {
                matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. })
            };
            before.iter().all(is_one).then(|| before[number].span())
        }
        SetExpr::Query(query) => output(&query.body, number),
        SetExpr::Values(values) => Some(values.rows.first()?.content.get(number)?.span()),
        SetExpr::SetOperation { left, .. } => output(left, number),
        _ => None,
    }
}

/// Whether a column is the constant NULL, which matches any type.
fn is_null_column(node: &Node, column: usize) -> bool {
    let is_null = |expression: Option<&Expression>| {
        matches!(expression, Some(Expression::Constant(Value::Null)))
    };
    match node {
        Node::Values(rows) => rows.iter().all(|row| is_null(row.get(column))),
        Node::Project { expressions, .. } => is_null(expressions.get(column)),
        _ => false,
    }
}

/// ORDER BY that can name output columns only.
fn output_order(order_by: &[OrderByExpr], columns: &[Column]) -> Result<Vec<SortKey>, SqlError> {
    let mut keys = Vec::with_capacity(order_by.len());
    for key in order_by {
        let (descending, nulls_first) = sort_options(key)?;
        let number = match &key.expr {
            Expr::Identifier(ident) => {
                let name = name_of(ident);
                columns.iter().position(|column| column.name == name)
            }
            Expr::Value(value) => match &value.value {
                ast::Value::Number(digits, _) => {
                    let number = digits.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
                    number.filter(|number| *number < columns.len())
                }
                _ => None,
            },
            _ => None,
        };
        let number = number.ok_or_else(|| {
            SqlError::new(
                "0A000",
                "ORDER BY of a set operation or VALUES takes output columns only",
            )
        })?;
        let expression = types::as_key(Expression::Column(number), columns[number].data_type);
        keys.push(SortKey { expression, descending, nulls_first });
    }
    Ok(keys)
}
