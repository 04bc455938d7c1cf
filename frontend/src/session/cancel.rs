//! The end of a session's statement before its result: another task asks for it, and the session gives the statement up
//! if it must.
//!
//! *Invariants*: a statement that is asked to end has time to do so; `give_up` comes after `cancel`. A statement that was
//! given up ends with 57014 if it never logs its commit, and with 08007 otherwise. Both requests stay until `reset`,
//! before the next statement. Each flag carries nothing but itself.
//!
//! *Source*: `docs/protocol.md`, "Unknown outcomes".
//!
//! *Not here*: requests to cancel from clients, in `gannet_server`; jobs that are cancelled, in the engine.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use gannet_engine::{CancellationToken, Cluster, Obstacle};
use tokio::sync::Notify;

/// Cancels the running statement of a session, from another thread.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<Cancel>);

#[derive(Debug, Default)]
struct Cancel {
    /// The statement is to end.
    is_requested: Arc<AtomicBool>,
    requested: Notify,
    /// The session no longer waits for the statement.
    is_given_up: AtomicBool,
    given_up: Notify,
    /// The job that the statement has begun last.
    job: Mutex<Option<Arc<CancellationToken>>>,
}

impl CancelHandle {
    // Relaxed in all: a flag carries nothing but itself.

    /// Ends the running statement with SQLSTATE 57014.
    pub fn cancel(&self) {
        self.0.is_requested.store(true, Ordering::Relaxed);
        self.0.requested.notify_one();
    }

    /// Waits for [`Self::cancel`].
    #[doc(hidden)]
    pub async fn requested(&self) {
        while !self.0.is_requested.load(Ordering::Relaxed) {
            self.0.requested.notified().await;
        }
    }

    /// Ends the session's wait for the running statement, which may itself wait for a silent member. The SQLSTATE is 57014 if
    /// the statement has not begun to log its commit and never will, and 08007 otherwise.
    #[doc(hidden)]
    pub fn give_up(&self) {
        self.0.is_given_up.store(true, Ordering::Relaxed);
        self.0.given_up.notify_one();
    }

    /// The statement waits for this job from now on.
    pub(super) fn set_job(&self, job: &Arc<CancellationToken>) {
        self.job_now().replace(Arc::clone(job));
    }

    /// Why the statement does not go on, if it waits for a job.
    #[doc(hidden)]
    pub fn obstacle(&self, cluster: &Cluster) -> Option<Obstacle> {
        let job = self.job_now().clone()?;
        cluster.obstacle(&job)
    }

    fn job_now(&self) -> MutexGuard<'_, Option<Arc<CancellationToken>>> {
        // Nothing panics while it is held.
        self.0.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of a future, unless the session gives up first.
    pub(crate) async fn unless_given_up<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let given_up = async {
            while !self.0.is_given_up.load(Ordering::Relaxed) {
                self.0.given_up.notified().await;
            }
        };
        let (mut future, mut given_up) = (pin!(future), pin!(given_up));
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => given_up.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Whether the statement is to end.
    #[doc(hidden)]
    pub fn is_requested(&self) -> bool {
        self.0.is_requested.load(Ordering::Relaxed)
    }

    /// The same, for a statement that looks often.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.is_requested)
    }

    /// Clears the flags for the next statement.
    #[doc(hidden)]
    pub fn reset(&self) {
        self.0.is_requested.store(false, Ordering::Relaxed);
        self.0.is_given_up.store(false, Ordering::Relaxed);
    }
}
