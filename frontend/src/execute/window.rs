//! Rows that are numbered, and rows that are given once for each element of a vector.

use crate::error::Failure;
use crate::execute::operator::{Operator, row_key};
use crate::execute::{Context, Row};
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

/// Gives each row once for every number in a text such as `1 3`, with the number and its place behind its columns.
pub(super) struct Elements<'p> {
    input: Box<dyn Operator + 'p>,
    vector: &'p Expression,
}

impl<'p> Elements<'p> {
    pub(super) fn new(input: Box<dyn Operator + 'p>, vector: &'p Expression) -> Self {
        Self { input, vector }
    }
}

impl Operator for Elements<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        while let Some(batch) = self.input.next(context)? {
            let mut expanded = Vec::with_capacity(batch.len());
            for row in batch {
                let Value::Text(vector) = context.value(self.vector, &row)? else { continue };
                let numbers = vector.split(' ').filter_map(|number| number.parse().ok());
                for (place, number) in (1..).zip(numbers) {
                    let mut row = row.clone();
                    row.extend([Value::Integer(number), Value::Integer(place)]);
                    expanded.push(row);
                }
            }
            if !expanded.is_empty() {
                return Ok(Some(expanded));
            }
        }
        Ok(None)
    }
}
