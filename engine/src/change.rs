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
//! member makes. When a proposer has its answer, every coroutine of every member goes by the change. A message that comes twice
//! counts once.
//!
//! *Not here*: streams and threads, in `members`; what the decider does, in `decider`; how a decision is made that outlives the decider,
//! in crate `manager`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::change_message::{Addressed, ChangeMessage, wrapped};
use crate::configuration::{Change, ChangeError, Configuration, Phase};
use crate::decider::Decider;
use crate::decision::{Decided, Decision};
use crate::membership_change::{Holder, MemberPart, MembershipMessage, Step};
use crate::replica::Replica;

/// The member that decides on the first change.
pub(crate) const FOUNDER: usize = 0;

/// Who decides after the first change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deciding {
    /// The founder. Its decisions are made at once, and the others cannot go on without it.
    ByFounder,
    /// Whoever leads the manager's replicas. Decisions are made by their log.
    ByLeader,
}

/// The part of one member in all changes, and the decider's if it decides.
pub(crate) struct Changes<R: Replica> {
    node: usize,
    replica: R,
    deciding: Deciding,
    /// What this member goes by.
    configuration: Arc<Configuration>,
    /// The last round in which this member was asked to prepare.
    round: u64,
    prepared: Option<(Arc<Configuration>, R::Prepared)>,
    /// Who is to hear what when all coroutines go by what was adopted.
    adopting: Option<Addressed>,
    membership: MemberPart,
    /// What is decided, as far as this member has heard of it.
    decided: Decided,
    decider: Option<Decider>,
    /// The first change has not been made, and another decides afterwards.
    is_founding: bool,
    /// Who decides, as far as is known.
    leader: Option<usize>,
    /// Own proposals that are not answered, by number.
    proposals: BTreeMap<u64, Change>,
    /// Members that have ended.
    lost: BTreeSet<u16>,
    /// Decisions for the log.
    decisions: Vec<Decision>,
    /// Answers to this member's proposals, by number, until they are taken.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why there was no first change.
    failure: Option<ChangeError>,
    /// Why the cluster cannot go on.
    end: Option<String>,
}

impl<R: Replica> Changes<R> {
    pub(crate) fn new(
        node: usize,
        configuration: Arc<Configuration>,
        replica: R,
        deciding: Deciding,
    ) -> Self {
        let decided = Decided::new(Arc::clone(&configuration));
        let decider = (node == FOUNDER).then(|| Decider::first(&decided));
        Self {
            node,
            replica,
            deciding,
            configuration,
            round: 0,
            prepared: None,
            adopting: None,
            membership: MemberPart::default(),
            decided,
            decider,
            is_founding: deciding == Deciding::ByLeader,
            leader: Some(FOUNDER),
            proposals: BTreeMap::new(),
            lost: BTreeSet::new(),
            decisions: Vec::new(),
            answers: BTreeMap::new(),
            failure: None,
            end: None,
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

    /// Members that have ended.
    pub(crate) fn lost(&self) -> &BTreeSet<u16> {
        &self.lost
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
        self.adopting.is_some() || self.membership.awaits_workers()
    }

    /// What there is to say to others since the workers have gone on.
    pub(crate) fn poll(&mut self) -> Vec<Addressed> {
        let mut said = Vec::new();
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
        self.decider = Some(Decider::next(term, &self.decided));
        self.deliver(Vec::new())
    }

    /// This member does not lead them any more.
    pub(crate) fn follows(&mut self) {
        self.end_founding();
        self.decider = None;
        self.decisions.clear();
    }

    /// A decision was made; what is to be sent to others.
    pub(crate) fn made(&mut self, decision: &Decision) -> Vec<Addressed> {
        self.make(decision);
        self.deliver(Vec::new())
    }

    fn make(&mut self, decision: &Decision) {
        let made = self.decided.make(decision);
        if let Some(decider) = &mut self.decider {
            decider.made(decision, &made, &self.decided);
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
                if self.deciding == Deciding::ByLeader && !self.is_founding {
                    self.decisions.extend(decisions);
                } else {
                    let is_last = decisions.is_empty();
                    decisions.iter().for_each(|decision| self.make(decision));
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
            assert_eq!(self.configuration.version, 1, "the founder decides on the members alone");
            self.decided = Decided::new(Arc::clone(&self.configuration));
            (self.leader, self.decider) = (None, None);
        }
    }

    fn step(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        match message {
            ChangeMessage::Prepare { round, change } => {
                self.prepare(round, &change).map(|message| (from, message)).into_iter().collect()
            }
            ChangeMessage::Decide { round } => {
                if round == self.round
                    && let Some((configuration, prepared)) = self.prepared.take()
                {
                    self.replica.adopt(prepared);
                    self.configuration = configuration;
                    self.adopting = Some((from, ChangeMessage::Adopted { round }));
                }
                self.adopting.take_if(|_| self.replica.has_adopted()).into_iter().collect()
            }
            ChangeMessage::Abandon { round, reason } => {
                if round == self.round {
                    self.prepared = None;
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
            ChangeMessage::Leads => self.follow(from),
            ChangeMessage::Sync { configuration } => self.sync(from, configuration),
            ChangeMessage::Membership(message) => self.membership_step(from, message),
            ChangeMessage::Lost { node } => {
                self.lost.insert(node);
                if self.deciding == Deciding::ByFounder && usize::from(node) == FOUNDER {
                    self.end = Some(format!("node {node} decides on changes"));
                }
                self.for_decider(from, ChangeMessage::Lost { node })
            }
            ChangeMessage::Propose { number, change } => {
                if from == self.node {
                    self.proposals.insert(number, change.clone());
                }
                if self.is_founding && !matches!(change, Change::Form(_)) {
                    // The founder decides on nothing else. Whoever leads hears it again.
                    return Vec::new();
                }
                self.for_decider(from, ChangeMessage::Propose { number, change })
            }
            ChangeMessage::Prepared { .. }
            | ChangeMessage::Adopted { .. }
            | ChangeMessage::Synced => self.for_decider(from, message),
        }
    }

    /// Has the decider take a message, if this member is it. Own messages go to whoever is; if that is not known yet, they wait.
    fn for_decider(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        match (&mut self.decider, self.leader) {
            (Some(decider), _) => {
                decider.receive(from, message, &self.decided);
                Vec::new()
            }
            (None, Some(leader)) if from == self.node && leader != from => vec![(leader, message)],
            // Whoever has said it says it again to the next decider.
            (None, _) => Vec::new(),
        }
    }

    /// Another member decides from now on, or this one: it hears what waits for it.
    fn follow(&mut self, leader: usize) -> Vec<Addressed> {
        self.leader = Some(leader);
        let proposals = self.proposals.iter().map(|(number, change)| ChangeMessage::Propose {
            number: *number,
            change: change.clone(),
        });
        let lost = self.lost.iter().map(|node| ChangeMessage::Lost { node: *node });
        lost.chain(proposals).map(|message| (leader, message)).collect()
    }

    /// Goes by what is decided, all of which every member has prepared before.
    fn sync(&mut self, from: usize, decided: Box<Configuration>) -> Vec<Addressed> {
        self.prepared = None;
        if decided.version > self.configuration.version {
            let decided = Arc::new(*decided);
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
            self.configuration = decided;
        }
        self.adopting = Some((from, ChangeMessage::Synced));
        self.adopting.take_if(|_| self.replica.has_adopted()).into_iter().collect()
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
        if let Step::Prepare { .. } = message.step {
            // Whoever decides begins it again, or has it finished with the epoch.
            (self.prepared, self.adopting) = (None, None);
        }
        let Self { membership, configuration, replica, .. } = self;
        let said = membership.receive((from, message), configuration, replica);
        said.map(wrapped).into_iter().collect()
    }

    /// The answer to a first `Prepare`; a repeated one was answered.
    fn prepare(&mut self, round: u64, change: &Change) -> Option<ChangeMessage> {
        if round <= self.round {
            return None;
        }
        self.round = round;
        let prepared = self.configuration.after(change).map_err(|error| error.to_string());
        let prepared = prepared.and_then(|configuration| {
            let configuration = Arc::new(configuration);
            let prepared = self.replica.prepare(&configuration)?;
            Ok((configuration, prepared))
        });
        let refusal = prepared.as_ref().err().cloned();
        self.prepared = prepared.ok();
        Some(ChangeMessage::Prepared { round, refusal })
    }
}

#[cfg(test)]
mod tests;
