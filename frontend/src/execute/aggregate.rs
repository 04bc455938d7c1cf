//! GROUP BY: one state per group and aggregate.

use std::collections::BTreeMap;

use crate::error::Failure;
use crate::execute::operator::{Operator, row_key, sort_order};
use crate::execute::scan::Waiting;
use crate::execute::{Context, Row};
use crate::expression::Expression;
use crate::expression::aggregate::{Aggregate, Kind, State};
use crate::value::Value;

/// The groups of its input, as rows of keys and results.
pub(super) struct Aggregation<'p> {
    input: Option<Box<dyn Operator + 'p>>,
    keys: &'p [Expression],
    aggregates: &'p [Aggregate],
    waiting: Waiting,
}

struct Group {
    keys: Row,
    states: Vec<State>,
    /// For each aggregate that takes its values in an order: the keys of that, the value, the separator.
    unordered: Vec<Vec<(Row, Value, Option<Value>)>>,
}

impl<'p> Aggregation<'p> {
    pub(super) fn new(
        input: Box<dyn Operator + 'p>,
        keys: &'p [Expression],
        aggregates: &'p [Aggregate],
    ) -> Self {
        Self { input: Some(input), keys, aggregates, waiting: Waiting::default() }
    }

    fn group(&self, keys: Row) -> Group {
        let states = self.aggregates.iter().map(State::new).collect();
        Group { keys, states, unordered: vec![Vec::new(); self.aggregates.len()] }
    }

    fn add(
        &self,
        group: &mut Group,
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
            let mut value = context.value(argument, row)?;
            let separator = match &aggregate.separator {
                Some(separator) => Some(context.value(separator, row)?),
                None => None,
            };
            if aggregate.distinct || matches!(aggregate.kind, Kind::Join | Kind::Collect) {
                // It is kept until the group is finished.
                let kept = [vec![value]];
                context.charge(&kept)?;
                let [mut kept] = kept;
                value = kept.pop().unwrap_or(Value::Null);
            }
            if aggregate.order.is_empty() {
                state.add(value, separator.as_ref())?;
                continue;
            }
            let keys: Result<Row, Failure> =
                aggregate.order.iter().map(|key| context.value(&key.expression, row)).collect();
            let keys = keys?;
            context.charge(std::slice::from_ref(&keys))?;
            unordered.push((keys, value, separator));
        }
        Ok(())
    }

    fn aggregate(
        &mut self,
        mut input: Box<dyn Operator + 'p>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if self.keys.is_empty() {
            // Without GROUP BY there is a row even of nothing.
            let mut all = self.group(Vec::new());
            while let Some(batch) = input.next(context)? {
                batch.iter().try_for_each(|row| self.add(&mut all, row, context))?;
            }
            return self.finish(all);
        }
        let mut groups: BTreeMap<Vec<u8>, Group> = BTreeMap::new();
        while let Some(batch) = input.next(context)? {
            for row in batch {
                let keys = context.values(self.keys, &row)?;
                let bytes = row_key(&keys);
                if !groups.contains_key(&bytes) {
                    context.charge(std::slice::from_ref(&keys))?;
                }
                let group = groups.entry(bytes).or_insert_with(|| self.group(keys));
                self.add(group, &row, context)?;
            }
        }
        groups.into_values().try_for_each(|group| self.finish(group))
    }

    fn finish(&mut self, group: Group) -> Result<(), Failure> {
        let mut row = group.keys;
        let states = group.states.into_iter().zip(group.unordered);
        for (aggregate, (mut state, mut unordered)) in self.aggregates.iter().zip(states) {
            unordered.sort_by(|a, b| sort_order(&aggregate.order, &a.0, &b.0));
            for (_, value, separator) in unordered {
                state.add(value, separator.as_ref())?;
            }
            row.push(state.finish()?);
        }
        self.waiting.extend([row]);
        Ok(())
    }
}

impl Operator for Aggregation<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        if let Some(input) = self.input.take() {
            self.aggregate(input, context)?;
        }
        Ok(self.waiting.batch())
    }
}
