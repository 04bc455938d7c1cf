//! The decider: the member that decides on changes of the configuration for as long as it leads the manager's replicas.
//!
//! ```text
//! lost members          ──▶ revoked, one after the other: MembershipChange
//! nodes that come back  ──▶ joined: a round in which the node takes part
//! proposals             ──▶ prepared by all members ─▶ decided ─▶ adopted by all members ─▶ answered
//! ```
//! A decision is made when the manager's log has it. A new decider knows all decisions, and no round: it brings all members to what is
//! decided, and proposals that were not answered come again.
//!
//! *Invariants*: one decision is under way at a time. A loss goes before all proposals. Two deciders give no two rounds the same number. An
//! epoch begins when the lease of each removed member has run out, or the member has given it up. The last copy of a
//! partition, and the last log replica, are not removed because of a suspicion.
//!
//! *Not here*: the members' part, in `change`; the steps of a change of the membership, in `membership_change`; where copies and primaries
//! are to be, in `placement`.

mod placing;
mod proposals;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gannet_rules::rule;

use crate::change_message::{Addressed, ChangeMessage, Loss, wrapped};
use crate::change_steps::DeciderSteps;
use crate::configuration::{Change, ChangeError, Configuration, Phase};
use crate::decision::{Decided, Decision};
use crate::lease::LeaseTerms;
use crate::membership_change::{MembershipChange, MembershipMessage, Progress};
use crate::newcomers::Newcomers;
use crate::placement::CopiedPartition;

/// Between two looks at the members' steps in a change of the membership.
const LOOK_NS: u64 = 200_000_000;
/// Between two looks a process that runs takes no longer.
const PAUSE_NS: u64 = 1_000_000_000;
/// A node that comes back has made its part of all tables, and has started its workers, in this time.
const JOIN_NS: u64 = 30_000_000_000;
/// From a hand-over whose lock holders have not ended in time to the next one.
const HAND_OVER_AGAIN_NS: u64 = 1_000_000_000;
/// Bits of the number of a round or of a change of the membership within its term.
const ROUNDS_BITS: u32 = 32;

/// The term of the decider that has given a round or a change of the membership this number.
pub(crate) fn term_of(number: u64) -> u64 {
    number >> ROUNDS_BITS
}

/// See the module's text.
pub(crate) struct Decider {
    /// No other decider has it. Deciders without a log have 0.
    term: u64,
    /// By node: the number of its last proposal.
    last: Vec<u64>,
    /// Those that wait for their turn.
    proposals: VecDeque<(usize, u64, Change)>,
    /// Lost members that wait to be revoked.
    losses: BTreeMap<u16, Loss>,
    newcomers: Newcomers,
    /// Suspected members without which the cluster could not go on.
    waits_for: BTreeSet<u16>,
    /// Members that are silent now. Operators may remove these alone.
    pub(super) silent: BTreeSet<u16>,
    /// The operator's removal that is being decided.
    removing_for: Option<(usize, u64)>,
    /// Members have refused to learn partitions: none is to until then.
    learns_at_ns: u64,
    /// The times of leases, if members need them.
    terms: Option<LeaseTerms>,
    now_ns: u64,
    /// How the member was lost whose removal is being decided.
    removing: Option<Loss>,
    /// When the leases of the removed members are over.
    leases_over_ns: u64,
    /// All members are flushed.
    is_flushed: bool,
    /// Members that have not finished the step of the change of the membership by then are suspected.
    step_until_ns: u64,
    /// Number of the last round or change of the membership.
    rounds: u64,
    round: Option<Round>,
    /// The change of the membership that is under way.
    membership: Option<MembershipChange>,
    /// Proposers whose changes are made when that has ended.
    made: Vec<(usize, u64)>,
    /// Members that have not come to what was decided before.
    missing: BTreeSet<usize>,
    /// When copies are made that are missing, or backups become primaries, as far as this decider knows.
    copies_due_ns: Option<u64>,
    /// The version of the configuration in which all copies and primaries are where they are to be, if they are.
    placed_since: Option<u64>,
    /// What learners have copied: the partition, the node, and since when it learns.
    copied: BTreeSet<CopiedPartition>,
    /// A decision is on its way to the log.
    is_deciding: bool,
    said: Vec<Addressed>,
    decisions: Vec<Decision>,
    /// Why the cluster cannot go on.
    end: Option<String>,
    steps: DeciderSteps,
}

/// What takes a member out that was lost so: where it had the only copy of a partition, what is certain to have ended loses it.
///
/// # Errors
/// Why the cluster cannot go on without the member.
fn removal(node: u16, how: Loss, configuration: &Configuration) -> Result<Change, ChangeError> {
    let revoke = Change::Revoke(node);
    match configuration.after(&revoke) {
        Ok(_) => Ok(revoke),
        Err(ChangeError::LastCopy { .. }) if how != Loss::Silent => {
            let lose = Change::Lose(node);
            configuration.after(&lose).map(|_| lose)
        }
        Err(error) => Err(error),
    }
}

/// The change that is under way, other than a removal.
struct Round {
    /// None if the decider itself wants it.
    proposer: Option<(usize, u64)>,
    change: Change,
    /// Members that have not answered.
    missing: BTreeSet<usize>,
    refusal: Option<ChangeError>,
    is_decided: bool,
    /// A node that comes back is to have prepared by then.
    until_ns: u64,
}

impl Round {
    /// The node that the change makes a member, before that is decided.
    fn newcomer(&self) -> Option<u16> {
        match self.change {
            Change::Join { node, .. } if !self.is_decided => Some(node),
            _ => None,
        }
    }
}

fn members(configuration: &Configuration) -> BTreeSet<usize> {
    configuration.member_numbers().map(usize::from).collect()
}

impl Decider {
    /// Of a cluster that nobody has decided on before.
    pub(crate) fn first(decided: &Decided, terms: Option<LeaseTerms>) -> Self {
        Self {
            term: 0,
            last: vec![0; decided.configuration.nodes()],
            proposals: VecDeque::new(),
            losses: BTreeMap::new(),
            newcomers: Newcomers::default(),
            waits_for: BTreeSet::new(),
            silent: BTreeSet::new(),
            removing_for: None,
            learns_at_ns: 0,
            terms,
            now_ns: 0,
            removing: None,
            leases_over_ns: 0,
            is_flushed: false,
            step_until_ns: 0,
            rounds: 0,
            round: None,
            membership: None,
            made: Vec::new(),
            missing: BTreeSet::new(),
            copies_due_ns: None,
            placed_since: None,
            copied: BTreeSet::new(),
            is_deciding: false,
            said: Vec::new(),
            decisions: Vec::new(),
            end: None,
            steps: DeciderSteps::default(),
        }
    }

    /// Of a cluster on which others have decided before; no other has this term.
    pub(crate) fn next(
        (term, now_ns): (u64, u64),
        decided: &Decided,
        terms: Option<LeaseTerms>,
    ) -> Self {
        let rounds = term << ROUNDS_BITS;
        let mut decider = Self { term, rounds, now_ns, ..Self::first(decided, terms) };
        let all = members(&decided.configuration);
        decider.said.extend(all.iter().map(|member| (*member, ChangeMessage::Leads { term })));
        match decided.configuration.phase {
            Phase::Preparing => {
                // It is not known when the removal was decided.
                decider.outlast_lease();
                decider.steps.goes_on(decided.configuration.epoch, now_ns);
                decider.change_membership(&decided.configuration);
            }
            Phase::Active => {
                let configuration = Box::new((*decided.configuration).clone());
                let sync = ChangeMessage::Sync { term, configuration };
                decider.said.extend(all.iter().map(|member| (*member, sync.clone())));
                decider.missing = all;
            }
        }
        decider
    }

    /// The term in which it decides.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// What there is to say, and to decide.
    pub(crate) fn take(&mut self) -> (Vec<Addressed>, Vec<Decision>) {
        (std::mem::take(&mut self.said), std::mem::take(&mut self.decisions))
    }

    /// Why the cluster cannot go on, once.
    pub(crate) fn take_end(&mut self) -> Option<String> {
        self.end.take()
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.round.is_none() && self.membership.is_none() && self.proposals.is_empty()
    }

    /// Takes a message of a member.
    pub(crate) fn receive(&mut self, from: usize, message: ChangeMessage, decided: &Decided) {
        let is_present = |round: u64| round == self.rounds;
        match (message, &mut self.round) {
            (ChangeMessage::Propose { number, change }, _) if number > self.last[from] => {
                self.last[from] = number;
                self.proposals.push_back((from, number, change));
            }
            (ChangeMessage::Prepared { round, refusal }, Some(open))
                if is_present(round) && !open.is_decided =>
            {
                if open.missing.remove(&from)
                    && let Some(reason) = refusal
                {
                    open.refusal.get_or_insert(ChangeError::Refused { node: from, reason });
                }
            }
            (ChangeMessage::Adopted { round }, Some(open))
                if is_present(round) && open.is_decided =>
            {
                open.missing.remove(&from);
            }
            (ChangeMessage::Synced { term }, _) if term == self.term => {
                self.missing.remove(&from);
            }
            (ChangeMessage::Lost { node, incarnation, how }, _) => {
                if decided.configuration.has_member(node, incarnation) {
                    let known = self.losses.entry(node).or_insert(how);
                    *known = how.max(*known);
                } else {
                    self.newcomer_lost(node, incarnation);
                }
            }
            (ChangeMessage::Came { node, entry }, _) => {
                self.newcomers.came(from, node, entry);
            }
            (ChangeMessage::Membership(message), _) => self.follow_membership(from, message),
            (ChangeMessage::Copied { partition, since }, _) => {
                if let Ok(node) = u16::try_from(from) {
                    self.copied.insert((partition, node, since));
                }
            }
            // What has come before, and answers to what has ended.
            _ => {}
        }
        self.go_on(decided);
    }

    /// A node that wanted to come back has ended.
    fn newcomer_lost(&mut self, node: u16, incarnation: u32) {
        self.newcomers.forget(node, incarnation);
        let is_joining = |round: &Round| matches!(&round.change, Change::Join { entry, .. } if entry.incarnation == incarnation);
        if self.round.as_ref().is_some_and(is_joining) {
            self.refuse_newcomer(node, "it has ended");
        }
    }

    /// Gives up the round that makes a node a member, if that is not decided.
    fn refuse_newcomer(&mut self, node: u16, reason: &str) {
        let is_deciding = self.is_deciding;
        let of_node = |round: &&mut Round| round.newcomer() == Some(node) && !is_deciding;
        if let Some(round) = self.round.as_mut().filter(of_node) {
            let (node, reason) = (usize::from(node), reason.to_owned());
            round.missing.remove(&node);
            round.refusal.get_or_insert(ChangeError::Refused { node, reason });
        }
    }

    /// These members are silent now.
    pub(crate) fn set_silent(&mut self, silent: &BTreeSet<u16>) {
        self.silent.clone_from(silent);
    }

    /// Whether nodes may come back from now on. Whether that is so since this call.
    pub(crate) fn set_admits(&mut self, admits: bool) -> bool {
        !std::mem::replace(&mut self.newcomers.are_admitted, admits) && admits
    }

    /// The decision that was under way is made, or is none.
    pub(crate) fn made(
        &mut self,
        decision: &Decision,
        made: &Result<(), ChangeError>,
        decided: &Decided,
    ) {
        self.is_deciding = false;
        let how = self.removing.take();
        if let Some((node, number)) = self.removing_for.take() {
            // An operator's.
            match made {
                Ok(()) => self.made.push((node, number)),
                Err(error) => {
                    let result = Err(error.clone());
                    self.said.push((node, ChangeMessage::Answer { number, result }));
                }
            }
        }
        // The decision is none; the loss stands.
        if let (Some(node), Err(_), Some(how)) = (decision.removal(), made, how) {
            self.losses.insert(node, how);
        }
        if made.is_ok() {
            self.newcomers.follow(&decided.configuration, self.now_ns);
            match decision.change {
                Change::Revoke(node) | Change::Lose(node) => {
                    self.copies_due_ns = None;
                    if how != Some(Loss::Left) {
                        self.outlast_lease();
                    }
                    if let Change::Lose(_) = decision.change {
                        let lost = decided.configuration.lost_partitions().count();
                        tracing::error!(
                            "{lost} partitions are lost: node {node} had the last copy of some of them; start the cluster again"
                        );
                    }
                    let epoch = decided.configuration.epoch;
                    self.steps.removal_decided(node, how, epoch, self.now_ns);
                    self.stop_round();
                    self.change_membership(&decided.configuration);
                }
                Change::Activate => {
                    self.begin_step();
                    self.steps.active(self.now_ns);
                    self.activate(&decided.configuration);
                }
                Change::Join { node, .. } => {
                    self.last[usize::from(node)] = 0;
                    self.proposals.retain(|(proposer, ..)| *proposer != usize::from(node));
                    self.copies_due_ns = None;
                    self.have_adopted(&decided.configuration);
                }
                Change::Form { .. }
                | Change::Create(_)
                | Change::Leave(_)
                | Change::Remove(_)
                | Change::Learn(_)
                | Change::Fill
                | Change::Learned { .. }
                | Change::Freed(_)
                | Change::Dismiss(_) => self.have_adopted(&decided.configuration),
                Change::HandOver(ref primaries) => {
                    self.copies_due_ns = None;
                    self.steps.hand_over_decided(primaries.len(), self.now_ns);
                    self.have_adopted(&decided.configuration);
                }
                Change::Part(_) | Change::Drain { .. } | Change::GiveUp(_) => {
                    self.copies_due_ns = None;
                    self.have_adopted(&decided.configuration);
                }
            }
        }
        self.go_on(decided);
    }

    /// Has all members adopt the change of the round, which is decided.
    fn have_adopted(&mut self, configuration: &Configuration) {
        if let Some(round) = &mut self.round {
            round.is_decided = true;
            round.missing = members(configuration);
            let decide = ChangeMessage::Decide { round: self.rounds };
            let to_all = round.missing.iter().map(|member| (*member, decide.clone()));
            self.said.extend(to_all);
        }
    }

    /// Has all members begin the epoch.
    fn activate(&mut self, configuration: &Arc<Configuration>) {
        let activate = |change: &mut MembershipChange| change.activate(configuration);
        let said = self.membership.as_mut().map(activate).unwrap_or_default();
        self.said.extend(said.into_iter().map(wrapped));
    }

    /// The next epoch begins when a lease that was granted until now is over.
    fn outlast_lease(&mut self) {
        if let Some(terms) = self.terms.filter(|_| rule!(LEASES_OVER)) {
            self.leases_over_ns = self.now_ns + terms.over_ns();
        }
    }

    /// Whether a change of the membership is under way.
    pub(crate) fn changes_membership(&self) -> bool {
        self.membership.is_some()
    }

    /// It is this time. While a change of the membership is under way, this is told often.
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns);
        if passed_ns > PAUSE_NS {
            // This process was not there, and has not heard what members have said since.
            self.step_until_ns += passed_ns;
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Does what is due. How many members are suspected now.
    pub(crate) fn advance(&mut self, decided: &Decided) -> u64 {
        let mut suspicions = 0;
        if let Some(change) = self.membership.as_ref().filter(|_| self.step_is_over()) {
            let missing: Vec<_> =
                change.missing().filter_map(|node| u16::try_from(node).ok()).collect();
            for node in &missing {
                tracing::warn!(
                    "node {node} does not finish a step of the change of the membership, and is suspected"
                );
            }
            suspicions = missing.len() as u64;
            let suspected = missing.into_iter().map(|node| (node, Loss::Silent));
            let known = std::mem::take(&mut self.losses);
            self.losses = suspected.chain(known).collect();
            self.begin_step();
        }
        let late = self.round.as_ref().filter(|round| self.now_ns >= round.until_ns);
        if let Some(node) = late.and_then(Round::newcomer) {
            self.refuse_newcomer(node, "it has not started in time");
        }
        self.go_on(decided);
        suspicions
    }

    fn step_is_over(&self) -> bool {
        self.terms.is_some() && self.now_ns >= self.step_until_ns
    }

    fn begin_step(&mut self) {
        self.step_until_ns = self.now_ns + self.terms.map_or(0, LeaseTerms::step_ns);
    }

    /// When [`Self::advance`] has something to do.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let leases_over_ns = (self.is_flushed && !self.is_deciding).then_some(self.leases_over_ns);
        let look_ns = self.terms.and(self.membership.as_ref()).map(|_| self.now_ns + LOOK_NS);
        let copies_ns = self.copies_due_ns.into_iter().chain([self.learns_at_ns]);
        let copies_ns = copies_ns.filter(|at_ns| *at_ns > self.now_ns).min();
        let joins = self.round.as_ref().filter(|round| round.newcomer().is_some());
        let joins_ns = joins.map(|round| round.until_ns).filter(|at_ns| *at_ns > self.now_ns);
        let joins_ns = joins_ns.into_iter().chain(self.newcomers.due_ns(self.now_ns));
        leases_over_ns.into_iter().chain(look_ns).chain(copies_ns).chain(joins_ns).min()
    }

    fn decide(&mut self, proposer: Option<(usize, u64)>, change: Change, decided: &Decided) {
        self.is_deciding = true;
        self.steps.decides(self.now_ns);
        let version = decided.configuration.version;
        self.decisions.push(Decision { term: self.term, version, proposer, change });
    }

    /// A member was lost: what is decided all members hear of with the change of the membership, and the rest begins again after it.
    fn stop_round(&mut self) {
        match self.round.take() {
            Some(Round { proposer, is_decided: true, .. }) => self.made.extend(proposer),
            Some(Round { proposer: Some((from, number)), change, .. }) => {
                self.proposals.push_front((from, number, change));
            }
            // What the decider wants it wants again.
            Some(Round { proposer: None, .. }) | None => {}
        }
    }

    /// Prepares the epoch that is decided.
    fn change_membership(&mut self, configuration: &Arc<Configuration>) {
        self.rounds += 1;
        let (change, said) = MembershipChange::begin(Arc::clone(configuration), self.rounds);
        self.is_flushed = false;
        self.begin_step();
        self.said.extend(said.into_iter().map(wrapped));
        self.membership = Some(change);
        self.missing.clear();
    }

    fn follow_membership(&mut self, from: usize, message: MembershipMessage) {
        let Some(change) = &mut self.membership else { return };
        match change.receive(from, message) {
            Progress::Goes(said) => {
                self.said.extend(said.into_iter().map(wrapped));
                self.begin_step();
            }
            Progress::Stopped(said) => {
                self.steps.stopped(change.records(), self.now_ns);
                self.said.extend(said.into_iter().map(wrapped));
                self.begin_step();
            }
            Progress::Flushed => {
                self.steps.flushed(change.records(), self.now_ns);
                self.is_flushed = true;
            }
            Progress::Failed(reason) => self.end = Some(reason),
            Progress::Ended => {
                self.membership = None;
                self.steps.ended(self.now_ns);
                let made = std::mem::take(&mut self.made).into_iter();
                let answer =
                    |(node, number)| (node, ChangeMessage::Answer { number, result: Ok(()) });
                self.said.extend(made.map(answer));
            }
        }
    }

    /// What follows when all have answered, or when there is nothing under way.
    fn go_on(&mut self, decided: &Decided) {
        if self.is_deciding {
            return;
        }
        while let Some((node, how)) = self.losses.pop_first() {
            match removal(node, how, &decided.configuration) {
                Ok(change) => {
                    self.proposals.retain(|(proposer, ..)| *proposer != usize::from(node));
                    self.removing = Some(how);
                    return self.decide(None, change, decided);
                }
                Err(ChangeError::NoSuchMember(_)) => {}
                Err(error) if how == Loss::Silent => self.wait_for(node, &error),
                Err(error) => self.end = Some(error.to_string()),
            }
        }
        if let Some((proposer, change)) = self.next_removal(decided) {
            self.removing_for = Some(proposer);
            return self.decide(None, change, decided);
        }
        // A loss meanwhile is revoked first, and the flush begins again.
        if self.is_flushed && self.now_ns >= self.leases_over_ns {
            self.is_flushed = false;
            self.steps.leases_over(self.now_ns);
            if !rule!(ACTIVATION_DECIDED)
                && let Ok(active) = decided.configuration.after(&Change::Activate)
            {
                self.activate(&Arc::new(active));
            }
            return self.decide(None, Change::Activate, decided);
        }
        if self.membership.is_some() || !self.missing.is_empty() {
            return;
        }
        while !self.is_deciding && self.finish_round(decided) {
            let all = members(&decided.configuration);
            if let Some(change) = self.newcomers.next(&decided.configuration, &all, self.now_ns) {
                self.begin_round(None, change, decided);
            } else if let Some((node, number, change)) = self.proposals.pop_front() {
                self.begin_proposal((node, number), change, decided);
            } else {
                let Some(change) = self.next_step(&decided.configuration) else { return };
                self.begin_round(None, change, decided);
            }
        }
    }

    /// The cluster cannot go on without a member that is suspected.
    fn wait_for(&mut self, node: u16, why: &ChangeError) {
        if self.waits_for.insert(node) {
            tracing::warn!("node {node} is not removed, and is waited for: {why}");
        }
    }

    /// Goes on with the round that is under way, if all have answered. Whether there is none any more.
    fn finish_round(&mut self, decided: &Decided) -> bool {
        let Some(open) = self.round.take_if(|open| open.missing.is_empty()) else {
            return self.round.is_none();
        };
        let Round { proposer, refusal, is_decided, .. } = &open;
        let answer = |result: Result<(), ChangeError>| {
            proposer.map(|(node, number)| (node, ChangeMessage::Answer { number, result }))
        };
        if let Some(error) = refusal {
            let abandon = ChangeMessage::Abandon { round: self.rounds, reason: error.clone() };
            let all = members(&decided.configuration).into_iter();
            self.said.extend(all.map(|member| (member, abandon.clone())));
            self.said.extend(answer(Err(error.clone())));
            self.give_up(&open, error);
        } else if *is_decided {
            self.said.extend(answer(Ok(())));
        } else {
            self.decide(*proposer, open.change.clone(), decided);
            self.round = Some(open);
        }
        self.round.is_none()
    }

    /// The decider's own change of a round was refused.
    fn give_up(&mut self, round: &Round, error: &ChangeError) {
        match (&round.change, round.proposer) {
            (_, Some(_)) => {}
            (Change::Join { node, entry }, None) => {
                tracing::warn!("membership: node {node} does not come back: {error}");
                self.newcomers.forget(*node, entry.incarnation);
                let reason = error.clone();
                self.said.push((
                    usize::from(*node),
                    ChangeMessage::Abandon { round: self.rounds, reason },
                ));
            }
            (Change::HandOver(_), None) => {
                tracing::warn!("membership: primaries are not handed over: {error}");
                self.copies_due_ns = Some(self.now_ns + HAND_OVER_AGAIN_NS);
            }
            (_, None) => {
                tracing::warn!("membership: copies are not made: {error}");
                // After a while there may be room. What needs none goes on.
                let after_ns = self.terms.map_or(0, LeaseTerms::copies_after_ns);
                self.learns_at_ns = self.now_ns + after_ns;
            }
        }
    }

    /// Has all members prepare a change.
    fn begin_round(&mut self, proposer: Option<(usize, u64)>, change: Change, decided: &Decided) {
        self.rounds += 1;
        let mut missing = members(&decided.configuration);
        let prepare = ChangeMessage::Prepare { round: self.rounds, change: change.clone() };
        self.said.extend(missing.iter().map(|member| (*member, prepare.clone())));
        if let Change::Join { node, .. } = &change {
            let node = usize::from(*node);
            missing.insert(node);
            let (round, term) = (self.rounds, self.term);
            let (decided, change) = (Box::new(decided.clone()), change.clone());
            self.said.push((node, ChangeMessage::Leads { term }));
            self.said.push((node, ChangeMessage::Admit { round, decided, change }));
        }
        let (refusal, is_decided, until_ns) = (None, false, self.now_ns + JOIN_NS);
        self.round = Some(Round { proposer, change, missing, refusal, is_decided, until_ns });
    }
}
