//! Keys: a number, or bytes and their hash.
//!
//! A bucket knows one word of each key: the number itself, or the hash. That word gives partition, bucket and tag (`location.rs`).
//! Wherever a key is written, the word stands first and the bytes behind it; a number has no bytes.

use crate::layout::TableKind;

/// Largest key of a heap table, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// Bytes of a key that a message shows.
const SHOWN_BYTES_MAX: usize = 64;

/// A key of a table, as it is in messages, units and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// The key of a fixed table.
    Number(u64),
    /// The key of a heap table, 1 to [`KEY_BYTES_MAX`] bytes.
    Bytes {
        /// XXH3 of the bytes, 64 bits.
        hash: u64,
        /// The key itself.
        bytes: &'a [u8],
    },
}

impl<'a> Key<'a> {
    /// Hashes the key of a heap table.
    #[must_use]
    pub fn hashed(bytes: &'a [u8]) -> Self {
        Self::Bytes { hash: xxhash_rust::xxh3::xxh3_64(bytes), bytes }
    }

    /// The key that was written as [`Self::word`] and [`Self::bytes`]. The hash is not compared: see [`Self::fits`].
    #[inline(always)]
    #[must_use]
    pub fn from_parts(word: u64, bytes: &'a [u8]) -> Self {
        if bytes.is_empty() { Self::Number(word) } else { Self::Bytes { hash: word, bytes } }
    }

    /// What a bucket knows of the key, and [`crate::Table::locate`] takes: the number, or the hash.
    #[inline(always)]
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Self::Number(word) | Self::Bytes { hash: word, .. } => word,
        }
    }

    /// The bytes of the key; none of a number.
    #[inline(always)]
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Number(_) => &[],
            Self::Bytes { bytes, .. } => bytes,
        }
    }

    /// Whether a table of this kind may have the key, and its hash is right.
    #[inline(always)]
    #[must_use]
    pub fn fits(self, kind: TableKind) -> bool {
        match (kind, self) {
            (TableKind::Fixed, Self::Number(_)) => true,
            (TableKind::Heap | TableKind::Ordered, Self::Bytes { bytes, .. }) => {
                (1..=KEY_BYTES_MAX).contains(&bytes.len()) && self == Self::hashed(bytes)
            }
            (TableKind::Fixed, Self::Bytes { .. })
            | (TableKind::Heap | TableKind::Ordered, Self::Number(_)) => false,
        }
    }
}

/// The number, or the first bytes, escaped.
impl std::fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes { bytes, .. } => {
                let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
                let rest = if shown.len() < bytes.len() { "..." } else { "" };
                write!(f, "\"{}{rest}\"", shown.escape_ascii())
            }
        }
    }
}

impl From<u64> for Key<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        Self::hashed(text.as_bytes())
    }
}

impl<'a, const BYTES: usize> From<&'a [u8; BYTES]> for Key<'a> {
    fn from(bytes: &'a [u8; BYTES]) -> Self {
        Self::hashed(bytes)
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::hashed(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fit_tables_of_their_kind() {
        let (number, bytes) = (Key::Number(7), Key::hashed(b"seven"));
        assert!(number.fits(TableKind::Fixed) && !bytes.fits(TableKind::Fixed));
        for kind in [TableKind::Heap, TableKind::Ordered] {
            assert!(bytes.fits(kind) && !number.fits(kind));
            assert!(!Key::hashed(&[]).fits(kind), "no key is empty");
            assert!(Key::hashed(&[1; KEY_BYTES_MAX]).fits(kind));
            assert!(!Key::hashed(&[1; KEY_BYTES_MAX + 1]).fits(kind));
            assert!(!Key::from_parts(bytes.word() + 1, b"seven").fits(kind), "the hash is another");
        }
        for key in [number, bytes] {
            assert_eq!(Key::from_parts(key.word(), key.bytes()), key);
        }
        assert_eq!(format!("{number}, {bytes}"), "7, \"seven\"");
        assert!(Key::hashed(&[b'x'; 100]).to_string().ends_with("xx...\""));
    }
}
