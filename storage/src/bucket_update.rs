//! The unit of change: everything one transaction does to one bucket, as it travels and is logged.
//!
//! ```text
//!  0 u32 table | 4 u32 bucket
//!  8 u16 partition | 10 u16 items (2^16 - 1 = splits the bucket, 2^16 - 2 = merges a half into it) | 12 u32 bytes behind the header
//! 16 u64 base version                        installs base version + 1; a split, the same in both halves, of the next level
//! 24 u64 owner                               the transaction's lock word
//!    a merge: u64 version | u64 deletion mark | u64 items    of the half; a value in a heap table has its row's stamp before it
//! 32 items: u64 key | u32 value bytes (2^32 - 1 = delete) | u32 key bytes | key, value, each padded
//!           to 8 bytes. A fixed table's key is its number and has no bytes; a heap table's hash.
//! ```
//! Little-endian; every unit is a multiple of 8 bytes long.
//!
//! *Source*: `docs/protocol.md`, "Unit of change".

use crate::growth::count_of;
use crate::key::HashedKey;
use crate::owner::Owner;

const HEADER_BYTES: usize = 32;
const ITEM_HEADER_BYTES: usize = 16;
const DELETE: u32 = u32::MAX;
const SPLITS: u16 = u16::MAX;
const MERGES: u16 = SPLITS - 1;
/// What a merge has before its items.
const HALF_BYTES: usize = 24;

/// Changes that a unit has room for: their number has 16 bits, and the two largest ones say that the bucket is split or merged.
pub const UNIT_ITEMS_MAX: usize = MERGES as usize - 1;

/// Bytes that are no unit or record. The receiver drops and counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {what}: expected {expected} bytes or more, found {found}")]
pub struct Malformed {
    /// What was being parsed.
    pub what: &'static str,
    /// Bytes needed.
    pub expected: usize,
    /// Bytes there.
    pub found: usize,
}

impl Malformed {
    pub(crate) fn check(what: &'static str, expected: usize, found: usize) -> Result<(), Self> {
        if found < expected { Err(Self { what, expected, found }) } else { Ok(()) }
    }
}

#[inline(always)]
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("a slice of 2 bytes"))
}

#[inline(always)]
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of 4 bytes"))
}

#[inline(always)]
pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes"))
}

/// A length padded to words of 8 bytes, without the comparison of `next_multiple_of`.
#[inline(always)]
#[must_use]
pub const fn padded(bytes: usize) -> usize {
    (bytes + 7) & !7
}

/// One change of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Write `value` under `key`, whether the key is there or not.
    Put {
        /// The key.
        key: HashedKey<'a>,
        /// Its value; in a fixed table of the table's size.
        value: &'a [u8],
    },
    /// Remove `key`.
    Delete {
        /// The key.
        key: HashedKey<'a>,
    },
}

/// What a unit does to its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitKind {
    /// Its items change rows.
    Rows,
    /// It splits the bucket.
    Split,
    /// It merges the half that was split off last into the bucket. Its items are the rows of the half ([`BucketUpdate::half`]).
    Merge,
}

/// What a unit that merges a half says of the half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Its version.
    pub version: u64,
    /// Its deletion mark.
    pub deleted: u64,
}

/// A parsed unit, borrowing its items from the bytes it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketUpdate<'a> {
    /// Table number.
    pub table: u32,
    /// Partition of the bucket.
    pub partition: u16,
    /// Main bucket within the partition.
    pub bucket: u32,
    /// What it does to the bucket.
    pub kind: UnitKind,
    /// Version that the bucket must have.
    pub base_version: u64,
    /// Lock word of the transaction.
    pub owner: Owner,
    bytes: &'a [u8],
    /// Number of its items; means nothing in units that split or merge.
    count: usize,
}

impl<'a> BucketUpdate<'a> {
    /// Parses the unit at the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes end before the unit does.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (unit, rest) = Self::parse_header(bytes)?;
        let mut items = unit.items();
        items.by_ref().for_each(drop);
        if !items.is_at_end() {
            let found = unit.bytes.len() - HEADER_BYTES;
            let expected = found - items.bytes.len();
            return Err(Malformed { what: "unit's items", expected, found });
        }
        Ok((unit, rest))
    }

    /// As [`Self::parse`], but leaves it to the caller to see by [`Items::is_at_end`] whether the
    /// items are well-formed.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes end before the unit does.
    #[inline(always)]
    pub fn parse_header(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        Malformed::check("unit header", HEADER_BYTES, bytes.len())?;
        let unit_bytes = HEADER_BYTES + read_u32(bytes, 12) as usize;
        Malformed::check("unit", unit_bytes, bytes.len())?;
        if read_u16(bytes, 10) == MERGES {
            Malformed::check("merge", HEADER_BYTES + HALF_BYTES, unit_bytes)?;
        }
        Ok((Self::parse_checked(bytes), &bytes[unit_bytes..]))
    }

    /// Parses bytes that [`Self::parse`] has accepted, without looking at the items again.
    ///
    /// # Panics
    /// If they were not.
    #[inline]
    #[must_use]
    pub fn parse_checked(bytes: &'a [u8]) -> Self {
        let items_bytes = read_u32(bytes, 12) as usize;
        let items = read_u16(bytes, 10);
        let kind = match items {
            SPLITS => UnitKind::Split,
            MERGES => UnitKind::Merge,
            _ => UnitKind::Rows,
        };
        Self {
            table: read_u32(bytes, 0),
            partition: read_u16(bytes, 8),
            bucket: read_u32(bytes, 4),
            kind,
            base_version: read_u64(bytes, 16),
            owner: Owner(read_u64(bytes, 24)),
            bytes: &bytes[..HEADER_BYTES + items_bytes],
            count: usize::from(items),
        }
    }

    /// What a unit that merges a half says of the half.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn half(&self) -> Half {
        assert_eq!(self.kind, UnitKind::Merge, "a unit that merges a half");
        let word = |number: usize| read_u64(self.bytes, HEADER_BYTES + 8 * number);
        Half { version: word(0), deleted: word(1) }
    }

    /// The bytes that it was parsed from.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The changes, in the order in which the transaction's keys were added.
    #[inline(always)]
    #[must_use]
    pub fn items(&self) -> Items<'a> {
        if self.kind == UnitKind::Rows {
            Items { bytes: &self.bytes[HEADER_BYTES..], left: self.count }
        } else {
            self.items_of_shape()
        }
    }

    #[cold]
    fn items_of_shape(&self) -> Items<'a> {
        let (half, bytes) = match self.kind {
            UnitKind::Merge => self.bytes[HEADER_BYTES..].split_at(HALF_BYTES),
            UnitKind::Rows | UnitKind::Split => (&[][..], &self.bytes[HEADER_BYTES..]),
        };
        let count = if half.is_empty() { 0 } else { read_u64(half, 16) };
        Items { bytes, left: usize::try_from(count).unwrap_or(usize::MAX) }
    }

    /// The place of the unit among those of its bucket: counts of versions rise.
    #[must_use]
    pub fn order(&self) -> u64 {
        count_of(self.base_version)
    }
}

/// Iterator over a unit's changes; ends early where the bytes are malformed.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl Items<'_> {
    /// Whether all items were taken and nothing follows them.
    #[inline(always)]
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.left == 0 && self.bytes.is_empty()
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Item<'a>> {
        let left = self.left.checked_sub(1)?;
        let (header, rest) = self.bytes.split_first_chunk::<ITEM_HEADER_BYTES>()?;
        let (word, key_bytes) = (read_u64(header, 0), read_u32(header, 12) as usize);
        let (bytes, rest) = rest.split_at_checked(padded(key_bytes))?;
        let key = HashedKey::from_parts(word, &bytes[..key_bytes]);
        let item = match read_u32(header, 8) {
            DELETE => {
                self.bytes = rest;
                Item::Delete { key }
            }
            value_bytes => {
                let value_bytes = value_bytes as usize;
                let (value, rest) = rest.split_at_checked(padded(value_bytes))?;
                self.bytes = rest;
                Item::Put { key, value: &value[..value_bytes] }
            }
        };
        self.left = left;
        Some(item)
    }
}

/// Appends one unit to a buffer: [`Self::begin`], then items, then [`Self::finish`].
pub struct BucketUpdateWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    items: usize,
    merges: bool,
}

impl<'a> BucketUpdateWriter<'a> {
    /// Starts a unit at the end of `out`; the items of `header` are not looked at.
    #[must_use]
    #[inline]
    pub fn begin(
        out: &'a mut Vec<u8>,
        (table, partition, bucket): (u32, u16, u32),
        base_version: u64,
        owner: Owner,
    ) -> Self {
        let start = out.len();
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&table.to_le_bytes());
        header[4..8].copy_from_slice(&bucket.to_le_bytes());
        header[8..10].copy_from_slice(&partition.to_le_bytes());
        header[16..24].copy_from_slice(&base_version.to_le_bytes());
        header[24..32].copy_from_slice(&owner.0.to_le_bytes());
        out.extend_from_slice(&header);
        Self { out, start, items: 0, merges: false }
    }

    /// Has it merge a half with this version and deletion mark into the bucket. The items that follow are the rows of the half.
    ///
    /// # Panics
    /// If it has changes.
    #[must_use]
    pub fn merge(mut self, half: Half) -> Self {
        assert_eq!(self.items, 0, "a unit that merges a half has no changes");
        for word in [half.version, half.deleted, 0] {
            self.out.extend_from_slice(&word.to_le_bytes());
        }
        self.merges = true;
        self
    }

    /// Completes it as a unit that splits its bucket.
    ///
    /// # Panics
    /// If it has changes.
    pub fn split(self) {
        assert_eq!(self.items, 0, "a unit that splits its bucket has no changes");
        self.out[self.start + 10..self.start + 12].copy_from_slice(&SPLITS.to_le_bytes());
    }

    /// Adds the writing of `value` under `key`.
    ///
    /// # Panics
    /// If the value is 4 GiB long.
    pub fn put(&mut self, key: HashedKey<'_>, value: &[u8]) {
        let value_bytes = u32::try_from(value.len()).expect("a value is at most 1 MiB long");
        self.item(key, value_bytes);
        self.pad(value);
    }

    /// Adds the removal of `key`.
    ///
    /// # Panics
    /// If the key is 4 GiB long.
    pub fn delete(&mut self, key: HashedKey<'_>) {
        self.item(key, DELETE);
    }

    fn item(&mut self, key: HashedKey<'_>, value_bytes: u32) {
        let key_bytes = u32::try_from(key.bytes().len()).expect("a key is at most 4 KiB long");
        let mut header = [0; ITEM_HEADER_BYTES];
        header[0..8].copy_from_slice(&key.word().to_le_bytes());
        header[8..12].copy_from_slice(&value_bytes.to_le_bytes());
        header[12..16].copy_from_slice(&key_bytes.to_le_bytes());
        self.out.extend_from_slice(&header);
        self.pad(key.bytes());
        self.items += 1;
    }

    fn pad(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
        self.out.resize(padded(self.out.len()), 0);
    }

    /// How many changes were added.
    #[must_use]
    pub fn items(&self) -> usize {
        self.items
    }

    /// Completes the unit's header.
    ///
    /// # Panics
    /// If the unit is 4 GiB long, or has more than [`UNIT_ITEMS_MAX`] changes.
    #[inline]
    pub fn finish(self) {
        let items = if self.merges {
            let at = self.start + HEADER_BYTES + 16;
            self.out[at..at + 8].copy_from_slice(&(self.items as u64).to_le_bytes());
            MERGES
        } else {
            let items = u16::try_from(self.items).ok().filter(|items| *items < MERGES);
            items.expect("a unit has at most 65,533 items")
        };
        let bytes = u32::try_from(self.out.len() - self.start - HEADER_BYTES)
            .expect("a unit fits a message");
        let header = &mut self.out[self.start..self.start + HEADER_BYTES];
        header[10..12].copy_from_slice(&items.to_le_bytes());
        header[12..16].copy_from_slice(&bytes.to_le_bytes());
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A unit that deletes so many keys.
    fn deletions(count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut unit = BucketUpdateWriter::begin(&mut bytes, (1, 2, 3), 9, Owner(7));
        (0..count as u64).for_each(|key| unit.delete(HashedKey::Number(key)));
        assert_eq!(unit.items(), count);
        unit.finish();
        bytes
    }

    #[test]
    fn a_full_unit_is_parsed() {
        let bytes = deletions(UNIT_ITEMS_MAX);
        let (unit, _) = BucketUpdate::parse(&bytes).unwrap();
        assert_eq!(unit.items().count(), UNIT_ITEMS_MAX);
    }

    #[test]
    #[should_panic(expected = "at most 65,533 items")]
    fn a_unit_whose_items_cannot_be_counted_is_not_finished() {
        deletions(UNIT_ITEMS_MAX + 1);
    }

    fn change() -> impl Strategy<Value = (u64, Vec<u8>, Option<Vec<u8>>)> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..50);
        (any::<u64>(), bytes(), proptest::option::of(bytes()))
    }

    fn kind() -> impl Strategy<Value = UnitKind> {
        prop_oneof![Just(UnitKind::Rows), Just(UnitKind::Split), Just(UnitKind::Merge)]
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(
            changes in proptest::collection::vec(change(), 0..8),
            (table, partition, bucket) in any::<(u32, u16, u32)>(),
            kind in kind(),
            (version, deleted) in any::<(u64, u64)>(),
            base_version: u64,
            owner: u64,
        ) {
            let mut bytes = vec![0xAA; 8];
            let address = (table, partition, bucket);
            let mut unit = BucketUpdateWriter::begin(&mut bytes, address, base_version, Owner(owner));
            let changes = if kind == UnitKind::Split { Vec::new() } else { changes };
            let half = Half { version, deleted };
            if kind == UnitKind::Merge {
                unit = unit.merge(half);
            }
            for (key, row_key, value) in &changes {
                match value {
                    Some(value) => unit.put(HashedKey::from_parts(*key, row_key), value),
                    None => unit.delete(HashedKey::from_parts(*key, row_key)),
                }
            }
            if kind == UnitKind::Split { unit.split() } else { unit.finish() }
            prop_assert_eq!(bytes.len() % 8, 0);
            let end = bytes.len();
            bytes.extend_from_slice(b"next");
            let (unit, rest) = BucketUpdate::parse(&bytes[8..]).unwrap();
            prop_assert_eq!(rest, b"next");
            prop_assert_eq!((unit.table, unit.partition, unit.bucket), address);
            prop_assert_eq!(unit.kind, kind);
            prop_assert!(kind != UnitKind::Merge || unit.half() == half);
            prop_assert_eq!((unit.base_version, unit.owner), (base_version, Owner(owner)));
            let parsed: Vec<_> = unit
                .items()
                .map(|item| match item {
                    Item::Put { key, value } => (key, Some(value)),
                    Item::Delete { key } => (key, None),
                })
                .map(|(key, value)| (key.word(), key.bytes().to_vec(), value.map(<[u8]>::to_vec)))
                .collect();
            prop_assert_eq!(parsed, changes);
            for cut in 8..end {
                prop_assert!(BucketUpdate::parse(&bytes[8..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((unit, _)) = BucketUpdate::parse(&bytes) {
                let _ = unit.items().count();
            }
        }
    }
}
