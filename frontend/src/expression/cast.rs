//! Casts between types.
//!
//! *Source*: PostgreSQL 15, chapter 10.
//!
//! *Not here*: which casts a statement needs (`plan/types`).

use chrono::NaiveTime;
use rust_decimal::prelude::ToPrimitive;
use rust_decimal::{Decimal, RoundingStrategy};

use crate::array;
use crate::error::SqlError;
use crate::text::{fit_float, fit_numeric, fit_text, integer_fits, numeric_from_text};
use crate::value::{DataType, Value};

/// Whether a cast exists.
pub(crate) fn exists(from: DataType, to: DataType, explicit: bool) -> bool {
    let same = from.base_name() == to.base_name();
    if same || (from.is_number() && to.is_number()) || (from.is_text() && to.is_text()) {
        return true;
    }
    match (from, to) {
        (DataType::Array(from), DataType::Array(to)) => {
            exists(from.data_type(), to.data_type(), explicit)
        }
        (from, to) if from.is_time() => to.is_time() || to.is_text(),
        (_, to) if to.is_text() => true,
        (from, _) if from.is_text() => explicit,
        (DataType::Boolean, to) => explicit && to.is_integer(),
        (from, DataType::Boolean) => explicit && from.is_integer(),
        _ => false,
    }
}

/// Casts a value to another type.
///
/// # Errors
/// SQLSTATE 22003, 22001, 22P02 and similar ones, if the type has no such value.
pub(crate) fn cast(
    value: Value,
    from: DataType,
    to: DataType,
    explicit: bool,
) -> Result<Value, SqlError> {
    let value = match (value, to) {
        (Value::Null, _) => return Ok(Value::Null),
        (Value::Text(text), DataType::Array(to)) if let DataType::Array(from) = from => {
            let one = |value| cast(value, from.data_type(), to.data_type(), explicit);
            return array::converted(&text, from, to, one).map(Value::Text);
        }
        (Value::Text(mut text), to) if to.is_text() => {
            if from == DataType::Padded {
                text.truncate(text.trim_end_matches(' ').len());
            }
            return fit_text(text, to, explicit);
        }
        (Value::Text(text), to) => return Value::from_text(&text, to),
        (value, to) if to.is_text() => return fit_text(long_text(&value, from), to, explicit),
        (value, _) => value,
    };
    match to {
        DataType::SmallInt | DataType::Integer | DataType::BigInt => to_integer(value, to),
        DataType::Real | DataType::Double => to_float(&value, to),
        DataType::Numeric(bounds) => {
            Ok(Value::Numeric(fit_numeric(to_numeric(&value, from)?, bounds)?))
        }
        DataType::Boolean => Ok(match value {
            Value::Integer(number) => Value::Boolean(number != 0),
            other => other,
        }),
        DataType::Date => Ok(match value {
            Value::Timestamp(timestamp) => Value::Date(timestamp.date()),
            other => other,
        }),
        DataType::Timestamp | DataType::TimestampTz => Ok(match value {
            Value::Date(date) => Value::Timestamp(date.and_time(NaiveTime::MIN)),
            other => other,
        }),
        _ => Ok(value),
    }
}

/// The text that a cast gives: `true`, where a result prints `t`.
fn long_text(value: &Value, from: DataType) -> String {
    match value {
        Value::Boolean(true) => "true".to_owned(),
        Value::Boolean(false) => "false".to_owned(),
        _ => value.to_text(from),
    }
}

fn out_of_range(to: DataType) -> SqlError {
    SqlError::new("22003", format!("{} out of range", to.base_name()))
}

fn to_integer(value: Value, to: DataType) -> Result<Value, SqlError> {
    let number = match value {
        Value::Integer(number) => Some(number),
        Value::Boolean(boolean) => Some(i64::from(boolean)),
        Value::Float(number) => number.round_ties_even().to_i64(),
        Value::Numeric(number) => {
            number.round_dp_with_strategy(0, RoundingStrategy::MidpointAwayFromZero).to_i64()
        }
        _ => None,
    };
    match number {
        Some(number) if integer_fits(number, to) => Ok(Value::Integer(number)),
        _ => Err(out_of_range(to)),
    }
}

fn to_float(value: &Value, to: DataType) -> Result<Value, SqlError> {
    let number = match value {
        #[expect(clippy::cast_precision_loss, reason = "the cast of SQL rounds as well")]
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        Value::Numeric(number) => number.to_string().parse().unwrap_or(f64::NAN),
        _ => return Err(out_of_range(to)),
    };
    let narrow = fit_float(number, to);
    if narrow.is_infinite() && number.is_finite() {
        Err(out_of_range(to))
    } else {
        Ok(Value::Float(narrow))
    }
}

fn to_numeric(value: &Value, from: DataType) -> Result<Decimal, SqlError> {
    let number = match value {
        Value::Integer(number) => Some(Decimal::from(*number)),
        Value::Float(number) => {
            // The digits that the type preserves: 6 of a REAL, 15 of a DOUBLE PRECISION.
            let places = if from == DataType::Real { 5 } else { 14 };
            let written = format!("{number:.places$e}");
            let (digits, exponent) = written.split_once('e').unwrap_or((&written, "0"));
            let digits = digits.trim_end_matches('0').trim_end_matches('.');
            numeric_from_text(&format!("{digits}e{exponent}"))
        }
        Value::Numeric(number) => Some(*number),
        _ => None,
    };
    number.ok_or_else(|| out_of_range(DataType::Numeric(None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_integers() {
        let integer = |value| cast(value, DataType::Double, DataType::Integer, true);
        assert_eq!(integer(Value::Float(2.5)).unwrap(), Value::Integer(2));
        assert_eq!(integer(Value::Numeric("2.5".parse().unwrap())).unwrap(), Value::Integer(3));
        assert_eq!(integer(Value::Float(3e9)).unwrap_err().code, "22003");
        assert_eq!(integer(Value::Float(f64::NAN)).unwrap_err().code, "22003");
    }

    #[test]
    fn an_explicit_cast_cuts_a_text() {
        let text = || Value::Text("abcdef".to_owned());
        let varchar = DataType::Varchar(Some(3));
        assert_eq!(cast(text(), DataType::Text, varchar, true).unwrap(), Value::Text("abc".into()));
        assert_eq!(cast(text(), DataType::Text, varchar, false).unwrap_err().code, "22001");
    }
}
