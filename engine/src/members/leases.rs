//! The leases of members, as one of them takes part in them: it renews its own, grants those of others if it votes, and suspects those
//! that are silent if it decides.
//!
//! ```text
//! every member   Renew(sent at, members of the manager's log, whom it complains about) ──▶ each voter
//! voter          refuses a member whose removal is in its log, and who names other members of the log ── Granted(sent at) ──▶
//! decider        a member that has sent nothing for L, or that others complain about ──▶ Lost
//! ```
//! A member complains about another that answers no requests, although its own lease is held: if the two cannot reach each other, both
//! leases may be well. Of two that complain about each other one has to go.
//!
//! *Invariants*: a renewal counts from when it was sent, and names the latest members of the manager's log that its sender knows. If these are
//! about to change, it needs a majority of both sets. The decider counts only silence in which it ran itself and heard a majority of the voters:
//! of a longer gap between two of its own looks it counts two intervals. A member that has not been heard yet is given longer. During a
//! change of the membership nobody complains, because members that have stopped answer nothing.
//!
//! *Source*: `docs/protocol.md`, "Leases".
//!
//! *Not here*: what a worker does without a lease, in `fence`.

use std::collections::{BTreeMap, BTreeSet};

use crate::lease::LeaseTerms;

/// The members of the manager's log that vote, or the two sets between which they change. Of each set a majority counts.
pub(crate) type Voters = Vec<BTreeSet<u16>>;

/// See the module's text.
pub(crate) struct Leases {
    pub(crate) terms: LeaseTerms,
    node: u16,
    /// By their place in the log; the last ones count.
    voters: BTreeMap<u64, Voters>,
    /// Renewals are sent from then on.
    pub(crate) renews_at_ns: u64,
    /// By voter: when the newest renewal was sent that it has granted.
    granted: BTreeMap<u16, u64>,
    /// Members whose removal the log has taken, with its place there.
    removed: BTreeSet<(u64, u16)>,
    /// Whether this member hears of removals, if it votes.
    votes: bool,
    /// Whether this member decides.
    decides: bool,
    looked_at_ns: u64,
    /// By member: how long it has sent nothing; one that has never sent anything counts from less than nothing.
    silence_ns: BTreeMap<u16, i64>,
    /// Members that are suspected.
    suspected: BTreeSet<u16>,
    /// Whether the membership changes.
    is_changing: bool,
    /// By whom and about whom there are complaints, with the times of the first and the last.
    complaints: BTreeMap<(u16, u16), (u64, u64)>,
}

impl Leases {
    pub(crate) fn new(node: u16, terms: LeaseTerms) -> Self {
        Self {
            terms,
            node,
            voters: BTreeMap::new(),
            renews_at_ns: 0,
            granted: BTreeMap::new(),
            removed: BTreeSet::new(),
            votes: true,
            decides: false,
            looked_at_ns: 0,
            silence_ns: BTreeMap::new(),
            suspected: BTreeSet::new(),
            is_changing: false,
            complaints: BTreeMap::new(),
        }
    }

    /// These vote from now on, as the log has taken it.
    pub(crate) fn set_voters(&mut self, index: u64, voters: Voters) {
        self.granted.clear();
        self.voters.insert(index, voters);
    }

    fn voters(&self) -> Option<(u64, &Voters)> {
        self.voters.last_key_value().map(|(index, voters)| (*index, voters))
    }

    /// The log has taken the removal of a member.
    pub(crate) fn remove(&mut self, index: u64, node: u16) {
        self.removed.insert((index, node));
    }

    /// The log has given up what it had from this place on.
    pub(crate) fn truncate(&mut self, from: u64) {
        self.removed.split_off(&(from, 0));
        if !self.voters.split_off(&from).is_empty() {
            self.granted.clear();
        }
    }

    /// This member grants nothing any more: it does not hear of removals.
    pub(crate) fn vote_no_more(&mut self) {
        self.votes = false;
    }

    /// Whether this member decides from now on.
    pub(crate) fn set_decides(&mut self, decides: bool, now_ns: u64) {
        self.decides = decides;
        self.looked_at_ns = now_ns;
        self.silence_ns.values_mut().for_each(|silence_ns| *silence_ns = 0.min(*silence_ns));
        self.suspected.clear();
        self.complaints.clear();
    }

    /// Whether the membership changes now.
    pub(crate) fn set_changing(&mut self, is_changing: bool) {
        if std::mem::replace(&mut self.is_changing, is_changing) != is_changing {
            self.complaints.clear();
        }
    }

    /// The log begins behind this place, up to which these members were removed.
    pub(crate) fn install(&mut self, index: u64, removed: Vec<u16>) {
        self.removed.retain(|(at, _)| *at > index);
        self.removed.extend(removed.into_iter().map(|node| (index, node)));
        self.voters.retain(|at, _| *at > index);
    }

    /// Whether it is known who votes.
    pub(crate) fn has_voters(&self) -> bool {
        !self.voters.is_empty()
    }

    /// Whom a renewal that is due now goes to, and the place of the log's members that it names.
    pub(crate) fn renew(&mut self, now_ns: u64) -> Option<(u64, BTreeSet<u16>)> {
        self.renews_at_ns = now_ns + self.terms.renewal_ns();
        let (index, voters) = self.voters()?;
        Some((index, voters.iter().flatten().copied().collect()))
    }

    /// Takes the renewal of a member, whose complaints it has. Whether it is granted.
    pub(crate) fn grant(
        &mut self,
        from: u16,
        (index, complaints): (u64, &[u16]),
        now_ns: u64,
    ) -> bool {
        self.silence_ns.insert(from, 0);
        self.suspected.remove(&from);
        for accused in complaints.iter().filter(|_| !self.is_changing) {
            let (_, last) = self.complaints.entry((from, *accused)).or_insert((now_ns, now_ns));
            *last = now_ns;
        }
        let Some((present, voters)) = self.voters() else { return false };
        let votes = self.votes && voters.iter().any(|set| set.contains(&self.node));
        votes && present == index && self.removed.iter().all(|(_, removed)| *removed != from)
    }

    /// A voter has granted a renewal of this member; until when the lease is held if that is known now.
    pub(crate) fn granted(&mut self, voter: u16, (index, sent_ns): (u64, u64)) -> Option<u64> {
        if self.voters()?.0 != index {
            return None;
        }
        let newest = self.granted.entry(voter).or_default();
        *newest = sent_ns.max(*newest);
        let (_, voters) = self.voters()?;
        // By each set: the newest renewal that a majority has granted.
        let of_majority = |set: &BTreeSet<u16>| {
            let sent = set.iter().filter_map(|voter| self.granted.get(voter));
            let mut sent: Vec<_> = sent.copied().collect();
            sent.sort_unstable_by(|a, b| b.cmp(a));
            sent.get(set.len() / 2).copied()
        };
        let of_all = voters.iter().map(of_majority).collect::<Option<Vec<_>>>()?;
        Some(of_all.into_iter().min()? + self.terms.held_ns())
    }

    /// Of these members and this one, those that this one suspects from now on, if it decides, and why.
    pub(crate) fn suspects(
        &mut self,
        others: &BTreeSet<u16>,
        now_ns: u64,
    ) -> BTreeMap<u16, &'static str> {
        let interval_ns = self.terms.renewal_ns();
        let passed_ns = now_ns.saturating_sub(self.looked_at_ns).min(2 * interval_ns);
        self.looked_at_ns = now_ns;
        if !self.decides {
            return BTreeMap::new();
        }
        let hears_majority = self.hears_majority(others);
        let first_ns = -signed(self.terms.step_ns());
        let mut suspects = BTreeMap::new();
        for node in others {
            let silence_ns = self.silence_ns.entry(*node).or_insert(first_ns);
            // At first all voters are as if they had just been heard.
            if hears_majority {
                *silence_ns += signed(passed_ns);
            } else {
                *silence_ns = (*silence_ns + signed(passed_ns)).min(signed(self.terms.reach_ns()));
            }
            if *silence_ns >= signed(self.terms.silence_ns()) && self.suspected.insert(*node) {
                suspects.insert(*node, "is silent");
            }
        }
        if suspects.is_empty() && hears_majority {
            let accused = self.accused(others, now_ns);
            suspects.extend(accused.map(|node| (node, "cannot exchange requests with others")));
        }
        suspects
    }

    /// Whether a majority of the voters was heard lately. A voter that is no member any more is not heard.
    fn hears_majority(&self, others: &BTreeSet<u16>) -> bool {
        let hears = |voter: &&u16| {
            **voter == self.node || (others.contains(*voter) && !self.is_silent(**voter))
        };
        let majority = |set: &BTreeSet<u16>| 2 * set.iter().filter(hears).count() > set.len();
        self.voters().is_some_and(|(_, voters)| voters.iter().all(majority))
    }

    fn is_silent(&self, node: u16) -> bool {
        let silence_ns = self.silence_ns.get(&node).copied().unwrap_or(0);
        silence_ns >= signed(self.terms.reach_ns())
    }

    /// The member that has to go because of complaints: the one that shares complaints with most others. Of two it is the one with the
    /// greater number, and this one only if it shares more complaints than any other.
    fn accused(&mut self, others: &BTreeSet<u16>, now_ns: u64) -> Option<u16> {
        let counts_ns = self.terms.complaint_counts_ns();
        let is_there = |node: &u16| others.contains(node) || *node == self.node;
        let silent: BTreeSet<_> =
            others.iter().copied().filter(|node| self.is_silent(*node)).collect();
        self.complaints.retain(|(from, about), (_, last_ns)| {
            let both = [from, about].into_iter();
            let are_there =
                both.clone().all(is_there) && !both.into_iter().any(|it| silent.contains(it));
            are_there && now_ns.saturating_sub(*last_ns) < counts_ns
        });
        // A single complaint may be about what has passed.
        let lasts_ns = 2 * self.terms.renewal_ns();
        let is_ripe = |(first_ns, last_ns): &(u64, u64)| last_ns - first_ns >= lasts_ns;
        if !self.complaints.values().any(is_ripe) {
            return None;
        }
        let mut pairs = BTreeSet::new();
        for (from, about) in self.complaints.keys() {
            pairs.extend([(*from, *about), (*about, *from)]);
        }
        self.complaints.clear();
        let troubles = |node: u16| pairs.iter().filter(|(one, _)| *one == node).count();
        let accused = others.iter().copied().max_by_key(|node| (troubles(*node), *node));
        let accused = accused.filter(|node| troubles(*node) > 0)?;
        Some(if troubles(self.node) > troubles(accused) { self.node } else { accused })
    }
}

/// A time as a number that may fall below zero.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: u64 = 1_000_000;

    fn leases(node: u16, sets: &[&[u16]]) -> Leases {
        let mut leases = Leases::new(node, LeaseTerms::new(Duration::from_millis(100)));
        let sets = sets.iter().map(|set| set.iter().copied().collect()).collect();
        leases.set_voters(7, sets);
        leases
    }

    #[test]
    fn a_lease_counts_from_the_newest_renewal_that_a_majority_has_granted() {
        let mut holder = leases(3, &[&[0, 1, 2]]);
        assert_eq!(holder.granted(0, (7, 50 * MS)), None);
        assert_eq!(holder.granted(1, (6, 50 * MS)), None, "of other members of the log");
        assert_eq!(holder.granted(1, (7, 20 * MS)), Some(110 * MS));
        assert_eq!(holder.granted(2, (7, 70 * MS)), Some(140 * MS));
        assert_eq!(holder.granted(2, (7, 10 * MS)), Some(140 * MS), "late");
        // While the members of the log change, both sets count.
        let mut holder = leases(3, &[&[0, 1, 2], &[0, 3, 4]]);
        for (voter, until) in [(0, None), (1, None), (3, Some(100 * MS))] {
            assert_eq!(holder.granted(voter, (7, 10 * MS)), until);
        }
    }

    #[test]
    fn a_voter_grants_nothing_to_a_member_whose_removal_its_log_has() {
        let mut voter = leases(1, &[&[0, 1, 2]]);
        assert!(voter.grant(3, (7, &[]), 0));
        assert!(!voter.grant(3, (6, &[]), 0), "it names other members of the log");
        voter.remove(12, 3);
        assert!(!voter.grant(3, (7, &[]), 0) && voter.grant(2, (7, &[]), 0));
        voter.truncate(12);
        assert!(voter.grant(3, (7, &[]), 0));
        assert!(!leases(4, &[&[0, 1, 2]]).grant(3, (7, &[]), 0), "it does not vote");
    }

    #[test]
    fn a_decider_counts_only_silence_while_it_runs() {
        let mut decider = leases(0, &[&[0]]);
        let others = BTreeSet::from([1, 2]);
        assert!(decider.suspects(&others, 1_000 * MS).is_empty(), "it does not decide");
        others.iter().for_each(|node| assert!(decider.grant(*node, (7, &[]), 1_000 * MS)));
        decider.set_decides(true, 1_000 * MS);
        for now in (1_020..1_100).step_by(20) {
            assert!(decider.suspects(&others, now * MS).is_empty());
        }
        assert!(decider.grant(2, (7, &[]), 1_090 * MS));
        // It was not there for a second, of which 40 ms count: node 1 is silent for 120, node 2 for 40.
        assert!(decider.suspects(&others, 2_090 * MS).keys().eq([&1]));
        assert!(decider.suspects(&others, 2_110 * MS).is_empty(), "once");
        decider.grant(1, (7, &[]), 2_110 * MS);
        decider.grant(2, (7, &[]), 2_110 * MS);
        assert!(decider.suspects(&others, 2_130 * MS).is_empty());
    }

    #[test]
    fn a_decider_that_hears_no_majority_suspects_nobody() {
        let others = BTreeSet::from([1, 2]);
        let mut decider = leases(0, &[&[0, 1, 2]]);
        others.iter().for_each(|node| assert!(decider.grant(*node, (7, &[]), 0)));
        decider.set_decides(true, 0);
        for now in (20..2_000).step_by(20) {
            assert!(decider.suspects(&others, now * MS).is_empty(), "{now}");
        }
        // One of two is heard again: the other one is suspected after a while.
        let mut suspected = 0;
        for now in (2_000..2_200).step_by(20) {
            decider.grant(1, (7, &[]), now * MS);
            suspected +=
                decider.suspects(&others, now * MS).keys().filter(|node| **node == 2).count();
        }
        assert_eq!(suspected, 1);
    }

    #[test]
    fn a_voter_that_is_no_member_any_more_is_not_heard() {
        let mut decider = leases(0, &[&[0, 1, 2]]);
        [1, 2].iter().for_each(|node| assert!(decider.grant(*node, (7, &[]), 0)));
        decider.set_decides(true, 0);
        // Node 1 has ended a moment after it was heard, and now node 2 is silent.
        for now in (20..2_000).step_by(20) {
            assert!(decider.suspects(&BTreeSet::from([2]), now * MS).is_empty(), "{now}");
        }
    }

    #[test]
    fn a_member_that_was_never_heard_is_given_longer() {
        let mut decider = leases(0, &[&[0]]);
        decider.set_decides(true, 0);
        let first = (0..10_000)
            .step_by(20)
            .find(|now| !decider.suspects(&BTreeSet::from([1]), now * MS).is_empty());
        assert_eq!(first, Some(5_100));
    }

    #[test]
    fn of_members_that_do_not_get_on_one_has_to_go() {
        let others = BTreeSet::from([1, 2, 3]);
        let accused = |complaints: &[(u16, u16)]| {
            let mut decider = leases(0, &[&[0]]);
            others.iter().for_each(|node| assert!(decider.grant(*node, (7, &[]), 0)));
            decider.set_decides(true, 0);
            let mut accused = BTreeMap::new();
            for now in [0, 20, 40] {
                assert!(accused.is_empty(), "others may complain as well");
                for node in 0..4 {
                    let about = complaints.iter().filter(|(from, _)| *from == node);
                    let about: Vec<_> = about.map(|(_, about)| *about).collect();
                    decider.grant(node, (7, &about), now * MS);
                }
                accused = decider.suspects(&others, now * MS);
            }
            accused.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(accused(&[]), []);
        assert_eq!(accused(&[(2, 1)]), [2], "of two the greater number");
        assert_eq!(accused(&[(2, 1), (3, 1)]), [1], "most complain about it");
        assert_eq!(accused(&[(3, 0)]), [3], "of two the decider stays");
        assert_eq!(accused(&[(3, 0), (0, 2)]), [0], "the decider is at fault");
    }
}
