//! A majority that is gone for ever: an operator gives it up, and the member that is told decides on the membership alone until others vote again.
//!
//! ```text
//! operator ─▶ check ─▶ the replica ends, and starts as the only voter ─▶ it leads: the lost members are removed in the next epoch
//!                                                                  ─▶ Change::GiveUp, which all members keep
//! ```
//! *Invariants*: only the operator can know that a process will never run again: what the lost members go on to do, nobody here hears. The log that
//! goes on has all decisions that any member that is left goes by, as none of the others has a log with a later end. No member that is left hears
//! a lost one. It is recorded in the configuration.
//!
//! *Source*: `docs/protocol.md`, "A majority that is given up".
//!
//! *Not here*: what the replica does, in crate `manager`; how members are removed, in `membership_change`.

use std::collections::BTreeSet;

use gannet_manager::LogEnd;

use crate::configuration::Configuration;
use crate::members::group::Group;
use crate::members::leases::Voters;
use crate::members::peer::Peer;
use crate::statistics::ManagerReport;

/// Seconds that a member must have been silent before it is given up.
const SILENT_SECONDS: u64 = 5;

/// Why a majority is not given up.
#[derive(Debug, thiserror::Error)]
pub enum OverrideError {
    /// There is none to decide with afterwards.
    #[error(
        "node {0} is the one that is asked; ask one that is left, and name those that are lost"
    )]
    Own(u16),
    /// It is no member.
    #[error("node {0} is no member; gannet status tells who is")]
    NoMember(u16),
    /// The others may decide.
    #[error(
        "nodes {0:?} vote, and a majority of them is left without those that are named; it removes silent nodes itself"
    )]
    MajorityLeft(BTreeSet<u16>),
    /// It does not take part in decisions.
    #[error(
        "this node knows no log of the membership; ask another node that is left, or start the cluster again"
    )]
    NoLog,
    /// Its log is in memory, where it cannot go on from.
    #[error(
        "this node keeps its log of the membership in memory; ask one that was started with --manager-data, or start the cluster again"
    )]
    InMemory,
    /// A member that is named as lost is there.
    #[error(
        "node {node} is heard by node {by}, or was {SILENT_SECONDS} s ago; stop its process for good, and ask again then"
    )]
    Heard {
        /// The member.
        node: u16,
        /// By whom.
        by: u16,
    },
    /// A member that is not named as lost is not there.
    #[error("node {0} is silent too; name it as lost, or ask again when it speaks")]
    Silent(u16),
    /// A member has a later log.
    #[error("node {0} has heard of more decisions; ask that one")]
    Behind(u16),
    /// The replica does not start again.
    #[error("this node cannot go on with its log of the membership: {0}")]
    Failed(String),
}

/// Another member, as this one knows it.
pub(super) struct Surveyed {
    node: u16,
    /// Seconds since it was heard.
    silence: u64,
    report: Option<ManagerReport>,
}

impl Surveyed {
    pub(super) fn new(node: u16, peer: &Peer) -> Self {
        let report = peer.report().and_then(|report| report.manager.clone());
        Self { node, silence: peer.silence(), report }
    }
}

impl Group {
    /// The other members.
    pub(super) fn survey(&self) -> Vec<Surveyed> {
        let numbered =
            |(node, peer): (&usize, &Peer)| Some(Surveyed::new(u16::try_from(*node).ok()?, peer));
        self.peers.iter().filter_map(numbered).collect()
    }
}

/// Whether a member may decide alone, as these are lost for ever: its own number and the end of its log, who votes, and the other members.
pub(super) fn check(
    configuration: &Configuration,
    (own, log_end): (u16, LogEnd),
    voters: &Voters,
    others: &[Surveyed],
    lost: &BTreeSet<u16>,
) -> Result<(), OverrideError> {
    if lost.contains(&own) {
        return Err(OverrideError::Own(own));
    }
    if let Some(node) = lost.iter().find(|node| !configuration.is_member(**node)) {
        return Err(OverrideError::NoMember(*node));
    }
    if voters.is_empty() {
        return Err(OverrideError::NoLog);
    }
    let has_majority = |set: &&BTreeSet<u16>| 2 * set.difference(lost).count() > set.len();
    if voters.iter().all(|set| has_majority(&set)) {
        return Err(OverrideError::MajorityLeft(voters.iter().flatten().copied().collect()));
    }
    for other in others.iter().filter(|other| configuration.is_member(other.node)) {
        let Surveyed { node, silence, report } = other;
        if lost.contains(node) {
            if *silence < SILENT_SECONDS {
                return Err(OverrideError::Heard { node: *node, by: own });
            }
            continue;
        }
        let Some(ManagerReport { log_end: end, hears }) =
            report.as_ref().filter(|_| *silence < SILENT_SECONDS)
        else {
            return Err(OverrideError::Silent(*node));
        };
        if let Some(heard) = lost.iter().find(|lost| hears.contains(lost)) {
            return Err(OverrideError::Heard { node: *heard, by: *node });
        }
        if *end > log_end {
            return Err(OverrideError::Behind(*node));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gannet_storage::Partitioning;

    use super::*;

    #[test]
    fn a_majority_is_given_up_only_if_it_is_gone_and_nobody_knows_more() {
        let configuration = Configuration::new(7, 5, 3, Partitioning::new(4).unwrap());
        let set = |nodes: &[u16]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let end = |index| LogEnd { term: 3, index };
        let other = |node, silence, index, hears: &[u16]| Surveyed {
            node,
            silence,
            report: Some(ManagerReport { log_end: end(index), hears: set(hears) }),
        };
        let three_are_gone = || {
            vec![
                other(1, 1, 8, &[0]),
                other(2, 9, 9, &[]),
                other(3, 7, 9, &[]),
                other(4, 7, 9, &[]),
            ]
        };
        let all = vec![set(&[0, 1, 2, 3, 4])];
        let asked = |voters: &Voters, others: &[Surveyed], lost: &[u16]| {
            check(&configuration, (0, end(8)), voters, others, &set(lost))
        };
        let gone = [2, 3, 4];
        asked(&all, &three_are_gone(), &gone).unwrap();
        let why = |result: Result<(), OverrideError>| result.unwrap_err().to_string();
        assert!(
            why(asked(&all, &three_are_gone(), &[2, 3])).contains("a majority of them is left")
        );
        assert!(why(asked(&all, &three_are_gone(), &[0, 2, 3])).contains("node 0 is the one"));
        assert!(why(asked(&all, &three_are_gone(), &[2, 3, 9])).contains("node 9 is no member"));
        assert!(why(asked(&Vec::new(), &three_are_gone(), &gone)).contains("no log"));
        // One set of two has no majority left, which is enough to stop them.
        let both = vec![set(&[0, 1, 2]), set(&[0, 2, 3])];
        asked(&both, &three_are_gone(), &gone).unwrap();
        let with = |changed: Surveyed| {
            let mut others = three_are_gone();
            others.retain(|other| other.node != changed.node);
            others.push(changed);
            others
        };
        let said = why(asked(&all, &with(other(3, 2, 9, &[])), &gone));
        assert!(said.contains("node 3 is heard by node 0"), "{said}");
        let said = why(asked(&all, &with(other(1, 1, 8, &[0, 4])), &gone));
        assert!(said.contains("node 4 is heard by node 1"), "{said}");
        let said = why(asked(&all, &with(other(1, 6, 8, &[])), &gone));
        assert!(said.contains("node 1 is silent too"), "{said}");
        let said = why(asked(&all, &with(other(1, 0, 9, &[0])), &gone));
        assert!(said.contains("node 1 has heard of more"), "{said}");
        let silent = Surveyed { node: 1, silence: 0, report: None };
        assert!(why(asked(&all, &with(silent), &gone)).contains("node 1 is silent too"));
    }
}
