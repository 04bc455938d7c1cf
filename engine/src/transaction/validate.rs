//! Validate: check at the primaries that the buckets that were read still have their versions.
//!
//! *Source*: FaSST section 5, step 2. Buckets that this transaction holds cannot have changed since
//! they were locked, and that they had not changed before is rule C2, checked in `buckets.rs`.

use gannet_rules::rule;

use crate::outcome::{Abort, Conflict, Failure};
use crate::request::{
    self, Status, TableRequest, Validate, ValidateLeaf, ValidateMany, push_bucket_version,
};
use crate::transaction::{LeafObservation, Observation, Transaction, local};

impl Transaction<'_> {
    /// Validates the read set; after [`Self::group_buckets`], and after every lock was granted (C1).
    ///
    /// # Errors
    /// [`Conflict::Changed`] or [`Conflict::Locked`]; that of an interruption; [`Failure::Refused`], a bug.
    pub(super) fn validate(&mut self) -> Result<(), Abort> {
        // One observation of one bucket is a snapshot by itself; what a scan has not found is not.
        let is_snapshot =
            self.scratch.held.len() + self.scratch.read.len() <= 1 && self.set.leaves.is_empty();
        // Without C1, what was read is validated already, in execute.
        let validates = !is_snapshot && rule!(READ_VALIDATION) && rule!(C1);
        if validates { self.validate_groups() } else { Ok(()) }
    }

    pub(super) fn validate_groups(&mut self) -> Result<(), Abort> {
        let Self { view, set, scratch, round, owner, .. } = self;
        round.begin()?;
        for group in &scratch.read {
            let row = &set.rows[group.row as usize];
            if row.primary == view.id() {
                let bucket = std::iter::once((row.bucket, row.version));
                let table = view.table(row.table);
                round.answered(local::validated(table, row.partition, bucket, *owner));
                continue;
            }
            let request = Validate {
                table: row.table,
                partition: row.partition,
                bucket: row.bucket,
                version: row.version,
                owner: *owner,
            };
            round.request(row.primary, request::VALIDATE, &request.encode())?;
        }
        let leaves = std::mem::take(&mut self.set.leaves);
        let sent = self.validate_leaves(&leaves);
        self.set.leaves = leaves;
        sent?;
        self.end_validation()
    }

    /// Sends the validations of the leaves that scans have touched.
    fn validate_leaves(&mut self, leaves: &[LeafObservation]) -> Result<(), Abort> {
        let Self { view, round, owner, .. } = self;
        if !rule!(LEAF_VALIDATION) {
            return Ok(());
        }
        for leaf in leaves {
            let request = ValidateLeaf {
                table: leaf.table,
                partition: leaf.partition,
                leaf: leaf.version.leaf,
                counter: leaf.version.counter,
                owner: *owner,
            };
            let primary = view.configuration().primary(leaf.partition);
            round.request(primary, request::VALIDATE_LEAF, &request.encode())?;
        }
        Ok(())
    }

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
    /// Two observations of one bucket that do not agree (C2) cannot both be valid.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub(crate) fn revalidate(
        &mut self,
        observations: &[Observation],
        leaves: &[LeafObservation],
    ) -> Result<(), Abort> {
        let valid = self.revalidate_all(observations, leaves);
        self.abort();
        valid
    }

    fn revalidate_all(
        &mut self,
        observations: &[Observation],
        leaves: &[LeafObservation],
    ) -> Result<(), Abort> {
        // They may be of an epoch in which the partition was not lost.
        let configuration = self.view.configuration();
        let partitions = observations.iter().map(|seen| seen.partition);
        let mut partitions = partitions.chain(leaves.iter().map(|leaf| leaf.partition));
        if let Some(partition) = partitions.find(|partition| configuration.is_lost(*partition)) {
            return Err(Failure::Lost { partition }.into());
        }
        let tables = observations.iter().map(|seen| seen.table);
        let mut tables = tables.chain(leaves.iter().map(|leaf| leaf.table));
        if tables.any(|table| self.view.table(table).is_none()) {
            // Dropped since.
            return Err(Conflict::Changed.into());
        }
        self.round.begin()?;
        if rule!(READ_VALIDATION) {
            self.validate_observations(observations)?;
        }
        self.validate_leaves(leaves)?;
        self.end_validation()
    }

    fn validate_observations(&mut self, observations: &[Observation]) -> Result<(), Abort> {
        let Self { view, round, scratch, owner, .. } = self;
        let message = &mut scratch.message;
        let partition_of = |seen: &Observation| (seen.table, seen.partition);
        for run in observations.chunk_by(|a, b| partition_of(a) == partition_of(b)) {
            let (table, partition) = partition_of(&run[0]);
            let primary = view.configuration().primary(partition);
            for part in run.chunks(request::VALIDATED_MAX) {
                let buckets = part.iter().map(|seen| (seen.bucket, seen.version));
                if primary == view.id() {
                    let table = view.table(table);
                    round.answered(local::validated(table, partition, buckets, *owner));
                    continue;
                }
                let request = ValidateMany { table, partition, owner: *owner };
                message.clear();
                message.extend_from_slice(&request.encode());
                buckets.for_each(|(b, version)| push_bucket_version(b, version, message));
                round.request(primary, request::VALIDATE_MANY, message)?;
            }
        }
        Ok(())
    }
}
