//! The duration of a statement, for `.timing`.
//!
//! *Invariants*: no other file of the shell reads the system's time (`tests/tidy.rs`).

use std::time::{Duration, Instant};

/// A stopwatch that runs from its creation.
pub(super) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the command line shows real time")]
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
