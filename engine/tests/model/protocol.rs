//! The model of the commit protocol: coordinators, participants, and the network between them.
//!
//! ```text
//! bucket b: primary = node b mod N, backup = the next        log group of node n: n and the next
//! a coordinator's step: requests to participants, each delivered at any later moment, or never;
//!                       when all are answered, the next step
//! ```
//! A bucket's value is the list of the transactions that wrote it, and its version is their number. Requests stay in the
//! network forever: with the RPC slots a duplicate has no effect, and without them it runs again.
//!
//! *Source*: FaSST section 5; `docs/protocol.md`, "Commit rules". Membership changes: `flush.rs`.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::model::flush::Configuration;
use crate::model::{Rules, history};

pub(crate) const NODES: u8 = 3;

/// A transaction's actions: rounds of buckets that it reads or locks. A bucket that occurs twice stands for two keys in one
/// bucket.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) node: u8,
    /// The worker, which exchanges messages with the workers of the same number, and keeps their log slots.
    pub(crate) worker: u8,
    /// The coroutine. Its transactions run one after the other, and share a log slot.
    pub(crate) slot: u8,
    pub(crate) rounds: Vec<Vec<(u8, Access)>>,
}

impl Plan {
    fn coroutine(&self) -> (u8, u8, u8) {
        (self.node, self.worker, self.slot)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    Read(u8),
    Lock(u8),
    Validate(u8, u8),
    Log,
    Backup(u8, u8),
    Primary(u8, u8),
    Unlock(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    transaction: u8,
    step: u8,
    to: u8,
    epoch: u8,
    request: Request,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Version, and the last writer.
    Seen(u8, Option<u8>),
    Done,
    Refused,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    pub(crate) written: Vec<u8>,
    pub(crate) owner: Option<u8>,
}

impl Bucket {
    pub(crate) fn version(&self) -> u8 {
        u8::try_from(self.written.len()).unwrap()
    }

    /// Applies a unit by its base version: a duplicate or a gap has no effect.
    pub(crate) fn apply(&mut self, transaction: u8, base: u8) {
        if self.version() == base {
            self.written.push(transaction);
        }
    }
}

/// A commit record: the buckets that a transaction writes, with their base versions.
pub(crate) type Record = (u8, Vec<(u8, u8)>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) alive: bool,
    /// For each worker: workers adopt an epoch independently.
    pub(crate) epochs: Vec<u8>,
    /// Whether the node may answer for its buckets.
    pub(crate) lease: bool,
    /// For each coroutine (node, worker, slot): the last record.
    pub(crate) log: BTreeMap<(u8, u8, u8), Record>,
    pub(crate) buckets: BTreeMap<u8, Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Idle,
    Execute(u8),
    Validate,
    Log,
    Backup,
    Primary,
    Unlock,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Committed,
    Aborted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Transaction {
    pub(crate) phase: Phase,
    pub(crate) epoch: u8,
    step: u8,
    pending: Vec<Message>,
    /// Bucket, version and last writer of every read and lock.
    pub(crate) observed: Vec<(u8, u8, Option<u8>)>,
    pub(crate) locked: BTreeSet<u8>,
    pub(crate) told: Option<Fate>,
    pub(crate) began: u8,
    pub(crate) ended: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) nodes: Vec<Node>,
    pub(crate) transactions: Vec<Transaction>,
    pub(crate) configuration: Configuration,
    sent: BTreeSet<Message>,
    answers: BTreeMap<Message, Answer>,
    /// Requests that have run again, without RPC slots.
    repeated: BTreeSet<Message>,
    /// The order of beginnings and ends: real time.
    moment: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Begin(u8),
    Deliver(Message),
    Again(Message),
    Advance(u8),
    Crash(u8),
    Propose(u8),
    /// A worker of a node stops work in the old epoch.
    Prepare(u8, u8),
    Flush,
    LeaseOver,
    Activate,
}

pub(crate) struct Protocol {
    pub(crate) plans: Vec<Plan>,
    pub(crate) rules: Rules,
    /// Nodes that may crash, or be removed although they live; one of them does.
    pub(crate) failing: Vec<u8>,
}

impl Protocol {
    /// Workers of each node.
    pub(crate) fn workers(&self) -> usize {
        self.plans.iter().map(|plan| usize::from(plan.worker) + 1).max().unwrap_or(1)
    }

    /// The copies of a bucket in the manager's configuration; the first is the primary.
    pub(crate) fn copies(&self, state: &State, bucket: u8) -> Vec<u8> {
        let ring = [bucket % NODES, (bucket + 1) % NODES];
        ring.into_iter().filter(|node| !state.configuration.removed.contains(node)).collect()
    }

    /// The copies of a bucket in the epoch of a transaction.
    fn copies_for(&self, state: &State, index: u8, bucket: u8) -> Vec<u8> {
        if state.transactions[usize::from(index)].epoch < state.configuration.epoch {
            vec![bucket % NODES, (bucket + 1) % NODES]
        } else {
            self.copies(state, bucket)
        }
    }

    /// The log replicas of a transaction: its node, and the next member.
    fn log_group(&self, state: &State, index: u8) -> Vec<u8> {
        let node = self.plans[usize::from(index)].node;
        let is_older = state.transactions[usize::from(index)].epoch < state.configuration.epoch;
        let is_member = |node: &u8| is_older || !state.configuration.removed.contains(node);
        let others = (1..NODES).map(|next| (node + next) % NODES).filter(is_member);
        std::iter::once(node).chain(others.take(1)).collect()
    }

    /// The epoch that the worker of a transaction has adopted at a node.
    fn epoch_at(&self, state: &State, node: u8, index: u8) -> u8 {
        let worker = self.plans[usize::from(index)].worker;
        state.nodes[usize::from(node)].epochs[usize::from(worker)]
    }

    /// Whether a coordinator may take a step.
    fn may_step(&self, state: &State, index: u8) -> bool {
        let node = self.plans[usize::from(index)].node;
        let epoch = self.epoch_at(state, node, index);
        state.nodes[usize::from(node)].alive
            && epoch == state.transactions[usize::from(index)].epoch
            && state.is_active_in(epoch)
    }

    fn send(&self, state: &mut State, index: u8, requests: Vec<(u8, Request)>) {
        let transaction = &mut state.transactions[usize::from(index)];
        transaction.step += 1;
        transaction.pending = requests
            .into_iter()
            .map(|(to, request)| Message {
                transaction: index,
                step: transaction.step,
                to,
                epoch: transaction.epoch,
                request,
            })
            .collect();
        state.sent.extend(transaction.pending.iter().cloned());
    }

    /// The base versions of the buckets that a transaction writes.
    fn record(&self, state: &State, index: u8) -> Record {
        let transaction = &state.transactions[usize::from(index)];
        let base = |bucket: u8| {
            let seen = transaction.observed.iter().rev().find(|seen| seen.0 == bucket);
            seen.map_or(0, |seen| seen.1)
        };
        (index, transaction.locked.iter().map(|&bucket| (bucket, base(bucket))).collect())
    }

    fn execute(&self, state: &mut State, index: u8, round: u8) {
        let plan = &self.plans[usize::from(index)];
        let mut requests = Vec::new();
        for &(bucket, access) in &plan.rounds[usize::from(round)] {
            let Some(&primary) = self.copies_for(state, index, bucket).first() else { continue };
            requests.push(match access {
                Access::Read => (primary, Request::Read(bucket)),
                Access::Write => (primary, Request::Lock(bucket)),
            });
        }
        if !self.rules.c1_locks_before_validation && round > 0 {
            requests.extend(self.validations(state, index));
        }
        state.transactions[usize::from(index)].phase = Phase::Execute(round);
        self.send(state, index, requests);
    }

    fn validations(&self, state: &State, index: u8) -> Vec<(u8, Request)> {
        let transaction = &state.transactions[usize::from(index)];
        let reads: BTreeSet<_> = transaction
            .observed
            .iter()
            .filter(|seen| !transaction.locked.contains(&seen.0))
            .map(|seen| (seen.0, seen.1))
            .collect();
        let primary = |bucket| self.copies_for(state, index, bucket).first().copied();
        reads
            .into_iter()
            .filter_map(|(bucket, version)| {
                Some((primary(bucket)?, Request::Validate(bucket, version)))
            })
            .collect()
    }

    /// A participant runs a request.
    fn run(&self, state: &mut State, message: &Message) -> Answer {
        let plan = &self.plans[usize::from(message.transaction)];
        let (node, index) = (&mut state.nodes[usize::from(message.to)], message.transaction);
        let seen = |bucket: &Bucket| Answer::Seen(bucket.version(), bucket.written.last().copied());
        match message.request {
            Request::Read(bucket) => {
                let bucket = node.buckets.entry(bucket).or_default();
                let is_locked = bucket.owner.is_some_and(|owner| owner != index);
                if is_locked && self.rules.locked_buckets_are_not_read {
                    Answer::Refused
                } else {
                    seen(bucket)
                }
            }
            Request::Lock(bucket) => {
                let bucket = node.buckets.entry(bucket).or_default();
                if bucket.owner.is_some_and(|owner| owner != index) {
                    Answer::Refused
                } else {
                    bucket.owner = Some(index);
                    seen(bucket)
                }
            }
            Request::Validate(bucket, version) => {
                let bucket = node.buckets.entry(bucket).or_default();
                let is_locked = bucket.owner.is_some_and(|owner| owner != index);
                if is_locked || bucket.version() != version {
                    Answer::Refused
                } else {
                    Answer::Done
                }
            }
            Request::Log => {
                let record = self.record(state, index);
                let node = &mut state.nodes[usize::from(message.to)];
                node.log.insert(plan.coroutine(), record);
                Answer::Done
            }
            Request::Backup(bucket, base) => {
                node.buckets.entry(bucket).or_default().apply(index, base);
                Answer::Done
            }
            Request::Primary(bucket, base) => {
                let bucket = node.buckets.entry(bucket).or_default();
                if bucket.owner == Some(index) {
                    bucket.apply(index, base);
                    bucket.owner = None;
                }
                Answer::Done
            }
            Request::Unlock(bucket) => {
                let bucket = node.buckets.entry(bucket).or_default();
                if bucket.owner == Some(index) {
                    bucket.owner = None;
                }
                Answer::Done
            }
        }
    }

    /// Whether everything has ended, and every request that can arrive has arrived.
    fn is_quiet(&self, state: &State) -> bool {
        let is_under_way = |message: &Message| {
            self.is_deliverable(state, message) && !state.answers.contains_key(message)
        };
        state.is_settled() && !state.sent.iter().any(is_under_way)
    }

    fn is_deliverable(&self, state: &State, message: &Message) -> bool {
        let node = &state.nodes[usize::from(message.to)];
        let epoch = self.epoch_at(state, message.to, message.transaction);
        let is_of_epoch = epoch == message.epoch || !self.rules.older_epochs_are_dropped;
        let needs_lease =
            matches!(message.request, Request::Read(_) | Request::Lock(_) | Request::Validate(..));
        node.alive && is_of_epoch && (node.lease || !needs_lease)
    }

    pub(crate) fn tell(state: &mut State, index: u8, fate: Fate) {
        state.moment += 1;
        let moment = state.moment;
        let transaction = &mut state.transactions[usize::from(index)];
        transaction.told = Some(fate);
        transaction.ended = moment;
    }

    fn abort(&self, state: &mut State, index: u8) {
        let transaction = &mut state.transactions[usize::from(index)];
        transaction.phase = Phase::Unlock;
        let locked: Vec<_> = transaction.locked.iter().copied().collect();
        let requests = locked
            .into_iter()
            .filter_map(|bucket| {
                Some((*self.copies_for(state, index, bucket).first()?, Request::Unlock(bucket)))
            })
            .collect();
        self.send(state, index, requests);
    }

    /// The coordinator proceeds when all requests of a step are answered.
    fn advance(&self, state: &mut State, index: u8) {
        let at = usize::from(index);
        let answers: Vec<_> = state.transactions[at]
            .pending
            .iter()
            .map(|message| (message.request.clone(), state.answers[message].clone()))
            .collect();
        let refused = answers.iter().any(|(_, answer)| *answer == Answer::Refused);
        match state.transactions[at].phase {
            Phase::Execute(round) => {
                for (request, answer) in answers {
                    let Answer::Seen(version, writer) = answer else { continue };
                    let transaction = &mut state.transactions[at];
                    let bucket = match request {
                        Request::Lock(bucket) => {
                            transaction.locked.insert(bucket);
                            bucket
                        }
                        Request::Read(bucket) => bucket,
                        _ => continue,
                    };
                    transaction.observed.push((bucket, version, writer));
                }
                if refused {
                    self.abort(state, index);
                } else if usize::from(round) + 1 < self.plans[at].rounds.len() {
                    self.execute(state, index, round + 1);
                } else {
                    self.validate(state, index);
                }
            }
            Phase::Validate if refused => self.abort(state, index),
            Phase::Validate if state.transactions[at].locked.is_empty() => {
                state.transactions[at].phase = Phase::Ended;
                Self::tell(state, index, Fate::Committed);
            }
            Phase::Validate if self.rules.c4_log_before_update => self.log(state, index),
            Phase::Validate => self.update(state, index, Phase::Backup),
            Phase::Log if !self.rules.c3_no_abort_after_log && index == 0 => {
                self.abort(state, index)
            }
            Phase::Log if !self.rules.c4_log_before_update => {
                self.update(state, index, Phase::Primary);
            }
            Phase::Log if !self.rules.c5_backups_before_primaries => {
                self.update(state, index, Phase::Primary);
            }
            Phase::Log => self.update(state, index, Phase::Backup),
            Phase::Backup if !self.rules.c4_log_before_update => self.log(state, index),
            Phase::Backup if !self.rules.c5_backups_before_primaries => self.commit(state, index),
            Phase::Backup => self.update(state, index, Phase::Primary),
            Phase::Primary if !self.rules.c5_backups_before_primaries => {
                self.update(state, index, Phase::Backup);
            }
            Phase::Primary => self.commit(state, index),
            Phase::Unlock => {
                state.transactions[at].phase = Phase::Ended;
                Self::tell(state, index, Fate::Aborted);
            }
            Phase::Idle | Phase::Ended => {}
        }
        if state.transactions[at].phase == Phase::Primary && !self.rules.c8_slot_is_kept {
            // Without the rule, the coordinator reports before the primaries have answered, and the coroutine continues.
            self.commit(state, index);
        }
    }

    fn validate(&self, state: &mut State, index: u8) {
        let observed = &state.transactions[usize::from(index)].observed;
        let disagree = observed
            .iter()
            .any(|one| observed.iter().any(|other| one.0 == other.0 && one.1 != other.1));
        if disagree && self.rules.c2_observations_agree {
            return self.abort(state, index);
        }
        let buckets: BTreeSet<_> = observed.iter().map(|seen| seen.0).collect();
        state.transactions[usize::from(index)].phase = Phase::Validate;
        let requests = if buckets.len() > 1 && self.rules.c1_locks_before_validation {
            self.validations(state, index)
        } else {
            Vec::new()
        };
        self.send(state, index, requests);
    }

    fn log(&self, state: &mut State, index: u8) {
        state.transactions[usize::from(index)].phase = Phase::Log;
        let group = self.log_group(state, index);
        self.send(state, index, group.into_iter().map(|node| (node, Request::Log)).collect());
    }

    fn update(&self, state: &mut State, index: u8, phase: Phase) {
        let (_, units) = self.record(state, index);
        let mut requests = Vec::new();
        for (bucket, base) in units {
            let copies = self.copies_for(state, index, bucket);
            if phase == Phase::Primary {
                requests.extend(copies.first().map(|&node| (node, Request::Primary(bucket, base))));
            } else {
                let backups = copies.iter().skip(1);
                requests.extend(backups.map(|&node| (node, Request::Backup(bucket, base))));
            }
        }
        state.transactions[usize::from(index)].phase = phase;
        self.send(state, index, requests);
    }

    fn commit(&self, state: &mut State, index: u8) {
        state.transactions[usize::from(index)].phase = Phase::Ended;
        Self::tell(state, index, Fate::Committed);
    }
}

impl State {
    /// Whether transactions run in an epoch that a worker has adopted.
    fn is_active_in(&self, epoch: u8) -> bool {
        epoch < self.configuration.epoch || self.configuration.is_active
    }

    /// Whether nothing runs any more, and no membership change is in progress.
    pub(crate) fn is_settled(&self) -> bool {
        self.configuration.is_active
            && self.transactions.iter().all(|one| one.phase == Phase::Ended)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let node = Node {
            alive: true,
            epochs: vec![1; self.workers()],
            lease: true,
            log: BTreeMap::new(),
            buckets: BTreeMap::new(),
        };
        let transaction = Transaction {
            phase: Phase::Idle,
            epoch: 1,
            step: 0,
            pending: Vec::new(),
            observed: Vec::new(),
            locked: BTreeSet::new(),
            told: None,
            began: 0,
            ended: 0,
        };
        vec![State {
            nodes: vec![node; usize::from(NODES)],
            transactions: vec![transaction; self.plans.len()],
            configuration: Configuration::default(),
            sent: BTreeSet::new(),
            answers: BTreeMap::new(),
            repeated: BTreeSet::new(),
            moment: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (index, plan) in (0_u8..).zip(&self.plans) {
            let transaction = &state.transactions[usize::from(index)];
            let earlier = self.plans[..usize::from(index)].iter().zip(&state.transactions);
            let slot_is_free = earlier
                .filter(|(other, _)| other.coroutine() == plan.coroutine())
                .all(|(_, other)| other.phase == Phase::Ended);
            let node = &state.nodes[usize::from(plan.node)];
            if transaction.phase == Phase::Idle {
                let epoch = self.epoch_at(state, plan.node, index);
                if node.alive && slot_is_free && state.is_active_in(epoch) {
                    actions.push(Action::Begin(index));
                }
            } else if transaction.phase != Phase::Ended
                && self.may_step(state, index)
                && transaction.pending.iter().all(|one| state.answers.contains_key(one))
            {
                actions.push(Action::Advance(index));
            }
        }
        for message in &state.sent {
            if !self.is_deliverable(state, message) {
                continue;
            }
            if !state.answers.contains_key(message) {
                actions.push(Action::Deliver(message.clone()));
            } else if !self.rules.rpc_slots && !state.repeated.contains(message) {
                actions.push(Action::Again(message.clone()));
            }
        }
        self.membership_actions(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(index) => {
                state.moment += 1;
                let node = self.plans[usize::from(index)].node;
                let epoch = self.epoch_at(&state, node, index);
                let transaction = &mut state.transactions[usize::from(index)];
                transaction.began = state.moment;
                transaction.epoch = epoch;
                self.execute(&mut state, index, 0);
            }
            Action::Deliver(message) => {
                let answer = self.run(&mut state, &message);
                state.answers.insert(message, answer);
            }
            Action::Again(message) => {
                self.run(&mut state, &message);
                state.repeated.insert(message);
            }
            Action::Advance(index) => self.advance(&mut state, index),
            membership => self.change_membership(&mut state, &membership),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("history", |model: &Self, state: &State| {
                !model.is_quiet(state) || history::violations(model, state).is_empty()
            }),
            Property::sometimes("all commit", |_, state: &State| {
                state.transactions.iter().all(|one| one.told == Some(Fate::Committed))
            }),
            Property::sometimes("all end", |_, state: &State| state.is_settled()),
        ]
    }
}
