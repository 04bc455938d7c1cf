//! The settings of a session: what SET changes and SHOW shows.

use std::collections::BTreeMap;

use crate::error::SqlError;

/// What version() says. The number in front is the one whose protocol and catalog drivers may expect.
pub(crate) const VERSION_TEXT: &str = "PostgreSQL 15.0 (Gannet 0.1.0)";

/// The settings that there are, and their first values.
const DEFAULTS: &[(&str, &str)] = &[
    ("application_name", ""),
    ("bytea_output", "hex"),
    ("client_encoding", "UTF8"),
    ("client_min_messages", "notice"),
    ("datestyle", "ISO, MDY"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "off"),
    ("extra_float_digits", "1"),
    ("in_hot_standby", "off"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "on"),
    ("lock_timeout", "0"),
    ("max_identifier_length", "63"),
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
    "in_hot_standby",
    "integer_datetimes",
    "is_superuser",
    "max_identifier_length",
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

/// Checks that a setting exists and can have a value.
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
    let lower = value.to_lowercase();
    let supported = match name {
        "client_encoding" => matches!(lower.as_str(), "utf8" | "utf-8" | "unicode"),
        "timezone" => {
            matches!(lower.as_str(), "utc" | "gmt" | "etc/utc" | "0" | "local" | "default")
        }
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
