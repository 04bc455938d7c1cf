//! Time, as everything below the command line sees it.

use std::time::Instant;

/// A clock that never goes back.
pub trait Clock {
    /// Nanoseconds since an origin of the clock's own.
    fn now_ns(&self) -> u64;
}

/// The operating system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    origin: Instant,
}

impl MonotonicClock {
    /// A clock that starts at 0 now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place where time enters")]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "2^64 ns are 584 years")]
    fn now_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}
