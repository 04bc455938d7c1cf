//! Output columns that are not computed from one row alone: `row_number() OVER (...)`, and the elements of a vector.
//!
//! *Source*: PostgreSQL 15, section 9.22; `information_schema._pg_expandarray`, with which JDBC's driver asks for the
//! columns of a key.
//! *Not here*: other window functions, and other functions that give several rows: they are refused.

use std::rc::Rc;

use sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, SelectItem,
    WindowType,
};

use crate::error::SqlError;
use crate::expression::Expression;
use crate::plan::bind::{Binder, Typed, name_of, names_of};
use crate::plan::query::sort_options;
use crate::plan::scope::Scope;
use crate::plan::{Node, SortKey};
use crate::value::{DataType, Value};

/// The function whose rows are the elements of a vector, and the name of what it gives.
const EXPAND: &str = "_pg_expandarray";

/// What row_number() counts: rows with equal values of some expressions, in an order.
pub(super) struct Numbering {
    pub(super) partition: Vec<(Expression, DataType)>,
    /// The keys' own expressions are not used.
    pub(super) order: Vec<(Expression, DataType, SortKey)>,
}

/// A vector of numbers in a text, such as `1 3`: each row is given once for every element.
pub(super) struct Vector {
    pub(super) expression: Expression,
    /// The output columns, which name the element and its place as columns of a relation [`EXPAND`].
    pub(super) projection: Vec<SelectItem>,
}

impl Binder {
    /// What an output column numbers, if it is row_number().
    pub(super) fn numbering(
        &mut self,
        expr: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Option<Numbering>, SqlError> {
        let Expr::Function(call) = expr else { return Ok(None) };
        let Some(WindowType::WindowSpec(window)) = &call.over else { return Ok(None) };
        let is_plain = window.window_name.is_none() && window.window_frame.is_none();
        if !is_plain || names_of(&call.name)?.last().is_none_or(|name| name != "row_number") {
            return Ok(None);
        }
        let mut partition = Vec::with_capacity(window.partition_by.len());
        for expr in &window.partition_by {
            partition.push(self.value(expr, scope)?);
        }
        let mut order = Vec::with_capacity(window.order_by.len());
        for key in &window.order_by {
            let (descending, nulls_first) = sort_options(key)?;
            let (expression, data_type) = self.value(&key.expr, scope)?;
            let place = Expression::Column(order.len());
            order.push((
                expression,
                data_type,
                SortKey { expression: place, descending, nulls_first },
            ));
        }
        Ok(Some(Numbering { partition, order }))
    }

    /// The vector that output columns expand, if there is one.
    pub(super) fn vector(
        &mut self,
        projection: &[SelectItem],
        scope: &Rc<Scope>,
    ) -> Result<Option<Vector>, SqlError> {
        let mut vectors = projection.iter().filter_map(|item| expanded(item).map(|(v, _)| v));
        let Some(vector) = vectors.next() else { return Ok(None) };
        if vectors.any(|other| other != vector) {
            return Err(SqlError::unsupported("two arrays that are expanded"));
        }
        let typed = self.expression(vector, scope)?;
        let expression = self.coerced(typed, DataType::Text, false)?;
        let mut items = Vec::with_capacity(projection.len());
        for item in projection {
            items.push(match expanded(item) {
                None => item.clone(),
                Some((_, field)) => {
                    let alias = match item {
                        SelectItem::ExprWithAlias { alias, .. } => alias.clone(),
                        _ => Ident::new(field.map_or(EXPAND, |field| field.as_str())),
                    };
                    SelectItem::ExprWithAlias { expr: element(field)?, alias }
                }
            });
        }
        Ok(Some(Vector { expression, projection: items }))
    }

    /// `(composite).x` and `(composite).n`, of what a query below has made of [`EXPAND`]; and members of arrays, of which
    /// there are none but NULL.
    pub(super) fn field(
        &mut self,
        root: &Expr,
        chain: &[AccessExpr],
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let [AccessExpr::Dot(Expr::Identifier(field))] = chain else {
            // The column may have its table's name before it.
            let array = match (root, chain) {
                (Expr::Identifier(table), [AccessExpr::Dot(Expr::Identifier(column)), ..]) => {
                    &Expr::CompoundIdentifier(vec![table.clone(), column.clone()])
                }
                _ => root,
            };
            self.expression(array, scope)?;
            return Ok(Typed { expression: Expression::Constant(Value::Null), data_type: None });
        };
        let place = match name_of(field).as_str() {
            "x" => 1,
            "n" => 2,
            other => return Err(SqlError::unsupported(format_args!("the field {other}"))),
        };
        let sql = format!("CAST(split_part(btrim({root}, '()'), ',', {place}) AS INTEGER)");
        let expr = crate::parser::parse_expression(&sql)?;
        self.expression(&expr, scope)
    }
}

/// The columns of [`EXPAND`]; they are named by rewritten output columns alone.
pub(super) fn element_scope() -> Scope {
    let columns = ["x", "n"].map(|name| (name.to_owned(), DataType::Integer));
    let mut scope = Scope::named(EXPAND, columns);
    scope.columns.iter_mut().for_each(|column| column.hidden = true);
    scope
}

/// Gives the rows of a node once for each element of a vector: columns in the order of the scope, then the element's.
pub(super) fn with_elements(
    node: Node,
    places: &[usize],
    needed: &std::collections::BTreeSet<usize>,
    vector: Expression,
) -> Node {
    // What nobody needs has no place in the row.
    let column = |number: usize| match needed.contains(&number) {
        true => Expression::Column(places[number]),
        false => Expression::Constant(Value::Null),
    };
    let expressions = (0..places.len()).map(column).collect();
    let input = Box::new(Node::Project { input: Box::new(node), expressions });
    Node::Elements { input, vector }
}

/// The vector that an output column expands, and the field that it takes of each element.
fn expanded(item: &SelectItem) -> Option<(&Expr, Option<&Field>)> {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return None;
    };
    match expr {
        Expr::Function(call) => Some((vector_of(call)?, None)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let [AccessExpr::Dot(Expr::Identifier(field))] = access_chain.as_slice() else {
                return None;
            };
            match &**root {
                Expr::Nested(inner) => match &**inner {
                    Expr::Function(call) => Some((vector_of(call)?, Field::of(&name_of(field)))),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    }
}

/// A field of an element.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Field(&'static str);

impl Field {
    fn of(name: &str) -> Option<&'static Self> {
        const X: Field = Field("x");
        const N: Field = Field("n");
        match name {
            "x" => Some(&X),
            "n" => Some(&N),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        self.0
    }
}

fn vector_of(call: &Function) -> Option<&Expr> {
    let names = names_of(&call.name).ok()?;
    let is_meant = names.last().is_some_and(|name| name == EXPAND);
    let FunctionArguments::List(list) = &call.args else { return None };
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(vector))] if is_meant => Some(vector),
        _ => None,
    }
}

/// The expression for an element's field, or for all of it as a text.
fn element(field: Option<&Field>) -> Result<Expr, SqlError> {
    let sql = match field {
        Some(field) => format!("{EXPAND}.{}", field.as_str()),
        None => format!("'(' || {EXPAND}.x || ',' || {EXPAND}.n || ')'"),
    };
    crate::parser::parse_expression(&sql)
}
