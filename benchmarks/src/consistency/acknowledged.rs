//! The invariant of acknowledged appends: each is in its list once, and no aborted append is in any list.
//!
//! *Not here*: the order of the appends (`serializable`).

use std::collections::BTreeMap;

use crate::consistency::history::{Fate, Operation, Recorded};

/// The violations in the lists at the end of a run.
pub(super) fn check(history: &[Recorded], lists: &BTreeMap<u64, Vec<u64>>) -> Vec<String> {
    let mut found: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    for (&key, elements) in lists {
        for &value in elements {
            *found.entry((key, value)).or_default() += 1;
        }
    }
    let mut wrong = Vec::new();
    for transaction in history {
        for operation in &transaction.operations {
            let &Operation::Append { key, value } = operation else { continue };
            let times = found.remove(&(key, value)).unwrap_or(0);
            let allowed = match transaction.fate {
                Fate::Committed => 1..=1,
                Fate::Aborted => 0..=0,
                Fate::Unknown => 0..=1,
            };
            if !allowed.contains(&times) {
                let fate = transaction.fate;
                wrong.push(format!("{value} is {times} times in list {key}, {fate:?}"));
            }
        }
    }
    wrong.extend(found.keys().map(|(key, value)| format!("no client appended {value} to {key}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_doubled_and_invented_appends_are_found() {
        let append = |value, fate| Recorded {
            invoked: value,
            completed: value,
            fate,
            operations: vec![Operation::Append { key: 1, value }],
        };
        let history =
            [append(1, Fate::Committed), append(2, Fate::Aborted), append(3, Fate::Unknown)];
        let wrong = |list: &[u64]| check(&history, &BTreeMap::from([(1, list.to_vec())])).len();
        assert_eq!(wrong(&[1]), 0);
        assert_eq!(wrong(&[1, 3]), 0);
        assert_eq!(wrong(&[]), 1, "lost");
        assert_eq!(wrong(&[1, 1]), 1, "doubled");
        assert_eq!(wrong(&[1, 2]), 1, "aborted");
        assert_eq!(wrong(&[1, 4]), 1, "invented");
    }
}
