//! Which nodes have a part of a partition, and which give their part up.
//!
//! ```text
//! backup ─ Dismiss ─▶ Updated ─ Fill ─▶ Spared ─ Fill, or the next epoch ─▶ Returned ─ Freed ─▶ nothing
//! ```
//! *Not here*: why, in `placement`; how a node gives memory back, in `giving_back`.

use serde::{Deserialize, Serialize};

use crate::configuration::Configuration;

/// A node that gives up its copy of a partition. What it has is no copy any more, and updates may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dismissed {
    pub(crate) node: u16,
    /// The version of the configuration since which it is.
    pub(crate) since: u64,
    pub(crate) stage: Dismissal,
}

/// How far a node has given up a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Dismissal {
    /// It still gets updates.
    Updated,
    /// All transactions know that it is dismissed: they send it no updates from now on.
    Spared,
    /// No transaction sends it updates: it gives the memory back, which counts until that is done.
    Returned,
}

impl Dismissed {
    /// Whether the node may give the memory back.
    pub(crate) fn is_returned(&self) -> bool {
        self.stage == Dismissal::Returned
    }
}

impl Configuration {
    /// Whether the node gives up its copy of a partition.
    pub(crate) fn is_dismissed(&self, partition: u16, node: u16) -> bool {
        self.dismissed[usize::from(partition)].iter().any(|dismissed| dismissed.node == node)
    }

    /// The copies that are given up, by partition.
    pub(crate) fn dismissed(&self) -> impl Iterator<Item = (u16, &Dismissed)> {
        let all = (0..=u16::MAX).zip(&self.dismissed);
        all.flat_map(|(partition, dismissed)| dismissed.iter().map(move |it| (partition, it)))
    }

    /// Whether there are copies that are given up, and may still get updates.
    pub(crate) fn has_dismissed(&self) -> bool {
        self.dismissed().any(|(_, dismissed)| dismissed.stage != Dismissal::Returned)
    }

    /// Whether `node` has a part of `partition`: as a copy, as a learner, or as a copy that is given up and may still get updates.
    pub(crate) fn is_held_by(&self, partition: u16, node: u16) -> bool {
        let is_spared = |it: &Dismissed| it.node == node && it.stage == Dismissal::Spared;
        self.updated(partition).contains(&node)
            || self.dismissed[usize::from(partition)].iter().any(is_spared)
    }

    /// The partitions that `node` has a part of.
    pub fn held_by(&self, node: u16) -> impl Iterator<Item = u16> + '_ {
        let partitions = (0..=u16::MAX).take(self.updated.len());
        partitions.filter(move |partition| self.is_held_by(*partition, node))
    }

    /// The nodes that have memory for `partition`, or have not given it back.
    pub(crate) fn holders_of(&self, partition: u16) -> impl Iterator<Item = u16> + '_ {
        self.member_numbers().filter(move |node| {
            self.is_held_by(partition, *node) || self.is_dismissed(partition, *node)
        })
    }
}
