//! A thread that looks whether a node was lost, and has the work settled that it has left behind.
//!
//! *Invariants*: the thread ends with its database. Of a cluster's processes the one with the lowest member settles all work; any
//! other undoes builds before a build of its own.
//!
//! *Not here*: what is left behind, and how it is settled (`execute/unfinished`).

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use gannet_engine::{ClusterError, Completion, Configuration, Coordinator, Phase};

use crate::database::Database;
use crate::error::{Failure, SqlError};
use crate::execute::storages::Storages;
use crate::execute::unfinished::{self, FIRST_EPOCH};

/// Between two looks at the epoch.
const LOOK: Duration = Duration::from_secs(1);

/// Starts the thread, which ends when the other end of the channel is dropped.
///
/// # Errors
/// SQLSTATE 53000 if the system refuses a thread.
pub(crate) fn start(database: Weak<Database>, ended: Receiver<()>) -> Result<(), SqlError> {
    let run = move || {
        let mut settled_epoch = FIRST_EPOCH;
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            let Some(database) = database.upgrade() else { return };
            look(&database, &mut settled_epoch);
        }
    };
    let thread = std::thread::Builder::new().name("gannet-settler".to_owned()).spawn(run);
    thread
        .map(drop)
        .map_err(|error| SqlError::new("53000", format!("no thread to settle on: {error}")))
}

/// Settles what nodes have left behind which were lost since the last look.
fn look(database: &Arc<Database>, settled_epoch: &mut u32) {
    // What could not be dropped before.
    Storages::discard(database, Vec::new());
    let configuration = database.cluster.configuration();
    let epoch = configuration.epoch;
    if epoch == *settled_epoch || configuration.phase != Phase::Active {
        return;
    }
    // What has failed is tried again with the next look.
    let has_settled = begin(database, &configuration)
        .is_none_or(|job| job.is_ok_and(|job| matches!(job.wait(), Ok(Ok(())))));
    if has_settled {
        *settled_epoch = epoch;
    }
}

/// The work of a settler.
pub(crate) type Settling = Completion<Result<(), Failure>>;

/// Begins to settle what lost nodes have left behind; none if another process does that.
pub(crate) fn begin(
    database: &Arc<Database>,
    configuration: &Configuration,
) -> Option<Result<Settling, ClusterError>> {
    let lowest = configuration.member_numbers().next();
    if lowest.is_some_and(|node| database.cluster.node(usize::from(node)).is_none()) {
        // The other process may be lost before it has settled. Then there is another epoch.
        return None;
    }
    let own = Arc::clone(database);
    let job = move |coordinator: &mut Coordinator<'_>| unfinished::settle(&own, coordinator);
    Some(database.cluster.spawn_anywhere(job))
}
