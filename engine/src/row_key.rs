//! The key of a row as an outcome names it: short, and without memory of its own.
//!
//! ```text
//! number | 42                        bytes | length (2) | the first 12 |
//! ```
//! *Invariant*: a key that is bytes is named by its bytes, never by its hash.
//!
//! *Not here*: keys that find rows, in crate `storage`.

use std::fmt;

use gannet_storage::Key;

/// Bytes of a key that an outcome keeps.
const KEPT_BYTES: usize = 12;

/// The key of a row, as a [`crate::Misuse`] names it: a number, or how a byte string begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RowKey {
    /// A number.
    Number(u64),
    /// A byte string.
    Bytes(KeyStart),
}

/// The first bytes of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyStart {
    /// Bytes of the whole key; those of one that no table can have may be more.
    length: u16,
    first: [u8; KEPT_BYTES],
}

impl KeyStart {
    /// The first bytes, at most 12; all of a shorter key.
    #[must_use]
    pub fn first(&self) -> &[u8] {
        &self.first[..usize::from(self.length).min(KEPT_BYTES)]
    }

    /// Whether the key has no further bytes.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        usize::from(self.length) <= KEPT_BYTES
    }
}

impl From<&[u8]> for RowKey {
    fn from(bytes: &[u8]) -> Self {
        let mut first = [0; KEPT_BYTES];
        first.iter_mut().zip(bytes).for_each(|(kept, byte)| *kept = *byte);
        let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        Self::Bytes(KeyStart { length, first })
    }
}

impl From<Key<'_>> for RowKey {
    fn from(key: Key<'_>) -> Self {
        match key {
            Key::Number(number) => Self::Number(number),
            Key::Bytes(bytes) => bytes.into(),
        }
    }
}

/// The number, or the first bytes, escaped.
impl fmt::Display for RowKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Bytes(start) => {
                let rest = if start.is_whole() { "" } else { "..." };
                write!(formatter, "\"{}{rest}\"", start.first().escape_ascii())
            }
        }
    }
}

/// As it is displayed.
impl fmt::Debug for RowKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// As its [`RowKey`] is displayed.
impl fmt::Debug for KeyStart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&RowKey::Bytes(*self), formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_by_its_number_or_by_how_it_begins() {
        let named = |key: Key<'_>| RowKey::from(key).to_string();
        assert_eq!(named(Key::Number(42)), "42");
        assert_eq!(named(Key::from(b"")), "\"\"");
        assert_eq!(named(Key::from(b"tea\xff")), "\"tea\\xff\"");
        assert_eq!(named(Key::from(b"twelve bytes")), "\"twelve bytes\"");
        assert_eq!(named(Key::from(b"more than twelve bytes")), "\"more than tw...\"");
        assert_eq!(named(Key::from(&[b'x'; 5_000])), "\"xxxxxxxxxxxx...\"");
    }

    #[test]
    fn keys_that_begin_alike_differ_by_their_length() {
        let name = |bytes: usize| RowKey::from(&vec![b'x'; bytes][..]);
        assert_eq!(name(20), name(20));
        assert_ne!(name(20), name(21));
        assert_ne!(name(11), RowKey::from(&b"xxxxxxxxxxx\0"[..]));
    }
}
