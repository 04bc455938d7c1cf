//! Where the catalog's version is: a copy in each partition, so that each node is the primary of one.
//!
//! *Invariants*: all copies are written by one transaction, and are equal.

use std::cell::RefCell;

use gannet_engine::mutant::{Mutant, active};
use gannet_engine::{Configuration, Seen};

const VERSION: u8 = 0x01;

/// The keys of the copies of the version.
pub(crate) struct VersionKeys {
    /// By partition.
    all: Vec<Vec<u8>>,
    /// By node: a partition whose primary it is, or any.
    near: Vec<usize>,
}

impl VersionKeys {
    /// Those of a cluster.
    pub(crate) fn new(configuration: &Configuration) -> Self {
        let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
        let near = |node: u16| configuration.partition_of(node).map_or(0, usize::from);
        Self {
            all: partitions.map(|number| configuration.row_key_in(number, &[VERSION])).collect(),
            near: (0..=u16::MAX).take(configuration.nodes()).map(near).collect(),
        }
    }

    /// Every copy.
    pub(crate) fn all(&self) -> &[Vec<u8>] {
        &self.all
    }

    /// The copies that a change of the catalog writes.
    pub(crate) fn written(&self) -> &[Vec<u8>] {
        let copies = if active(Mutant::OneCatalogVersion) { 1 } else { self.all.len() };
        &self.all[..copies]
    }

    /// The copy that transactions at a node read: without a message, if the node is primary of a partition.
    pub(crate) fn near(&self, node: u16) -> &Vec<u8> {
        &self.all[self.near[usize::from(node)]]
    }
}

/// What a session has last seen of the copies: what a short statement may rely on instead of reading one.
#[derive(Default)]
pub(crate) struct SeenVersions {
    /// By node: a version, and its copy near the node.
    near: RefCell<Vec<Option<(u64, Seen)>>>,
}

impl SeenVersions {
    /// The copy near a node, if it had this version.
    pub(crate) fn get(&self, node: u16, version: u64) -> Option<Seen> {
        let (seen_version, seen) = self.near.borrow().get(usize::from(node)).copied()??;
        (seen_version == version).then_some(seen)
    }

    /// The copy near a node has this version.
    pub(crate) fn set(&self, node: u16, version: u64, seen: Seen) {
        let mut near = self.near.borrow_mut();
        let node = usize::from(node);
        if near.len() <= node {
            near.resize(node + 1, None);
        }
        near[node] = Some((version, seen));
    }
}
