//! The voters on the membership, as one member sees them: of three or four members three, of five or more five, and of fewer one, because with
//! two voters the loss of either would stop both. When a voter is lost, the member that leads has another one vote in its place, and when a
//! node comes back there may be more voters again.
//!
//! *Invariant*: without a majority of the voters nothing can be decided, and no lease is granted. If their processes have ended, and their logs
//! with them, the cluster cannot go on.
//!
//! *Not here*: the log that they have, in crate `manager`; leases, in `leases.rs`.

use std::collections::BTreeSet;

use gannet_manager::{LogMembers, ReplicaId};

use crate::configuration::{Configuration, Phase};
use crate::members::leases::Voters;
use crate::membership_status::voters_wanted;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Voting {
    /// A majority of each set is needed; there are two while the voters change.
    sets: Voters,
    /// The replicas that are to be in the log, as this member leads it.
    wanted: Option<LogMembers>,
    leads: bool,
    /// Those that an operator has given up: as long as they are members, this one votes alone.
    given_up: BTreeSet<ReplicaId>,
}

/// The members that vote: `leader`, and of the others those of as many zones as possible, as many as possible of those that vote already.
/// Those that are drained come last.
fn voters_of(configuration: &Configuration, present: &BTreeSet<u16>, leader: u16) -> BTreeSet<u16> {
    let count = voters_wanted(configuration.member_numbers().count());
    let leads = configuration.is_member(leader).then_some(leader);
    let mut voters: BTreeSet<u16> = leads.into_iter().collect();
    while voters.len() < count {
        let others = configuration.member_numbers().filter(|node| !voters.contains(node));
        let next = others.min_by_key(|node| {
            let mates = configuration.zone_mates(*node, &voters);
            (configuration.is_drained(*node), mates, !present.contains(node), *node)
        });
        let Some(node) = next else { break };
        voters.insert(node);
    }
    voters
}

/// The replicas of members.
pub(crate) fn replica_ids<'n>(
    configuration: &Configuration,
    nodes: impl Iterator<Item = &'n u16>,
) -> BTreeSet<ReplicaId> {
    let incarnation = |node: u16| configuration.members[usize::from(node)].incarnation;
    nodes.map(|node| ReplicaId { node: *node, incarnation: incarnation(*node) }).collect()
}

impl Voting {
    /// The members of the first configuration that vote, at all of them alike.
    pub(crate) fn first_voters(configuration: &Configuration) -> BTreeSet<u16> {
        let first = configuration.member_numbers().next().unwrap_or_default();
        voters_of(configuration, &BTreeSet::new(), first)
    }

    /// These vote now.
    pub(crate) fn set_voters(&mut self, sets: Voters) {
        self.sets = sets;
    }

    /// The voters.
    pub(crate) fn sets(&self) -> &Voters {
        &self.sets
    }

    /// An operator has given up these: this member votes alone until they are removed.
    pub(crate) fn give_up(&mut self, own: u16, lost: BTreeSet<ReplicaId>) {
        self.set_leads(false);
        (self.sets, self.given_up) = (vec![[own].into()], lost);
    }

    /// Whether this member leads them from now on.
    pub(crate) fn set_leads(&mut self, leads: bool) {
        (self.leads, self.wanted) = (leads, None);
    }

    /// The replicas that are to be in the log from now on, once, if they are others.
    pub(crate) fn take_wanted(
        &mut self,
        node: u16,
        configuration: &Configuration,
    ) -> Option<LogMembers> {
        let present: BTreeSet<u16> = self.sets.iter().flatten().copied().collect();
        let incarnation = |node: u16| configuration.members[usize::from(node)].incarnation;
        self.given_up.retain(|it| {
            configuration.is_member(it.node) && incarnation(it.node) == it.incarnation
        });
        if !self.given_up.is_empty() {
            return None;
        }
        if !self.leads || configuration.phase != Phase::Active || !present.contains(&node) {
            return None;
        }
        let voters = voters_of(configuration, &present, node);
        let all: Vec<u16> = configuration.member_numbers().collect();
        let wanted = LogMembers {
            all: replica_ids(configuration, all.iter()),
            voters: replica_ids(configuration, voters.iter()),
        };
        if self.wanted.as_ref() == Some(&wanted) {
            return None;
        }
        if voters != present {
            tracing::info!("these nodes vote on the membership from now on: {voters:?}");
        }
        Some(self.wanted.insert(wanted).clone())
    }

    /// Whether a node may come back: its predecessor does not vote any more.
    pub(crate) fn admits(&self, configuration: &Configuration) -> bool {
        match &self.sets[..] {
            [voters] => voters.iter().all(|voter| configuration.is_member(*voter)),
            _ => false,
        }
    }

    /// Why nothing can be decided any more, if the logs of so many voters are lost.
    pub(crate) fn obstacle(&self, lost: &BTreeSet<u16>) -> Option<String> {
        let left = |voters: &BTreeSet<u16>| voters.difference(lost).count();
        let mut known = self.sets.iter().filter(|voters| !voters.is_empty());
        let voters = known.find(|voters| 2 * left(voters) <= voters.len())?;
        let left = left(voters);
        Some(format!("of the nodes {voters:?}, which decide on the membership, {left} are left"))
    }
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;
    use crate::configuration::{Change, MemberEntry};

    #[test]
    fn a_majority_is_left_after_one_loss_if_there_can_be_one() {
        let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let after = |nodes: u16, changes: &[Change]| {
            let first = Configuration::new(7, nodes, 1, Partitioning::new(1).unwrap());
            changes.iter().fold(first, |before, change| before.after(change).unwrap())
        };
        for (nodes, voters) in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5), (9, 5)] {
            assert_eq!(Voting::first_voters(&after(nodes, &[])), (0..voters).collect(), "{nodes}");
        }
        // One that is lost is replaced, and those that vote stay.
        let without = |nodes, lost: &[u16]| {
            after(nodes, &lost.iter().map(|node| Change::Lose(*node)).collect::<Vec<_>>())
        };
        assert_eq!(voters_of(&without(4, &[1]), &set(&[0, 1, 2]), 2), set(&[0, 2, 3]));
        let four_of_six = without(6, &[0, 2]);
        assert_eq!(voters_of(&four_of_six, &set(&[0, 1, 2, 3, 4]), 4), set(&[1, 3, 4]));
        // One that is drained votes only if there are no others, or if it leads.
        let of_four = |drained: &[u16], leader| {
            let drain = |node: &u16| Change::Drain { node: *node, is_drained: true };
            let configuration = after(4, &drained.iter().map(drain).collect::<Vec<_>>());
            voters_of(&configuration, &set(&[0, 1, 2]), leader)
        };
        assert_eq!(of_four(&[1], 0), set(&[0, 2, 3]));
        assert_eq!(of_four(&[1], 1), set(&[0, 1, 2]));
        assert_eq!(of_four(&[1, 2], 0), set(&[0, 1, 3]));
        // While voters change, a majority of both is needed.
        let lost = set(&[0, 1, 4]);
        let obstacle = |sets: &[&[u16]]| {
            let sets = sets.iter().map(|nodes| set(nodes)).collect();
            Voting { sets, ..Voting::default() }.obstacle(&lost)
        };
        assert_eq!(obstacle(&[]), None, "nobody knows yet who votes");
        assert_eq!(obstacle(&[&[0, 2, 3, 5, 6]]), None);
        let both = obstacle(&[&[0, 1, 2, 3, 4], &[0, 2, 3, 5, 6]]).unwrap();
        assert!(both.contains("{0, 1, 2, 3, 4}") && both.contains("2 are left"), "{both}");
        // Of two one votes: the one that leads.
        assert_eq!(voters_of(&without(3, &[0]), &set(&[0, 1, 2]), 2), set(&[2]));
    }

    #[test]
    fn those_that_are_given_up_vote_no_more() {
        let mut present = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        present.members.iter_mut().for_each(|member| member.incarnation = 5);
        let replica = |node| ReplicaId { node, incarnation: 5 };
        let mut voting = Voting::default();
        voting.give_up(1, [replica(0), replica(2)].into());
        voting.set_leads(true);
        assert_eq!(voting.take_wanted(1, &present), None, "they are members still");
        let changes = [Change::Lose(0), Change::Lose(2), Change::Activate];
        let mut after = changes.iter().fold(present, |it, change| it.after(change).unwrap());
        let wanted = voting.take_wanted(1, &after).expect("they are removed");
        assert_eq!(wanted.voters, [replica(1)].into());
        // Other processes in their places do vote.
        for node in [0, 2] {
            let entry = MemberEntry { incarnation: 6, ..MemberEntry::absent() };
            after = after.after(&Change::Join { node, entry }).unwrap();
        }
        let wanted = voting.take_wanted(1, &after).expect("others have come");
        assert_eq!(wanted.voters.len(), 3);
    }

    #[test]
    fn those_that_vote_are_in_as_many_zones_as_possible() {
        let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let mut present = Configuration::new(7, 5, 1, Partitioning::new(1).unwrap());
        for (node, zone) in ["a", "a", "a", "b", "c"].iter().enumerate() {
            present.members[node].zone = (*zone).to_owned();
        }
        let four = present.after(&Change::Lose(0)).unwrap();
        assert_eq!(voters_of(&four, &set(&[0, 1, 2]), 1), set(&[1, 3, 4]));
        assert_eq!(voters_of(&four, &set(&[1, 3, 4]), 3), set(&[1, 3, 4]), "it is stable");
        assert_eq!(voters_of(&four, &set(&[1, 3, 4]), 2), set(&[2, 3, 4]), "the leader votes");
    }
}
