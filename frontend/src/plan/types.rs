//! Type names in statements, and the rules for operands of different types.
//!
//! *Source*: PostgreSQL 15, chapter 10.
//!
//! *Not here*: casting a value (`expression/cast`).

use sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, DataType as Written, ExactNumberInfo, ObjectName,
    TimezoneInfo,
};

use crate::error::SqlError;
use crate::expression::arithmetic::Operator;
use crate::expression::signature::power_type;
use crate::expression::{Cast, Expression, cast};
use crate::plan::array::element_of;
use crate::value::DataType;

/// Digits that a NUMERIC can have.
const PRECISION_MAX: u64 = 28;
/// Characters of VARCHAR(n) and CHAR(n), as PostgreSQL limits them.
const LENGTH_MAX: u64 = 10_485_760;

/// The type with a name in a statement.
///
/// # Errors
/// SQLSTATE 0A000 for an unsupported type, 22023 for a length or precision out of range.
pub(crate) fn from_written(written: &Written) -> Result<DataType, SqlError> {
    Ok(match written {
        Written::Boolean | Written::Bool => DataType::Boolean,
        Written::SmallInt(None) | Written::Int2(None) => DataType::SmallInt,
        Written::Int(None) | Written::Integer(None) | Written::Int4(None) => DataType::Integer,
        Written::BigInt(None) | Written::Int8(None) => DataType::BigInt,
        Written::Real | Written::Float4 => DataType::Real,
        Written::DoublePrecision | Written::Float8 | Written::Double(ExactNumberInfo::None) => {
            DataType::Double
        }
        Written::Float(ExactNumberInfo::None) => DataType::Double,
        Written::Float(ExactNumberInfo::Precision(bits @ 1..=53)) => {
            if *bits <= 24 {
                DataType::Real
            } else {
                DataType::Double
            }
        }
        Written::Numeric(info) | Written::Decimal(info) | Written::Dec(info) => numeric(*info)?,
        Written::Text => DataType::Text,
        Written::Varchar(length)
        | Written::CharacterVarying(length)
        | Written::CharVarying(length) => DataType::Varchar(characters(*length)?),
        Written::Char(length) | Written::Character(length) => {
            DataType::Char(Some(characters(*length)?.unwrap_or(1)))
        }
        Written::Bytea => DataType::Bytea,
        Written::Date => DataType::Date,
        Written::Timestamp(None | Some(6), TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            DataType::Timestamp
        }
        Written::Timestamp(None | Some(6), TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => {
            DataType::TimestampTz
        }
        Written::Uuid => DataType::Uuid,
        Written::Array(
            ArrayElemTypeDef::SquareBracket(element, _) | ArrayElemTypeDef::AngleBracket(element),
        ) => DataType::Array(element_of(from_written(element)?)?),
        Written::Custom(name, arguments) => custom(name, arguments)?,
        other => return Err(unsupported(other)),
    })
}

/// The names of types, for hints.
const NAMES: &[&str] = &[
    "boolean",
    "smallint",
    "integer",
    "bigint",
    "real",
    "double precision",
    "numeric",
    "decimal",
    "text",
    "varchar",
    "char",
    "bytea",
    "date",
    "timestamp",
    "timestamptz",
    "uuid",
    "serial",
    "bigserial",
];
/// PostgreSQL's types that are not supported, as far as the parser leaves them as names.
const NOT_SUPPORTED: &[&str] = &[
    "bit",
    "box",
    "cidr",
    "circle",
    "citext",
    "hstore",
    "inet",
    "int4range",
    "int8range",
    "json",
    "jsonb",
    "jsonpath",
    "line",
    "lseg",
    "macaddr",
    "macaddr8",
    "money",
    "numrange",
    "path",
    "pg_lsn",
    "point",
    "polygon",
    "timetz",
    "tsquery",
    "tsrange",
    "tstzrange",
    "tsvector",
    "daterange",
    "varbit",
    "xml",
    "interval",
    "time",
];

fn unsupported(written: impl std::fmt::Display) -> SqlError {
    let written = written.to_string();
    SqlError::unsupported(format_args!("type {}", written.to_lowercase())).with_hint(
        "the types are boolean, smallint, integer, bigint, real, double precision, numeric, text, \
         varchar, char, bytea, date, timestamp, timestamptz, uuid",
    )
}

/// Types that the parser leaves as names: those of `pg_catalog`, and SERIAL.
fn custom(name: &ObjectName, arguments: &[String]) -> Result<DataType, SqlError> {
    let last = name.0.last().map(ToString::to_string).unwrap_or_default().to_lowercase();
    if !arguments.is_empty() {
        return Err(unsupported(name));
    }
    Ok(match last.trim_matches('"') {
        "int2" | "smallserial" | "serial2" => DataType::SmallInt,
        "int4" | "serial" | "serial4" => DataType::Integer,
        "int8" | "bigserial" | "serial8" | "oid" | "xid" => DataType::BigInt,
        "float4" => DataType::Real,
        "float8" => DataType::Double,
        "bool" => DataType::Boolean,
        "text" | "name" | "cstring" | "char" => DataType::Text,
        "varchar" => DataType::Varchar(None),
        "bpchar" => DataType::Char(None),
        "numeric" => DataType::Numeric(None),
        "bytea" => DataType::Bytea,
        "date" => DataType::Date,
        "timestamp" => DataType::Timestamp,
        "timestamptz" => DataType::TimestampTz,
        "uuid" => DataType::Uuid,
        last if NOT_SUPPORTED.contains(&last) => return Err(unsupported(name)),
        last => {
            let message = format!("type \"{last}\" does not exist");
            return Err(SqlError::new("42704", message).did_you_mean(last, NAMES.iter().copied()));
        }
    })
}

fn numeric(info: ExactNumberInfo) -> Result<DataType, SqlError> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => return Ok(DataType::Numeric(None)),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    let narrow = |number: u64| u8::try_from(number).ok();
    let scale = u64::try_from(scale).ok().filter(|scale| *scale <= precision);
    match (
        narrow(precision).filter(|p| (1..=PRECISION_MAX).contains(&u64::from(*p))),
        scale.and_then(narrow),
    ) {
        (Some(precision), Some(scale)) => Ok(DataType::Numeric(Some((precision, scale)))),
        _ => {
            let message = format!(
                "NUMERIC precision must be between 1 and {PRECISION_MAX}, and its scale between 0 and that"
            );
            Err(SqlError::new("22023", message))
        }
    }
}

fn characters(length: Option<CharacterLength>) -> Result<Option<u32>, SqlError> {
    match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length, .. })
            if (1..=LENGTH_MAX).contains(&length) =>
        {
            Ok(u32::try_from(length).ok())
        }
        Some(_) => {
            let message =
                format!("the length of a character type must be between 1 and {LENGTH_MAX}");
            Err(SqlError::new("22023", message))
        }
    }
}

/// Whether values of one type are values of the other without a change.
pub(super) fn is_same_form(from: DataType, to: DataType) -> bool {
    use DataType::{Char, Double, Numeric, Padded, Real, Text, Timestamp, TimestampTz, Varchar};
    if from == to {
        return true;
    }
    if from.is_integer() && to.is_integer() {
        return from < to;
    }
    match (from, to) {
        (Real, Double) | (Numeric(_), Numeric(None)) => true,
        (Timestamp, TimestampTz) | (TimestampTz, Timestamp) => true,
        // Inside the engine a CHAR has no blanks at its end, whatever its length.
        (Char(_), Char(None)) => true,
        (Padded, _) => false,
        (Char(Some(_)), Padded) => false,
        (from, Text | Varchar(None) | Padded) => from.is_text(),
        (Varchar(Some(from)), Varchar(Some(to))) => from <= to,
        _ => false,
    }
}

/// The type in which two operands are compared; never [`DataType::Padded`].
pub(super) fn common(a: DataType, b: DataType) -> Option<DataType> {
    use DataType::{Char, Double, Numeric, Padded, Real, Text, Timestamp, TimestampTz, Varchar};
    if a == b && a != Padded {
        return Some(a);
    }
    if a.is_integer() && b.is_integer() {
        return Some(a.max(b));
    }
    if a.is_number() && b.is_number() {
        return Some(match (a, b) {
            (Double, _) | (_, Double) => Double,
            (Real, Real) => Real,
            (Real, _) | (_, Real) => Double,
            _ => Numeric(None),
        });
    }
    if a.is_text() && b.is_text() {
        return Some(match (a, b) {
            // A VARCHAR beside a CHAR is compared as a CHAR, ignoring blanks at the end; a TEXT is not.
            (Char(_) | Padded, Char(_) | Padded | Varchar(_)) | (Varchar(_), Char(_) | Padded) => {
                Char(None)
            }
            (Varchar(_), Varchar(_)) => Varchar(None),
            _ => Text,
        });
    }
    let either = if a == TimestampTz || b == TimestampTz { TimestampTz } else { Timestamp };
    (a.is_time() && b.is_time()).then_some(either)
}

/// The type of an expression with branches of two types, such as CASE. If both are texts, the first one decides.
pub(super) fn branch(a: DataType, b: DataType) -> Option<DataType> {
    use DataType::{Char, Padded, Text, Varchar};
    match (a, b) {
        _ if a == b => Some(a),
        (Char(_) | Padded, b) if b.is_text() => Some(Padded),
        (Varchar(_), b) if b.is_text() => Some(Varchar(None)),
        (Text, b) if b.is_text() => Some(Text),
        _ => common(a, b),
    }
}

/// The type of an expression with branches of a type, and constants that are read as that type.
pub(super) fn with_constants(data_type: DataType) -> DataType {
    match data_type {
        DataType::Numeric(_) => DataType::Numeric(None),
        DataType::Varchar(_) => DataType::Varchar(None),
        DataType::Char(_) => DataType::Padded,
        other => other,
    }
}

/// The type in which values are grouped and sorted: blanks at the end of a CHAR do not matter.
pub(super) fn of_keys(data_type: DataType) -> DataType {
    if data_type == DataType::Padded { DataType::Char(None) } else { data_type }
}

/// Whether equal values look alike, but for 0 and -0 of REAL and DOUBLE. 1.0 and 1.00 do not: the first of them stands for its
/// group, so the order of the rows matters.
pub(super) fn has_one_form(data_type: DataType) -> bool {
    data_type != DataType::Numeric(None)
}

/// An expression cast to the type of [`of_keys`].
pub(super) fn as_key(expression: Expression, from: DataType) -> Expression {
    let to = of_keys(from);
    if from == to {
        return expression;
    }
    Expression::Cast(Box::new(Cast { operand: expression, from, to, explicit: true }))
}

/// The types of an operator's operands and result.
pub(super) fn operation(
    operator: Operator,
    left: DataType,
    right: DataType,
) -> Option<(DataType, DataType, DataType)> {
    use DataType::{Bytea, Date, Integer, Text};
    match operator {
        Operator::Concatenate if left == Bytea && right == Bytea => Some((Bytea, Bytea, Bytea)),
        Operator::Concatenate => {
            let has_text = left.is_text() || right.is_text();
            let castable = cast::exists(left, Text, false) && cast::exists(right, Text, false);
            (has_text && castable).then_some((Text, Text, Text))
        }
        Operator::Power => {
            let data_type = power_type(Some(left), Some(right));
            let are_numbers = left.is_number() && right.is_number();
            are_numbers.then_some((data_type, data_type, data_type))
        }
        Operator::BitAnd
        | Operator::BitOr
        | Operator::BitXor
        | Operator::ShiftLeft
        | Operator::ShiftRight => {
            let integers = left.is_integer() && right.is_integer();
            let shift = matches!(operator, Operator::ShiftLeft | Operator::ShiftRight);
            let result = if shift { left } else { left.max(right) };
            integers.then_some((result, right, result))
        }
        Operator::Add if left == Date && right.is_integer() => Some((Date, right, Date)),
        Operator::Add if left.is_integer() && right == Date => Some((left, Date, Date)),
        Operator::Subtract if left == Date && right.is_integer() => Some((Date, right, Date)),
        Operator::Subtract if left == Date && right == Date => Some((Date, Date, Integer)),
        _ => {
            let both = left.is_number() && right.is_number();
            let data_type = common(left, right).filter(|_| both)?;
            let data_type = match data_type {
                DataType::Numeric(_) => DataType::Numeric(None),
                other => other,
            };
            Some((data_type, data_type, data_type))
        }
    }
}
