//! The clocks: the only source of time for `rpc`, `storage` and `engine`.
//!
//! *Invariant*: no clock but the time of day goes back. The simulator has a clock of its own, which no thread or system sets. The
//! time of day is for ages of hours that several hosts must agree on, and no protocol depends on it.

/// A clock. Only [`TimeOfDay`] may go back.
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

/// The system's clock that goes on while the machine sleeps: what leases are counted by.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    #[inline]
    fn now_ns(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let (seconds, nanoseconds) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
        seconds * 1_000_000_000 + nanoseconds
    }
}

/// The time of day: nanoseconds since 1970. An operator may set it, also back.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeOfDay;

impl Clock for TimeOfDay {
    fn now_ns(&self) -> u64 {
        #[expect(clippy::disallowed_methods, reason = "this is where the time of day enters")]
        let now = std::time::SystemTime::now();
        let passed = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
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
        // The thread may have lost its core since.
        let last = clock.now_ns();
        // The unit is right; how exact the rate is depends on how busy the machine was.
        assert!(last - start >= 10_000_000, "{} ns", last - start);
    }
}
