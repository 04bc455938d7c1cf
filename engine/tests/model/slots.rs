//! The model of log slots: a coroutine's slot is used again, also in the next epoch, and never goes back.
//!
//! ```text
//! coordinator  begin (own record, LOG) -> acknowledged: decided, the client is told, PRIMARY -> applied: the next one
//! replica      slot of the coroutine: the record with the highest (epoch, counter)
//! change       another node is lost: flush, the coroutine goes on in the next epoch
//!              the coordinator is lost: flush from the replica's slot alone, and the run ends
//! ```
//! A transaction of which a client was told that it is committed must be there after the flush.
//!
//! *Abstractions*
//! - There is one coroutine and one other log replica, because slots of other coroutines are independent of this one.
//! - A LOG that was sent stays in the network, and arrives at any later moment, any number of times, also in later epochs.
//!   RPC slots and the check of a packet's epoch would drop most of these (`rpc.rs`). The slots must not depend on that.
//! - The counter begins anew in each epoch, as it does when another incarnation of a node has the slot. Where counters go on,
//!   the order by counters is the order by (epoch, counter), so nothing is left to check.
//! - A flush is one step, as in `flush.rs`. It takes the records of the epoch that ends. PRIMARYs of that epoch are dropped
//!   then.
//!
//! *Not here*: aborts, which log nothing; records in parts.
//!
//! *Source*: `docs/protocol.md`, "Commit rules", C8.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

/// The last epoch of a run.
const EPOCHS: u8 = 3;
/// Transactions of the coroutine in each epoch.
const TRANSACTIONS: u8 = 2;

/// Epoch and counter of a transaction, and of its record.
type Id = (u8, u8);

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A record of an older epoch replaces none of a newer one, and is replaced by it.
    epochs_are_compared: bool,
    /// Within an epoch, a record replaces only one with a lower counter.
    counters_are_compared: bool,
    /// The next record is logged only when the primaries have acknowledged the last one.
    slot_is_kept: bool,
}

const ALL_RULES: Rules =
    Rules { epochs_are_compared: true, counters_are_compared: true, slot_is_kept: true };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Log,
    Primary,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    /// Transactions that began in this epoch; the last of them is the present one.
    counter: u8,
    phase: Phase,
    /// The slot at the coordinator's own node.
    own_slot: Option<Id>,
    /// The slot at the other log replica.
    slot: Option<Id>,
    logs: BTreeSet<Id>,
    acknowledged: BTreeSet<Id>,
    /// PRIMARYs that have not arrived.
    updates: BTreeSet<Id>,
    applied: BTreeSet<Id>,
    told: BTreeSet<Id>,
    is_coordinator_lost: bool,
    /// Whether an older record has arrived at a slot with a newer one.
    came_late: bool,
    /// Whether the last flush has applied what a client was told before.
    flush_finished_one: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Begin,
    DeliverLog(Id),
    Decide,
    DeliverUpdate(Id),
    /// The primary's acknowledgement arrives.
    Finish,
    LoseAnother,
    LoseCoordinator,
}

struct Slots {
    rules: Rules,
}

impl Slots {
    fn replaces(&self, record: Id, held: Id) -> bool {
        let epochs =
            if self.rules.epochs_are_compared { record.0.cmp(&held.0) } else { Ordering::Equal };
        let counters = if self.rules.counters_are_compared {
            record.1.cmp(&held.1)
        } else {
            Ordering::Greater
        };
        epochs.then(counters) == Ordering::Greater
    }
}

impl State {
    fn present(&self) -> Id {
        (self.epoch, self.counter)
    }

    /// Applies the records of this epoch that members hold, and drops what is under way.
    fn flush(&mut self, records: [Option<Id>; 2]) {
        let live = records.into_iter().flatten().filter(|record| record.0 == self.epoch);
        let live: Vec<_> = live.collect();
        self.flush_finished_one = false;
        for record in live {
            let is_new = self.applied.insert(record);
            self.flush_finished_one |= is_new && self.told.contains(&record);
        }
        self.updates.clear();
    }

    /// Whether the transaction may still be finished: by its PRIMARYs, or by the flush of its epoch.
    fn is_under_way(&self, id: Id) -> bool {
        id.0 == self.epoch && !self.is_coordinator_lost
    }
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            epoch: 1,
            counter: 0,
            phase: Phase::Idle,
            own_slot: None,
            slot: None,
            logs: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            updates: BTreeSet::new(),
            applied: BTreeSet::new(),
            told: BTreeSet::new(),
            is_coordinator_lost: false,
            came_late: false,
            flush_finished_one: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_coordinator_lost {
            return;
        }
        let slot_is_free = match state.phase {
            Phase::Idle => true,
            Phase::Log => false,
            Phase::Primary => !self.rules.slot_is_kept,
        };
        if slot_is_free && state.counter < TRANSACTIONS {
            actions.push(Action::Begin);
        }
        actions.extend(state.logs.iter().copied().map(Action::DeliverLog));
        if state.phase == Phase::Log && state.acknowledged.contains(&state.present()) {
            actions.push(Action::Decide);
        }
        actions.extend(state.updates.iter().copied().map(Action::DeliverUpdate));
        if state.phase == Phase::Primary && state.applied.contains(&state.present()) {
            actions.push(Action::Finish);
        }
        if state.epoch < EPOCHS {
            actions.push(Action::LoseAnother);
        }
        actions.push(Action::LoseCoordinator);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin => {
                state.counter += 1;
                state.phase = Phase::Log;
                state.own_slot = Some(state.present());
                state.logs.insert(state.present());
            }
            Action::DeliverLog(record) => {
                state.came_late |= state.slot.is_some_and(|held| record < held);
                if state.slot.is_none_or(|held| self.replaces(record, held)) {
                    state.slot = Some(record);
                }
                // The answer to a duplicate is the same.
                state.acknowledged.insert(record);
            }
            Action::Decide => {
                state.phase = Phase::Primary;
                state.told.insert(state.present());
                state.updates.insert(state.present());
            }
            Action::DeliverUpdate(id) => {
                state.updates.remove(&id);
                state.applied.insert(id);
            }
            Action::Finish => state.phase = Phase::Idle,
            Action::LoseAnother => {
                state.flush([state.own_slot, state.slot]);
                if state.phase != Phase::Idle && state.applied.contains(&state.present()) {
                    state.told.insert(state.present());
                }
                state.phase = Phase::Idle;
                state.epoch += 1;
                state.counter = 0;
            }
            Action::LoseCoordinator => {
                state.flush([state.slot, None]);
                state.is_coordinator_lost = true;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("what a client was told is there", |_, state: &State| {
                let mut told = state.told.iter().copied();
                told.all(|id| state.applied.contains(&id) || state.is_under_way(id))
            }),
            Property::sometimes("a slot is used again in its epoch", |_, state: &State| {
                state.slot == Some((1, 2)) && state.acknowledged.contains(&(1, 1))
            }),
            Property::sometimes("a slot is used again in the next epoch", |_, state: &State| {
                state.slot == Some((2, 1)) && state.acknowledged.contains(&(1, 2))
            }),
            Property::sometimes("an older record comes late", |_, state: &State| state.came_late),
            Property::sometimes("a flush finishes for a lost node", |_, state: &State| {
                state.is_coordinator_lost && state.flush_finished_one
            }),
        ]
    }
}

#[test]
fn a_commit_outlives_the_reuse_of_its_slot() {
    check::holds("log slots", Slots { rules: ALL_RULES });
}

#[test]
fn every_rule_of_log_slots_is_needed() {
    type Removal = fn(&mut Rules);
    let goes_back: Removal = |rules| {
        rules.epochs_are_compared = false;
        rules.counters_are_compared = false;
    };
    let cases: [(&str, Removal); 4] = [
        ("a slot never goes back", goes_back),
        ("epochs are compared", |rules| rules.epochs_are_compared = false),
        ("counters are compared", |rules| rules.counters_are_compared = false),
        ("a slot is kept until the primaries have answered", |rules| rules.slot_is_kept = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Slots { rules });
    }
}
