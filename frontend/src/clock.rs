//! The time of day, for now() and similar functions.
//!
//! *Not here*: durations and timeouts, which the engine and the async runtime measure.

use chrono::{DateTime, NaiveDateTime};

/// The time of day in UTC, in microseconds as timestamps have it.
pub(crate) fn now() -> NaiveDateTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "SQL's now() is the time of day, which no replay depends on"
    )]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    DateTime::from_timestamp_micros(micros).unwrap_or_default().naive_utc()
}
