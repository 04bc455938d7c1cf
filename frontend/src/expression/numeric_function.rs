//! `sqrt`, `exp`, `ln`, `log` and `power` of NUMERIC.
//!
//! The digits are those of `dashu_float`, which rounds correctly. Their number follows PostgreSQL: at least 16 significant
//! digits, and no more than a NUMERIC has.
//!
//! *Source*: PostgreSQL 15, `numeric.c`: `numeric_sqrt`, `numeric_exp`, `estimate_ln_dweight`, `log_var`, `power_var`.
//!
//! *Invariants*: a result that would have fewer than 16 significant digits is an error, unless it is exact.

use dashu_float::DBig;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;

use crate::error::SqlError;
use crate::expression::arithmetic::{SCALE_MAX, division_by_zero, leading_digit};
use crate::text::{too_many_digits, unsigned_zero};

/// Working precision: more digits than a NUMERIC has, so the last digit is rounded from the true value.
const DIGITS: usize = 64;
/// Minimum number of significant digits of a result.
const SIGNIFICANT_MIN: i32 = 16;
/// Digits of a NUMERIC.
const DIGITS_MAX: u32 = 28;
/// Decimal weights outside of which a result has no digit in a NUMERIC, or too many.
const WEIGHTS: std::ops::Range<f64> = -60.0..29.0;

/// The square root.
///
/// # Errors
/// SQLSTATE 2201F for a negative number.
pub(super) fn square_root(number: Decimal) -> Result<Decimal, SqlError> {
    if number.is_sign_negative() && !number.is_zero() {
        return Err(SqlError::new("2201F", "cannot take square root of a negative number"));
    }
    let weight = (leading_digit(number).0 + 1) * 2 - 1;
    shown(&float(number).sqrt(), (SIGNIFICANT_MIN - weight).max(scale(number)))
}

/// The power of e.
///
/// # Errors
/// SQLSTATE 22003 for a result with too many digits.
pub(super) fn exponential(number: Decimal) -> Result<Decimal, SqlError> {
    let digits = digits_before(approximate(number) * std::f64::consts::LOG10_E)?;
    shown(&float(number).exp(), (SIGNIFICANT_MIN - digits).max(scale(number)))
}

/// The natural logarithm.
///
/// # Errors
/// SQLSTATE 2201E for a number that is not positive.
pub(super) fn natural_logarithm(number: Decimal) -> Result<Decimal, SqlError> {
    check_logarithm(number)?;
    shown(&float(number).ln(), (SIGNIFICANT_MIN - logarithm_weight(number)).max(scale(number)))
}

/// The logarithm to a base.
///
/// # Errors
/// SQLSTATE 2201E for numbers that are not positive, 22012 for the base 1.
pub(super) fn logarithm(base: Decimal, number: Decimal) -> Result<Decimal, SqlError> {
    check_logarithm(base)?;
    check_logarithm(number)?;
    if base == Decimal::ONE {
        return Err(division_by_zero());
    }
    let weight = logarithm_weight(number) - logarithm_weight(base);
    let scale = (SIGNIFICANT_MIN - weight).max(scale(base)).max(scale(number));
    shown(&(float(number).ln() / float(base).ln()), scale)
}

/// A power.
///
/// # Errors
/// SQLSTATE 2201F if the power is undefined, 22003 for a result with too many digits.
pub(super) fn power(base: Decimal, exponent: Decimal) -> Result<Decimal, SqlError> {
    if base.is_zero() && exponent.is_sign_negative() && !exponent.is_zero() {
        return Err(SqlError::new("2201F", "zero raised to a negative power is undefined"));
    }
    let integer = exponent.fract().is_zero().then(|| exponent.to_i128()).flatten();
    if base.is_sign_negative() && !base.is_zero() && integer.is_none() {
        let message = "a negative number raised to a non-integer power yields a complex result";
        return Err(SqlError::new("2201F", message));
    }
    let magnitude = float(base.abs());
    // For a base close to 1, DOUBLE PRECISION lacks the significant digits.
    let weight = match base.is_zero() {
        true => 0.0,
        false => (magnitude.ln() * float(exponent)).to_f64().value() * std::f64::consts::LOG10_E,
    };
    let digits = digits_before(weight)?;
    let result = match integer {
        Some(integer) if integer % 2 != 0 && base.is_sign_negative() => {
            -magnitude.powi(integer.into())
        }
        Some(integer) => magnitude.powi(integer.into()),
        None if base.is_zero() => DBig::ZERO,
        None => magnitude.powf(&float(exponent)),
    };
    let scale = if base.is_zero() || integer.is_some_and(|integer| i32::try_from(integer).is_ok()) {
        SIGNIFICANT_MIN.max(scale(base))
    } else {
        (SIGNIFICANT_MIN - digits).max(scale(base)).max(scale(exponent))
    };
    shown(&result, scale)
}

fn check_logarithm(number: Decimal) -> Result<(), SqlError> {
    let message = if number.is_zero() {
        "cannot take logarithm of zero"
    } else if number.is_sign_negative() {
        "cannot take logarithm of a negative number"
    } else {
        return Ok(());
    };
    Err(SqlError::new("2201E", message))
}

fn float(number: Decimal) -> DBig {
    let exact: DBig = number.to_string().parse().expect("a NUMERIC is written in digits");
    exact.with_precision(DIGITS).value()
}

fn approximate(number: Decimal) -> f64 {
    number.to_f64().expect("every NUMERIC is within the range of DOUBLE PRECISION")
}

fn scale(number: Decimal) -> i32 {
    i32::try_from(number.scale()).expect("scales are at most 28")
}

/// Digits before the point of a result with this decimal weight, as PostgreSQL estimates them.
fn digits_before(weight: f64) -> Result<i32, SqlError> {
    if !WEIGHTS.contains(&weight) {
        return Err(too_many_digits());
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is small, and rounded towards zero")]
    let digits = weight as i32;
    Ok(digits)
}

/// The decimal weight of a number's natural logarithm, as PostgreSQL estimates it.
fn logarithm_weight(number: Decimal) -> i32 {
    let distance = number - Decimal::ONE;
    #[expect(clippy::cast_possible_truncation, reason = "it is small, and rounded towards zero")]
    let weight = |number: f64| number.log10() as i32;
    if distance.is_zero() {
        0
    } else if distance.abs() <= Decimal::new(1, 1) {
        // Near 1 the logarithm is close to the distance from 1.
        let (place, first) = leading_digit(distance.abs());
        4 * place + weight(f64::from(first))
    } else {
        weight(approximate(number).ln().abs())
    }
}

/// The result with so many digits behind the point, or as many as a NUMERIC has.
fn shown(result: &DBig, scale: i32) -> Result<Decimal, SqlError> {
    let whole = format!("{result:.0}");
    let whole_digits = whole.trim_start_matches(['-', '0']).len();
    let left = u32::try_from(whole_digits).ok().and_then(|digits| DIGITS_MAX.checked_sub(digits));
    let wanted = u32::try_from(scale).unwrap_or(0);
    let places = wanted.min(left.ok_or_else(too_many_digits)?) as usize;
    let text = format!("{result:.places$}");
    if wanted > SCALE_MAX && text.parse::<DBig>().as_ref() != Ok(result) {
        return Err(too_many_digits());
    }
    Decimal::from_str_exact(&text).map(unsigned_zero).map_err(|_| too_many_digits())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn results_have_the_digits_of_postgresql() {
        assert_eq!(square_root(of("2")).unwrap().to_string(), "1.414213562373095");
        assert_eq!(exponential(of("1.0")).unwrap().to_string(), "2.7182818284590452");
        assert_eq!(natural_logarithm(of("2.0")).unwrap().to_string(), "0.6931471805599453");
        assert_eq!(logarithm(of("10"), of("1000")).unwrap().to_string(), "3.0000000000000000");
        assert_eq!(power(of("2.0"), of("0.5")).unwrap().to_string(), "1.4142135623730950");
        assert_eq!(power(of("-2"), of("3")).unwrap().to_string(), "-8.0000000000000000");
    }

    #[test]
    fn results_with_too_many_digits_are_errors() {
        let code = |result: Result<Decimal, SqlError>| result.unwrap_err().code;
        assert_eq!(code(exponential(of("70"))), "22003");
        assert_eq!(code(exponential(of("-50"))), "22003");
        assert_eq!(code(exponential(of("-7e27"))), "22003");
        assert_eq!(code(power(of("10"), of("29"))), "22003");
        assert_eq!(code(power(of("7.5"), of("-7e20"))), "22003");
        assert_eq!(
            code(power(of("1.00000000000000001"), of("9999999999999999999999999999"))),
            "22003"
        );
        assert_eq!(
            code(power(of("0.99999999999999999"), of("999999999999999999999999999"))),
            "22003"
        );
        assert_eq!(code(power(of("-8"), of("0.5"))), "2201F");
        // Fewer places than PostgreSQL's 16, but no digit is lost.
        assert_eq!(power(of("2"), of("80")).unwrap().to_string(), "1208925819614629174706176.000");
    }
}
