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
//! about to change, it needs a majority of both sets. A member whose log has failed before it named any asks all others, and names no place.
//! The decider counts only silence in which it ran itself and heard a majority of the voters: of a longer gap between two of its own looks it
//! counts two intervals. A member that has not been heard yet is given longer. During a change of the membership nobody complains, because
//! members that have stopped answer nothing.
//!
//! *Source*: `docs/protocol.md`, "Leases".
//!
//! *Not here*: what a worker does without a lease, in `fence`.

use std::collections::{BTreeMap, BTreeSet};

use gannet_rules::rule;

use crate::decision::Standing;
use crate::lease::{LeaseTerms, RENEWALS_PER_LEASE};

/// The members of the manager's log that vote, or the two sets between which they change. Of each set a majority counts.
pub(crate) type Voters = Vec<BTreeSet<u16>>;

/// No place of the log: a member that names it is told who votes.
const NOWHERE: u64 = u64::MAX;

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
    /// By node and place in the log: what the log makes of the node. The last one counts.
    standings: BTreeMap<(u16, u64), Standing>,
    /// Whether this member hears of removals, if it votes.
    votes: bool,
    /// Renewals since a voter has answered one, if this member votes no more.
    unanswered: u32,
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
            standings: BTreeMap::new(),
            votes: true,
            unanswered: 0,
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

    /// The log has taken the removal of a member, or has let a node in.
    pub(crate) fn stand(&mut self, index: u64, node: u16, standing: Standing) {
        self.standings.insert((node, index), standing);
    }

    /// Whether a process may hold a lease, as far as the log of this member says.
    fn is_member(&self, node: u16, incarnation: u32) -> bool {
        let last = self.standings.range((node, 0)..=(node, u64::MAX)).next_back();
        match last.map(|(_, standing)| *standing) {
            None => true,
            Some(Standing::Removed) => false,
            Some(Standing::Member(member)) => member == incarnation,
        }
    }

    /// A node is a member from now on: nothing is known of how long it was silent.
    pub(crate) fn welcome(&mut self, node: u16) {
        self.silence_ns.remove(&node);
        self.suspected.remove(&node);
    }

    /// The log has given up what it had from this place on.
    pub(crate) fn truncate(&mut self, from: u64) {
        self.standings.retain(|(_, index), _| *index < from);
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

    /// The log begins behind this place, up to which it has made this of nodes.
    pub(crate) fn install(&mut self, index: u64, standings: Vec<(u16, Standing)>) {
        self.standings.retain(|(_, at), _| *at > index);
        let standings = standings.into_iter();
        self.standings.extend(standings.map(|(node, standing)| ((node, index), standing)));
        self.voters.retain(|at, _| *at > index);
    }

    /// Whether this member renews its lease: it knows who votes, or only others can tell it.
    pub(crate) fn renews(&self) -> bool {
        !self.voters.is_empty() || !self.votes
    }

    /// The members that get a renewal which is due now, and the place of the log's members that the renewal names. `others` are the other
    /// members: a member that votes no more asks all of them if it does not know who votes, or if none of those that it knows has answered for a lease.
    pub(crate) fn renew(
        &mut self,
        others: &BTreeSet<u16>,
        now_ns: u64,
    ) -> Option<(u64, BTreeSet<u16>)> {
        self.renews_at_ns = now_ns + self.terms.renewal_ns();
        if !self.votes {
            self.unanswered += 1;
            if self.unanswered > RENEWALS_PER_LEASE {
                self.unanswered = 0;
                self.voters.clear();
                self.granted.clear();
            }
        }
        match self.voters() {
            Some((index, voters)) => Some((index, voters.iter().flatten().copied().collect())),
            None => (!self.votes).then(|| (NOWHERE, others.clone())),
        }
    }

    /// The voters at the last place of the log, if a renewal names another place.
    pub(crate) fn other_voters(&self, index: u64) -> Option<(u64, Voters)> {
        let (present, voters) = self.voters()?;
        (self.votes && present != index).then(|| (present, voters.clone()))
    }

    /// Another member has told who votes. A member with a log of its own hears of that by the log.
    pub(crate) fn hear_voters(&mut self, index: u64, voters: Voters) {
        if !self.votes && self.voters().is_none_or(|(present, _)| present != index) {
            self.voters.clear();
            self.set_voters(index, voters);
            self.unanswered = 0;
        }
    }

    /// Takes the renewal of a member, whose complaints it has. Whether it is granted.
    pub(crate) fn grant(
        &mut self,
        (from, incarnation): (u16, u32),
        (index, complaints): (u64, &[u16]),
        now_ns: u64,
    ) -> bool {
        self.silence_ns.insert(from, 0);
        self.suspected.remove(&from);
        for accused in complaints.iter().filter(|_| !self.is_changing && rule!(COMPLAINTS)) {
            let (_, last) = self.complaints.entry((from, *accused)).or_insert((now_ns, now_ns));
            *last = now_ns;
        }
        let Some((present, voters)) = self.voters() else { return false };
        let votes = self.votes && voters.iter().any(|set| set.contains(&self.node));
        votes && present == index && self.is_member(from, incarnation)
    }

    /// A voter has granted a renewal of this member; until when the lease is held if that is known now.
    pub(crate) fn granted(&mut self, voter: u16, (index, sent_ns): (u64, u64)) -> Option<u64> {
        if self.voters()?.0 != index {
            return None;
        }
        self.unanswered = 0;
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

    /// The members that are suspected now.
    pub(crate) fn suspected(&self) -> BTreeSet<u16> {
        self.suspected.clone()
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
mod tests;
