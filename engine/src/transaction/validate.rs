//! Validate: check at the primaries that what was read is still so.
//!
//! ```text
//! VALIDATE, VALIDATE_MANY: have the buckets their versions?  ── yes ──▶ valid
//!        │ no
//! VALIDATE_ROWS: have the rows changed, in tables whose rows have stamps?
//! VALIDATE_RANGE: have keys come or gone in the ranges that were scanned?   VALIDATE_SPAN: have buckets that were folded changed?
//! ```
//! *Source*: FaSST section 5, step 2; `docs/protocol.md`, "Conflicts by row". Buckets that this transaction holds cannot have changed
//! since they were locked. That they had not changed before is rule C2, checked in `buckets.rs`, or else here by row.

use std::sync::Arc;

use gannet_rules::rule;
use gannet_storage::Direction;

use crate::outcome::{Abort, Conflict, Failure};
use crate::request::{
    self, Status, TableRequest, Validate, ValidateMany, ValidateRange, push_bucket_version,
    push_row_version,
};
use crate::scan_page::encode_shape;
use crate::transaction::{Observation, RangeObservation, ScanObservation, Transaction, local};

/// Whether a validation has found a change.
fn is_change(result: &Result<(), Abort>) -> bool {
    matches!(result, Err(Abort::Conflict(Conflict::Changed)))
}

impl Transaction<'_> {
    /// Validates the read set; after [`Self::group_buckets`], and after every lock was granted (C1).
    ///
    /// # Errors
    /// [`Conflict::Changed`] or [`Conflict::Locked`]; that of an interruption; [`Failure::Refused`], a bug.
    #[inline(always)]
    pub(super) fn validate(&mut self) -> Result<(), Abort> {
        // One observation of one bucket is a snapshot by itself; what a scan has not found is not.
        let is_snapshot = self.scratch.held.len() + self.scratch.read.len() <= 1
            && self.set.scanned.is_empty()
            && !self.scratch.are_doubtful;
        // Without C1, what was read is validated already, in execute.
        let validates = !is_snapshot && rule!(READ_VALIDATION) && rule!(C1);
        if validates { self.validate_all() } else { Ok(()) }
    }

    #[inline(always)]
    fn validate_all(&mut self) -> Result<(), Abort> {
        let by_row = self.scratch.are_doubtful;
        let result = self.validate_groups(by_row);
        if is_change(&result) && !by_row { self.validate_rows(result) } else { result }
    }

    /// Validates by row what has changed by buckets.
    #[cold]
    fn validate_rows(&mut self, by_bucket: Result<(), Abort>) -> Result<(), Abort> {
        if self.stamped_reads().is_empty() { by_bucket } else { self.validate_groups(true) }
    }

    /// Validates the buckets that were only read, and what was scanned. `by_row`, all rows with stamps instead of their buckets.
    pub(super) fn validate_groups(&mut self, by_row: bool) -> Result<(), Abort> {
        let Self { view, set, scratch, round, owner, .. } = self;
        round.begin()?;
        for group in &scratch.read {
            let row = &set.rows[group.row as usize];
            if by_row && view.has_stamps(row.table) {
                continue;
            }
            if row.primary == view.id() {
                let bucket = std::iter::once((row.bucket, row.version));
                let table = view.table(row.table);
                round.answered(local::validated(table, row.location.partition, bucket, *owner));
                continue;
            }
            let request = Validate {
                table: row.table,
                partition: row.location.partition,
                bucket: row.bucket,
                version: row.version,
                owner: *owner,
            };
            round.request(row.primary, request::VALIDATE, &request.encode())?;
        }
        if by_row {
            let rows = self.stamped_reads();
            self.validate_observations(&rows, true)?;
        }
        let scanned = std::mem::take(&mut self.set.scanned);
        let sent = self.validate_scans(&scanned);
        self.set.scanned = scanned;
        sent?;
        self.end_validation()
    }

    /// Sends the validations of what was scanned.
    fn validate_scans(&mut self, scanned: &[Arc<ScanObservation>]) -> Result<(), Abort> {
        for scanned in scanned {
            match &**scanned {
                ScanObservation::Range(range) => self.validate_range(range)?,
                ScanObservation::Span(span) => {
                    let Self { view, round, scratch, owner, .. } = self;
                    span.encode(*owner, &mut scratch.message);
                    let primary = view.configuration().primary(span.partition);
                    round.request(primary, request::VALIDATE_SPAN, &scratch.message)?;
                }
            }
        }
        Ok(())
    }

    fn validate_range(&mut self, range: &RangeObservation) -> Result<(), Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        if !rule!(RANGE_VALIDATION) {
            return Ok(());
        }
        let mut bounds = Vec::new();
        let shape = encode_shape(range.range.bounds(), Direction::Ascending, &mut bounds);
        for (partition, number) in (0..).zip(&range.numbers) {
            let request = ValidateRange { table: range.table, partition, shape, owner: *owner };
            let message = &mut scratch.message;
            message.clear();
            message.extend_from_slice(&request.encode());
            message.extend_from_slice(&number.to_le_bytes());
            message.extend_from_slice(&bounds);
            let primary = view.configuration().primary(partition);
            round.request(primary, request::VALIDATE_RANGE, message)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn end_validation(&mut self) -> Result<(), Abort> {
        match self.round.end()? {
            None => Ok(()),
            Some(Status::Locked) => Err(Conflict::Locked.into()),
            Some(Status::Changed) => Err(Conflict::Changed.into()),
            Some(Status::Moved) => Err(Conflict::Reconfigured.into()),
            // No conflict, which would be run again: to validate what a node does not have is a bug.
            Some(_) => Err(Failure::Refused.into()),
        }
    }

    /// Ends a transaction that writes nothing, and tells whether all observations are still true. Consecutive observations of one
    /// partition go in one request.
    ///
    /// Two observations of one bucket that do not agree (C2) cannot both be valid, unless its rows have stamps.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn revalidate(
        &mut self,
        observations: &[Observation],
        scanned: &[Arc<ScanObservation>],
    ) -> Result<(), Abort> {
        let valid = self.check_observed(observations, scanned).and_then(|()| {
            let result = self.revalidate_all(observations, scanned, false);
            let has_stamps = |seen: &Observation| self.view.has_stamps(seen.table);
            if is_change(&result) && observations.iter().any(has_stamps) {
                return self.revalidate_all(observations, scanned, true);
            }
            result
        });
        self.abort();
        valid
    }

    /// Whether what was observed is there still: it may be of an epoch in which a partition was not lost.
    fn check_observed(
        &self,
        observations: &[Observation],
        scanned: &[Arc<ScanObservation>],
    ) -> Result<(), Abort> {
        let configuration = self.view.configuration();
        let partitions = observations.iter().map(|seen| seen.partition);
        let lost = partitions.filter(|partition| configuration.is_lost(*partition));
        let lost_anywhere = configuration.lost_partitions().filter(|_| !scanned.is_empty());
        if let Some(partition) = lost.chain(lost_anywhere).next() {
            return Err(Failure::Lost { partition }.into());
        }
        let tables = observations.iter().map(|seen| seen.table);
        let mut tables = tables.chain(scanned.iter().map(|scanned| scanned.table()));
        if tables.any(|table| self.view.kept_table(table).is_none()) {
            return Err(Conflict::Changed.into());
        }
        Ok(())
    }

    fn revalidate_all(
        &mut self,
        observations: &[Observation],
        scanned: &[Arc<ScanObservation>],
        by_row: bool,
    ) -> Result<(), Abort> {
        self.round.begin()?;
        if rule!(READ_VALIDATION) {
            self.validate_observations(observations, by_row)?;
        }
        self.validate_scans(scanned)?;
        self.end_validation()
    }

    /// Sends the validations of observations: of their buckets, or `by_row` of the rows that have stamps.
    fn validate_observations(
        &mut self,
        observations: &[Observation],
        by_row: bool,
    ) -> Result<(), Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        let message = &mut scratch.message;
        let partition_of = |seen: &Observation| (seen.table, seen.partition);
        for run in observations.chunk_by(|a, b| partition_of(a) == partition_of(b)) {
            let (number, partition) = partition_of(&run[0]);
            let (primary, table) = (view.configuration().primary(partition), view.table(number));
            let by_row = by_row && view.has_stamps(number);
            for part in run.chunks(request::VALIDATED_MAX) {
                let rows = part.iter().map(|seen| (seen.bucket, seen.version, seen.hash));
                let buckets = part.chunk_by(|a, b| a.of_bucket() == b.of_bucket());
                let buckets = buckets.map(|seen| (seen[0].bucket, seen[0].version));
                if primary == view.id() {
                    round.answered(if by_row {
                        local::rows_validated(table, partition, rows, *owner)
                    } else {
                        local::validated(table, partition, buckets, *owner)
                    });
                    continue;
                }
                let request = ValidateMany { table: number, partition, owner: *owner };
                message.clear();
                message.extend_from_slice(&request.encode());
                if by_row {
                    rows.for_each(|row| push_row_version(row, message));
                    round.request(primary, request::VALIDATE_ROWS, message)?;
                } else {
                    buckets.for_each(|(b, version)| push_bucket_version(b, version, message));
                    round.request(primary, request::VALIDATE_MANY, message)?;
                }
            }
        }
        Ok(())
    }
}
