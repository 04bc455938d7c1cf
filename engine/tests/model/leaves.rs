//! The model of leaf counters: an ordered index whose leaf counts its changes at each replica by itself.
//!
//! ```text
//! replica 0: primary of epoch 1, lost then       replica 1: its backup, primary of epoch 2
//! insert     LOCK: pending entry at the primary   counter of the primary + 1
//!            commit: entry at all copies          counter of each backup + 1
//!            abort: pending entry is removed      counter of the primary + 1
//! scan       observes (epoch, counter), and is validated at the primary of that moment
//! ```
//! A scan that is validated has found what the range holds at that moment.
//!
//! *Abstractions*
//! - One leaf covers all keys, and has the same number at both replicas. Leaves that split in another order only add ways in
//!   which a number and a counter mean something else.
//! - One transaction scans, and another one at a time inserts. A scan meets no pending entry, because it is refused then. So
//!   a pending entry that VALIDATE meets has raised the counter since the scan.
//! - A commit is one step at all copies: C4 and C5 order its parts, which `protocol.rs` has. At the change, an insert that
//!   was not committed is aborted.
//! - Keys are only inserted. A deletion raises the counters of all copies, as a commit does here.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

const KEYS: u8 = 2;
/// The highest value that a counter has in a run.
const COUNTER_MAX: u8 = 4;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// An observation keeps the epoch in which it was made, and is validated in no other.
    observation_has_epoch: bool,
    /// A LOCK for an insert raises the counter of the leaf, as its pending entry is added.
    pending_entry_counts: bool,
}

const ALL_RULES: Rules = Rules { observation_has_epoch: true, pending_entry_counts: true };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Observation {
    epoch: u8,
    counter: u8,
    keys: BTreeSet<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    /// What is committed: the same at all copies.
    keys: BTreeSet<u8>,
    /// The key of the pending entry, at the primary alone.
    pending: Option<u8>,
    /// By replica.
    counters: [u8; 2],
    observed: Option<Observation>,
    /// What the range held when the scan was validated.
    validated: Option<BTreeSet<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Lock(u8),
    Commit,
    Abort,
    Scan,
    Validate,
    /// Replica 0 is lost, and replica 1 becomes the primary.
    Change,
}

struct Leaves {
    rules: Rules,
}

impl State {
    fn primary(&self) -> usize {
        usize::from(self.epoch) - 1
    }

    /// The counter of the leaf at the present primary.
    fn counter(&self) -> u8 {
        self.counters[self.primary()]
    }

    /// Whether a scan of the old primary has the counter of the new one by chance, while the range has changed.
    fn is_counter_misleading(&self) -> bool {
        self.observed.as_ref().is_some_and(|observed| {
            observed.epoch < self.epoch
                && observed.counter == self.counter()
                && observed.keys != self.keys
        })
    }
}

impl Leaves {
    fn is_valid(&self, state: &State, observed: &Observation) -> bool {
        let is_of_epoch = observed.epoch == state.epoch || !self.rules.observation_has_epoch;
        is_of_epoch && observed.counter == state.counter()
    }
}

impl Model for Leaves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            epoch: 1,
            keys: BTreeSet::new(),
            pending: None,
            counters: [0; 2],
            observed: None,
            validated: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.pending.is_some() {
            actions.extend([Action::Commit, Action::Abort]);
        } else {
            // An insert that aborts raises the counter twice.
            if state.counter() + 2 <= COUNTER_MAX {
                let absent = (0..KEYS).filter(|key| !state.keys.contains(key));
                actions.extend(absent.map(Action::Lock));
            }
            if state.observed.is_none() {
                actions.push(Action::Scan);
            }
        }
        if state.observed.is_some() && state.validated.is_none() {
            actions.push(Action::Validate);
        }
        if state.epoch == 1 {
            actions.push(Action::Change);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let primary = state.primary();
        match action {
            Action::Lock(key) => {
                state.pending = Some(key);
                state.counters[primary] += u8::from(self.rules.pending_entry_counts);
            }
            Action::Commit => {
                state.keys.extend(state.pending.take());
                let backups = &mut state.counters[primary + 1..];
                backups.iter_mut().for_each(|counter| *counter += 1);
            }
            Action::Abort => {
                state.pending = None;
                state.counters[primary] += 1;
            }
            Action::Scan => {
                let (epoch, counter) = (state.epoch, state.counter());
                state.observed = Some(Observation { epoch, counter, keys: state.keys.clone() });
            }
            Action::Validate => {
                let observed = state.observed.take()?;
                // A transaction that is refused runs again, and scans again.
                if self.is_valid(&state, &observed) {
                    state.observed = Some(observed);
                    state.validated = Some(state.keys.clone());
                }
            }
            Action::Change => {
                state.epoch += 1;
                state.pending = None;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn is_validated(state: &State, epoch: u8) -> bool {
            let is_of_epoch = |observed: &Observation| observed.epoch == epoch;
            state.validated.is_some() && state.observed.as_ref().is_some_and(is_of_epoch)
        }
        vec![
            Property::always("a validated scan is what the range holds", |_, state: &State| {
                let found = state.observed.as_ref().map(|observed| &observed.keys);
                state.validated.is_none() || state.validated.as_ref() == found
            }),
            Property::sometimes("a scan is validated at the first primary", |_, state: &State| {
                is_validated(state, 1)
            }),
            Property::sometimes("a scan is validated at the promoted one", |_, state: &State| {
                is_validated(state, 2)
            }),
            Property::sometimes("a counter is the same by chance", |_, state: &State| {
                state.validated.is_none() && state.is_counter_misleading()
            }),
        ]
    }
}

#[test]
fn a_scan_is_validated_at_the_replica_that_it_observed() {
    check::holds("leaf counters", Leaves { rules: ALL_RULES });
}

#[test]
fn every_rule_of_leaf_counters_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 2] = [
        ("an observation has its epoch", |rules| rules.observation_has_epoch = false),
        ("a pending entry counts", |rules| rules.pending_entry_counts = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Leaves { rules });
    }
}
