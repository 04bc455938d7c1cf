//! Aggregate functions: a state per group takes values and gives a result.
//!
//! *Source*: PostgreSQL 15, section 9.21.
//!
//! *Not here*: groups (`execute/aggregate`), and values that wait for DISTINCT or ORDER BY (`execute/distinct`).

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::array::{self, Element};
use crate::aside;
use crate::error::SqlError;
use crate::expression::arithmetic::{self, Operator};
use crate::expression::{Expression, compare};
use crate::plan::SortKey;
use crate::value::{DataType, Value};

/// A use of an aggregate function in a query.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Aggregate {
    pub(crate) kind: Kind,
    /// None for `count(*)`.
    pub(crate) argument: Option<Expression>,
    /// The separator of `string_agg`.
    pub(crate) separator: Option<Expression>,
    /// The order in which `string_agg` and `array_agg` take the values, by expressions on the same rows. If there is an
    /// order, its first key is a placeholder for the group's key.
    pub(crate) order: Vec<SortKey>,
    pub(crate) distinct: bool,
    pub(crate) filter: Option<Expression>,
    /// The type of the result.
    pub(crate) data_type: DataType,
}

impl Aggregate {
    /// Whether it is the number of rows.
    pub(crate) fn counts_rows(&self) -> bool {
        let takes_all = match &self.argument {
            None => true,
            Some(Expression::Constant(value)) => !value.is_null(),
            Some(_) => false,
        };
        self.kind == Kind::Count && takes_all && !self.distinct && self.filter.is_none()
    }

    /// All expressions of the aggregate.
    pub(crate) fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let keys = self.order.iter().map(|key| &key.expression);
        [&self.argument, &self.separator, &self.filter].into_iter().flatten().chain(keys)
    }
}

/// An aggregate function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Count,
    Sum,
    Average,
    Min,
    Max,
    And,
    Or,
    Join,
    Collect,
}

impl Kind {
    /// The aggregate with a name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "count" => Self::Count,
            "sum" => Self::Sum,
            "avg" => Self::Average,
            "min" => Self::Min,
            "max" => Self::Max,
            "bool_and" | "every" => Self::And,
            "bool_or" => Self::Or,
            "string_agg" => Self::Join,
            "array_agg" => Self::Collect,
            _ => return None,
        })
    }

    /// For an argument's type: the type that the argument is cast to, and the type of the result.
    pub(crate) fn types(self, argument: DataType) -> Option<(DataType, DataType)> {
        use DataType::{BigInt, Boolean, Double, Numeric, Text};
        match self {
            Self::Count => Some((argument, BigInt)),
            Self::Sum => match argument {
                DataType::SmallInt | DataType::Integer => Some((BigInt, BigInt)),
                BigInt => Some((BigInt, Numeric(None))),
                Numeric(_) => Some((Numeric(None), Numeric(None))),
                DataType::Real | Double => Some((argument, argument)),
                _ => None,
            },
            Self::Average => match argument {
                DataType::Real | Double => Some((Double, Double)),
                DataType::SmallInt | DataType::Integer | BigInt => Some((BigInt, Numeric(None))),
                Numeric(_) => Some((Numeric(None), Numeric(None))),
                _ => None,
            },
            Self::Min | Self::Max => match argument {
                Boolean | DataType::Uuid | DataType::Array(_) => None,
                argument => Some((argument, argument)),
            },
            Self::And | Self::Or => (argument == Boolean).then_some((Boolean, Boolean)),
            Self::Join => argument.is_text().then_some((Text, Text)),
            Self::Collect => Some((argument, DataType::Array(Element::of(argument)?))),
        }
    }
}

/// The state of an aggregate for one group.
pub(crate) struct State {
    kind: Kind,
    data_type: DataType,
    count: i64,
    /// An integer for a sum or average of integers as long as that suffices.
    total: Value,
    /// The elements of an array, and their approximate bytes.
    collected: Vec<Value>,
    collected_bytes: usize,
}

impl State {
    /// The state without values.
    pub(crate) fn new(aggregate: &Aggregate) -> Self {
        Self {
            kind: aggregate.kind,
            data_type: aggregate.data_type,
            count: 0,
            total: Value::Null,
            collected: Vec::new(),
            collected_bytes: 0,
        }
    }

    /// Takes a value, and for `string_agg` the separator before it. With DISTINCT, the caller passes each value once. Returns
    /// the approximate growth of the state in bytes.
    ///
    /// # Errors
    /// SQLSTATE 22003 if a sum overflows.
    pub(crate) fn add(
        &mut self,
        value: Value,
        separator: Option<&Value>,
    ) -> Result<usize, SqlError> {
        if value.is_null() && self.kind != Kind::Collect {
            return Ok(0);
        }
        self.count += 1;
        match self.kind {
            Kind::Count => return Ok(0),
            Kind::Collect => {
                let kept = value.memory_bytes();
                self.collected.push(value);
                self.collected_bytes += kept;
                return Ok(kept);
            }
            Kind::Sum | Kind::Average => {
                // The most frequent ones, without a detour.
                if let (Value::Integer(total), Value::Integer(value)) = (&mut self.total, &value)
                    && let Some(sum) = total.checked_add(*value)
                {
                    *total = sum;
                    return Ok(0);
                }
            }
            _ => {}
        }
        let total = std::mem::replace(&mut self.total, Value::Null);
        let before = total.memory_bytes();
        self.total = if total.is_null() { value } else { self.combine(total, value, separator)? };
        Ok(self.total.memory_bytes().saturating_sub(before))
    }

    fn combine(
        &self,
        total: Value,
        value: Value,
        separator: Option<&Value>,
    ) -> Result<Value, SqlError> {
        Ok(match self.kind {
            Kind::Sum | Kind::Average => {
                let [total, value] = [total, value].map(|value| summand(self.data_type, value));
                arithmetic::apply(Operator::Add, self.data_type, total, value)?
            }
            Kind::Min if compare(&value, &total).is_le() => value,
            Kind::Max if compare(&value, &total).is_ge() => value,
            Kind::Min | Kind::Max => total,
            Kind::And => Value::Boolean(total == Value::Boolean(true) && value == total),
            Kind::Or => {
                Value::Boolean(total == Value::Boolean(true) || value == Value::Boolean(true))
            }
            Kind::Join => match (total, separator, value) {
                (Value::Text(mut text), separator, Value::Text(more)) => {
                    if let Some(Value::Text(separator)) = separator {
                        text.push_str(separator);
                    }
                    text.push_str(&more);
                    Value::Text(text)
                }
                (total, _, _) => total,
            },
            Kind::Count | Kind::Collect => total,
        })
    }

    /// How many values it has taken, and their total: what [`Self::merge`] takes. Not of `string_agg` and `array_agg`.
    pub(crate) fn parts(&self) -> [Value; 2] {
        [Value::Integer(self.count), self.total.clone()]
    }

    /// Takes the values of another state of the same aggregate. Returns the approximate growth of the state in bytes.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn merge(&mut self, [count, total]: [Value; 2]) -> Result<usize, SqlError> {
        let Value::Integer(count) = count else { return Ok(0) };
        let before = self.count;
        let kept = if self.kind == Kind::Count { 0 } else { self.add(total, None)? };
        self.count = before + count;
        Ok(kept)
    }

    /// Counts a row of `count(*)`.
    pub(crate) fn add_row(&mut self) {
        self.count += 1;
    }

    /// Bytes of a state whose result takes time in proportion to them; 0 for other aggregates.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.collected_bytes
    }

    /// The result.
    ///
    /// # Errors
    /// SQLSTATE 22003 if an average overflows.
    pub(crate) fn finish(self) -> Result<Value, SqlError> {
        match (self.kind, summand(self.data_type, self.total)) {
            (Kind::Count, _) => Ok(Value::Integer(self.count)),
            (Kind::Average, Value::Numeric(sum)) => {
                let count = Decimal::from(self.count);
                arithmetic::numerics(Operator::Divide, sum, count).map(Value::Numeric)
            }
            #[expect(clippy::cast_precision_loss, reason = "the average of SQL rounds as well")]
            (Kind::Average, Value::Float(sum)) => Ok(Value::Float(sum / self.count as f64)),
            (Kind::Collect, _) => {
                aside::check(self.collected_bytes);
                Ok(match self.data_type {
                    DataType::Array(element) if !self.collected.is_empty() => {
                        Value::Text(array::written(&self.collected, element))
                    }
                    _ => Value::Null,
                })
            }
            (_, total) => Ok(total),
        }
    }
}

/// What is added up for a result of a type: the sum of BIGINTs is a NUMERIC.
fn summand(data_type: DataType, value: Value) -> Value {
    match (data_type, value) {
        (DataType::Numeric(_), Value::Integer(number)) => Value::Numeric(Decimal::from(number)),
        (_, value) => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(kind: Kind) -> State {
        let data_type = DataType::BigInt;
        let aggregate = Aggregate {
            kind,
            argument: None,
            separator: None,
            order: Vec::new(),
            distinct: false,
            filter: None,
            data_type,
        };
        State::new(&aggregate)
    }

    fn run(kind: Kind, values: &[i64]) -> Value {
        let mut state = state(kind);
        for value in values {
            state.add(Value::Integer(*value), None).unwrap();
        }
        state.finish().unwrap()
    }

    #[test]
    fn aggregates_of_nothing() {
        assert_eq!(run(Kind::Count, &[]), Value::Integer(0));
        assert_eq!(run(Kind::Sum, &[]), Value::Null);
    }

    #[test]
    fn states_of_parts_make_the_state_of_all() {
        let values = [5, -3, 8, 8, 1].map(Value::Integer);
        for kind in [Kind::Count, Kind::Sum, Kind::Min, Kind::Max] {
            for cut in 0..=values.len() {
                let state_of = |values: &[Value]| {
                    let mut state = state(kind);
                    values.iter().for_each(|value| {
                        state.add(value.clone(), None).unwrap();
                    });
                    state
                };
                let mut whole = state(kind);
                for part in [&values[..cut], &values[cut..], &[]] {
                    whole.merge(state_of(part).parts()).unwrap();
                }
                assert_eq!(whole.parts(), state_of(&values).parts());
            }
        }
    }

    #[test]
    fn sums_of_integers_are_exact() {
        let numeric = |kind| State { data_type: DataType::Numeric(None), ..state(kind) };
        let values = [i64::MAX, i64::MAX, i64::MIN, 3];
        let add_all = |mut state: State| {
            values.iter().for_each(|value| {
                state.add(Value::Integer(*value), None).unwrap();
            });
            state
        };
        let sum = Decimal::from(i64::MAX) + Decimal::from(2);
        let mut merged = add_all(numeric(Kind::Sum));
        merged.merge(add_all(numeric(Kind::Sum)).parts()).unwrap();
        assert_eq!(merged.finish().unwrap(), Value::Numeric(sum + sum));
        let average = add_all(numeric(Kind::Average)).finish().unwrap();
        assert_eq!(
            average,
            Value::Numeric(arithmetic::numerics(Operator::Divide, sum, Decimal::from(4)).unwrap())
        );
        assert_eq!(numeric(Kind::Sum).finish().unwrap(), Value::Null);
    }

    #[test]
    fn aggregates_of_some() {
        assert_eq!(run(Kind::Sum, &[1, 2, 2]), Value::Integer(5));
        assert_eq!(run(Kind::Count, &[1, 2, 2]), Value::Integer(3));
        assert_eq!(run(Kind::Max, &[1, 3, 2]), Value::Integer(3));
    }
}
