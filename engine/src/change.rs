//! Changes of the configuration: any member proposes one, the decider decides, all members prepare before any goes by it. The first change
//! names the members: a process joins by it, and prepares by starting its node.
//!
//! ```text
//! proposer           decider                        each member
//!   Propose ───────────►│── Prepare(change) ────────────►│ makes its part: memory for a table, or says why not
//!                       │◄──────── Prepared ─────────────│
//!                       │   the decision is made         │
//!                       │── Decide, or Abandon ─────────►│ adopts the view; all its workers and coroutines come to it
//!                       │◄──────── Adopted ──────────────│
//!   ◄──── Answer ───────│
//! ```
//! When a member is lost, the decider revokes it (`membership_change`). A change that is under way then is finished if it is decided,
//! and begins again afterwards if it is not.
//!
//! *Invariants*: there is one change at a time, and each has a number that never comes again. A change that one member refuses, no
//! member makes. When a proposer has its answer, every coroutine of every member goes by the change; if the change
//! has added a table, every worker and every later transaction. A message that comes twice counts once.
//!
//! *Not here*: streams and threads, in `members`; what the decider does, in `decider`; how a decision is made that outlives the decider,
//! in crate `manager`.

mod preparing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::change_message::{Addressed, ChangeMessage, Loss, wrapped};
use crate::change_steps::MemberSteps;
use crate::configuration::{Change, ChangeError, Configuration, MemberEntry, Phase};
use crate::decider::{Decider, term_of};
use crate::decision::{Decided, Decision};
use crate::learning::Lesson;
use crate::lease::LeaseTerms;
use crate::membership_change::{Holder, MemberPart, MembershipMessage, Step};
use crate::replica::Replica;

/// The member that decides on the first change.
pub(crate) const FOUNDER: usize = 0;

/// The part of one member in all changes, and the decider's if it decides.
pub(crate) struct Changes<R: Replica> {
    node: usize,
    replica: R,
    /// What this member goes by.
    configuration: Arc<Configuration>,
    /// The last round in which this member was asked to prepare.
    round: u64,
    prepared: Option<(Arc<Configuration>, R::Prepared)>,
    /// The process that is told when what was prepared has no lock holders left, and until when they are waited for.
    handing_over: Option<(usize, u64)>,
    /// The process that is told when all coroutines go by what was adopted, and the message.
    adopting: Option<Addressed>,
    membership: MemberPart,
    /// What is decided, as far as this member has heard of it.
    decided: Decided,
    decider: Option<Decider>,
    /// The decider decides on the first change alone.
    is_founding: bool,
    /// This process came when there was a cluster.
    has_come_back: bool,
    /// The decider, as far as it is known, and its term.
    leader: Option<usize>,
    term: u64,
    /// The term in which this member was last brought to what is decided.
    synced: u64,
    /// Own proposals that are not answered, by number.
    proposals: BTreeMap<u64, Change>,
    /// Members that have ended, and nodes that wanted to come back: with their incarnations.
    lost: BTreeMap<(u16, u32), Loss>,
    /// Nodes that want to come back, with which this member is connected.
    came: BTreeMap<u16, MemberEntry>,
    /// What this member has copied as a learner, and the log does not know yet.
    copied: BTreeSet<Lesson>,
    /// The times of leases, if members need them.
    terms: Option<LeaseTerms>,
    now_ns: u64,
    /// Decisions for the log.
    decisions: Vec<Decision>,
    /// Answers to this member's proposals, by number, until they are taken.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why there was no first change.
    failure: Option<ChangeError>,
    /// Why the cluster cannot go on.
    end: Option<String>,
    steps: MemberSteps,
    /// Members that have not finished a step in time, while this one decided.
    suspicions: u64,
}

impl<R: Replica> Changes<R> {
    pub(crate) fn new(
        node: usize,
        configuration: Arc<Configuration>,
        replica: R,
        terms: Option<LeaseTerms>,
    ) -> Self {
        let decided = Decided::new(Arc::clone(&configuration));
        let decider = (node == FOUNDER).then(|| Decider::first(&decided, terms));
        Self {
            node,
            replica,
            configuration,
            round: 0,
            prepared: None,
            handing_over: None,
            adopting: None,
            membership: MemberPart::default(),
            decided,
            decider,
            is_founding: true,
            has_come_back: false,
            leader: None,
            term: 0,
            synced: 0,
            proposals: BTreeMap::new(),
            lost: BTreeMap::new(),
            came: BTreeMap::new(),
            copied: BTreeSet::new(),
            terms,
            now_ns: 0,
            decisions: Vec::new(),
            answers: BTreeMap::new(),
            failure: None,
            end: None,
            steps: MemberSteps::default(),
            suspicions: 0,
        }
    }

    /// Whether the first change was made.
    pub(crate) fn is_formed(&self) -> bool {
        self.configuration.is_formed()
    }

    /// What this member goes by.
    pub(crate) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The latest configuration that this member knows of.
    fn latest(&self) -> &Configuration {
        let Self { configuration, decided, .. } = self;
        let both = [configuration, &decided.configuration].into_iter();
        both.max_by_key(|configuration| configuration.version).expect("there are two")
    }

    /// Members that have ended, and those that were removed: such a member ends as soon as it hears of that.
    pub(crate) fn lost(&self) -> BTreeSet<u16> {
        let latest = self.latest();
        let lost = self.lost.keys().filter(|(node, it)| latest.has_had(*node, *it));
        lost.copied().chain(latest.removed()).map(|(node, _)| node).collect()
    }

    /// Of them, those whose logs of the membership are lost with them.
    pub(crate) fn lost_for_good(&self) -> BTreeSet<u16> {
        let latest = self.latest();
        self.lost()
            .into_iter()
            .filter(|node| !latest.members[usize::from(*node)].keeps_log)
            .collect()
    }

    /// Members that were removed, as far as this one knows, with their incarnations.
    pub(crate) fn removed(&self) -> BTreeSet<(u16, u32)> {
        self.latest().removed().collect()
    }

    /// The incarnations of members, as far as this one knows.
    pub(crate) fn incarnations(&self) -> BTreeMap<u16, u32> {
        let latest = self.latest();
        let incarnation = |node| latest.members[usize::from(node)].incarnation;
        latest.member_numbers().map(|node| (node, incarnation(node))).collect()
    }

    /// These members are silent, as this one has noticed if it decides.
    pub(crate) fn set_silent(&mut self, silent: &BTreeSet<u16>) {
        self.decider.iter_mut().for_each(|decider| decider.set_silent(silent));
    }

    /// Whether nodes may come back, as far as the log's voters are concerned, which this member may lead. What there is to say to others.
    pub(crate) fn set_admits(&mut self, admits: bool) -> Vec<Addressed> {
        match self.decider.as_mut().is_some_and(|decider| decider.set_admits(admits)) {
            true => self.poll(),
            false => Vec::new(),
        }
    }

    /// Whether this member has heard of all that its log had when it was let in.
    pub(crate) fn knows_log(&self) -> bool {
        let own = self.configuration.members.get(self.node).map(|own| own.incarnation);
        let known = self.decided.configuration.members.get(self.node).map(|own| own.incarnation);
        !self.has_come_back || own == known
    }

    /// Whether this process was let in by a cluster that was there.
    pub(crate) fn has_come_back(&self) -> bool {
        self.has_come_back
    }

    /// Whether the membership changes, as far as this member knows.
    pub(crate) fn is_changing(&self) -> bool {
        let decides_change = self.decider.as_ref().is_some_and(Decider::changes_membership);
        self.configuration.phase == Phase::Preparing || decides_change
    }

    /// How often this member has suspected another that did not finish a step in time.
    pub(crate) fn suspicions(&self) -> u64 {
        self.suspicions
    }

    /// It is this time, on a clock that only goes forward.
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.decider.iter_mut().for_each(|decider| decider.set_time(now_ns));
    }

    /// When [`Self::poll`] has something to do without workers.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.decider.as_ref().and_then(Decider::next_deadline_ns)
    }

    /// Why there will be no first change.
    pub(crate) fn take_failure(&mut self) -> Option<ChangeError> {
        self.failure.take()
    }

    /// Why the cluster cannot go on, once.
    pub(crate) fn take_end(&mut self) -> Option<String> {
        self.end.take()
    }

    /// Decisions for the log, which this member leads.
    pub(crate) fn take_decisions(&mut self) -> Vec<Decision> {
        std::mem::take(&mut self.decisions)
    }

    /// The answers that have come since the last call.
    pub(crate) fn take_answers(&mut self) -> BTreeMap<u64, Result<(), ChangeError>> {
        std::mem::take(&mut self.answers)
    }

    /// Whether workers of this member are waited for: [`Self::poll`] is to be called until they have come.
    pub(crate) fn awaits_workers(&self) -> bool {
        let waits = self.adopting.is_some() || self.handing_over.is_some();
        waits || self.membership.awaits_workers()
    }

    /// What there is to say to others since the workers, or the time, have gone on.
    pub(crate) fn poll(&mut self) -> Vec<Addressed> {
        if let Some(decider) = &mut self.decider {
            self.suspicions += decider.advance(&self.decided);
        }
        let mut said = Vec::new();
        said.extend(self.go_on_handing_over());
        said.extend(self.adopting.take_if(|_| self.replica.has_adopted()));
        said.extend(self.membership.poll(&mut self.replica).map(wrapped));
        self.deliver(said)
    }

    /// Takes a message of a member, perhaps of this one; what is to be sent to others.
    pub(crate) fn receive(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        let said = self.step(from, message);
        self.deliver(said)
    }

    /// This member leads the manager's replicas, in a term that no other leads in, and has heard of all decisions.
    pub(crate) fn leads(&mut self, term: u64) -> Vec<Addressed> {
        self.end_founding();
        if term < self.term {
            // It hears this late: another one decides by now, or has.
            return Vec::new();
        }
        self.decider = Some(Decider::next((term, self.now_ns), &self.decided, self.terms));
        self.deliver(Vec::new())
    }

    /// This member does not lead them any more.
    pub(crate) fn follows(&mut self) {
        self.end_founding();
        self.decider = None;
        self.decisions.clear();
    }

    /// What the log begins with: the configuration of the first change, at all members alike.
    pub(crate) fn first_decided(&self) -> Decided {
        Decided::new(Arc::clone(&self.decided.configuration))
    }

    /// All that the log has decided up to some place, in place of decisions that this member has not heard of. It does not lead.
    pub(crate) fn installed(&mut self, decided: Decided) {
        // A node that has come back knows more than a snapshot of an earlier time.
        if decided.configuration.version > self.decided.configuration.version {
            self.decided = decided;
        }
    }

    /// The log has taken a decision in this term; what is to be sent to others.
    pub(crate) fn made(&mut self, term: u64, decision: &Decision) -> Vec<Addressed> {
        self.make(term, decision);
        self.deliver(Vec::new())
    }

    fn make(&mut self, term: u64, decision: &Decision) {
        let made = self.decided.make(term, decision);
        if let Some(decider) =
            self.decider.as_mut().filter(|decider| decider.term() == decision.term)
        {
            decider.made(decision, &made, &self.decided);
            // It may have ended while that was decided.
            if let (Change::Join { node, entry: MemberEntry { incarnation, .. } }, Ok(())) =
                (&decision.change, &made)
                && let Some(how) = self.lost.get(&(*node, *incarnation))
            {
                let (node, incarnation, how) = (*node, *incarnation, *how);
                let lost = ChangeMessage::Lost { node, incarnation, how };
                decider.receive(self.node, lost, &self.decided);
            }
        }
    }

    /// Handles what this member says to itself; what is to be sent to others.
    fn deliver(&mut self, said: Vec<Addressed>) -> Vec<Addressed> {
        let mut to_others = Vec::new();
        let mut said = VecDeque::from(said);
        loop {
            if let Some(decider) = &mut self.decider {
                let (more, decisions) = decider.take();
                self.end = self.end.take().or(decider.take_end());
                said.extend(more);
                if !self.is_founding {
                    self.decisions.extend(decisions);
                } else {
                    let is_last = decisions.is_empty();
                    decisions.iter().for_each(|decision| self.make(0, decision));
                    if !is_last {
                        continue;
                    }
                }
            }
            let Some((to, message)) = said.pop_front() else { break };
            if to == self.node {
                said.extend(self.step(self.node, message));
            } else {
                to_others.push((to, message));
            }
        }
        if self.is_formed() && self.decider.as_ref().is_none_or(Decider::is_idle) {
            self.end_founding();
        }
        to_others
    }

    /// After the first change the leader of the replicas decides.
    fn end_founding(&mut self) {
        if std::mem::replace(&mut self.is_founding, false) {
            self.decider = None;
        }
    }

    /// Goes by a configuration. The first one is what all members have decided on before there is a log.
    fn go_by(&mut self, configuration: Arc<Configuration>) {
        if !self.decided.configuration.is_formed() {
            self.decided = Decided::new(Arc::clone(&configuration));
        }
        let learners = |partition| configuration.learners(partition).iter();
        self.copied.retain(|(partition, since)| {
            let mut dismissed = configuration.dismissed();
            learners(*partition).any(|learner| learner.since == *since)
                || dismissed.any(|(other, it)| (other, it.since) == (*partition, *since))
        });
        self.came.retain(|node, entry| !configuration.has_had(*node, entry.incarnation));
        self.configuration = configuration;
    }

    /// Whether a message of a decider of this term is to be heard: no later one is known. If this member has decided before, it does so no
    /// more, even if the log's own replica has not learnt that yet: what it proposes would stay with it.
    fn hears(&mut self, term: u64) -> bool {
        let is_present = term >= self.term;
        if self.decider.as_ref().is_some_and(|decider| decider.term() < term) {
            self.follows();
        }
        self.term = self.term.max(term);
        is_present
    }

    fn step(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        match message {
            ChangeMessage::Prepare { round, change } => {
                let hears = self.hears(term_of(round));
                let prepared = if hears { self.prepare((from, round), &change) } else { None };
                prepared.into_iter().collect()
            }
            ChangeMessage::Decide { round } => {
                if round == self.round
                    && let Some((configuration, prepared)) = self.prepared.take()
                {
                    self.replica.adopt(prepared);
                    let before = Arc::clone(&self.configuration);
                    self.go_by(configuration);
                    let present = &self.configuration;
                    let unserved = self.steps.handed_over(self.node, &before, present, self.now_ns);
                    unserved.into_iter().for_each(|time| self.replica.count_hand_over(time));
                    self.adopting = Some((from, ChangeMessage::Adopted { round }));
                }
                self.adopting.take_if(|_| self.replica.has_adopted()).into_iter().collect()
            }
            ChangeMessage::Abandon { round, reason } => {
                if round == self.round {
                    self.replica.undo_hand_over();
                    self.abandon();
                    self.failure = (!self.is_formed()).then_some(reason);
                }
                Vec::new()
            }
            ChangeMessage::Answer { number, result } => {
                if self.proposals.remove(&number).is_some() {
                    self.answers.insert(number, result);
                }
                Vec::new()
            }
            ChangeMessage::Leads { term } if self.hears(term) => self.follow(from),
            ChangeMessage::Sync { term, configuration } if self.hears(term) => {
                self.sync((from, term), configuration)
            }
            ChangeMessage::Leads { .. } | ChangeMessage::Sync { .. } => Vec::new(),
            ChangeMessage::Membership(message) => self.membership_step(from, message),
            ChangeMessage::Lost { .. } | ChangeMessage::Came { .. } => self.note(from, message),
            ChangeMessage::Admit { round, decided, change } => {
                let hears = self.hears(term_of(round));
                let admitted = hears.then(|| self.begin_again((from, round), *decided, &change));
                admitted.flatten().into_iter().collect()
            }
            ChangeMessage::Propose { number, change } => {
                if from == self.node {
                    self.proposals.insert(number, change.clone());
                }
                if self.is_founding && !matches!(change, Change::Form { .. }) {
                    // The founder decides on nothing else. The leader hears the proposal again.
                    return Vec::new();
                }
                self.for_decider(from, ChangeMessage::Propose { number, change })
            }
            ChangeMessage::Copied { partition, since } => {
                if from == self.node {
                    self.copied.insert((partition, since));
                }
                self.for_decider(from, ChangeMessage::Copied { partition, since })
            }
            ChangeMessage::Prepared { .. }
            | ChangeMessage::Adopted { .. }
            | ChangeMessage::Synced { .. } => self.for_decider(from, message),
        }
    }

    /// Notes that a member was lost, or that a node has come back, for the present decider and for later ones.
    fn note(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        match &message {
            // A member that does not decide drops its suspicions: a decider suspects nodes by itself.
            ChangeMessage::Lost { how: Loss::Silent, .. } if self.decider.is_none() => {
                return Vec::new();
            }
            ChangeMessage::Lost { how: Loss::Silent, .. } => {}
            ChangeMessage::Lost { node, incarnation, how } => {
                let lost = (*node, *incarnation);
                let known = self.lost.entry(lost).or_insert(*how);
                *known = (*how).max(*known);
                self.came.retain(|other, entry| (*other, entry.incarnation) != lost);
                if self.is_founding {
                    // The leader hears of the loss again.
                    return Vec::new();
                }
            }
            ChangeMessage::Came { node, entry } if from == self.node => {
                self.came.insert(*node, entry.clone());
            }
            _ => {}
        }
        self.for_decider(from, message)
    }

    /// Has the decider take a message, if this member decides. Otherwise own messages go to the member that decides; while
    /// none is known, they wait.
    fn for_decider(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        match (&mut self.decider, self.leader) {
            (Some(decider), _) => {
                decider.receive(from, message, &self.decided);
                Vec::new()
            }
            (None, Some(leader)) if from == self.node && leader != from => vec![(leader, message)],
            // The member that has said it says it again to the next decider.
            (None, _) => Vec::new(),
        }
    }

    /// Another member decides from now on, or this one: it hears what waits for it.
    fn follow(&mut self, leader: usize) -> Vec<Addressed> {
        if leader != self.node {
            self.end_founding();
        }
        self.leader = Some(leader);
        let proposals = self.proposals.iter().map(|(number, change)| ChangeMessage::Propose {
            number: *number,
            change: change.clone(),
        });
        let lost = self.lost.iter();
        let lost =
            lost.map(|(&(node, incarnation), &how)| ChangeMessage::Lost { node, incarnation, how });
        let came = self.came.iter();
        let came = came.map(|(&node, entry)| ChangeMessage::Came { node, entry: entry.clone() });
        let copied = self.copied.iter();
        let copied = copied.map(|(partition, since)| ChangeMessage::Copied {
            partition: *partition,
            since: *since,
        });
        lost.chain(came).chain(copied).chain(proposals).map(|message| (leader, message)).collect()
    }

    /// Goes by what is decided, all of which every member has prepared before.
    fn sync(&mut self, (from, term): (usize, u64), decided: Box<Configuration>) -> Vec<Addressed> {
        if self.synced == term || !self.is_meant(&decided) {
            // It has come twice, or is for the process before.
            return Vec::new();
        }
        if !self.is_formed() {
            let has_members =
                |(first, _): &mut (Arc<Configuration>, _)| first.members == decided.members;
            if let Some((first, prepared)) = self.prepared.take_if(has_members) {
                // The others have formed the cluster with this member, or let it in, and it has not heard of that yet.
                self.replica.adopt(prepared);
                self.go_by(first);
            }
        }
        self.synced = term;
        self.end_preparing(&decided);
        if decided.version > self.configuration.version {
            let decided = Arc::new(*decided);
            self.tell_steps(&Arc::clone(&self.configuration), &decided);
            if self.configuration.phase == Phase::Preparing {
                // All members were flushed, or the epoch would not be active.
                self.membership = MemberPart::default();
                self.replica.begin_epoch(&decided);
            } else {
                match self.replica.prepare(&decided) {
                    Ok(prepared) => self.replica.adopt(prepared),
                    Err(reason) => self.end = Some(reason),
                }
            }
            self.go_by(decided);
        }
        self.adopting = Some((from, ChangeMessage::Synced { term }));
        self.adopting.take_if(|_| self.replica.has_adopted()).into_iter().collect()
    }

    /// Whether what is decided is meant for this process. One that is no member yet has prepared to be one. Else its predecessor is meant, by a
    /// decider that does not know yet that another one decides.
    fn is_meant(&self, decided: &Configuration) -> bool {
        let incarnation = |of: &Configuration| of.members.get(self.node).map(|it| it.incarnation);
        let is_own =
            |(first, _): &(Arc<Configuration>, _)| incarnation(first) == incarnation(decided);
        self.is_formed() || self.prepared.as_ref().is_some_and(is_own)
    }

    /// A step of a change of the membership, at the decider or at a member.
    fn membership_step(&mut self, from: usize, message: MembershipMessage) -> Vec<Addressed> {
        let is_for_decider = match &message.step {
            Step::Prepared { .. } | Step::Flushed { .. } | Step::Activated => true,
            Step::Fetch { holder, .. } => *holder == Holder::Decider,
            Step::Part { holder, .. } => *holder == Holder::Member,
            Step::Prepare { .. } | Step::Flush { .. } | Step::Activate => false,
        };
        if is_for_decider {
            return self.for_decider(from, ChangeMessage::Membership(message));
        }
        let is_meant = match &message.step {
            Step::Prepare { configuration } => self.is_meant(configuration),
            _ => true,
        };
        if !is_meant || !self.hears(term_of(message.number)) {
            return Vec::new();
        }
        let before = Arc::clone(&self.configuration);
        if self.membership.begins(&message, &before)
            && let Step::Prepare { configuration: decided } = &message.step
        {
            // The decider begins the change again, or has it finished with the epoch.
            self.adopting = None;
            self.end_preparing(decided);
        }
        let Self { membership, configuration, replica, .. } = self;
        let said = membership.receive((from, message), configuration, replica);
        self.tell_steps(&before, &Arc::clone(&self.configuration));
        said.map(wrapped).into_iter().collect()
    }

    /// Tells the log what a change of the membership has come to here. The decider tells more.
    fn tell_steps(&mut self, before: &Configuration, present: &Configuration) {
        if self.decider.is_none() {
            self.steps.follow(before, present, self.now_ns);
        }
    }
}

#[cfg(test)]
mod tests;
