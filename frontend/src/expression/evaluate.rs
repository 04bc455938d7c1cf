//! The value of an expression on a row.
//!
//! Each kind of expression has a function of its own, so that a level of recursion takes little of the
//! coroutine's stack.

use std::cmp::Ordering;

use crate::error::{Failure, SqlError};
use crate::expression::function::{self, Facts};
use crate::expression::{
    Cast, Comparison, Expression, Match, SubqueryUse, arithmetic, cast, compare, datetime, pattern,
};
use crate::value::{DataType, Value};

/// What expressions need beside their row.
pub(crate) trait Environment {
    /// The value of `$n`, counted from 0.
    fn parameter(&self, number: usize) -> Result<Value, SqlError>;
    /// An argument of the subquery that is running.
    fn outer(&self, number: usize) -> Value;
    /// The value of a subquery.
    fn subquery(&mut self, query: &SubqueryUse, row: &[Value]) -> Result<Value, Failure>;
    /// The next value of a counter.
    fn next_value(&mut self, counter: u32) -> Result<i64, Failure>;
    /// The statement's time, the session's user, the catalog.
    fn facts(&self) -> &Facts;
}

/// The value of an expression on a row.
///
/// # Errors
/// The statement's errors (division by zero, ...), and the engine's in subqueries.
pub(crate) fn evaluate(
    expression: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    match expression {
        Expression::Constant(value) => Ok(value.clone()),
        Expression::Column(column) => Ok(row[*column].clone()),
        Expression::Outer(number) => Ok(environment.outer(*number)),
        Expression::Parameter(number) => parameter(*number, environment),
        Expression::And(parts) => junction(parts, false, row, environment),
        Expression::Or(parts) => junction(parts, true, row, environment),
        Expression::Not(part) => negation(part, row, environment),
        Expression::IsNull(part) => is_null(part, row, environment),
        Expression::Is(part, expected) => is_boolean(part, *expected, row, environment),
        Expression::Compare(comparison, left, right) => {
            comparison_value(*comparison, left, right, row, environment)
        }
        Expression::Same(left, right) => same(left, right, row, environment),
        Expression::Arithmetic(operator, data_type, left, right) => {
            calculation(*operator, *data_type, [left, right], row, environment)
        }
        Expression::AddInterval(part, interval) => later(part, interval, row, environment),
        Expression::Match(matching) => matches(matching, row, environment),
        Expression::In(value, list) => in_list(value, list, row, environment),
        Expression::Case(branches, otherwise) => case(branches, otherwise, row, environment),
        Expression::Coalesce(parts) => coalesce(parts, row, environment),
        Expression::Cast(cast) => cast_value(cast, row, environment),
        Expression::Call(function, data_type, parts) => {
            call(*function, *data_type, parts, row, environment)
        }
        Expression::NextValue(counter) => next_value(*counter, environment),
        Expression::Subquery(query) => environment.subquery(query, row),
        Expression::Aggregate(_) => unplanned(),
    }
}

fn is_boolean(
    part: &Expression,
    expected: bool,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(part, row, environment)?;
    Ok(Value::Boolean(value == Value::Boolean(expected)))
}

fn later(
    part: &Expression,
    interval: &datetime::Interval,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(part, row, environment)?;
    Ok(datetime::add_interval(value, interval)?)
}

fn cast_value(
    cast: &Cast,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(&cast.operand, row, environment)?;
    Ok(cast::cast(value, cast.from, cast.to, cast.explicit)?)
}

fn parameter(number: usize, environment: &dyn Environment) -> Result<Value, Failure> {
    Ok(environment.parameter(number)?)
}

fn next_value(counter: u32, environment: &mut dyn Environment) -> Result<Value, Failure> {
    environment.next_value(counter).map(Value::Integer)
}

fn unplanned() -> Result<Value, Failure> {
    Err(SqlError::new("XX000", "an aggregate was not planned").into())
}

/// Whether a condition holds: neither FALSE nor NULL.
///
/// # Errors
/// As [`evaluate`].
pub(crate) fn holds(
    condition: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<bool, Failure> {
    Ok(evaluate(condition, row, environment)? == Value::Boolean(true))
}

/// A value without a copy, where it is there already.
fn in_place<'v>(expression: &'v Expression, row: &'v [Value]) -> Option<&'v Value> {
    match expression {
        Expression::Constant(value) => Some(value),
        Expression::Column(column) => Some(&row[*column]),
        _ => None,
    }
}

/// AND (`deciding` FALSE) and OR (`deciding` TRUE).
fn junction(
    parts: &[Expression],
    deciding: bool,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let mut result = Value::Boolean(!deciding);
    for part in parts {
        match evaluate(part, row, environment)? {
            Value::Boolean(value) if value == deciding => return Ok(Value::Boolean(deciding)),
            Value::Null => result = Value::Null,
            _ => {}
        }
    }
    Ok(result)
}

fn negation(
    part: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    Ok(match evaluate(part, row, environment)? {
        Value::Boolean(value) => Value::Boolean(!value),
        _ => Value::Null,
    })
}

fn is_null(
    part: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let is_null = match in_place(part, row) {
        Some(value) => value.is_null(),
        None => evaluate(part, row, environment)?.is_null(),
    };
    Ok(Value::Boolean(is_null))
}

/// The order of two expressions' values; None if one is NULL.
fn order(
    left: &Expression,
    right: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Option<Ordering>, Failure> {
    let (left_value, right_value);
    let left = match in_place(left, row) {
        Some(value) => value,
        None => {
            left_value = evaluate(left, row, environment)?;
            &left_value
        }
    };
    let right = match in_place(right, row) {
        Some(value) => value,
        None => {
            right_value = evaluate(right, row, environment)?;
            &right_value
        }
    };
    Ok((!left.is_null() && !right.is_null()).then(|| compare(left, right)))
}

fn comparison_value(
    comparison: Comparison,
    left: &Expression,
    right: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let order = order(left, right, row, environment)?;
    Ok(order.map_or(Value::Null, |order| Value::Boolean(comparison.holds(order))))
}

fn same(
    left: &Expression,
    right: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let left = evaluate(left, row, environment)?;
    let right = evaluate(right, row, environment)?;
    Ok(Value::Boolean(compare(&left, &right).is_eq()))
}

fn calculation(
    operator: arithmetic::Operator,
    data_type: DataType,
    [left, right]: [&Expression; 2],
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let left = evaluate(left, row, environment)?;
    let right = evaluate(right, row, environment)?;
    if left.is_null() || right.is_null() {
        return Ok(Value::Null);
    }
    Ok(arithmetic::apply(operator, data_type, left, right)?)
}

fn matches(
    matching: &Match,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(&matching.value, row, environment)?;
    let Value::Text(text) = value else { return Ok(Value::Null) };
    if let Some(compiled) = &matching.compiled {
        return Ok(Value::Boolean(compiled.matches(&text)));
    }
    let pattern = evaluate(&matching.pattern, row, environment)?;
    let Value::Text(pattern) = pattern else { return Ok(Value::Null) };
    let compiled = pattern::compile(&pattern, matching.syntax, matching.ignore_case)?;
    Ok(Value::Boolean(compiled.matches(&text)))
}

fn in_list(
    value: &Expression,
    list: &[Expression],
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(value, row, environment)?;
    if value.is_null() {
        return Ok(Value::Null);
    }
    let mut result = Value::Boolean(false);
    for candidate in list {
        let equal = match in_place(candidate, row) {
            Some(candidate) => equal(&value, candidate),
            None => equal(&value, &evaluate(candidate, row, environment)?),
        };
        match equal {
            Some(true) => return Ok(Value::Boolean(true)),
            Some(false) => {}
            None => result = Value::Null,
        }
    }
    Ok(result)
}

fn equal(a: &Value, b: &Value) -> Option<bool> {
    (!a.is_null() && !b.is_null()).then(|| compare(a, b).is_eq())
}

fn case(
    branches: &[(Expression, Expression)],
    otherwise: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    for (condition, result) in branches {
        if holds(condition, row, environment)? {
            return evaluate(result, row, environment);
        }
    }
    evaluate(otherwise, row, environment)
}

fn coalesce(
    parts: &[Expression],
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    for part in parts {
        let value = evaluate(part, row, environment)?;
        if !value.is_null() {
            return Ok(value);
        }
    }
    Ok(Value::Null)
}

fn call(
    called: function::Function,
    data_type: DataType,
    parts: &[Expression],
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let mut arguments = Vec::with_capacity(parts.len());
    for part in parts {
        arguments.push(evaluate(part, row, environment)?);
    }
    if called.is_strict() && arguments.iter().any(Value::is_null) {
        return Ok(Value::Null);
    }
    Ok(function::call(called, data_type, arguments, environment.facts())?)
}
