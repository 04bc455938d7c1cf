//! Rows that are numbered, and rows that are given once for each element of an array.

use crate::array::{self, Element};
use crate::error::{Failure, SqlError};
use crate::execute::operator::{Operator, row_key};
use crate::execute::{BATCH_ROWS, Context, Row};
use crate::expression::Expression;
use crate::value::Value;

/// Numbers rows that come in order, from 1 wherever some columns change.
pub(super) struct RowNumbers<'p> {
    input: Box<dyn Operator + 'p>,
    /// Where the number is put.
    column: usize,
    partition: &'p [usize],
    last: Option<Vec<u8>>,
    number: i64,
}

impl<'p> RowNumbers<'p> {
    pub(super) fn new(
        input: Box<dyn Operator + 'p>,
        column: usize,
        partition: &'p [usize],
    ) -> Self {
        Self { input, column, partition, last: None, number: 0 }
    }
}

impl Operator for RowNumbers<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let Some(mut batch) = self.input.next(context)? else { return Ok(None) };
        for row in &mut batch {
            let values: Row = self.partition.iter().map(|column| row[*column].clone()).collect();
            let key = row_key(&values);
            if self.last.as_ref() != Some(&key) {
                self.last = Some(key);
                self.number = 0;
            }
            self.number += 1;
            row[self.column] = Value::Integer(self.number);
        }
        Ok(Some(batch))
    }
}

/// Gives each row once for every element of arrays. A text such as `1 3`, as the catalog has them, is an array whose
/// subscripts begin with 0.
pub(super) struct Elements<'p> {
    input: Box<dyn Operator + 'p>,
    vectors: &'p [(Expression, Element)],
    /// Rows of the input that were not expanded yet.
    waiting: std::vec::IntoIter<Row>,
}

impl<'p> Elements<'p> {
    pub(super) fn new(input: Box<dyn Operator + 'p>, vectors: &'p [(Expression, Element)]) -> Self {
        Self { input, vectors, waiting: Vec::new().into_iter() }
    }
}

/// The elements of an array, and the subscript of the first.
fn elements(array: &Value, element: Element) -> Result<(Vec<Value>, i64), SqlError> {
    let Value::Text(text) = array else { return Ok((Vec::new(), 1)) };
    if text.starts_with('{') {
        return Ok((array::read(text, element)?, 1));
    }
    let values = text.split_whitespace().map(|one| Value::from_text(one, element.data_type()));
    Ok((values.collect::<Result<_, _>>()?, 0))
}

impl Elements<'_> {
    fn expand(
        &self,
        row: &Row,
        expanded: &mut Vec<Row>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let mut arrays = Vec::with_capacity(self.vectors.len());
        for (vector, element) in self.vectors {
            arrays.push(elements(&context.value(vector, row)?, *element)?);
        }
        let count = arrays.iter().map(|(values, _)| values.len()).max().unwrap_or(0);
        for (number, place) in (0..count).zip(0_i64..) {
            let mut row = row.clone();
            for (values, first) in &arrays {
                row.extend(match values.get(number) {
                    Some(value) => {
                        [value.clone(), Value::Integer(place + 1), Value::Integer(place + first)]
                    }
                    None => [Value::Null, Value::Null, Value::Null],
                });
            }
            expanded.push(row);
        }
        Ok(())
    }
}

impl Operator for Elements<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut expanded = Vec::new();
        while expanded.len() < BATCH_ROWS {
            if let Some(row) = self.waiting.next() {
                context.check_cancel()?;
                self.expand(&row, &mut expanded, context)?;
                continue;
            }
            match self.input.next(context)? {
                Some(batch) => self.waiting = batch.into_iter(),
                None => break,
            }
        }
        Ok((!expanded.is_empty()).then_some(expanded))
    }
}
