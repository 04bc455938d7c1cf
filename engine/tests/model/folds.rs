//! The model of folds: transactions that sum up all rows, bucket by bucket, while buckets are changed, split and merged.
//!
//! ```text
//! bucket         level, count, owner, and the keys in it
//! transaction    fold bucket 0, 1, ... ─ lock the bucket of its own key ─ validate bucket 0, 1, ... ─ install
//! ```
//! Each transaction sets its own key from 0 to 1 if the sum of all keys is 0. So no two of them may commit.
//!
//! *Abstractions*
//! - There is one partition, at one copy: buckets of different partitions are no different from those of one.
//! - The looks at two buckets are two steps, in the fold and in the validation. A split is one step, of a bucket that nobody holds, and so is a
//!   merge, of two. There is one merge.
//! - A bucket that is not there counts as the bucket that has its keys.
//!
//! *Source*: `docs/protocol.md`, "Folds".

use stateright::{Model, Property};

use crate::model::check;

/// Of each transaction, the hash of its key.
const HASHES: [usize; 2] = [0b10, 0b01];
const BUCKETS_MAX: usize = 4;
/// Runs of a transaction that are refused.
const REFUSED_MAX: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The sum of the counts is compared.
    changes_are_compared: bool,
    /// A bucket that another transaction holds is not valid.
    locked_is_refused: bool,
    /// A split raises the count of the bucket that rows leave.
    split_raises_parent: bool,
    /// A merge raises the count of the bucket that rows come to above that of both.
    merge_raises_parent: bool,
}

const ALL_RULES: Rules = Rules {
    changes_are_compared: true,
    locked_is_refused: true,
    split_raises_parent: true,
    merge_raises_parent: true,
};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Bucket {
    level: u8,
    count: u8,
    owner: Option<usize>,
    /// By transaction, whether its key is here.
    keys: [bool; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Fold,
    Lock,
    Validate,
    Install,
    Committed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Transaction {
    phase: Phase,
    /// The next bucket to look at.
    at: usize,
    /// The first bucket that was not folded.
    end: usize,
    sum: u8,
    /// Sums of the counts, in the fold and in the validation.
    folded: u8,
    found: u8,
    refused: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    buckets: Vec<Bucket>,
    values: [u8; 2],
    transactions: [Transaction; 2],
    has_merged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(usize),
    Split(usize),
    /// The last bucket is merged into this one.
    Merge(usize),
}

struct Folds {
    rules: Rules,
}

impl State {
    fn bucket_of(&self, key: usize) -> usize {
        self.buckets.iter().position(|bucket| bucket.keys[key]).expect("each key is somewhere")
    }

    /// The count of a bucket, or of the one that has its keys.
    fn count_at(&self, mut bucket: usize) -> u8 {
        while bucket >= self.buckets.len() {
            bucket -= 1 << bucket.ilog2();
        }
        self.buckets[bucket].count
    }

    /// A transaction releases what it holds, and begins again.
    fn refuse(&mut self, number: usize) {
        let held = self.buckets.iter_mut().filter(|bucket| bucket.owner == Some(number));
        held.for_each(|bucket| bucket.owner = None);
        let refused = self.transactions[number].refused + 1;
        self.transactions[number] = Transaction { refused, ..Transaction::default() };
    }

    fn excludes(&self, bucket: usize, number: usize) -> bool {
        let owner = self.buckets.get(bucket).and_then(|bucket| bucket.owner);
        owner.is_some_and(|owner| owner != number)
    }
}

impl Folds {
    fn step(&self, state: &mut State, number: usize) {
        let Transaction { phase, at, .. } = state.transactions[number];
        match phase {
            Phase::Fold if at >= state.buckets.len() => {
                let of = &mut state.transactions[number];
                (of.end, of.at, of.phase) = (at, 0, Phase::Lock);
            }
            Phase::Fold if state.excludes(at, number) => state.refuse(number),
            Phase::Fold => {
                let Bucket { count, keys, .. } = state.buckets[at];
                let of = &mut state.transactions[number];
                of.folded += count;
                let there = keys.iter().zip(state.values).filter(|(is_there, _)| **is_there);
                of.sum += there.map(|(_, value)| value).sum::<u8>();
                of.at += 1;
            }
            Phase::Lock => {
                let bucket = state.bucket_of(number);
                if state.excludes(bucket, number) {
                    return state.refuse(number);
                }
                state.buckets[bucket].owner = Some(number);
                state.transactions[number].phase = Phase::Validate;
            }
            Phase::Validate if at < state.transactions[number].end => {
                if state.excludes(at, number) && self.rules.locked_is_refused {
                    return state.refuse(number);
                }
                let count = state.count_at(at);
                let of = &mut state.transactions[number];
                of.found += count;
                of.at += 1;
            }
            Phase::Validate => {
                let Transaction { folded, found, .. } = state.transactions[number];
                if folded != found && self.rules.changes_are_compared {
                    return state.refuse(number);
                }
                state.transactions[number].phase = Phase::Install;
            }
            Phase::Install => {
                let bucket = state.bucket_of(number);
                if state.transactions[number].sum == 0 {
                    state.values[number] = 1;
                    state.buckets[bucket].count += 1;
                }
                state.buckets[bucket].owner = None;
                state.transactions[number].phase = Phase::Committed;
            }
            Phase::Committed => {}
        }
    }

    fn split(&self, state: &mut State, bucket: usize) {
        let parent = &mut state.buckets[bucket];
        let half = Bucket {
            level: parent.level + 1,
            count: parent.count + 1,
            owner: None,
            keys: [0, 1].map(|key| parent.keys[key] && HASHES[key] >> parent.level & 1 == 1),
        };
        parent.level += 1;
        parent.count += u8::from(self.rules.split_raises_parent);
        parent.keys = [0, 1].map(|key| parent.keys[key] && !half.keys[key]);
        state.buckets.push(half);
    }
}

impl Folds {
    fn merge(&self, state: &mut State, bucket: usize) {
        let half = state.buckets.pop().expect("a bucket that was split has a half");
        let merged = &mut state.buckets[bucket];
        merged.level -= 1;
        if self.rules.merge_raises_parent {
            merged.count = merged.count.max(half.count) + 1;
        }
        merged.keys = [0, 1].map(|key| merged.keys[key] || half.keys[key]);
        state.has_merged = true;
    }
}

impl Model for Folds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let bucket = Bucket { keys: [true; 2], ..Bucket::default() };
        vec![State {
            buckets: vec![bucket],
            values: [0; 2],
            transactions: [Transaction::default(), Transaction::default()],
            has_merged: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, of) in state.transactions.iter().enumerate() {
            if of.phase != Phase::Committed && of.refused <= REFUSED_MAX {
                actions.push(Action::Step(number));
            }
        }
        // Linear hashing: the bucket that is split next is the one whose half has the next number.
        let next = state.buckets.len();
        let parent = next - (1 << next.ilog2());
        if next < BUCKETS_MAX && state.buckets[parent].owner.is_none() {
            actions.push(Action::Split(parent));
        }
        let last = next - 1;
        if last > 0 && !state.has_merged {
            let parent = last - (1 << last.ilog2());
            let is_free = |bucket: usize| state.buckets[bucket].owner.is_none();
            let are_halves = state.buckets[parent].level == state.buckets[last].level;
            if are_halves && is_free(parent) && is_free(last) {
                actions.push(Action::Merge(parent));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(number) => self.step(&mut state, number),
            Action::Split(bucket) => self.split(&mut state, bucket),
            Action::Merge(bucket) => self.merge(&mut state, bucket),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("only one transaction finds the sum 0", |_, state: &State| {
                state.values != [1; 2]
            }),
            Property::sometimes(
                "both commit, one of which has found the other's",
                |_, state: &State| {
                    let mut all = state.transactions.iter();
                    all.all(|of| of.phase == Phase::Committed) && state.values != [0; 2]
                },
            ),
            Property::sometimes("a fold of four buckets is valid", |_, state: &State| {
                state.transactions.iter().any(|of| of.phase == Phase::Committed && of.end == 4)
            }),
            Property::sometimes("a split makes a fold invalid", |_, state: &State| {
                let is_split =
                    state.buckets.len() > 1 && state.values == [0; 2] && !state.has_merged;
                is_split && state.transactions.iter().any(|of| of.refused > 0)
            }),
            Property::sometimes("a fold beside a merge is valid", |_, state: &State| {
                let committed = |of: &Transaction| of.phase == Phase::Committed && of.refused == 0;
                state.has_merged && state.transactions.iter().any(committed)
            }),
        ]
    }
}

#[test]
fn a_fold_is_validated_by_the_sum_of_the_counts() {
    check::holds("folds", Folds { rules: ALL_RULES });
}

#[test]
fn every_rule_of_folds_is_needed() {
    type Removal = fn(&mut Rules);
    let cases: [(&str, Removal); 4] = [
        ("changes are compared", |rules| rules.changes_are_compared = false),
        ("a locked bucket is refused", |rules| rules.locked_is_refused = false),
        ("a split raises the count of its bucket", |rules| rules.split_raises_parent = false),
        ("a merge raises the count of its bucket", |rules| rules.merge_raises_parent = false),
    ];
    for (name, remove) in cases {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Folds { rules });
    }
}
