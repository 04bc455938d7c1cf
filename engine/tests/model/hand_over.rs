//! The model of a partition that is handed over to another primary, and back, while transactions go on.
//!
//! ```text
//! version v: node v mod 2 is primary, and the other one a backup
//! Prepare    the primary refuses all requests   Decide   no bucket is locked there: version v + 1   Follow   each node and coordinator by itself
//! ```
//! Each update is made once, at both nodes. A scan that is validated has found what the partition has at that moment.
//!
//! *Abstractions*
//! - The partition has one bucket and one leaf. A transaction locks the bucket to insert, which raises the leaf's counter at the primary, and
//!   updates the other node before the primary (C5). An abort raises the counter at the primary, and an insert that of the backup.
//! - A coordinator keeps the version that it began with, and goes by the next one between two transactions. The scan is validated by the
//!   version of that moment.
//! - The next hand-over is prepared when all go by the present version. It may be undone. Changes of the membership, in which nobody works,
//!   are in `flush.rs`.
//!
//! *Source*: `docs/protocol.md`, "Hand-over of primaries".

use stateright::{Model, Property};

use crate::model::check;

const COORDINATORS: usize = 2;
/// The last version: the partition is back at its first primary.
const VERSION_MAX: usize = 2;
const UPDATES_MAX: u8 = 2;
const COUNTER_MAX: u8 = 4;

#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each rule is there or not")]
struct Rules {
    /// A node answers only as the primary of the version that it goes by, and not while it hands over.
    moved_is_refused: bool,
    /// The hand-over is decided when no bucket is locked.
    locks_finish: bool,
    /// A node serves again only what is certain not to be decided.
    undone_if_undecided: bool,
    /// What was scanned at one primary is not validated at another.
    scanned_primary: bool,
}

const ALL_RULES: Rules = Rules {
    moved_is_refused: true,
    locks_finish: true,
    undone_if_undecided: true,
    scanned_primary: true,
};

/// An update that is under way: where the bucket is locked, in which version, and whether the other node has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Update {
    at: usize,
    base: u8,
    is_backed_up: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// The version of the configuration that it goes by.
    version: usize,
    refuses: bool,
    bucket: u8,
    counter: u8,
    is_locked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Scan {
    version: usize,
    counter: u8,
    updates: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// What is decided.
    version: usize,
    nodes: [Node; 2],
    coordinators: [(usize, Option<Update>); COORDINATORS],
    /// Updates that are made.
    updates: u8,
    scan: Option<Scan>,
    was_undone: bool,
    /// An update was lost, or a scan was validated that is not true.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Prepare,
    Undo(usize),
    Decide,
    FollowAt(usize),
    Follow(usize),
    Lock(usize),
    Abort(usize),
    Backup(usize),
    Finish(usize),
    Scan,
    Validate,
}

struct HandOver {
    rules: Rules,
}

impl HandOver {
    fn serves(&self, state: &State, node: usize) -> bool {
        let Node { version, refuses, .. } = state.nodes[node];
        let is_primary = version % 2 == node && !refuses;
        is_primary || !self.rules.moved_is_refused
    }
}

impl Model for HandOver {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            version: 0,
            nodes: [Node::default(); 2],
            coordinators: [(0, None); COORDINATORS],
            updates: 0,
            scan: None,
            was_undone: false,
            is_broken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let primary = state.version % 2;
        let nodes = state.nodes.iter().map(|node| node.version);
        let mut all = nodes.chain(state.coordinators.iter().map(|(version, _)| *version));
        let all_follow = all.all(|version| version == state.version);
        let Node { refuses, is_locked, .. } = state.nodes[primary];
        if all_follow && state.version < VERSION_MAX {
            actions.push(if refuses { Action::Undo(primary) } else { Action::Prepare });
            if refuses && !(is_locked && self.rules.locks_finish) {
                actions.push(Action::Decide);
            }
        }
        for (number, node) in state.nodes.iter().enumerate() {
            if node.version < state.version {
                actions.push(Action::FollowAt(number));
                if node.refuses && !self.rules.undone_if_undecided {
                    actions.push(Action::Undo(number));
                }
            }
        }
        for (number, (version, update)) in state.coordinators.iter().enumerate() {
            let at = version % 2;
            match update {
                None => {
                    if *version < state.version {
                        actions.push(Action::Follow(number));
                    }
                    let Node { is_locked, counter, .. } = state.nodes[at];
                    let is_possible = state.updates < UPDATES_MAX && counter < COUNTER_MAX;
                    if self.serves(state, at) && !is_locked && is_possible {
                        actions.push(Action::Lock(number));
                    }
                }
                Some(Update { is_backed_up: false, .. }) => {
                    actions.extend([Action::Backup(number), Action::Abort(number)]);
                }
                Some(_) => actions.push(Action::Finish(number)),
            }
        }
        let is_free = !state.nodes[primary].is_locked && self.serves(state, primary);
        if is_free {
            actions.push(if state.scan.is_none() { Action::Scan } else { Action::Validate });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let primary = state.version % 2;
        match action {
            Action::Prepare => state.nodes[primary].refuses = true,
            Action::Undo(node) => (state.nodes[node].refuses, state.was_undone) = (false, true),
            Action::Decide => state.version += 1,
            Action::FollowAt(node) => {
                state.nodes[node].version += 1;
                state.nodes[node].refuses = false;
            }
            Action::Follow(number) => state.coordinators[number].0 += 1,
            Action::Lock(number) => {
                let at = state.coordinators[number].0 % 2;
                let node = &mut state.nodes[at];
                (node.is_locked, node.counter) = (true, node.counter + 1);
                let update = Update { at, base: node.bucket, is_backed_up: false };
                state.coordinators[number].1 = Some(update);
            }
            Action::Abort(number) => {
                let node = &mut state.nodes[state.coordinators[number].1.take()?.at];
                (node.is_locked, node.counter) = (false, node.counter + 1);
            }
            Action::Backup(number) => {
                let update = state.coordinators[number].1.as_mut()?;
                update.is_backed_up = true;
                let Update { at, base, .. } = *update;
                let node = &mut state.nodes[1 - at];
                state.is_broken |= node.bucket != base;
                (node.bucket, node.counter) = (base + 1, node.counter + 1);
            }
            Action::Finish(number) => {
                let Update { at, base, .. } = state.coordinators[number].1.take()?;
                let node = &mut state.nodes[at];
                state.is_broken |= node.bucket != base;
                (node.bucket, node.is_locked) = (base + 1, false);
                state.updates += 1;
            }
            Action::Scan => {
                let (counter, updates) = (state.nodes[primary].counter, state.updates);
                state.scan = Some(Scan { version: state.version, counter, updates });
            }
            Action::Validate => {
                let Scan { version, counter, updates } = state.scan.take()?;
                let is_same = version == state.version || !self.rules.scanned_primary;
                let is_valid = is_same && counter == state.nodes[primary].counter;
                state.is_broken |= is_valid && updates != state.updates;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each update is made once, and scans are true", |_, state: &State| {
                let is_free = state.coordinators.iter().all(|(_, update)| update.is_none());
                let are_equal = state.nodes.iter().all(|node| node.bucket == state.updates);
                !state.is_broken && (!is_free || are_equal)
            }),
            Property::sometimes("a coordinator goes by the version before", |_, state: &State| {
                let is_behind = |(version, _): &(usize, _)| *version < state.version;
                state.coordinators.iter().any(is_behind) && state.nodes[1].is_locked
            }),
            Property::sometimes("lock holders are waited for", |_, state: &State| {
                state.nodes[0].refuses && state.nodes[0].is_locked
            }),
            Property::sometimes("a hand-over was undone", |_, state: &State| state.was_undone),
            Property::sometimes("the partition is back", |_, state: &State| {
                state.version == VERSION_MAX && state.updates == UPDATES_MAX
            }),
        ]
    }
}

#[test]
fn a_partition_that_is_handed_over_loses_no_update() {
    check::holds("hand-over", HandOver { rules: ALL_RULES });
}

#[test]
fn every_rule_of_a_hand_over_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 4] = [
        ("what has moved is refused", |rules| rules.moved_is_refused = false),
        ("lock holders finish", |rules| rules.locks_finish = false),
        ("it is undone if it is undecided", |rules| rules.undone_if_undecided = false),
        ("scans are of one primary", |rules| rules.scanned_primary = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, HandOver { rules });
    }
}
