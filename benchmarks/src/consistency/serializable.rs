//! The invariant of lists: one order of all transactions, compatible with real time, explains every list that was read.
//!
//! The lists at the end of the run give the order of all appends to each key. Each read must be a prefix of its list. Then
//! every dependency is known:
//!
//! ```text
//! append of element i  -> append of element i + 1           (ww)
//! append of element i  -> read that ends with it            (wr)
//! read of i elements   -> append of element i + 1           (rw)
//! end of a transaction -> start of any that started later   (real time, through a chain of moments)
//! ```
//!
//! The history is strictly serializable exactly if the dependencies have no cycle.
//!
//! *Source*: Adya, Weak Consistency (1999), for the dependencies.

use std::collections::BTreeMap;

use crate::consistency::history::{Fate, Operation, Recorded};

/// Transactions of a cycle that a message names.
const NAMED_MAX: usize = 8;

/// The violations in a history, given the lists at its end.
pub(super) fn check(history: &[Recorded], lists: &BTreeMap<u64, Vec<u64>>) -> Vec<String> {
    let committed: Vec<_> = history.iter().filter(|one| one.fate != Fate::Aborted).collect();
    let mut writer_of = BTreeMap::new();
    for (index, transaction) in committed.iter().enumerate() {
        for operation in &transaction.operations {
            if let Operation::Append { key, value } = operation {
                writer_of.insert((*key, *value), index);
            }
        }
    }
    let mut wrong = Vec::new();
    let mut graph = Graph::new(&committed);
    let writer = |key: u64, list: &[u64], at: usize| {
        list.get(at).and_then(|&value| writer_of.get(&(key, value)).copied())
    };
    for (&key, list) in lists {
        for at in 1..list.len() {
            graph.connect(writer(key, list, at - 1), writer(key, list, at));
        }
    }
    let nothing = Vec::new();
    for (index, transaction) in committed.iter().enumerate() {
        if transaction.fate != Fate::Committed {
            continue;
        }
        for operation in &transaction.operations {
            let Operation::ReadList { key, elements } = operation else { continue };
            let list = lists.get(key).unwrap_or(&nothing);
            if !list.starts_with(elements) {
                wrong.push(format!("list {key} was read as {elements:?} and ends as {list:?}"));
                continue;
            }
            let count = elements.len();
            if count > 0 {
                graph.connect(writer(*key, list, count - 1), Some(index));
            }
            graph.connect(Some(index), writer(*key, list, count));
        }
    }
    if let Some(cycle) = graph.cycle() {
        let named: Vec<_> = cycle
            .iter()
            .take(NAMED_MAX)
            .map(|&index| format!("{:?}", committed[index].operations))
            .collect();
        wrong.push(format!(
            "{} transactions depend on each other: {}",
            cycle.len(),
            named.join(" -> ")
        ));
    }
    wrong
}

/// The nodes are transactions, then moments: moment i is the i-th end of a transaction.
struct Graph {
    transactions: usize,
    after: Vec<Vec<u32>>,
}

impl Graph {
    /// The real-time dependencies of `committed`, which is in the order of the ends. An unknown transaction may take effect
    /// after its client has given up.
    fn new(committed: &[&Recorded]) -> Self {
        let transactions = committed.len();
        let mut graph = Self { transactions, after: vec![Vec::new(); 2 * transactions] };
        let ends: Vec<_> = committed.iter().map(|one| one.completed).collect();
        for (index, transaction) in committed.iter().enumerate() {
            let moment = transactions + index;
            if transaction.fate == Fate::Committed {
                graph.add(index, moment);
            }
            if index > 0 {
                graph.add(moment - 1, moment);
            }
            // The transaction starts after all earlier ends; the last of these implies the others.
            let before = ends.partition_point(|&end| end < transaction.invoked);
            if before > 0 {
                graph.add(transactions + before - 1, index);
            }
        }
        graph
    }

    fn add(&mut self, from: usize, to: usize) {
        self.after[from].push(u32::try_from(to).expect("fewer than 2^31 transactions"));
    }

    /// Adds a dependency between two transactions, if both exist.
    fn connect(&mut self, from: Option<usize>, to: Option<usize>) {
        if let (Some(from), Some(to)) = (from, to)
            && from != to
        {
            self.add(from, to);
        }
    }

    /// The transactions of a cycle, if there is one.
    fn cycle(&self) -> Option<Vec<usize>> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.after.len()];
        let mut path: Vec<(usize, usize)> = Vec::new();
        for root in 0..self.after.len() {
            if state[root] != NEW {
                continue;
            }
            path.push((root, 0));
            state[root] = OPEN;
            while let Some((node, next)) = path.last_mut() {
                let node = *node;
                let Some(&to) = self.after[node].get(*next) else {
                    state[node] = DONE;
                    path.pop();
                    continue;
                };
                *next += 1;
                let to = to as usize;
                if state[to] == OPEN {
                    let start = path.iter().position(|&(on_path, _)| on_path == to)?;
                    let nodes = path[start..].iter().map(|&(node, _)| node);
                    return Some(nodes.filter(|&node| node < self.transactions).collect());
                }
                if state[to] == NEW {
                    state[to] = OPEN;
                    path.push((to, 0));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(key: u64, value: u64) -> Operation {
        Operation::Append { key, value }
    }

    fn read(key: u64, elements: &[u64]) -> Operation {
        Operation::ReadList { key, elements: elements.to_vec() }
    }

    /// Transactions as (start, end, operations), in the order of their ends.
    fn violations(history: &[(u64, u64, &[Operation])], lists: &[(u64, &[u64])]) -> usize {
        let history: Vec<_> = history
            .iter()
            .map(|&(invoked, completed, operations)| Recorded {
                invoked,
                completed,
                fate: Fate::Committed,
                operations: operations.to_vec(),
            })
            .collect();
        let lists = lists.iter().map(|&(key, list)| (key, list.to_vec())).collect();
        check(&history, &lists).len()
    }

    #[test]
    fn a_serial_history_passes() {
        let history: &[(u64, u64, &[Operation])] = &[
            (1, 2, &[append(1, 1)]),
            (3, 4, &[read(1, &[1]), append(1, 2)]),
            (5, 6, &[read(1, &[1, 2]), read(2, &[])]),
        ];
        assert_eq!(violations(history, &[(1, &[1, 2])]), 0);
    }

    #[test]
    fn write_skew_is_a_cycle() {
        let history: &[(u64, u64, &[Operation])] = &[
            (1, 3, &[read(1, &[]), read(2, &[]), append(1, 1)]),
            (2, 4, &[read(1, &[]), read(2, &[]), append(2, 2)]),
        ];
        assert_eq!(violations(history, &[(1, &[1]), (2, &[2])]), 1);
    }

    #[test]
    fn a_stale_read_is_a_cycle_through_real_time() {
        let history: &[(u64, u64, &[Operation])] =
            &[(1, 2, &[append(1, 1)]), (3, 4, &[read(1, &[])])];
        assert_eq!(violations(history, &[(1, &[1])]), 1);
        let history: &[(u64, u64, &[Operation])] =
            &[(1, 3, &[append(1, 1)]), (2, 4, &[read(1, &[])])];
        assert_eq!(violations(history, &[(1, &[1])]), 0, "they ran at the same time");
    }

    #[test]
    fn a_read_that_is_no_prefix_of_its_list_is_found() {
        let history: &[(u64, u64, &[Operation])] = &[(1, 2, &[read(1, &[2])])];
        assert_eq!(violations(history, &[(1, &[1, 2])]), 1);
    }
}
