//! Folds of a running statement: what they answer, and what its transaction depends on then.
//!
//! *Not here*: who folds (`execute/fold`, `execute/filtered`).

use gannet_engine::{Abort, Deferred, FoldRest, Misuse, TableId};

use crate::error::Failure;
use crate::execute::context::Context;

impl Context<'_, '_> {
    /// What primaries have computed by a program of a part of what is left of a table; None if one of them does not know the program.
    ///
    /// The commit depends on what was folded, or `own` does, if there is such a transaction.
    pub(in crate::execute) fn fold(
        &mut self,
        table: TableId,
        program: &[u8],
        rest: &mut FoldRest,
        own: Option<&mut Deferred>,
    ) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        self.begin_range(table)?;
        let Self { coordinator, transaction, .. } = self;
        let reads = own.unwrap_or(&mut transaction.deferred);
        let folded = reads.fold(coordinator, table, program, rest);
        self.charge_transaction()?;
        known_program(folded)
    }

    /// Whether all that a transaction has folded was there at one moment.
    pub(in crate::execute) fn is_whole(&mut self, mut folds: Deferred) -> Result<bool, Failure> {
        match folds.commit(self.coordinator) {
            Err(Abort::Conflict(_)) => Ok(false),
            ended => Ok(ended.map(|()| true)?),
        }
    }

    /// Whether no other transaction can reach a table.
    pub(in crate::execute) fn is_unshared(&self, table: TableId) -> bool {
        self.transaction.is_unshared(table)
    }

    /// Whether the transaction has written rows of a table.
    pub(in crate::execute) fn has_written(&self, table: TableId) -> bool {
        self.transaction.deferred.writes_to(table)
    }
}

/// A result of a fold; None if a primary does not know the program.
fn known_program<T>(folded: Result<T, Abort>) -> Result<Option<T>, Failure> {
    match folded {
        Err(Abort::Misuse(Misuse::NoProgram { .. })) => Ok(None),
        folded => Ok(Some(folded?)),
    }
}
