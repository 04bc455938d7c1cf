//! COPY: buckets of a partition as they are, for a learner.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again". *Invariant*: a bucket that is locked is copied in its old version: its update
//! goes to the learner, too.

use gannet_rpc::ResponseWriter;

use crate::answer::{COPY_HEADER_BYTES, CopyPlace};
use crate::participant::Participant;
use crate::request::{CopyBuckets, RESPONSE_BYTES_MAX, Status};

/// Bytes of one answer, unless its last bucket has more. A larger bucket is copied in parts.
const PAGE_BYTES: usize = 32 << 10;
/// Longest part of a bucket.
const PART_BYTES: usize = 256 << 10;
/// Buckets that one request looks at, so that it holds up no transaction.
const BUCKETS_MAX: u32 = 512;

impl Participant {
    /// `prepare` has checked that this node has the table and is the partition's primary.
    pub(super) fn copy(&mut self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let CopyBuckets { table: number, partition, bucket: first, offset, .. } =
            Self::decoded::<CopyBuckets>(payload).0;
        if response.bytes() > RESPONSE_BYTES_MAX {
            return response.push(Status::Postponed as u16);
        }
        if self.table(number).is_bulk_loaded(partition) {
            // The load began in an earlier placement, so it has failed.
            return response.push(Status::Changed as u16);
        }
        let mut snapshot = std::mem::take(&mut self.snapshot);
        let mut units = std::mem::take(&mut self.units);
        units.clear();
        let table = self.table(number);
        let buckets = table.bucket_count(partition);
        let end = buckets.min(first.saturating_add(BUCKETS_MAX));
        let mut next = CopyPlace { bucket: first, offset: 0, version: 0 };
        while next.bucket < end && units.len() < PAGE_BYTES {
            table.snapshot(partition, next.bucket, &mut snapshot);
            if snapshot.version > 0 {
                snapshot.write_copy(table, (number, partition, next.bucket), &mut units);
            }
            if next.bucket == first {
                // A large bucket comes in parts, which belong together if the bucket has the same version.
                next.version = snapshot.version;
                let at = usize::try_from(offset).unwrap_or(usize::MAX).min(units.len());
                units.drain(..at);
                if units.len() > PART_BYTES {
                    units.truncate(PART_BYTES);
                    next.offset = (at + PART_BYTES) as u64;
                    break;
                }
            }
            next.bucket += 1;
        }
        let status = if next.bucket < buckets { Status::More } else { Status::Done };
        let bytes = COPY_HEADER_BYTES + units.len();
        response.push_with(bytes, |out| {
            let (header, rest) = out.split_at_mut(COPY_HEADER_BYTES);
            header.copy_from_slice(&next.encode());
            rest.copy_from_slice(&units);
            (status as u16, bytes)
        });
        (self.snapshot, self.units) = (snapshot, units);
    }
}
