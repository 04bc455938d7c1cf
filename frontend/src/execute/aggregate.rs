//! GROUP BY: a state for each group and aggregate. Rows of groups that do not fit into memory go to temporary files, if there
//! is a directory for them.
//!
//! ```text
//! row ─ key of its group ─┬─ in memory: each state takes its value
//!                         └─ else: partition of the key, read when the groups in memory have ended
//! ```
//! Groups in memory are found by a hash of their keys, and given in the order of their keys.
//!
//! *Not here*: the states (`expression/aggregate`), DISTINCT and ORDER BY inside an aggregate (`distinct`), files
//! (`partitions`).

use std::collections::{BTreeMap, btree_map};

use crate::aside::HELD_BYTES_MAX;
use crate::encoding::key;
use crate::error::Failure;
use crate::execute::context::{KEY_OVERHEAD_BYTES, row_bytes};
use crate::execute::distinct::{Taken, Values};
use crate::execute::operator::{Batch, Operator};
use crate::execute::partitions::Partitions;
use crate::execute::{Context, Row};
use crate::expression::Expression;
use crate::expression::aggregate::{Aggregate, State};
use crate::key_map::{EncodedKey, KeyMap};
use crate::memory::Charge;
use crate::value::Value;

/// The groups of its input, as rows of keys and results.
pub(super) struct Aggregation<'p> {
    /// None after the input was read.
    input: Option<Box<dyn Operator + 'p>>,
    keys: &'p [Expression],
    aggregates: &'p [Aggregate],
    /// Whether the rows of the input are keys and states of parts of groups.
    has_states: bool,
    groups: btree_map::IntoIter<EncodedKey, Group>,
    charge: Charge,
    /// For each aggregate with DISTINCT or an order, its values.
    values: Vec<Option<Values<'p>>>,
    /// Rows of groups that are not in memory.
    others: Partitions,
}

impl Drop for Aggregation<'_> {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.groups));
    }
}

struct Group {
    keys: Row,
    states: Vec<State>,
}

impl<'p> Aggregation<'p> {
    pub(super) fn new(
        input: Box<dyn Operator + 'p>,
        keys: &'p [Expression],
        aggregates: &'p [Aggregate],
    ) -> Self {
        Self {
            input: Some(input),
            keys,
            aggregates,
            has_states: false,
            groups: BTreeMap::new().into_iter(),
            charge: Charge::default(),
            values: Vec::new(),
            others: Partitions::default(),
        }
    }

    /// As [`Self::new`], of an input whose rows are states of parts of groups (`fold/partial`).
    pub(super) fn of_states(
        input: Box<dyn Operator + 'p>,
        keys: &'p [Expression],
        aggregates: &'p [Aggregate],
    ) -> Self {
        let mut aggregation = Self::new(input, keys, aggregates);
        aggregation.has_states = true;
        aggregation
    }

    fn group(&self, keys: Row) -> Group {
        Group { keys, states: self.aggregates.iter().map(State::new).collect() }
    }

    /// Approximate bytes of a group without values.
    fn group_bytes(&self, keys: &Row, key_bytes: usize) -> usize {
        let states_bytes = self.aggregates.len() * size_of::<State>();
        row_bytes(keys) + key_bytes + KEY_OVERHEAD_BYTES + states_bytes
    }

    fn add(
        &mut self,
        key: &[u8],
        group: &mut Group,
        row: &Row,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if self.has_states {
            let (parts, _) = row[self.keys.len()..].as_chunks::<2>();
            for (state, part) in group.states.iter_mut().zip(parts) {
                let kept = state.merge(part.clone())?;
                self.charge.add(context.budget(), kept)?;
            }
            return Ok(());
        }
        let values = self.values.iter_mut().zip(&mut group.states);
        for (aggregate, (values, state)) in self.aggregates.iter().zip(values) {
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
            let taken = match values {
                Some(values) => {
                    values.take(key, [value, separator.unwrap_or(Value::Null)], row, context)?
                }
                None => {
                    let kept = state.add(value, separator.as_ref())?;
                    self.charge.add(context.budget(), kept)?;
                    None
                }
            };
            if let Some(taken) = taken {
                add_to(state, taken, &mut self.charge, context)?;
            }
        }
        Ok(())
    }

    fn aggregate(
        &mut self,
        input: Box<dyn Operator + 'p>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let mut groups = KeyMap::default();
        let filled = self.fill(&mut groups, input, context);
        let (mut found, mut sorted) = (groups.into_iter(), BTreeMap::new());
        let ended = filled.and_then(|()| {
            found.by_ref().try_for_each(|(key, group)| {
                sorted.insert(key, group);
                context.pace()
            })
        });
        match ended {
            Ok(()) => self.groups = sorted.into_iter(),
            Err(_) => self.charge.dispose((found, sorted)),
        }
        ended
    }

    fn fill(
        &mut self,
        groups: &mut KeyMap<Group>,
        mut input: Box<dyn Operator + 'p>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        self.values = self.aggregates.iter().map(Values::new).collect();
        if self.keys.is_empty() {
            // Without GROUP BY there is one row, even for an empty input.
            groups.insert_new(&[], self.group(Vec::new()));
        }
        let (mut keys, mut key) = (Row::new(), Vec::new());
        while let Some(batch) = input.next(context)? {
            for row in batch {
                context.pace()?;
                context.values_into(&mut keys, self.keys, &row)?;
                key.clear();
                keys.iter().for_each(|value| key::push(&mut key, value));
                if let Some(group) = groups.get_mut(&key) {
                    self.add(&key, group, &row, context)?;
                    continue;
                }
                let bytes = self.group_bytes(&keys, key.len());
                if !self.others.fits(&mut self.charge, bytes, context)? {
                    self.others.put(&key, &row, context)?;
                    continue;
                }
                let mut group = self.group(std::mem::take(&mut keys));
                self.add(&key, &mut group, &row, context)?;
                groups.insert_new(&key, group);
            }
        }
        for number in 0..self.values.len() {
            let Some(values) = &mut self.values[number] else { continue };
            while let Some((key, taken)) = values.next_distinct(context)? {
                if let Some(group) = groups.get_mut(&key) {
                    add_to(&mut group.states[number], taken, &mut self.charge, context)?;
                }
            }
            values.sort(context)?;
        }
        Ok(())
    }

    fn finished(
        &mut self,
        key: &[u8],
        group: Group,
        context: &mut Context<'_, '_>,
    ) -> Result<Row, Failure> {
        let mut row = group.keys;
        for (mut state, values) in group.states.into_iter().zip(&mut self.values) {
            if let Some(values) = values {
                while let Some(taken) = values.next_of(key, context)? {
                    add_to(&mut state, taken, &mut self.charge, context)?;
                }
            }
            row.push(match state.unfinished_bytes() > HELD_BYTES_MAX {
                true => context.computed_aside(move |_| state.finish())?,
                false => state.finish()?,
            });
        }
        Ok(row)
    }
}

/// Adds a value to a state, with its separator.
fn add_to(
    state: &mut State,
    [value, separator]: Taken,
    charge: &mut Charge,
    context: &Context<'_, '_>,
) -> Result<(), Failure> {
    let kept = state.add(value, Some(&separator))?;
    Ok(charge.add(context.budget(), kept)?)
}

impl Operator for Aggregation<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        loop {
            if let Some(input) = self.input.take() {
                self.aggregate(input, context)?;
            }
            let mut batch = Batch::default();
            while !batch.is_full()
                && let Some((key, group)) = self.groups.next()
            {
                context.pace()?;
                self.charge.release(self.group_bytes(&group.keys, key.len()));
                batch.push(self.finished(&key, group, context)?);
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
