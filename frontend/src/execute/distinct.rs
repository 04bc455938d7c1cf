//! The values of an aggregate with DISTINCT or ORDER BY, which wait until all rows were read.
//!
//! ```text
//! value ── seen before? ── sorted by group and order ── taken by the state
//!          DISTINCT        ORDER BY
//! ```
//!
//! The values of all groups are kept together, so that few files hold those beyond memory.
//!
//! *Not here*: aggregates that take their values at once (`aggregate`).

use crate::encoding::key;
use crate::error::Failure;
use crate::execute::operator::Operator;
use crate::execute::partitions::Seen;
use crate::execute::runs::Keyed;
use crate::execute::sort::{Sorted, Sorter};
use crate::execute::{Context, Row};
use crate::expression::aggregate::Aggregate;
use crate::value::Value;

/// A value and its separator.
pub(super) type Taken = [Value; 2];
/// The key of a group, and a value with its separator.
type OfGroup = (Vec<u8>, Taken);

/// Waiting values. They are sorted by the key of their group first.
pub(super) struct Values<'p> {
    /// Number of columns that the values are sorted by.
    width: usize,
    /// With DISTINCT, the values seen: group and value as one key.
    seen: Option<Seen>,
    /// Values that did not fit into `seen`.
    unseen: Unseen,
    sorter: Option<Sorter<'p>>,
    sorted: Option<Sorted<'p>>,
    /// The first waiting value.
    next: Option<Keyed>,
}

/// Values in files, which are not yet compared with those seen.
#[derive(Default)]
struct Unseen {
    input: Option<Box<dyn Operator>>,
    rows: std::vec::IntoIter<Row>,
}

impl<'p> Values<'p> {
    /// The values of an aggregate with DISTINCT or ORDER BY; None for another aggregate.
    pub(super) fn new(aggregate: &'p Aggregate) -> Option<Self> {
        let is_ordered = !aggregate.order.is_empty();
        (aggregate.distinct || is_ordered).then(|| Self {
            width: aggregate.order.len().max(1),
            seen: aggregate.distinct.then(Seen::default),
            unseen: Unseen::default(),
            sorter: is_ordered.then(|| Sorter::new(&aggregate.order, usize::MAX)),
            sorted: None,
            next: None,
        })
    }

    /// Keeps a row's value, or gives it back if the aggregate takes it now.
    pub(super) fn take(
        &mut self,
        group: &[u8],
        value: Taken,
        row: &Row,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Taken>, Failure> {
        let Some(distinct) = self.unseen_key(group, &value[0]) else { return Ok(None) };
        let mut key = match &self.sorter {
            Some(sorter) => sorter.key(row, context)?,
            None => vec![Value::Null],
        };
        key[0] = Value::Bytea(group.to_vec());
        self.keep(distinct, (key, value), context)
    }

    /// Group and value as one key, unless they were seen; an empty key without DISTINCT.
    fn unseen_key(&self, group: &[u8], value: &Value) -> Option<Vec<u8>> {
        let Some(seen) = &self.seen else { return Some(Vec::new()) };
        let mut bytes = group.to_vec();
        key::push(&mut bytes, value);
        (!seen.contains(&bytes)).then_some(bytes)
    }

    fn keep(
        &mut self,
        distinct: Vec<u8>,
        (key, value): (Row, Taken),
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Taken>, Failure> {
        if let Some(seen) = &mut self.seen {
            let row = || key.iter().chain(&value).cloned().collect();
            if !seen.add(&distinct, row, context)? {
                return Ok(None);
            }
        }
        match &mut self.sorter {
            Some(sorter) => {
                sorter.put((key, value.into()), context)?;
                Ok(None)
            }
            None => Ok(Some(value)),
        }
    }

    /// After all rows were read: the next distinct value of those in files, with its group's key.
    pub(super) fn next_distinct(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<OfGroup>, Failure> {
        loop {
            context.pace()?;
            if let Some(mut key) = self.unseen.rows.next() {
                let value = value_of(key.split_off(self.width));
                let Some(Value::Bytea(group)) = key.first().cloned() else { continue };
                let Some(distinct) = self.unseen_key(&group, &value[0]) else { continue };
                if let Some(value) = self.keep(distinct, (key, value), context)? {
                    return Ok(Some((group, value)));
                }
            } else if let Some(input) = &mut self.unseen.input {
                match input.next(context)? {
                    Some(rows) => self.unseen.rows = rows.into_iter(),
                    None => self.unseen.input = None,
                }
            } else {
                let Some(seen) = &mut self.seen else { return Ok(None) };
                self.unseen.input = seen.next(context)?;
                if self.unseen.input.is_none() {
                    return Ok(None);
                }
            }
        }
    }

    /// Sorts the values if they have an order. Then they can be taken group by group.
    pub(super) fn sort(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        self.sorted = match self.sorter.take() {
            Some(sorter) => Some(sorter.finish(context)?),
            None => None,
        };
        Ok(())
    }

    /// The next sorted value of a group. Callers ask for groups in the order of their keys.
    pub(super) fn next_of(
        &mut self,
        group: &[u8],
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Taken>, Failure> {
        let Some(sorted) = &mut self.sorted else { return Ok(None) };
        if self.next.is_none() {
            self.next = sorted.next_keyed(context)?;
        }
        let is_its_own = |(key, _): &mut Keyed| matches!(&key[0], Value::Bytea(of) if of == group);
        Ok(self.next.take_if(is_its_own).map(|(_, value)| value_of(value)))
    }
}

/// A value and its separator.
fn value_of(mut row: Row) -> Taken {
    let separator = row.pop().unwrap_or(Value::Null);
    [row.pop().unwrap_or(Value::Null), separator]
}
