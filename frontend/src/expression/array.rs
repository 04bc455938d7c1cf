//! Functions on arrays.
//!
//! *Source*: PostgreSQL 15, sections 8.15 and 9.19.
//!
//! *Not here*: `unnest` and `generate_subscripts`, which become nodes of the plan (`plan/window`); `array_agg` (`aggregate`).

use crate::array::{self, Element};
use crate::error::SqlError;
use crate::expression::compare;
use crate::expression::function::{Facts, joined};
use crate::value::{DataType, Value};

/// A function on arrays, whose signature depends on the type of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayFunction {
    /// ARRAY[...].
    Make,
    /// `array[number]`.
    Element,
    /// Whether an array contains a value.
    Contains,
    /// The number of elements; NULL for an empty array, and for dimensions other than the first.
    Length,
    /// The number of elements; 0 for an empty array.
    Cardinality,
    /// The elements with a separator between them, without NULLs or with a text for NULL.
    Join,
}

impl ArrayFunction {
    /// Whether the result is NULL for a NULL argument.
    pub(crate) fn is_strict(self) -> bool {
        !matches!(self, Self::Make)
    }
}

/// The function with a name for some argument types, the types that it takes, and the type of its result.
pub(crate) fn find(
    name: &str,
    arguments: &[Option<DataType>],
) -> Option<(ArrayFunction, Element, Vec<DataType>, DataType)> {
    use DataType::{Integer, Text};
    let Some(Some(array @ DataType::Array(element))) = arguments.first().copied() else {
        return None;
    };
    let (function, types, result) = match (name, arguments.len()) {
        ("array_length" | "array_upper", 2) => {
            (ArrayFunction::Length, vec![array, Integer], Integer)
        }
        ("cardinality", 1) => (ArrayFunction::Cardinality, vec![array], Integer),
        ("array_to_string", 2) => (ArrayFunction::Join, vec![array, Text], Text),
        ("array_to_string", 3) => (ArrayFunction::Join, vec![array, Text, Text], Text),
        _ => return None,
    };
    Some((function, element, types, result))
}

/// The result of a function.
///
/// # Errors
/// SQLSTATE 53200 for a text that is larger than a statement may keep. Arrays are always well-formed here.
pub(crate) fn call(
    function: ArrayFunction,
    element: Element,
    arguments: &[Value],
    facts: &Facts,
) -> Result<Value, SqlError> {
    if function == ArrayFunction::Make {
        return Ok(Value::Text(array::written(arguments, element)));
    }
    let text = |number: usize| match arguments.get(number) {
        Some(Value::Text(text)) => Some(text.as_str()),
        _ => None,
    };
    let number = |number: usize| match arguments.get(number) {
        Some(Value::Integer(number)) => usize::try_from(*number).ok(),
        _ => None,
    };
    let whole = if function == ArrayFunction::Contains { 1 } else { 0 };
    let array = text(whole).unwrap_or("{}");
    facts.budget.check(array::elements_bytes(array))?;
    let mut elements = array::read(array, element)?;
    let count = Value::Integer(i64::try_from(elements.len()).unwrap_or(i64::MAX));
    Ok(match function {
        ArrayFunction::Make => Value::Null,
        ArrayFunction::Element => match number(1).and_then(|place| place.checked_sub(1)) {
            Some(place) if place < elements.len() => elements.swap_remove(place),
            _ => Value::Null,
        },
        ArrayFunction::Contains
            if elements.iter().any(|element| compare(element, &arguments[0]).is_eq()) =>
        {
            Value::Boolean(true)
        }
        ArrayFunction::Contains if elements.contains(&Value::Null) => Value::Null,
        ArrayFunction::Contains => Value::Boolean(false),
        ArrayFunction::Length if elements.is_empty() || number(1) != Some(1) => Value::Null,
        ArrayFunction::Length | ArrayFunction::Cardinality => count,
        ArrayFunction::Join => {
            let shown = |value: &Value| match value {
                Value::Null => text(2).map(str::to_owned),
                value => Some(value.to_text(element.data_type())),
            };
            let texts: Vec<String> = elements.iter().filter_map(shown).collect();
            Value::Text(joined(&texts, text(1).unwrap_or_default(), facts)?)
        }
    })
}
