//! The model of RPC slots: requests and responses are delayed and doubled by the network, and each request runs once, in its
//! epoch.
//!
//! ```text
//! coordinator  LOCK -> response -> UNLOCK -> response: the transaction has ended     one request of a coroutine at a time
//! participant  a slot for each coroutine: the number of the last request that ran
//! change       another node is lost: both stop, the transactions under way end, locks are released; each begins the next epoch
//! ```
//! No bucket is locked by a transaction that has ended.
//!
//! *Abstractions*
//! - There is one participant with one bucket. Two coroutines compete for the bucket. Each has a session of its own with the
//!   participant.
//! - What was sent stays in the network, and arrives at any later moment, any number of times. So a request that is sent
//!   again, and a response that a participant repeats, are among the runs; only the response of the first run is made.
//! - UNLOCK stands for PRIMARY as well, which releases a lock, too. All other requests need the slots less: units have base
//!   versions, and log slots never go back.
//! - Numbers of requests go on in the next epoch, as in the endpoints.
//! - The flush is one step, and releases all locks. The running code leaves the lock words of an older epoch, which keep
//!   nobody out: a second rule for what the check of a packet's epoch does here.
//!
//! *Source*: `docs/protocol.md`, "Locked buckets" and "Membership change".

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

const COROUTINES: u8 = 2;
/// Transactions of each coroutine.
const TRANSACTIONS: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A request runs only if its number is higher than that of the last one of its session.
    each_runs_once: bool,
    /// A participant drops requests of another epoch.
    epochs_are_checked: bool,
    /// A response counts only for the request that has its number.
    responses_have_numbers: bool,
}

const ALL_RULES: Rules =
    Rules { each_runs_once: true, epochs_are_checked: true, responses_have_numbers: true };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Operation {
    Lock,
    Unlock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Request {
    coroutine: u8,
    transaction: u8,
    sequence: u8,
    epoch: u8,
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Response {
    coroutine: u8,
    sequence: u8,
    is_granted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Locking,
    Locked,
    Unlocking,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Coroutine {
    /// The present transaction, or the next one. Those before it have ended.
    transaction: u8,
    phase: Phase,
    /// Number of the last request.
    sequence: u8,
}

impl Coroutine {
    fn end(&mut self) {
        self.transaction += 1;
        self.phase = Phase::Idle;
    }
}

/// The epoch in which a node works, or none between two epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Works(u8),
    Stopped,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    coordinator: Stage,
    participant: Stage,
    coroutines: Vec<Coroutine>,
    /// The slots: by coroutine, the number of the last request that ran.
    slots: Vec<u8>,
    /// Coroutine and transaction that hold the bucket.
    owner: Option<(u8, u8)>,
    requests: BTreeSet<Request>,
    responses: BTreeSet<Response>,
    /// Whether a LOCK was dropped that came after its UNLOCK.
    dropped_late_lock: bool,
    /// Whether a request of an older epoch was dropped that had not run.
    dropped_older_epoch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The coroutine's next request is sent.
    Send(u8),
    Deliver(Request),
    Receive(Response),
    Stop,
    CoordinatorBegins,
    ParticipantBegins,
}

struct Calls {
    rules: Rules,
}

impl Calls {
    fn deliver(&self, state: &mut State, request: Request) {
        let slot = &mut state.slots[usize::from(request.coroutine)];
        let is_of_epoch = state.participant == Stage::Works(request.epoch);
        let is_new = request.sequence > *slot;
        if !is_of_epoch && self.rules.epochs_are_checked {
            state.dropped_older_epoch |= is_new;
            return;
        }
        if !is_new && self.rules.each_runs_once {
            let is_late = request.sequence < *slot;
            state.dropped_late_lock |= is_late && request.operation == Operation::Lock;
            return;
        }
        *slot = request.sequence;
        let own = Some((request.coroutine, request.transaction));
        let is_granted = state.owner.is_none() || state.owner == own;
        match request.operation {
            Operation::Lock if is_granted => state.owner = own,
            Operation::Unlock if is_granted => state.owner = None,
            Operation::Lock | Operation::Unlock => {}
        }
        let Request { coroutine, sequence, .. } = request;
        state.responses.insert(Response { coroutine, sequence, is_granted });
    }

    /// Whether a coroutine takes a response for that of its present request.
    fn is_awaited(&self, state: &State, response: Response) -> bool {
        let coroutine = state.coroutines[usize::from(response.coroutine)];
        let is_its_number = coroutine.sequence == response.sequence;
        matches!(coroutine.phase, Phase::Locking | Phase::Unlocking)
            && (is_its_number || !self.rules.responses_have_numbers)
    }
}

impl State {
    fn send(&mut self, number: u8, epoch: u8) {
        let coroutine = &mut self.coroutines[usize::from(number)];
        let (phase, operation) = if coroutine.phase == Phase::Idle {
            (Phase::Locking, Operation::Lock)
        } else {
            (Phase::Unlocking, Operation::Unlock)
        };
        coroutine.phase = phase;
        coroutine.sequence += 1;
        let Coroutine { transaction, sequence, .. } = *coroutine;
        self.requests.insert(Request {
            coroutine: number,
            transaction,
            sequence,
            epoch,
            operation,
        });
    }

    fn receive(&mut self, response: Response) {
        let coroutine = &mut self.coroutines[usize::from(response.coroutine)];
        if coroutine.phase == Phase::Locking && response.is_granted {
            coroutine.phase = Phase::Locked;
        } else {
            // A LOCK that was refused leaves nothing to unlock.
            coroutine.end();
        }
    }

    /// Both nodes have stopped, and the flush has settled all transactions.
    fn stop(&mut self) {
        self.coordinator = Stage::Stopped;
        self.participant = Stage::Stopped;
        self.owner = None;
        let under_way = self.coroutines.iter_mut().filter(|one| one.phase != Phase::Idle);
        under_way.for_each(Coroutine::end);
    }
}

impl Model for Calls {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let coroutine = Coroutine { transaction: 0, phase: Phase::Idle, sequence: 0 };
        vec![State {
            coordinator: Stage::Works(1),
            participant: Stage::Works(1),
            coroutines: vec![coroutine; usize::from(COROUTINES)],
            slots: vec![0; usize::from(COROUTINES)],
            owner: None,
            requests: BTreeSet::new(),
            responses: BTreeSet::new(),
            dropped_late_lock: false,
            dropped_older_epoch: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.coordinator {
            Stage::Works(_) => {
                for (number, coroutine) in (0..COROUTINES).zip(&state.coroutines) {
                    let begins = coroutine.phase == Phase::Idle;
                    let may_begin = begins && coroutine.transaction < TRANSACTIONS;
                    if may_begin || coroutine.phase == Phase::Locked {
                        actions.push(Action::Send(number));
                    }
                }
                let responses = state.responses.iter().copied();
                let awaited = responses.filter(|response| self.is_awaited(state, *response));
                actions.extend(awaited.map(Action::Receive));
            }
            Stage::Stopped => actions.push(Action::CoordinatorBegins),
        }
        match state.participant {
            Stage::Works(_) => {
                actions.extend(state.requests.iter().copied().map(Action::Deliver));
            }
            Stage::Stopped => actions.push(Action::ParticipantBegins),
        }
        let first = Stage::Works(1);
        if state.coordinator == first && state.participant == first {
            actions.push(Action::Stop);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Send(number) => {
                let Stage::Works(epoch) = state.coordinator else { return None };
                state.send(number, epoch);
            }
            Action::Deliver(request) => self.deliver(&mut state, request),
            Action::Receive(response) => state.receive(response),
            Action::Stop => state.stop(),
            Action::CoordinatorBegins => state.coordinator = Stage::Works(2),
            Action::ParticipantBegins => state.participant = Stage::Works(2),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn have_ended(state: &State) -> bool {
            state.coroutines.iter().all(|one| one.transaction == TRANSACTIONS)
        }
        vec![
            Property::always("no transaction that has ended has a lock", |_, state: &State| {
                state.owner.is_none_or(|(coroutine, transaction)| {
                    state.coroutines[usize::from(coroutine)].transaction <= transaction
                })
            }),
            Property::sometimes("all end in the first epoch", |_, state: &State| {
                state.coordinator == Stage::Works(1) && have_ended(state)
            }),
            Property::sometimes("all end in the second epoch", |_, state: &State| {
                state.coordinator == Stage::Works(2) && have_ended(state)
            }),
            Property::sometimes("a lock is granted in the second epoch", |_, state: &State| {
                state.participant == Stage::Works(2) && state.owner.is_some()
            }),
            Property::sometimes("a lock is refused", |_, state: &State| {
                state.responses.iter().any(|response| !response.is_granted)
            }),
            Property::sometimes("a late LOCK is dropped", |_, state: &State| {
                state.dropped_late_lock
            }),
            Property::sometimes("a packet of an older epoch is dropped", |_, state: &State| {
                state.dropped_older_epoch
            }),
        ]
    }
}

#[test]
fn each_request_runs_once_in_its_epoch() {
    check::holds("RPC slots", Calls { rules: ALL_RULES });
}

#[test]
fn every_rule_of_rpc_slots_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 3] = [
        ("each request runs once", |rules| rules.each_runs_once = false),
        ("epochs are checked", |rules| rules.epochs_are_checked = false),
        ("responses have numbers", |rules| rules.responses_have_numbers = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Calls { rules });
    }
}
