//! The value of an expression on a row.
//!
//! Each kind of expression has a function of its own, so a level of recursion takes little of the coroutine's stack.
//!
//! *Invariants*: evaluation never blocks a thread; long computations go through [`Environment::aside`]. A large value is
//! charged while other values are computed beside it.
//!
//! *Not here*: what functions compute (`function`, `array`, `catalog::system`), and the transaction (`execute::Context`).

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

use crate::array::{self, Element};
use crate::aside::HELD_BYTES_MAX;
use crate::error::{Failure, SqlError};
use crate::expression::array::ArrayFunction;
use crate::expression::function::Function;
use crate::expression::function::{self, Facts};
use crate::expression::pattern::{Compiled, Syntax};
use crate::expression::set::{KeptId, SetKey, ValueSet};
use crate::expression::{
    Cast, Comparison, Expression, Match, SubqueryUse, arithmetic, cast, compare, datetime,
};
use crate::memory::{Budget, Charge};
use crate::value::{DataType, Value};

/// Larger values are charged while others are computed beside them.
const LARGE_BYTES: usize = 16 << 10;

/// What expressions depend on beside their row.
pub(crate) trait Environment {
    /// The value of `$n`, counted from 0.
    fn parameter(&self, number: usize) -> Result<Value, SqlError>;
    /// An argument of the running subquery.
    fn outer(&self, number: usize) -> Value;
    /// The value of a subquery.
    fn subquery(&mut self, query: &SubqueryUse, row: &[Value]) -> Result<Value, Failure>;
    /// The next value of a counter.
    fn next_value(&mut self, counter: u32) -> Result<i64, Failure>;
    /// What became of the transaction under a token.
    fn token_outcome(&mut self, token: &str) -> Result<&'static str, Failure>;
    /// The statement's time, the session's user, the catalog; None where there is no session.
    fn facts(&self) -> Option<&Facts>;
    /// The budget for large values; None where large values cannot occur.
    fn budget(&self) -> Option<&Arc<Budget>> {
        None
    }
    /// Ends the statement if it was cancelled, and yields the thread if it has run long.
    fn check(&mut self) -> Result<(), Failure>;
    /// A compiled pattern.
    fn compiled(
        &mut self,
        pattern: &str,
        syntax: Syntax,
        ignore_case: bool,
    ) -> Result<Arc<Compiled>, Failure>;
    /// A set that the statement has cached.
    fn set(&mut self, key: SetKey) -> Option<Arc<ValueSet>>;
    /// Caches a set until the statement ends.
    fn keep_set(&mut self, key: SetKey, set: Arc<ValueSet>);
    /// The cached value of an expression that is computed once.
    fn kept_once(&mut self, id: KeptId) -> Option<Value>;
    /// Caches such a value until the statement ends.
    fn keep_once(&mut self, id: KeptId, value: &Value) -> Result<(), Failure>;
    /// The result of a long computation, which another thread runs.
    fn aside(&mut self, job: AsideJob) -> Result<Value, Failure>;
}

/// Charges a large value while others are computed beside it.
///
/// # Errors
/// SQLSTATE 53200 if the value does not fit into the statement's memory.
pub(crate) fn hold(
    held: &mut Charge,
    value: &Value,
    environment: &dyn Environment,
) -> Result<(), Failure> {
    let bytes = value.memory_bytes();
    match environment.budget() {
        Some(budget) if bytes > LARGE_BYTES => Ok(held.add(budget, bytes)?),
        _ => Ok(()),
    }
}

/// A computation for another thread. The flag is set when the result is no longer needed.
pub(crate) type AsideJob = Box<dyn FnOnce(&AtomicBool) -> Result<Value, SqlError> + Send>;

/// Values between two checks.
const VALUES_BETWEEN_CHECKS: usize = 64;

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
        Expression::In(value, list, id) => in_list(value, list, *id, row, environment),
        Expression::Case(branches, otherwise) => case(branches, otherwise, row, environment),
        Expression::Coalesce(parts) => coalesce(parts, row, environment),
        Expression::Cast(cast) => cast_value(cast, row, environment),
        Expression::Call(function, data_type, parts) => {
            call(*function, *data_type, parts, row, environment)
        }
        Expression::NextValue(counter) => next_value(*counter, environment),
        Expression::TokenOutcome(token) => token_outcome(token, row, environment),
        Expression::Subquery(query) => environment.subquery(query, row),
        Expression::Once(id, part) => once(part, *id, environment),
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
    let Cast { from, to, explicit, .. } = *cast;
    if value.memory_bytes() > HELD_BYTES_MAX {
        return environment.aside(Box::new(move |_| cast::cast(value, from, to, explicit)));
    }
    Ok(cast::cast(value, from, to, explicit)?)
}

fn parameter(number: usize, environment: &dyn Environment) -> Result<Value, Failure> {
    Ok(environment.parameter(number)?)
}

fn next_value(counter: u32, environment: &mut dyn Environment) -> Result<Value, Failure> {
    environment.next_value(counter).map(Value::Integer)
}

fn token_outcome(
    token: &Expression,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    match evaluate(token, row, environment)? {
        Value::Text(token) => Ok(Value::Text(environment.token_outcome(&token)?.to_owned())),
        _ => Ok(Value::Null),
    }
}

fn once(
    part: &Expression,
    id: KeptId,
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    if let Some(value) = environment.kept_once(id) {
        return Ok(value);
    }
    let value = evaluate(part, &[], environment)?;
    environment.keep_once(id, &value)?;
    Ok(value)
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

/// A reference to a value that exists already.
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
    let mut held = Charge::default();
    hold(&mut held, &left, environment)?;
    let right = evaluate(right, row, environment)?;
    if left.is_null() || right.is_null() {
        return Ok(Value::Null);
    }
    // The concatenation of two texts takes as much as both.
    hold(&mut held, &right, environment)?;
    Ok(arithmetic::apply(operator, data_type, left, right)?)
}

fn matches(
    matching: &Match,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(&matching.value, row, environment)?;
    let Value::Text(text) = value else { return Ok(Value::Null) };
    let Match { pattern, syntax, ignore_case, kept, .. } = matching;
    let compiled = match (pattern, kept.0.get()) {
        (_, Some(compiled)) => Arc::clone(compiled),
        (Expression::Constant(Value::Text(pattern)), None) => {
            let compiled = environment.compiled(pattern, *syntax, *ignore_case)?;
            // Another statement with this plan may have compiled the pattern first.
            Arc::clone(kept.0.get_or_init(|| compiled))
        }
        (pattern, None) => {
            let pattern = evaluate(pattern, row, environment)?;
            let Value::Text(pattern) = pattern else { return Ok(Value::Null) };
            environment.compiled(&pattern, *syntax, *ignore_case)?
        }
    };
    match compiled.matches(&text, || environment.check())? {
        Some(matches) => Ok(Value::Boolean(matches)),
        None => environment.aside(Box::new(move |_| compiled.search(&text).map(Value::Boolean))),
    }
}

fn in_list(
    value: &Expression,
    list: &[Expression],
    id: KeptId,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    let value = evaluate(value, row, environment)?;
    if value.is_null() {
        return Ok(Value::Null);
    }
    if let Some(key) = SetKey::of_list(id, list) {
        if let Some(set) = environment.set(key) {
            return Ok(set.contains(&value));
        }
        if let Some(set) = set_of(list, environment)? {
            let result = set.contains(&value);
            environment.keep_set(key, Arc::new(set));
            return Ok(result);
        }
    }
    let mut result = Value::Boolean(false);
    for (number, candidate) in list.iter().enumerate() {
        if number % VALUES_BETWEEN_CHECKS == VALUES_BETWEEN_CHECKS - 1 {
            environment.check()?;
        }
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

/// The set of a list; None if members depend on the row.
fn set_of(
    list: &[Expression],
    environment: &mut dyn Environment,
) -> Result<Option<ValueSet>, Failure> {
    let is_same = |one: &Expression| {
        matches!(one, Expression::Constant(_) | Expression::Parameter(_) | Expression::Once(..))
            || matches!(one, Expression::Cast(cast) if matches!(cast.operand, Expression::Parameter(_)))
    };
    if !list.iter().all(is_same) {
        return Ok(None);
    }
    let mut set = ValueSet::default();
    for (number, member) in list.iter().enumerate() {
        if number % VALUES_BETWEEN_CHECKS == VALUES_BETWEEN_CHECKS - 1 {
            environment.check()?;
        }
        match member {
            Expression::Constant(value) => set.add(value, environment.budget())?,
            member => {
                let value = evaluate(member, &[], environment)?;
                set.add(&value, environment.budget())?;
            }
        }
    }
    Ok(Some(set))
}

/// Whether an array contains a value. An array that does not depend on the row is read once.
fn in_array(
    [value, array]: [&Expression; 2],
    element: Element,
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Option<Value>, Failure> {
    let Some(key) = SetKey::of_array(array, element) else { return Ok(None) };
    let value = evaluate(value, row, environment)?;
    let set = match environment.set(key) {
        Some(set) => set,
        None => {
            let Value::Text(text) = evaluate(array, row, environment)? else {
                return Ok(Some(Value::Null));
            };
            let mut set = ValueSet::default();
            let elements = elements_of(text, element, environment)?;
            for (number, value) in elements.iter().enumerate() {
                if number % VALUES_BETWEEN_CHECKS == VALUES_BETWEEN_CHECKS - 1 {
                    environment.check()?;
                }
                set.add(value, environment.budget())?;
            }
            let set = Arc::new(set);
            environment.keep_set(key, Arc::clone(&set));
            set
        }
    };
    Ok(Some(if value.is_null() { Value::Null } else { set.contains(&value) }))
}

/// The elements of an array's text. Another thread reads a long text.
///
/// # Errors
/// SQLSTATE 53200 if the elements do not fit into the statement's memory, and those of [`array::read`].
pub(crate) fn elements_of(
    text: String,
    element: Element,
    environment: &mut dyn Environment,
) -> Result<Vec<Value>, Failure> {
    if let Some(budget) = environment.budget() {
        budget.check(array::elements_bytes(&text))?;
    }
    if text.len() <= HELD_BYTES_MAX {
        return Ok(array::read(&text, element)?);
    }
    let (sender, elements) = channel();
    environment.aside(Box::new(move |_| {
        // The receiver waits below, unless the statement was abandoned.
        let _ = sender.send(array::read(&text, element)?);
        Ok(Value::Null)
    }))?;
    Ok(elements.recv().map_err(|_| SqlError::new("XX000", "an array was not read"))?)
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
    called: Function,
    data_type: DataType,
    parts: &[Expression],
    row: &[Value],
    environment: &mut dyn Environment,
) -> Result<Value, Failure> {
    if let (Function::Array(ArrayFunction::Contains, element), [value, array]) = (called, parts)
        && let Some(found) = in_array([value, array], element, row, environment)?
    {
        return Ok(found);
    }
    let mut arguments = Vec::with_capacity(parts.len());
    let mut held = Charge::default();
    for part in parts {
        let argument = evaluate(part, row, environment)?;
        hold(&mut held, &argument, environment)?;
        arguments.push(argument);
    }
    if called.is_strict() && arguments.iter().any(Value::is_null) {
        return Ok(Value::Null);
    }
    match environment.facts() {
        Some(facts) if called == Function::RegexpReplace => {
            let facts = facts.clone();
            environment.aside(Box::new(move |abandoned| {
                function::regexp_replace(&arguments, &facts, abandoned).map(Value::Text)
            }))
        }
        Some(facts) if is_long(called, &arguments) => {
            let facts = facts.clone();
            environment.aside(Box::new(move |_| {
                function::call(called, data_type, arguments, Some(&facts))
            }))
        }
        facts => Ok(function::call(called, data_type, arguments, facts)?),
    }
}

/// Whether a call may hold a worker's thread for too long.
fn is_long(called: Function, arguments: &[Value]) -> bool {
    let given: usize = arguments.iter().map(Value::memory_bytes).sum();
    let count = match (called, arguments.get(1)) {
        (
            Function::Repeat | Function::PadLeft | Function::PadRight,
            Some(Value::Integer(count)),
        ) => usize::try_from(*count).unwrap_or(0),
        _ => 1,
    };
    given.saturating_mul(count.max(1)) > HELD_BYTES_MAX
}
