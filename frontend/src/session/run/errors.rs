//! The errors of statements: what a failure of the engine or of the catalog is to a client.
//!
//! *Invariants*: a client hears neither of a stale catalog, until the catalog has changed too often, nor of the death of
//! a node within this process: a transaction of its own runs again, one between BEGIN and COMMIT ends with 40001. 08007
//! means that the commit may have been made.
//!
//! *Source*: PostgreSQL 15 documentation, appendix A; `docs/sql.md`, "When a node is lost".
//!
//! *Not here*: SQLSTATEs of aborts, in `error`.

use gannet_engine::{Abort, Conflict};

use crate::error::{Failure, SqlError};

/// The result of a transaction of its own; None if it is to run again: the catalog has changed, or the node that ran it was
/// lost before the transaction had written anything, and another node runs it. What a build had written is undone first.
pub(super) fn current<T>(result: Result<T, Failure>) -> Result<Option<T>, SqlError> {
    match result {
        Ok(output) => Ok(Some(output)),
        Err(
            Failure::StaleCatalog | Failure::Abort(Abort::Failure(gannet_engine::Failure::Revoked)),
        ) => Ok(None),
        Err(failure) => Err(error_of(failure)),
    }
}

/// The error of a failure. A session outlives a node of its process that was killed: the transaction that ran there has written
/// nothing, and is to be run again.
pub(in crate::session) fn error_of(failure: Failure) -> SqlError {
    match failure {
        Failure::Abort(Abort::Failure(gannet_engine::Failure::Revoked)) => {
            Abort::from(Conflict::Reconfigured).into()
        }
        Failure::Abort(abort) => abort.into(),
        Failure::Error(error) => *error,
        Failure::StaleCatalog => catalog_changes(),
    }
}

pub(in crate::session) fn canceled() -> SqlError {
    SqlError::new("57014", "canceling statement due to user request")
}

/// The error of a statement whose session has given up while its commit was under way.
pub(super) fn unknown() -> SqlError {
    SqlError::new("08007", "the statement was given up while its commit waited for a node")
        .with_hint("whether it has committed is unknown; it completes if the node comes back")
}

pub(in crate::session) fn catalog_changes() -> SqlError {
    SqlError::new("40001", "the catalog kept changing while the statement was planned")
        .with_hint("run the statement again")
}

/// The error of a statement in a transaction that has failed.
pub(in crate::session) fn aborted() -> SqlError {
    let message = "current transaction is aborted, commands ignored until end of transaction block";
    SqlError::new("25P02", message).with_hint("end it with ROLLBACK")
}

pub(super) fn no_copy() -> SqlError {
    SqlError::new("08P01", "there is no COPY under way")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_whose_node_was_killed_in_this_process_is_to_be_run_again() {
        let code =
            |failure: gannet_engine::Failure| error_of(Failure::from(Abort::from(failure))).code;
        assert_eq!(code(gannet_engine::Failure::Revoked), "40001");
        // The process itself is no member any more, or nobody knows what became of the commit.
        assert_eq!(code(gannet_engine::Failure::Halted), "57P03");
        assert_eq!(code(gannet_engine::Failure::Unknown), "08007");
    }
}
