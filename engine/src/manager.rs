//! The manager: whoever decides on changes of the configuration, as those see it who propose them.
//!
//! ```text
//! Cluster ── propose ─▶ Manager ── all members in this process   LocalMembers
//!                               ├─ members in other processes    Members: whoever leads the replicas of the manager decides
//!                               └─ members in a simulation       Simulation: whoever leads in a model of that log
//! ```
//! *Invariant*: when a proposal is answered without an error, all coroutines of all members go by the change; if it has added a table, all
//! workers do, and all transactions that begin from then on.
//!
//! *Not here*: how members agree, in `change`.

use std::sync::Arc;

use crate::configuration::{Change, ChangeError};
use crate::local_members::LocalMembers;
use crate::members::{JoinError, Members};

/// Decides on changes of the configuration.
pub(crate) trait Manager: Send + Sync {
    /// Proposes a change, and waits until it is made or refused.
    ///
    /// # Errors
    /// [`JoinError::Halted`] if the cluster has halted.
    fn propose(&self, change: Change) -> Result<Result<(), ChangeError>, JoinError>;
}

impl Manager for LocalMembers {
    fn propose(&self, change: Change) -> Result<Result<(), ChangeError>, JoinError> {
        Ok(self.make(&change))
    }
}

impl Manager for Arc<Members> {
    fn propose(&self, change: Change) -> Result<Result<(), ChangeError>, JoinError> {
        Members::propose(self, change)
    }
}
