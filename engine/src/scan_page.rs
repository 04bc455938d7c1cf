//! The request and the answer of a scan of one partition, as bytes.
//!
//! ```text
//! shape, a word:  bits 0-1 kind of `from` | 2-3 kind of `to` (0 unbounded, 1 included, 2 excluded)
//!                 bit 4 descending | bits 32-63 bytes of `from`; the rest of the request is `to`
//!
//! answer:  u64 number of the index | u64 rows
//!          row:   u32 bucket | u32 key bytes | u64 version | u32 value bytes (2^32 - 1: gone) | u32 0
//!                 key | value
//! ```
//! Little-endian. A row that has gone is there for its bucket's version.

use std::ops::Bound;

use gannet_storage::{Direction, ScannedRow};

const HEADER_BYTES: usize = 16;
pub(crate) const ROW_HEADER_BYTES: usize = 24;
const GONE: u32 = u32::MAX;

/// Two bounds of a range of keys.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

fn kind(bound: Bound<&[u8]>) -> u64 {
    match bound {
        Bound::Unbounded => 0,
        Bound::Included(_) => 1,
        Bound::Excluded(_) => 2,
    }
}

fn bytes_of(bound: Bound<&[u8]>) -> &[u8] {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

fn bound_of(kind: u64, key: &[u8]) -> Option<Bound<&[u8]>> {
    match kind {
        0 if key.is_empty() => Some(Bound::Unbounded),
        1 => Some(Bound::Included(key)),
        2 => Some(Bound::Excluded(key)),
        _ => None,
    }
}

/// The shape of a scan; appends its bounds to `out`.
pub(crate) fn encode_shape((from, to): Bounds<'_>, direction: Direction, out: &mut Vec<u8>) -> u64 {
    let descending = u64::from(direction == Direction::Descending);
    out.extend_from_slice(bytes_of(from));
    out.extend_from_slice(bytes_of(to));
    kind(from) | kind(to) << 2 | descending << 4 | (bytes_of(from).len() as u64) << 32
}

/// The bounds and the direction of a scan, if they are well-formed.
pub(crate) fn decode_shape(shape: u64, bytes: &[u8]) -> Option<(Bounds<'_>, Direction)> {
    let from_bytes = usize::try_from(shape >> 32).ok()?;
    let (from, to) = bytes.split_at_checked(from_bytes)?;
    let bounds = (bound_of(shape & 3, from)?, bound_of(shape >> 2 & 3, to)?);
    let descending = shape >> 4 & 1 == 1;
    Some((bounds, if descending { Direction::Descending } else { Direction::Ascending }))
}

/// Puts an answer together; used again for every scan.
#[derive(Default)]
pub(crate) struct PageWriter {
    /// Of the index when the scan began.
    pub(crate) number: u64,
    rows: u32,
    row_bytes: Vec<u8>,
}

impl PageWriter {
    pub(crate) fn clear(&mut self) {
        self.rows = 0;
        self.row_bytes.clear();
    }

    pub(crate) fn push(&mut self, row: &ScannedRow<'_>) {
        let length =
            |bytes: &[u8]| u32::try_from(bytes.len()).expect("a value is at most 1 MiB long");
        let words = [
            u64::from(row.bucket) | u64::from(length(row.key)) << 32,
            row.version,
            u64::from(row.value.map_or(GONE, length)),
        ];
        let mut header = [0; ROW_HEADER_BYTES];
        for (bytes, word) in header.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let out = &mut self.row_bytes;
        out.reserve(ROW_HEADER_BYTES + row.key.len() + row.value.map_or(0, <[u8]>::len));
        out.extend_from_slice(&header);
        out.extend_from_slice(row.key);
        out.extend_from_slice(row.value.unwrap_or_default());
        self.rows += 1;
    }

    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes.len()
    }

    /// Bytes of the answer.
    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.row_bytes.len()
    }

    /// Writes the answer to `out`, which is as long.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let (header, rows) = out.split_at_mut(HEADER_BYTES);
        header[..8].copy_from_slice(&self.number.to_le_bytes());
        header[8..].copy_from_slice(&u64::from(self.rows).to_le_bytes());
        rows.copy_from_slice(&self.row_bytes);
    }
}

/// An answer, read from its start to its end.
pub(crate) struct PageReader<'a> {
    number: u64,
    rows: u64,
    row_bytes: &'a [u8],
}

impl<'a> PageReader<'a> {
    /// The answer in `bytes`, if they have a header.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk()?;
        let (rows, row_bytes) = rest.split_first_chunk()?;
        let [number, rows] = [number, rows].map(|bytes| u64::from_le_bytes(*bytes));
        Some(Self { number, rows, row_bytes })
    }

    /// Of the index when the scan began.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl<'a> PageReader<'a> {
    /// The bytes of the rows that are left, headers among them.
    pub(crate) fn row_bytes(&self) -> &'a [u8] {
        self.row_bytes
    }

    /// Rows that are left, as the answer says.
    pub(crate) fn rows_left(&self) -> usize {
        usize::try_from(self.rows).unwrap_or(usize::MAX)
    }
}

impl<'a> Iterator for PageReader<'a> {
    type Item = ScannedRow<'a>;

    #[inline]
    fn next(&mut self) -> Option<ScannedRow<'a>> {
        self.rows = self.rows.checked_sub(1)?;
        let (header, rest) = self.row_bytes.split_first_chunk::<ROW_HEADER_BYTES>()?;
        let u32_at = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (key, rest) = rest.split_at_checked(u32_at(4) as usize)?;
        let value_bytes = match u32_at(16) {
            GONE => 0,
            bytes => bytes as usize,
        };
        let (value, rest) = rest.split_at_checked(value_bytes)?;
        self.row_bytes = rest;
        let version = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
        let value = (u32_at(16) != GONE).then_some(value);
        Some(ScannedRow { bucket: u32_at(0), version, key, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let rows = [
            ScannedRow { bucket: 1, version: 2 << 40, key: b"a", value: Some(b"value") },
            ScannedRow { bucket: 3, version: 4, key: b"bc", value: None },
            ScannedRow { bucket: 5, version: 6, key: b"", value: Some(b"") },
        ];
        let mut page = PageWriter::default();
        rows.iter().for_each(|row| page.push(row));
        page.number = 7 << 40;
        let mut bytes = vec![0; page.bytes()];
        page.write(&mut bytes);
        let reader = PageReader::new(&bytes).unwrap();
        assert_eq!(reader.number(), 7 << 40);
        assert!(reader.eq(rows));
        for cut in 0..bytes.len() {
            let read = PageReader::new(&bytes[..cut]).map_or(0, Iterator::count);
            assert!(read < rows.len());
        }
    }

    #[test]
    fn a_shape_is_read_as_it_was_written() {
        let bounds = [Bound::Unbounded, Bound::Included(&b"from"[..]), Bound::Excluded(&b""[..])];
        for from in bounds {
            for to in bounds {
                for direction in [Direction::Ascending, Direction::Descending] {
                    let mut bytes = Vec::new();
                    let shape = encode_shape((from, to), direction, &mut bytes);
                    assert_eq!(decode_shape(shape, &bytes), Some(((from, to), direction)));
                }
            }
        }
        assert_eq!(decode_shape(3, b""), None);
        assert_eq!(decode_shape(1 | 9 << 32, b"short"), None);
        assert_eq!(decode_shape(0, b"to that is not there"), None);
    }
}
