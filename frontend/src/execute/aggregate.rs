//! GROUP BY: one state per group and aggregate. Rows of groups that do not fit memory go to temporary files, if there is a
//! directory for them.

use std::collections::{BTreeMap, btree_map};

use crate::error::Failure;
use crate::execute::context::{KEY_OVERHEAD_BYTES, row_bytes};
use crate::execute::operator::{Batch, Operator, row_key};
use crate::execute::partitions::Partitions;
use crate::execute::sort::Sorter;
use crate::execute::{Context, Row};
use crate::expression::Expression;
use crate::expression::aggregate::{Aggregate, State};
use crate::memory::Charge;
use crate::value::Value;

/// The groups of its input, as rows of keys and results.
pub(super) struct Aggregation<'p> {
    /// None once it was read.
    input: Option<Box<dyn Operator + 'p>>,
    keys: &'p [Expression],
    aggregates: &'p [Aggregate],
    groups: btree_map::IntoIter<Vec<u8>, Group<'p>>,
    charge: Charge,
    /// Rows of other groups.
    others: Partitions,
}

struct Group<'p> {
    keys: Row,
    states: Vec<State>,
    /// For each aggregate that takes its values in an order: rows of the value and the separator.
    unordered: Vec<Option<Sorter<'p>>>,
}

impl<'p> Aggregation<'p> {
    pub(super) fn new(
        input: Box<dyn Operator + 'p>,
        keys: &'p [Expression],
        aggregates: &'p [Aggregate],
    ) -> Self {
        let groups = BTreeMap::new().into_iter();
        let (charge, others) = (Charge::default(), Partitions::default());
        Self { input: Some(input), keys, aggregates, groups, charge, others }
    }

    fn group(&self, keys: Row) -> Group<'p> {
        let states = self.aggregates.iter().map(State::new).collect();
        let sorter = |aggregate: &'p Aggregate| {
            (!aggregate.order.is_empty()).then(|| Sorter::new(&aggregate.order, usize::MAX))
        };
        Group { keys, states, unordered: self.aggregates.iter().map(sorter).collect() }
    }

    /// About how many bytes a group takes before it has values.
    fn group_bytes(&self, keys: &Row, key_bytes: usize) -> usize {
        let state_bytes = size_of::<State>() + size_of::<Option<Sorter<'_>>>();
        row_bytes(keys) + key_bytes + KEY_OVERHEAD_BYTES + self.aggregates.len() * state_bytes
    }

    fn add(
        &mut self,
        group: &mut Group<'p>,
        row: &Row,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let states = group.states.iter_mut().zip(&mut group.unordered);
        for (aggregate, (state, unordered)) in self.aggregates.iter().zip(states) {
            if !context.holds(aggregate.filter.as_ref(), row)? {
                continue;
            }
            let Some(argument) = &aggregate.argument else {
                state.add_row();
                continue;
            };
            let value = context.value(argument, row)?;
            let separator = match &aggregate.separator {
                Some(separator) => Some(context.value(separator, row)?),
                None => None,
            };
            match unordered {
                Some(sorter) => {
                    let values = vec![value, separator.unwrap_or(Value::Null)];
                    sorter.push(values, Some(row), context)?;
                }
                None => {
                    let kept = state.add(value, separator.as_ref())?;
                    self.charge.add(context.budget(), kept)?;
                }
            }
        }
        Ok(())
    }

    fn aggregate(
        &mut self,
        mut input: Box<dyn Operator + 'p>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let mut groups: BTreeMap<Vec<u8>, Group<'p>> = BTreeMap::new();
        if self.keys.is_empty() {
            // Without GROUP BY there is a row even of nothing.
            groups.insert(Vec::new(), self.group(Vec::new()));
        }
        while let Some(batch) = input.next(context)? {
            context.check_cancel()?;
            for row in batch {
                let keys = context.values(self.keys, &row)?;
                let bytes = row_key(&keys);
                let group = match groups.entry(bytes) {
                    btree_map::Entry::Occupied(group) => group.into_mut(),
                    btree_map::Entry::Vacant(place) => {
                        let bytes = self.group_bytes(&keys, place.key().len());
                        if !self.others.fits(&mut self.charge, bytes, context)? {
                            self.others.put(place.key(), &row, context)?;
                            continue;
                        }
                        place.insert(self.group(keys))
                    }
                };
                self.add(group, &row, context)?;
            }
        }
        self.groups = groups.into_iter();
        Ok(())
    }

    fn finished(
        &mut self,
        group: Group<'p>,
        context: &mut Context<'_, '_>,
    ) -> Result<Row, Failure> {
        let mut row = group.keys;
        for (mut state, unordered) in group.states.into_iter().zip(group.unordered) {
            if let Some(sorter) = unordered {
                let mut sorted = sorter.finish(context)?;
                while let Some(batch) = sorted.next(context)? {
                    for mut values in batch {
                        let (separator, value) = (values.pop(), values.pop());
                        let kept = state.add(value.unwrap_or(Value::Null), separator.as_ref())?;
                        self.charge.add(context.budget(), kept)?;
                    }
                }
            }
            row.push(state.finish()?);
        }
        Ok(row)
    }
}

impl Operator for Aggregation<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            if let Some(input) = self.input.take() {
                self.aggregate(input, context)?;
            }
            context.check_cancel()?;
            let mut batch = Batch::default();
            while !batch.is_full()
                && let Some((key, group)) = self.groups.next()
            {
                self.charge.release(self.group_bytes(&group.keys, key.len()));
                batch.push(self.finished(group, context)?);
            }
            if let Some(rows) = batch.rows() {
                return Ok(Some(rows));
            }
            self.charge.clear();
            match self.others.next(context)? {
                Some(others) => self.input = Some(others),
                None => return Ok(None),
            }
        }
    }
}
