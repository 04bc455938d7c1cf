//! Cancellation of a job whose coroutine may wait for a member that is silent, and which members those are.
//!
//! ```text
//! Pending ── first LOG ──────▶ Logging
//!    │ cancel: nothing            │ cancel: the outcome
//!    ▼ was changed                ▼ is unknown
//! Cancelled ── seen by the job ─▶ Detached
//! ```
//! A coroutine that has sent a request to a silent member cannot be taken back, as a LOCK may have been granted: it stays
//! suspended until it is answered. The waiter of the job may cancel the job. The transaction under way then never logs, or,
//! if it has logged, completes without a waiter. Afterwards the job is *detached*: the transactions that it still runs clean up.
//!
//! *Source*: `docs/protocol.md`, "Unknown outcomes"; `docs/architecture.md`, "RPC", for quarantined sessions.
//!
//! *Invariant*: either the cancellation or the first LOG comes first, and both sides know which.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::silences::Silences;

const PENDING: u8 = 0;
const LOGGING: u8 = 1;
const CANCELLED: u8 = 2;
const DETACHED: u8 = 3;

/// Shared by a job and its waiter.
#[derive(Debug, Default)]
pub struct CancellationToken {
    stage: AtomicU8,
    has_begun: AtomicBool,
    /// The nodes whose answers keep the job from going on.
    silences: Silences,
}

impl CancellationToken {
    // AcqRel in all: the thread that comes second sees what the first one has done before.

    fn change(&self, from: u8, to: u8) -> bool {
        self.stage.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels the job. Returns whether its outcome is unknown; if not, the job has changed nothing and will change nothing.
    #[must_use]
    pub fn cancel(&self) -> bool {
        if self.change(PENDING, CANCELLED) {
            return false;
        }
        self.change(LOGGING, DETACHED);
        true
    }

    /// Whether a transaction may log; from then on its outcome is unknown to the waiter that cancels. The transaction that
    /// was cancelled may not log, and those that clean up after it may.
    pub(crate) fn may_log(&self) -> bool {
        // A transaction that logs already has called this before, or the job is detached.
        self.change(PENDING, LOGGING) || !self.change(CANCELLED, DETACHED)
    }

    /// Whether the job is cancelled; it then ends its transaction, and may clean up.
    pub fn is_cancelled(&self) -> bool {
        self.change(CANCELLED, DETACHED) || self.stage.load(Ordering::Acquire) == DETACHED
    }

    /// Whether the job is cancelled, and has not seen that yet.
    pub(crate) fn is_unseen(&self) -> bool {
        self.stage.load(Ordering::Acquire) == CANCELLED
    }

    /// The job has a coroutine.
    pub(crate) fn begin(&self) {
        // Relaxed: the flag says whose silences count, and orders nothing.
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// The nodes whose answers the job waits for; none if it has no coroutine yet.
    pub(crate) fn silences(&self) -> Option<&Silences> {
        self.has_begun.load(Ordering::Relaxed).then_some(&self.silences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_cancelled_before_it_logs_never_logs_and_cleans_up() {
        let token = CancellationToken::default();
        assert!(!token.cancel());
        assert!(!token.may_log(), "the transaction that was cancelled");
        assert!(token.may_log(), "a transaction that cleans up");
        assert!(token.is_cancelled());
    }

    #[test]
    fn the_outcome_of_a_job_that_has_logged_is_unknown_to_whoever_cancels_it() {
        let token = CancellationToken::default();
        assert!(token.may_log() && token.may_log() && !token.is_cancelled());
        assert!(token.cancel() && token.is_cancelled());
    }

    #[test]
    fn either_the_cancellation_or_the_first_log_comes_first() {
        for _ in 0..1_000 {
            let token = CancellationToken::default();
            std::thread::scope(|scope| {
                let unknown = scope.spawn(|| token.cancel());
                let logs = token.may_log();
                assert_eq!(unknown.join().unwrap(), logs);
            });
        }
    }
}
