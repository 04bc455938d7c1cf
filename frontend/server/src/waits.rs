//! How long a statement waits for what keeps it from going on.
//!
//! *Invariants*: a statement is not given up for silent nodes before both it and their silence have lasted for the limit. Without a lease
//! a statement ends as soon as others are refused.
//!
//! *Not here*: obstacles, in the engine; statements that are refused before they begin, in `session/run`.

use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{Cluster, Obstacle};

use gannet_frontend::{CancelHandle, SqlError};

/// Between two looks at a statement: whether its client is there, and what keeps the statement from going on.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The limit of a statement's wait.
pub(super) struct WaitLimit {
    /// For silent nodes, if there is one.
    pub(super) timeout: Option<Duration>,
    pub(super) cluster: Arc<Cluster>,
}

impl WaitLimit {
    /// Between two looks at a statement.
    pub(super) fn look_interval(&self) -> Duration {
        let lease = self.cluster.lease_length();
        lease.into_iter().chain([LOOK_INTERVAL]).min().unwrap_or(LOOK_INTERVAL)
    }

    /// The error of a statement that has run for so long, if it is to be given up.
    pub(super) fn refusal(&self, ran: Duration, statement: &CancelHandle) -> Option<SqlError> {
        let obstacle = statement.obstacle(&self.cluster)?;
        match &obstacle {
            Obstacle::NoLease { .. } => self.cluster.obstacle_to_all().map(SqlError::from),
            Obstacle::Silent(_) => {
                let waited = ran.min(obstacle.lasted());
                self.timeout.is_some_and(|timeout| waited >= timeout).then(|| obstacle.into())
            }
        }
    }
}
