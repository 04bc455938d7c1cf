//! The stop of a process: what would be lost with it, and whether the other processes stop as well.
//!
//! ```text
//! told to stop ─▶ announce_stop() ─▶ the others know it, all go on
//!              ─▶ lost_by_stop(): nothing, or the cluster stops as a whole ─▶ leave()
//!                                 the only copy of some rows               ─▶ the owner decides
//! ```
//! *Invariants*: of two nodes that are told to stop at the same moment, that with the greater number counts the other as gone. So the two do
//! not both go with the only copies of the same rows, when each has heard of the other.
//!
//! *Not here*: signals, which are the program's; the end of a node that has left, in `members`.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::configuration::Configuration;
use crate::membership_status::indispensable;

/// Partitions whose rows would be lost with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlyCopies {
    /// The node that has their only copies, apart from those of nodes that are about to stop.
    pub node: u16,
    /// The partitions.
    pub partitions: Vec<u16>,
    /// How many partitions there are.
    pub of: usize,
}

impl std::fmt::Display for OnlyCopies {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, partitions, of } = self;
        let numbers: Vec<_> = partitions.iter().map(ToString::to_string).collect();
        let (count, numbers) = (partitions.len(), numbers.join(", "));
        write!(formatter, "node {node} has the only copy of {count} of {of} partitions ({numbers})")
    }
}

impl Cluster {
    /// Tells the other processes that this one is to stop, and goes on. Whether there are others.
    pub fn announce_stop(&self) -> bool {
        if let Some(others) = &self.others {
            others.announce_stop();
        }
        self.others.is_some()
    }

    /// The rows that would be lost if this process left the cluster now and the others went on. None are if all nodes are in this
    /// process, if the cluster has halted, or if the others are about to stop as well, as the cluster ends then.
    #[must_use]
    pub fn lost_by_stop(&self) -> Option<OnlyCopies> {
        let others = self.others.as_ref()?.present();
        if self.halted().is_some() {
            return None;
        }
        only_copies(&self.configuration(), self.members[0].node().id(), &others)
    }

    /// Why the others cannot do without the process of a node, even for as long as it takes to start it again.
    pub(crate) fn need_of(&self, node: u16) -> Option<String> {
        let (own, configuration) = (self.members[0].node().id(), self.configuration());
        let mut others = self.others.as_ref()?.present();
        others.insert(own, false);
        others.remove(&node);
        if let Some(copies) = only_copies(&configuration, node, &others) {
            return Some(copies.to_string());
        }
        let voters = self.membership().voters;
        let (ended, _) = indispensable(&configuration, &voters);
        let is_needed = ended.contains(&node);
        is_needed.then(|| {
            "the others could decide on nothing without its log, which is in memory".to_owned()
        })
    }
}

/// The partitions that only `node` has a copy of. `others` are the other members that are there, each with whether it is about to stop.
fn only_copies(
    configuration: &Configuration,
    node: u16,
    others: &BTreeMap<u16, bool>,
) -> Option<OnlyCopies> {
    if others.values().all(|stops| *stops) {
        return None;
    }
    let stays = |other: &u16| others.get(other).is_some_and(|stops| !stops || *other > node);
    let is_only = |partition: &u16| !configuration.copies(*partition).iter().any(stays);
    let partitions: Vec<_> = configuration.held_by(node).filter(is_only).collect();
    let of = configuration.partitioning.count();
    (!partitions.is_empty()).then_some(OnlyCopies { node, partitions, of })
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    /// The partitions, of four, that only `node` has a copy of: of three nodes with two copies, partition p at nodes p and p + 1.
    fn lost(node: u16, others: &[(u16, bool)]) -> Vec<u16> {
        let configuration = Configuration::new(7, 3, 2, Partitioning::new(4).unwrap());
        let lost = only_copies(&configuration, node, &others.iter().copied().collect());
        lost.map(|lost| lost.partitions).unwrap_or_default()
    }

    #[test]
    fn a_node_has_only_copies_if_those_that_stay_have_none() {
        assert_eq!(lost(1, &[(0, false), (2, false)]), []);
        // Node 2 is gone.
        assert_eq!(lost(0, &[(1, false)]), [2]);
        assert_eq!(lost(1, &[(0, false)]), [1]);
        // Nodes 0 and 1 are told to stop at the same moment.
        assert_eq!(lost(0, &[(1, true), (2, false)]), []);
        assert_eq!(lost(1, &[(0, true), (2, false)]), [0, 3]);
    }

    #[test]
    fn a_cluster_that_ends_as_a_whole_has_nothing_to_keep() {
        assert_eq!(lost(1, &[(0, true), (2, true)]), []);
        assert_eq!(lost(1, &[(2, true)]), []);
        assert_eq!(lost(1, &[]), []);
    }

    #[test]
    fn the_loss_is_named() {
        let lost = OnlyCopies { node: 1, partitions: vec![0, 3], of: 4 };
        assert_eq!(lost.to_string(), "node 1 has the only copy of 2 of 4 partitions (0, 3)");
    }
}
