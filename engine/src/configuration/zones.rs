//! Zones: failure domains, such as racks, power supplies or sites. Nodes of one zone may fail together.
//!
//! *Invariant*: a node that names no zone is a zone of its own.
//!
//! *Not here*: where copies go, in `placement`; log groups, in `roles`; those that vote, in `members/voting.rs`.

use crate::configuration::Configuration;

impl Configuration {
    /// The zone that a node has named, if it has.
    #[must_use]
    pub fn zone(&self, node: u16) -> Option<&str> {
        let member = self.members.get(usize::from(node))?;
        Some(member.zone.as_str()).filter(|zone| !zone.is_empty())
    }

    /// Whether a member has named a zone.
    pub(crate) fn has_zones(&self) -> bool {
        self.members.iter().any(|member| !member.zone.is_empty())
    }

    /// How many of these nodes may fail together with `node`, itself left out.
    pub(crate) fn zone_mates<'n>(
        &self,
        node: u16,
        nodes: impl IntoIterator<Item = &'n u16>,
    ) -> usize {
        let Some(zone) = self.zone(node) else { return 0 };
        let is_mate = |other: &&u16| **other != node && self.zone(**other) == Some(zone);
        nodes.into_iter().filter(is_mate).count()
    }
}
