//! Values as text, exactly as PostgreSQL prints and reads them.
//!
//! *Source*: PostgreSQL 15 documentation, chapter 8 (data types). bytea_output is hex.
//!
//! *Not here*: dates and times (`text/time`), arrays (`array`).

pub(crate) mod time;

use std::fmt::Write;
use std::str::FromStr;

use rust_decimal::Decimal;
use uuid::Uuid;

use crate::array;
use crate::error::SqlError;
use crate::value::{DataType, Value};

/// Exponents from which PostgreSQL prints DOUBLE PRECISION in scientific notation.
const DOUBLE_EXPONENT_MAX: i32 = 15;
/// The same for REAL.
const REAL_EXPONENT_MAX: i32 = 6;

impl Value {
    /// The value as PostgreSQL prints it. NULL gives the empty text: callers check for NULL first.
    #[must_use]
    pub fn to_text(&self, data_type: DataType) -> String {
        match self {
            Self::Null => String::new(),
            Self::Boolean(true) => "t".to_owned(),
            Self::Boolean(false) => "f".to_owned(),
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => float_text(*number, data_type),
            Self::Numeric(number) => number.to_string(),
            Self::Text(text) => match data_type {
                DataType::Char(Some(length)) => padded(text, length),
                _ => text.clone(),
            },
            Self::Bytea(bytes) => hex_text(bytes),
            Self::Date(date) => time::date_text(*date),
            Self::Timestamp(timestamp) => time::timestamp_text(timestamp, data_type),
            Self::Uuid(uuid) => uuid.hyphenated().to_string(),
        }
    }

    /// Parses a text as a value of a type.
    ///
    /// # Errors
    /// SQLSTATE 22P02 or 22007 for a malformed text, 22003 for a number out of range, 22001 for a text that is too long.
    pub fn from_text(text: &str, data_type: DataType) -> Result<Self, SqlError> {
        let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
        match data_type {
            DataType::Boolean => {
                boolean_from_text(trimmed).ok_or_else(|| malformed(text, data_type))
            }
            DataType::SmallInt | DataType::Integer | DataType::BigInt => {
                integer_from_text(trimmed, text, data_type)
            }
            DataType::Real | DataType::Double => float_from_text(trimmed, text, data_type),
            DataType::Numeric(bounds) => numeric_typed(trimmed, text, bounds).map(Self::Numeric),
            DataType::Text | DataType::Padded => Ok(Self::Text(text.to_owned())),
            DataType::Varchar(_) | DataType::Char(_) => fit_text(text.to_owned(), data_type, false),
            DataType::Bytea => bytea_from_text(text),
            DataType::Date | DataType::Timestamp | DataType::TimestampTz => {
                time::from_text(text, data_type)
            }
            DataType::Uuid => {
                Uuid::parse_str(trimmed).map(Self::Uuid).map_err(|_| malformed(text, data_type))
            }
            DataType::Array(element) => array::formed(text, element).map(Self::Text),
        }
    }
}

fn malformed(text: &str, data_type: DataType) -> SqlError {
    let name = data_type.base_name();
    SqlError::new("22P02", format!("invalid input syntax for type {name}: \"{text}\""))
}

/// They are copied many at a time.
const BLANKS: &str = "                                                                ";

/// A text, padded with blanks to `length` characters.
pub(crate) fn padded(text: &str, length: u32) -> String {
    let missing = (length as usize).saturating_sub(text.chars().count());
    let mut padded = String::with_capacity(text.len() + missing);
    padded.push_str(text);
    for left in (1..=missing).rev().step_by(BLANKS.len()) {
        padded.push_str(&BLANKS[..left.min(BLANKS.len())]);
    }
    padded
}

fn float_text(number: f64, data_type: DataType) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let (scientific, exponent_max) = if data_type == DataType::Real {
        #[expect(clippy::cast_possible_truncation, reason = "a REAL's value is a rounded f32")]
        let narrow = number as f32;
        (format!("{narrow:e}"), REAL_EXPONENT_MAX)
    } else {
        (format!("{number:e}"), DOUBLE_EXPONENT_MAX)
    };
    let (mantissa, exponent) =
        scientific.split_once('e').expect("the format of {:e} has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent of {:e} is a small integer");
    let (sign, digits) = mantissa.strip_prefix('-').map_or(("", mantissa), |digits| ("-", digits));
    if !(-4..exponent_max).contains(&exponent) {
        let side = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{digits}e{side}{:02}", exponent.abs());
    }
    let digits: String = digits.chars().filter(|c| *c != '.').collect();
    format!("{sign}{}", positional(&digits, exponent))
}

/// Digits whose point is moved by `exponent` places from behind the first one.
fn positional(digits: &str, exponent: i32) -> String {
    let Ok(before) = usize::try_from(exponent + 1) else {
        return format!("0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1));
    };
    if before == 0 {
        format!("0.{digits}")
    } else if digits.len() <= before {
        format!("{digits}{}", "0".repeat(before - digits.len()))
    } else {
        format!("{}.{}", &digits[..before], &digits[before..])
    }
}

fn hex_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn boolean_from_text(text: &str) -> Option<Value> {
    let text = text.to_ascii_lowercase();
    let starts = |word: &str, least: usize| text.len() >= least && word.starts_with(&text);
    if starts("true", 1) || starts("yes", 1) || text == "on" || text == "1" {
        Some(Value::Boolean(true))
    } else if starts("false", 1) || starts("no", 1) || starts("off", 2) || text == "0" {
        Some(Value::Boolean(false))
    } else {
        None
    }
}

fn integer_from_text(trimmed: &str, text: &str, data_type: DataType) -> Result<Value, SqlError> {
    let digits = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed(text, data_type));
    }
    let out_of_range = || {
        let name = data_type.base_name();
        SqlError::new("22003", format!("value \"{text}\" is out of range for type {name}"))
    };
    let number: i64 = trimmed.parse().map_err(|_| out_of_range())?;
    if integer_fits(number, data_type) { Ok(Value::Integer(number)) } else { Err(out_of_range()) }
}

/// Whether a number is in the range of an integer type.
pub(crate) fn integer_fits(number: i64, data_type: DataType) -> bool {
    match data_type {
        DataType::SmallInt => i16::try_from(number).is_ok(),
        DataType::Integer => i32::try_from(number).is_ok(),
        _ => true,
    }
}

fn float_from_text(trimmed: &str, text: &str, data_type: DataType) -> Result<Value, SqlError> {
    let number = match trimmed.to_ascii_lowercase().as_str() {
        "nan" => f64::NAN,
        "infinity" | "inf" | "+infinity" | "+inf" => f64::INFINITY,
        "-infinity" | "-inf" => f64::NEG_INFINITY,
        lower => {
            if lower.is_empty()
                || !lower.bytes().all(|b| b.is_ascii_digit() || b"+-.e".contains(&b))
            {
                return Err(malformed(text, data_type));
            }
            let number: f64 = lower.parse().map_err(|_| malformed(text, data_type))?;
            if fit_float(number, data_type).is_infinite() {
                let name = data_type.base_name();
                let message = format!("\"{text}\" is out of range for type {name}");
                return Err(SqlError::new("22003", message));
            }
            number
        }
    };
    Ok(Value::Float(fit_float(number, data_type)))
}

/// A number rounded to the precision of REAL or DOUBLE PRECISION.
pub(crate) fn fit_float(number: f64, data_type: DataType) -> f64 {
    if data_type == DataType::Real {
        #[expect(clippy::cast_possible_truncation, reason = "this is where REAL is rounded")]
        let narrow = number as f32;
        f64::from(narrow)
    } else {
        number
    }
}

/// Whether a text is a decimal number, with or without an exponent.
fn is_decimal(text: &str) -> bool {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let unsigned =
        |part: &str| -> String { part.strip_prefix(['+', '-']).unwrap_or(part).to_owned() };
    let (mantissa, exponent) = (unsigned(mantissa), unsigned(exponent));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((&mantissa, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let some = !(exponent.is_empty() || whole.is_empty() && fraction.is_empty());
    some && digits(whole) && digits(fraction) && digits(&exponent)
}

/// Parses a decimal number, with or without an exponent; None also for a number with more digits than a NUMERIC, because no
/// digit may be lost.
pub fn numeric_from_text(text: &str) -> Option<Decimal> {
    if !is_decimal(text) {
        return None;
    }
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let mut number = Decimal::from_str_exact(mantissa).ok()?;
    let scale = i64::from(number.scale()) - exponent.parse::<i64>().ok()?;
    // A negative scale means zeros before the point.
    number.set_scale(u32::try_from(scale.max(0)).ok()?).ok()?;
    if scale < 0 {
        let power = 10_i128.checked_pow(u32::try_from(-scale).ok()?)?;
        number = number.checked_mul(Decimal::try_from_i128_with_scale(power, 0).ok()?)?;
    }
    Some(unsigned_zero(number))
}

/// A NUMERIC's zero has no sign.
pub fn unsigned_zero(mut number: Decimal) -> Decimal {
    if number.is_zero() {
        number.set_sign_positive(true);
    }
    number
}

/// The error for a number that would lose digits.
pub fn too_many_digits() -> SqlError {
    SqlError::new("22003", "the number has more digits than a NUMERIC has, which is 28")
        .with_hint("round the operands, or use double precision")
}

fn numeric_typed(trimmed: &str, text: &str, bounds: Option<(u8, u8)>) -> Result<Decimal, SqlError> {
    if !is_decimal(trimmed) {
        return Err(malformed(text, DataType::Numeric(None)));
    }
    // NUMERIC(p, s) rounds in any case.
    let rounded = || bounds.and_then(|_| Decimal::from_str(trimmed).ok());
    let number = numeric_from_text(trimmed).or_else(rounded).ok_or_else(too_many_digits)?;
    fit_numeric(number, bounds)
}

/// A number rounded to the scale of NUMERIC(p, s).
///
/// # Errors
/// SQLSTATE 22003 if it has more digits than the precision allows.
pub(crate) fn fit_numeric(number: Decimal, bounds: Option<(u8, u8)>) -> Result<Decimal, SqlError> {
    let Some((precision, scale)) = bounds else { return Ok(unsigned_zero(number)) };
    let mut number = number.round_dp_with_strategy(
        u32::from(scale),
        rust_decimal::RoundingStrategy::MidpointAwayFromZero,
    );
    let integral_digits = precision - scale;
    let limit = Decimal::from_i128_with_scale(10_i128.pow(u32::from(integral_digits)), 0);
    let scaled = number.abs() < limit && {
        number.rescale(u32::from(scale));
        number.scale() == u32::from(scale)
    };
    if scaled {
        return Ok(unsigned_zero(number));
    }
    let mut error = SqlError::new("22003", "numeric field overflow");
    error.detail = Some(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less \
         than 10^{integral_digits}."
    ));
    Err(error)
}

/// A text that fits VARCHAR(n) or CHAR(n). An explicit cast cuts a longer text.
///
/// # Errors
/// SQLSTATE 22001 if the text is longer, blanks at its end apart, and the cast is not explicit.
pub(crate) fn fit_text(
    mut text: String,
    data_type: DataType,
    explicit: bool,
) -> Result<Value, SqlError> {
    let length = match data_type {
        DataType::Varchar(Some(length)) | DataType::Char(Some(length)) => length as usize,
        DataType::Char(None) => usize::MAX,
        _ => return Ok(Value::Text(text)),
    };
    if let Some((end, _)) = text.char_indices().nth(length) {
        if !explicit && text[end..].chars().any(|c| c != ' ') {
            let name = data_type.name();
            return Err(SqlError::new("22001", format!("value too long for type {name}")));
        }
        text.truncate(end);
    }
    if matches!(data_type, DataType::Char(_)) {
        text.truncate(text.trim_end_matches(' ').len());
    }
    Ok(Value::Text(text))
}

fn bytea_from_text(text: &str) -> Result<Value, SqlError> {
    let Some(hex) = text.strip_prefix("\\x") else { return bytea_from_escapes(text) };
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    if digits.len() % 2 == 1 {
        return Err(SqlError::new("22023", "invalid hexadecimal data: odd number of digits"));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = digits.chunks_exact(2).map(|pair| {
        let (high, low) = (digit(pair[0])?, digit(pair[1])?);
        u8::try_from(high * 16 + low).ok()
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.map(Value::Bytea).ok_or_else(|| SqlError::new("22023", "invalid hexadecimal digit"))
}

/// Parses the older format of bytea: `\\` and `\ooo`.
fn bytea_from_escapes(text: &str) -> Result<Value, SqlError> {
    let malformed = || malformed(text, DataType::Bytea);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            bytes.push(first);
        } else if rest.first() == Some(&b'\\') {
            bytes.push(b'\\');
            rest = &rest[1..];
        } else {
            let octal = rest.get(..3).ok_or_else(malformed)?;
            let octal = std::str::from_utf8(octal).map_err(|_| malformed())?;
            bytes.push(u8::from_str_radix(octal, 8).map_err(|_| malformed())?);
            rest = &rest[3..];
        }
    }
    Ok(Value::Bytea(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(number: f64) -> String {
        Value::Float(number).to_text(DataType::Double)
    }

    #[test]
    fn floats_print_as_postgresql_prints_them() {
        assert_eq!(float(0.1), "0.1");
        assert_eq!(float(1e15), "1e+15");
        assert_eq!(float(123_456_789_012_345.0), "123456789012345");
        assert_eq!(float(1e-5), "1e-05");
        assert_eq!(float(0.0001), "0.0001");
        assert_eq!(float(-1.5), "-1.5");
        assert_eq!(float(f64::NAN), "NaN");
        assert_eq!(Value::Float(f64::from(1.1_f32)).to_text(DataType::Real), "1.1");
        assert_eq!(Value::Float(1_000_000.0).to_text(DataType::Real), "1e+06");
    }

    #[test]
    fn every_type_reads_what_it_prints() {
        let texts = [
            (DataType::Boolean, "t"),
            (DataType::BigInt, "-9223372036854775808"),
            (DataType::Double, "3.25"),
            (DataType::Numeric(None), "10.50"),
            (DataType::Text, " a b "),
            (DataType::Bytea, "\\x00ff10"),
            (DataType::Date, "2024-02-29"),
            (DataType::Timestamp, "2024-01-02 03:04:05.678"),
            (DataType::Timestamp, "2024-01-02 03:04:00"),
            (DataType::TimestampTz, "2024-01-02 03:04:05.678+00"),
            (DataType::TimestampTz, "0044-03-15 12:00:00+00 BC"),
            (DataType::Uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ];
        for (data_type, text) in texts {
            let value = Value::from_text(text, data_type).unwrap();
            assert_eq!(value.to_text(data_type), text);
        }
    }

    #[test]
    fn malformed_texts_have_their_sqlstate() {
        let code = |text: &str, data_type| Value::from_text(text, data_type).unwrap_err().code;
        assert_eq!(code("x", DataType::Integer), "22P02");
        assert_eq!(code("40000", DataType::SmallInt), "22003");
        assert_eq!(code("1e400", DataType::Double), "22003");
        assert_eq!(code("abcd", DataType::Varchar(Some(3))), "22001");
        assert_eq!(code("2024-02-30", DataType::Date), "22008");
        assert_eq!(code("1000", DataType::Numeric(Some((5, 2)))), "22003");
        assert_eq!(code("\\x0", DataType::Bytea), "22023");
        assert_eq!(code("", DataType::Boolean), "22P02");
    }

    #[test]
    fn numeric_is_rounded_to_its_scale() {
        let value = Value::from_text("1.005", DataType::Numeric(Some((5, 2)))).unwrap();
        assert_eq!(value.to_text(DataType::Numeric(None)), "1.01");
        let value = Value::from_text("1", DataType::Numeric(Some((5, 2)))).unwrap();
        assert_eq!(value.to_text(DataType::Numeric(None)), "1.00");
    }

    #[test]
    fn char_is_padded_when_printed_only() {
        let value = Value::from_text("ab  ", DataType::Char(Some(4))).unwrap();
        assert_eq!(value, Value::Text("ab".to_owned()));
        assert_eq!(value.to_text(DataType::Char(Some(4))), "ab  ");
    }
}
