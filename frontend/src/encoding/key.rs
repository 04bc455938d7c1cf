//! Keys whose order as bytes is the order of their values.
//!
//! ```text
//! column   01 payload      a value
//!          02              NULL, which sorts after every value
//!
//! boolean                  00 | 01
//! integers                 8 bytes, big-endian, sign bit flipped
//! real, double             8 bytes, big-endian; positive: sign bit set; negative: all bits flipped;
//!                          NaN sorts last, -0 is 0
//! text, bytea              bytes with 00 written as 00 FF, then 00 00
//! date                     4 bytes: days as an integer, sign bit flipped
//! timestamp, timestamptz   8 bytes: microseconds since 1970 as an integer
//! uuid                     16 bytes
//! numeric                  80                                            zero
//!                          81, exponent, digit pairs + 1 ..., 00         positive
//!                          7F, the same with every bit flipped           negative
//! ```
//!
//! A number 0.d1d2d3... * 10^e without trailing zeros has the exponent byte 80 + e, so 1.0 and 1.00 have
//! one key.
//!
//! *Invariants*: no key of a column is a prefix of another key of that column, so keys of several columns compare column by
//! column.
//!
//! *Not here*: the prefixes of tables and indexes (`catalog`).

use chrono::Datelike;
use rust_decimal::Decimal;

use crate::error::SqlError;
use crate::value::{DataType, Value};

const VALUE: u8 = 1;
const NULL: u8 = 2;
/// Greater than the first byte of every key of a column.
pub(crate) const AFTER_ALL: u8 = 3;

const NEGATIVE: u8 = 0x7f;
const ZERO: u8 = 0x80;
const POSITIVE: u8 = 0x81;

/// Appends the key of one column.
pub(crate) fn push(key: &mut Vec<u8>, value: &Value) {
    if value.is_null() {
        key.push(NULL);
        return;
    }
    key.push(VALUE);
    match value {
        Value::Null => {}
        Value::Boolean(boolean) => key.push(u8::from(*boolean)),
        Value::Integer(number) => push_integer(key, *number),
        Value::Float(number) => push_float(key, *number),
        Value::Numeric(number) => push_numeric(key, *number),
        Value::Text(text) => push_bytes(key, text.as_bytes()),
        Value::Bytea(bytes) => push_bytes(key, bytes),
        Value::Date(date) => {
            let days = date.num_days_from_ce().cast_unsigned() ^ (1 << 31);
            key.extend_from_slice(&days.to_be_bytes());
        }
        Value::Timestamp(timestamp) => push_integer(key, timestamp.and_utc().timestamp_micros()),
        Value::Uuid(uuid) => key.extend_from_slice(uuid.as_bytes()),
    }
}

fn push_integer(key: &mut Vec<u8>, number: i64) {
    key.extend_from_slice(&(number.cast_unsigned() ^ (1 << 63)).to_be_bytes());
}

fn push_float(key: &mut Vec<u8>, number: f64) {
    let number = if number == 0.0 { 0.0 } else { number };
    let number = if number.is_nan() { f64::NAN.abs() } else { number };
    let bits = number.to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits | (1 << 63) };
    key.extend_from_slice(&ordered.to_be_bytes());
}

fn push_bytes(key: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        key.push(byte);
        if byte == 0 {
            key.push(0xff);
        }
    }
    key.extend_from_slice(&[0, 0]);
}

fn push_numeric(key: &mut Vec<u8>, number: Decimal) {
    if number.is_zero() {
        key.push(ZERO);
        return;
    }
    let number = number.normalize();
    let digits = number.mantissa().unsigned_abs().to_string();
    let digits = digits.trim_end_matches('0');
    let all_digits = number.mantissa().unsigned_abs().ilog10() + 1;
    let exponent = i16::try_from(all_digits).expect("a Decimal has at most 29 digits")
        - i16::try_from(number.scale()).expect("a Decimal's scale is at most 28");
    let flip = if number.is_sign_negative() { 0xff } else { 0 };
    key.push(if flip == 0 { POSITIVE } else { NEGATIVE });
    key.push(u8::try_from(0x80 + exponent).expect("exponents lie between -28 and 29") ^ flip);
    for pair in digits.as_bytes().chunks(2) {
        let low = pair.get(1).map_or(0, |digit| digit - b'0');
        key.push((10 * (pair[0] - b'0') + low + 1) ^ flip);
    }
    key.push(flip);
}

/// The length of the first column's key.
///
/// # Errors
/// SQLSTATE XX001 if the bytes are not such a key.
pub(crate) fn column_bytes(key: &[u8], data_type: DataType) -> Result<usize, SqlError> {
    let corrupted = || SqlError::new("XX001", "an index entry has a malformed key");
    let length = match key.first() {
        Some(&NULL) => return Ok(1),
        Some(&VALUE) => match data_type {
            DataType::Boolean => 2,
            DataType::Date => 5,
            DataType::Uuid => 17,
            DataType::SmallInt
            | DataType::Integer
            | DataType::BigInt
            | DataType::Real
            | DataType::Double
            | DataType::Timestamp
            | DataType::TimestampTz => 9,
            DataType::Numeric(_) => numeric_bytes(&key[1..]).ok_or_else(corrupted)? + 1,
            DataType::Text
            | DataType::Varchar(_)
            | DataType::Char(_)
            | DataType::Padded
            | DataType::Bytea
            | DataType::Array(_) => escaped_bytes(&key[1..]).ok_or_else(corrupted)? + 1,
        },
        _ => return Err(corrupted()),
    };
    if key.len() < length { Err(corrupted()) } else { Ok(length) }
}

fn numeric_bytes(key: &[u8]) -> Option<usize> {
    let end = match *key.first()? {
        ZERO => return Some(1),
        POSITIVE => 0,
        NEGATIVE => 0xff,
        _ => return None,
    };
    let digits = key.get(2..)?.iter().position(|byte| *byte == end)?;
    Some(2 + digits + 1)
}

fn escaped_bytes(key: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += key.get(at..)?.iter().position(|byte| *byte == 0)?;
        if *key.get(at + 1)? == 0 {
            return Some(at + 2);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use chrono::{DateTime, NaiveDate};
    use proptest::prelude::{
        Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };
    use uuid::Uuid;

    use super::*;
    use crate::expression::compare;

    fn key(values: &[&Value]) -> Vec<u8> {
        let mut key = Vec::new();
        for value in values {
            push(&mut key, value);
        }
        key
    }

    fn numeric() -> impl Strategy<Value = Value> {
        let digits = prop_oneof![any::<i64>().prop_map(i128::from), -2000_i128..2000];
        (digits, 0_u32..28).prop_map(|(digits, scale)| {
            Value::Numeric(Decimal::from_i128_with_scale(digits, scale))
        })
    }

    fn values(data_type: DataType) -> proptest::strategy::BoxedStrategy<Value> {
        let some = match data_type {
            DataType::BigInt => {
                prop_oneof![any::<i64>(), -3_i64..3].prop_map(Value::Integer).boxed()
            }
            DataType::Double => prop_oneof![any::<f64>(), Just(0.0), Just(-0.0), Just(f64::NAN)]
                .prop_map(Value::Float)
                .boxed(),
            DataType::Numeric(_) => numeric().boxed(),
            DataType::Text => "[\0-\u{3}a]{0,4}|.{0,6}".prop_map(Value::Text).boxed(),
            DataType::Date => (-700_000_i32..700_000)
                .prop_map(|days| Value::Date(NaiveDate::from_num_days_from_ce_opt(days).unwrap()))
                .boxed(),
            DataType::Timestamp | DataType::TimestampTz => (-(1_i64 << 50)..1 << 50)
                .prop_map(|t| {
                    Value::Timestamp(DateTime::from_timestamp_micros(t).unwrap().naive_utc())
                })
                .boxed(),
            DataType::Uuid => any::<u128>().prop_map(|n| Value::Uuid(Uuid::from_u128(n))).boxed(),
            _ => any::<bool>().prop_map(Value::Boolean).boxed(),
        };
        prop_oneof![1 => Just(Value::Null), 9 => some].boxed()
    }

    fn pair() -> impl Strategy<Value = (DataType, [Value; 4])> {
        let types = [
            DataType::BigInt,
            DataType::Double,
            DataType::Numeric(None),
            DataType::Text,
            DataType::Date,
            DataType::Timestamp,
            DataType::TimestampTz,
            DataType::Uuid,
            DataType::Boolean,
        ];
        (0..types.len()).prop_flat_map(move |number| {
            let data_type = types[number];
            let value = || values(data_type);
            (Just(data_type), [value(), value(), value(), value()])
        })
    }

    /// NULL last.
    fn order(a: &Value, b: &Value) -> Ordering {
        match (a.is_null(), b.is_null()) {
            (false, false) => compare(a, b),
            (a, b) => a.cmp(&b),
        }
    }

    proptest! {
        #[test]
        fn keys_order_as_values((_, [a, b, c, d]) in pair()) {
            prop_assert_eq!(key(&[&a]).cmp(&key(&[&b])), order(&a, &b));
            let both = order(&a, &b).then(order(&c, &d));
            prop_assert_eq!(key(&[&a, &c]).cmp(&key(&[&b, &d])), both);
        }

        #[test]
        fn a_columns_length_is_found((data_type, [a, b, _, _]) in pair()) {
            let first = key(&[&a]).len();
            prop_assert_eq!(column_bytes(&key(&[&a, &b]), data_type).unwrap(), first);
        }

        #[test]
        fn malformed_keys_are_errors(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            for data_type in [DataType::Text, DataType::Numeric(None), DataType::BigInt] {
                if let Ok(length) = column_bytes(&bytes, data_type) {
                    prop_assert!(length <= bytes.len());
                }
            }
        }
    }

    #[test]
    fn equal_numbers_have_one_key() {
        let one = |text: &str| key(&[&Value::from_text(text, DataType::Numeric(None)).unwrap()]);
        assert_eq!(one("1.0"), one("1.00"));
        assert_eq!(one("100"), one("1e2"));
        assert!(one("-0.5") < one("0") && one("99") < one("100") && one("0.09") < one("0.1"));
    }
}
