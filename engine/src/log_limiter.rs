//! How often a line of one kind is written to the log: a few at once, then one for each interval.
//!
//! A peer that repeats an error would otherwise fill the log. Lines that are not written are counted, and the next line that is
//! written says how many were suppressed before it.
//!
//! *Not here*: the log itself, which is the program's.

use std::sync::{Mutex, PoisonError};

use gannet_rpc::{Clock, MonotonicClock};

/// Limits the rate of one kind of line.
#[derive(Default)]
pub struct LogLimiter {
    clock: MonotonicClock,
    counted: Mutex<Counted>,
}

/// Lines that may follow each other at once.
const LINES_AT_ONCE: u32 = 5;
/// Time in which one more may be written.
const LINE_INTERVAL_NS: u64 = 10_000_000_000;

#[derive(Debug, Default)]
struct Counted {
    written: u32,
    suppressed: u64,
    since_ns: u64,
}

impl LogLimiter {
    /// Permits a line now, and tells how many were suppressed before it; `None` if this one is suppressed.
    #[must_use]
    pub fn permit(&self) -> Option<Suppressed> {
        self.permit_at(self.clock.now_ns())
    }

    /// The same at a time that the caller tells.
    pub(crate) fn permit_at(&self, now_ns: u64) -> Option<Suppressed> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let intervals = now_ns.saturating_sub(counted.since_ns) / LINE_INTERVAL_NS;
        if intervals > 0 {
            let fewer = u32::try_from(intervals).unwrap_or(u32::MAX);
            counted.written = counted.written.saturating_sub(fewer);
            counted.since_ns = now_ns;
        }
        if counted.written >= LINES_AT_ONCE {
            counted.suppressed += 1;
            return None;
        }
        counted.written += 1;
        Some(Suppressed(std::mem::take(&mut counted.suppressed)))
    }
}

/// The end of a line that tells how many of its kind were suppressed before it.
#[derive(Debug, PartialEq, Eq)]
pub struct Suppressed(u64);

impl std::fmt::Display for Suppressed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(formatter, " ({count} lines like this were left out)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_suppressed_and_counted() {
        let lines = LogLimiter::default();
        let now = LINE_INTERVAL_NS * 7;
        let written = (0..20).filter(|_| lines.permit_at(now).is_some()).count();
        assert_eq!(written, LINES_AT_ONCE as usize);
        assert_eq!(lines.permit_at(now + LINE_INTERVAL_NS), Some(Suppressed(15)));
        assert_eq!(lines.permit_at(now + LINE_INTERVAL_NS), None);
        assert_eq!(Suppressed(0).to_string(), "");
        assert!(Suppressed(3).to_string().contains("3 lines"));
    }
}
