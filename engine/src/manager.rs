//! The manager: the decider on changes of the configuration, as proposers see it.
//!
//! ```text
//! Cluster ── propose ─▶ Manager ── all members in this process   LocalMembers
//!                               ├─ members in other processes    Members: the leader of the manager's replicas decides
//!                               └─ members in a simulation       Simulation: the leader in a model of that log decides
//! ```
//! A job of a worker must not wait for a change as other threads do, because the change waits for the worker. It begins the change, and
//! asks for the answer.
//!
//! *Invariant*: when a proposal is answered without an error, all coroutines of all members go by the change; if it has added a table, all
//! workers do, and all transactions that begin from then on.
//!
//! *Not here*: how members agree, in `change`.

use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::configuration::{Change, ChangeError};
use crate::local_members::LocalMembers;
use crate::members::{JoinError, Members};

/// Whether a change was made, and if not, why.
pub(crate) type Proposed = Result<Result<(), ChangeError>, JoinError>;

/// Asks what became of a change; none as long as that is not known.
pub(crate) type Asked = Box<dyn FnMut() -> Option<Proposed> + Send>;

/// Decides on changes of the configuration.
pub(crate) trait Manager: Send + Sync {
    /// Proposes a change, and waits until it is made or refused.
    ///
    /// # Errors
    /// [`JoinError::Halted`] if the cluster has halted.
    fn propose(&self, change: Change) -> Proposed;

    /// Proposes a change for a node, unless the manager needs a thread that waits.
    fn begin(&self, _node: u16, _change: &Change) -> Option<Asked> {
        None
    }
}

/// Proposes a change on a thread of its own, after those before.
///
/// # Errors
/// That of the operating system.
pub(crate) fn propose_aside(
    manager: &Arc<dyn Manager>,
    changing: &Arc<Mutex<()>>,
    change: Change,
) -> std::io::Result<Asked> {
    let (manager, changing) = (Arc::clone(manager), Arc::clone(changing));
    let (sender, answer) = channel();
    let propose = move || {
        // Nothing panics while it is held.
        let _one_at_a_time = changing.lock().unwrap_or_else(PoisonError::into_inner);
        // The job that has asked may have ended.
        let _ = sender.send(manager.propose(change));
    };
    std::thread::Builder::new().name("gannet-change".to_owned()).spawn(propose)?;
    Ok(Box::new(move || match answer.try_recv() {
        Ok(proposed) => Some(proposed),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => {
            Some(Err(JoinError::Halted("a change of the configuration has panicked".to_owned())))
        }
    }))
}

impl Manager for LocalMembers {
    fn propose(&self, change: Change) -> Proposed {
        Ok(self.make(&change))
    }
}

impl Manager for Arc<Members> {
    fn propose(&self, change: Change) -> Proposed {
        Members::propose(self, change)
    }
}
