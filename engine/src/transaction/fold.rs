//! Fold: the results of a program on parts of a table, from all primaries, and what validates them.
//!
//! *Invariants*: what is left of the table changes when all answers are taken, so an attempt that fails leaves it as it
//! was. A partition that answers `Locked` or `Postponed` is asked again; `Locked` is a conflict if no partition has a
//! result. A span has at most 4,096 buckets. The sum of the counts may wrap.
//!
//! *Source*: `docs/protocol.md`, "Folds".
//!
//! *Not here*: spans that a transaction depends on, in `deferred/scans.rs`; the answer of a primary, in
//! `participant/fold.rs`; programs, in `fold`.

use gannet_storage::{Owner, TableKind};

use crate::answer::decode_fold;
use crate::control::WaitReason;
use crate::fold::FoldRest;
use crate::outcome::{Abort, Conflict, Misuse};
use crate::request::{self, FoldBuckets, Status, TableRequest, ValidateSpan};
use crate::table_id::TableId;
use crate::transaction::Transaction;

/// Most buckets of a span: their validation takes less than a tenth of a millisecond.
const SPAN_BUCKETS_MAX: u32 = 4_096;

/// Consecutive buckets of a partition that were folded: they are unchanged as long as the sum of their counts is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanObservation {
    pub(crate) table: u32,
    pub(crate) partition: u16,
    /// The first bucket, and the first behind them.
    pub(crate) first: u32,
    pub(crate) next: u32,
    pub(crate) changes: u64,
}

impl SpanObservation {
    /// Takes the buckets behind it, unless they are others or too many. Whether it has.
    pub(crate) fn append(&mut self, next: &Self) -> bool {
        let goes_on =
            (self.table, self.partition, self.next) == (next.table, next.partition, next.first);
        if !goes_on || next.next - self.first > SPAN_BUCKETS_MAX {
            return false;
        }
        self.next = next.next;
        self.changes = self.changes.wrapping_add(next.changes);
        true
    }

    /// Writes the request that validates it.
    pub(super) fn encode(&self, owner: Owner, out: &mut Vec<u8>) {
        let Self { table, partition, first: bucket, next, changes } = *self;
        out.clear();
        out.extend_from_slice(&ValidateSpan { table, partition, bucket, changes, owner }.encode());
        out.extend_from_slice(&next.to_le_bytes());
    }
}

/// What the primaries have computed of parts of a table.
pub(crate) struct FoldPage {
    pub(crate) results: Vec<Vec<u8>>,
    pub(crate) spans: Vec<SpanObservation>,
}

impl Transaction<'_> {
    /// Folds a part of what is left of every partition: one round trip. What was found is not in the read set of this transaction yet.
    ///
    /// # Errors
    /// As those of [`Self::scan`]; [`Misuse::NoProgram`] if a primary does not know the program.
    pub(crate) fn fold(
        &mut self,
        table: TableId,
        program: &[u8],
        rest: &mut FoldRest,
    ) -> Result<FoldPage, Abort> {
        let found = self.view.kept_table(table.0);
        if found.is_none_or(|table| table.layout().kind != TableKind::Ordered) {
            return Err(Misuse::NoSuchTable { table: table.0 }.into());
        }
        self.check_all_partitions()?;
        if rest.buckets.is_empty() {
            rest.buckets = vec![Some(0); self.view.configuration().partitioning.count()];
        }
        let asked = self.send_folds(table, program, rest)?;
        self.round.wait_for(WaitReason::Responses)?;
        let mut page = FoldPage { results: Vec::new(), spans: Vec::new() };
        // What is left changes at the end: an attempt that ends in between is made again.
        let (mut is_locked, mut left) = (false, rest.clone());
        for (partition, first) in asked {
            let primary = self.view.configuration().primary(partition);
            let mut batch = self.round.batch();
            let answer = batch.next_response(primary);
            let status = Status::from_wire(answer.kind);
            match status {
                Status::Done | Status::More => {}
                Status::Postponed => continue,
                Status::Locked => {
                    is_locked = true;
                    continue;
                }
                Status::Moved => return Err(Conflict::Reconfigured.into()),
                _ => return Err(Misuse::NoProgram { table: table.0 }.into()),
            }
            let (next, changes, result) =
                decode_fold(answer.payload).ok_or(Misuse::NoProgram { table: table.0 })?;
            page.results.push(result.to_vec());
            page.spans.push(SpanObservation { table: table.0, partition, first, next, changes });
            left.buckets[usize::from(partition)] = (status == Status::More).then_some(next);
        }
        if is_locked && page.results.is_empty() {
            return Err(Conflict::Locked.into());
        }
        *rest = left;
        Ok(page)
    }

    /// Fills a batch with the FOLDs of partitions of which some is left; which, and from which bucket on.
    fn send_folds(
        &mut self,
        table: TableId,
        program: &[u8],
        rest: &FoldRest,
    ) -> Result<Vec<(u16, u32)>, Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        let (message, mut asked) = (&mut scratch.message, Vec::new());
        round.begin()?;
        let left = (0..).zip(&rest.buckets).filter_map(|(number, next)| Some((number, (*next)?)));
        for (partition, bucket) in left {
            let request = FoldBuckets { table: table.0, partition, bucket, owner: *owner };
            message.clear();
            message.extend_from_slice(&request.encode());
            message.extend_from_slice(program);
            let primary = view.configuration().primary(partition);
            let mut batch = round.batch();
            if let Err(too_large) = batch.push(primary, request::FOLD, message, 0) {
                // Piggybacked requests go first, alone.
                let fits_alone = !asked.is_empty() || batch.has_piggybacked();
                return if fits_alone { Ok(asked) } else { Err(too_large.into()) };
            }
            asked.push((partition, bucket));
        }
        Ok(asked)
    }
}
