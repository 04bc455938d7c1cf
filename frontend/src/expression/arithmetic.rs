//! Arithmetic operators: `+ - * / %`, bits and powers. Every overflow is an error.
//!
//! *Source*: PostgreSQL 15, section 9.3, and `select_div_scale` of `numeric.c` for the digits of quotients.
//!
//! *Invariants*: no operation on NUMERIC loses a digit that PostgreSQL would keep: it is an error instead.
//!
//! *Not here*: functions such as `sqrt` (`function`, `numeric_function`).

use chrono::{Days, NaiveDate};
use rust_decimal::{Decimal, RoundingStrategy};

use crate::error::SqlError;
use crate::expression::numeric_function;
use crate::text::time::fit_date;
use crate::text::{fit_float, integer_fits, too_many_digits, unsigned_zero};
use crate::value::{DataType, Value};

/// Minimum number of significant digits of a quotient.
const QUOTIENT_DIGITS_MIN: i32 = 16;
/// Maximum number of digits behind the point of a NUMERIC.
pub(super) const SCALE_MAX: u32 = 28;

/// An operator of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
    Concatenate,
}

impl Operator {
    /// The operator in SQL.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Power => "^",
            Self::BitAnd => "&",
            Self::BitOr => "|",
            Self::BitXor => "#",
            Self::ShiftLeft => "<<",
            Self::ShiftRight => ">>",
            Self::Concatenate => "||",
        }
    }
}

/// The result of an operator on two values that are not NULL, in the type that the planner chose.
///
/// # Errors
/// SQLSTATE 22012 for a division by zero, 22003 for an overflow.
pub(crate) fn apply(
    operator: Operator,
    data_type: DataType,
    left: Value,
    right: Value,
) -> Result<Value, SqlError> {
    match (left, right) {
        (Value::Integer(a), Value::Integer(b)) => integers(operator, data_type, a, b),
        (Value::Float(a), Value::Float(b)) => floats(operator, data_type, a, b),
        (Value::Numeric(a), Value::Numeric(b)) => numerics(operator, a, b).map(Value::Numeric),
        (Value::Text(a), Value::Text(b)) => Ok(Value::Text(a + &b)),
        (Value::Bytea(mut a), Value::Bytea(b)) => {
            a.extend_from_slice(&b);
            Ok(Value::Bytea(a))
        }
        (Value::Date(a), Value::Date(b)) => Ok(Value::Integer((a - b).num_days())),
        (Value::Date(date), Value::Integer(days)) => add_days(operator, date, days),
        (Value::Integer(days), Value::Date(date)) => add_days(operator, date, days),
        (left, right) => {
            let (left, right) = (left.kind(), right.kind());
            let message = format!("operator does not exist: {left} {} {right}", operator.symbol());
            Err(SqlError::new("42883", message))
        }
    }
}

fn out_of_range(data_type: DataType) -> SqlError {
    let name = data_type.base_name();
    SqlError::new("22003", format!("{name} out of range"))
}

pub(super) fn division_by_zero() -> SqlError {
    SqlError::new("22012", "division by zero")
}

fn integers(operator: Operator, data_type: DataType, a: i64, b: i64) -> Result<Value, SqlError> {
    if b == 0 && matches!(operator, Operator::Divide | Operator::Remainder) {
        return Err(division_by_zero());
    }
    // PostgreSQL takes a shift's distance modulo the width.
    let width = match data_type {
        DataType::SmallInt | DataType::Integer => 32,
        _ => 64,
    };
    let distance = u32::try_from(b.rem_euclid(width)).expect("a remainder of 64 is small");
    let result = match operator {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::Divide => a.checked_div(b),
        Operator::Remainder => Some(a.wrapping_rem(b)),
        Operator::BitAnd => Some(a & b),
        Operator::BitOr => Some(a | b),
        Operator::BitXor => Some(a ^ b),
        Operator::ShiftLeft if width == 32 => Some(i64::from(low_half(a) << distance)),
        Operator::ShiftLeft => Some(a << distance),
        Operator::ShiftRight => Some(a >> distance),
        Operator::Power | Operator::Concatenate => None,
    };
    match result {
        Some(result) if integer_fits(result, data_type) => Ok(Value::Integer(result)),
        _ => Err(out_of_range(data_type)),
    }
}

fn low_half(number: i64) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "shifts of INTEGER drop the upper bits")]
    let low = number as i32;
    low
}

fn floats(operator: Operator, data_type: DataType, a: f64, b: f64) -> Result<Value, SqlError> {
    let result = match operator {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide if b == 0.0 => return Err(division_by_zero()),
        Operator::Divide => a / b,
        Operator::Remainder if b == 0.0 => return Err(division_by_zero()),
        Operator::Remainder => a % b,
        Operator::Power => return power(a, b),
        _ => return Err(SqlError::new("42883", "this operator has no floating-point operands")),
    };
    let result = fit_float(result, data_type);
    if result.is_infinite() && !a.is_infinite() && !b.is_infinite() {
        return Err(SqlError::new("22003", "value out of range: overflow"));
    }
    Ok(Value::Float(result))
}

/// A power of DOUBLE PRECISION.
///
/// # Errors
/// SQLSTATE 2201F if the power is undefined, 22003 for an overflow.
pub(crate) fn power(base: f64, exponent: f64) -> Result<Value, SqlError> {
    if base == 0.0 && exponent < 0.0 {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.fract() != 0.0 {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(SqlError::new("2201F", message));
    }
    let result = base.powf(exponent);
    if result.is_infinite() && base.is_finite() && exponent.is_finite() {
        return Err(SqlError::new("22003", "value out of range: overflow"));
    }
    Ok(Value::Float(result))
}

/// An operator on NUMERIC. Sums, differences and products are exact; quotients have at least as many digits as PostgreSQL's.
/// A result that would lose digits is an error.
///
/// # Errors
/// SQLSTATE 22012 and 22003.
pub(crate) fn numerics(operator: Operator, a: Decimal, b: Decimal) -> Result<Decimal, SqlError> {
    if b.is_zero() && matches!(operator, Operator::Divide | Operator::Remainder) {
        return Err(division_by_zero());
    }
    let scale = a.scale().max(b.scale());
    // Zeros at the end are no digits to lose.
    let (x, y) = (a.normalize(), b.normalize());
    let sum_scale = x.scale().max(y.scale());
    let (result, exact_scale, scale) = match operator {
        Operator::Add => (x.checked_add(y), sum_scale, scale),
        Operator::Subtract => (x.checked_sub(y), sum_scale, scale),
        Operator::Multiply => (x.checked_mul(y), x.scale() + y.scale(), a.scale() + b.scale()),
        Operator::Remainder => (x.checked_rem(y), 0, scale),
        Operator::Divide => return quotient(a, b),
        Operator::Power => return numeric_function::power(a, b),
        _ => (None, 0, 0),
    };
    let result = result.ok_or_else(too_many_digits)?;
    // A zero has no digits to lose, unless it is a product that is too small.
    let is_zero =
        result.is_zero() && (operator != Operator::Multiply || x.is_zero() || y.is_zero());
    if result.scale() < exact_scale && !is_zero {
        return Err(too_many_digits());
    }
    let mut shown = result;
    shown.rescale(scale.min(SCALE_MAX));
    Ok(unsigned_zero(shown))
}

fn quotient(a: Decimal, b: Decimal) -> Result<Decimal, SqlError> {
    let quotient = a.checked_div(b).ok_or_else(too_many_digits)?;
    let wanted = quotient_scale(a, b);
    let result = with_scale(quotient, wanted.min(SCALE_MAX));
    // A quotient with too few digits must be exact.
    if result.scale() < wanted && quotient.checked_mul(b) != Some(a) {
        return Err(too_many_digits());
    }
    Ok(unsigned_zero(result))
}

fn with_scale(number: Decimal, scale: u32) -> Decimal {
    let mut scaled = number.round_dp_with_strategy(scale, RoundingStrategy::MidpointAwayFromZero);
    scaled.rescale(scale);
    scaled
}

/// PostgreSQL's choice of a quotient's scale (`select_div_scale`, in digits to the base 10,000).
fn quotient_scale(a: Decimal, b: Decimal) -> u32 {
    let (weight_a, first_a) = leading_digit(a);
    let (weight_b, first_b) = leading_digit(b);
    let weight = weight_a - weight_b - i32::from(first_a <= first_b);
    let digits = u32::try_from(QUOTIENT_DIGITS_MIN - 4 * weight).unwrap_or(0);
    digits.max(a.scale()).max(b.scale())
}

/// The weight of the first digit to the base 10,000, and the digit.
pub(super) fn leading_digit(number: Decimal) -> (i32, u32) {
    let mantissa = number.mantissa().unsigned_abs();
    if mantissa == 0 {
        return (0, 0);
    }
    let digits = mantissa.to_string();
    let scale = i32::try_from(number.scale()).expect("scales are at most 28");
    let integral = i32::try_from(digits.len()).expect("29 digits at most") - scale;
    let weight = (integral - 1).div_euclid(4);
    let taken = usize::try_from(integral - 4 * weight).expect("between 1 and 4");
    let first = format!("{digits:0<4}");
    (weight, first[..taken.min(first.len())].parse().expect("at most four digits"))
}

fn add_days(operator: Operator, date: NaiveDate, days: i64) -> Result<Value, SqlError> {
    let forward = (operator == Operator::Add) == (days >= 0);
    let distance = Days::new(days.unsigned_abs());
    let result =
        if forward { date.checked_add_days(distance) } else { date.checked_sub_days(distance) };
    fit_date(result.ok_or_else(|| SqlError::new("22008", "date out of range"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotient(a: &str, b: &str) -> String {
        numerics(Operator::Divide, a.parse().unwrap(), b.parse().unwrap()).unwrap().to_string()
    }

    #[test]
    fn quotients_have_the_scale_of_postgresql() {
        assert_eq!(quotient("1", "3"), "0.33333333333333333333");
        assert_eq!(quotient("10.0", "4"), "2.5000000000000000");
        assert_eq!(quotient("100", "7"), "14.2857142857142857");
        assert_eq!(quotient("7", "2"), "3.5000000000000000");
    }

    #[test]
    fn overflows_are_errors() {
        let code =
            |operator, data_type, a, b| integers(operator, data_type, a, b).unwrap_err().code;
        assert_eq!(code(Operator::Add, DataType::BigInt, i64::MAX, 1), "22003");
        assert_eq!(code(Operator::Multiply, DataType::Integer, 65536, 65536), "22003");
        assert_eq!(code(Operator::Divide, DataType::BigInt, i64::MIN, -1), "22003");
        assert_eq!(code(Operator::Remainder, DataType::Integer, 1, 0), "22012");
        assert!(integers(Operator::Remainder, DataType::BigInt, i64::MIN, -1).is_ok());
    }
}
