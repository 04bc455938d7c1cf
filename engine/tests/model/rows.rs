//! The model of conflicts by row: what a transaction read is valid as long as its rows are, whatever else its buckets have got.
//!
//! ```text
//! bucket 0: keys 0 and 1, bucket 1: key 2          a range that is scanned: keys 0 and 1
//! bucket     version, owner, version of its last deletion     row      version at which it was last written
//! index      number of the last change                        entry    number at which it was added, or pending
//!            number of the last removal
//! transaction   reads ─ locks, and again when one is refused ─ validates ─ applies bucket by bucket
//! ```
//! An observation is the version of a bucket. Where the bucket has another version, and nobody else holds it, the row decides: it is
//! still there, and was not written later; or it is absent, and nothing was deleted from its bucket later.
//!
//! *Abstractions*
//! - One copy, and no failures: every mark follows from units, so it is the same at all copies; `protocol.rs` has the rest.
//! - The range has one leaf. `leaves.rs` has leaves that come and go, and copies of the index.
//! - A split of a bucket is a unit without rows: like a write of the other row. Bucket 1 is merged into bucket 0 once, in one step, when
//!   nobody holds either.
//!
//! *Source*: `docs/protocol.md`, "Conflicts by row".

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::model::check;

const KEYS: usize = 3;
const BUCKETS: usize = 2;
/// The keys of the range.
const RANGE: std::ops::Range<usize> = 0..2;
const ATTEMPTS_MAX: u8 = 2;

#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each rule is there or not")]
struct Rules {
    /// A row that is there is unchanged if it was last written at the version observed, or before.
    row_versions: bool,
    /// An absent key has not come and gone if the last deletion is not later than the version observed.
    deletion_marks: bool,
    /// What was read of a bucket that the transaction holds now is checked, too.
    held_rows: bool,
    /// A unit is based on the version that the lock returned.
    granted_base: bool,
    /// A bucket that another transaction holds is not valid.
    locked_buckets: bool,
    /// An entry of the range that was added after the scan is noticed.
    added_entries: bool,
    /// An entry of the range that is pending for another transaction is noticed.
    pending_entries: bool,
    /// A removal after the scan is noticed.
    removal_marks: bool,
    /// A key of the range that another transaction is about to remove is noticed.
    leaving_entries: bool,
    /// A merged bucket takes a version above both.
    merged_version: bool,
    /// A merged bucket has the later of both deletion marks.
    merged_marks: bool,
}

const ALL_RULES: Rules = Rules {
    row_versions: true,
    deletion_marks: true,
    held_rows: true,
    granted_base: true,
    locked_buckets: true,
    added_entries: true,
    pending_entries: true,
    removal_marks: true,
    leaving_entries: true,
    merged_version: true,
    merged_marks: true,
};

#[derive(Clone, Copy, Debug)]
enum Read {
    Key(usize),
    /// The rows of the range.
    Range,
    /// The number of its keys: no row is observed.
    Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Insert(usize),
    Update(usize),
    Delete(usize),
}

impl Write {
    fn key(self) -> usize {
        match self {
            Self::Insert(key) | Self::Update(key) | Self::Delete(key) => key,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    reads: &'static [Read],
    writes: &'static [Write],
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Bucket {
    version: u8,
    owner: Option<u8>,
    deleted: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Entry {
    added: u8,
    pending: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Reading(usize),
    Locking(usize),
    Validating(usize),
    Applying(usize),
    Committed,
    Aborted,
}

/// A key that was observed: the version of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    key: usize,
    version: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Transaction {
    phase: Phase,
    seen: Vec<Seen>,
    /// The number of the index when the range was scanned.
    scanned: Option<u8>,
    /// Buckets that it holds, with their versions.
    granted: Vec<(usize, u8)>,
    attempt: u8,
    /// Of each key that it read, present or not, how many changes it had.
    history: Vec<(usize, usize)>,
    began: u8,
    ended: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    buckets: [Bucket; BUCKETS],
    /// Bucket 1 was merged into bucket 0.
    is_merged: bool,
    /// The version at which the row was last written.
    rows: [Option<u8>; KEYS],
    entries: [Entry; KEYS],
    number: u8,
    removed: u8,
    /// The writers of each key.
    written: [Vec<u8>; KEYS],
    transactions: Vec<Transaction>,
    moment: u8,
}

struct Rows {
    rules: Rules,
    present: [bool; KEYS],
    plans: Vec<Plan>,
    /// The version of bucket 1 at first, if it is to be merged.
    merges: Option<u8>,
}

/// The action of a merge, beside those of transactions.
const MERGE: u8 = u8::MAX;

impl State {
    fn bucket_of(&self, key: usize) -> usize {
        if self.is_merged { 0 } else { key / 2 }
    }
}

/// What a check of a VALIDATE finds.
enum Found {
    Valid,
    Locked,
    Changed,
}

impl Rows {
    /// Whether another transaction holds a bucket.
    fn is_held_by_other(state: &State, bucket: usize, index: u8) -> bool {
        state.buckets[bucket].owner.is_some_and(|owner| owner != index)
    }

    fn validate_row(&self, state: &State, index: u8, seen: Seen) -> Found {
        let bucket = &state.buckets[state.bucket_of(seen.key)];
        if bucket.owner == Some(index) && !self.rules.held_rows {
            return Found::Valid;
        }
        if Self::is_held_by_other(state, state.bucket_of(seen.key), index)
            && self.rules.locked_buckets
        {
            return Found::Locked;
        }
        let is_unchanged = bucket.version == seen.version
            || match state.rows[seen.key] {
                Some(version) => version <= seen.version || !self.rules.row_versions,
                None => bucket.deleted <= seen.version || !self.rules.deletion_marks,
            };
        if is_unchanged { Found::Valid } else { Found::Changed }
    }

    fn validate_range(&self, state: &State, index: u8, number: u8) -> Found {
        let entries = || RANGE.map(|key| (state.rows[key].is_some(), state.entries[key]));
        if self.is_leaving(state, index) {
            return Found::Locked;
        }
        let is_other = |owner: u8| owner != index && self.rules.pending_entries;
        if entries().any(|(_, entry)| entry.pending.is_some_and(is_other)) {
            return Found::Locked;
        }
        let is_new = |(is_there, entry): (bool, Entry)| is_there && entry.added > number;
        let is_changed = self.rules.added_entries && entries().any(is_new)
            || self.rules.removal_marks && state.removed > number;
        if is_changed { Found::Changed } else { Found::Valid }
    }

    /// Whether another transaction is about to remove a key of the range: it holds the key's bucket.
    fn is_leaving(&self, state: &State, index: u8) -> bool {
        let plans = (0_u8..).zip(&self.plans).filter(|(other, _)| *other != index);
        let deletes = |(other, plan): (u8, &Plan)| {
            plan.writes.iter().any(|write| {
                let key = write.key();
                matches!(write, Write::Delete(_))
                    && RANGE.contains(&key)
                    && state.buckets[state.bucket_of(key)].owner == Some(other)
            })
        };
        self.rules.leaving_entries && plans.into_iter().any(deletes)
    }

    fn release(state: &mut State, index: u8) {
        state.transactions[usize::from(index)].granted.clear();
        let held = state.buckets.iter_mut().filter(|bucket| bucket.owner == Some(index));
        held.for_each(|bucket| bucket.owner = None);
        let pending = state.entries.iter_mut().filter(|entry| entry.pending == Some(index));
        pending.for_each(|entry| entry.pending = None);
    }

    fn end(state: &mut State, index: u8, phase: Phase) {
        Self::release(state, index);
        state.moment += 1;
        let transaction = &mut state.transactions[usize::from(index)];
        (transaction.phase, transaction.ended) = (phase, state.moment);
    }

    /// A bucket was held by another: everything is released, and locked again.
    fn refuse(state: &mut State, index: u8) {
        Self::release(state, index);
        let transaction = &mut state.transactions[usize::from(index)];
        transaction.attempt += 1;
        if transaction.attempt == ATTEMPTS_MAX {
            return Self::end(state, index, Phase::Aborted);
        }
        transaction.phase = Phase::Locking(0);
    }

    fn read(state: &mut State, index: u8, read: Read) {
        let keys: Vec<usize> = match read {
            Read::Key(key) => vec![key],
            Read::Range | Read::Count => RANGE.collect(),
        };
        for key in keys {
            let (changes, is_there) = (state.written[key].len(), state.rows[key].is_some());
            let version = state.buckets[state.bucket_of(key)].version;
            let transaction = &mut state.transactions[usize::from(index)];
            transaction.history.push((key, changes));
            if matches!(read, Read::Key(_)) || is_there && matches!(read, Read::Range) {
                transaction.seen.push(Seen { key, version });
            }
        }
        if matches!(read, Read::Range | Read::Count) {
            state.transactions[usize::from(index)].scanned = Some(state.number);
        }
    }

    fn lock(state: &mut State, index: u8, write: Write) -> Found {
        let (key, bucket) = (write.key(), state.bucket_of(write.key()));
        if Self::is_held_by_other(state, bucket, index) {
            return Found::Locked;
        }
        if state.rows[key].is_some() == matches!(write, Write::Insert(_)) {
            return Found::Changed;
        }
        if state.buckets[bucket].owner.is_none() {
            state.buckets[bucket].owner = Some(index);
            let granted = (bucket, state.buckets[bucket].version);
            state.transactions[usize::from(index)].granted.push(granted);
        }
        if matches!(write, Write::Insert(_)) {
            state.entries[key].pending = Some(index);
        }
        Found::Valid
    }

    /// Applies the unit of a bucket, which has no effect if its base is not the bucket's version.
    fn apply(&self, state: &mut State, index: u8, (bucket, granted): (usize, u8)) {
        let transaction = &state.transactions[usize::from(index)];
        let read = transaction.seen.iter().find(|seen| state.bucket_of(seen.key) == bucket);
        let base = match read {
            Some(seen) if !self.rules.granted_base => seen.version,
            _ => granted,
        };
        state.buckets[bucket].owner = None;
        if base != state.buckets[bucket].version {
            return;
        }
        let version = base + 1;
        state.buckets[bucket].version = version;
        let writes = self.plans[usize::from(index)].writes.iter();
        let is_of_bucket: Vec<_> =
            writes.filter(|write| state.bucket_of(write.key()) == bucket).collect();
        for write in is_of_bucket {
            let key = write.key();
            state.written[key].push(index);
            match write {
                Write::Update(_) => state.rows[key] = Some(version),
                Write::Insert(_) => {
                    state.rows[key] = Some(version);
                    state.number += 1;
                    state.entries[key] = Entry { added: state.number, pending: None };
                }
                Write::Delete(_) => {
                    state.rows[key] = None;
                    state.buckets[bucket].deleted = version;
                    state.number += 1;
                    state.removed = state.number;
                }
            }
        }
    }

    /// Merges bucket 1 into bucket 0. Rows keep the versions at which they were written.
    fn merge(&self, state: &mut State) {
        let [bucket, half] = &mut state.buckets;
        let above = if self.rules.merged_version { half.version } else { 0 };
        bucket.version = bucket.version.max(above) + 1;
        if self.rules.merged_marks {
            bucket.deleted = bucket.deleted.max(half.deleted);
        }
        *half = Bucket::default();
        state.is_merged = true;
    }

    /// Whether a read is refused at present, and so is to be made again.
    fn waits(&self, state: &State, index: u8, read: Read) -> bool {
        match read {
            Read::Count => {
                let is_pending =
                    |key: usize| state.entries[key].pending.is_some_and(|it| it != index);
                self.is_leaving(state, index) || RANGE.into_iter().any(is_pending)
            }
            Read::Key(key) => Self::is_held_by_other(state, state.bucket_of(key), index),
            Read::Range => RANGE
                .filter(|key| state.rows[*key].is_some() || state.entries[*key].pending.is_some())
                .any(|key| Self::is_held_by_other(state, state.bucket_of(key), index)),
        }
    }

    /// Whether some order of the committed transactions explains what each has read, and nothing that was committed is lost.
    fn is_serializable(&self, state: &State) -> bool {
        let is_committed = |index: usize| state.transactions[index].phase == Phase::Committed;
        let committed: Vec<usize> = (0..self.plans.len()).filter(|it| is_committed(*it)).collect();
        let mut before = BTreeSet::new();
        for &index in &committed {
            let transaction = &state.transactions[index];
            for &(key, changes) in &transaction.history {
                let writers = &state.written[key];
                before.extend(changes.checked_sub(1).map(|at| (usize::from(writers[at]), index)));
                before.extend(writers.get(changes).map(|writer| (index, usize::from(*writer))));
            }
            let writes = self.plans[index].writes.iter();
            let number = u8::try_from(index).unwrap();
            if writes.clone().any(|write| !state.written[write.key()].contains(&number)) {
                return false;
            }
            let later = committed.iter().filter(|it| {
                let other: &Transaction = &state.transactions[**it];
                transaction.ended < other.began
            });
            before.extend(later.map(|later| (index, *later)));
        }
        for writers in &state.written {
            let pairs = writers.windows(2);
            before.extend(pairs.map(|pair| (usize::from(pair[0]), usize::from(pair[1]))));
        }
        before.retain(|(from, to)| from != to);
        let mut left: BTreeSet<usize> = committed.into_iter().collect();
        while !left.is_empty() {
            let has_earlier =
                |it: &usize| before.iter().any(|(from, to)| to == it && left.contains(from));
            let Some(first) = left.iter().copied().find(|it| !has_earlier(it)) else {
                return false;
            };
            left.remove(&first);
        }
        true
    }
}

impl Model for Rows {
    type State = State;
    type Action = u8;

    fn init_states(&self) -> Vec<State> {
        let versions = [1, self.merges.unwrap_or(1)];
        vec![State {
            buckets: versions.map(|version| Bucket { version, ..Bucket::default() }),
            is_merged: false,
            rows: self.present.map(|is_there| is_there.then_some(1)),
            entries: [Entry::default(); KEYS],
            number: 0,
            removed: 0,
            written: Default::default(),
            transactions: vec![Transaction::default(); self.plans.len()],
            moment: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<u8>) {
        for (index, plan) in (0_u8..).zip(&self.plans) {
            let may_step = match state.transactions[usize::from(index)].phase {
                Phase::Committed | Phase::Aborted => false,
                Phase::Reading(at) if at < plan.reads.len() => {
                    !self.waits(state, index, plan.reads[at])
                }
                _ => true,
            };
            if may_step {
                actions.push(index);
            }
        }
        let is_free = state.buckets.iter().all(|bucket| bucket.owner.is_none());
        if self.merges.is_some() && is_free && !state.is_merged {
            actions.push(MERGE);
        }
    }

    fn next_state(&self, last: &State, index: u8) -> Option<State> {
        let mut state = last.clone();
        if index == MERGE {
            self.merge(&mut state);
            return Some(state);
        }
        let (at, plan) = (usize::from(index), self.plans[usize::from(index)]);
        let transaction = &state.transactions[at];
        let (found, next) = match transaction.phase {
            Phase::Idle => {
                state.moment += 1;
                state.transactions[at].began = state.moment;
                (Found::Valid, Phase::Reading(0))
            }
            Phase::Reading(read) if read < plan.reads.len() => {
                Self::read(&mut state, index, plan.reads[read]);
                (Found::Valid, Phase::Reading(read + 1))
            }
            Phase::Reading(_) => (Found::Valid, Phase::Locking(0)),
            Phase::Locking(write) if write < plan.writes.len() => {
                (Self::lock(&mut state, index, plan.writes[write]), Phase::Locking(write + 1))
            }
            Phase::Locking(_) => (Found::Valid, Phase::Validating(0)),
            Phase::Validating(check) if check < transaction.seen.len() => {
                let found = self.validate_row(&state, index, transaction.seen[check]);
                (found, Phase::Validating(check + 1))
            }
            Phase::Validating(check) if check == transaction.seen.len() => {
                let number = transaction.scanned;
                let found = number.map(|number| self.validate_range(&state, index, number));
                (found.unwrap_or(Found::Valid), Phase::Validating(check + 1))
            }
            Phase::Validating(_) => (Found::Valid, Phase::Applying(0)),
            Phase::Applying(unit) if unit < transaction.granted.len() => {
                let granted = transaction.granted[unit];
                self.apply(&mut state, index, granted);
                (Found::Valid, Phase::Applying(unit + 1))
            }
            Phase::Applying(_) => {
                Self::end(&mut state, index, Phase::Committed);
                return Some(state);
            }
            Phase::Committed | Phase::Aborted => return None,
        };
        match found {
            Found::Valid => state.transactions[at].phase = next,
            Found::Locked => Self::refuse(&mut state, index),
            Found::Changed => Self::end(&mut state, index, Phase::Aborted),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn all(state: &State, is_so: impl Fn(Phase) -> bool) -> bool {
            state.transactions.iter().all(|it| is_so(it.phase))
        }
        vec![
            Property::always("an order explains what was read", |model: &Self, state: &State| {
                !all(state, |phase| matches!(phase, Phase::Committed | Phase::Aborted))
                    || model.is_serializable(state)
            }),
            Property::sometimes("all commit", |_, state: &State| {
                all(state, |phase| phase == Phase::Committed)
            }),
        ]
    }
}

const fn plan(reads: &'static [Read], writes: &'static [Write]) -> Plan {
    Plan { reads, writes }
}

/// A workload: which keys are there at first, and the transactions.
type Workload = ([bool; KEYS], Vec<Plan>);

/// A reader of two rows, and a writer of both.
fn two_reads() -> Workload {
    let writer = plan(&[], &[Write::Update(0), Write::Update(2)]);
    ([true; KEYS], vec![plan(&[Read::Key(0), Read::Key(2)], &[]), writer])
}

/// A key comes and goes between the reads of another transaction.
fn come_and_gone(first: &'static [Read]) -> Workload {
    let goes = plan(&[], &[Write::Delete(0), Write::Update(2)]);
    ([false, true, true], vec![plan(first, &[]), plan(&[], &[Write::Insert(0)]), goes])
}

/// Each reads a row of one bucket, and writes the other.
fn skew_in_a_bucket() -> Workload {
    let plans =
        [plan(&[Read::Key(0)], &[Write::Update(1)]), plan(&[Read::Key(1)], &[Write::Update(0)])];
    ([true; KEYS], plans.to_vec())
}

/// Two rows of one bucket are written, one of them after it was read.
fn neighbours() -> Workload {
    let plans = [plan(&[Read::Key(0)], &[Write::Update(0)]), plan(&[], &[Write::Update(1)])];
    ([true; KEYS], plans.to_vec())
}

/// Each reads a row that the other writes, in different buckets.
fn skew() -> Workload {
    let plans =
        [plan(&[Read::Key(0)], &[Write::Update(2)]), plan(&[Read::Key(2)], &[Write::Update(0)])];
    ([true; KEYS], plans.to_vec())
}

/// One scans the range, which is empty, and writes a row beside it; the other reads that row, and adds one to the range.
fn phantom() -> Workload {
    let plans =
        [plan(&[Read::Range], &[Write::Update(2)]), plan(&[Read::Key(2)], &[Write::Insert(0)])];
    ([false, false, true], plans.to_vec())
}

/// One counts the keys of the range, and then reads a row; the other writes that row, and then removes a key.
fn counted() -> Workload {
    let removes = plan(&[], &[Write::Update(2), Write::Delete(0)]);
    ([true; KEYS], vec![plan(&[Read::Count, Read::Key(2)], &[]), removes])
}

/// A reader of two rows, the first of which is in the bucket with more changes, and a writer of both.
fn two_reads_of_merged() -> Workload {
    let writer = plan(&[], &[Write::Update(0), Write::Update(2)]);
    ([true; KEYS], vec![plan(&[Read::Key(2), Read::Key(0)], &[]), writer])
}

/// A key of the bucket that is merged comes and goes between the reads of another transaction.
fn come_and_gone_in_merged() -> Workload {
    let goes = plan(&[], &[Write::Delete(2), Write::Update(0)]);
    let reader = plan(&[Read::Key(2), Read::Key(0)], &[]);
    ([true, true, false], vec![reader, plan(&[], &[Write::Insert(2)]), goes])
}

#[test]
fn what_was_read_is_valid_as_long_as_its_rows_are() {
    let workloads = [
        ("two reads", two_reads()),
        ("an absent key", come_and_gone(&[Read::Key(0), Read::Key(2)])),
        ("an empty place in a range", come_and_gone(&[Read::Range, Read::Key(2)])),
        ("skew in a bucket", skew_in_a_bucket()),
        ("neighbours", neighbours()),
        ("skew", skew()),
        ("phantom", phantom()),
        ("counted", counted()),
        ("counted, and come and gone", come_and_gone(&[Read::Count, Read::Key(2)])),
    ];
    for (name, (present, plans)) in workloads {
        check::holds(name, Rows { rules: ALL_RULES, present, plans, merges: None });
    }
}

#[test]
fn what_was_read_of_a_bucket_that_is_merged_is_valid_as_long_as_its_rows_are() {
    let workloads = [
        ("two reads beside a merge", two_reads_of_merged()),
        ("an absent key beside a merge", come_and_gone_in_merged()),
        ("skew beside a merge", skew()),
        ("skew in a bucket beside a merge", skew_in_a_bucket()),
        ("phantom beside a merge", phantom()),
    ];
    for (name, (present, plans)) in workloads {
        check::holds(name, Rows { rules: ALL_RULES, present, plans, merges: Some(3) });
    }
}

#[test]
fn every_rule_of_rows_is_needed() {
    type Removal = fn(&mut Rules);
    let merged: [(&str, Removal, Workload); 2] = [
        ("merged version", |rules| rules.merged_version = false, two_reads_of_merged()),
        ("merged marks", |rules| rules.merged_marks = false, come_and_gone_in_merged()),
    ];
    let cases: [(&str, Removal, Workload); 9] = [
        ("row versions", |rules| rules.row_versions = false, two_reads()),
        (
            "deletion marks",
            |rules| rules.deletion_marks = false,
            come_and_gone(&[Read::Key(0), Read::Key(2)]),
        ),
        ("held rows", |rules| rules.held_rows = false, skew_in_a_bucket()),
        ("granted base", |rules| rules.granted_base = false, neighbours()),
        ("locked buckets", |rules| rules.locked_buckets = false, skew()),
        ("added entries", |rules| rules.added_entries = false, phantom()),
        ("pending entries", |rules| rules.pending_entries = false, phantom()),
        ("leaving entries", |rules| rules.leaving_entries = false, counted()),
        (
            "removal marks",
            |rules| rules.removal_marks = false,
            come_and_gone(&[Read::Range, Read::Key(2)]),
        ),
    ];
    let all = cases.map(|case| (case, None)).into_iter().chain(merged.map(|it| (it, Some(3))));
    for ((name, remove, (present, plans)), merges) in all {
        let mut rules = ALL_RULES;
        remove(&mut rules);
        check::fails(name, Rows { rules, present, plans, merges });
    }
}
