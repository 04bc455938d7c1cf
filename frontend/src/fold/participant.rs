//! Runs a program at a primary, row by row, on the worker's own thread.
//!
//! *Invariants*: a program takes bounded rows and has a bounded answer, as the worker's other transactions wait. A program that
//! meets more is given up, and the session computes its result.
//!
//! *Not here*: which rows a program gets, and their validation, in the engine.

use gannet_engine::FoldProgram;

use crate::encoding::{key, row};
use crate::error::Failure;
use crate::expression::aggregate::State;
use crate::expression::evaluate::{evaluate, holds};
use crate::fold::environment::Rows;
use crate::fold::partial::{Answer, row_of};
use crate::fold::program::{Groups, Program};
use crate::key_map::KeyMap;
use crate::value::Value;

/// Bytes of groups from which on a result is full.
const GROUPS_BYTES_MAX: usize = 64 << 10;
/// Bytes of groups with which a program is given up: rows of one bucket have made them.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest row that a program takes: the worker's other transactions wait.
const ROW_BYTES_MAX: usize = 16 << 10;

/// Reads a program; see [`gannet_engine::FoldPrograms`].
pub(crate) fn read(bytes: &[u8]) -> Option<Box<dyn FoldProgram>> {
    Some(match Program::read(bytes)? {
        Program::Groups(program) => Box::new(Running::new(program)),
        Program::Filter(filtering) => Box::new(filtering),
    })
}

/// A program with the groups that it has found.
struct Running {
    program: Groups,
    rows: Rows,
    /// The present row.
    values: Vec<Value>,
    /// Its group: the keys, and their bytes.
    keys: Vec<Value>,
    key: Vec<u8>,
    groups: Vec<Group>,
    /// Their places by their keys.
    numbers: KeyMap<usize>,
    group_bytes: usize,
    is_given_up: bool,
}

struct Group {
    keys: Vec<Value>,
    states: Vec<State>,
}

impl Running {
    fn new(program: Groups) -> Self {
        Self {
            program,
            rows: Rows::default(),
            values: Vec::new(),
            keys: Vec::new(),
            key: Vec::new(),
            groups: Vec::new(),
            numbers: KeyMap::default(),
            group_bytes: 0,
            is_given_up: false,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Self { program, rows, values, keys, key, groups, numbers, group_bytes, .. } = self;
        row::decode_into(bytes, &program.wanted, &program.missing, values)?;
        if let Some(filter) = &program.filter
            && !holds(filter, values, rows)?
        {
            return Ok(());
        }
        keys.clear();
        key.clear();
        for expression in &program.keys {
            let value = evaluate(expression, values, rows)?;
            key::push(key, &value);
            keys.push(value);
        }
        let number = match groups.len() {
            1 if keys.is_empty() => Some(0),
            _ => numbers.get(key).copied(),
        };
        let number = number.unwrap_or_else(|| {
            let states = program.aggregates.iter().map(State::new).collect();
            groups.push(Group { keys: std::mem::take(keys), states });
            *group_bytes += 2 * key.len() + size_of::<Value>() * program.aggregates.len();
            numbers.insert_new(key, groups.len() - 1);
            groups.len() - 1
        });
        for (aggregate, state) in program.aggregates.iter().zip(&mut groups[number].states) {
            if let Some(filter) = &aggregate.filter
                && !holds(filter, values, rows)?
            {
                continue;
            }
            match &aggregate.argument {
                Some(argument) => {
                    let value = evaluate(argument, values, rows)?;
                    *group_bytes += state.add(value, None)?;
                }
                None => state.add_row(),
            }
        }
        Ok(())
    }
}

impl FoldProgram for Running {
    fn row(&mut self, _: &[u8], value: &[u8]) {
        if !self.is_given_up {
            let is_taken = value.len() <= ROW_BYTES_MAX && self.take(value).is_ok();
            self.is_given_up = !is_taken || self.group_bytes > ANSWER_BYTES_MAX;
        }
    }

    fn is_full(&self) -> bool {
        self.is_given_up || self.group_bytes >= GROUPS_BYTES_MAX
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        let groups = std::mem::take(&mut self.groups);
        self.numbers.clear();
        self.group_bytes = 0;
        let rows: Vec<Vec<u8>>;
        let answer = if std::mem::take(&mut self.is_given_up) {
            Answer::GivenUp
        } else {
            rows = groups.iter().map(|group| row_of(&group.keys, &group.states)).collect();
            Answer::Groups(rows.iter().map(Vec::as_slice).collect())
        };
        let bytes = postcard::to_stdvec(&answer).expect("lists of bytes are serialised");
        out.extend_from_slice(&bytes);
    }
}
