//! Answers of participants that are more than a status and a row, as bytes.
//!
//! ```text
//! COPY       u32 next bucket | u32 0 | u64 offset in its copy | u64 version of the first bucket | units
//! COUNT      u64 number of the index | u64 keys | the key to go on from, if there are more
//! FOLD       u64 next bucket | u64 sum of the counts | the result
//! LOAD       u64 rows that are loaded
//! RESERVE of a row that is another's, SHARE of a range with such a row:   u64 holder | u64 place in the queue
//! WAITS_FOR of a holder that waits:   u64 holder for each transaction that it waits for
//! ```
//! *Not here*: requests, and the answers to READ and LOCK (`request.rs`); SCAN (`scan_page.rs`).

use crate::holder::Holder;
use crate::request::u64_at;
use crate::row_reservations::AWAITED_MAX;

/// Bytes before the units in an answer to COPY.
pub(crate) const COPY_HEADER_BYTES: usize = 24;

/// Where the copying of a partition goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyPlace {
    pub(crate) bucket: u32,
    /// Of the bucket's copy the bytes before this one are there.
    pub(crate) offset: u64,
    /// Of the first bucket that was copied.
    pub(crate) version: u64,
}

impl CopyPlace {
    pub(crate) fn encode(self) -> [u8; COPY_HEADER_BYTES] {
        let mut bytes = [0; COPY_HEADER_BYTES];
        let words = [u64::from(self.bucket), self.offset, self.version];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    }

    /// The place, and the units behind it.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (header, units) = bytes.split_first_chunk::<COPY_HEADER_BYTES>()?;
        let bucket = u32::try_from(u64_at(header, 0)).ok()?;
        let place = Self { bucket, offset: u64_at(header, 8), version: u64_at(header, 16) };
        Some((place, units))
    }
}

/// Bytes before the key in an answer to COUNT.
pub(crate) const COUNT_BYTES: usize = 16;

/// The number of an index, a number of keys, and the key behind them.
pub(crate) fn decode_count(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (counts, next) = bytes.split_first_chunk::<COUNT_BYTES>()?;
    Some((u64_at(counts, 0), u64_at(counts, 8), next))
}

/// Bytes before the result in an answer to FOLD.
pub(crate) const FOLD_BYTES: usize = 16;

/// The next bucket, the sum of the counts, and the result.
pub(crate) fn decode_fold(bytes: &[u8]) -> Option<(u32, u64, &[u8])> {
    let (header, result) = bytes.split_first_chunk::<FOLD_BYTES>()?;
    Some((u32::try_from(u64_at(header, 0)).ok()?, u64_at(header, 8), result))
}

/// Bytes of a number of rows.
pub(crate) const ROWS_BYTES: usize = 8;

/// How many rows of a LOAD are loaded.
pub(crate) fn decode_rows(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// Bytes of a holder and its place in a queue.
pub(crate) const PLACE_BYTES: usize = 16;

pub(crate) fn encode_place(holder: Holder, place: usize) -> [u8; PLACE_BYTES] {
    let mut bytes = [0; PLACE_BYTES];
    bytes[..8].copy_from_slice(&holder.0.to_le_bytes());
    bytes[8..].copy_from_slice(&(place as u64).to_le_bytes());
    bytes
}

pub(crate) fn decode_place(bytes: &[u8]) -> Option<(Holder, usize)> {
    let bytes: &[u8; PLACE_BYTES] = bytes.try_into().ok()?;
    Some((Holder(u64_at(bytes, 0)), usize::try_from(u64_at(bytes, 8)).ok()?))
}

/// Most bytes of an answer to WAITS_FOR.
pub(crate) const AWAITED_BYTES: usize = AWAITED_MAX * 8;

pub(crate) fn encode_awaited(holders: &[Holder]) -> Vec<u8> {
    holders.iter().flat_map(|holder| holder.0.to_le_bytes()).collect()
}

/// The holders that another one waits for; those that are whole.
pub(crate) fn decode_awaited(bytes: &[u8]) -> impl Iterator<Item = Holder> {
    bytes.as_chunks().0.iter().map(|holder| Holder(u64::from_le_bytes(*holder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let place = CopyPlace { bucket: 7, offset: u64::MAX, version: 9 };
        let bytes = [&place.encode()[..], b"units"].concat();
        assert_eq!(CopyPlace::decode(&bytes), Some((place, &b"units"[..])));
        assert_eq!(CopyPlace::decode(&bytes[..COPY_HEADER_BYTES - 1]), None);
        let place = (Holder(u64::MAX - 1), 7);
        assert_eq!(decode_place(&encode_place(place.0, place.1)), Some(place));
        assert_eq!(decode_place(&[]), None);
        let awaited = [Holder(7), Holder(u64::MAX - 1)];
        assert!(decode_awaited(&encode_awaited(&awaited)).eq(awaited));
        let counted = [7_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat();
        assert_eq!(decode_count(&[&counted[..], b"next"].concat()), Some((7, 8, &b"next"[..])));
        assert_eq!(decode_count(&counted[1..]), None);
        assert_eq!(decode_fold(&[&counted[..], b"result"].concat()), Some((7, 8, &b"result"[..])));
        assert_eq!(decode_fold(&counted[1..]), None);
    }
}
