//! The model of a copy that moves: another node is filled with it while transactions go on, and then the old one is given up.
//!
//! ```text
//! version  0 copies at the primary and at O   1 N learns   2 N copies rows   3 N is a copy
//!          4 O is dismissed, and gets updates still   5 O gets none   6 O gives the memory back
//! ```
//! No update comes to a node that cannot take it, and a node that counts as a copy has all updates.
//!
//! *Abstractions*
//! - The partition has one bucket, of which the version is all that is looked at. Other buckets move in the same way, each by itself.
//! - A coordinator locks the bucket, sends its update to all copies but the primary in any order, and to the primary when all have
//!   acknowledged it (C5). It keeps the version of the configuration that it began with, and goes by the next one between two transactions.
//! - The next version is decided when all go by the present one. Changes of the membership, in which nobody works, are in `flush.rs`.
//!
//! *Source*: `docs/protocol.md`, "Copies that are made again" and "Copies that move".

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

const COORDINATORS: usize = 2;
/// Most updates of a run.
const UPDATES_MAX: u8 = 4;
const LEARN: u8 = 1;
const FILL: u8 = 2;
const LEARNED: u8 = 3;
const DISMISS: u8 = 4;
const SPARE: u8 = 5;
const RETURN: u8 = 6;

#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each rule is there or not")]
struct Rules {
    /// Rows are copied when all transactions send their updates to the learner.
    learner_waits_for_all: bool,
    /// An update waits at a learner until its bucket is copied.
    updates_wait: bool,
    /// A learner is no copy before it has copied all rows.
    learned_whole: bool,
    /// A copy gets updates until all know that it is dismissed.
    dismissal_is_known: bool,
    /// It is given back when no transaction sends it updates.
    is_spared_first: bool,
}

const ALL_RULES: Rules = Rules {
    learner_waits_for_all: true,
    updates_wait: true,
    learned_whole: true,
    dismissal_is_known: true,
    is_spared_first: true,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Primary {
    Old,
    New,
}

/// An update that is under way: its base version, and who is still to acknowledge it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Update {
    base: u8,
    missing: BTreeSet<Primary>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// What is decided.
    version: u8,
    /// What each coordinator goes by, and the update that it makes.
    coordinators: [(u8, Option<Update>); COORDINATORS],
    /// What the old and the new place go by.
    old_version: u8,
    new_version: u8,
    /// The bucket's version at the primary, and at both places.
    primary: u8,
    old: u8,
    new: u8,
    is_copied: bool,
    /// Base versions of updates that wait at the new place.
    waiting: BTreeSet<u8>,
    /// An update came to a place that cannot take it.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Decide,
    /// A coordinator goes by the next version.
    Follow(usize),
    FollowAt(Primary),
    Begin(usize),
    Deliver(usize, Primary),
    Finish(usize),
    Copy,
}

struct Moving {
    rules: Rules,
}

impl State {
    fn all_follow(&self) -> bool {
        let coordinators = self.coordinators.iter().map(|(version, _)| *version);
        let mut all = coordinators.chain([self.old_version, self.new_version]);
        all.all(|version| version == self.version)
    }

    fn is_locked(&self) -> bool {
        self.coordinators.iter().any(|(_, update)| update.is_some())
    }
}

impl Moving {
    /// The nodes that get the updates of a coordinator that goes by a version.
    fn targets(&self, version: u8) -> BTreeSet<Primary> {
        let last = if self.rules.dismissal_is_known { DISMISS } else { LEARNED };
        let old = (version <= last).then_some(Primary::Old);
        let new = (version >= LEARN).then_some(Primary::New);
        old.into_iter().chain(new).collect()
    }

    fn deliver_to_old(&self, state: &mut State, base: u8) {
        let returned = if self.rules.is_spared_first { RETURN } else { SPARE };
        let is_gap = base > state.old && state.old_version < DISMISS;
        state.is_broken |= is_gap || state.old_version >= returned;
        state.old += u8::from(base == state.old);
    }

    fn deliver_to_new(&self, state: &mut State, base: u8) {
        if base <= state.new {
            state.new += u8::from(base == state.new);
        } else if state.is_copied {
            state.is_broken = true;
        } else if self.rules.updates_wait {
            state.waiting.insert(base);
        }
    }
}

impl Model for Moving {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            version: 0,
            coordinators: [const { (0, None) }; COORDINATORS],
            old_version: 0,
            new_version: 0,
            primary: 1,
            old: 1,
            new: 0,
            is_copied: false,
            waiting: BTreeSet::new(),
            is_broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let is_whole = state.is_copied || !self.rules.learned_whole;
        let may_decide = state.version + 1 != LEARNED || is_whole;
        if state.all_follow() && state.version < RETURN && may_decide {
            actions.push(Action::Decide);
        }
        for (number, (version, update)) in state.coordinators.iter().enumerate() {
            match update {
                None => {
                    if *version < state.version {
                        actions.push(Action::Follow(number));
                    }
                    if !state.is_locked() && state.primary <= UPDATES_MAX {
                        actions.push(Action::Begin(number));
                    }
                }
                Some(update) if update.missing.is_empty() => actions.push(Action::Finish(number)),
                Some(update) => {
                    actions.extend(update.missing.iter().map(|it| Action::Deliver(number, *it)));
                }
            }
        }
        if state.old_version < state.version {
            actions.push(Action::FollowAt(Primary::Old));
        }
        if state.new_version < state.version {
            actions.push(Action::FollowAt(Primary::New));
        }
        let from = if self.rules.learner_waits_for_all { FILL } else { LEARN };
        if state.new_version >= from && !state.is_copied {
            actions.push(Action::Copy);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Decide => state.version += 1,
            Action::Follow(number) => state.coordinators[number].0 += 1,
            Action::FollowAt(Primary::Old) => state.old_version += 1,
            Action::FollowAt(Primary::New) => state.new_version += 1,
            Action::Begin(number) => {
                let (base, version) = (state.primary, state.coordinators[number].0);
                let missing = self.targets(version);
                state.coordinators[number].1 = Some(Update { base, missing });
            }
            Action::Deliver(number, place) => {
                let update = state.coordinators[number].1.as_mut()?;
                update.missing.remove(&place);
                let base = update.base;
                match place {
                    Primary::Old => self.deliver_to_old(&mut state, base),
                    Primary::New => self.deliver_to_new(&mut state, base),
                }
            }
            Action::Finish(number) => {
                state.coordinators[number].1 = None;
                state.primary += 1;
            }
            Action::Copy => {
                // What is there at a higher version stays.
                state.new = state.new.max(state.primary);
                state.is_copied = true;
                for base in std::mem::take(&mut state.waiting) {
                    self.deliver_to_new(&mut state, base);
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("copies take all updates and have them", |_, state: &State| {
                let old_has = state.version > LEARNED || state.old == state.primary;
                let new_has = state.version < LEARNED || state.new == state.primary;
                !state.is_broken && (state.is_locked() || old_has && new_has)
            }),
            Property::sometimes("an update waits for its bucket", |_, state: &State| {
                !state.waiting.is_empty()
            }),
            Property::sometimes("a dismissed copy misses an update", |_, state: &State| {
                state.version >= SPARE && !state.is_locked() && state.old < state.primary
            }),
            Property::sometimes("the copy has moved", |_, state: &State| {
                state.version == RETURN && state.all_follow() && state.new == UPDATES_MAX + 1
            }),
        ]
    }
}

#[test]
fn a_copy_that_moves_misses_no_update() {
    check::holds("moving copies", Moving { rules: ALL_RULES });
}

#[test]
fn every_rule_of_moving_copies_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 5] = [
        ("a learner waits for all", |rules| rules.learner_waits_for_all = false),
        ("updates wait", |rules| rules.updates_wait = false),
        ("a learner has learned all", |rules| rules.learned_whole = false),
        ("a dismissal is known", |rules| rules.dismissal_is_known = false),
        ("a copy is spared before it goes", |rules| rules.is_spared_first = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Moving { rules });
    }
}
