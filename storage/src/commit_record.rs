//! The commit record: all that a transaction changes, as the log replicas keep it.
//!
//! ```text
//!  0 u32 record bytes | 4 u32 CRC-32C of bytes 8..
//!  8 u32 epoch | 12 u16 node | 14 u16 worker | 16 u16 coroutine | 18 u16 participants
//! 20 u32 units | 24 u64 counter
//! 32 u64 durable round            0 while nothing is written to disk
//! 40 u64 client token             0 = none
//! 48 participants: u16 partitions that the transaction writes, padded to 8 bytes
//!    units                        see `bucket_update.rs`
//! ```
//! Little-endian. A record holds values, not pointers: replaying all records on the initial load
//! rebuilds the database.
//!
//! *Source*: FaSST section 5, step 3; `docs/protocol.md`, "Unit of change".

use crate::bucket_update::{BucketUpdate, Malformed, padded, read_u16, read_u32, read_u64};
use crate::owner::TransactionId;

const HEADER_BYTES: usize = 48;

/// Largest record, in bytes: what a transaction writes, with 16 bytes for each row and 32 for each
/// bucket.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// A parsed record, borrowing its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitRecord<'a> {
    /// The transaction.
    pub id: TransactionId,
    /// Durable round of the record; 0 while nothing is written to disk.
    pub durable_round: u64,
    /// The client's idempotency token; 0 = none.
    pub client_token: u64,
    participants: &'a [u8],
    units: &'a [u8],
    unit_count: usize,
}

impl<'a> CommitRecord<'a> {
    /// Parses a record without looking at its checksum.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes end before the record does.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Malformed::check("record header", HEADER_BYTES, bytes.len())?;
        let record_bytes = read_u32(bytes, 0) as usize;
        Malformed::check("record", record_bytes, bytes.len())?;
        let participants = 2 * usize::from(read_u16(bytes, 18));
        let units_at = HEADER_BYTES + padded(participants);
        Malformed::check("record's participants", units_at, record_bytes)?;
        let id = TransactionId {
            epoch: read_u32(bytes, 8),
            node: read_u16(bytes, 12),
            worker: read_u16(bytes, 14),
            coroutine: read_u16(bytes, 16),
            counter: read_u64(bytes, 24),
        };
        Ok(Self {
            id,
            durable_round: read_u64(bytes, 32),
            client_token: read_u64(bytes, 40),
            participants: &bytes[HEADER_BYTES..HEADER_BYTES + participants],
            units: &bytes[units_at..record_bytes],
            unit_count: read_u32(bytes, 20) as usize,
        })
    }

    /// Whether the checksum of the record at the start of `bytes` is right.
    #[must_use]
    pub fn is_intact(bytes: &[u8]) -> bool {
        let length = if bytes.len() < 8 { 0 } else { read_u32(bytes, 0) as usize };
        (HEADER_BYTES..=bytes.len()).contains(&length)
            && crc32c::crc32c(&bytes[8..length]) == read_u32(bytes, 4)
    }

    /// The partitions that the transaction writes.
    pub fn participants(&self) -> impl Iterator<Item = u16> + use<'a> {
        self.participants.chunks_exact(2).map(|bytes| read_u16(bytes, 0))
    }

    /// The units.
    pub fn units(&self) -> impl Iterator<Item = Result<BucketUpdate<'a>, Malformed>> + use<'a> {
        let mut rest = self.units;
        (0..self.unit_count).map(move |_| {
            let (unit, after) = BucketUpdate::parse(rest)?;
            rest = after;
            Ok(unit)
        })
    }
}

/// Builds a record in a buffer: participants, then units appended to [`Self::units`], then `finish`.
pub struct CommitRecordWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> CommitRecordWriter<'a> {
    /// Starts the record of transaction `id` in `out`, which is cleared. A participant that is given
    /// many times in a row is named once.
    ///
    /// # Panics
    /// If there are 65,536 participants or more.
    #[must_use]
    pub fn begin(
        out: &'a mut Vec<u8>,
        id: TransactionId,
        participants: impl Iterator<Item = u16>,
    ) -> Self {
        out.clear();
        let mut header = [0; HEADER_BYTES];
        header[8..12].copy_from_slice(&id.epoch.to_le_bytes());
        header[12..14].copy_from_slice(&id.node.to_le_bytes());
        header[14..16].copy_from_slice(&id.worker.to_le_bytes());
        header[16..18].copy_from_slice(&id.coroutine.to_le_bytes());
        header[24..32].copy_from_slice(&id.counter.to_le_bytes());
        out.extend_from_slice(&header);
        let mut last = None;
        for partition in
            participants.filter(|partition| last.replace(*partition) != Some(*partition))
        {
            out.extend_from_slice(&partition.to_le_bytes());
        }
        let count = u16::try_from((out.len() - HEADER_BYTES) / 2)
            .expect("fewer participants than partitions");
        out[18..20].copy_from_slice(&count.to_le_bytes());
        out.resize(padded(out.len()), 0);
        Self { out }
    }

    /// The buffer to append the units to.
    pub fn units(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Completes the header with the number of units, the length and the checksum.
    ///
    /// # Panics
    /// If the record is 4 GiB long.
    pub fn finish(self, units: u32) {
        let bytes = u32::try_from(self.out.len()).expect("a record is at most 64 MiB long");
        self.out[20..24].copy_from_slice(&units.to_le_bytes());
        self.out[0..4].copy_from_slice(&bytes.to_le_bytes());
        let crc = crc32c::crc32c(&self.out[8..]);
        self.out[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bucket_update::BucketUpdateWriter;
    use crate::key::HashedKey;
    use crate::owner::Owner;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_parsed(
            (epoch, node, worker, coroutine, counter) in any::<(u32, u16, u16, u16, u64)>(),
            mut participants in proptest::collection::vec(prop_oneof![0_u16..3, any::<u16>()], 0..9),
            units in 0_u32..5,
            flip: prop::sample::Index,
        ) {
            let id = TransactionId { epoch, node, worker, coroutine, counter };
            let mut bytes = vec![1, 2, 3];
            let mut record = CommitRecordWriter::begin(&mut bytes, id, participants.iter().copied());
            for unit in 0..units {
                let mut writer =
                    BucketUpdateWriter::begin(record.units(), (1, 2, unit), 9, Owner(7));
                writer.put(HashedKey::Number(u64::from(unit)), &[5; 12]);
                writer.finish();
            }
            record.finish(units);

            prop_assert!(CommitRecord::is_intact(&bytes));
            let record = CommitRecord::parse(&bytes).unwrap();
            prop_assert_eq!(record.id, id);
            participants.dedup();
            prop_assert_eq!(record.participants().collect::<Vec<_>>(), participants);
            let buckets: Vec<_> = record.units().map(|unit| unit.unwrap().bucket).collect();
            prop_assert_eq!(buckets, (0..units).collect::<Vec<_>>());

            let at = flip.index(bytes.len());
            bytes[at] ^= 0x10;
            prop_assert!(!CommitRecord::is_intact(&bytes), "flipped bit in byte {}", at);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = CommitRecord::is_intact(&bytes);
            if let Ok(record) = CommitRecord::parse(&bytes) {
                let _ = record.participants().count();
                let _ = record.units().take(100).count();
            }
        }
    }
}
