//! Parts of dates and timestamps, and literal intervals.
//!
//! *Source*: PostgreSQL 15, sections 8.5.4 and 9.9.
//!
//! *Not here*: dates and timestamps as text (`text/time`); intervals as values, which are refused.

use chrono::{
    DateTime, Datelike, Days, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike,
};
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;

use crate::error::SqlError;
use crate::text::time::{fit_timestamp, out_of_range};
use crate::value::{DataType, Value};

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_1970_TO_2000: i32 = 946_684_800;

/// A duration; its parts are added one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Interval {
    pub(crate) months: i64,
    pub(crate) days: i64,
    pub(crate) micros: i64,
}

impl Interval {
    /// Parses a literal such as `1 year 2 days 03:04:05` or `-1 week`.
    ///
    /// # Errors
    /// SQLSTATE 22007 if the text is no interval, 22008 if the interval is too long.
    pub(crate) fn parse(text: &str, default_unit: Option<&str>) -> Result<Self, SqlError> {
        let malformed = || {
            SqlError::new("22007", format!("invalid input syntax for type interval: \"{text}\""))
        };
        let mut interval = Self::default();
        let mut words = text.split_ascii_whitespace().peekable();
        if words.peek().is_none() {
            return Err(malformed());
        }
        while let Some(word) = words.next() {
            if word.contains(':') {
                let micros = clock_micros(word).ok_or_else(malformed)?;
                interval.micros = interval.micros.checked_add(micros).ok_or_else(malformed)?;
                continue;
            }
            let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let number: Decimal = digits.parse().map_err(|_| malformed())?;
            let unit = match &word[digits.len()..] {
                "" => words.next().or(default_unit).unwrap_or("second"),
                unit => unit,
            };
            interval.add_unit(number, unit).ok_or_else(malformed)?;
        }
        Ok(interval)
    }

    fn add_unit(&mut self, number: Decimal, unit: &str) -> Option<()> {
        let unit = unit.to_ascii_lowercase();
        let whole = |factor: i64| -> Option<i64> {
            i64::try_from(number.checked_mul(Decimal::from(factor))?.round()).ok()
        };
        match unit.trim_end_matches('s') {
            "year" | "y" => self.months = self.months.checked_add(whole(12)?)?,
            "month" | "mon" => self.months = self.months.checked_add(whole(1)?)?,
            "week" | "w" => self.days = self.days.checked_add(whole(7)?)?,
            "day" | "d" => self.days = self.days.checked_add(whole(1)?)?,
            "hour" | "h" => {
                self.micros = self.micros.checked_add(whole(3600 * MICROS_PER_SECOND)?)?
            }
            "minute" | "min" | "m" => {
                self.micros = self.micros.checked_add(whole(60 * MICROS_PER_SECOND)?)?
            }
            "second" | "sec" | "" => {
                self.micros = self.micros.checked_add(whole(MICROS_PER_SECOND)?)?
            }
            "millisecond" => self.micros = self.micros.checked_add(whole(1000)?)?,
            "microsecond" => self.micros = self.micros.checked_add(whole(1)?)?,
            _ => return None,
        }
        Some(())
    }

    /// The same duration in the opposite direction.
    pub(crate) fn negated(self) -> Self {
        Self {
            months: self.months.saturating_neg(),
            days: self.days.saturating_neg(),
            micros: self.micros.saturating_neg(),
        }
    }
}

fn clock_micros(text: &str) -> Option<i64> {
    let time = NaiveTime::parse_from_str(text, "%H:%M:%S%.f")
        .or_else(|_| NaiveTime::parse_from_str(text, "%H:%M"))
        .ok()?;
    Some(
        i64::from(time.num_seconds_from_midnight()) * MICROS_PER_SECOND
            + i64::from(time.nanosecond() / 1000),
    )
}

/// The sum of a date or timestamp and an interval, as a timestamp.
///
/// # Errors
/// SQLSTATE 22008 if the sum is out of the range of timestamps.
pub(crate) fn add_interval(value: Value, interval: &Interval) -> Result<Value, SqlError> {
    let start = match value {
        Value::Date(date) => date.and_time(NaiveTime::MIN),
        Value::Timestamp(timestamp) => timestamp,
        _ => return Ok(Value::Null),
    };
    let add = || -> Option<NaiveDateTime> {
        let months = Months::new(u32::try_from(interval.months.unsigned_abs()).ok()?);
        let after = if interval.months < 0 {
            start.checked_sub_months(months)?
        } else {
            start.checked_add_months(months)?
        };
        let days = Days::new(interval.days.unsigned_abs());
        let after = if interval.days < 0 {
            after.checked_sub_days(days)?
        } else {
            after.checked_add_days(days)?
        };
        after.checked_add_signed(TimeDelta::microseconds(interval.micros))
    };
    fit_timestamp(add().ok_or_else(out_of_range)?)
}

/// The timestamp so many seconds after 1970, or before. Like PostgreSQL, this computes the seconds since 2000 as a DOUBLE
/// PRECISION, and then rounds to microseconds.
///
/// # Errors
/// SQLSTATE 22008 if the time is out of the range of timestamps.
pub(crate) fn since_1970(seconds: f64) -> Result<Value, SqlError> {
    let micros = ((seconds - f64::from(SECONDS_1970_TO_2000)) * 1e6).round_ties_even().to_i64();
    let micros = micros
        .and_then(|micros| micros.checked_add(i64::from(SECONDS_1970_TO_2000) * MICROS_PER_SECOND))
        .and_then(DateTime::from_timestamp_micros);
    fit_timestamp(micros.ok_or_else(out_of_range)?.naive_utc())
}

/// A part of a timestamp, as EXTRACT gives it.
///
/// # Errors
/// SQLSTATE 22023 for an unknown part, 0A000 for the time zone of a timestamp without one.
pub(crate) fn extract(
    field: &str,
    timestamp: NaiveDateTime,
    data_type: DataType,
) -> Result<Decimal, SqlError> {
    let micros = i64::from(timestamp.nanosecond() / 1000);
    let second_micros = i64::from(timestamp.second()) * MICROS_PER_SECOND + micros;
    // Years, centuries and millennia have no number 0: before Christ they count from -1.
    let astronomical = i64::from(timestamp.year());
    let since_christ = |year: i64| if year > 0 { year } else { year - 1 };
    let every = |years: i64| {
        let year = since_christ(astronomical);
        (year.abs() + years - 1) / years * year.signum()
    };
    let whole = match field {
        "second" => return Ok(Decimal::new(second_micros, 6)),
        "milliseconds" | "millisecond" => return Ok(Decimal::new(second_micros, 3)),
        "epoch" => return Ok(Decimal::new(timestamp.and_utc().timestamp_micros(), 6)),
        "microseconds" | "microsecond" => second_micros,
        "minute" => i64::from(timestamp.minute()),
        "hour" => i64::from(timestamp.hour()),
        "day" => i64::from(timestamp.day()),
        "month" => i64::from(timestamp.month()),
        "year" => since_christ(astronomical),
        "quarter" => i64::from(timestamp.month0() / 3 + 1),
        "week" => i64::from(timestamp.iso_week().week()),
        "isoyear" => since_christ(timestamp.iso_week().year().into()),
        "dow" => i64::from(timestamp.weekday().num_days_from_sunday()),
        "isodow" => i64::from(timestamp.weekday().number_from_monday()),
        "doy" => i64::from(timestamp.ordinal()),
        "decade" => astronomical.div_euclid(10),
        "century" => every(100),
        "millennium" => every(1000),
        "timezone" | "timezone_hour" | "timezone_minute" => match data_type {
            DataType::TimestampTz => 0,
            _ => {
                let message =
                    format!("unit \"{field}\" not supported for type {}", data_type.name());
                return Err(SqlError::new("0A000", message));
            }
        },
        _ => return Err(unknown_field(field, data_type)),
    };
    Ok(Decimal::from(whole))
}

fn unknown_field(field: &str, data_type: DataType) -> SqlError {
    let name = data_type.name();
    SqlError::new("22023", format!("unit \"{field}\" not recognized for type {name}"))
}

/// A timestamp truncated to a unit.
///
/// # Errors
/// SQLSTATE 22023 for an unknown unit.
pub(crate) fn truncate(
    field: &str,
    timestamp: NaiveDateTime,
    data_type: DataType,
) -> Result<NaiveDateTime, SqlError> {
    let date = timestamp.date();
    let midnight = |date: Option<NaiveDate>| date.map(|date| date.and_time(NaiveTime::MIN));
    let first_of = |year| midnight(NaiveDate::from_ymd_opt(year, 1, 1));
    let clock = |hour, minute, second, micros| date.and_hms_micro_opt(hour, minute, second, micros);
    let (hour, minute, second) = (timestamp.hour(), timestamp.minute(), timestamp.second());
    let micros = timestamp.nanosecond() / 1000;
    let year = date.year();
    let cut = match field {
        "microseconds" | "microsecond" => Some(timestamp),
        "milliseconds" | "millisecond" => clock(hour, minute, second, micros / 1000 * 1000),
        "second" => clock(hour, minute, second, 0),
        "minute" => clock(hour, minute, 0, 0),
        "hour" => clock(hour, 0, 0, 0),
        "day" => midnight(Some(date)),
        "week" => {
            let days = Days::new(u64::from(date.weekday().num_days_from_monday()));
            midnight(date.checked_sub_days(days))
        }
        "month" => midnight(date.with_day(1)),
        "quarter" => midnight(NaiveDate::from_ymd_opt(year, date.month0() / 3 * 3 + 1, 1)),
        "year" => first_of(year),
        "decade" => first_of(year.div_euclid(10) * 10),
        "century" => first_of((year - 1).div_euclid(100) * 100 + 1),
        "millennium" => first_of((year - 1).div_euclid(1000) * 1000 + 1),
        _ => return Err(unknown_field(field, data_type)),
    };
    cut.ok_or_else(out_of_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_parsed() {
        let interval = Interval::parse("1 year 2 days 03:04:05", None).unwrap();
        let micros = (3 * 3600 + 4 * 60 + 5) * MICROS_PER_SECOND;
        assert_eq!(interval, Interval { months: 12, days: 2, micros });
        assert_eq!(Interval::parse("-1 week", None).unwrap().days, -7);
        assert_eq!(Interval::parse("5", Some("minute")).unwrap().micros, 300_000_000);
        assert_eq!(Interval::parse("soon", None).unwrap_err().code, "22007");
    }

    #[test]
    fn a_month_after_the_end_of_january_is_the_end_of_february() {
        let start = NaiveDate::from_ymd_opt(2024, 1, 31).unwrap();
        let month = Interval { months: 1, ..Interval::default() };
        let end = NaiveDate::from_ymd_opt(2024, 2, 29).unwrap().and_time(NaiveTime::MIN);
        assert_eq!(add_interval(Value::Date(start), &month).unwrap(), Value::Timestamp(end));
    }
}
