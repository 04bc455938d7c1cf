//! The catalog's version: a copy in each partition, so that each node is the primary of one.
//!
//! *Invariants*: one transaction writes all copies, so they are equal.
//!
//! *Not here*: the version's bytes, and reading and writing them in transactions (`catalog`).

use std::cell::RefCell;

use gannet_engine::{Configuration, Coordinator, Seen};

const VERSION: u8 = 0x01;

/// The keys of the copies of the version.
pub(crate) struct VersionKeys {
    /// By partition.
    all: Vec<Vec<u8>>,
}

impl VersionKeys {
    /// The keys for a cluster's partitions.
    pub(crate) fn new(configuration: &Configuration) -> Self {
        let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
        let key = |partition| configuration.row_key_in(partition, &[VERSION]);
        Self { all: partitions.map(key).collect() }
    }

    /// Every copy.
    pub(crate) fn all(&self) -> &[Vec<u8>] {
        &self.all
    }

    /// The copy in a partition, for the transactions of a coordinator. A read needs no message if the node is the partition's
    /// primary.
    pub(crate) fn near(&self, home_partition: Option<u16>) -> &Vec<u8> {
        &self.all[usize::from(home_partition.unwrap_or(0))]
    }
}

/// The copies as a session has last seen them. A short statement relies on them instead of reading a copy, until the membership
/// changes: then a node may be the primary of other copies, and an old observation would only end in a conflict.
#[derive(Default)]
pub(crate) struct SeenVersions {
    /// By partition: a version, and its copy there.
    near: RefCell<Vec<Option<(u64, Seen)>>>,
}

impl SeenVersions {
    /// The copy near a coordinator, if it had this version when it was last seen, in this epoch.
    pub(crate) fn get(&self, coordinator: &Coordinator<'_>, version: u64) -> Option<Seen> {
        let partition = usize::from(coordinator.home_partition().unwrap_or(0));
        let (seen_version, seen) = self.near.borrow().get(partition).copied()??;
        (seen_version == version && seen.is_of_epoch_of(coordinator)).then_some(seen)
    }

    /// Remembers that the copy near a coordinator has this version.
    pub(crate) fn set(&self, home_partition: Option<u16>, version: u64, seen: Seen) {
        let mut near = self.near.borrow_mut();
        let partition = usize::from(home_partition.unwrap_or(0));
        if near.len() <= partition {
            near.resize(partition + 1, None);
        }
        near[partition] = Some((version, seen));
    }
}
