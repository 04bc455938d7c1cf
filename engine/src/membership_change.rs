//! A change of the membership: a lost node is revoked, and the transactions of the epoch are finished or undone before the next one
//! begins.
//!
//! ```text
//! decider                          each member that is left
//!   Prepare(configuration) ─────────────►│ its workers stop: no coroutine and no handler takes a step
//!   ◄───── Prepared, records by parts ───│ the records of the last active epoch in its log slots
//!   the union of all records
//!   Flush, records by parts ────────────►│ keeps the records, and applies each unit at its copies
//!   ◄──────────── Flushed ───────────────│
//!   the decision is made: active
//!   Activate ───────────────────────────►│ settles its commits by the ids of the records, and begins the epoch
//!   ◄──────────── Activated ─────────────│ all its coroutines work in the epoch
//! ```
//! A transaction is committed if any member that is left has its record, and aborted otherwise: rules C3 and C4. When another member is
//! lost meanwhile, a further epoch is prepared at once, from the same records and those that the flush has brought.
//!
//! *Invariants*: no member works in an epoch before all members are flushed for it. A message of an earlier change is passed over, and so is
//! one that comes twice.
//!
//! *Source*: `docs/protocol.md`, "Membership change".
//!
//! *Not here*: what a node does for each step, in `node` and `worker`; what is decided and when, in `decider`; how a loss is noticed, in
//! `members`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::configuration::{Change, Configuration, Phase};
use crate::replica::{Records, Replica};

/// Bytes of records in a message.
const PART_BYTES_MAX: usize = 256 << 10;

/// The nodes that have records which are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Holder {
    /// A member has those of its log slots.
    Member,
    /// The decider has those of all members.
    Decider,
}

/// What the message is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Step {
    /// The configuration of the epoch, which all members know then, and in which a node is revoked.
    Prepare { configuration: Box<Configuration> },
    /// The member has stopped, and has so many bytes of records.
    Prepared { bytes: u64 },
    /// All members have stopped. Their records take so many bytes.
    Flush { bytes: u64 },
    /// The units are applied, or why they could not be.
    Flushed { failure: Option<String> },
    /// The epoch begins.
    Activate,
    /// All coroutines of the member work in the epoch.
    Activated,
    /// Wants the records of the holder, from this byte on.
    Fetch { holder: Holder, offset: u64 },
    /// Some of them.
    Part { holder: Holder, offset: u64, bytes: Vec<u8> },
}

/// A message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembershipMessage {
    /// Number of the change: a later one, of a further epoch or by another decider, has a higher number.
    pub(crate) number: u64,
    pub(crate) step: Step,
}

/// A message and the node that it is for.
pub(crate) type Addressed = (usize, MembershipMessage);

/// Records on their way out.
#[derive(Default)]
struct Outgoing(Vec<u8>);

impl Outgoing {
    fn new(records: &Records) -> Self {
        Self(postcard::to_stdvec(records).expect("records are bytes"))
    }

    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn part(&self, holder: Holder, offset: u64) -> Step {
        let from = usize::try_from(offset).map_or(self.0.len(), |from| from.min(self.0.len()));
        let to = self.0.len().min(from + PART_BYTES_MAX);
        Step::Part { holder, offset, bytes: self.0[from..to].to_vec() }
    }
}

/// Records on their way in.
struct Incoming {
    total: u64,
    bytes: Vec<u8>,
}

impl Incoming {
    fn new(total: u64) -> Self {
        Self { total, bytes: Vec::new() }
    }

    fn fetch(&self, holder: Holder) -> Step {
        Step::Fetch { holder, offset: self.bytes.len() as u64 }
    }

    /// Takes the part that follows; any other came before. Whether it was new.
    fn add(&mut self, offset: u64, part: &[u8]) -> bool {
        let is_next = offset == self.bytes.len() as u64 && !self.is_complete();
        if is_next {
            self.bytes.extend_from_slice(part);
        }
        is_next
    }

    fn is_complete(&self) -> bool {
        self.bytes.len() as u64 >= self.total
    }

    fn records(&self) -> Result<Records, String> {
        postcard::from_bytes(&self.bytes)
            .map_err(|error| format!("its records are damaged: {error}"))
    }
}

/// A member's part in changes of the membership.
#[derive(Default)]
pub(crate) struct MemberPart {
    /// Number of the change.
    number: u64,
    /// The decider.
    decider: usize,
    /// Its workers have not all stopped.
    is_stopping: bool,
    /// Not all its coroutines work in the epoch that has begun.
    is_activating: bool,
    outgoing: Outgoing,
    incoming: Option<Incoming>,
}

impl MemberPart {
    /// Whether it waits for its workers: [`Self::poll`] tells when they have done what they are to do.
    pub(crate) fn awaits_workers(&self) -> bool {
        self.is_stopping || self.is_activating
    }

    /// Whether a message begins a change that is later than any before.
    pub(crate) fn begins(&self, message: &MembershipMessage, present: &Configuration) -> bool {
        let Step::Prepare { configuration: prepared } = &message.step else { return false };
        // Another decider, or the same one again, goes on with an epoch that is prepared.
        let is_again = prepared.epoch == present.epoch && present.phase == Phase::Preparing;
        message.number > self.number && (prepared.epoch > present.epoch || is_again)
    }

    /// Takes a message of the decider; the configuration changes with some.
    pub(crate) fn receive<R: Replica>(
        &mut self,
        (from, message): (usize, MembershipMessage),
        configuration: &mut Arc<Configuration>,
        replica: &mut R,
    ) -> Option<Addressed> {
        let begins = self.begins(&message, configuration);
        let MembershipMessage { number, step } = message;
        if let Step::Prepare { configuration: prepared } = step {
            if begins {
                *self = Self { number, decider: from, is_stopping: true, ..Self::default() };
                if prepared.epoch > configuration.epoch {
                    *configuration = Arc::new(*prepared);
                    replica.stop(configuration);
                }
            }
            return self.poll(replica);
        }
        if number != self.number {
            return None;
        }
        match step {
            Step::Fetch { offset, .. } => self.say(self.outgoing.part(Holder::Member, offset)),
            Step::Flush { bytes } if self.incoming.is_none() => {
                let incoming = self.incoming.insert(Incoming::new(bytes));
                let fetch = incoming.fetch(Holder::Decider);
                self.say(fetch)
            }
            Step::Part { offset, bytes, .. } => {
                let incoming = self.incoming.as_mut()?;
                if !incoming.add(offset, &bytes) {
                    return None;
                }
                if !incoming.is_complete() {
                    let fetch = incoming.fetch(Holder::Decider);
                    return self.say(fetch);
                }
                let flushed = incoming.records().and_then(|records| replica.flush(&records));
                self.say(Step::Flushed { failure: flushed.err() })
            }
            Step::Activate => {
                if let Ok(next) = configuration.after(&Change::Activate) {
                    *configuration = Arc::new(next);
                    replica.begin_epoch(configuration);
                    self.is_activating = true;
                }
                self.poll(replica)
            }
            Step::Prepare { .. }
            | Step::Flush { .. }
            | Step::Prepared { .. }
            | Step::Flushed { .. }
            | Step::Activated => None,
        }
    }

    /// What there is to say when the workers have done what they are to do.
    pub(crate) fn poll<R: Replica>(&mut self, replica: &mut R) -> Option<Addressed> {
        if self.is_stopping {
            let records = replica.records()?;
            self.is_stopping = false;
            self.outgoing = Outgoing::new(&records);
            return self.say(Step::Prepared { bytes: self.outgoing.bytes() });
        }
        if self.is_activating && replica.has_adopted() {
            self.is_activating = false;
            return self.say(Step::Activated);
        }
        None
    }

    fn say(&self, step: Step) -> Option<Addressed> {
        Some((self.decider, MembershipMessage { number: self.number, step }))
    }
}

/// How far a change of the membership is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preparing,
    Flushing,
    Activating,
}

/// The change of the membership that is under way, as the decider sees it.
pub(crate) struct MembershipChange {
    number: u64,
    /// The configuration that it has come to.
    configuration: Arc<Configuration>,
    stage: Stage,
    /// Members that have not finished the stage.
    missing: BTreeSet<usize>,
    incoming: BTreeMap<usize, Incoming>,
    records: Records,
    outgoing: Outgoing,
}

/// What has come of a message.
pub(crate) enum Progress {
    Goes(Vec<Addressed>),
    /// All members have stopped, and their records are here: they are to be flushed.
    Stopped(Vec<Addressed>),
    /// All members are flushed: the epoch may be active.
    Flushed,
    /// All members work in the next epoch.
    Ended,
    /// It cannot go on, and why.
    Failed(String),
}

impl MembershipChange {
    /// Prepares the epoch of a configuration that is decided. The number is higher than that of any change before.
    pub(crate) fn begin(configuration: Arc<Configuration>, number: u64) -> (Self, Vec<Addressed>) {
        let prepare = Step::Prepare { configuration: Box::new((*configuration).clone()) };
        let mut change = Self {
            number,
            configuration,
            stage: Stage::Preparing,
            missing: BTreeSet::new(),
            incoming: BTreeMap::new(),
            records: Records::new(),
            outgoing: Outgoing::default(),
        };
        let said = change.say_to_all(Stage::Preparing, &prepare);
        (change, said)
    }

    /// Has all members begin the epoch, which is decided to be active.
    pub(crate) fn activate(&mut self, configuration: &Arc<Configuration>) -> Vec<Addressed> {
        self.configuration = Arc::clone(configuration);
        self.say_to_all(Stage::Activating, &Step::Activate)
    }

    /// How many records members have told so far.
    pub(crate) fn records(&self) -> usize {
        self.records.len()
    }

    /// Members that have not finished the step.
    pub(crate) fn missing(&self) -> impl Iterator<Item = usize> {
        self.missing.iter().copied()
    }

    /// Takes a message of a member.
    pub(crate) fn receive(&mut self, from: usize, message: MembershipMessage) -> Progress {
        let MembershipMessage { number, step } = message;
        if number != self.number || !self.missing.contains(&from) {
            return Progress::Goes(Vec::new());
        }
        match (step, self.stage) {
            (Step::Prepared { bytes }, Stage::Preparing) => {
                let incoming = self.incoming.entry(from).or_insert_with(|| Incoming::new(bytes));
                let fetch = incoming.fetch(Holder::Member);
                Progress::Goes(vec![(from, self.message(fetch))])
            }
            (Step::Part { offset, bytes, .. }, Stage::Preparing) => {
                self.take_part(from, offset, &bytes)
            }
            (Step::Fetch { offset, .. }, Stage::Flushing) => {
                let part = self.outgoing.part(Holder::Decider, offset);
                Progress::Goes(vec![(from, self.message(part))])
            }
            (Step::Flushed { failure: Some(failure) }, Stage::Flushing) => {
                Progress::Failed(format!("node {from} could not be flushed: {failure}"))
            }
            (Step::Flushed { failure: None }, Stage::Flushing) => {
                self.missing.remove(&from);
                match self.missing.is_empty() {
                    true => Progress::Flushed,
                    false => Progress::Goes(Vec::new()),
                }
            }
            (Step::Activated, Stage::Activating) => {
                self.missing.remove(&from);
                match self.missing.is_empty() {
                    true => Progress::Ended,
                    false => Progress::Goes(Vec::new()),
                }
            }
            _ => Progress::Goes(Vec::new()),
        }
    }

    /// Takes a part of a member's records. When all members have said theirs, the flush begins.
    fn take_part(&mut self, from: usize, offset: u64, part: &[u8]) -> Progress {
        let Some(incoming) = self.incoming.get_mut(&from) else {
            return Progress::Goes(Vec::new());
        };
        if !incoming.add(offset, part) {
            return Progress::Goes(Vec::new());
        }
        if !incoming.is_complete() {
            let fetch = incoming.fetch(Holder::Member);
            return Progress::Goes(vec![(from, self.message(fetch))]);
        }
        match incoming.records() {
            Ok(mut records) => self.records.append(&mut records),
            Err(failure) => return Progress::Failed(format!("node {from}: {failure}")),
        }
        self.missing.remove(&from);
        if !self.missing.is_empty() {
            return Progress::Goes(Vec::new());
        }
        self.outgoing = Outgoing::new(&self.records);
        let flush = Step::Flush { bytes: self.outgoing.bytes() };
        Progress::Stopped(self.say_to_all(Stage::Flushing, &flush))
    }

    /// Begins a stage, which all members have to finish.
    fn say_to_all(&mut self, stage: Stage, step: &Step) -> Vec<Addressed> {
        self.stage = stage;
        self.missing = self.configuration.member_numbers().map(usize::from).collect();
        self.missing.iter().map(|member| (*member, self.message(step.clone()))).collect()
    }

    fn message(&self, step: Step) -> MembershipMessage {
        MembershipMessage { number: self.number, step }
    }
}
