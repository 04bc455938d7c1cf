//! Validate: ask the primaries whether the buckets that were read still have their versions.
//!
//! *Source*: FaSST section 5, step 2. Buckets that this transaction holds cannot have changed since
//! they were locked, and that they had not changed before is rule C2, checked in `buckets.rs`.

use gannet_storage::mutant::{Mutant, active};

use crate::outcome::Abort;
use crate::request::{self, KeyRequest, Status, push_bucket_version};
use crate::transaction::{LeafObservation, Observation, Transaction, here};

impl Transaction<'_> {
    /// Validates the read set; after [`Self::group_buckets`], and after every lock was granted (C1).
    ///
    /// # Errors
    /// [`Abort::Changed`] or [`Abort::Locked`]; [`Abort::Refused`], a bug.
    pub(super) fn validate(&mut self) -> Result<(), Abort> {
        // One observation of one bucket is a snapshot by itself; what a scan has not found is not.
        let is_snapshot = self.held.len() + self.read.len() <= 1 && self.leaves.is_empty();
        let skip = active(Mutant::SkipValidation) || active(Mutant::ValidateBeforeLock);
        if is_snapshot || skip { Ok(()) } else { self.validate_groups() }
    }

    pub(super) fn validate_groups(&mut self) -> Result<(), Abort> {
        let Self { node, rows, read, round, owner, .. } = self;
        round.begin();
        for group in read.iter() {
            let row = &rows[group.row as usize];
            if row.primary == node.id() {
                let bucket = std::iter::once((row.bucket, row.version));
                let table = node.table(row.table);
                round.answered(here::validated(table, row.partition, bucket, *owner));
                continue;
            }
            let request = KeyRequest {
                table: row.table,
                detail: row.partition,
                bucket: row.bucket,
                key: row.version,
                owner: *owner,
            };
            round.request(row.primary, request::VALIDATE, &request.encode())?;
        }
        let leaves = std::mem::take(&mut self.leaves);
        let asked = self.ask_for_leaves(&leaves);
        self.leaves = leaves;
        asked?;
        self.end_validation()
    }

    /// Asks for the leaves that scans have touched.
    fn ask_for_leaves(&mut self, leaves: &[LeafObservation]) -> Result<(), Abort> {
        let Self { node, round, owner, .. } = self;
        if active(Mutant::SkipLeafValidation) {
            return Ok(());
        }
        for leaf in leaves {
            let request = KeyRequest {
                table: leaf.table,
                detail: leaf.partition,
                bucket: leaf.version.leaf,
                key: leaf.version.counter,
                owner: *owner,
            };
            let primary = node.configuration().primary(leaf.partition);
            round.request(primary, request::VALIDATE_LEAF, &request.encode())?;
        }
        Ok(())
    }

    fn end_validation(&mut self) -> Result<(), Abort> {
        match self.round.end() {
            None => Ok(()),
            Some(Status::Locked) => Err(Abort::Locked),
            Some(Status::Changed) => Err(Abort::Changed),
            // No conflict, which would be run again: to ask for what is not there is a bug.
            Some(_) => Err(Abort::Refused),
        }
    }

    /// Ends a transaction that writes nothing, and tells whether what was observed, also of leaves, is still so. Observations of
    /// one partition behind each other go in one request.
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
        self.round.begin();
        let skip = active(Mutant::SkipValidation);
        let asked = if skip { Ok(()) } else { self.ask_for(observations) };
        let valid =
            asked.and_then(|()| self.ask_for_leaves(leaves)).and_then(|()| self.end_validation());
        self.abort();
        valid
    }

    fn ask_for(&mut self, observations: &[Observation]) -> Result<(), Abort> {
        let Self { node, round, message, owner, .. } = self;
        let place = |seen: &Observation| (seen.table, seen.partition);
        for run in observations.chunk_by(|a, b| place(a) == place(b)) {
            let (table, partition) = place(&run[0]);
            let primary = node.configuration().primary(partition);
            for part in run.chunks(request::VALIDATED_MAX) {
                let buckets = part.iter().map(|seen| (seen.bucket, seen.version));
                if primary == node.id() {
                    let table = node.table(table);
                    round.answered(here::validated(table, partition, buckets, *owner));
                    continue;
                }
                let request =
                    KeyRequest { table, detail: partition, bucket: 0, key: 0, owner: *owner };
                message.clear();
                message.extend_from_slice(&request.encode());
                buckets.for_each(|(b, version)| push_bucket_version(b, version, message));
                round.request(primary, request::VALIDATE_MANY, message)?;
            }
        }
        Ok(())
    }
}
