//! FOLD: the result of a program on the rows of consecutive buckets of one partition. VALIDATE_SPAN: whether such buckets
//! have changed.
//!
//! *Invariants*: an answer ends behind the bucket in which it has come to 2,048 buckets, 4,000 rows, 512 KiB of rows or
//! 0.3 ms, or in which the program is full. If another transaction holds the first bucket, the answer is `Locked`, else
//! it has one bucket at least. A result has at most 2 MiB, and a span that is validated 65,536 buckets: more is refused.
//! A response with more than 1 MiB answers `Postponed`.
//!
//! *Source*: `docs/protocol.md`, "Folds".
//!
//! *Not here*: the rows of a bucket at one moment (`storage/src/fold.rs`); programs (`fold`); the coordinator's side
//! (`transaction/fold.rs`).

use gannet_rpc::ResponseWriter;

use crate::answer::FOLD_BYTES;
use crate::participant::Participant;
use crate::participant::validate::status_of;
use crate::request::{FoldBuckets, RESPONSE_BYTES_MAX, Status, ValidateSpan};

/// Buckets, rows and bytes of rows of one answer, and the time after which it ends with a bucket: other transactions wait.
const BUCKETS_MAX: u32 = 2_048;
const ROWS_MAX: usize = 4_000;
const ROW_BYTES_MAX: usize = 512 << 10;
const TIME_MAX_NS: u64 = 300_000;
/// Most buckets of a span that is validated: more than transactions have in one.
const SPAN_BUCKETS_MAX: u32 = 1 << 16;
/// Longest result. A program that makes a longer one of a bucket is refused.
const RESULT_BYTES_MAX: usize = 2 << 20;

impl Participant {
    /// `prepare` has checked that this node has the table, with an order, and is the partition's primary.
    pub(super) fn fold(&mut self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        if response.bytes() > RESPONSE_BYTES_MAX {
            return response.push(Status::Postponed as u16);
        }
        let (request, program) = Self::decoded::<FoldBuckets>(payload);
        let FoldBuckets { table, partition, bucket: first, owner } = request;
        let Some(program) = self.programs.program(program) else {
            return self.refuse(response);
        };
        let began_ns = self.clock.now_ns();
        let (mut buckets_left, mut rows, mut row_bytes) = (BUCKETS_MAX, 0, 0);
        let table = self.view.table(table).expect("a prepared request names a table of this node");
        let span = table.fold(partition, first, owner, &mut self.folded, |bucket| {
            bucket.rows().for_each(|(key, value)| program.row(key, value));
            rows += bucket.row_count();
            row_bytes += bucket.bytes();
            buckets_left -= 1;
            buckets_left > 0
                && rows < ROWS_MAX
                && row_bytes < ROW_BYTES_MAX
                && !program.is_full()
                && self.clock.now_ns().saturating_sub(began_ns) < TIME_MAX_NS
        });
        let result = &mut self.units;
        result.clear();
        program.finish(result);
        if span.is_next_locked && span.next == first {
            return response.push(Status::Locked as u16);
        }
        if result.len() > RESULT_BYTES_MAX {
            result.clear();
            return self.refuse(response);
        }
        let is_done = span.next >= table.bucket_count(partition);
        response.push_with(FOLD_BYTES + result.len(), |out| {
            let (header, rest) = out.split_at_mut(FOLD_BYTES);
            header[..8].copy_from_slice(&u64::from(span.next).to_le_bytes());
            header[8..].copy_from_slice(&span.changes.to_le_bytes());
            rest.copy_from_slice(result);
            let status = if is_done { Status::Done } else { Status::More };
            (status as u16, FOLD_BYTES + result.len())
        });
    }

    /// As [`Self::fold`].
    pub(super) fn validate_span(&self, payload: &[u8], response: &mut ResponseWriter<'_>) {
        let (request, next) = Self::decoded::<ValidateSpan>(payload);
        let Some(next) = next.try_into().ok().map(u32::from_le_bytes) else {
            return self.refuse(response);
        };
        let ValidateSpan { table, partition, bucket, changes, owner } = request;
        if next.checked_sub(bucket).is_none_or(|buckets| buckets > SPAN_BUCKETS_MAX) {
            return self.refuse(response);
        }
        let table = self.table(table);
        let found = table.validate_span(partition, (bucket, next), changes, owner);
        response.push(status_of(found) as u16);
    }
}
