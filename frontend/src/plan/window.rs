//! Output columns that depend on more than one row, or give more than one: `row_number() OVER (...)`, and the elements of
//! arrays.
//!
//! *Source*: PostgreSQL 15, sections 9.22, 9.19 and 38.5.8; `information_schema._pg_expandarray`, which JDBC's driver uses to
//! find the columns of a key.
//!
//! *Not here*: other window functions, and other functions with several rows, which are refused.

use std::rc::Rc;

use gannet_syntax::{Next, copy, copy_item, find_in_item, is_same, rewrite};
use sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, SelectItem,
    WindowType,
};

use crate::array::Element;
use crate::error::SqlError;
use crate::expression::Expression;
use crate::plan::array::ordered;
use crate::plan::bind::{Binder, Typed, name_of, names_of};
use crate::plan::query::sort_options;
use crate::plan::scope::Scope;
use crate::plan::select::output_name;
use crate::plan::{Node, SortKey, types};
use crate::value::{DataType, Value};

/// The function that returns the elements of a vector with their places; also the name of the relation that replaces it.
const EXPAND: &str = "_pg_expandarray";

/// The rows that row_number() counts: those with equal values of some expressions, in an order.
pub(super) struct Numbering {
    pub(super) partition: Vec<(Expression, DataType)>,
    /// In each key, only the direction and the place of NULLs are used.
    pub(super) order: Vec<(Expression, DataType, SortKey)>,
}

/// Arrays that output columns expand: each row is repeated for every element.
pub(super) struct Expanded {
    pub(super) arrays: Vec<(Expression, Element)>,
    /// The rewritten output columns: an element, its place and its subscript are columns of a relation [`EXPAND`].
    pub(super) projection: Vec<SelectItem>,
}

impl Binder {
    /// The numbering of an output column that is row_number().
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
            let (expression, data_type) = self.value(expr, scope)?;
            partition.push((types::as_key(expression, data_type), types::of_keys(data_type)));
        }
        let mut order = Vec::with_capacity(window.order_by.len());
        for key in &window.order_by {
            let (descending, nulls_first) = sort_options(key)?;
            let (expression, data_type) = self.value(&key.expr, scope)?;
            ordered(data_type)?;
            let place = Expression::Column(order.len());
            order.push((
                types::as_key(expression, data_type),
                types::of_keys(data_type),
                SortKey { expression: place, descending, nulls_first },
            ));
        }
        Ok(Some(Numbering { partition, order }))
    }

    /// The arrays that output columns expand, if any.
    pub(super) fn expanded(
        &mut self,
        projection: &[SelectItem],
        scope: &Rc<Scope>,
    ) -> Result<Option<Expanded>, SqlError> {
        let expands = |part: &Expr| match part {
            Expr::Function(call) if expanding(call).is_some() => Next::Stop,
            _ => Next::Into,
        };
        if projection.iter().all(|item| find_in_item(item, &expands).is_none()) {
            return Ok(None);
        }
        let mut expanded = Vec::new();
        let mut items = Vec::with_capacity(projection.len());
        for item in projection {
            let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item
            else {
                items.push(copy_item(item));
                continue;
            };
            let mut rewritten = copy(expr);
            let (mut is_changed, mut failed) = (false, None);
            rewrite(&mut rewritten, &mut |part| match replacement(part, &mut expanded) {
                Ok(Some(column)) => {
                    *part = column;
                    is_changed = true;
                }
                Ok(None) => {}
                Err(error) => {
                    failed.get_or_insert(error);
                }
            });
            if let Some(error) = failed {
                return Err(error);
            }
            items.push(match item {
                // The column keeps the name of the replaced function.
                SelectItem::UnnamedExpr(_) if is_changed => SelectItem::ExprWithAlias {
                    alias: Ident::with_quote('"', output_name(expr)),
                    expr: rewritten,
                },
                SelectItem::ExprWithAlias { alias, .. } => {
                    SelectItem::ExprWithAlias { expr: rewritten, alias: alias.clone() }
                }
                other => copy_item(other),
            });
        }
        let mut arrays = Vec::with_capacity(expanded.len());
        for array in &expanded {
            let typed = self.expression(array, scope)?;
            arrays.push(match typed.data_type {
                Some(DataType::Array(element)) => (typed.expression, element),
                // The catalog stores vectors of numbers as texts.
                Some(DataType::Text) => (typed.expression, Element::BigInt),
                other => {
                    let name = other.map_or_else(|| "unknown".to_owned(), DataType::name);
                    let message = format!("function unnest({name}) does not exist");
                    return Err(SqlError::new("42883", message).with_hint("unnest takes an array"));
                }
            });
        }
        Ok((!arrays.is_empty()).then_some(Expanded { arrays, projection: items }))
    }

    /// `(composite).x` and `(composite).n` of a subquery's [`EXPAND`]; and members of the catalog's arrays, which are all
    /// NULL.
    pub(super) fn field(
        &mut self,
        root: &Expr,
        chain: &[AccessExpr],
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let [AccessExpr::Dot(Expr::Identifier(field))] = chain else {
            // The column's name may be qualified.
            let array = match (root, chain) {
                (Expr::Identifier(table), [AccessExpr::Dot(Expr::Identifier(column)), ..]) => {
                    &Expr::CompoundIdentifier(vec![table.clone(), column.clone()])
                }
                _ => root,
            };
            let subscripts = match chain {
                [AccessExpr::Dot(_), subscripts @ ..] => subscripts,
                subscripts => subscripts,
            };
            return self.subscript(array, subscripts, scope);
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

/// The columns of [`EXPAND`]; only rewritten output columns name them.
pub(super) fn element_scope(arrays: &[(Expression, Element)]) -> Scope {
    let columns = arrays.iter().enumerate().flat_map(|(number, (_, element))| {
        [("x", element.data_type()), ("n", DataType::Integer), ("s", DataType::Integer)]
            .map(|(name, data_type)| (format!("{name}{number}"), data_type))
    });
    let mut scope = Scope::named(EXPAND, columns);
    scope.columns.iter_mut().for_each(|column| column.hidden = true);
    scope
}

/// Repeats the rows of a node for each element of arrays. Columns are in the order of the scope, then come the elements'.
pub(super) fn with_elements(
    node: Node,
    places: &[usize],
    needed: &std::collections::BTreeSet<usize>,
    vectors: Vec<(Expression, Element)>,
) -> Node {
    // Columns that are not needed have no place in the row.
    let column = |number: usize| match needed.contains(&number) {
        true => Expression::Column(places[number]),
        false => Expression::Constant(Value::Null),
    };
    let expressions = (0..places.len()).map(column).collect();
    let input = Box::new(Node::Project { input: Box::new(node), expressions });
    Node::Elements { input, vectors }
}

/// The column of [`EXPAND`] for a call that expands an array. The array is added to the arrays.
fn replacement(expr: &Expr, arrays: &mut Vec<Expr>) -> Result<Option<Expr>, SqlError> {
    let Expr::Function(call) = expr else { return Ok(None) };
    let Some((function, array)) = expanding(call) else { return Ok(None) };
    let number = number_of(array, arrays);
    Ok(Some(match function {
        "unnest" => column(&format!("x{number}")),
        "generate_subscripts" => column(&format!("s{number}")),
        _ => {
            let sql = format!("'(' || {EXPAND}.x{number} || ',' || {EXPAND}.n{number} || ')'");
            crate::parser::parse_expression(&sql)?
        }
    }))
}

fn column(name: &str) -> Expr {
    Expr::CompoundIdentifier(vec![Ident::new(EXPAND), Ident::new(name)])
}

fn number_of(array: Expr, arrays: &mut Vec<Expr>) -> usize {
    arrays.iter().position(|other| is_same(other, &array)).unwrap_or_else(|| {
        arrays.push(array);
        arrays.len() - 1
    })
}

/// The function of a call that expands an array, and the array.
fn expanding(call: &Function) -> Option<(&'static str, Expr)> {
    let names = names_of(&call.name).ok()?;
    let name = names.last()?;
    let function =
        [EXPAND, "unnest", "generate_subscripts"].into_iter().find(|function| function == name)?;
    let FunctionArguments::List(list) = &call.args else { return None };
    let argument = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Some(expr),
        _ => None,
    };
    match (function, list.args.as_slice()) {
        ("generate_subscripts", [array, dimension]) => {
            let (array, dimension) = (argument(array)?, argument(dimension)?);
            if dimension.to_string() == "1" {
                return Some((function, copy(array)));
            }
            // Arrays have one dimension.
            let sql = format!("CASE WHEN {dimension} = 1 THEN {array} END");
            Some((function, crate::parser::parse_expression(&sql).ok()?))
        }
        ("generate_subscripts", _) => None,
        (_, [array]) => Some((function, copy(argument(array)?))),
        _ => None,
    }
}
