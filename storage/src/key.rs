//! Keys: numbers or bytes. A hashed key tells where its row is in a table, too.
//!
//! A bucket knows one word of each key: the number itself, or the hash. That word gives partition, bucket and tag (`location.rs`).
//! Wherever a hashed key is written, the word stands first and the bytes behind it; a number has no bytes.
//!
//! *Invariant*: which keys that are bytes fall into one bucket depends on the cluster's seed, which clients do not get.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::layout::TableKind;

/// Largest key of a heap table, in bytes.
pub const KEY_BYTES_MAX: usize = 4096;

/// Bytes of a key that a message shows.
const SHOWN_BYTES_MAX: usize = 64;

/// A key of a table, as programs name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// The key of a fixed table.
    Number(u64),
    /// The key of a heap table, 1 to [`KEY_BYTES_MAX`] bytes.
    Bytes(&'a [u8]),
}

/// The secret of a cluster that goes into the hashes of its byte-string keys.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashSeed(u64);

/// A key of a table, as it is in messages, units and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashedKey<'a> {
    /// The key of a fixed table.
    Number(u64),
    /// The key of a heap table, 1 to [`KEY_BYTES_MAX`] bytes.
    Bytes {
        /// XXH3 of the bytes with the cluster's seed, 64 bits.
        hash: u64,
        /// The key itself.
        bytes: &'a [u8],
    },
}

impl HashSeed {
    /// What everybody knows: for tables whose keys nobody chooses to fall together.
    pub const ZERO: Self = Self(0);

    /// The seed with these bits. They should be random where others choose the keys.
    #[must_use]
    pub fn new(bits: u64) -> Self {
        Self(bits)
    }

    /// The key with its hash.
    #[inline]
    #[must_use]
    pub fn hashed<'a>(self, key: impl Into<Key<'a>>) -> HashedKey<'a> {
        match key.into() {
            Key::Number(number) => HashedKey::Number(number),
            Key::Bytes(bytes) => HashedKey::Bytes { hash: self.hash(bytes), bytes },
        }
    }

    /// The hash of a key of a heap table.
    #[inline]
    #[must_use]
    pub fn hash(self, bytes: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(bytes, self.0)
    }

    /// Whether a table of this kind may have the key, and its hash is right.
    #[inline(always)]
    #[must_use]
    pub fn fits(self, key: HashedKey<'_>, kind: TableKind) -> bool {
        match (kind, key) {
            (TableKind::Fixed, HashedKey::Number(_)) => true,
            (TableKind::Heap | TableKind::Ordered, HashedKey::Bytes { hash, bytes }) => {
                (1..=KEY_BYTES_MAX).contains(&bytes.len()) && hash == self.hash(bytes)
            }
            (TableKind::Fixed, HashedKey::Bytes { .. })
            | (TableKind::Heap | TableKind::Ordered, HashedKey::Number(_)) => false,
        }
    }

    /// For tests: two keys of 16 bytes with the same hash. XXH3 adds the first half, its bytes reversed, to the second, and their product, each
    /// half having been changed by words of its secret and the seed; where one half is then zero, the other may stand in either place.
    ///
    /// # Panics
    /// If the hash is another one than the one named here.
    #[cfg(any(feature = "mutants", all(test, not(loom))))]
    #[must_use]
    pub fn keys_with_one_hash(self, word: u64) -> [[u8; 16]; 2] {
        const FLIPS: [u64; 2] = [
            0x1f67_b3b7_a4a4_4072 ^ 0x78e5_c0cc_4ee6_79cb,
            0x2172_ffcc_7dd0_5a82 ^ 0x8e24_43f7_7446_08b8,
        ];
        let flips = [FLIPS[0].wrapping_add(self.0), FLIPS[1].wrapping_sub(self.0)];
        let key = |halves: [u64; 2]| {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&(halves[0] ^ flips[0]).to_le_bytes());
            key[8..].copy_from_slice(&(halves[1] ^ flips[1]).to_le_bytes());
            key
        };
        let keys = [key([0, word]), key([word.swap_bytes(), 0])];
        assert!(keys[0] != keys[1] && self.hash(&keys[0]) == self.hash(&keys[1]));
        keys
    }
}

/// Without the secret.
impl fmt::Debug for HashSeed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HashSeed(..)")
    }
}

impl<'a> HashedKey<'a> {
    /// The key that was written as [`Self::word`] and [`Self::bytes`]. The hash is not compared: see [`HashSeed::fits`].
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

    /// The key without its hash.
    #[inline(always)]
    #[must_use]
    pub fn plain(self) -> Key<'a> {
        match self {
            Self::Number(number) => Key::Number(number),
            Self::Bytes { bytes, .. } => Key::Bytes(bytes),
        }
    }
}

/// The number, or the first bytes, escaped.
impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => {
                let shown = &bytes[..bytes.len().min(SHOWN_BYTES_MAX)];
                let rest = if shown.len() < bytes.len() { "..." } else { "" };
                write!(f, "\"{}{rest}\"", shown.escape_ascii())
            }
        }
    }
}

impl From<u64> for HashedKey<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u64> for Key<'_> {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl<'a> From<&'a str> for Key<'a> {
    fn from(text: &'a str) -> Self {
        Self::Bytes(text.as_bytes())
    }
}

impl<'a, const BYTES: usize> From<&'a [u8; BYTES]> for Key<'a> {
    fn from(bytes: &'a [u8; BYTES]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Key<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a [u8]> for Key<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_fit_tables_of_their_kind() {
        let seed = HashSeed::new(5);
        let (number, bytes) = (seed.hashed(7), seed.hashed(b"seven"));
        let fits = |key, kind| seed.fits(key, kind);
        assert!(fits(number, TableKind::Fixed) && !fits(bytes, TableKind::Fixed));
        for kind in [TableKind::Heap, TableKind::Ordered] {
            assert!(fits(bytes, kind) && !fits(number, kind));
            assert!(!fits(seed.hashed(&[]), kind), "no key is empty");
            assert!(fits(seed.hashed(&[1; KEY_BYTES_MAX]), kind));
            assert!(!fits(seed.hashed(&[1; KEY_BYTES_MAX + 1]), kind));
            let other = HashedKey::from_parts(bytes.word() + 1, b"seven");
            assert!(!fits(other, kind), "the hash is another");
            assert!(!fits(HashSeed::ZERO.hashed(b"seven"), kind), "the seed is another");
        }
        for key in [number, bytes] {
            assert_eq!(HashedKey::from_parts(key.word(), key.bytes()), key);
            assert_eq!(seed.hashed(key.plain()), key);
        }
        assert_eq!(format!("{}, {}", number.plain(), bytes.plain()), "7, \"seven\"");
        assert!(Key::from(&[b'x'; 100]).to_string().ends_with("xx...\""));
    }

    #[test]
    #[cfg(not(loom))]
    fn keys_that_collide_with_one_seed_do_not_with_another() {
        let seeds = [0, 1, u64::MAX].map(HashSeed::new);
        for seed in seeds {
            let keys = seed.keys_with_one_hash(11);
            for other in seeds.into_iter().filter(|other| *other != seed) {
                assert_ne!(other.hash(&keys[0]), other.hash(&keys[1]));
            }
        }
        assert_eq!(format!("{:?}", seeds[1]), "HashSeed(..)", "the seed is secret");
    }
}
