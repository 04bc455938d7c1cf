//! The state that the threads of a process share: whether the cluster closes, or has halted.
//!
//! *Invariant*: each flag is set once, and never reset.
//!
//! *Not here*: what a thread does then, in `worker_group`; the end of other processes, in `members`.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::outcome::panic_message;

/// An action when a worker has died; it gets the reason.
pub(crate) type FailureAction = Box<dyn FnOnce(&str) + Send>;

/// The state that the threads of a cluster share: whether it closes or has halted.
pub(crate) struct ClusterState {
    /// Set once: finish the jobs and end.
    pub(crate) closing: AtomicBool,
    /// Set once: another process of the cluster has gone, or a worker has died. A job that waits for it does not end.
    pub(crate) halted: AtomicBool,
    /// Why a worker of this process has died.
    pub(crate) failure: OnceLock<String>,
    /// What to do when one has; each is done once.
    on_failure: Mutex<Vec<FailureAction>>,
    /// Threads that still have jobs; the others go on serving them.
    pub(crate) busy_threads: AtomicUsize,
    pub(crate) busy_poll: bool,
}

impl ClusterState {
    /// Of a cluster that runs. `on_failure` is called when a worker has died, with the reason.
    pub(crate) fn new(busy_poll: bool, on_failure: Option<FailureAction>) -> Self {
        Self {
            closing: AtomicBool::new(false),
            halted: AtomicBool::new(false),
            failure: OnceLock::new(),
            on_failure: Mutex::new(on_failure.into_iter().collect()),
            busy_threads: AtomicUsize::new(0),
            busy_poll,
        }
    }

    /// Has `act` done before all others when a worker has died; at once if one has.
    pub(crate) fn first_on_failure(&self, act: FailureAction) {
        // Nothing panics while it is held.
        let mut actions = self.on_failure.lock().unwrap_or_else(PoisonError::into_inner);
        match self.failure.get() {
            // fail() may have taken the actions already.
            Some(reason) => {
                drop(actions);
                act(reason);
            }
            None => actions.insert(0, act),
        }
    }

    /// One thread fewer has jobs.
    pub(crate) fn count_out(&self) {
        // AcqRel: the last thread to count itself out sees what the others did before. The count is 0 already if a
        // thread has stopped because of a bug.
        let _ = self
            .busy_threads
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |threads| threads.checked_sub(1));
    }

    /// A worker has died of a bug: nothing that waits for it ends, so the cluster halts.
    pub(crate) fn fail(&self, panic: &(dyn Any + Send)) {
        let bug = panic_message(panic);
        self.end(format!(
            "a worker has failed: {bug}. This is a bug of Gannet; start the cluster again"
        ));
    }

    /// Halts for good, for a reason.
    pub(crate) fn end(&self, reason: String) {
        let reason = self.failure.get_or_init(|| reason);
        // Release: pairs with the Acquire of the threads.
        self.halted.store(true, Ordering::Release);
        // They wait for this one no longer.
        self.busy_threads.store(0, Ordering::Release);
        // Nothing panics while it is held.
        let actions =
            std::mem::take(&mut *self.on_failure.lock().unwrap_or_else(PoisonError::into_inner));
        actions.into_iter().for_each(|act| act(reason));
    }
}
