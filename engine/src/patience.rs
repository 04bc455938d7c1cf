//! Whether somebody still waits for a job whose coroutine may wait for a member that is silent.
//!
//! ```text
//! Waited ── first LOG ─▶ Logging
//!   │ give_up: nothing     │ give_up: the outcome is unknown
//!   ▼ was changed          ▼
//! GivenUp ── ends it ───▶ Left
//! ```
//! A coroutine that has asked a silent member cannot be taken back, as a LOCK may have been granted: it stays in its place
//! until it is answered. Whoever waits for it may stop; then the transaction that it is in never logs, or, if it has, completes
//! by itself. What the job does behind that transaction is to clean up.
//!
//! *Source*: `docs/protocol.md`, "Unknown outcomes"; `architecture.md`, "RPC": quarantined sessions.
//! *Invariant*: of giving up and the first LOG one comes first, and both sides know which.

use std::sync::atomic::{AtomicU8, Ordering};

const WAITED: u8 = 0;
const LOGGING: u8 = 1;
const GIVEN_UP: u8 = 2;
const LEFT: u8 = 3;

/// What a job and whoever waits for it tell each other.
#[derive(Debug, Default)]
pub struct Patience(AtomicU8);

impl Patience {
    // AcqRel in all: whoever comes second sees what the first has done before.

    fn change(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Nobody waits any more; whether the job's outcome is unknown. Otherwise it has changed nothing, and will not.
    #[must_use]
    pub fn give_up(&self) -> bool {
        if self.change(WAITED, GIVEN_UP) {
            return false;
        }
        self.change(LOGGING, LEFT);
        true
    }

    /// Whether a transaction may log; from then on its outcome is unknown to whoever gives up. The one that was given up may
    /// not, and those that clean up behind it may.
    pub(crate) fn may_log(&self) -> bool {
        // What logs already has asked before, or is behind one that was left.
        self.change(WAITED, LOGGING) || !self.change(GIVEN_UP, LEFT)
    }

    /// Whether nobody waits any more; the job then ends its transaction, and may clean up.
    pub fn is_given_up(&self) -> bool {
        self.change(GIVEN_UP, LEFT) || self.0.load(Ordering::Acquire) == LEFT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_up_before_it_logs_never_logs_and_is_cleaned_up() {
        let waiting = Patience::default();
        assert!(!waiting.give_up());
        assert!(!waiting.may_log(), "the transaction that was given up");
        assert!(waiting.may_log(), "what cleans up");
        assert!(waiting.is_given_up());
    }

    #[test]
    fn what_has_logged_is_unknown_to_who_gives_up() {
        let waiting = Patience::default();
        assert!(waiting.may_log() && waiting.may_log() && !waiting.is_given_up());
        assert!(waiting.give_up() && waiting.is_given_up());
    }

    #[test]
    fn of_giving_up_and_logging_one_comes_first() {
        for _ in 0..1_000 {
            let waiting = Patience::default();
            std::thread::scope(|scope| {
                let unknown = scope.spawn(|| waiting.give_up());
                let logs = waiting.may_log();
                assert_eq!(unknown.join().unwrap(), logs);
            });
        }
    }
}
