//! The members of a configuration, the nodes that were members, and those that are to hold something.
//!
//! *Invariants*: each node has a place, whether or not the node is a member; a number without a place is no member. A
//! node that was never there counts as one that was drained and has left: the cluster waits for neither. The place of a
//! removed node has the incarnation that was let in last.
//!
//! *Source*: `docs/protocol.md`, "Nodes that are drained" and "Nodes that are added".
//!
//! *Not here*: how that changes, in `roles`; what members hold, in `holding`.

use crate::configuration::Configuration;

impl Configuration {
    /// Whether the node is there and was not revoked.
    #[must_use]
    pub fn is_member(&self, node: u16) -> bool {
        self.revoked.get(usize::from(node)) == Some(&false)
    }

    /// The nodes that were not revoked, in their order.
    pub fn member_numbers(&self) -> impl Iterator<Item = u16> + '_ {
        let numbers = (0..=u16::MAX).zip(&self.revoked);
        numbers.filter_map(|(node, is_revoked)| (!is_revoked).then_some(node))
    }

    /// The nodes that were revoked, with their incarnations.
    pub(crate) fn removed(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        let all = (0..=u16::MAX).zip(self.members.iter().zip(&self.revoked));
        all.filter_map(|(node, (member, is_revoked))| {
            is_revoked.then_some((node, member.incarnation))
        })
    }

    /// Whether this incarnation of a node is a member.
    pub(crate) fn has_member(&self, node: u16, incarnation: u32) -> bool {
        self.is_member(node) && self.has_had(node, incarnation)
    }

    /// Whether the last process with a node's number that was let in is this one.
    pub(crate) fn has_had(&self, node: u16, incarnation: u32) -> bool {
        self.members.get(usize::from(node)).is_some_and(|member| member.incarnation == incarnation)
    }

    /// How many nodes are no members, of those that were not drained before.
    pub(crate) fn nodes_gone(&self) -> usize {
        let all = self.revoked.iter().zip(&self.drained);
        all.filter(|(is_revoked, is_drained)| **is_revoked && !**is_drained).count()
    }

    /// Whether a node is no member, and was drained before.
    pub(crate) fn has_left_drained(&self, node: u16) -> bool {
        !self.is_member(node) && self.drained.get(usize::from(node)) == Some(&true)
    }

    /// Whether a node could leave and no other node would notice: it is drained, has no part of any partition, and keeps no
    /// other's log.
    pub(crate) fn may_part(&self, node: u16) -> bool {
        let groups = || self.log_groups.iter().chain(&self.last_log_groups);
        let of_others = groups().filter(|group| group.first() != Some(&node));
        self.is_drained(node)
            && self.held_by(node).next().is_none()
            && of_others.flatten().all(|replica| *replica != node)
    }

    /// Whether all nodes are members, but for those that were drained before.
    pub(crate) fn is_complete(&self) -> bool {
        self.nodes_gone() == 0
    }

    /// Whether the node is a member that is to hold nothing that others can hold.
    #[must_use]
    pub fn is_drained(&self, node: u16) -> bool {
        self.is_member(node) && self.drained[usize::from(node)]
    }

    /// Whether members are drained.
    pub(crate) fn has_drained(&self) -> bool {
        self.member_numbers().any(|node| self.is_drained(node))
    }

    /// The members that hold their share of copies.
    pub(crate) fn holders(&self) -> impl Iterator<Item = u16> + '_ {
        self.member_numbers().filter(|node| !self.is_drained(*node))
    }
}
