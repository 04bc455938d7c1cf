//! The settings of a session, which SET changes and SHOW shows: names, first values, and valid values.
//!
//! *Source*: PostgreSQL 15 documentation, chapter 20, for the settings that drivers send or read.
//!
//! *Not here*: the session's present values (`session`).

use std::collections::BTreeMap;
use std::time::Duration;

use gannet_engine::{Token, TokenError};

use crate::error::SqlError;
use crate::text::time::is_utc;

/// The text of version(). Drivers expect the protocol and the catalog of the PostgreSQL version in it.
pub(crate) const VERSION_TEXT: &str = "PostgreSQL 15.0 (Gannet 0.1.0)";

/// The setting with the token of the next transaction.
pub(crate) const TOKEN: &str = "gannet.idempotency_token";

/// The setting with the time for which a transaction holds rows that it has reserved.
pub(crate) const RESERVATION_TIMEOUT: &str = "gannet.reservation_timeout";

/// All settings, with their first values.
const DEFAULTS: &[(&str, &str)] = &[
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("client_min_messages", "notice"),
    ("datestyle", "ISO, MDY"),
    ("default_table_access_method", "heap"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "off"),
    ("extra_float_digits", "1"),
    (TOKEN, ""),
    (RESERVATION_TIMEOUT, "5s"),
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "on"),
    ("lock_timeout", "0"),
    ("max_identifier_length", "63"),
    ("max_index_keys", "32"),
    ("search_path", "\"$user\", public"),
    ("server_encoding", "UTF8"),
    ("server_version", "15.0"),
    ("server_version_num", "150000"),
    ("session_authorization", "gannet"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("synchronous_commit", "on"),
    ("timezone", "UTC"),
    ("transaction_isolation", "serializable"),
    ("transaction_read_only", "off"),
];

/// Settings that cannot be changed.
const FIXED: &[&str] = &[
    "default_table_access_method",
    "in_hot_standby",
    "integer_datetimes",
    "is_superuser",
    "max_identifier_length",
    "max_index_keys",
    "server_encoding",
    "server_version",
    "server_version_num",
];

/// The settings of a new session.
pub(crate) fn defaults(user: &str) -> BTreeMap<String, String> {
    let mut settings: BTreeMap<String, String> =
        DEFAULTS.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    settings.insert("session_authorization".to_owned(), user.to_owned());
    settings
}

/// The first value of a setting.
pub(crate) fn default_of(name: &str) -> Option<&'static str> {
    DEFAULTS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
}

/// The duration that a text such as `250`, `250ms`, `2 s` or `1min` means; a number without a unit is in milliseconds.
pub fn duration(value: &str) -> Option<Duration> {
    let value = value.trim();
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (number, unit) = value.split_at(end);
    let milliseconds: u64 = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(milliseconds)?))
}

/// The idempotency token that a text means.
///
/// # Errors
/// SQLSTATE 22023.
pub(crate) fn token(text: &str) -> Result<Token, SqlError> {
    text.parse().map_err(|error: TokenError| SqlError::new("22023", error.to_string()))
}

/// Checks that a setting exists and that the value is valid for it.
///
/// # Errors
/// SQLSTATE 42704, 55P02, 22023 and 0A000.
pub(crate) fn check(name: &str, value: &str) -> Result<(), SqlError> {
    if default_of(name).is_none() {
        // A name with a point belongs to the application.
        if name.contains('.') {
            return Ok(());
        }
        let message = format!("unrecognized configuration parameter \"{name}\"");
        let names = DEFAULTS.iter().map(|(name, _)| *name);
        return Err(SqlError::new("42704", message).did_you_mean(name, names));
    }
    if FIXED.contains(&name) {
        return Err(SqlError::new("55P02", format!("parameter \"{name}\" cannot be changed")));
    }
    if name.ends_with("_timeout") && duration(value).is_none() {
        let message = format!("invalid value for parameter \"{name}\": \"{value}\"");
        let hint = "give milliseconds, or a number with the unit ms, s, min, h or d";
        return Err(SqlError::new("22023", message).with_hint(hint));
    }
    if name == TOKEN && !value.is_empty() {
        token(value)?;
    }
    let lower = value.to_lowercase();
    let supported = match name {
        "client_encoding" => matches!(encoding_name(&lower).as_str(), "utf8" | "unicode"),
        "timezone" => is_utc(&lower) || matches!(lower.as_str(), "0" | "local" | "default"),
        "datestyle" => lower.contains("iso"),
        "bytea_output" => lower == "hex",
        "standard_conforming_strings" => matches!(lower.as_str(), "on" | "true" | "1"),
        _ => true,
    };
    if supported {
        return Ok(());
    }
    Err(SqlError::unsupported(format_args!("{name} = {value}")))
}

/// The name of an encoding as PostgreSQL compares names: letters and digits only. asyncpg sends quotes around the name.
fn encoding_name(written: &str) -> String {
    written.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// A checked value in the form that the setting keeps.
pub(crate) fn kept(name: &str, value: &str) -> String {
    match name {
        // UTF8 is the only encoding.
        "client_encoding" => "UTF8".to_owned(),
        _ => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_named_in_many_ways() {
        for name in ["utf8", "UTF-8", "'utf-8'", "Unicode"] {
            assert!(check("client_encoding", name).is_ok(), "{name}");
        }
        assert_eq!(check("client_encoding", "latin1").unwrap_err().code, "0A000");
        assert_eq!(kept("client_encoding", "'utf-8'"), "UTF8");
    }

    #[test]
    fn times_have_units() {
        let milliseconds = |text| duration(text).map(|time| time.as_millis());
        assert_eq!(milliseconds("0"), Some(0));
        assert_eq!(milliseconds("250"), Some(250));
        assert_eq!(milliseconds(" 2 s "), Some(2_000));
        assert_eq!(milliseconds("3min"), Some(180_000));
        assert_eq!(milliseconds("1 fortnight"), None);
        assert_eq!(milliseconds("-1"), None);
        assert_eq!(milliseconds("s"), None);
        assert_eq!(milliseconds("99999999999999999999d"), None);
    }
}
