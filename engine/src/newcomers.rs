//! Nodes that come back: a process with the number of a node that was removed, which wants to be a member.
//!
//! ```text
//! process      calls all members, and is told to wait until its predecessor is removed
//! each member  is connected with the process ─▶ Came, to the decider
//! decider      all members have said so ─▶ a round in which the process takes part: Admit, Prepared, the decision, Adopted
//! ```
//! It has nothing but its number, addresses and key. It learns all else with `Admit`, and holds no row and no vote when it is a member. What
//! follows is what follows for any member: it is filled with partitions that lack copies, and votes if there are too few voters.
//!
//! *Invariants*: a process is let in when its predecessor was removed, and is no voter any more, for the sets of voters name nodes. No
//! transaction notices: nothing is flushed.
//!
//! *Not here*: connections, in `members`; the round, in `decider`.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::{Change, Configuration, MemberEntry};

/// A node that wants to come back, and the members that are connected with it.
struct Newcomer {
    entry: MemberEntry,
    met: BTreeSet<usize>,
}

/// Those that the decider knows of.
#[derive(Default)]
pub(crate) struct Newcomers {
    /// By node and incarnation.
    known: BTreeMap<(u16, u32), Newcomer>,
    /// Whether one may be let in now.
    pub(crate) are_admitted: bool,
}

impl Newcomers {
    /// A member is connected with one.
    pub(crate) fn came(&mut self, from: usize, node: u16, entry: MemberEntry) {
        let newcomer = self.known.entry((node, entry.incarnation));
        newcomer.or_insert_with(|| Newcomer { entry, met: BTreeSet::new() }).met.insert(from);
    }

    /// One has ended, or is not let in.
    pub(crate) fn forget(&mut self, node: u16, incarnation: u32) {
        self.known.remove(&(node, incarnation));
    }

    /// The change that lets the next one in, with whom all members are connected.
    pub(crate) fn next(
        &mut self,
        configuration: &Configuration,
        members: &BTreeSet<usize>,
    ) -> Option<Change> {
        self.known.retain(|(node, incarnation), _| {
            !configuration.is_member(*node) && !configuration.has_had(*node, *incarnation)
        });
        let is_ready = |newcomer: &Newcomer| self.are_admitted && members.is_subset(&newcomer.met);
        let mut all = self.known.iter();
        let ((node, _), newcomer) = all.find(|(_, newcomer)| is_ready(newcomer))?;
        Some(Change::Join { node: *node, entry: newcomer.entry.clone() })
    }
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    #[test]
    fn one_is_let_in_when_all_members_are_connected_with_it_and_its_predecessor_votes_no_more() {
        let entry = |incarnation| MemberEntry { incarnation, ..MemberEntry::absent() };
        let present = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        let removed = present.after(&Change::Lose(1)).unwrap().after(&Change::Activate).unwrap();
        let members = BTreeSet::from([0, 2]);
        let mut newcomers = Newcomers::default();
        newcomers.came(0, 1, entry(5));
        newcomers.came(0, 1, entry(6));
        newcomers.came(2, 1, entry(6));
        assert_eq!(newcomers.next(&removed, &members), None, "its predecessor may vote");
        newcomers.are_admitted = true;
        // What a member says late of another process does not matter, nor that this one has ended.
        newcomers.came(0, 1, entry(5));
        newcomers.forget(1, 5);
        let join = Change::Join { node: 1, entry: entry(6) };
        assert_eq!(newcomers.next(&removed, &members), Some(join.clone()));
        assert_eq!(newcomers.next(&removed, &BTreeSet::from([0, 2, 3])), None);
        let joined = removed.after(&join).unwrap();
        assert_eq!(newcomers.next(&joined, &members), None, "it is a member");
        assert_eq!(newcomers.next(&removed, &members), None, "it is forgotten");
    }
}
