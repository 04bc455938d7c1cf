//! The types of SQL on the wire: object identifiers, and values in text and binary format.
//!
//! *Source*: PostgreSQL's `pg_type.dat` and the `send` and `recv` functions of its types.
//!
//! *Not here*: values as text (`text`), and messages (`message`, `replies`).

use std::fmt::Write;

use bytes::{Buf, BufMut, BytesMut};
use chrono::{NaiveDate, NaiveDateTime};
use pgwire::messages::data::FieldDescription;
use postgres_types::{FromSql, Kind, ToSql, Type};
use rust_decimal::Decimal;
use uuid::Uuid;

use gannet_frontend::wire::{
    ArrayWriter, fit_date, fit_timestamp, for_each_element, numeric_from_text, too_many_digits,
    unsigned_zero,
};
use gannet_frontend::{Column, DataType, Element, SqlError, Value};

/// The format of a value on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Binary,
}

impl Format {
    /// From a format code of the protocol.
    pub(super) fn from_code(code: i16) -> Result<Self, SqlError> {
        match code {
            0 => Ok(Self::Text),
            1 => Ok(Self::Binary),
            _ => Err(SqlError::new("08P01", format!("there is no format code {code}"))),
        }
    }

    pub(super) fn code(self) -> i16 {
        match self {
            Self::Text => 0,
            Self::Binary => 1,
        }
    }
}

/// The formats of `count` values: a message has no code (all text), one code for all values, or one per value.
pub(super) fn formats(codes: &[i16], count: usize) -> Result<Vec<Format>, SqlError> {
    match codes {
        [] => Ok(vec![Format::Text; count]),
        [code] => Ok(vec![Format::from_code(*code)?; count]),
        codes if codes.len() == count => {
            codes.iter().map(|code| Format::from_code(*code)).collect()
        }
        codes => Err(SqlError::new(
            "08P01",
            format!("the message has {} format codes for {count} values", codes.len()),
        )),
    }
}

/// The type that a client declares for a parameter; None leaves the type to the planner.
pub(super) fn declared_type(oid: u32) -> Result<Option<DataType>, SqlError> {
    let Some(declared) = Type::from_oid(oid) else {
        return if oid == 0 { Ok(None) } else { Err(unknown_type(&oid)) };
    };
    Ok(Some(match declared {
        Type::UNKNOWN => return Ok(None),
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::SmallInt,
        Type::INT4 => DataType::Integer,
        Type::INT8 | Type::OID => DataType::BigInt,
        Type::FLOAT4 => DataType::Real,
        Type::FLOAT8 => DataType::Double,
        Type::NUMERIC => DataType::Numeric(None),
        Type::TEXT | Type::NAME => DataType::Text,
        Type::BPCHAR => DataType::Char(None),
        Type::VARCHAR => DataType::Varchar(None),
        Type::BYTEA => DataType::Bytea,
        Type::DATE => DataType::Date,
        Type::TIMESTAMP => DataType::Timestamp,
        Type::TIMESTAMPTZ => DataType::TimestampTz,
        Type::UUID => DataType::Uuid,
        Type::VARCHAR_ARRAY | Type::NAME_ARRAY => DataType::Array(Element::Text),
        Type::OID_ARRAY => DataType::Array(Element::BigInt),
        other if matches!(other.kind(), Kind::Array(_)) => {
            let known = DataType::every().find(|array| array.postgres() == other);
            known.ok_or_else(|| unknown_type(&other))?
        }
        other => return Err(unknown_type(&other)),
    }))
}

fn unknown_type(name: &dyn std::fmt::Display) -> SqlError {
    SqlError::new("0A000", format!("parameters of type {name} are not supported"))
        .with_hint("Cast the parameter in the statement, or declare it as text.")
}

/// A column in RowDescription.
pub(super) fn field_description(column: &Column, format: Format) -> FieldDescription {
    let name = column.name.clone();
    let data_type = column.data_type;
    let (number, bytes, modifier) =
        (data_type.postgres().oid(), data_type.bytes(), data_type.modifier());
    FieldDescription::new(name, 0, 0, number, bytes, modifier, format.code())
}

/// Appends a value's length and bytes.
pub(super) fn put_value(
    out: &mut BytesMut,
    data_type: DataType,
    format: Format,
    value: &Value,
) -> Result<(), SqlError> {
    if matches!(value, Value::Null) {
        out.put_i32(-1);
        return Ok(());
    }
    let length_at = out.len();
    out.put_i32(0);
    match format {
        Format::Text => put_text(out, data_type, value),
        Format::Binary => put_binary(out, data_type, value)?,
    }
    let length = i32::try_from(out.len() - length_at - 4)
        .map_err(|_| SqlError::new("54000", "a value is larger than 2 GiB"))?;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    Ok(())
}

fn put_text(out: &mut BytesMut, data_type: DataType, value: &Value) {
    match (value, data_type) {
        // Most columns have these two types, which need no allocation.
        (Value::Text(text), DataType::Text | DataType::Varchar(_) | DataType::Padded) => {
            out.put_slice(text.as_bytes());
        }
        (Value::Integer(value), _) => {
            write!(out, "{value}").expect("a BytesMut takes everything");
        }
        _ => out.put_slice(value.to_text(data_type).as_bytes()),
    }
}

fn put_binary(out: &mut BytesMut, data_type: DataType, value: &Value) -> Result<(), SqlError> {
    match value {
        Value::Null => {}
        Value::Boolean(value) => out.put_u8((*value).into()),
        Value::Integer(value) => return put_integer(out, data_type, *value),
        #[expect(clippy::cast_possible_truncation, reason = "a REAL was an f32 before")]
        Value::Float(value) if data_type == DataType::Real => out.put_f32(*value as f32),
        Value::Float(value) => out.put_f64(*value),
        Value::Text(text) if let DataType::Array(element) = data_type => {
            return put_array(out, element, text);
        }
        Value::Text(_) => put_text(out, data_type, value),
        Value::Bytea(value) => out.put_slice(value),
        Value::Numeric(value) if value.is_zero() => {
            // No digits, weight 0, positive, and the scale, which the crate's encoding drops.
            out.put_slice(&[0; 6]);
            out.put_u16(u16::try_from(value.scale()).expect("at most 28"));
        }
        Value::Numeric(value) => return put_encoded(out, value, &Type::NUMERIC),
        Value::Date(value) => return put_encoded(out, value, &Type::DATE),
        // Both types with this value have the same format.
        Value::Timestamp(value) => return put_encoded(out, value, &Type::TIMESTAMP),
        Value::Uuid(value) => out.put_slice(value.as_bytes()),
    }
    Ok(())
}

fn put_integer(out: &mut BytesMut, data_type: DataType, value: i64) -> Result<(), SqlError> {
    let out_of_range = || SqlError::new("22003", format!("{value} is out of range for its type"));
    match data_type {
        DataType::SmallInt => out.put_i16(i16::try_from(value).map_err(|_| out_of_range())?),
        DataType::Integer => out.put_i32(i32::try_from(value).map_err(|_| out_of_range())?),
        _ => out.put_i64(value),
    }
    Ok(())
}

fn put_encoded(out: &mut BytesMut, value: &dyn ToSql, wire: &Type) -> Result<(), SqlError> {
    value.to_sql_checked(wire, out).map(|_| ()).map_err(|error| {
        SqlError::new("22003", format!("a {wire} cannot be sent in binary: {error}"))
    })
}

/// A parameter's value.
pub(super) fn read_value(
    data_type: DataType,
    format: Format,
    bytes: &[u8],
) -> Result<Value, SqlError> {
    match format {
        Format::Text => Value::from_text(utf8(bytes)?, data_type),
        Format::Binary => read_binary(data_type, bytes).map_err(|error| {
            let name = DataType::postgres(data_type);
            error.downcast().map_or_else(
                |error| {
                    SqlError::new("22P03", format!("incorrect binary data for {name}: {error}"))
                },
                |error: Box<SqlError>| *error,
            )
        }),
    }
}

/// Bytes as UTF-8.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, SqlError> {
    let wrong = || SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\"");
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(wrong)
}

fn read_binary(
    data_type: DataType,
    bytes: &[u8],
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let wire = DataType::postgres(data_type);
    Ok(match data_type {
        DataType::Boolean => Value::Boolean(bool::from_sql(&wire, bytes)?),
        DataType::SmallInt => Value::Integer(i16::from_sql(&wire, bytes)?.into()),
        DataType::Integer => Value::Integer(i32::from_sql(&wire, bytes)?.into()),
        DataType::BigInt if bytes.len() == 4 => {
            // For the declared type `oid`.
            Value::Integer(u32::from_sql(&Type::OID, bytes)?.into())
        }
        DataType::BigInt => Value::Integer(i64::from_sql(&wire, bytes)?),
        DataType::Real => Value::Float(f32::from_sql(&wire, bytes)?.into()),
        DataType::Double => Value::Float(f64::from_sql(&wire, bytes)?),
        DataType::Numeric(_) => Value::Numeric(read_numeric(bytes)?),
        DataType::Text | DataType::Varchar(_) | DataType::Char(_) | DataType::Padded => {
            Value::from_text(utf8(bytes)?, data_type)?
        }
        DataType::Bytea => Value::Bytea(bytes.to_vec()),
        DataType::Date => fit_date(NaiveDate::from_sql(&wire, bytes)?)?,
        DataType::Timestamp | DataType::TimestampTz => {
            fit_timestamp(NaiveDateTime::from_sql(&wire, bytes)?)?
        }
        DataType::Uuid => Value::Uuid(Uuid::from_slice(bytes)?),
        DataType::Array(element) => read_array(element, bytes)?,
    })
}

/// A NUMERIC: the number of groups of four digits, the weight of the first, the sign, the scale, the groups. No digit is
/// lost.
fn read_numeric(mut bytes: &[u8]) -> Result<Decimal, Box<dyn std::error::Error + Send + Sync>> {
    let (count, weight) = (bytes.try_get_u16()?, bytes.try_get_i16()?);
    let (sign, scale) = (bytes.try_get_u16()?, bytes.try_get_u16()?);
    let sign = match sign {
        0 => "",
        0x4000 => "-",
        _ => return Err(SqlError::unsupported("NaN or Infinity as a NUMERIC").into()),
    };
    let mut digits = String::from("0");
    for _ in 0..count {
        let group = bytes.try_get_u16()?;
        if group > 9_999 {
            return Err("a group of digits is larger than 9999".into());
        }
        write!(digits, "{group:04}")?;
    }
    if !bytes.is_empty() {
        return Err("bytes are left over".into());
    }
    let exponent = 4 * (i32::from(weight) + 1 - i32::from(count));
    let exponent = if count == 0 { 0 } else { exponent };
    let number = numeric_from_text(&format!("{sign}{digits}e{exponent}"));
    let mut number = number.ok_or_else(too_many_digits)?;
    number.rescale(u32::from(scale).min(28));
    Ok(unsigned_zero(number))
}

/// An array: dimensions, whether there are NULLs, the elements' type and number, the first subscript, the elements.
fn put_array(out: &mut BytesMut, element: Element, text: &str) -> Result<(), SqlError> {
    let (mut count, mut has_null) = (0_i32, false);
    for_each_element(text, |one| {
        has_null |= one.is_none();
        let more = count.checked_add(1);
        count = more.ok_or_else(|| SqlError::new("54000", "an array has too many elements"))?;
        Ok(())
    })?;
    out.put_i32(i32::from(count > 0));
    out.put_i32(has_null.into());
    let data_type = element.data_type();
    out.put_u32(data_type.postgres().oid());
    if count > 0 {
        out.put_i32(count);
        out.put_i32(1);
    }
    for_each_element(text, |one| {
        let value = one.map_or(Ok(Value::Null), |one| Value::from_text(one, data_type))?;
        put_value(out, data_type, Format::Binary, &value)
    })
}

fn read_array(
    element: Element,
    mut bytes: &[u8],
) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let dimensions = bytes.try_get_i32()?;
    let (_has_nulls, _oid) = (bytes.try_get_i32()?, bytes.try_get_u32()?);
    if dimensions > 1 {
        return Err(SqlError::unsupported("an array of several dimensions").into());
    }
    let mut array = ArrayWriter::new(element);
    if dimensions == 1 {
        let (count, _first) = (bytes.try_get_i32()?, bytes.try_get_i32()?);
        for _ in 0..count {
            array.push(&match usize::try_from(bytes.try_get_i32()?) {
                Err(_) => Value::Null,
                Ok(length) => {
                    let (value, rest) =
                        bytes.split_at_checked(length).ok_or("an element is cut off")?;
                    bytes = rest;
                    read_binary(element.data_type(), value)?
                }
            });
        }
    }
    if !bytes.is_empty() {
        return Err("bytes are left over".into());
    }
    Ok(Value::Text(array.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(data_type: DataType, format: Format, value: &Value) -> Value {
        let mut out = BytesMut::new();
        put_value(&mut out, data_type, format, value).unwrap();
        read_value(data_type, format, &out[4..]).unwrap()
    }

    #[test]
    fn every_type_is_encoded_in_both_formats() {
        let date = NaiveDate::from_ymd_opt(1999, 12, 31).unwrap();
        for (data_type, value) in [
            (DataType::Boolean, Value::Boolean(false)),
            (DataType::SmallInt, Value::Integer(-32768)),
            (DataType::Integer, Value::Integer(2_147_483_647)),
            (DataType::BigInt, Value::Integer(i64::MIN)),
            (DataType::Real, Value::Float(f64::from(0.1_f32))),
            (DataType::Double, Value::Float(0.1)),
            (DataType::Numeric(None), Value::Numeric("-12345.067800".parse().unwrap())),
            (DataType::Numeric(None), Value::Numeric("0.00".parse().unwrap())),
            (DataType::Text, Value::Text("häßlich 𝄞".to_owned())),
            (DataType::Char(Some(3)), Value::Text("a".to_owned())),
            (DataType::Bytea, Value::Bytea(vec![0, 1, 255])),
            (DataType::Date, Value::Date(date)),
            (DataType::Timestamp, Value::Timestamp(date.and_hms_micro_opt(23, 59, 59, 1).unwrap())),
            (
                DataType::TimestampTz,
                Value::Timestamp(date.and_hms_micro_opt(0, 0, 0, 999_999).unwrap()),
            ),
            (DataType::Uuid, Value::Uuid(Uuid::from_u128(u128::MAX / 3))),
            (DataType::Array(Element::Integer), Value::Text("{1,NULL,-3}".to_owned())),
            (DataType::Array(Element::Text), Value::Text("{}".to_owned())),
        ] {
            for format in [Format::Text, Format::Binary] {
                assert_eq!(round_trip(data_type, format, &value), value, "{format:?}");
            }
        }
    }

    #[test]
    fn format_codes_are_none_one_or_one_each() {
        assert_eq!(formats(&[], 2), Ok(vec![Format::Text; 2]));
        assert_eq!(formats(&[1], 2), Ok(vec![Format::Binary; 2]));
        assert_eq!(formats(&[0, 1], 2), Ok(vec![Format::Text, Format::Binary]));
        assert!(formats(&[0, 1], 3).is_err());
        assert!(formats(&[2], 1).is_err());
    }

    #[test]
    fn no_digit_of_a_binary_numeric_is_lost() {
        let read = |groups: &[u16], weight: i16, sign: u16, scale: u16| {
            let mut bytes = BytesMut::new();
            bytes.put_u16(u16::try_from(groups.len()).unwrap());
            bytes.put_i16(weight);
            bytes.put_u16(sign);
            bytes.put_u16(scale);
            groups.iter().for_each(|group| bytes.put_u16(*group));
            read_value(DataType::Numeric(None), Format::Binary, &bytes)
        };
        let text = |value: Result<Value, SqlError>| {
            value.map(|value| value.to_text(DataType::Numeric(None))).map_err(|error| error.code)
        };
        assert_eq!(text(read(&[1, 5000], 0, 0, 2)), Ok("1.50".to_owned()));
        assert_eq!(text(read(&[12, 3400], 1, 0x4000, 0)), Ok("-123400".to_owned()));
        assert_eq!(text(read(&[], 0, 0x4000, 2)), Ok("0.00".to_owned()));
        assert_eq!(text(read(&[1], -7, 0, 28)), Ok("0.0000000000000000000000000001".to_owned()));
        // 1E-30.
        assert_eq!(text(read(&[100], -8, 0, 30)), Err("22003"));
        assert_eq!(text(read(&[], 0, 0xc000, 0)), Err("0A000"));
        assert_eq!(text(read(&[10_000], 0, 0, 0)), Err("22P03"));
    }

    #[test]
    fn a_binary_time_before_the_first_day_is_refused() {
        let code = |data_type, bytes: &[u8]| {
            read_value(data_type, Format::Binary, bytes).map_err(|error| error.code)
        };
        let days = -7_000_i32 * 365;
        assert_eq!(code(DataType::Date, &days.to_be_bytes()), Err("22008"));
        let micros = i64::from(days) * 86_400_000_000;
        for data_type in [DataType::Timestamp, DataType::TimestampTz] {
            assert_eq!(code(data_type, &micros.to_be_bytes()), Err("22008"));
            // PostgreSQL's infinity.
            assert_eq!(code(data_type, &i64::MAX.to_be_bytes()), Err("22P03"));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_parameter_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            data_type in prop::sample::select(DataType::every().collect::<Vec<_>>()),
            binary: bool,
        ) {
            let format = if binary { Format::Binary } else { Format::Text };
            let _ = read_value(data_type, format, &bytes);
        }

        #[test]
        fn numerics_are_encoded_in_binary(mantissa: i64, scale in 0_u32..=18) {
            let value = Value::Numeric(Decimal::new(mantissa, scale));
            prop_assert_eq!(round_trip(DataType::Numeric(None), Format::Binary, &value), value);
        }
    }
}
