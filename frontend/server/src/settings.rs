//! Settings that a client gives when it connects, and settings whose changes are reported to the client.
//!
//! *Source*: PostgreSQL 15, section 55.2.7.
//!
//! *Not here*: which settings exist (`gannet_frontend`).

use super::interruption::Interruption;
use super::replies::Replies;
use gannet_frontend::{Session, SqlError};

/// The reported settings, each with its value where the session has none.
const REPORTED: [(&str, &str); 13] = [
    ("server_version", concat!("15.0 (Gannet ", env!("CARGO_PKG_VERSION"), ")")),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("application_name", ""),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
    ("is_superuser", "on"),
    ("session_authorization", ""),
    ("default_transaction_read_only", "off"),
    ("in_hot_standby", "off"),
];

/// Parameters of the startup message that are not settings.
const NO_SETTINGS: [&str; 4] = ["user", "database", "options", "replication"];

/// The values that were reported to the client.
#[derive(Default)]
pub(super) struct Reported {
    values: [Option<String>; REPORTED.len()],
}

impl Reported {
    /// Reports changed values to the client.
    pub(super) fn report(&mut self, session: &Session, replies: &mut Replies) {
        for ((name, default), known) in REPORTED.iter().zip(&mut self.values) {
            let value = session.setting(name).unwrap_or_else(|| (*default).to_owned());
            if known.as_ref() != Some(&value) {
                replies.parameter_status(name, &value);
                *known = Some(value);
            }
        }
    }
}

/// Sets the values of the startup message, which RESET restores. An unknown setting becomes a warning.
pub(super) async fn apply(
    session: &mut Session,
    parameters: &[(String, String)],
    replies: &mut Replies,
) -> Result<(), Interruption> {
    let direct = parameters
        .iter()
        .filter(|(name, _)| !NO_SETTINGS.contains(&name.as_str()) && !name.starts_with("_pq_."))
        .cloned();
    let options = parameters.iter().filter(|(name, _)| name == "options");
    let optional = options.flat_map(|(_, options)| command_line_settings(options));
    let settings: Vec<(String, String)> = direct.chain(optional).collect();
    for (name, value) in settings {
        let result = set(session, &name, &value).await;
        match result {
            Ok(()) => {}
            Err(error) if name.eq_ignore_ascii_case("client_encoding") => {
                return Err(Interruption::Fatal(error));
            }
            Err(error) => replies.notice(&format!("WARNING: {name} is not set: {error}")),
        }
    }
    session.keep_settings();
    Ok(())
}

async fn set(session: &mut Session, name: &str, value: &str) -> Result<(), SqlError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(SqlError::new("42602", format!("invalid parameter name \"{name}\"")));
    }
    let value = value.replace('\'', "''");
    session.execute(&format!("SET {name} TO '{value}'")).await.map(|_| ())
}

/// `-c name=value` and `--name=value` of the startup parameter `options`.
fn command_line_settings(options: &str) -> Vec<(String, String)> {
    let words = options.split_ascii_whitespace().filter(|word| *word != "-c");
    words
        .filter_map(|word| {
            let word = word.strip_prefix("--").or_else(|| word.strip_prefix("-c")).unwrap_or(word);
            let (name, value) = word.split_once('=')?;
            Some((name.replace('-', "_"), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_command_lines() {
        let settings = command_line_settings("-c a=1 --b-c=x  -cd=2 -v");
        let expected = [("a", "1"), ("b_c", "x"), ("d", "2")];
        assert_eq!(settings, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
