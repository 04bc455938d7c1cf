//! The secret that the nodes of a cluster share, or its clients with the nodes, and its file.
//!
//! The file holds 64 hexadecimal digits: 32 bytes, from `openssl rand -hex 32`. Only its owner may be
//! able to read it.
//!
//! *Invariants*: the bytes are never printed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ring::hmac;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// What a file of a key may hold beside its digits: white space at its end.
const FILE_BYTES_MAX: u64 = 1 << 10;
/// Permissions of a group and of others.
const OTHERS: u32 = 0o077;

/// A secret: that of a cluster, whose owner can become a member, or that of its clients.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_BYTES]);

/// A key could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterKeyError {
    /// There is no such file, or it cannot be read.
    #[error(
        "cannot read the key {}: {source}; make one with \
         `(umask 077; openssl rand -hex 32 > {})` and copy it to all that share it",
        path.display(), path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than its owner could read it.
    #[error(
        "the key {} can be read by others (mode {mode:03o}): run `chmod 600 {}`, and make a \
         new key if someone may have copied it",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It holds something else.
    #[error(
        "the key {} must hold {} hexadecimal digits, {found}: make one with \
         `openssl rand -hex 32`",
        path.display(), 2 * KEY_BYTES
    )]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// What it holds instead, without showing it.
        found: String,
    },
}

impl ClusterKey {
    /// The key with these bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads a key from its file.
    ///
    /// # Errors
    /// [`ClusterKeyError`], which says what to do.
    pub fn read(path: &Path) -> Result<Self, ClusterKeyError> {
        let unreadable = |source| ClusterKeyError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
        if mode & OTHERS != 0 {
            return Err(ClusterKeyError::Exposed { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
        Self::parse(bytes.trim_ascii())
            .map_err(|found| ClusterKeyError::NotAKey { path: path.to_owned(), found })
    }

    /// The key that these digits are, or what is wrong with them.
    fn parse(digits: &[u8]) -> Result<Self, String> {
        if digits.len() != 2 * KEY_BYTES {
            return Err(format!("and holds {} characters", digits.len()));
        }
        let mut key = [0; KEY_BYTES];
        for (at, &digit) in digits.iter().enumerate() {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                b'A'..=b'F' => digit - b'A' + 10,
                _ => return Err(format!("and character {} is none", at + 1)),
            };
            key[at / 2] = key[at / 2] << 4 | value;
        }
        Ok(Self(key))
    }

    /// A key for another purpose than packets.
    #[must_use]
    pub fn derived(&self, purpose: &[u8]) -> [u8; KEY_BYTES] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut derived = [0; KEY_BYTES];
        derived.copy_from_slice(hmac::sign(&key, purpose).as_ref());
        derived
    }

    pub(super) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ClusterKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A file of the test's own, removed at its end.
    struct Kept(PathBuf);

    impl Kept {
        fn new(name: &str, contents: &str, mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("gannet-{}-{name}", std::process::id()));
            fs::write(&path, contents).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }

        fn error(&self) -> String {
            ClusterKey::read(&self.0).expect_err("the file is bad").to_string()
        }
    }

    impl Drop for Kept {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_key_is_read_and_never_shown() {
        let digits = "00ff1A".to_owned() + &"7c".repeat(29);
        let file = Kept::new("good", &format!("{digits}\n"), 0o600);
        let key = ClusterKey::read(&file.0).unwrap();
        assert_eq!(key.bytes()[..4], [0, 255, 0x1a, 0x7c]);
        assert_eq!(format!("{key:?}"), "ClusterKey(..)");
    }

    #[test]
    fn bad_files_are_named_and_not_shown() {
        let digits = "7c".repeat(32);
        for mode in [0o644, 0o640, 0o604] {
            let error = Kept::new("exposed", &digits, mode).error();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:o}")), "{error}");
        }
        let error = Kept::new("short", &digits[1..], 0o600).error();
        assert!(error.contains("63 characters") && !error.contains("7c7c"), "{error}");
        let error = Kept::new("word", &digits.replacen('c', "x", 1), 0o400).error();
        assert!(error.contains("character 2 is none"), "{error}");
        let error = Kept::new("long", &"7".repeat(5_000), 0o600).error();
        assert!(error.contains("1024 characters"), "{error}");
        let error = ClusterKey::read(Path::new("/nowhere/key")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/key") && error.contains("openssl"), "{error}");
    }
}
