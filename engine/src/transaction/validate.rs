//! Validate: ask the primaries whether the buckets that were read still have their versions.
//!
//! *Source*: FaSST section 5, step 2. Buckets that this transaction holds cannot have changed since
//! they were locked, and that they had not changed before is rule C2, checked in `buckets.rs`.

use gannet_storage::mutant::{Mutant, active};

use crate::outcome::Abort;
use crate::request::{self, KeyRequest, Status};
use crate::transaction::{Transaction, here};

impl Transaction<'_> {
    /// Validates the read set; after [`Self::group_buckets`], and after every lock was granted (C1).
    ///
    /// # Errors
    /// [`Abort::Changed`] or [`Abort::Locked`].
    pub(super) fn validate(&mut self) -> Result<(), Abort> {
        // One observation of one bucket is a snapshot by itself; what a scan has not found is not.
        let is_snapshot = self.groups.len() <= 1 && self.leaves.is_empty();
        if is_snapshot { Ok(()) } else { self.validate_observed() }
    }

    /// As [`Self::validate`], of what was observed before something else was.
    pub(super) fn validate_observed(&mut self) -> Result<(), Abort> {
        let skip = active(Mutant::SkipValidation) || active(Mutant::ValidateBeforeLock);
        if skip { Ok(()) } else { self.validate_groups() }
    }

    pub(super) fn validate_groups(&mut self) -> Result<(), Abort> {
        let Self { node, rows, groups, leaves, round, owner, .. } = self;
        round.begin();
        for group in groups.iter().filter(|group| !group.locked) {
            let row = &rows[group.row as usize];
            if row.primary == node.id() {
                round.answered(here::validated(node.table(row.table), row, *owner));
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
        let skip_leaves = active(Mutant::SkipLeafValidation);
        for leaf in leaves.iter().filter(|_| !skip_leaves) {
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
        match round.end() {
            None => Ok(()),
            Some(Status::Locked) => Err(Abort::Locked),
            Some(_) => Err(Abort::Changed),
        }
    }
}
