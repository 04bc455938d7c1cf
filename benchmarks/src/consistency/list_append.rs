//! The workload of lists: transactions read lists and append to them. Every read shows the order of all appends before it.
//!
//! A transaction touches one to four lists of a window. The window moves on as lists fill up, so lists are created all the
//! time. Before an append, a transaction either reads the list in an earlier round of execute, or locks the list at once in
//! the mode that it guesses; a wrong guess serves as a read.
//!
//! *Source*: Kingsbury and Alvaro, Elle (VLDB 2020).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use gannet_engine::{Abort, Cluster, Conflict, Coordinator, LockMode, RowId, TableId, Transaction};
use rand::RngExt;
use rand::seq::IndexedRandom;

use crate::check::Check;
use crate::consistency::history::{Fate, History, Operation, Recorded};
use crate::consistency::{acknowledged, colliding_keys, second_opinion, serializable};
use crate::rows::for_each_row;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

/// Maximum number of elements of a list.
const ELEMENTS_MAX: usize = 62;
const VALUE_BYTES: usize = 4 * (1 + ELEMENTS_MAX);
/// Lists that transactions choose from.
const WINDOW: usize = 8;
/// Appends before the window moves on by one list.
const APPENDS_PER_LIST: usize = 36;
/// Maximum number of lists of a transaction.
const LISTS_MAX: usize = 4;
/// Buckets of each partition that all lists share.
const BUCKETS: u32 = 6;

/// The workload, with its recorded history.
pub struct ListAppend {
    history: History,
    next_value: AtomicU64,
    keys: Vec<u64>,
    table: Option<TableId>,
}

/// A transaction's treatment of one list.
#[derive(Clone, Copy)]
enum Plan {
    Read,
    /// A read, and a lock in the next round.
    ReadThenAppend,
    /// A lock at once, in the guessed mode.
    Append(LockMode),
}

impl ListAppend {
    /// A workload with room for the lists of about `transactions` transactions.
    #[must_use]
    pub fn new(transactions: u64) -> Self {
        let transactions = usize::try_from(transactions).unwrap_or(usize::MAX);
        let lists = transactions.saturating_mul(LISTS_MAX) / APPENDS_PER_LIST + 2 * WINDOW;
        Self {
            history: History::default(),
            next_value: AtomicU64::new(1),
            keys: vec![0; lists],
            table: None,
        }
    }

    fn table(&self) -> TableId {
        self.table.expect("the harness creates the tables first")
    }

    /// Runs a transaction, and records its operations in `operations`.
    fn transact(
        &self,
        tx: &mut Transaction<'_>,
        random: &mut Random,
        operations: &mut Vec<Operation>,
    ) -> std::result::Result<(), Abort> {
        let appended = usize::try_from(self.next_value.load(Ordering::Relaxed));
        let first = appended.unwrap_or(usize::MAX) / APPENDS_PER_LIST;
        let mut choice: Vec<_> = (first..first + WINDOW).collect();
        let count = random.random_range(1..=LISTS_MAX);
        choice = choice.sample(random, count).copied().collect();
        let plans: Vec<_> = choice
            .into_iter()
            .map(|list| {
                let key = self.keys[list % self.keys.len()];
                let is_old = list < first + WINDOW / 2;
                let mode = if is_old { LockMode::Update } else { LockMode::Insert };
                let plan = match random.random_range(0..4) {
                    0 | 1 => Plan::Read,
                    2 => Plan::ReadThenAppend,
                    _ => Plan::Append(mode),
                };
                let row = match plan {
                    Plan::Append(mode) => tx.add_to_write_set(self.table(), key, mode),
                    Plan::Read | Plan::ReadThenAppend => tx.add_to_read_set(self.table(), key),
                };
                (key, plan, row)
            })
            .collect();
        // An aborted transaction records its appends as well.
        let value = || self.next_value.fetch_add(1, Ordering::Relaxed);
        tx.execute()?;
        let mut second = Vec::new();
        for (key, plan, row) in plans {
            let elements = elements(tx.value(row));
            match plan {
                Plan::Append(LockMode::Insert) if tx.value(row).is_none() => {
                    operations.push(Operation::Append { key, value: value() });
                    append(tx, row, &elements, operations)?;
                }
                Plan::Append(LockMode::Update)
                    if tx.value(row).is_some() && elements.len() < ELEMENTS_MAX =>
                {
                    operations.push(Operation::Append { key, value: value() });
                    append(tx, row, &elements, operations)?;
                }
                Plan::ReadThenAppend if elements.len() < ELEMENTS_MAX => {
                    let there = tx.value(row).is_some();
                    let mode = if there { LockMode::Update } else { LockMode::Insert };
                    second.push((key, tx.add_to_write_set(self.table(), key, mode), there));
                    operations.push(Operation::ReadList { key, elements });
                }
                _ => operations.push(Operation::ReadList { key, elements }),
            }
        }
        tx.execute()?;
        for (key, row, was_there) in second {
            // A list that was read in the first round may be gone by now, which commit would detect.
            if was_there != tx.value(row).is_some() {
                return Err(Conflict::Changed.into());
            }
            let elements = elements(tx.value(row));
            operations.push(Operation::Append { key, value: value() });
            append(tx, row, &elements, operations)?;
        }
        tx.commit()
    }
}

/// Appends the value of the last operation.
fn append(
    tx: &mut Transaction<'_>,
    row: RowId,
    elements: &[u64],
    operations: &[Operation],
) -> std::result::Result<(), Abort> {
    let Some(&Operation::Append { value, .. }) = operations.last() else { return Ok(()) };
    let mut list = [0; VALUE_BYTES];
    let all = elements.iter().copied().chain([value]);
    let count = elements.len() as u64 + 1;
    for (word, number) in
        list.as_chunks_mut::<4>().0.iter_mut().zip(std::iter::once(count).chain(all))
    {
        *word = u32::try_from(number).expect("values are small").to_le_bytes();
    }
    tx.put(row, &list)
}

/// The elements of a list; none if the list does not exist.
fn elements(value: Option<&[u8]>) -> Vec<u64> {
    let words = value.unwrap_or(&[]).as_chunks::<4>().0;
    let mut numbers = words.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let count = numbers.next().unwrap_or(0);
    numbers.take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

impl Workload for ListAppend {
    fn name(&self) -> &'static str {
        "list-append"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["list_append"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("lists in use", WINDOW.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let table = cluster.open_table("lists", VALUE_BYTES, 1)?;
        self.keys = colliding_keys(cluster, table, self.keys.len(), BUCKETS);
        self.table = Some(table);
        Ok(())
    }

    fn load(&self, _: &Cluster, _: u64, _: u64) -> std::result::Result<(), BenchmarkError> {
        Ok(())
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let mut recording = self.history.record();
        let tx = coordinator.begin();
        let result = match self.transact(tx, random, &mut recording.operations) {
            Ok(()) => Result::Qualified,
            Err(abort) => {
                tx.abort();
                Result::Aborted(abort)
            }
        };
        recording.complete(Fate::of(result));
        Ran { transaction: 0, result, tally: None }
    }

    fn verify(&self, cluster: &Cluster, _: &Totals) -> Vec<Check> {
        let mut lists = BTreeMap::new();
        for_each_row(cluster, self.table(), |key, value| {
            lists.insert(key, elements(Some(value)));
        });
        // A transaction that reads every list at the end.
        let invoked = self.history.invoke();
        let reads = lists
            .iter()
            .map(|(&key, elements)| Operation::ReadList { key, elements: elements.clone() });
        self.history.complete(invoked, Fate::Committed, reads.collect());
        judge_lists(&self.history.transactions(), &lists)
    }
}

/// Whether a history of lists is strictly serializable, given the lists at its end. Our checkers and the crate `adya` judge.
#[must_use]
pub fn judge_lists(history: &[Recorded], lists: &BTreeMap<u64, Vec<u64>>) -> Vec<Check> {
    let ours = serializable::check(history, lists);
    let (theirs, said) = second_opinion::judge(history, adya::Workload::ListAppend);
    let none = |name: &str, wrong: &[String]| {
        let counted = format!("{} transactions, {} violations", history.len(), wrong.len());
        let detail = wrong.first().map_or(counted.clone(), |first| format!("{counted}: {first}"));
        Check::new(name, wrong.is_empty(), detail)
    };
    vec![
        none("strictly serializable", &ours),
        Check::new("adya: strictly serializable", theirs, said),
        Check::new(
            "both checkers agree",
            ours.is_empty() == theirs,
            format!("ours {}, adya {theirs}", ours.is_empty()),
        ),
        none("acknowledged appends", &acknowledged::check(history, lists)),
    ]
}
