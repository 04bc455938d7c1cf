//! Durations and numbers of bytes, as people write them on a command line and in a file.
//!
//! *Invariants*: a duration is at most a week, has a unit, and may have a fraction. A number of bytes is whole and not 0,
//! and its units are powers of 1,024. An error says what to give.
//!
//! *Not here*: which settings take which (`serve/settings.rs`, and the arguments of each subcommand).

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Parses a number and its unit: `ms`, `s`, `m`, `h`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a number and a unit, such as 10s, 500ms or 2m".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|duration| *duration <= Duration::from_secs(7 * 24 * 3600))
        .ok_or_else(|| "use at most a week".to_owned())
}

/// Parses a number of bytes with its unit: `KiB`, `MiB`, `GiB`, or none.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err("give a number and a unit, such as 512MiB or 4GiB".to_owned()),
    };
    let number: usize = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| "use more than 0 and fewer than 16 EiB".to_owned())
}

/// A duration in a configuration file.
pub(crate) fn duration_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(D::Error::custom)
}

/// A number of bytes in a configuration file.
pub(crate) fn bytes_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_bytes(&text).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes() {
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("2h"), Ok(Duration::from_secs(7_200)));
        for wrong in ["", "10", "s", "-1s", "1d", "1e9s", "99999999m", "1..2s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_bytes("512MiB"), Ok(512 << 20));
        assert_eq!(parse_bytes("17"), Ok(17));
        for wrong in ["", "MiB", "0", "1MB", "99999999999999GiB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
