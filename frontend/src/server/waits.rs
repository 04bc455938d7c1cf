//! How long a statement waits for what keeps the cluster from going on.
//!
//! *Invariant*: a statement is not given up before both it and the obstacle have lasted for the limit.
//!
//! *Not here*: obstacles, in the engine; statements that are refused before they begin, in `session/run`.

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::Cluster;

use crate::error::SqlError;

/// The limit of a statement's wait.
pub(super) struct WaitLimit {
    pub(super) timeout: Duration,
    pub(super) cluster: Arc<Cluster>,
}

impl WaitLimit {
    /// The error of a statement that has run for so long, if it is to be given up.
    pub(super) fn refusal(&self, ran: Duration) -> Option<SqlError> {
        if ran < self.timeout {
            return None;
        }
        let obstacle = self.cluster.obstacle()?;
        (obstacle.lasted() >= self.timeout).then(|| obstacle.into())
    }
}
