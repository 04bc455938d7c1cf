//! A check that operators let others have their thread: with every row that one is given or gives, it calls `Context::pace`.
//!
//! It counts, so it finds the same on any machine; and it is not in release builds.

use crate::error::Failure;
use crate::execute::operator::Operator;
use crate::execute::{Context, Row};

/// Rows that an operator may have before it has paced them: several batches.
const ROWS_IN_HAND_MAX: usize = 10_000;

/// What the inputs of an operator have done since it was asked for rows.
#[derive(Default)]
pub(super) struct Inputs {
    rows: usize,
    paces: usize,
}

/// An operator that is checked.
pub(super) struct Paced<'p> {
    operator: Box<dyn Operator + 'p>,
    /// Whether it hands batches on as they are, which takes no time.
    hands_on: bool,
    /// Rows that it was given.
    taken: usize,
    given: usize,
    /// Times that it called `Context::pace`.
    paces: usize,
}

impl<'p> Paced<'p> {
    pub(super) fn checked(operator: Box<dyn Operator + 'p>, hands_on: bool) -> Self {
        Self { operator, hands_on, taken: 0, given: 0, paces: 0 }
    }
}

impl Operator for Paced<'_> {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let before = context.paces;
        let others = std::mem::take(&mut context.inputs);
        let batch = self.operator.next(context)?;
        let inputs = std::mem::replace(&mut context.inputs, others);
        let paces = context.paces - before;
        let given = batch.as_ref().map_or(0, Vec::len);
        self.taken += inputs.rows;
        self.given += given;
        self.paces += paces - inputs.paces;
        context.inputs.rows += given;
        context.inputs.paces += paces;
        let needed = self.taken.max(self.given);
        assert!(
            self.hands_on || self.paces + ROWS_IN_HAND_MAX >= needed,
            "an operator that has {needed} rows has let others go on {} times",
            self.paces
        );
        Ok(batch)
    }
}
