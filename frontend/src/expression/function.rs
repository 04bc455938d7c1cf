//! Scalar functions.
//!
//! *Source*: PostgreSQL 15, chapter 9.
//!
//! *Not here*: names and types (`signature`), aggregates (`aggregate`), parts of dates (`datetime`), functions on arrays
//! (`array`), and functions on the catalog (`catalog::system`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use chrono::NaiveDateTime;
use gannet_engine::Cluster;
use rust_decimal::prelude::ToPrimitive;
use rust_decimal::{Decimal, RoundingStrategy};

use crate::array::Element;
use crate::catalog::{Catalog, system};
use crate::error::SqlError;
use crate::expression::array::ArrayFunction;
use crate::expression::{arithmetic, array, compare, datetime, numeric_function, pattern};
use crate::memory::Budget;
use crate::text::time::require_utc;
use crate::value::{DataType, Value};

/// Facts that functions depend on beside their arguments.
#[derive(Clone)]
pub(crate) struct Facts {
    /// When the transaction began.
    pub(crate) now: NaiveDateTime,
    pub(crate) user: Arc<str>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) cluster: Arc<Cluster>,
    /// The settings, for `current_setting`.
    pub(crate) settings: Arc<std::collections::BTreeMap<String, String>>,
    /// The budget that a result must fit.
    pub(crate) budget: Arc<Budget>,
}

/// A scalar function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Function {
    Abs,
    Negate,
    BitNot,
    Ceil,
    Floor,
    Round,
    Truncate,
    Remainder,
    Power,
    SquareRoot,
    Exponential,
    NaturalLogarithm,
    Logarithm,
    /// To a base, which is the first argument.
    LogarithmTo,
    Sign,
    Pi,
    Length,
    OctetLength,
    Lower,
    Upper,
    Initcap,
    Substring,
    Trim,
    TrimLeft,
    TrimRight,
    Replace,
    Concat,
    ConcatWithSeparator,
    Left,
    Right,
    PadLeft,
    PadRight,
    Repeat,
    Reverse,
    Position,
    SplitPart,
    StartsWith,
    Ascii,
    Chr,
    QuoteIdentifier,
    QuoteLiteral,
    RegexpReplace,
    NullIf,
    /// The text of a value in results.
    Shown,
    Greatest,
    Least,
    Now,
    CurrentDate,
    ClockTimestamp,
    /// A part of a timestamp of this type, as DOUBLE PRECISION.
    DatePart(DataType),
    /// A part of a timestamp of this type, as NUMERIC.
    Extract(DataType),
    DateTruncate,
    /// A TIMESTAMPTZ from seconds since 1970.
    ToTimestamp,
    /// A TIMESTAMP as a TIMESTAMPTZ or the reverse; the first argument is the time zone.
    AtTimeZone,
    RandomUuid,
    Random,
    Version,
    CurrentDatabase,
    CurrentSchema,
    CurrentUser,
    CurrentSetting,
    BackendPid,
    TypeOf,
    #[serde(skip)]
    Array(ArrayFunction, Element),
    #[serde(skip)]
    System(system::SystemFunction),
}

impl Function {
    /// Whether the result is NULL for a NULL argument.
    pub(crate) fn is_strict(self) -> bool {
        match self {
            Self::Concat
            | Self::ConcatWithSeparator
            | Self::NullIf
            | Self::Greatest
            | Self::Least
            | Self::TypeOf => false,
            Self::Array(function, _) => function.is_strict(),
            Self::System(function) => function.is_strict(),
            _ => true,
        }
    }

    /// Whether two calls may differ.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, Self::RandomUuid | Self::Random | Self::ClockTimestamp)
    }
}

/// The result of a function; the arguments have the types of its signature.
///
/// # Errors
/// Those of the function; SQLSTATE 0A000 where it depends on facts and there are none.
pub(crate) fn call(
    function: Function,
    data_type: DataType,
    arguments: Vec<Value>,
    facts: Option<&Facts>,
) -> Result<Value, SqlError> {
    match function {
        Function::Concat => Ok(Value::Text(concat(&arguments, "", known(facts)?)?)),
        Function::ConcatWithSeparator => Ok(match &arguments[0] {
            Value::Text(separator) => {
                Value::Text(concat(&arguments[1..], separator, known(facts)?)?)
            }
            _ => Value::Null,
        }),
        Function::NullIf => {
            let equal = !arguments.iter().any(Value::is_null)
                && compare(&arguments[0], &arguments[1]).is_eq();
            let first = arguments.into_iter().next().expect("NULLIF has two arguments");
            Ok(if equal { Value::Null } else { first })
        }
        Function::Shown => Ok(Value::Text(arguments[0].to_text(data_type))),
        Function::Greatest => Ok(extreme(arguments, data_type, true)),
        Function::Least => Ok(extreme(arguments, data_type, false)),
        Function::Array(function, element) => {
            array::call(function, element, &arguments, known(facts)?)
        }
        Function::System(function) => system::call(function, &arguments, known(facts)?),
        _ => match arguments.first() {
            Some(Value::Text(_)) => text_call(function, data_type, &arguments, facts),
            None => session_call(function, known(facts)?),
            _ => number_call(function, data_type, &arguments),
        },
    }
}

fn known(facts: Option<&Facts>) -> Result<&Facts, SqlError> {
    facts.ok_or_else(|| SqlError::unsupported("a function of the session where the rows are"))
}

fn concat(arguments: &[Value], separator: &str, facts: &Facts) -> Result<String, SqlError> {
    let texts: Vec<&str> = arguments
        .iter()
        .filter_map(|argument| match argument {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    joined(&texts, separator, facts)
}

/// Joins texts by a separator.
///
/// # Errors
/// SQLSTATE 53200 for a result that is larger than a statement may keep.
pub(super) fn joined(
    texts: &[impl AsRef<str>],
    separator: &str,
    facts: &Facts,
) -> Result<String, SqlError> {
    let own: usize = texts.iter().map(|text| text.as_ref().len()).sum();
    let between = separator.len().saturating_mul(texts.len().saturating_sub(1));
    facts.budget.check(own.saturating_add(between))?;
    let mut text = String::with_capacity(own + between);
    for (number, part) in texts.iter().enumerate() {
        text.push_str(if number == 0 { "" } else { separator });
        text.push_str(part.as_ref());
    }
    Ok(text)
}

/// The first of the greatest, or of the least, arguments.
fn extreme(arguments: Vec<Value>, data_type: DataType, greatest: bool) -> Value {
    let ordering = |a: &Value, b: &Value| match (a, b) {
        (Value::Text(a), Value::Text(b)) if data_type == DataType::Padded => {
            a.trim_end_matches(' ').cmp(b.trim_end_matches(' '))
        }
        _ => compare(a, b),
    };
    let some = arguments.into_iter().filter(|value| !value.is_null());
    let better = |a: &Value, b: &Value| {
        if greatest { ordering(b, a).is_gt() } else { ordering(b, a).is_lt() }
    };
    let found = some.reduce(|a, b| if better(&a, &b) { b } else { a });
    found.unwrap_or(Value::Null)
}

fn session_call(function: Function, facts: &Facts) -> Result<Value, SqlError> {
    Ok(match function {
        Function::Now => Value::Timestamp(facts.now),
        Function::ClockTimestamp => Value::Timestamp(crate::clock::now()),
        Function::CurrentDate => Value::Date(facts.now.date()),
        Function::Version => Value::Text(crate::settings::VERSION_TEXT.to_owned()),
        Function::CurrentDatabase => Value::Text(system::DATABASE.to_owned()),
        Function::CurrentSchema => Value::Text("public".to_owned()),
        Function::CurrentUser => Value::Text(facts.user.to_string()),
        Function::BackendPid => Value::Integer(i64::from(std::process::id())),
        Function::Pi => Value::Float(std::f64::consts::PI),
        Function::RandomUuid => {
            Value::Uuid(uuid::Builder::from_random_bytes(random_bytes()?).into_uuid())
        }
        Function::Random => {
            // 53 bits, as many as a DOUBLE PRECISION has.
            let bits = u64::from_le_bytes(random_bytes()?) >> 11;
            #[expect(clippy::cast_precision_loss, reason = "53 bits are exact")]
            let fraction = bits as f64 / (1_u64 << 53) as f64;
            Value::Float(fraction)
        }
        _ => return Err(SqlError::new("XX000", "a function was called without its arguments")),
    })
}

fn random_bytes<const N: usize>() -> Result<[u8; N], SqlError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| SqlError::new("XX000", format!("no random bytes: {error}")))?;
    Ok(bytes)
}

/// An integer argument, clamped to the range of lengths and positions.
fn small(arguments: &[Value], number: usize) -> i64 {
    match arguments.get(number) {
        Some(Value::Integer(value)) => *value,
        _ => 0,
    }
}

fn text(arguments: &[Value], number: usize) -> &str {
    match arguments.get(number) {
        Some(Value::Text(text)) => text,
        _ => "",
    }
}

fn number_call(
    function: Function,
    data_type: DataType,
    arguments: &[Value],
) -> Result<Value, SqlError> {
    match (function, &arguments[0]) {
        (Function::OctetLength, Value::Bytea(bytes)) => length(bytes.len()),
        (Function::Remainder, _) => {
            let (a, b) = (arguments[0].clone(), arguments[1].clone());
            arithmetic::apply(arithmetic::Operator::Remainder, data_type, a, b)
        }
        (Function::Chr, Value::Integer(code)) => u32::try_from(*code)
            .ok()
            .filter(|code| *code != 0)
            .and_then(char::from_u32)
            .map(|character| Value::Text(character.to_string()))
            .ok_or_else(|| SqlError::new("54000", "requested character too large for encoding")),
        (Function::TypeOf, _) => Ok(Value::Text(data_type.name())),
        (Function::ToTimestamp, Value::Float(seconds)) => datetime::since_1970(*seconds),
        (_, Value::Integer(number)) => integer_call(function, data_type, *number),
        (_, Value::Float(number)) => float_call(function, data_type, *number, arguments),
        (_, Value::Numeric(number)) => numeric_call(function, *number, arguments),
        _ => Ok(Value::Null),
    }
}

fn integer_call(function: Function, data_type: DataType, number: i64) -> Result<Value, SqlError> {
    let result = match function {
        Function::Abs => number.checked_abs(),
        Function::Negate => number.checked_neg(),
        Function::BitNot => Some(!number),
        _ => Some(number),
    };
    match result {
        Some(result) if crate::text::integer_fits(result, data_type) => Ok(Value::Integer(result)),
        _ => Err(SqlError::new("22003", format!("{} out of range", data_type.base_name()))),
    }
}

fn float_call(
    function: Function,
    data_type: DataType,
    number: f64,
    arguments: &[Value],
) -> Result<Value, SqlError> {
    let result = match function {
        Function::Abs => number.abs(),
        Function::Negate => -number,
        Function::Ceil => number.ceil(),
        Function::Floor => number.floor(),
        Function::Round => number.round_ties_even(),
        Function::Truncate => number.trunc(),
        Function::Sign if number == 0.0 || number.is_nan() => number,
        Function::Sign => number.signum(),
        Function::Power => match arguments.get(1) {
            Some(Value::Float(exponent)) => return arithmetic::power(number, *exponent),
            _ => return Ok(Value::Null),
        },
        Function::SquareRoot if number < 0.0 => {
            return Err(SqlError::new("2201F", "cannot take square root of a negative number"));
        }
        Function::SquareRoot => number.sqrt(),
        Function::Exponential => number.exp(),
        Function::NaturalLogarithm | Function::Logarithm if number <= 0.0 => {
            let message = if number == 0.0 {
                "cannot take logarithm of zero"
            } else {
                "cannot take logarithm of a negative number"
            };
            return Err(SqlError::new("2201E", message));
        }
        Function::NaturalLogarithm => number.ln(),
        Function::Logarithm => number.log10(),
        _ => number,
    };
    if result.is_infinite() && number.is_finite() {
        return Err(SqlError::new("22003", "value out of range: overflow"));
    }
    Ok(Value::Float(crate::text::fit_float(result, data_type)))
}

fn numeric_call(
    function: Function,
    number: Decimal,
    arguments: &[Value],
) -> Result<Value, SqlError> {
    let places = small(arguments, 1);
    let second = match arguments.get(1) {
        Some(Value::Numeric(second)) => *second,
        _ => Decimal::ZERO,
    };
    let result = match function {
        Function::Power => numeric_function::power(number, second)?,
        Function::SquareRoot => numeric_function::square_root(number)?,
        Function::Exponential => numeric_function::exponential(number)?,
        Function::NaturalLogarithm => numeric_function::natural_logarithm(number)?,
        Function::Logarithm => numeric_function::logarithm(Decimal::TEN, number)?,
        Function::LogarithmTo => numeric_function::logarithm(number, second)?,
        Function::Abs => number.abs(),
        Function::Negate => -number,
        Function::Ceil => number.ceil(),
        Function::Floor => number.floor(),
        Function::Sign if number.is_zero() => Decimal::ZERO,
        Function::Sign => Decimal::from(if number.is_sign_negative() { -1 } else { 1 }),
        Function::Round => at_places(number, places, RoundingStrategy::MidpointAwayFromZero)?,
        Function::Truncate => at_places(number, places, RoundingStrategy::ToZero)?,
        _ => number,
    };
    Ok(Value::Numeric(crate::text::unsigned_zero(result)))
}

/// A number rounded to so many places behind the point; before the point if negative.
fn at_places(
    number: Decimal,
    places: i64,
    strategy: RoundingStrategy,
) -> Result<Decimal, SqlError> {
    if let Ok(places) = u32::try_from(places) {
        let mut rounded = number.round_dp_with_strategy(places.min(28), strategy);
        rounded.rescale(places.min(28));
        return Ok(rounded);
    }
    if places < -28 {
        return Ok(Decimal::ZERO);
    }
    let power = 10_i128.pow(u32::try_from(-places).expect("between 1 and 28"));
    let overflow = || SqlError::new("22003", "numeric out of range");
    let power = Decimal::try_from_i128_with_scale(power, 0).map_err(|_| overflow())?;
    let shifted = number.checked_div(power).ok_or_else(overflow)?;
    shifted.round_dp_with_strategy(0, strategy).checked_mul(power).ok_or_else(overflow)
}

fn length(length: usize) -> Result<Value, SqlError> {
    let length = i32::try_from(length).map_err(|_| SqlError::new("22003", "integer out of range"));
    Ok(Value::Integer(i64::from(length?)))
}

fn text_call(
    function: Function,
    data_type: DataType,
    arguments: &[Value],
    facts: Option<&Facts>,
) -> Result<Value, SqlError> {
    let first = text(arguments, 0);
    Ok(Value::Text(match function {
        Function::Length => return length(first.chars().count()),
        Function::OctetLength => return length(first.len()),
        Function::Lower => first.to_lowercase(),
        Function::Upper => first.to_uppercase(),
        Function::Initcap => initcap(first),
        Function::Substring => substring(first, arguments)?,
        Function::Trim | Function::TrimLeft | Function::TrimRight => trim(function, arguments),
        Function::Replace => {
            replace([first, text(arguments, 1), text(arguments, 2)], known(facts)?)?
        }
        Function::Left | Function::Right => side(function, first, small(arguments, 1)),
        Function::PadLeft | Function::PadRight => pad(function, arguments, known(facts)?)?,
        Function::Repeat => repeat(first, small(arguments, 1), known(facts)?)?,
        Function::Reverse => first.chars().rev().collect(),
        Function::Position => {
            let place = first.find(text(arguments, 1));
            return length(place.map_or(0, |bytes| first[..bytes].chars().count() + 1));
        }
        Function::SplitPart => split_part(first, text(arguments, 1), small(arguments, 2))?,
        Function::StartsWith => return Ok(Value::Boolean(first.starts_with(text(arguments, 1)))),
        Function::Ascii => {
            let code = first.chars().next().map_or(0, u32::from);
            return Ok(Value::Integer(i64::from(code)));
        }
        Function::QuoteIdentifier => quote_identifier(first),
        Function::QuoteLiteral => format!("'{}'", first.replace('\'', "''")),
        Function::RegexpReplace => {
            regexp_replace(arguments, known(facts)?, &AtomicBool::new(false))?
        }
        Function::CurrentSetting => {
            let name = first.to_ascii_lowercase();
            known(facts)?.settings.get(&name).cloned().ok_or_else(|| {
                let message = format!("unrecognized configuration parameter \"{first}\"");
                SqlError::new("42704", message)
            })?
        }
        Function::TypeOf => data_type.name(),
        Function::DatePart(_)
        | Function::Extract(_)
        | Function::DateTruncate
        | Function::AtTimeZone => return time_call(function, data_type, arguments),
        _ => return Ok(Value::Null),
    }))
}

fn time_call(
    function: Function,
    data_type: DataType,
    arguments: &[Value],
) -> Result<Value, SqlError> {
    let first = text(arguments, 0);
    let field = first.to_ascii_lowercase();
    let Value::Timestamp(timestamp) = arguments[1] else { return Ok(Value::Null) };
    Ok(match function {
        Function::DateTruncate => {
            if let Some(Value::Text(zone)) = arguments.get(2) {
                require_utc(zone)?;
            }
            Value::Timestamp(datetime::truncate(&field, timestamp, data_type)?)
        }
        Function::Extract(from) => Value::Numeric(datetime::extract(&field, timestamp, from)?),
        Function::DatePart(from) => {
            let part = datetime::extract(&field, timestamp, from)?;
            Value::Float(part.to_f64().unwrap_or(f64::NAN))
        }
        _ => {
            require_utc(first)?;
            Value::Timestamp(timestamp)
        }
    })
}

fn initcap(text: &str) -> String {
    let mut inside = false;
    let mut result = String::with_capacity(text.len());
    for character in text.chars() {
        if inside {
            result.extend(character.to_lowercase());
        } else {
            result.extend(character.to_uppercase());
        }
        inside = character.is_alphanumeric();
    }
    result
}

fn substring(text: &str, arguments: &[Value]) -> Result<String, SqlError> {
    let start = small(arguments, 1);
    let end = match arguments.get(2) {
        None => i64::MAX,
        Some(_) if small(arguments, 2) < 0 => {
            return Err(SqlError::new("22011", "negative substring length not allowed"));
        }
        Some(_) => start.saturating_add(small(arguments, 2)),
    };
    let skip = usize::try_from(start.max(1) - 1).unwrap_or(usize::MAX);
    let take = usize::try_from(end.saturating_sub(start.max(1))).unwrap_or(0);
    Ok(text.chars().skip(skip).take(take).collect())
}

fn trim(function: Function, arguments: &[Value]) -> String {
    let characters = if arguments.len() > 1 { text(arguments, 1) } else { " " };
    let characters: BTreeSet<char> = characters.chars().collect();
    let listed = |c: char| characters.contains(&c);
    let mut rest = text(arguments, 0);
    if function != Function::TrimRight {
        rest = rest.trim_start_matches(listed);
    }
    if function != Function::TrimLeft {
        rest = rest.trim_end_matches(listed);
    }
    rest.to_owned()
}

fn replace([text, from, to]: [&str; 3], facts: &Facts) -> Result<String, SqlError> {
    if from.is_empty() {
        return Ok(text.to_owned());
    }
    let count = text.matches(from).count();
    let others = text.len() - count * from.len();
    facts.budget.check(count.saturating_mul(to.len()).saturating_add(others))?;
    Ok(text.replace(from, to))
}

fn side(function: Function, text: &str, count: i64) -> String {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    // A negative count omits that many characters at the other end.
    let kept = if count < 0 { (length + count.max(-length)).max(0) } else { count.min(length) };
    let (kept, length) = (usize::try_from(kept), usize::try_from(length));
    let (kept, length) = (kept.unwrap_or(0), length.unwrap_or(0));
    match function {
        Function::Left => text.chars().take(kept).collect(),
        _ => text.chars().skip(length - kept).collect(),
    }
}

fn pad(function: Function, arguments: &[Value], facts: &Facts) -> Result<String, SqlError> {
    let first = text(arguments, 0);
    let fill = if arguments.len() > 2 { text(arguments, 2) } else { " " };
    let length = usize::try_from(small(arguments, 1)).unwrap_or(0);
    let count = first.chars().count();
    if count >= length || fill.is_empty() {
        return Ok(first.chars().take(length).collect());
    }
    let widest = fill.chars().map(char::len_utf8).max().unwrap_or(0);
    facts.budget.check(widest.saturating_mul(length - count).saturating_add(first.len()))?;
    let padding: String = fill.chars().cycle().take(length - count).collect();
    Ok(if function == Function::PadLeft { padding + first } else { first.to_owned() + &padding })
}

fn repeat(text: &str, count: i64, facts: &Facts) -> Result<String, SqlError> {
    let count = usize::try_from(count).unwrap_or(0);
    facts.budget.check(text.len().saturating_mul(count))?;
    Ok(text.repeat(count))
}

fn split_part(text: &str, separator: &str, number: i64) -> Result<String, SqlError> {
    let parts: Vec<&str> =
        if separator.is_empty() { vec![text] } else { text.split(separator).collect() };
    let place = match usize::try_from(number) {
        Ok(0) => return Err(SqlError::new("22023", "field position must not be zero")),
        Ok(number) => number - 1,
        Err(_) => match usize::try_from(number.unsigned_abs()) {
            Ok(back) if back <= parts.len() => parts.len() - back,
            _ => return Ok(String::new()),
        },
    };
    Ok(parts.get(place).copied().unwrap_or_default().to_owned())
}

/// A name in SQL, in quotes if necessary.
pub(crate) fn quote_identifier(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// `regexp_replace`, a long computation.
///
/// # Errors
/// As [`pattern::replace`].
pub(crate) fn regexp_replace(
    arguments: &[Value],
    facts: &Facts,
    abandoned: &AtomicBool,
) -> Result<String, SqlError> {
    let arguments = [0, 1, 2, 3].map(|number| text(arguments, number));
    pattern::replace(arguments, |bytes| facts.budget.check(bytes), abandoned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn substrings_count_from_one() {
        let cut = |start, length| {
            let arguments = [Value::Null, Value::Integer(start), Value::Integer(length)];
            substring("hello", &arguments).unwrap()
        };
        assert_eq!(cut(2, 3), "ell");
        assert_eq!(cut(-1, 3), "h");
        assert_eq!(cut(4, 100), "lo");
    }

    #[test]
    fn a_random_uuid_has_its_version_and_variant() {
        let bytes = random_bytes().unwrap();
        assert_eq!(uuid::Builder::from_random_bytes(bytes).into_uuid().get_version_num(), 4);
    }

    #[test]
    fn left_and_right_take_negative_counts() {
        assert_eq!(side(Function::Left, "abcde", -2), "abc");
        assert_eq!(side(Function::Right, "abcde", -2), "cde");
        assert_eq!(side(Function::Right, "abcde", i64::MIN), "");
    }
}
