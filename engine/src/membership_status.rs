//! The membership of a cluster as one of its processes sees it, for operators: the epoch, who decides on it, the lease of the process, and
//! how many nodes can be lost.
//!
//! ```text
//! configuration (epoch, phase, copies, log groups) ─┐
//! the manager's replica (who leads, who votes) ─────┼─▶ MembershipStatus
//! the lease, and its clock ─────────────────────────┘
//! ```
//! A cluster is *healthy* when it can lose as many nodes as when it began.
//!
//! *Invariant*: a status decides nothing. The next one may differ.
//!
//! *Not here*: how each node is, in `statistics`; what a stop would lose, in `stopping`.

use std::collections::{BTreeMap, BTreeSet};

use crate::configuration::{Configuration, Phase};
use crate::lease::LeaseLeft;
use crate::placement;

/// The membership as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipStatus {
    /// The epoch; from 1. Each removal begins another one, and so do other primaries.
    pub epoch: u32,
    /// Whether it is prepared still, or nodes work in it.
    pub phase: Phase,
    /// Version of the configuration, which rises with every change.
    pub version: u64,
    /// The nodes that are members.
    pub members: Vec<u16>,
    /// The nodes that were removed.
    pub removed: Vec<u16>,
    /// The node that leads the manager and so decides on the membership, as far as is known; none if all nodes are in one process.
    pub leader: Option<u16>,
    /// The nodes that vote on the manager's decisions; none if all nodes are in one process.
    pub voters: BTreeSet<u16>,
    /// What is left of the lease of this process.
    pub lease: LeaseLeft,
    /// Members that this process has suspected while it decided, each as often as it did.
    pub suspicions: u64,
    /// How many members can be lost.
    pub losses: Losses,
    /// Copies of partitions that are to be made again, those that are being made included.
    pub copies_missing: usize,
    /// Copies of partitions that are to move to other nodes, or are moving; those that are made again included.
    pub copies_moving: usize,
    /// The nodes that are drained, with what they still have.
    pub drained: BTreeMap<u16, Drained>,
    /// The nodes that operators have given up with a majority that decided on the membership, each time with the epoch since.
    pub given_up: Vec<(u32, Vec<u16>)>,
    /// Why the cluster is not healthy, if it is not: the first reason of several.
    pub unhealthy: Option<Unhealthy>,
}

/// Why a cluster is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unhealthy {
    /// So many partitions are lost, for ever.
    #[error("{0} partitions are lost; start the cluster again")]
    PartitionsLost(usize),
    /// So many nodes are no members, of those that were not drained.
    #[error("{0} nodes are gone; start their processes again")]
    NodesGone(usize),
    /// An epoch is prepared.
    #[error("the membership changes")]
    Preparing,
    /// So many copies of partitions are to be made again, or are being made.
    #[error("{0} copies of partitions are missing, and are made again if there is room")]
    CopiesMissing(usize),
    /// So many backups are to become primaries.
    #[error("the primaries of {0} partitions are to move")]
    PrimariesMove(usize),
    /// So many copies of partitions are to move to other nodes, or are moving.
    #[error("{0} copies of partitions are moving, if there is room")]
    CopiesMove(usize),
    /// So many nodes are yet to vote.
    #[error("{0} nodes do not vote yet")]
    VotesMissing(usize),
}

/// How many members can be lost, whichever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Losses {
    /// One after the other, the cluster having gone on without one before the next is lost: a copy of each row is left. The cluster may halt.
    pub keeping_rows: usize,
    /// At once: a copy of each row is left, and a majority that decides on the membership, so the cluster goes on. One after the other
    /// it may be more, as another node votes in place of one that was lost.
    pub serving: usize,
}

/// What a process knows of the manager.
#[derive(Clone, Debug, Default)]
pub(crate) struct ManagerStatus {
    pub(crate) leader: Option<u16>,
    pub(crate) voters: BTreeSet<u16>,
    pub(crate) suspicions: u64,
}

impl MembershipStatus {
    /// Of a configuration, with a manager if there are several processes.
    pub(crate) fn new(
        configuration: &Configuration,
        manager: Option<ManagerStatus>,
        lease: LeaseLeft,
    ) -> Self {
        let voters = manager.as_ref().map(|manager| &manager.voters);
        let unhealthy = unhealthy(configuration, voters);
        let losses = losses(configuration, voters);
        let ManagerStatus { leader, voters, suspicions } = manager.unwrap_or_default();
        Self {
            epoch: configuration.epoch,
            phase: configuration.phase,
            version: configuration.version,
            members: configuration.member_numbers().collect(),
            removed: configuration.removed().map(|(node, _)| node).collect(),
            leader,
            voters,
            lease,
            suspicions,
            losses,
            copies_missing: configuration.copies_missing(),
            copies_moving: placement::copies_to_move(configuration),
            drained: drained(configuration),
            given_up: configuration.given_up.clone(),
            unhealthy,
        }
    }
}

/// How many vote of so many members.
pub(crate) fn voters_wanted(members: usize) -> usize {
    match members {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// Why a cluster on which these vote is not healthy; none vote if all nodes are in one process.
fn unhealthy(configuration: &Configuration, voters: Option<&BTreeSet<u16>>) -> Option<Unhealthy> {
    let members = configuration.member_numbers().count();
    let voting = |voters: &BTreeSet<u16>| {
        voters.iter().filter(|voter| configuration.is_member(**voter)).count()
    };
    let votes_missing =
        voters.map_or(0, |voters| voters_wanted(members).saturating_sub(voting(voters)));
    let counted = [
        (configuration.lost_partitions().count(), Unhealthy::PartitionsLost as fn(usize) -> _),
        (configuration.nodes_gone(), Unhealthy::NodesGone),
        (usize::from(configuration.phase == Phase::Preparing), |_| Unhealthy::Preparing),
        (configuration.copies_missing(), Unhealthy::CopiesMissing),
        (placement::primaries(configuration).len(), Unhealthy::PrimariesMove),
        (placement::copies_to_move(configuration), Unhealthy::CopiesMove),
        (votes_missing, Unhealthy::VotesMissing),
    ];
    counted.into_iter().find_map(|(count, reason)| (count > 0).then(|| reason(count)))
}

/// How many members can be lost, whichever they are, of a cluster on which these vote; none vote if all nodes are in one process.
fn losses(configuration: &Configuration, voters: Option<&BTreeSet<u16>>) -> Losses {
    let partitions = (0..=u16::MAX).take(configuration.partitioning.count());
    // Of what is lost already, no more can be lost.
    let kept = partitions.filter(|partition| !configuration.is_lost(*partition));
    let copies = kept.map(|partition| configuration.copies(partition).len());
    // A coordinator that was no member of the last epoch has no log.
    let logs = configuration.last_log_groups().map(<[u16]>::len).filter(|replicas| *replicas > 0);
    let fewest = copies.chain(logs).min().unwrap_or(0);
    let keeping_rows = fewest.saturating_sub(1);
    let serving = voters.map_or(keeping_rows, |voters| {
        let majority = voters.len() / 2 + 1;
        let present = voters.iter().filter(|voter| configuration.is_member(**voter)).count();
        keeping_rows.min(present.saturating_sub(majority))
    });
    Losses { keeping_rows, serving }
}

/// What a node still has that is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Parts of so many partitions, which others are to have in its place.
    Moving(usize),
    /// Copies of so many partitions that no other member can have, because each has one already.
    Needed(usize),
    /// Nothing.
    Empty,
}

/// The nodes that are drained, with what they still have. Those that have left since have nothing.
pub(crate) fn drained(configuration: &Configuration) -> BTreeMap<u16, Drained> {
    let is_drained =
        |node: &u16| configuration.is_drained(*node) || configuration.has_left_drained(*node);
    let all = (0..=u16::MAX).take(configuration.nodes());
    let nodes: Vec<_> = all.filter(is_drained).collect();
    if nodes.is_empty() {
        return BTreeMap::new();
    }
    let is_settled = placement::is_reached(configuration);
    let still_has = |node: u16| match configuration.held_by(node).count() {
        0 => Drained::Empty,
        held if is_settled => Drained::Needed(held),
        held => Drained::Moving(held),
    };
    nodes.into_iter().map(|node| (node, still_has(node))).collect()
}

/// The nodes without any one of which the cluster cannot go on, when these vote; and those without which it waits until their processes are
/// started again.
pub(crate) fn indispensable(
    configuration: &Configuration,
    voters: &BTreeSet<u16>,
) -> (BTreeSet<u16>, BTreeSet<u16>) {
    let groups = configuration.last_log_groups();
    let alone = groups.filter(|group| group.len() == 1).flatten().copied();
    // A majority of at most two voters is all of them.
    let voting = voters.iter().filter(|_| voters.len() <= 2).copied();
    let keeps_log = |node: &u16| configuration.members[usize::from(*node)].keeps_log;
    let (awaited, ended): (BTreeSet<_>, BTreeSet<_>) = voting.partition(keeps_log);
    let indispensable: BTreeSet<_> = alone.chain(ended).collect();
    let awaited = awaited.difference(&indispensable).copied().collect();
    (indispensable, awaited)
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;
    use crate::configuration::Change;

    fn configuration(nodes: u16, replicas: usize) -> Configuration {
        Configuration::new(7, nodes, replicas, Partitioning::new(16).unwrap())
    }

    /// After these removals, of a cluster on which these vote: lost with all rows kept, and with the cluster going on.
    fn after(configuration: &Configuration, removed: &[u16], voters: &[u16]) -> (usize, usize) {
        let mut present = configuration.clone();
        for node in removed {
            present = present.after(&Change::Revoke(*node)).unwrap();
            present = present.after(&Change::Activate).unwrap();
        }
        let Losses { keeping_rows, serving } =
            losses(&present, Some(&voters.iter().copied().collect()));
        (keeping_rows, serving)
    }

    #[test]
    fn as_many_can_be_lost_as_leave_a_copy_and_a_majority() {
        assert_eq!(after(&configuration(3, 3), &[], &[0, 1, 2]), (2, 1));
        assert_eq!(after(&configuration(3, 2), &[], &[0, 1, 2]), (1, 1));
        assert_eq!(after(&configuration(3, 1), &[], &[0, 1, 2]), (0, 0));
        assert_eq!(after(&configuration(2, 2), &[], &[0]), (1, 0));
        assert_eq!(after(&configuration(5, 5), &[], &[0, 1, 2, 3, 4]), (4, 2));
        assert_eq!(after(&configuration(5, 3), &[], &[0, 1, 2, 3, 4]), (2, 2));
        // Of three nodes one is lost; then one votes alone.
        assert_eq!(after(&configuration(3, 3), &[1], &[0, 1, 2]), (1, 0));
        assert_eq!(after(&configuration(3, 3), &[1], &[0]), (1, 0));
        assert_eq!(after(&configuration(5, 3), &[1], &[0, 2, 3]), (1, 1));
        // It is not known yet who votes.
        assert_eq!(after(&configuration(3, 3), &[], &[]), (2, 0));
    }

    #[test]
    fn some_nodes_are_indispensable() {
        let of = |nodes, replicas, voters: &[u16]| {
            indispensable(&configuration(nodes, replicas), &voters.iter().copied().collect()).0
        };
        assert_eq!(of(3, 3, &[0, 1, 2]), BTreeSet::new());
        assert_eq!(of(3, 2, &[0, 1, 2]), BTreeSet::new());
        assert_eq!(of(2, 2, &[0]), BTreeSet::from([0]));
        assert_eq!(of(3, 1, &[0, 1, 2]), BTreeSet::new(), "rows alone are lost");
        let mut two = configuration(2, 2);
        two.members[0].keeps_log = true;
        assert_eq!(indispensable(&two, &[0].into()), ([].into(), [0].into()), "it comes back");
    }

    #[test]
    fn nobody_votes_in_one_process() {
        let all = configuration(3, 3);
        let status = MembershipStatus::new(&all, None, LeaseLeft::Endless);
        assert_eq!(status.losses, Losses { keeping_rows: 2, serving: 2 });
        assert_eq!((status.leader, status.suspicions, status.members.len()), (None, 0, 3));
        assert!(status.voters.is_empty() && status.removed.is_empty());
    }

    #[test]
    fn a_log_replica_counts_until_the_next_epoch_begins() {
        // The log of node 1 is left at node 2 alone.
        let five = Configuration::new(7, 5, 2, Partitioning::new(1).unwrap());
        let prepared = five.after(&Change::Revoke(2)).unwrap();
        assert_eq!(losses(&prepared, None).keeping_rows, 0);
        let active = prepared.after(&Change::Activate).unwrap();
        assert_eq!(losses(&active, None).keeping_rows, 1);
    }

    #[test]
    fn a_drained_node_has_what_moves_what_is_needed_or_nothing() {
        let after = |nodes, changes: &[Change]| {
            let replicas = usize::from(nodes).min(3);
            let first = Configuration::new(7, nodes, replicas, Partitioning::new(4).unwrap());
            changes.iter().fold(first, |before, change| before.after(change).unwrap())
        };
        let drain = |node| Change::Drain { node, is_drained: true };
        let of =
            |configuration: &Configuration| drained(configuration).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&after(3, &[])), []);
        // It is primary of some.
        let three = after(3, &[drain(1)]);
        assert_eq!(of(&three), [(1, Drained::Moving(4))]);
        let hand_over = placement::next_changes(&three).remove(0);
        let three = three.after(&hand_over).unwrap();
        assert_eq!(of(&three), [(1, Drained::Needed(4))]);
        // Of three others each can have one.
        let four = after(4, &[drain(1)]);
        assert!(matches!(of(&four)[..], [(1, Drained::Moving(_))]));
        assert!(four.after(&drain(2)).is_ok());
        // Those that move are counted once, before and meanwhile.
        let hand_over = placement::next_changes(&four).remove(0);
        let balanced = four.after(&hand_over).unwrap();
        let learn = placement::next_changes(&balanced).remove(0);
        let moving = placement::copies_to_move(&balanced);
        assert!(moving > 0 && matches!(learn, Change::Learn(_)));
        assert_eq!(placement::copies_to_move(&balanced.after(&learn).unwrap()), moving);
        let all = after(2, &[]);
        assert!(all.after(&drain(0)).unwrap().after(&drain(1)).is_err());
    }
}
