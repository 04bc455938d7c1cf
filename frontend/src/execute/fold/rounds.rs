//! The answers of the primaries to a program, part by part of a table.
//!
//! Workers of the statement's node share a large table (`shares`).
//!
//! *Invariant*: each row counts once, though buckets are split meanwhile. The commit finds that out, but for a table that no other transaction
//! can reach: its commit would fail because of splits alone. Such a fold is validated when it ends.

use std::collections::VecDeque;
use std::sync::Arc;

use gannet_engine::{Deferred, FoldRest, TableId};

use crate::error::Failure;
use crate::execute::Context;
use crate::execute::fold::shares::{Next, Shares};

/// Rounds of a fold before other workers help: the table is large.
const ROUNDS_ALONE: usize = 2;

/// What comes next of a fold.
pub(in crate::execute) enum Answer {
    /// The result of a part of the table.
    Part(Vec<u8>),
    /// A primary does not know the program.
    Unknown,
    /// Buckets were split meanwhile: some rows may have counted twice, or not.
    Changed,
    /// Everything is folded.
    End,
}

/// A fold that goes on.
pub(in crate::execute) struct Rounds {
    table: TableId,
    program: Arc<[u8]>,
    /// Of a table that no other transaction can reach, what was read of it.
    own: Option<Deferred>,
    /// What is left that the statement folds itself.
    rest: FoldRest,
    rounds: usize,
    /// Of a large table, what is left for the statement and its helpers.
    shares: Option<Shares>,
    /// Since when it has waited for helpers.
    waits_since_ns: Option<u64>,
    /// Answers that were not taken yet.
    waiting: VecDeque<Vec<u8>>,
}

impl Rounds {
    /// Of a whole table.
    pub(in crate::execute) fn new(
        table: TableId,
        program: Vec<u8>,
        context: &Context<'_, '_>,
    ) -> Self {
        Self {
            table,
            program: program.into(),
            own: context.is_unshared(table).then(Deferred::new),
            rest: FoldRest::whole(),
            rounds: 0,
            shares: None,
            waits_since_ns: None,
            waiting: VecDeque::new(),
        }
    }

    /// The next answer.
    pub(in crate::execute) fn next(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Answer, Failure> {
        loop {
            if let Some(answer) = self.waiting.pop_front() {
                return Ok(Answer::Part(answer));
            }
            let next = match &self.shares {
                Some(shares) => shares.next(!self.rest.is_empty()),
                None if self.rest.is_empty() => Next::End,
                None => Next::GoOn,
            };
            let answers = match next {
                Next::Round(round) => {
                    self.waits_since_ns = None;
                    Some(context.adopt_fold(round, self.own.as_mut())?)
                }
                Next::GoOn => self.go_on(context)?,
                Next::Share(share) => {
                    self.rest = share;
                    continue;
                }
                Next::Wait => {
                    if !context.wait_for_helper(&mut self.waits_since_ns)? {
                        self.shares.iter().for_each(Shares::take_back);
                    }
                    continue;
                }
                Next::End => {
                    let is_whole = self.own.take().map(|own| context.is_whole(own)).transpose()?;
                    let is_changed = is_whole == Some(false);
                    return Ok(if is_changed { Answer::Changed } else { Answer::End });
                }
            };
            match answers {
                Some(answers) => self.waiting.extend(answers),
                None => return Ok(Answer::Unknown),
            }
        }
    }

    /// Folds a part itself.
    fn go_on(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        self.rounds += 1;
        let own = self.own.as_mut();
        let answers = context.fold(self.table, &self.program, &mut self.rest, own)?;
        let goes_on = answers.is_some() && !self.rest.is_empty();
        if self.shares.is_none() && self.rounds == ROUNDS_ALONE && goes_on {
            let at = (&*context.resources.database.cluster, context.coordinator.node());
            self.shares = Some(Shares::new(at, self.table, &self.program, &self.rest));
            self.rest = FoldRest::nothing();
        }
        Ok(answers)
    }
}
