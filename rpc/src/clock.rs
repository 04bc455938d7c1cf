//! The clock: the only source of time for `rpc`, `storage` and `engine`.
//!
//! *Invariant*: a clock never goes back. The simulator has a clock of its own, which no thread or system sets.

/// A clock that never goes back.
pub trait Clock {
    /// Nanoseconds since an origin of the clock's own.
    fn now_ns(&self) -> u64;
}

/// The processor's time-stamp counter where it is invariant, else the system's monotonic clock.
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    clock: quanta::Clock,
}

impl MonotonicClock {
    /// The clock; the first one of a process measures the counter's rate.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: quanta::Clock::new() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_passes_at_the_systems_rate() {
        let clock = MonotonicClock::new();
        let (start, system) = (clock.now_ns(), quanta::Instant::now());
        let mut last = start;
        while system.elapsed().as_millis() < 20 {
            let now = clock.now_ns();
            assert!(now >= last);
            last = now;
        }
        // The unit is right; how exact the rate is depends on how busy the machine was.
        assert!(last - start >= 10_000_000, "{} ns", last - start);
    }
}
