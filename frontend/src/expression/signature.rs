//! The names of scalar functions, with their argument and result types.
//!
//! *Source*: PostgreSQL 15, section 10.3.
//!
//! *Not here*: what functions compute (`function`).

use crate::catalog::system;
use crate::error::SqlError;
use crate::expression::array;
use crate::expression::function::Function;
use crate::value::DataType;

/// The function for a name and argument types.
pub(crate) struct Signature {
    pub(crate) function: Function,
    /// The types that the arguments are cast to.
    pub(crate) arguments: Vec<DataType>,
    pub(crate) result: DataType,
}

/// Finds the function for a name and argument types; None is a type that is not known yet.
///
/// # Errors
/// SQLSTATE 42883 if there is no such function.
pub(crate) fn find(name: &str, arguments: &[Option<DataType>]) -> Result<Signature, SqlError> {
    if let Some((function, element, arguments, result)) = array::find(name, arguments) {
        let function = Function::Array(function, element);
        return Ok(Signature { function, arguments, result });
    }
    if let Some(found) = system::function(name, arguments.len()) {
        let arguments = arguments.iter().map(|a| a.unwrap_or(DataType::Text)).collect();
        return Ok(Signature { function: Function::System(found.0), arguments, result: found.1 });
    }
    let found = number_function(name, arguments)
        .or_else(|| text_function(name, arguments))
        .or_else(|| other_function(name, arguments));
    let (function, types, result) = found.ok_or_else(|| unknown(name, arguments))?;
    Ok(Signature { function, arguments: types, result })
}

/// The error for a call of an unknown function.
pub(crate) fn unknown(name: &str, arguments: &[Option<DataType>]) -> SqlError {
    let types: Vec<&str> =
        arguments.iter().map(|a| a.map_or("unknown", DataType::base_name)).collect();
    let message = format!("function {name}({}) does not exist", types.join(", "));
    let error = SqlError::new("42883", message);
    if NAMES.contains(&name) {
        let hint = "No function matches the given name and argument types. You might need to add \
                    explicit type casts.";
        return error.with_hint(hint);
    }
    error.did_you_mean(name, NAMES.iter().copied())
}

/// The names, for hints.
const NAMES: &[&str] = &[
    "abs",
    "ceil",
    "ceiling",
    "floor",
    "round",
    "trunc",
    "mod",
    "power",
    "pow",
    "sqrt",
    "exp",
    "ln",
    "log",
    "sign",
    "pi",
    "length",
    "char_length",
    "octet_length",
    "lower",
    "upper",
    "initcap",
    "substr",
    "substring",
    "btrim",
    "ltrim",
    "rtrim",
    "replace",
    "concat",
    "concat_ws",
    "left",
    "right",
    "lpad",
    "rpad",
    "repeat",
    "reverse",
    "strpos",
    "position",
    "split_part",
    "starts_with",
    "ascii",
    "chr",
    "quote_ident",
    "quote_literal",
    "regexp_replace",
    "coalesce",
    "nullif",
    "greatest",
    "least",
    "now",
    "clock_timestamp",
    "date_part",
    "extract",
    "date_trunc",
    "timezone",
    "to_timestamp",
    "gen_random_uuid",
    "random",
    "version",
    "current_database",
    "current_schema",
    "current_user",
    "current_setting",
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "string_agg",
    "array_agg",
    "array_length",
    "array_to_string",
    "cardinality",
    "unnest",
    "generate_subscripts",
    "gannet_outcome",
];

type Found = Option<(Function, Vec<DataType>, DataType)>;

fn number_function(name: &str, arguments: &[Option<DataType>]) -> Found {
    use DataType::{Double, Integer, Numeric};
    let first = arguments.first().copied().flatten();
    let number = first.filter(|data_type| data_type.is_number());
    // The type of functions that exist for NUMERIC and for DOUBLE PRECISION.
    let fraction = match number {
        Some(Numeric(_)) => Numeric(None),
        _ => Double,
    };
    Some(match (name, arguments.len()) {
        ("abs", 1) => {
            let data_type = unbounded(number.unwrap_or(Double));
            (Function::Abs, vec![data_type], data_type)
        }
        ("ceil" | "ceiling", 1) => (Function::Ceil, vec![fraction], fraction),
        ("floor", 1) => (Function::Floor, vec![fraction], fraction),
        ("round", 1) => (Function::Round, vec![fraction], fraction),
        ("round", 2) => (Function::Round, vec![Numeric(None), Integer], Numeric(None)),
        ("trunc", 1) => (Function::Truncate, vec![fraction], fraction),
        ("trunc", 2) => (Function::Truncate, vec![Numeric(None), Integer], Numeric(None)),
        ("sign", 1) => (Function::Sign, vec![fraction], fraction),
        ("mod", 2) => {
            let second = arguments[1].filter(|data_type| data_type.is_number());
            let data_type = match (number, second) {
                (Some(a), Some(b)) if a.is_integer() && b.is_integer() => a.max(b),
                (Some(a), None) | (None, Some(a)) if a.is_integer() => a,
                (None, None) if first.is_none() => Integer,
                _ => Numeric(None),
            };
            (Function::Remainder, vec![data_type; 2], data_type)
        }
        ("power" | "pow", 2) => {
            let second = arguments[1].filter(|data_type| data_type.is_number());
            let data_type = power_type(number, second);
            (Function::Power, vec![data_type; 2], data_type)
        }
        ("sqrt", 1) => (Function::SquareRoot, vec![fraction], fraction),
        ("exp", 1) => (Function::Exponential, vec![fraction], fraction),
        ("ln", 1) => (Function::NaturalLogarithm, vec![fraction], fraction),
        ("log" | "log10", 1) => (Function::Logarithm, vec![fraction], fraction),
        ("log", 2) => (Function::LogarithmTo, vec![Numeric(None); 2], Numeric(None)),
        ("pi", 0) => (Function::Pi, vec![], Double),
        ("random", 0) => (Function::Random, vec![], Double),
        _ => return None,
    })
}

/// The type of a power: NUMERIC if one of the numbers is, and none is a floating-point number.
pub(crate) fn power_type(base: Option<DataType>, exponent: Option<DataType>) -> DataType {
    let types = [base, exponent];
    let has = |is: fn(DataType) -> bool| types.into_iter().flatten().any(is);
    let is_float = |data_type| matches!(data_type, DataType::Real | DataType::Double);
    if has(|data_type| matches!(data_type, DataType::Numeric(_))) && !has(is_float) {
        DataType::Numeric(None)
    } else {
        DataType::Double
    }
}

fn unbounded(data_type: DataType) -> DataType {
    match data_type {
        DataType::Numeric(_) => DataType::Numeric(None),
        other => other,
    }
}

fn text_function(name: &str, arguments: &[Option<DataType>]) -> Found {
    use DataType::{Boolean, Bytea, Integer, Text};
    let first = arguments.first().copied().flatten();
    Some(match (name, arguments.len()) {
        ("length", 1) if first == Some(Bytea) => (Function::OctetLength, vec![Bytea], Integer),
        ("length" | "char_length" | "character_length", 1) => {
            (Function::Length, vec![Text], Integer)
        }
        ("octet_length", 1) => {
            let argument = if first == Some(Bytea) { Bytea } else { Text };
            (Function::OctetLength, vec![argument], Integer)
        }
        ("lower", 1) => (Function::Lower, vec![Text], Text),
        ("upper", 1) => (Function::Upper, vec![Text], Text),
        ("initcap", 1) => (Function::Initcap, vec![Text], Text),
        ("substr" | "substring", 2) => (Function::Substring, vec![Text, Integer], Text),
        ("substr" | "substring", 3) => (Function::Substring, vec![Text, Integer, Integer], Text),
        ("btrim" | "trim", 1 | 2) => (Function::Trim, vec![Text; arguments.len()], Text),
        ("ltrim", 1 | 2) => (Function::TrimLeft, vec![Text; arguments.len()], Text),
        ("rtrim", 1 | 2) => (Function::TrimRight, vec![Text; arguments.len()], Text),
        ("replace", 3) => (Function::Replace, vec![Text; 3], Text),
        ("concat", 1..) => (Function::Concat, vec![Text; arguments.len()], Text),
        ("concat_ws", 2..) => (Function::ConcatWithSeparator, vec![Text; arguments.len()], Text),
        ("left", 2) => (Function::Left, vec![Text, Integer], Text),
        ("right", 2) => (Function::Right, vec![Text, Integer], Text),
        ("lpad", 2) => (Function::PadLeft, vec![Text, Integer], Text),
        ("lpad", 3) => (Function::PadLeft, vec![Text, Integer, Text], Text),
        ("rpad", 2) => (Function::PadRight, vec![Text, Integer], Text),
        ("rpad", 3) => (Function::PadRight, vec![Text, Integer, Text], Text),
        ("repeat", 2) => (Function::Repeat, vec![Text, Integer], Text),
        ("reverse", 1) => (Function::Reverse, vec![Text], Text),
        ("strpos" | "position", 2) => (Function::Position, vec![Text; 2], Integer),
        ("split_part", 3) => (Function::SplitPart, vec![Text, Text, Integer], Text),
        ("starts_with", 2) => (Function::StartsWith, vec![Text; 2], Boolean),
        ("ascii", 1) => (Function::Ascii, vec![Text], Integer),
        ("chr", 1) => (Function::Chr, vec![Integer], Text),
        ("quote_ident", 1) => (Function::QuoteIdentifier, vec![Text], Text),
        ("quote_literal", 1) => (Function::QuoteLiteral, vec![Text], Text),
        ("regexp_replace", 3 | 4) => (Function::RegexpReplace, vec![Text; arguments.len()], Text),
        _ => return None,
    })
}

fn other_function(name: &str, arguments: &[Option<DataType>]) -> Found {
    use DataType::{Date, Double, Integer, Numeric, Text, Timestamp, TimestampTz, Uuid};
    let second = arguments.get(1).copied().flatten();
    let time = if second == Some(TimestampTz) { TimestampTz } else { Timestamp };
    // If no function takes a DATE, PostgreSQL prefers that for a TIMESTAMPTZ.
    let date_or_time = if second == Some(Date) { TimestampTz } else { time };
    Some(match (name, arguments.len()) {
        ("now" | "current_timestamp" | "transaction_timestamp" | "statement_timestamp", 0) => {
            (Function::Now, vec![], TimestampTz)
        }
        ("localtimestamp", 0) => (Function::Now, vec![], Timestamp),
        ("clock_timestamp", 0) => (Function::ClockTimestamp, vec![], TimestampTz),
        ("current_date", 0) => (Function::CurrentDate, vec![], Date),
        ("date_part", 2) => (Function::DatePart(time), vec![Text, time], Double),
        ("extract", 2) => (Function::Extract(time), vec![Text, time], Numeric(None)),
        ("date_trunc", 2) => (Function::DateTruncate, vec![Text, date_or_time], date_or_time),
        ("date_trunc", 3) => (Function::DateTruncate, vec![Text, TimestampTz, Text], TimestampTz),
        ("timezone", 2) if second == Some(Timestamp) => {
            (Function::AtTimeZone, vec![Text, Timestamp], TimestampTz)
        }
        ("timezone", 2) => (Function::AtTimeZone, vec![Text, TimestampTz], Timestamp),
        ("to_timestamp", 1) => (Function::ToTimestamp, vec![Double], TimestampTz),
        ("gen_random_uuid", 0) => (Function::RandomUuid, vec![], Uuid),
        ("version", 0) => (Function::Version, vec![], Text),
        ("current_database" | "current_catalog", 0) => (Function::CurrentDatabase, vec![], Text),
        ("current_schema", 0) => (Function::CurrentSchema, vec![], Text),
        ("current_user" | "session_user" | "user" | "current_role", 0) => {
            (Function::CurrentUser, vec![], Text)
        }
        ("current_setting", 1) => (Function::CurrentSetting, vec![Text], Text),
        ("pg_backend_pid", 0) => (Function::BackendPid, vec![], Integer),
        ("pg_typeof", 1) => (Function::TypeOf, vec![arguments[0].unwrap_or(Text)], Text),
        _ => return None,
    })
}
