//! A filter that is evaluated where the rows are: each primary sends the rows that pass. Without a filter all pass.
//!
//! ```text
//! answer   row, row, ...     of one part of the table
//! row      key length 4 │ value length + 1, or 0 if it was not looked at 4 │ key │ value
//! ```
//! *Invariants*: a row that is left out does not pass. One whose filter met an error, or would take long, is sent; of one that is long the
//! key alone. The statement evaluates the filter again.
//!
//! *Not here*: when a scan begins to filter there (`execute/filtered`).

use gannet_engine::FoldProgram;
use serde::{Deserialize, Serialize};

use crate::encoding::row::{self, Wanted};
use crate::error::SqlError;
use crate::expression::Expression;
use crate::expression::evaluate::holds;
use crate::fold::environment::Rows;
use crate::fold::expressions::{Step, expression_of, steps_of};
use crate::value::Value;

/// Bytes of rows from which on a result is full. Of further rows of the bucket the keys alone are sent.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Longest row that is looked at: the worker's other transactions wait.
const ROW_BYTES_MAX: usize = 16 << 10;

/// A row that a primary has sent: its key, and its value unless the row was not looked at.
pub(crate) type Passed<'a> = (&'a [u8], Option<&'a [u8]>);

/// The rows whose keys are greater than one, and that pass a filter, if there is one; as it is sent.
#[derive(Serialize, Deserialize)]
pub(super) struct SentFilter {
    after: Vec<u8>,
    wanted: Vec<bool>,
    missing: Vec<u8>,
    filter: Option<Vec<Step>>,
}

impl SentFilter {
    /// As [`super::Program::filter`].
    pub(super) fn new(
        filter: Option<&Expression>,
        missing: &[Value],
        after: &[u8],
        value: &mut impl FnMut(&Expression) -> Option<Value>,
    ) -> Option<Self> {
        let mut wanted = vec![false; missing.len()];
        let filter = match filter {
            Some(filter) => {
                filter.for_each_column(&mut |column| wanted[column] = true);
                Some(steps_of(filter, value)?)
            }
            None => None,
        };
        Some(Self { after: after.to_vec(), wanted, missing: row::encode(missing), filter })
    }

    /// The program that it is, if it is one.
    pub(super) fn read(self) -> Option<Filtering> {
        let missing = row::decode_whole(&self.missing).ok()?;
        Some(Filtering {
            after: self.after,
            wanted: Wanted::Some(self.wanted),
            filter: match self.filter {
                Some(steps) => Some(expression_of(steps, missing.len())?),
                None => None,
            },
            missing,
            rows: Rows::default(),
            values: Vec::new(),
            passed: Vec::new(),
        })
    }
}

/// A filter with the rows that have passed.
pub(crate) struct Filtering {
    after: Vec<u8>,
    wanted: Wanted,
    missing: Vec<Value>,
    filter: Option<Expression>,
    rows: Rows,
    /// The present row.
    values: Vec<Value>,
    passed: Vec<u8>,
}

impl Filtering {
    /// Whether a row passes, or may.
    fn passes(&mut self, bytes: &[u8]) -> bool {
        let Self { wanted, missing, filter, rows, values, .. } = self;
        let Some(filter) = filter else { return true };
        row::decode_into(bytes, wanted, missing, values).is_err()
            || holds(filter, values, rows).unwrap_or(true)
    }
}

impl FoldProgram for Filtering {
    fn row(&mut self, key: &[u8], value: &[u8]) {
        if *key <= *self.after {
            return;
        }
        let is_looked_at = value.len() <= ROW_BYTES_MAX && !self.is_full();
        if is_looked_at && !self.passes(value) {
            return;
        }
        let sent = if is_looked_at { value } else { &[] };
        let lengths = [key.len(), if is_looked_at { 1 + value.len() } else { 0 }];
        for length in lengths {
            let length = u32::try_from(length).expect("a row is at most 1 MiB long");
            self.passed.extend_from_slice(&length.to_le_bytes());
        }
        self.passed.extend_from_slice(key);
        self.passed.extend_from_slice(sent);
    }

    fn is_full(&self) -> bool {
        self.passed.len() >= ANSWER_BYTES_MAX
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.passed);
    }
}

/// The rows of an answer.
///
/// # Errors
/// SQLSTATE XX001 for bytes that are none.
pub(crate) fn passed(mut answer: &[u8]) -> Result<Vec<Passed<'_>>, SqlError> {
    let mut rows = Vec::new();
    while !answer.is_empty() {
        let (row, rest) = first_row(answer)
            .ok_or_else(|| SqlError::new("XX001", "a node sent malformed rows"))?;
        rows.push(row);
        answer = rest;
    }
    Ok(rows)
}

fn first_row(bytes: &[u8]) -> Option<(Passed<'_>, &[u8])> {
    let (key_bytes, rest) = bytes.split_first_chunk()?;
    let (value_bytes, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_bytes).try_into().ok()?)?;
    let value_bytes = u32::from_le_bytes(*value_bytes).checked_sub(1);
    let (value, rest) = rest.split_at_checked(value_bytes.unwrap_or(0).try_into().ok()?)?;
    Some(((key, value_bytes.map(|_| value)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Comparison;
    use crate::expression::function::Function;
    use crate::fold::{Program, read};
    use crate::value::DataType;

    /// 10 % n = 0 of rows (n, text), behind a key.
    fn filtering(after: &[u8]) -> Box<dyn FoldProgram> {
        let arguments = vec![Expression::Constant(Value::Integer(10)), Expression::Column(0)];
        let remainder = Expression::Call(Function::Remainder, DataType::BigInt, arguments);
        let zero = Box::new(Expression::Constant(Value::Integer(0)));
        let filter = Expression::Compare(Comparison::Equal, Box::new(remainder), zero);
        let mut value = |fixed: &Expression| match fixed {
            Expression::Constant(value) => Some(value.clone()),
            _ => None,
        };
        let missing = [Value::Null, Value::Text("missing".to_owned())];
        read(&Program::filter(Some(&filter), &missing, after, &mut value).unwrap()).unwrap()
    }

    fn value(number: i64, text_bytes: usize) -> Vec<u8> {
        row::encode(&[Value::Integer(number), Value::Text("x".repeat(text_bytes))])
    }

    #[test]
    fn rows_that_do_not_pass_are_left_out() {
        let mut program = filtering(b"b");
        for (key, number) in [(b"b", 1), (b"c", 2), (b"d", 3), (b"e", 5), (b"a", 5)] {
            program.row(key, &value(number, 3));
        }
        let mut answer = Vec::new();
        program.finish(&mut answer);
        let [two, five] = [value(2, 3), value(5, 3)];
        let expected: [Passed<'_>; 2] = [(b"c", Some(&two)), (b"e", Some(&five))];
        assert_eq!(passed(&answer).unwrap(), expected);
        answer.clear();
        program.finish(&mut answer);
        assert!(answer.is_empty(), "it begins again");
        program.row(b"c", &two);
        program.finish(&mut answer);
        for length in 1..answer.len() {
            assert!(passed(&answer[..length]).is_err());
        }
    }

    #[test]
    fn rows_that_are_not_looked_at_are_sent() {
        let mut program = filtering(b"");
        program.row(b"division by zero", &value(0, 3));
        program.row(b"malformed", b"\xff");
        program.row(b"long", &value(3, ROW_BYTES_MAX));
        let mut answer = Vec::new();
        program.finish(&mut answer);
        let zero = value(0, 3);
        let expected: [Passed<'_>; 3] =
            [(b"division by zero", Some(&zero)), (b"malformed", Some(b"\xff")), (b"long", None)];
        assert_eq!(passed(&answer).unwrap(), expected);
        // Rows of one bucket beyond the length of an answer.
        for number in 0..10 {
            assert_eq!(program.is_full(), number >= 7, "{number}");
            program.row(b"passes", &value(5, 10_000));
        }
        answer.clear();
        program.finish(&mut answer);
        let looked_at = passed(&answer).unwrap().into_iter().map(|(_, value)| value.is_some());
        assert!(looked_at.eq((0..10).map(|number| number < 7)));
    }
}
