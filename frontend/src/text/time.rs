//! DATE, TIMESTAMP and TIMESTAMPTZ as text.
//!
//! ```text
//! 2024-01-02 03:04:05.678+05:30 BC
//! date       time        zone   era
//! ```
//!
//! *Source*: PostgreSQL 15 documentation, section 8.5 and appendix B. DateStyle is ISO.
//!
//! *Invariants*: the session's time zone is UTC, so a TIMESTAMPTZ without a zone is in UTC. The zone of a DATE or a TIMESTAMP
//! must be valid, and has no effect.
//!
//! *Not here*: infinity, time zones with names other than those of UTC, and words such as `now` and `today`.

use chrono::{Datelike, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta};

use crate::error::SqlError;
use crate::value::{DataType, Value};

/// The first day of DATE: 4714-11-24 BC, on which Julian days begin.
const EARLIEST: NaiveDate = NaiveDate::from_ymd_opt(-4713, 11, 24).expect("a day of the calendar");
/// Greatest distance of a time zone from UTC.
const OFFSET_HOURS_MAX: i64 = 15;
/// The names of UTC.
const UTC: &[&str] = &[
    "utc",
    "z",
    "gmt",
    "uct",
    "zulu",
    "universal",
    "greenwich",
    "etc/utc",
    "etc/gmt",
    "etc/uct",
    "etc/zulu",
    "etc/universal",
    "etc/greenwich",
];
const ZONES_HINT: &str = "a time zone is UTC or an offset such as +02:30";

/// A timestamp as PostgreSQL prints it.
pub(super) fn timestamp_text(timestamp: &NaiveDateTime, data_type: DataType) -> String {
    let (day, era) = day_and_era(timestamp.date());
    let time = timestamp.time().format("%H:%M:%S%.6f").to_string();
    let time = time.trim_end_matches('0').trim_end_matches('.');
    let zone = if data_type == DataType::TimestampTz { "+00" } else { "" };
    format!("{day} {time}{zone}{era}")
}

/// A date as PostgreSQL prints it.
pub(super) fn date_text(date: NaiveDate) -> String {
    let (day, era) = day_and_era(date);
    day + era
}

/// A day, and the era that follows it: the year 0 is 1 BC.
fn day_and_era(date: NaiveDate) -> (String, &'static str) {
    let (year, era) = match date.year() {
        year @ ..=0 => (1 - year, " BC"),
        year => (year, ""),
    };
    (format!("{year:04}-{:02}-{:02}", date.month(), date.day()), era)
}

/// Parses a date or timestamp.
///
/// # Errors
/// SQLSTATE 22007 if the text is malformed, 22008 if there is no such time, 22009 if the zone is too far from UTC, 0A000 for
/// the name of another time zone.
pub(super) fn from_text(text: &str, data_type: DataType) -> Result<Value, SqlError> {
    let written = Written::parse(text.trim_ascii());
    let offset = written.offset(text, data_type)?;
    let local = written.local().ok_or_else(|| written.malformed(text, data_type))?;
    match data_type {
        DataType::Date => fit_date(local.date()),
        DataType::TimestampTz => {
            fit_timestamp(local.checked_sub_signed(offset).ok_or_else(out_of_range)?)
        }
        _ => fit_timestamp(local),
    }
}

/// Whether a time zone's name is one of UTC.
pub(crate) fn is_utc(name: &str) -> bool {
    UTC.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Refuses every time zone but UTC.
///
/// # Errors
/// SQLSTATE 0A000.
pub(crate) fn require_utc(name: &str) -> Result<(), SqlError> {
    if is_utc(name) || name == "0" {
        return Ok(());
    }
    Err(SqlError::unsupported(format_args!("the time zone \"{name}\"")).with_hint("write 'UTC'"))
}

/// A date in the range of DATE, whose end is that of the crate's calendar.
///
/// # Errors
/// SQLSTATE 22008 if the date is too early.
pub fn fit_date(date: NaiveDate) -> Result<Value, SqlError> {
    if date < EARLIEST {
        return Err(SqlError::new("22008", "date out of range"));
    }
    Ok(Value::Date(date))
}

/// A time in the range of TIMESTAMP and TIMESTAMPTZ.
///
/// # Errors
/// SQLSTATE 22008 if the time is too early.
pub fn fit_timestamp(timestamp: NaiveDateTime) -> Result<Value, SqlError> {
    if timestamp.date() < EARLIEST { Err(out_of_range()) } else { Ok(Value::Timestamp(timestamp)) }
}

/// The error for a time outside of the range of TIMESTAMP.
pub(crate) fn out_of_range() -> SqlError {
    SqlError::new("22008", "timestamp out of range")
}

/// The parts of a text; missing ones are empty.
struct Written<'t> {
    date: &'t str,
    time: &'t str,
    zone: &'t str,
    before_christ: bool,
}

impl<'t> Written<'t> {
    fn parse(text: &'t str) -> Self {
        let era = |era: &str| {
            let (rest, last) = text.split_at_checked(text.len().checked_sub(era.len())?)?;
            last.eq_ignore_ascii_case(era).then(|| rest.trim_ascii_end())
        };
        let (text, before_christ) = match (era("BC"), era("AD")) {
            (Some(rest), _) => (rest, true),
            (None, rest) => (rest.unwrap_or(text), false),
        };
        let split = |text: &'t str, of: &str| {
            let end = text.find(|c: char| !c.is_ascii_digit() && !of.contains(c));
            text.split_at(end.unwrap_or(text.len()))
        };
        let (date, rest) = split(text, "-/");
        let after_t =
            rest.strip_prefix('T').filter(|time| time.starts_with(|c: char| c.is_ascii_digit()));
        let (time, zone) = split(after_t.unwrap_or_else(|| rest.trim_ascii_start()), ":.");
        Self { date, time, zone: zone.trim_ascii(), before_christ }
    }

    /// The zone's distance from UTC, positive to the east.
    fn offset(&self, text: &str, data_type: DataType) -> Result<TimeDelta, SqlError> {
        if self.zone.is_empty() || is_utc(self.zone) {
            return Ok(TimeDelta::zero());
        }
        if self.zone.starts_with(|c: char| c.is_ascii_alphabetic()) && self.zone.contains('/') {
            let name = format_args!("the time zone \"{}\"", self.zone);
            return Err(SqlError::unsupported(name).with_hint(ZONES_HINT));
        }
        let [hours, minutes, seconds] = self.offset_parts().ok_or_else(|| {
            let malformed = malformed(text, data_type);
            if self.local().is_some() { malformed.with_hint(ZONES_HINT) } else { malformed }
        })?;
        if hours > OFFSET_HOURS_MAX || minutes > 59 || seconds > 59 {
            let message = format!("time zone displacement out of range: \"{text}\"");
            return Err(SqlError::new("22009", message));
        }
        let seconds = 3600 * hours + 60 * minutes + seconds;
        Ok(TimeDelta::seconds(if self.zone.starts_with('-') { -seconds } else { seconds }))
    }

    /// The numbers of an offset such as `+2`, `-02:30`, `+0230` or `+02:30:15`. A number with too many digits becomes a large
    /// one.
    fn offset_parts(&self) -> Option<[i64; 3]> {
        let written = self.zone.strip_prefix(['+', '-'])?.trim_ascii_start();
        let mut parts = [0; 3];
        let mut count = 0;
        for digits in written.split(':') {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *parts.get_mut(count)? = digits.parse().unwrap_or(i64::MAX);
            count += 1;
        }
        if count == 1 && written.len() > 2 {
            parts = [parts[0] / 100, parts[0] % 100, 0];
        }
        Some(parts)
    }

    /// The time as written, without regard to its zone.
    fn local(&self) -> Option<NaiveDateTime> {
        let date = date_from_text(self.date, self.before_christ)?;
        let (time, more) = match self.time {
            "" => (NaiveTime::MIN, TimeDelta::zero()),
            time => time_from_text(time)?,
        };
        date.and_time(time).checked_add_signed(more)
    }

    /// The error for a text that is no time.
    fn malformed(&self, text: &str, data_type: DataType) -> SqlError {
        if self.date.bytes().filter(|b| *b == b'-').count() >= 2 {
            let message = format!("date/time field value out of range: \"{text}\"");
            return SqlError::new("22008", message);
        }
        malformed(text, data_type)
    }
}

fn malformed(text: &str, data_type: DataType) -> SqlError {
    let name = match data_type {
        DataType::Timestamp => "timestamp",
        other => other.base_name(),
    };
    SqlError::new("22007", format!("invalid input syntax for type {name}: \"{text}\""))
}

fn date_from_text(text: &str, before_christ: bool) -> Option<NaiveDate> {
    if text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit()) {
        let dashed = format!("{}-{}-{}", &text[..4], &text[4..6], &text[6..]);
        return date_from_text(&dashed, before_christ);
    }
    let mut parts = text.split(['-', '/']);
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |part: &str, most: usize| {
        !part.is_empty() && part.len() <= most && part.bytes().all(|b| b.is_ascii_digit())
    };
    if parts.next().is_some() || !digits(year, 6) || !digits(month, 2) || !digits(day, 2) {
        return None;
    }
    // There is no year 0: 1 BC is the year before 1.
    let year: i32 = year.parse().ok().filter(|year| *year > 0)?;
    let year = if before_christ { 1 - year } else { year };
    NaiveDate::from_ymd_opt(year, month.parse().ok()?, day.parse().ok()?)
}

/// A time of day, and the duration to add: a fraction that rounds up to a whole second, or the hour 24.
fn time_from_text(text: &str) -> Option<(NaiveTime, TimeDelta)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if matches!(whole.len(), 4 | 6) && whole.bytes().all(|b| b.is_ascii_digit()) {
        let (clock, seconds) = text.split_at(4);
        let seconds = if whole.len() == 6 { seconds } else { "00" };
        return time_from_text(&format!("{}:{}:{seconds}", &clock[..2], &clock[2..]));
    }
    let mut parts = whole.split(':');
    let mut part = || -> Option<u32> {
        let part = parts.next()?;
        (part.len() <= 2).then(|| part.parse().ok())?
    };
    let (hour, minute) = (part()?, part()?);
    let second = match part() {
        Some(second) => second,
        None if whole.matches(':').count() == 1 => 0,
        None => return None,
    };
    if !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // PostgreSQL reads the fraction as DOUBLE PRECISION, and rounds to the nearest microsecond.
    let fraction: f64 =
        if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().ok()? };
    #[expect(clippy::cast_possible_truncation, reason = "at most a million")]
    let micros = (fraction * 1e6).round_ties_even() as i64;
    let (hour, day) = match (hour, minute, second, micros) {
        (24, 0, 0, 0) => (0, TimeDelta::days(1)),
        _ => (hour, TimeDelta::zero()),
    };
    // PostgreSQL accepts 60 seconds.
    let (second, more) =
        if second == 60 { (59, TimeDelta::seconds(1)) } else { (second, TimeDelta::zero()) };
    let time = NaiveTime::from_hms_opt(hour, minute, second)?;
    Some((time, day + more + TimeDelta::microseconds(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(written: &str, data_type: DataType) -> Result<String, &'static str> {
        from_text(written, data_type).map(|value| value.to_text(data_type)).map_err(|e| e.code)
    }

    #[test]
    fn an_offset_is_converted_in_a_timestamptz_alone() {
        for (zone, expected) in [
            ("", "2024-01-01 10:00:00+00"),
            ("Z", "2024-01-01 10:00:00+00"),
            (" Etc/UTC", "2024-01-01 10:00:00+00"),
            ("+02", "2024-01-01 08:00:00+00"),
            (" -2", "2024-01-01 12:00:00+00"),
            ("+0230", "2024-01-01 07:30:00+00"),
            ("-02:30", "2024-01-01 12:30:00+00"),
            ("+15:59:59", "2023-12-31 18:00:01+00"),
        ] {
            let written = format!("2024-01-01 10:00{zone}");
            assert_eq!(text(&written, DataType::TimestampTz), Ok(expected.to_owned()), "{zone}");
            let local = Ok("2024-01-01 10:00:00".to_owned());
            assert_eq!(text(&written, DataType::Timestamp), local, "{zone}");
            assert_eq!(text(&written, DataType::Date), Ok("2024-01-01".to_owned()), "{zone}");
        }
    }

    #[test]
    fn invalid_time_zones_are_refused_in_every_type() {
        for (zone, code) in [
            ("+16", "22009"),
            ("-02:60", "22009"),
            ("+99999999999999999999", "22009"),
            ("+", "22007"),
            ("+1:2:3:4", "22007"),
            ("+0x2", "22007"),
            ("+02 UTC", "22007"),
            (" noon", "22007"),
            (" Europe/Berlin", "0A000"),
        ] {
            for data_type in [DataType::Date, DataType::Timestamp, DataType::TimestampTz] {
                assert_eq!(
                    text(&format!("2024-01-01 10:00{zone}"), data_type),
                    Err(code),
                    "{zone}"
                );
            }
        }
    }

    #[test]
    fn the_range_is_that_of_utc() {
        let earliest = "4714-11-24 00:00:00+00 BC";
        assert_eq!(text(earliest, DataType::TimestampTz), Ok(earliest.to_owned()));
        assert_eq!(text("4714-11-24 00:00+01 BC", DataType::TimestampTz), Err("22008"));
        assert_eq!(text("262142-12-31 23:00-02", DataType::TimestampTz), Err("22008"));
        assert_eq!(text("2024-13-01 10:00+02", DataType::TimestampTz), Err("22008"));
    }
}
