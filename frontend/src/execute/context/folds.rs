//! Folds of a running statement: what they answer, and what its transaction depends on then.
//!
//! *Not here*: who folds (`execute/fold`, `execute/filtered`).

use gannet_engine::{Abort, Deferred, FoldRest, Misuse, TableId};

use crate::error::Failure;
use crate::execute::context::Context;

impl Context<'_, '_> {
    /// What primaries have computed by a program of a part of what is left of a table; None if one of them does not know the program.
    pub(in crate::execute) fn fold(
        &mut self,
        table: TableId,
        program: &[u8],
        rest: &mut FoldRest,
    ) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        self.begin_range(table)?;
        let is_unshared = self.transaction.is_unshared(table);
        let Self { coordinator, transaction, .. } = self;
        let mut fold = |deferred: &mut Deferred| deferred.fold(coordinator, table, program, rest);
        let deferred = &mut transaction.deferred;
        let folded = if is_unshared { deferred.unshared(fold) } else { fold(deferred) };
        self.charge_transaction()?;
        known_program(folded)
    }

    /// What primaries have computed of a table for another transaction, on which the commit depends then; None as of [`Self::fold`].
    pub(in crate::execute) fn adopt_fold(
        &mut self,
        table: TableId,
        folded: Result<(Vec<Vec<u8>>, Box<Deferred>), Abort>,
    ) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        self.check_cancel()?;
        self.round_trips += 1;
        let Some((results, reads)) = known_program(folded)? else { return Ok(None) };
        if !self.transaction.is_unshared(table) {
            self.transaction.deferred.adopt_scans(*reads);
        }
        self.charge_transaction()?;
        Ok(Some(results))
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
