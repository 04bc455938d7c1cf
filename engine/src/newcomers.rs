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
//! A node whose processes end soon after they have come, one after the other, is let in later each time: each end of a member stops all
//! transactions for a moment, and copies that were begun are lost.
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

/// A member that ends so soon after it has come, in nanoseconds, has ended early.
const EARLY_NS: u64 = 30_000_000_000;
/// How long a node is kept waiting whose processes have ended early twice in a row. Each further one doubles that.
const WAIT_NS: u64 = 1_000_000_000;
/// The longest wait.
const WAIT_NS_MAX: u64 = 30_000_000_000;

/// How long the processes of a node live.
#[derive(Default)]
struct Lives {
    /// The one that is a member, and since when.
    present: Option<(u32, u64)>,
    /// How many have ended early, one after the other.
    early: u32,
    /// When the next one may be let in.
    from_ns: u64,
}

/// Those that the decider knows of.
#[derive(Default)]
pub(crate) struct Newcomers {
    /// By node and incarnation.
    known: BTreeMap<(u16, u32), Newcomer>,
    /// By node.
    lives: BTreeMap<u16, Lives>,
    /// The version of the configuration that `lives` follows.
    version: u64,
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
        now_ns: u64,
    ) -> Option<Change> {
        self.follow(configuration, now_ns);
        self.known.retain(|(node, incarnation), _| {
            !configuration.is_member(*node) && !configuration.has_had(*node, *incarnation)
        });
        let waits = |node| self.lives.get(node).is_some_and(|lives| now_ns < lives.from_ns);
        let is_ready = |newcomer: &Newcomer| self.are_admitted && members.is_subset(&newcomer.met);
        let mut all = self.known.iter();
        let ((node, _), newcomer) =
            all.find(|((node, _), newcomer)| is_ready(newcomer) && !waits(node))?;
        Some(Change::Join { node: *node, entry: newcomer.entry.clone() })
    }

    /// When one that is known may be let in that is kept waiting.
    pub(crate) fn due_ns(&self, now_ns: u64) -> Option<u64> {
        let nodes = self.known.keys().filter_map(|(node, _)| self.lives.get(node));
        nodes.map(|lives| lives.from_ns).filter(|from_ns| *from_ns > now_ns).min()
    }

    /// Notes which members have come and ended.
    pub(crate) fn follow(&mut self, configuration: &Configuration, now_ns: u64) {
        let before = std::mem::replace(&mut self.version, configuration.version);
        if before == configuration.version {
            return;
        }
        // Those that a new decider finds have come long ago, as far as it knows.
        let came_ns = if before == 0 { now_ns.saturating_sub(EARLY_NS) } else { now_ns };
        for (node, member) in (0..).zip(&configuration.members) {
            let incarnation = configuration.is_member(node).then_some(member.incarnation);
            if incarnation.is_some() || self.lives.contains_key(&node) {
                let lives = self.lives.entry(node).or_default();
                lives.follow(node, incarnation, (came_ns, now_ns));
            }
        }
    }
}

impl Lives {
    /// This process of the node is a member now, or none is.
    fn follow(&mut self, node: u16, incarnation: Option<u32>, (came_ns, now_ns): (u64, u64)) {
        let ended = self.present.take_if(|(present, _)| Some(*present) != incarnation);
        if let Some((_, since_ns)) = ended {
            let is_early = now_ns.saturating_sub(since_ns) < EARLY_NS;
            self.early = if is_early { self.early + 1 } else { 0 };
            if let Some(doublings) = self.early.checked_sub(2) {
                let wait_ns = WAIT_NS.saturating_mul(1 << doublings.min(31)).min(WAIT_NS_MAX);
                self.from_ns = now_ns + wait_ns;
                tracing::warn!(
                    "membership: {} processes of node {node} have ended soon after they had come; the next one is let in {} s later",
                    self.early,
                    wait_ns / 1_000_000_000
                );
            }
        }
        self.present = self.present.or(incarnation.map(|incarnation| (incarnation, came_ns)));
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
        assert_eq!(newcomers.next(&removed, &members, 0), None, "its predecessor may vote");
        newcomers.are_admitted = true;
        // What a member says late of another process does not matter, nor that this one has ended.
        newcomers.came(0, 1, entry(5));
        newcomers.forget(1, 5);
        let join = Change::Join { node: 1, entry: entry(6) };
        assert_eq!(newcomers.next(&removed, &members, 0), Some(join.clone()));
        assert_eq!(newcomers.next(&removed, &BTreeSet::from([0, 2, 3]), 0), None);
        let joined = removed.after(&join).unwrap();
        assert_eq!(newcomers.next(&joined, &members, 0), None, "it is a member");
        assert_eq!(newcomers.next(&removed, &members, 0), None, "it is forgotten");
    }

    #[test]
    fn a_node_whose_processes_end_soon_after_they_have_come_waits_longer_each_time() {
        const SECOND: u64 = 1_000_000_000;
        let mut present = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        let members = BTreeSet::from([0, 2]);
        let mut newcomers = Newcomers { are_admitted: true, ..Newcomers::default() };
        let (mut now_ns, mut waits) = (60 * SECOND, Vec::new());
        assert_eq!(newcomers.next(&present, &members, 0), None);
        for life in 0..9 {
            // The first one has lived for long, and so has the last but one.
            now_ns += if life == 7 { 40 * SECOND } else { SECOND };
            present = present.after(&Change::Lose(1)).unwrap();
            present = present.after(&Change::Activate).unwrap();
            let entry = MemberEntry { incarnation: life + 10, ..MemberEntry::absent() };
            members.iter().for_each(|member| newcomers.came(*member, 1, entry.clone()));
            let mut wait = 0;
            let join = loop {
                match newcomers.next(&present, &members, now_ns) {
                    Some(join) => break join,
                    None => {
                        let due_ns = newcomers.due_ns(now_ns).unwrap();
                        (wait, now_ns) = (wait + due_ns - now_ns, due_ns);
                    }
                }
            };
            waits.push(wait / SECOND);
            present = present.after(&join).unwrap();
            assert_eq!(newcomers.next(&present, &members, now_ns), None);
        }
        assert_eq!(waits, [0, 0, 1, 2, 4, 8, 16, 0, 0]);
    }
}
