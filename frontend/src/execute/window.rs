//! Two operators: row numbers (ROW_NUMBER), and rows repeated for each element of an array (unnest).
//!
//! *Invariants*: the rows that are numbered come sorted, those of a partition together. Of several arrays the longest one
//! tells how many rows there are; the others give NULL. Each array gives three columns: element, place from 1, and
//! subscript. A row whose arrays are all empty or NULL is left out. The elements of one row are charged.
//!
//! *Source*: PostgreSQL 15, sections 9.22 and 9.19.
//!
//! *Not here*: other window functions, which are refused when a statement is planned (`plan/window`).

use crate::array::Element;
use crate::error::Failure;
use crate::execute::operator::{Batch, Operator, row_key};
use crate::execute::{Context, Row};
use crate::expression::Expression;
use crate::expression::evaluate::elements_of;
use crate::memory::Charge;
use crate::value::Value;

/// Numbers sorted rows, from 1 whenever some columns change.
pub(super) struct RowNumbers<'p> {
    input: Box<dyn Operator + 'p>,
    /// The column of the number.
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
            context.pace()?;
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

/// Repeats each row for every element of its arrays. A text such as `1 3`, as the catalog has them, is an array whose
/// subscripts begin with 0.
pub(super) struct Elements<'p> {
    input: Box<dyn Operator + 'p>,
    vectors: &'p [(Expression, Element)],
    /// Input rows that are not expanded yet.
    waiting: std::vec::IntoIter<Row>,
    /// The row that is being expanded.
    current: Option<Expanded>,
}

/// A row and its arrays.
struct Expanded {
    row: Row,
    /// For each array the elements, and the subscript of the first.
    arrays: Vec<(Vec<Value>, i64)>,
    /// The next element, counted from 0.
    place: usize,
    _charge: Charge,
}

impl Expanded {
    fn next(&mut self) -> Option<Row> {
        let count = self.arrays.iter().map(|(values, _)| values.len()).max().unwrap_or(0);
        if self.place >= count {
            return None;
        }
        let place = i64::try_from(self.place).unwrap_or(i64::MAX);
        let mut row = self.row.clone();
        for (values, first) in &self.arrays {
            row.extend(match values.get(self.place) {
                Some(value) => {
                    [value.clone(), Value::Integer(place + 1), Value::Integer(place + first)]
                }
                None => [Value::Null, Value::Null, Value::Null],
            });
        }
        self.place += 1;
        Some(row)
    }
}

impl<'p> Elements<'p> {
    pub(super) fn new(input: Box<dyn Operator + 'p>, vectors: &'p [(Expression, Element)]) -> Self {
        Self { input, vectors, waiting: Vec::new().into_iter(), current: None }
    }
}

/// The elements of an array, and the subscript of the first.
fn elements(
    array: Value,
    element: Element,
    context: &mut Context<'_, '_>,
) -> Result<(Vec<Value>, i64), Failure> {
    let Value::Text(text) = array else { return Ok((Vec::new(), 1)) };
    if text.starts_with('{') {
        return Ok((elements_of(text, element, context)?, 1));
    }
    let mut values = Vec::new();
    for one in text.split_whitespace() {
        context.pace()?;
        values.push(Value::from_text(one, element.data_type())?);
        context.budget().check(values.len() * size_of::<Value>())?;
    }
    Ok((values, 0))
}

impl Elements<'_> {
    fn expand(&self, row: Row, context: &mut Context<'_, '_>) -> Result<Expanded, Failure> {
        let mut arrays = Vec::with_capacity(self.vectors.len());
        let mut charge = Charge::default();
        for (vector, element) in self.vectors {
            let (values, first) = elements(context.value(vector, &row)?, *element, context)?;
            charge.add(context.budget(), values.iter().map(Value::memory_bytes).sum())?;
            arrays.push((values, first));
        }
        Ok(Expanded { row, arrays, place: 0, _charge: charge })
    }
}

impl Operator for Elements<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let mut batch = Batch::default();
        while !batch.is_full() {
            context.pace()?;
            if let Some(row) = self.current.as_mut().and_then(Expanded::next) {
                batch.push(row);
                continue;
            }
            self.current = match self.waiting.next() {
                Some(row) => Some(self.expand(row, context)?),
                None => match self.input.next(context)? {
                    Some(batch) => {
                        self.waiting = batch.into_iter();
                        None
                    }
                    None => break,
                },
            };
        }
        Ok(batch.rows())
    }
}
