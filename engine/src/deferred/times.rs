//! When a deferred transaction has read, and whether all that it has read can be validated together.
//!
//! *Source*: rules `ONE_EPOCH` and `SCANNED_PRIMARY` of `docs/protocol.md`.

use std::sync::Arc;

use gannet_rules::rule;

use crate::outcome::{Abort, Conflict};
use crate::transaction::{ScanObservation, Transaction};

/// When a transaction has read. The numbers of an index belong to one copy of a partition. Another copy may be the primary in the next
/// epoch, or after a hand-over; so what was read in one epoch, or scanned at one primary, cannot be validated in another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) epoch: Option<u32>,
    are_several: bool,
    /// The version of the configuration that the first scan went by.
    scanned: Option<u64>,
}

impl Times {
    /// Something was read in this epoch.
    pub(super) fn add(&mut self, epoch: u32) {
        self.are_several |= *self.epoch.get_or_insert(epoch) != epoch && rule!(ONE_EPOCH);
    }

    /// Something was scanned in this epoch and version of the configuration.
    pub(super) fn add_scan(&mut self, epoch: u32, version: u64) {
        self.add(epoch);
        self.scanned.get_or_insert(version);
    }

    /// What another has read was read, too.
    pub(super) fn merge(&mut self, other: Self) {
        other.epoch.into_iter().for_each(|epoch| self.add(epoch));
        self.are_several |= other.are_several;
        self.scanned = self.scanned.into_iter().chain(other.scanned).min();
    }

    /// Whether a transaction can validate all that was read, and these scans.
    pub(super) fn check(
        mut self,
        transaction: &Transaction<'_>,
        scans: &[Arc<ScanObservation>],
    ) -> Result<(), Abort> {
        if self.epoch.is_some() {
            self.add(transaction.epoch());
        }
        let version = self.scanned.filter(|_| rule!(SCANNED_PRIMARY) && !scans.is_empty());
        let has_moved = version.is_some_and(|it| transaction.was_any_handed_over_since(it));
        let is_possible = !self.are_several && !has_moved;
        if is_possible { Ok(()) } else { Err(Conflict::Reconfigured.into()) }
    }
}
