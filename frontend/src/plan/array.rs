//! Arrays in expressions: constructors, ANY and ALL, subscripts.
//!
//! *Source*: PostgreSQL 15, sections 4.2.12, 8.15 and 9.24.
//!
//! *Not here*: output columns with a row for each element (`window`); columns of tables, which cannot be arrays.

use std::rc::Rc;

use sqlparser::ast::{self, AccessExpr, BinaryOperator, Expr, Subscript};

use crate::array::{self, Element};
use crate::error::SqlError;
use crate::expression::array::ArrayFunction;
use crate::expression::function::Function;
use crate::expression::{Comparison, Expression};
use crate::parser::{self, Parsed};
use crate::plan::bind::{Binder, Typed};
use crate::plan::operator::{comparison_of, negated_condition, no_operator};
use crate::plan::scope::Scope;
use crate::plan::types;
use crate::value::{DataType, Value};

impl Binder {
    /// ARRAY[...].
    pub(super) fn array(&mut self, members: &[Expr], scope: &Rc<Scope>) -> Result<Typed, SqlError> {
        let members: Result<Vec<Typed>, SqlError> =
            members.iter().map(|member| self.expression(member, scope)).collect();
        let members = members?;
        if members.is_empty() {
            // The array has no type until a cast gives it one.
            let empty = Expression::Constant(Value::Text("{}".to_owned()));
            return Ok(Typed { expression: empty, data_type: None });
        }
        let (parts, data_type) = self.one_type(members, "ARRAY")?;
        let element = element_of(data_type.unwrap_or(DataType::Text))?;
        Ok(called(ArrayFunction::Make, element, DataType::Array(element), parts))
    }

    /// ARRAY(SELECT ...).
    pub(super) fn array_subquery(
        &mut self,
        query: &ast::Query,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let sql = format!(
            "SELECT coalesce(array_agg(element), '{{}}') FROM ({query}) AS rows_of_array (element)"
        );
        match parser::parse(&sql)? {
            Some(Parsed::Statement(statement)) => match &*statement {
                ast::Statement::Query(query) => self.scalar_subquery(query, scope),
                _ => Err(SqlError::unsupported("ARRAY of a statement that is no query")),
            },
            Some(Parsed::Maintenance(_)) | None => {
                Err(SqlError::unsupported("ARRAY of a statement that is no query"))
            }
        }
    }

    /// `array[number]`. The catalog's vectors are texts, and no client reads their members: they are NULL.
    pub(super) fn subscript(
        &mut self,
        array: &Expr,
        chain: &[AccessExpr],
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let array = self.expression(array, scope)?;
        let Some(DataType::Array(element)) = array.data_type else {
            if array.data_type.is_some_and(|data_type| !data_type.is_text()) {
                let name = array.data_type.map_or_else(String::new, DataType::name);
                let message = format!("cannot subscript type {name} because it is not an array");
                return Err(SqlError::new("42804", message));
            }
            return Ok(Typed { expression: Expression::Constant(Value::Null), data_type: None });
        };
        let [AccessExpr::Subscript(Subscript::Index { index })] = chain else {
            return Err(SqlError::unsupported("a slice of an array"));
        };
        let number = self.expression(index, scope)?;
        let number = self.coerced(number, DataType::Integer, false)?;
        let parts = vec![array.expression, number];
        Ok(called(ArrayFunction::Element, element, element.data_type(), parts))
    }

    /// `op ANY (...)` and `op ALL (...)`.
    pub(super) fn quantified(
        &mut self,
        left: &Expr,
        operator: &BinaryOperator,
        right: &Expr,
        any: bool,
        scope: &Rc<Scope>,
    ) -> Result<Typed, SqlError> {
        let Some(comparison) = comparison_of(operator) else {
            return Err(SqlError::unsupported(format_args!("{operator} ANY")));
        };
        let mut right = right;
        while let Expr::Nested(inner) = right {
            right = inner;
        }
        if let Expr::Subquery(query) = right {
            if any {
                return self.any_subquery(left, comparison, query, scope);
            }
            // ALL holds if the opposite holds for none.
            let none = self.any_subquery(left, comparison.negated(), query, scope)?;
            return Ok(negated_condition(none));
        }
        let value = self.expression(left, scope)?;
        if let Some(members) = self.array_members(right, scope)? {
            if any && comparison == Comparison::Equal {
                return self.any_of(value, members);
            }
            let mut parts = Vec::with_capacity(members.len());
            for member in members {
                parts.push(self.compare(value.clone(), comparison, member)?.expression);
            }
            let joined = if any { Expression::Or(parts) } else { Expression::And(parts) };
            return Ok(Typed::boolean(joined));
        }
        let array = self.expression(right, scope)?;
        match (any, comparison) {
            (true, Comparison::Equal) => self.contained(value, array),
            (false, Comparison::NotEqual) => Ok(negated_condition(self.contained(value, array)?)),
            _ => {
                Err(SqlError::unsupported("ANY and ALL of an array, other than = ANY and <> ALL,")
                    .with_hint("write the members out, as in ARRAY[1, 2]"))
            }
        }
    }

    /// Whether an array that is not written out contains a value.
    fn contained(&mut self, value: Typed, array: Typed) -> Result<Typed, SqlError> {
        let element = match (array.data_type, value.data_type) {
            (Some(DataType::Array(element)), _) => element,
            // The catalog stores its arrays as texts.
            (Some(data_type), _) if data_type.is_text() => {
                let value = self.coerced(value, DataType::Text, true)?;
                let value = Typed::new(value, DataType::Text);
                return self.named_call("pg_in_array", vec![value, array]);
            }
            (Some(_), _) => {
                let message = "op ANY/ALL (array) requires array on right side";
                return Err(SqlError::new("42809", message));
            }
            (None, known) => element_of(known.unwrap_or(DataType::Text))?,
        };
        // Both are cast to their common type, because the elements' type may not hold the value.
        let element = match value.data_type {
            None => element,
            Some(data_type) => {
                let common = types::common(data_type, element.data_type())
                    .ok_or_else(|| no_operator("=", data_type, element.data_type()))?;
                element_of(common)?
            }
        };
        let value = self.coerced(value, element.data_type(), false)?;
        let array = self.coerced(array, DataType::Array(element), false)?;
        Ok(called(ArrayFunction::Contains, element, DataType::Boolean, vec![value, array]))
    }

    /// The members of ARRAY[...] or of a literal such as `'{a,b}'`, which an access may use.
    fn array_members(
        &mut self,
        array: &Expr,
        scope: &Rc<Scope>,
    ) -> Result<Option<Vec<Typed>>, SqlError> {
        match array {
            Expr::Array(array) => {
                let members: Result<Vec<Typed>, SqlError> =
                    array.elem.iter().map(|member| self.expression(member, scope)).collect();
                let (members, data_type) = self.one_type(members?, "ARRAY")?;
                let member = |expression| Typed { expression, data_type };
                Ok(Some(members.into_iter().map(member).collect()))
            }
            Expr::Nested(expr) => self.array_members(expr, scope),
            Expr::Cast { expr, data_type, .. } => {
                let Some(members) = self.array_members(expr, scope)? else { return Ok(None) };
                // Casts to internal types of PostgreSQL are ignored: the catalog has such arrays as texts.
                let Ok(DataType::Array(element)) = types::from_written(data_type) else {
                    return Ok(Some(members));
                };
                let to = element.data_type();
                let mut cast = Vec::with_capacity(members.len());
                for member in members {
                    cast.push(Typed::new(self.coerced(member, to, true)?, to));
                }
                Ok(Some(cast))
            }
            Expr::Value(value) => match &value.value {
                ast::Value::SingleQuotedString(literal) => {
                    let mut members = Vec::new();
                    array::for_each(literal, |text| {
                        let value = text.map_or(Value::Null, |text| Value::Text(text.to_owned()));
                        let expression = Expression::Constant(value);
                        members.push(Typed { expression, data_type: None });
                        Ok(())
                    })?;
                    Ok(Some(members))
                }
                _ => Ok(None),
            },
            _ => Ok(None),
        }
    }
}

/// The elements of an array of some type.
///
/// # Errors
/// SQLSTATE 0A000 for arrays of arrays.
pub(super) fn element_of(data_type: DataType) -> Result<Element, SqlError> {
    Element::of(data_type).ok_or_else(|| SqlError::unsupported("an array of several dimensions"))
}

/// Refuses types without an order: arrays are stored as texts, whose order is another one.
///
/// # Errors
/// SQLSTATE 0A000 for an array.
pub(super) fn ordered(data_type: DataType) -> Result<(), SqlError> {
    match data_type {
        DataType::Array(_) => Err(SqlError::unsupported("the order of arrays")),
        _ => Ok(()),
    }
}

fn called(
    function: ArrayFunction,
    element: Element,
    result: DataType,
    parts: Vec<Expression>,
) -> Typed {
    let function = Function::Array(function, element);
    Typed::new(Expression::Call(function, result, parts), result)
}
