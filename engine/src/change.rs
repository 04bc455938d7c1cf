//! Changes of the configuration: any member proposes one, node 0 decides, all members prepare before any goes by it. The first
//! change names the members: a process joins by it, and prepares by starting its node.
//!
//! ```text
//! proposer           decider (node 0)               each member
//!   Propose ───────────►│── Prepare(change) ────────────►│ makes its part: memory for a table, or says why not
//!                       │◄──────── Prepared ─────────────│
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
//! *Not here*: streams and threads, in `members`. A decider that outlives node 0: without one the cluster halts with node 0.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::configuration::{Change, ChangeError, Configuration};
use crate::membership_change::{
    self, Holder, MemberPart, MembershipChange, MembershipMessage, Progress, Step,
};
use crate::replica::Replica;

/// The member that decides.
pub(crate) const DECIDER: usize = 0;

/// A message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChangeMessage {
    /// `number` rises with each proposal of a member.
    Propose {
        number: u64,
        change: Change,
    },
    Prepare {
        round: u64,
        change: Change,
    },
    Prepared {
        round: u64,
        refusal: Option<String>,
    },
    Decide {
        round: u64,
    },
    Abandon {
        round: u64,
        reason: ChangeError,
    },
    Adopted {
        round: u64,
    },
    Answer {
        number: u64,
        result: Result<(), ChangeError>,
    },
    /// A member has ended.
    Lost {
        node: u16,
    },
    /// A step of a change of the membership.
    Membership(MembershipMessage),
}

/// A message and the node that it is for.
pub(crate) type Addressed = (usize, ChangeMessage);

/// The part of one member in all changes, and the decider's if it is node 0.
pub(crate) struct Changes<R: Replica> {
    node: usize,
    replica: R,
    configuration: Arc<Configuration>,
    /// The last round in which this member was asked to prepare.
    round: u64,
    prepared: Option<(Arc<Configuration>, R::Prepared)>,
    /// The round whose change was adopted, and who is to hear when all coroutines go by it.
    adopting: Option<(usize, u64)>,
    membership: MemberPart,
    decider: Option<Decider>,
    /// Answers to this member's proposals, by number, until they are taken.
    answers: BTreeMap<u64, Result<(), ChangeError>>,
    /// Why there was no first change.
    failure: Option<ChangeError>,
    /// Why the cluster cannot go on.
    end: Option<String>,
}

impl<R: Replica> Changes<R> {
    pub(crate) fn new(node: usize, configuration: Arc<Configuration>, replica: R) -> Self {
        let decider = (node == DECIDER).then(|| Decider::new(Arc::clone(&configuration)));
        Self {
            node,
            replica,
            configuration,
            round: 0,
            prepared: None,
            adopting: None,
            membership: MemberPart::default(),
            decider,
            answers: BTreeMap::new(),
            failure: None,
            end: None,
        }
    }

    /// Whether the first change was made.
    pub(crate) fn is_formed(&self) -> bool {
        self.configuration.is_formed()
    }

    /// Why there will be no first change.
    pub(crate) fn take_failure(&mut self) -> Option<ChangeError> {
        self.failure.take()
    }

    /// Why the cluster cannot go on, once.
    pub(crate) fn take_end(&mut self) -> Option<String> {
        self.end.take()
    }

    /// Whether workers of this member are waited for: [`Self::poll`] is to be called until they have come.
    pub(crate) fn awaits_workers(&self) -> bool {
        self.adopting.is_some() || self.membership.awaits_workers()
    }

    /// What there is to say to others since the workers have gone on.
    pub(crate) fn poll(&mut self) -> Vec<Addressed> {
        let mut said = Vec::new();
        if let Some((to, round)) = self.adopting.take_if(|_| self.replica.has_adopted()) {
            said.push((to, ChangeMessage::Adopted { round }));
        }
        said.extend(self.membership.poll(&mut self.replica).map(wrapped));
        self.deliver(said)
    }

    /// The answers that have come since the last call.
    pub(crate) fn take_answers(&mut self) -> BTreeMap<u64, Result<(), ChangeError>> {
        std::mem::take(&mut self.answers)
    }

    /// Takes a message of a member, perhaps of this one; what is to be sent to others.
    pub(crate) fn receive(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
        let said = self.step(from, message);
        self.deliver(said)
    }

    /// Handles what this member says to itself; what is to be sent to others.
    fn deliver(&mut self, said: Vec<Addressed>) -> Vec<Addressed> {
        let mut to_others = Vec::new();
        let mut said = VecDeque::from(said);
        while let Some((to, message)) = said.pop_front() {
            if to == self.node {
                said.extend(self.step(self.node, message));
            } else {
                to_others.push((to, message));
            }
        }
        to_others
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
                    self.adopting = Some((from, round));
                }
                match self.adopting.take_if(|_| self.replica.has_adopted()) {
                    Some((to, round)) => vec![(to, ChangeMessage::Adopted { round })],
                    None => Vec::new(),
                }
            }
            ChangeMessage::Abandon { round, reason } => {
                if round == self.round {
                    self.prepared = None;
                    self.failure = (!self.is_formed()).then_some(reason);
                }
                Vec::new()
            }
            ChangeMessage::Answer { number, result } => {
                self.answers.insert(number, result);
                Vec::new()
            }
            // The decider hears of it from all who notice.
            ChangeMessage::Lost { .. } if self.decider.is_none() => vec![(DECIDER, message)],
            ChangeMessage::Membership(MembershipMessage { epoch, step }) => {
                self.membership_step(from, MembershipMessage { epoch, step })
            }
            ChangeMessage::Propose { .. }
            | ChangeMessage::Prepared { .. }
            | ChangeMessage::Adopted { .. }
            | ChangeMessage::Lost { .. } => {
                // A member that takes another than node 0 for the decider has other rules; it gets no answer.
                let Some(decider) = &mut self.decider else { return Vec::new() };
                let said = decider.receive(from, message);
                self.end = self.end.take().or(decider.end.take());
                said
            }
        }
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
            let Some(decider) = &mut self.decider else { return Vec::new() };
            let said = decider.receive(from, ChangeMessage::Membership(message));
            self.end = self.end.take().or(decider.end.take());
            return said;
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

/// A message of a change of the membership.
fn wrapped((to, message): membership_change::Addressed) -> Addressed {
    (to, ChangeMessage::Membership(message))
}

/// What node 0 keeps of the changes that it decides.
struct Decider {
    /// The last one that is decided.
    configuration: Arc<Configuration>,
    /// By node: the number of its last proposal.
    last: Vec<u64>,
    /// Those that wait for their turn.
    proposals: VecDeque<(usize, u64, Change)>,
    rounds: u64,
    round: Option<Round>,
    /// The change of the membership that is under way.
    membership: Option<MembershipChange>,
    /// Proposers whose changes are made when that has ended.
    made: Vec<(usize, u64)>,
    /// Why the cluster cannot go on.
    end: Option<String>,
}

/// The change that is under way.
struct Round {
    proposer: (usize, u64),
    change: Change,
    next: Arc<Configuration>,
    /// Members that have not answered.
    missing: BTreeSet<usize>,
    refusal: Option<ChangeError>,
    is_decided: bool,
}

impl Decider {
    fn new(configuration: Arc<Configuration>) -> Self {
        let last = vec![0; configuration.nodes()];
        Self {
            configuration,
            last,
            proposals: VecDeque::new(),
            rounds: 0,
            round: None,
            membership: None,
            made: Vec::new(),
            end: None,
        }
    }

    fn receive(&mut self, from: usize, message: ChangeMessage) -> Vec<Addressed> {
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
            (ChangeMessage::Lost { node }, _) => return self.revoke(node),
            (ChangeMessage::Membership(message), _) => {
                return self.follow_membership(from, message);
            }
            // What has come before, and answers to what has ended.
            _ => {}
        }
        self.go_on()
    }

    /// Begins to revoke a member that has ended.
    fn revoke(&mut self, node: u16) -> Vec<Addressed> {
        let present = match &self.membership {
            Some(change) => Arc::clone(change.configuration()),
            None => Arc::clone(&self.configuration),
        };
        if !present.is_member(node) {
            return Vec::new();
        }
        if !present.is_formed() {
            self.end = Some(format!("node {node} has ended before all members had joined"));
            return Vec::new();
        }
        self.proposals.retain(|(proposer, ..)| *proposer != usize::from(node));
        match self.round.take() {
            // All members have heard that it is decided, and hear of the loss after that.
            Some(Round { proposer, is_decided: true, .. }) => self.made.push(proposer),
            Some(Round { proposer: (from, number), change, .. }) if from != usize::from(node) => {
                self.proposals.push_front((from, number, change));
            }
            Some(_) | None => {}
        }
        match MembershipChange::begin(&present, node) {
            Ok((change, said)) => {
                self.membership = Some(change);
                said.into_iter().map(wrapped).collect()
            }
            Err(error) => {
                self.end = Some(error.to_string());
                Vec::new()
            }
        }
    }

    fn follow_membership(&mut self, from: usize, message: MembershipMessage) -> Vec<Addressed> {
        let Some(change) = &mut self.membership else { return Vec::new() };
        match change.receive(from, message) {
            Progress::Goes(said) => said.into_iter().map(wrapped).collect(),
            Progress::Failed(reason) => {
                self.end = Some(reason);
                Vec::new()
            }
            Progress::Ended => {
                self.configuration = Arc::clone(change.configuration());
                self.membership = None;
                let made = std::mem::take(&mut self.made).into_iter();
                let answer =
                    |(node, number)| (node, ChangeMessage::Answer { number, result: Ok(()) });
                made.map(answer).chain(self.go_on()).collect()
            }
        }
    }

    /// What follows when all have answered, or when there is nothing under way.
    fn go_on(&mut self) -> Vec<Addressed> {
        let mut messages = Vec::new();
        if self.membership.is_some() {
            return messages;
        }
        let members: BTreeSet<_> = self.configuration.member_numbers().map(usize::from).collect();
        loop {
            let all = members.iter().copied();
            let round = self.rounds;
            match self.round.take_if(|open| open.missing.is_empty()) {
                Some(Round { proposer: (node, number), refusal: Some(error), .. }) => {
                    let abandon = ChangeMessage::Abandon { round, reason: error.clone() };
                    messages.extend(all.map(|member| (member, abandon.clone())));
                    messages.push((node, ChangeMessage::Answer { number, result: Err(error) }));
                }
                Some(Round { proposer: (node, number), is_decided: true, .. }) => {
                    messages.push((node, ChangeMessage::Answer { number, result: Ok(()) }));
                }
                Some(open) => {
                    self.configuration = Arc::clone(&open.next);
                    let missing = members.clone();
                    self.round = Some(Round { missing, is_decided: true, ..open });
                    messages.extend(all.map(|member| (member, ChangeMessage::Decide { round })));
                    return messages;
                }
                None => {}
            }
            if self.round.is_some() {
                return messages;
            }
            let Some((node, number, change)) = self.proposals.pop_front() else { return messages };
            match self.configuration.after(&change) {
                Err(error) => {
                    messages.push((node, ChangeMessage::Answer { number, result: Err(error) }));
                }
                Ok(next) => {
                    self.rounds += 1;
                    let (proposer, next) = ((node, number), Arc::new(next));
                    let missing = members.clone();
                    let prepare =
                        ChangeMessage::Prepare { round: self.rounds, change: change.clone() };
                    let (refusal, is_decided) = (None, false);
                    self.round =
                        Some(Round { proposer, change, next, missing, refusal, is_decided });
                    messages.extend(members.iter().map(|member| (*member, prepare.clone())));
                    return messages;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use gannet_storage::{Partitioning, TableDefinition, TableKind};
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::replica::Records;

    fn table(name: &str) -> Change {
        let name = name.to_owned();
        Change::Create(TableDefinition { name, kind: TableKind::Fixed, value_bytes: 8, rows: 9 })
    }

    /// A member that refuses tables of one name, and remembers what it has adopted.
    #[derive(Clone, Default)]
    struct Fake {
        refuses: Option<&'static str>,
        adopted: Rc<RefCell<Vec<Configuration>>>,
        is_stopped: bool,
        records: Records,
    }

    impl Replica for Fake {
        type Prepared = Configuration;

        fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Configuration, String> {
            let refused = |name: &str| configuration.table_named(name).is_some();
            match self.refuses {
                Some(name) if refused(name) => Err(format!("no room for {name}")),
                _ => Ok((**configuration).clone()),
            }
        }

        fn adopt(&mut self, prepared: Configuration) {
            self.adopted.borrow_mut().push(prepared);
        }

        fn has_adopted(&self) -> bool {
            true
        }

        fn stop(&mut self, _: &Arc<Configuration>) {
            self.is_stopped = true;
        }

        fn records(&self) -> Option<Records> {
            Some(self.records.clone())
        }

        fn flush(&mut self, records: &Records) -> Result<(), String> {
            assert!(self.is_stopped, "a member is flushed while nobody works");
            self.records = records.clone();
            Ok(())
        }

        fn begin_epoch(&mut self, configuration: &Arc<Configuration>) {
            self.is_stopped = false;
            self.adopted.borrow_mut().push((**configuration).clone());
        }
    }

    /// By member: the answers to its proposals, and the configurations that it has adopted.
    type Ended = (Vec<BTreeMap<u64, Result<(), ChangeError>>>, Vec<Vec<Configuration>>);

    /// Runs proposals of all members to their end, over links that keep the order between two members and say the last four messages
    /// again at any time. Each member's answers, and what it has adopted.
    fn run(
        seed: u64,
        proposals: &[(usize, Change)],
        refuses: Option<(usize, &'static str)>,
    ) -> Ended {
        let first = Configuration::new(7, 3, 3, Partitioning::new(4).unwrap());
        let fakes: Vec<_> = (0..3)
            .map(|node| Fake {
                refuses: refuses.filter(|(who, _)| *who == node).map(|(_, name)| name),
                ..Fake::default()
            })
            .collect();
        let members = fakes.iter().enumerate();
        let mut members: Vec<_> = members
            .map(|(node, fake)| Changes::new(node, Arc::new(first.clone()), fake.clone()))
            .collect();
        let mut random = SmallRng::seed_from_u64(seed);
        let mut links: BTreeMap<(usize, usize), (Vec<ChangeMessage>, usize)> = BTreeMap::new();
        let mut numbers = [0; 3];
        let mut proposals: VecDeque<_> = proposals.iter().cloned().collect();
        loop {
            let waiting: Vec<_> = links
                .iter()
                .filter(|(_, (all, at))| *at < all.len())
                .map(|(way, _)| *way)
                .collect();
            let (from, to, message) = match waiting.get(random.random_range(0..=waiting.len())) {
                Some(&way) => {
                    let (all, at) = links.get_mut(&way).unwrap();
                    let message = all[*at].clone();
                    *at += 1;
                    if random.random_range(0..10) == 0 {
                        *at = at.saturating_sub(random.random_range(1..=4));
                    }
                    (way.0, way.1, message)
                }
                None => match proposals.pop_front() {
                    Some((node, change)) => {
                        numbers[node] += 1;
                        let propose = ChangeMessage::Propose { number: numbers[node], change };
                        if node != 0 {
                            links.entry((node, 0)).or_default().0.push(propose);
                            continue;
                        }
                        (0, 0, propose)
                    }
                    None if waiting.is_empty() => break,
                    None => continue,
                },
            };
            for (next, message) in members[to].receive(from, message) {
                links.entry((to, next)).or_default().0.push(message);
            }
        }
        let answers = members.iter_mut().map(Changes::take_answers).collect();
        (answers, fakes.iter().map(|fake| fake.adopted.borrow().clone()).collect())
    }

    #[test]
    fn all_members_go_by_the_same_configurations_and_each_proposal_is_answered() {
        let proposals: Vec<_> = ["a", "b", "c", "a", "d"]
            .iter()
            .enumerate()
            .map(|(n, name)| (n % 3, table(name)))
            .collect();
        for seed in 0..200 {
            let (answers, adopted) = run(seed, &proposals, None);
            assert_eq!(answers.iter().map(BTreeMap::len).sum::<usize>(), 5, "seed {seed}");
            let exists = Err(ChangeError::TableExists("a".to_owned()));
            let refused = answers.iter().flat_map(BTreeMap::values).filter(|it| **it == exists);
            assert_eq!(refused.count(), 1, "seed {seed}");
            let versions: Vec<_> = adopted[0].iter().map(|it| it.version).collect();
            assert_eq!(versions, [2, 3, 4, 5]);
            assert!(adopted[1] == adopted[0] && adopted[2] == adopted[0], "seed {seed}");
        }
    }

    #[test]
    fn what_one_member_refuses_no_member_makes() {
        for seed in 0..200 {
            for node in 0..3 {
                let proposals = [(1, table("a")), (2, table("big")), (0, table("b"))];
                let (answers, adopted) = run(seed, &proposals, Some((node, "big")));
                let reason = "no room for big".to_owned();
                assert_eq!(answers[2][&1], Err(ChangeError::Refused { node, reason }));
                assert!(answers[1][&1].is_ok() && answers[0][&1].is_ok(), "seed {seed}");
                for adopted in adopted {
                    assert_eq!(adopted.len(), 2, "seed {seed}");
                    assert!(adopted.iter().all(|it| it.table_named("big").is_none()));
                }
            }
        }
    }
}
