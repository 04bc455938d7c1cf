//! The workload of registers: most transactions use a single register. A read that skips validation must still fit into one
//! order of all operations on its register.
//!
//! *Not here*: the checker (`linearizable`).

use std::sync::atomic::{AtomicU64, Ordering};

use gannet_engine::{Abort, Cluster, Coordinator, LockMode, TableId, Transaction};
use rand::RngExt;

use crate::check::Check;
use crate::consistency::history::{Fate, History, Operation};
use crate::consistency::{colliding_keys, linearizable, second_opinion};
use crate::rows::for_each_row;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

/// Bytes of a register. Its value fills them all, so a torn read shows. A few registers fill several packets on most
/// networks.
const VALUE_BYTES: usize = 1_000;
/// Number of registers.
const REGISTERS: usize = 12;
/// Buckets of each partition that all registers share.
const BUCKETS: u32 = 4;
const READ: usize = 0;
const WRITE: usize = 1;
const MIXED: usize = 2;
/// Tally: a committed read saw a value with differing words.
const TORN: usize = 0;

/// The workload, with its recorded history.
pub struct Registers {
    history: History,
    next_value: AtomicU64,
    keys: Vec<u64>,
    table: Option<TableId>,
}

impl Default for Registers {
    fn default() -> Self {
        Self {
            history: History::default(),
            next_value: AtomicU64::new(1),
            keys: Vec::new(),
            table: None,
        }
    }
}

impl Registers {
    fn table(&self) -> TableId {
        self.table.expect("the harness creates the tables first")
    }

    /// Reads the registers `reads`, and writes new values to `writes`. Returns whether a value was torn.
    fn transact(
        &self,
        tx: &mut Transaction<'_>,
        (reads, writes): (&[u64], &[u64]),
        operations: &mut Vec<Operation>,
    ) -> std::result::Result<bool, Abort> {
        let table = self.table();
        let reads: Vec<_> =
            reads.iter().map(|&key| (key, tx.add_to_read_set(table, key))).collect();
        let writes: Vec<_> = writes
            .iter()
            .map(|&key| (key, tx.add_to_write_set(table, key, LockMode::Update)))
            .collect();
        for &(key, _) in &writes {
            let value = self.next_value.fetch_add(1, Ordering::Relaxed);
            operations.push(Operation::Write { key, value });
        }
        tx.execute()?;
        for (operation, &(_, row)) in operations.iter().zip(&writes) {
            let &Operation::Write { value, .. } = operation else { continue };
            tx.value_mut(row)?.as_chunks_mut::<8>().0.fill(value.to_le_bytes());
        }
        let mut torn = false;
        for (key, row) in reads {
            let words = tx.value(row).unwrap_or(&[]).as_chunks::<8>().0;
            torn |= words.windows(2).any(|pair| pair[0] != pair[1]);
            let value = words.first().map_or(0, |word| u64::from_le_bytes(*word));
            // Reads come first, because a transaction does not see its own writes.
            operations.insert(0, Operation::ReadRegister { key, value });
        }
        tx.commit()?;
        Ok(torn)
    }
}

impl Workload for Registers {
    fn name(&self) -> &'static str {
        "registers"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["read", "write", "mixed"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["torn values"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("registers", REGISTERS.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let table = cluster.open_table("registers", VALUE_BYTES, 1)?;
        self.keys = colliding_keys(cluster, table, REGISTERS, BUCKETS);
        self.table = Some(table);
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        _: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        if share > 0 {
            return Ok(());
        }
        let mut loader = cluster.loader();
        for &key in &self.keys {
            loader.add(self.table(), key, &[0; VALUE_BYTES])?;
        }
        Ok(loader.finish()?)
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let first = random.random_range(0..REGISTERS);
        let keys = [0, 1, 3].map(|next| self.keys[(first + next) % REGISTERS]);
        let (transaction, reads, writes): (_, &[u64], &[u64]) = match random.random_range(0..10) {
            0..5 => (READ, &keys[..1], &[]),
            5..7 => (WRITE, &[], &keys[..1]),
            7 => (MIXED, &keys, &[]),
            8 => (MIXED, &keys[..2], &keys[2..]),
            _ => (MIXED, &keys[..1], &keys[..2]),
        };
        let mut recording = self.history.record();
        let tx = coordinator.begin();
        let operations = &mut recording.operations;
        let (result, torn) = match self.transact(tx, (reads, writes), operations) {
            Ok(torn) => (Result::Qualified, torn),
            Err(abort) => {
                tx.abort();
                (Result::Aborted(abort), false)
            }
        };
        recording.complete(Fate::of(result));
        Ran { transaction, result, tally: torn.then_some(TORN) }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        // A transaction that reads every register at the end.
        let mut recording = self.history.record();
        for_each_row(cluster, self.table(), |key, value| {
            let value = value.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            recording.operations.push(Operation::ReadRegister { key, value });
        });
        recording.complete(Fate::Committed);
        let history = self.history.transactions();
        let wrong = linearizable::check(&history);
        let (theirs, said) = second_opinion::judge(&history, adya::Workload::RwRegister);
        let counted = format!("{} transactions, {} violations", history.len(), wrong.len());
        let detail = wrong.first().map_or(counted.clone(), |first| format!("{counted}: {first}"));
        vec![
            Check::new("each register linearizable", wrong.is_empty(), detail),
            Check::new("adya: strictly serializable", theirs, said),
            Check::equal("torn values", 0, i128::from(totals.tallies[TORN])),
        ]
    }
}
