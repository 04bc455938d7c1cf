//! The invariant of registers: one order of the operations on each register, compatible with real time, explains every read.
//!
//! Every value is written once, so the write and the reads of a value form a block. If the block's first end lies before its
//! last start, the register must hold the value in between: a forward zone. Otherwise all operations overlap, and some moment
//! in between suffices: a backward zone. A register is linearizable exactly if no two forward zones overlap, no backward zone
//! lies within a forward one, and no read ends before its write starts.
//!
//! *Source*: Gibbons and Korach, Testing Shared Memories (SIAM Journal on Computing, 1997), section 4.

use std::collections::BTreeMap;

use crate::consistency::history::{Fate, Operation, Recorded};

/// The write and the reads of one value.
#[derive(Clone, Copy)]
struct Block {
    written_from: Option<u64>,
    first_end: u64,
    last_start: u64,
}

/// The violations in a history of registers.
pub(super) fn check(history: &[Recorded]) -> Vec<String> {
    let mut registers: BTreeMap<u64, BTreeMap<u64, Block>> = BTreeMap::new();
    for transaction in history.iter().filter(|one| one.fate == Fate::Committed) {
        for operation in &transaction.operations {
            let (key, value, is_write) = match *operation {
                Operation::Write { key, value } => (key, value, true),
                Operation::ReadRegister { key, value } => (key, value, false),
                Operation::Append { .. } | Operation::ReadList { .. } => continue,
            };
            let Recorded { invoked, completed, .. } = *transaction;
            let blocks = registers.entry(key).or_default();
            let block = blocks.entry(value).or_insert(Block {
                // The value 0 exists from the start.
                written_from: (value == 0).then_some(0),
                first_end: if value == 0 { 0 } else { completed },
                last_start: if value == 0 { 0 } else { invoked },
            });
            block.first_end = block.first_end.min(completed);
            block.last_start = block.last_start.max(invoked);
            if is_write {
                block.written_from = Some(invoked);
            }
        }
    }
    for transaction in history.iter().filter(|one| one.fate == Fate::Unknown) {
        for operation in &transaction.operations {
            let Operation::Write { key, value } = operation else { continue };
            // A value that was read must have been written at some time.
            let block = registers.get_mut(key).and_then(|blocks| blocks.get_mut(value));
            if let Some(block) = block {
                block.written_from = Some(transaction.invoked);
                block.last_start = block.last_start.max(transaction.invoked);
            }
        }
    }
    registers.iter().flat_map(|(&key, blocks)| check_register(key, blocks)).collect()
}

fn check_register(key: u64, blocks: &BTreeMap<u64, Block>) -> Vec<String> {
    let mut wrong = Vec::new();
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for (&value, block) in blocks {
        match block.written_from {
            None => {
                wrong.push(format!("register {key} was read as {value}, which no client wrote"))
            }
            Some(from) if block.first_end < from => {
                wrong.push(format!("register {key} was read as {value} before that was written"));
            }
            Some(_) => {}
        }
        if block.first_end < block.last_start {
            forward.push((block.first_end, block.last_start, value));
        } else {
            backward.push((block.last_start, block.first_end, value));
        }
    }
    forward.sort_unstable();
    for pair in forward.windows(2) {
        if pair[1].0 < pair[0].1 {
            let (a, b) = (pair[0].2, pair[1].2);
            wrong.push(format!("register {key} held {a} and {b} at the same time"));
        }
    }
    for &(start, end, value) in &backward {
        // Forward zones do not overlap here, so only the last one that begins before can contain this zone.
        let before = forward.partition_point(|&(from, ..)| from < start);
        if before > 0 && end < forward[before - 1].1 {
            let other = forward[before - 1].2;
            wrong.push(format!("register {key} held {value} while it held {other}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations on one register as (start, end, is write, value).
    fn violations(operations: &[(u64, u64, bool, u64)]) -> usize {
        let history: Vec<_> = operations
            .iter()
            .map(|&(invoked, completed, is_write, value)| Recorded {
                invoked,
                completed,
                fate: Fate::Committed,
                operations: vec![if is_write {
                    Operation::Write { key: 1, value }
                } else {
                    Operation::ReadRegister { key: 1, value }
                }],
            })
            .collect();
        check(&history).len()
    }

    #[test]
    fn linearizable_histories_pass() {
        assert_eq!(violations(&[(1, 2, false, 0), (3, 4, true, 1), (5, 6, false, 1)]), 0);
        assert_eq!(violations(&[(1, 9, true, 1), (2, 3, false, 0), (4, 5, false, 1)]), 0);
        assert_eq!(violations(&[(1, 8, true, 1), (2, 9, true, 2), (10, 11, false, 1)]), 0);
    }

    #[test]
    fn violations_are_found() {
        assert_eq!(violations(&[(1, 2, true, 1), (3, 4, false, 0)]), 1, "stale");
        assert_eq!(violations(&[(1, 9, true, 1), (2, 3, false, 1), (4, 5, false, 0)]), 1, "back");
        assert_eq!(violations(&[(3, 4, true, 1), (1, 2, false, 1)]), 1, "future");
        assert_eq!(violations(&[(1, 2, false, 7)]), 1, "invented");
        assert!(
            violations(&[(1, 2, true, 1), (3, 4, true, 2), (5, 6, false, 1), (7, 8, false, 2),])
                > 0,
            "two values at once"
        );
    }
}
