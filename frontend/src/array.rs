//! Arrays of one dimension, kept as PostgreSQL prints them.
//!
//! ```text
//! {1,NULL,"two words"}
//! ```
//!
//! *Source*: PostgreSQL 15, section 8.15.
//!
//! *Invariants*: an array that was read or built has one form, so equal arrays are equal texts.
//!
//! *Not here*: arrays as columns of tables, arrays of several dimensions, and arrays whose first index is not 1: all are
//! refused.

use serde::{Deserialize, Serialize};

use crate::aside;
use crate::error::SqlError;
use crate::value::{DataType, Value};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Element {
    /// BOOLEAN.
    Boolean,
    /// SMALLINT.
    SmallInt,
    /// INTEGER.
    Integer,
    /// BIGINT.
    BigInt,
    /// REAL.
    Real,
    /// DOUBLE PRECISION.
    Double,
    /// NUMERIC.
    Numeric,
    /// TEXT and VARCHAR.
    Text,
    /// CHAR of any length.
    Char,
    /// BYTEA.
    Bytea,
    /// DATE.
    Date,
    /// TIMESTAMP.
    Timestamp,
    /// TIMESTAMPTZ.
    TimestampTz,
    /// UUID.
    Uuid,
}

impl Element {
    pub(crate) const ALL: [Self; 14] = [
        Self::Boolean,
        Self::SmallInt,
        Self::Integer,
        Self::BigInt,
        Self::Real,
        Self::Double,
        Self::Numeric,
        Self::Text,
        Self::Char,
        Self::Bytea,
        Self::Date,
        Self::Timestamp,
        Self::TimestampTz,
        Self::Uuid,
    ];

    /// The element type of arrays of `data_type`; None for an array, because arrays have one dimension.
    pub(crate) fn of(data_type: DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Boolean,
            DataType::SmallInt => Self::SmallInt,
            DataType::Integer => Self::Integer,
            DataType::BigInt => Self::BigInt,
            DataType::Real => Self::Real,
            DataType::Double => Self::Double,
            DataType::Numeric(_) => Self::Numeric,
            DataType::Text | DataType::Varchar(_) => Self::Text,
            DataType::Char(_) | DataType::Padded => Self::Char,
            DataType::Bytea => Self::Bytea,
            DataType::Date => Self::Date,
            DataType::Timestamp => Self::Timestamp,
            DataType::TimestampTz => Self::TimestampTz,
            DataType::Uuid => Self::Uuid,
            DataType::Array(_) => return None,
        })
    }

    /// The type of one element.
    #[must_use]
    pub fn data_type(self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::SmallInt => DataType::SmallInt,
            Self::Integer => DataType::Integer,
            Self::BigInt => DataType::BigInt,
            Self::Real => DataType::Real,
            Self::Double => DataType::Double,
            Self::Numeric => DataType::Numeric(None),
            Self::Text => DataType::Text,
            Self::Char => DataType::Char(None),
            Self::Bytea => DataType::Bytea,
            Self::Date => DataType::Date,
            Self::Timestamp => DataType::Timestamp,
            Self::TimestampTz => DataType::TimestampTz,
            Self::Uuid => DataType::Uuid,
        }
    }

    /// The name of the array's type.
    pub(crate) fn array_name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean[]",
            Self::SmallInt => "smallint[]",
            Self::Integer => "integer[]",
            Self::BigInt => "bigint[]",
            Self::Real => "real[]",
            Self::Double => "double precision[]",
            Self::Numeric => "numeric[]",
            Self::Text => "text[]",
            Self::Char => "character[]",
            Self::Bytea => "bytea[]",
            Self::Date => "date[]",
            Self::Timestamp => "timestamp without time zone[]",
            Self::TimestampTz => "timestamp with time zone[]",
            Self::Uuid => "uuid[]",
        }
    }
}

/// An array as text.
pub(crate) fn written(elements: &[Value], element: Element) -> String {
    let mut text = Writer::new(element);
    elements.iter().for_each(|value| text.push(value));
    text.finish()
}

/// An array that is written element by element.
pub struct Writer {
    text: String,
    element: Element,
}

impl Writer {
    /// An array without elements yet.
    pub fn new(element: Element) -> Self {
        Self { text: String::from("{"), element }
    }

    /// Adds an element.
    pub fn push(&mut self, value: &Value) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        match value {
            Value::Null => self.text.push_str("NULL"),
            value => self.text.push_str(&quoted(value.to_text(self.element.data_type()))),
        }
    }

    /// The array as text.
    pub fn finish(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

fn quoted(text: String) -> String {
    let special = |c: char| matches!(c, '{' | '}' | ',' | '"' | '\\') || is_space(c);
    if !text.is_empty() && !text.contains(special) && !text.eq_ignore_ascii_case("null") {
        return text;
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Whether arrays ignore a character around their elements: PostgreSQL's six, and no other of Unicode's.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// An upper bound for the bytes in memory of the elements of an array's text.
pub(crate) fn elements_bytes(text: &str) -> usize {
    let count = 1 + text.bytes().filter(|byte| *byte == b',').count();
    text.len() + count * size_of::<Value>()
}

/// The elements of an array's text.
///
/// # Errors
/// SQLSTATE 22P02 for a text that is no array, 0A000 for several dimensions, and the errors of the elements.
pub(crate) fn read(text: &str, element: Element) -> Result<Vec<Value>, SqlError> {
    let mut elements = Vec::new();
    for_each(text, |one| {
        elements.push(value_of(one, element)?);
        Ok(())
    })?;
    Ok(elements)
}

/// The one form of an array's text.
///
/// # Errors
/// As [`read`].
pub(crate) fn formed(text: &str, element: Element) -> Result<String, SqlError> {
    converted(text, element, element, Ok)
}

/// An array's text with every element converted by `convert`, in order.
///
/// # Errors
/// As [`read`], and those of `convert`.
pub(crate) fn converted(
    text: &str,
    from: Element,
    to: Element,
    convert: impl Fn(Value) -> Result<Value, SqlError>,
) -> Result<String, SqlError> {
    let mut converted = Writer::new(to);
    for_each(text, |one| {
        converted.push(&convert(value_of(one, from)?)?);
        Ok(())
    })?;
    Ok(converted.finish())
}

fn value_of(text: Option<&str>, element: Element) -> Result<Value, SqlError> {
    text.map_or(Ok(Value::Null), |text| Value::from_text(text, element.data_type()))
}

/// Passes the elements of an array's text to `take`, as texts; None is NULL.
///
/// # Errors
/// SQLSTATE 22P02 for a text that is no array, 0A000 for several dimensions, and the errors of `take`.
pub fn for_each(
    text: &str,
    mut take: impl FnMut(Option<&str>) -> Result<(), SqlError>,
) -> Result<(), SqlError> {
    aside::check(text.len());
    let malformed = || SqlError::new("22P02", format!("malformed array literal: \"{text}\""));
    let inner =
        text.trim_matches(is_space).strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let inner = inner.ok_or_else(malformed)?;
    if inner.chars().all(is_space) {
        return Ok(());
    }
    let mut element = String::new();
    let (mut quoted, mut was_quoted) = (false, false);
    let mut characters = inner.chars().chain(std::iter::once(','));
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                if element.chars().all(is_space) && !was_quoted {
                    // Blanks before the quotes do not belong to the element.
                    element.clear();
                }
                quoted = !quoted;
                was_quoted = true;
            }
            '\\' => element.push(characters.next().ok_or_else(malformed)?),
            '{' if !quoted && element.chars().all(is_space) => {
                return Err(SqlError::unsupported("an array of several dimensions"));
            }
            '{' | '}' if !quoted => return Err(malformed()),
            ',' if !quoted => {
                let bare =
                    if was_quoted { element.as_str() } else { element.trim_matches(is_space) };
                if bare.is_empty() && !was_quoted {
                    return Err(malformed());
                }
                let is_null = !was_quoted && bare.eq_ignore_ascii_case("null");
                take((!is_null).then_some(bare))?;
                element.clear();
                was_quoted = false;
            }
            other if was_quoted && !quoted && is_space(other) => {}
            other => element.push(other),
        }
    }
    if quoted { Err(malformed()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_arrays_have_one_form() {
        let form = |text: &str, element| written(&read(text, element).expect(text), element);
        assert_eq!(form(" { 1 , null,3 } ", Element::Integer), "{1,NULL,3}");
        assert_eq!(
            form(r#"{a b,"", "null" ,"x\"y"}"#, Element::Text),
            r#"{"a b","","null","x\"y"}"#
        );
        assert_eq!(form("{}", Element::Date), "{}");
        // A no-break space is a character like any other.
        assert_eq!(form("{ \u{a0}\t}", Element::Text), "{\u{a0}}");
        assert_eq!(form("{\"\x0b\"}", Element::Text), "{\"\x0b\"}");
        let code = |text: &str| read(text, Element::Integer).expect_err(text).code;
        for text in ["1", "{1", "{1,}", "{a}", "{\"1}", "{1}}", "{\\"] {
            assert_eq!(code(text), "22P02", "{text}");
        }
        assert_eq!(code("{{1},{2}}"), "0A000");
    }

    proptest! {
        #[test]
        fn written_arrays_are_read_back(texts in proptest::collection::vec(any::<Option<String>>(), 0..5)) {
            let value = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
            let values: Vec<Value> = texts.iter().map(value).collect();
            let text = written(&values, Element::Text);
            prop_assert_eq!(read(&text, Element::Text), Ok(values));
        }
    }
}
