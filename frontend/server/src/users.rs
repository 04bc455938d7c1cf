//! Users: names and SCRAM verifiers, in a file.
//!
//! ```text
//! # name  verifier, as PostgreSQL's pg_authid.rolpassword holds it
//! alice   SCRAM-SHA-256$4096:<salt>$<stored key>:<server key>      (base64)
//! ```
//!
//! *Source*: RFC 5803, RFC 7677; PostgreSQL 15, section 53.3.
//!
//! *Invariants*: neither the file nor the memory keeps a password. A client cannot tell a missing user from a wrong password.
//!
//! *Not here*: the exchange of SCRAM (`startup`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pgwire::api::auth::sasl::scram::{ScramSecret, gen_salted_password};

use super::secret::{self, SecretError};

const MECHANISM: &str = "SCRAM-SHA-256";
/// Iterations for users who do not exist: PostgreSQL's default.
const ITERATIONS: usize = 4096;
/// Maximum number of iterations; more would keep a core busy for seconds.
const ITERATIONS_MAX: usize = 1_000_000;
const SALT_BYTES: usize = 16;
const KEY_BYTES: usize = 32;

/// Why a users file is refused.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read or written.
    #[error("cannot use the users file {path}: {source}; check its path and permissions")]
    File {
        /// The file's path.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Others may read the file.
    #[error("the users file {path} has mode {mode:o}, so others may use it; chmod 600 {path}")]
    Exposed {
        /// The file's path.
        path: String,
        /// The file's permissions.
        mode: u32,
    },
    /// A line is malformed.
    #[error(
        "line {line} of the users file is no `NAME SCRAM-SHA-256$...`; write it with `gannet user`"
    )]
    Line {
        /// The line's number, from 1.
        line: usize,
    },
    /// Two lines have the same name.
    #[error("line {line} of the users file names a user again; remove one of the two lines")]
    Twice {
        /// The second line's number, from 1.
        line: usize,
    },
    /// A line cannot contain this name.
    #[error("a user's name has 1 to 63 characters without spaces and does not begin with #")]
    Name,
    /// An empty password.
    #[error("the password is empty; give one")]
    EmptyPassword,
}

/// The users of a server.
#[derive(Clone, Debug, Default)]
pub struct Users {
    verifiers: BTreeMap<String, Verifier>,
    /// The seed of salts for users who do not exist, so that each salt stays the same.
    seed: [u8; SALT_BYTES],
}

#[derive(Clone)]
struct Verifier {
    iterations: usize,
    salt: Vec<u8>,
    stored_key: Vec<u8>,
    server_key: Vec<u8>,
}

/// Hides the keys.
impl std::fmt::Debug for Verifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Verifier").field("iterations", &self.iterations).finish()
    }
}

impl Users {
    /// Reads a users file.
    ///
    /// # Errors
    /// [`UsersError`] if the file cannot be read or a line is malformed.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let bytes = secret::read(path).map_err(|error| match error {
            SecretError::Unreadable(source) => file_error(path, source),
            SecretError::Exposed(mode) => {
                UsersError::Exposed { path: path.display().to_string(), mode }
            }
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|error| file_error(path, std::io::Error::other(error.utf8_error())))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, UsersError> {
        let mut users = Self::default();
        getrandom::fill(&mut users.seed).expect("the system gives random bytes");
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            let Some((name, verifier)) = split_line(line) else {
                if line.trim().is_empty() || line.trim_start().starts_with('#') {
                    continue;
                }
                return Err(UsersError::Line { line: line_number });
            };
            let verifier =
                Verifier::parse(verifier).ok_or(UsersError::Line { line: line_number })?;
            if users.verifiers.insert(name.to_owned(), verifier).is_some() {
                return Err(UsersError::Twice { line: line_number });
            }
        }
        Ok(users)
    }

    /// Whether there are no users.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.verifiers.is_empty()
    }

    /// The secret that a client must prove to know, and whether the user exists.
    ///
    /// A missing user has a secret as well, so that clients cannot tell the difference.
    pub(super) fn secret(&self, name: &str) -> (ScramSecret, bool) {
        if let Some(verifier) = self.verifiers.get(name) {
            let Verifier { iterations, salt, stored_key, server_key } = verifier.clone();
            return (ScramSecret::Verifier { salt, iterations, stored_key, server_key }, true);
        }
        let mut salt = gen_salted_password(name, &self.seed, 1);
        salt.truncate(SALT_BYTES);
        let mut keys = [0; 2 * KEY_BYTES];
        getrandom::fill(&mut keys).expect("the system gives random bytes");
        let (stored_key, server_key) = keys.split_at(KEY_BYTES);
        let secret = ScramSecret::Verifier {
            salt,
            iterations: ITERATIONS,
            stored_key: stored_key.to_vec(),
            server_key: server_key.to_vec(),
        };
        (secret, false)
    }
}

impl Verifier {
    /// `SCRAM-SHA-256$iterations:salt$stored:server`
    fn parse(text: &str) -> Option<Self> {
        let (mechanism, rest) = text.split_once('$')?;
        let (parameters, keys) = rest.split_once('$')?;
        let (iterations, salt) = parameters.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let verifier = Self {
            iterations: iterations.parse().ok()?,
            salt: STANDARD.decode(salt).ok()?,
            stored_key: STANDARD.decode(stored_key).ok()?,
            server_key: STANDARD.decode(server_key).ok()?,
        };
        let whole = mechanism == MECHANISM
            && (1..=ITERATIONS_MAX).contains(&verifier.iterations)
            && !verifier.salt.is_empty()
            && verifier.stored_key.len() == KEY_BYTES
            && verifier.server_key.len() == KEY_BYTES;
        whole.then_some(verifier)
    }
}

/// The name and the verifier in a line, unless the line is a comment or lacks one of them.
fn split_line(line: &str) -> Option<(&str, &str)> {
    let (name, verifier) = line.trim().split_once(char::is_whitespace)?;
    (!name.starts_with('#')).then_some((name, verifier.trim_start()))
}

fn file_error(path: &Path, source: std::io::Error) -> UsersError {
    UsersError::File { path: path.display().to_string(), source }
}

/// Writes a user with a password into a users file, and creates the file if necessary. An entry with that name is replaced. A
/// server reads the file when it starts.
///
/// # Errors
/// [`UsersError`] if the name or the password is invalid, or the file is malformed.
pub fn add_user(path: &Path, name: &str, password: &str) -> Result<(), UsersError> {
    let wrong = name.is_empty()
        || name.chars().count() > 63
        || name.starts_with('#')
        || name.contains(|c: char| c.is_whitespace() || c.is_control());
    if wrong {
        return Err(UsersError::Name);
    }
    if password.is_empty() {
        return Err(UsersError::EmptyPassword);
    }
    let old = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(file_error(path, error)),
    };
    Users::parse(&old)?;
    let mut text = String::new();
    let kept = old.lines().filter(|line| split_line(line).is_none_or(|(other, _)| other != name));
    kept.for_each(|line| writeln!(text, "{line}").expect("a String takes everything"));
    let verifier = postgres_protocol::password::scram_sha_256(password.as_bytes());
    writeln!(text, "{name} {verifier}").expect("a String takes everything");
    replace_file(path, &text).map_err(|source| file_error(path, source))
}

/// Replaces a file in one step by a file that only its owner may read.
fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PostgreSQL 15's verifier for the password `pencil`.
    fn line(name: &str) -> String {
        format!("{name} {}", postgres_protocol::password::scram_sha_256(b"pencil"))
    }

    #[test]
    fn lines_are_users_or_comments() {
        let text = format!("# who\n\n{}\n  {}  \n", line("alice"), line("bob"));
        let users = Users::parse(&text).unwrap();
        assert!(users.secret("alice").1);
        assert!(users.secret("bob").1);
        assert!(!users.secret("carol").1);
    }

    #[test]
    fn malformed_lines_are_refused() {
        for wrong in ["alice", "alice md5abc", "alice SCRAM-SHA-256$4096:x$y:z"] {
            let error = Users::parse(&format!("{}\n{wrong}", line("bob"))).unwrap_err();
            assert!(matches!(error, UsersError::Line { line: 2 }), "{wrong}");
        }
        let twice = format!("{}\n{}", line("bob"), line("bob"));
        assert!(matches!(Users::parse(&twice), Err(UsersError::Twice { line: 2 })));
    }

    #[test]
    fn users_who_do_not_exist_keep_their_salt() {
        let users = Users::parse(&line("bob")).unwrap();
        let salt = |name: &str| match users.secret(name).0 {
            ScramSecret::Verifier { salt, .. } => salt,
            ScramSecret::SaltedPassword { .. } => unreachable!("verifiers only"),
        };
        assert_eq!(salt("carol"), salt("carol"));
        assert_ne!(salt("carol"), salt("dave"));
    }
}
