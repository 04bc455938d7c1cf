//! A second opinion on the same histories: the crate `adya`, which shares no code with our checkers.
//!
//! *Invariants*: each transaction is told as a process of its own, as real time orders those of one client anyway. A
//! transaction whose outcome is unknown may have happened: its writes are told, and its reads are not. The value 0 of a
//! register is told as no value. A history without dependencies passes.
//!
//! *Source*: `docs/simulation.md`, "Oracles".
//!
//! *Not here*: our own checkers (`serializable`, `linearizable`, `acknowledged`).

use adya::history::{Id, Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{Opts, Report, Valid, Workload, check};

use crate::consistency::history::{Fate, Operation, Recorded};

/// Whether `adya` finds a history strictly serializable, and its objections.
pub(super) fn judge(history: &[Recorded], workload: Workload) -> (bool, String) {
    let options = Opts { linearizable_keys: true, ..Opts::default() };
    let Report { valid, anomalies, .. } = check(&translate(history), workload, &options);
    // A history without dependencies has no violation.
    let only = |kind: &str| anomalies.len() == 1 && anomalies.contains_key(kind);
    if valid == Valid::True || only("empty-transaction-graph") {
        return (true, "strict-serializable".to_owned());
    }
    let first = anomalies.iter().find_map(|(kind, found)| Some((kind, found.first()?)));
    (false, first.map_or_else(String::new, |(kind, one)| format!("{kind}: {}", one.explanation)))
}

fn translate(history: &[Recorded]) -> adya::History {
    let mut interner = Interner::default();
    let mut ops = Vec::with_capacity(2 * history.len());
    for (process, transaction) in (0..).zip(history) {
        // The reads of an unknown transaction are unknown, and it may not have happened.
        let is_known = |operation: &&Operation| {
            let is_write = matches!(operation, Operation::Append { .. } | Operation::Write { .. });
            transaction.fate != Fate::Unknown || is_write
        };
        let known = transaction.operations.iter().filter(is_known);
        let value: Vec<_> = known.map(|one| translate_one(one, &mut interner)).collect();
        let kind = match transaction.fate {
            Fate::Committed => OpType::Ok,
            Fate::Aborted => OpType::Fail,
            Fate::Unknown => OpType::Info,
        };
        // Every transaction is its own process, because real time already orders those of one client.
        let op =
            |index: u64, kind, value| Op { index, kind, process: Some(process), value, time: None };
        ops.push(op(transaction.invoked, OpType::Invoke, value.clone()));
        ops.push(op(transaction.completed, kind, value));
    }
    ops.sort_by_key(|op| op.index);
    adya::History::from_ops(ops, interner)
}

fn translate_one(operation: &Operation, interner: &mut Interner) -> Mop {
    let mut id = |number: u64| -> Id {
        interner.intern(Scalar::Int(i64::try_from(number).unwrap_or(i64::MAX)))
    };
    match *operation {
        Operation::Append { key, value } => Mop::Append { key: id(key), value: id(value) },
        Operation::Write { key, value } => Mop::Write { key: id(key), value: id(value) },
        Operation::ReadRegister { key, value } => {
            let value = if value == 0 { ReadValue::Nil } else { ReadValue::Scalar(id(value)) };
            Mop::Read { key: id(key), value }
        }
        Operation::ReadList { key, ref elements } => {
            let elements = elements.iter().map(|&element| id(element)).collect();
            Mop::Read { key: id(key), value: ReadValue::List(elements) }
        }
    }
}
