//! The properties of a state of the model in which everything has ended.
//!
//! A state violates the properties if a bucket is locked, if two copies differ, or if a transaction is there in part. So does a
//! state that lacks a transaction whose client was told committed, or has one whose client was told aborted. Some order of the
//! transactions must explain all reads and agree with real time.
//!
//! `protocol.rs` checks each settled state; `engine/tests/model.rs` removes rules, and expects a violation.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::protocol::{Access, Fate, Protocol, State, Transaction};

/// The violations in a settled state.
pub(crate) fn violations(model: &Protocol, state: &State) -> Vec<String> {
    let mut wrong = Vec::new();
    let buckets: BTreeSet<u8> = model
        .plans
        .iter()
        .flat_map(|plan| plan.rounds.iter().flatten().map(|&(bucket, _)| bucket))
        .collect();
    let mut written = BTreeMap::new();
    for &bucket in &buckets {
        let copies: Vec<_> = model
            .copies(state, bucket)
            .into_iter()
            .map(|node| state.nodes[usize::from(node)].buckets.get(&bucket).cloned())
            .map(Option::unwrap_or_default)
            .collect();
        if copies.iter().any(|copy| copy.owner.is_some()) {
            wrong.push(format!("bucket {bucket} is locked"));
        }
        if copies.windows(2).any(|pair| pair[0].written != pair[1].written) {
            wrong.push(format!("copies of bucket {bucket} differ"));
        }
        written.insert(bucket, copies.first().map(|copy| copy.written.clone()).unwrap_or_default());
    }
    let is_there = |index: u8| {
        let plan = &model.plans[usize::from(index)];
        let writes = plan.rounds.iter().flatten().filter(|(_, access)| *access == Access::Write);
        writes.map(|(bucket, _)| written[bucket].contains(&index)).collect::<BTreeSet<bool>>()
    };
    for (index, transaction) in (0_u8..).zip(&state.transactions) {
        let there = is_there(index);
        if there.len() > 1 {
            wrong.push(format!("transaction {index} is there in part"));
        }
        if transaction.told == Some(Fate::Committed) && there.contains(&false) {
            wrong.push(format!("transaction {index} was committed and is lost"));
        }
        if transaction.told == Some(Fate::Aborted) && there.contains(&true) {
            wrong.push(format!("transaction {index} was aborted and is there"));
        }
    }
    if has_cycle(model, state, &written, &is_there) {
        wrong.push("no order explains what was seen".to_owned());
    }
    wrong
}

/// Whether the dependencies between committed transactions have a cycle.
fn has_cycle(
    model: &Protocol,
    state: &State,
    written: &BTreeMap<u8, Vec<u8>>,
    is_there: &impl Fn(u8) -> BTreeSet<bool>,
) -> bool {
    let count = u8::try_from(model.plans.len()).unwrap();
    let happened = |index: u8| {
        let transaction: &Transaction = &state.transactions[usize::from(index)];
        transaction.told == Some(Fate::Committed) || is_there(index).contains(&true)
    };
    let mut before = BTreeSet::new();
    for index in (0..count).filter(|&index| happened(index)) {
        let transaction = &state.transactions[usize::from(index)];
        for &(bucket, version, writer) in &transaction.observed {
            let order = &written[&bucket];
            before.extend(writer.map(|writer| (writer, index)));
            // The writer of the next version comes later. An observed version that no copy has is a violation.
            if version > 0 && order.get(usize::from(version) - 1) != writer.as_ref() {
                return true;
            }
            let next = order.get(usize::from(version)).copied();
            before.extend(next.map(|next| (index, next)));
        }
        for other in (0..count).filter(|&other| other != index && happened(other)) {
            let ended = transaction.told.is_some().then_some(transaction.ended);
            if ended.is_some_and(|end| end < state.transactions[usize::from(other)].began) {
                before.insert((index, other));
            }
        }
    }
    for order in written.values() {
        before.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
    }
    before.retain(|(from, to)| from != to);
    // Removes transactions without predecessors, until none is left or a cycle remains.
    let mut left: BTreeSet<u8> = (0..count).filter(|&index| happened(index)).collect();
    loop {
        let free: Vec<u8> = left
            .iter()
            .copied()
            .filter(|&index| !before.iter().any(|&(from, to)| to == index && left.contains(&from)))
            .collect();
        if free.is_empty() {
            return !left.is_empty();
        }
        left.retain(|index| !free.contains(index));
    }
}
