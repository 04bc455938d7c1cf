//! The model of an ordered index: each replica numbers its changes by itself, in leaves that come and go.
//!
//! ```text
//! replica 0: primary of epoch 1, lost then          replica 1: its backup, primary of epoch 2
//! index      number of the last change               entry     number at which it was added
//! leaf       number of its last removal              leaves    one of all keys, or two: keys 0 and 1, key 2
//! scan       observes (epoch, number) of the range, and is validated at the primary of that moment
//! ```
//! The range is key 2. A scan that is validated has found what the range holds, and nothing has come and gone in it meanwhile.
//!
//! *Abstractions*
//! - One transaction scans, and another one at a time inserts or deletes. A scan meets no pending entry, because it is refused then.
//! - A commit is one step at all copies: C4 and C5 order its parts, which `protocol.rs` has. At the change, an insert that
//!   was not committed is aborted.
//!
//! *Source*: `docs/protocol.md`, "Ordered index".

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

const KEYS: usize = 3;
/// The key that is the range, and that has a leaf of its own after a split.
const RANGE: usize = 2;
/// Most changes in a run.
const CHANGES_MAX: u8 = 4;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// An observation keeps the epoch in which it was made, and is validated in no other.
    observation_has_epoch: bool,
    /// A leaf that vanishes raises the mark of its neighbour, which has its keys from then on.
    neighbour_takes_mark: bool,
    /// Both halves of a leaf that is split have its mark.
    halves_have_mark: bool,
}

const ALL_RULES: Rules =
    Rules { observation_has_epoch: true, neighbour_takes_mark: true, halves_have_mark: true };

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Index {
    number: u8,
    added: [u8; KEYS],
    /// Of each leaf, the number of its last removal.
    removed: Vec<u8>,
}

impl Index {
    /// The leaf of a key.
    fn leaf(&mut self, key: usize) -> &mut u8 {
        let last = self.removed.len() - 1;
        &mut self.removed[if key == RANGE { last } else { 0 }]
    }

    fn add(&mut self, key: usize) {
        self.number += 1;
        self.added[key] = self.number;
    }

    fn remove(&mut self, key: usize) {
        self.number += 1;
        *self.leaf(key) = self.number;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Observation {
    epoch: u8,
    number: u8,
    /// How often the range had changed.
    changes: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    epoch: u8,
    /// What is committed: the same at all copies.
    keys: BTreeSet<usize>,
    /// The key of the pending entry, at the primary alone.
    pending: Option<usize>,
    replicas: [Index; 2],
    changes: u8,
    changes_of_range: u8,
    observed: Option<Observation>,
    /// How often the range had changed when the scan was validated.
    validated: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Lock(usize),
    Commit,
    Abort,
    Delete(usize),
    /// A replica splits its leaf.
    Split(usize),
    /// The leaf of the range is empty at a replica, and vanishes.
    Vanish(usize),
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

    fn change(&mut self, key: usize, at: impl Fn(&mut Index, usize)) {
        let first = self.primary();
        self.replicas[first..].iter_mut().for_each(|index| at(index, key));
        self.changes += 1;
        self.changes_of_range += u8::from(key == RANGE);
    }

    /// Whether the range has changed since the scan.
    fn has_range_changed(&self) -> bool {
        self.observed.as_ref().is_some_and(|it| it.changes != self.changes_of_range)
    }
}

impl Leaves {
    fn is_valid(&self, state: &State, observed: &Observation) -> bool {
        let mut index = state.replicas[state.primary()].clone();
        let is_of_epoch = observed.epoch == state.epoch || !self.rules.observation_has_epoch;
        let is_new = state.keys.contains(&RANGE) && index.added[RANGE] > observed.number;
        let is_pending = state.pending == Some(RANGE);
        is_of_epoch && !is_new && !is_pending && *index.leaf(RANGE) <= observed.number
    }
}

impl Model for Leaves {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let index = |number| Index { number, removed: vec![0], ..Index::default() };
        vec![State {
            epoch: 1,
            keys: BTreeSet::new(),
            pending: None,
            // Keys came and went before replica 1 was a copy.
            replicas: [index(2), index(0)],
            changes: 0,
            changes_of_range: 0,
            observed: None,
            validated: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_change = state.changes < CHANGES_MAX;
        match state.pending {
            Some(_) if may_change => actions.extend([Action::Commit, Action::Abort]),
            Some(_) => actions.push(Action::Abort),
            None => {
                if may_change {
                    let absent = (0..KEYS).filter(|key| !state.keys.contains(key));
                    actions.extend(absent.map(Action::Lock));
                    actions.extend(state.keys.iter().copied().map(Action::Delete));
                }
                if state.observed.is_none() {
                    actions.push(Action::Scan);
                }
            }
        }
        for replica in state.primary()..2 {
            let is_pending = replica == state.primary() && state.pending == Some(RANGE);
            match state.replicas[replica].removed.len() {
                1 => actions.push(Action::Split(replica)),
                _ if state.keys.contains(&RANGE) || is_pending => {}
                _ => actions.push(Action::Vanish(replica)),
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
        match action {
            Action::Lock(key) => state.pending = Some(key),
            Action::Commit => {
                let key = state.pending.take()?;
                state.keys.insert(key);
                state.change(key, Index::add);
            }
            Action::Abort => state.pending = None,
            Action::Delete(key) => {
                state.keys.remove(&key);
                state.change(key, Index::remove);
            }
            Action::Split(replica) => {
                let mark = state.replicas[replica].removed[0];
                let half = if self.rules.halves_have_mark { mark } else { 0 };
                state.replicas[replica].removed.push(half);
            }
            Action::Vanish(replica) => {
                let removed = &mut state.replicas[replica].removed;
                let mark = removed.pop()?;
                if self.rules.neighbour_takes_mark {
                    removed[0] = removed[0].max(mark);
                }
            }
            Action::Scan => {
                let (epoch, changes) = (state.epoch, state.changes_of_range);
                let number = state.replicas[state.primary()].number;
                state.observed = Some(Observation { epoch, number, changes });
            }
            Action::Validate => {
                let observed = state.observed.take()?;
                // A transaction that is refused runs again, and scans again.
                if self.is_valid(&state, &observed) {
                    state.observed = Some(observed);
                    state.validated = Some(state.changes_of_range);
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
                let seen = state.observed.as_ref().map(|observed| observed.changes);
                state.validated.is_none() || state.validated == seen
            }),
            Property::sometimes("a scan is validated at the first primary", |_, state: &State| {
                is_validated(state, 1)
            }),
            Property::sometimes("a scan is validated at the promoted one", |_, state: &State| {
                is_validated(state, 2)
            }),
            Property::sometimes("a scan is valid though its leaf has come", |_, state: &State| {
                let index = &state.replicas[state.primary()];
                is_validated(state, state.epoch) && index.removed.len() == 2 && index.removed[0] > 0
            }),
            Property::sometimes("a range changes after its scan", |_, state: &State| {
                state.validated.is_none() && state.has_range_changed()
            }),
        ]
    }
}

#[test]
fn a_scan_is_validated_at_the_replica_that_it_observed() {
    check::holds("leaves", Leaves { rules: ALL_RULES });
}

#[test]
fn every_rule_of_leaves_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 3] = [
        ("an observation has its epoch", |rules| rules.observation_has_epoch = false),
        ("a neighbour takes the mark", |rules| rules.neighbour_takes_mark = false),
        ("both halves have the mark", |rules| rules.halves_have_mark = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Leaves { rules });
    }
}
