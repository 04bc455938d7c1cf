//! Pairs: inserts, deletes, and reads of absent keys.
//!
//! 100 rows per node. A transaction takes two adjacent keys, 2i and 2i + 1, which are always both present or both absent,
//! with equal values: get 30 %, delete 35 %, insert 35 %. A committed get that sees a single key, or two values, shows a
//! broken validation of absence or a torn commit.
//!
//! *Not here*: absence in ranges of keys (`ranges`).

use gannet_engine::{Abort, Cluster, Coordinator, LockMode, TableId, Transaction};
use rand::RngExt;

use crate::check::Check;
use crate::harness::Settings;
use crate::report::Report;
use crate::rows::for_each_row;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

const ROWS_PER_NODE: u64 = 100;
const VALUE_BYTES: usize = 40;
const GET: usize = 0;
const DELETE: usize = 1;
const INSERT: usize = 2;
/// Tally: a committed get saw an impossible pair.
const BROKEN: usize = 0;

/// The workload.
#[derive(Default)]
pub struct Pairs {
    pairs: u64,
    table: Option<TableId>,
}

impl Pairs {
    /// Runs the workload. The loop of its clients is compiled with its transactions.
    ///
    /// # Errors
    /// Those of [`crate::run`].
    pub fn run(self, settings: &Settings) -> std::result::Result<Report, BenchmarkError> {
        crate::run(self, settings)
    }

    fn table(&self) -> TableId {
        self.table.expect("the harness creates the tables first")
    }

    /// Reads both keys. Returns whether the pair is present, and whether it is broken.
    fn get(&self, tx: &mut Transaction<'_>, pair: u64) -> std::result::Result<(bool, bool), Abort> {
        let rows = [2 * pair, 2 * pair + 1].map(|key| tx.add_to_read_set(self.table(), key));
        tx.execute()?;
        let (found, broken) = match rows.map(|row| tx.value(row)) {
            [None, None] => (false, false),
            [Some(a), Some(b)] => (true, a != b),
            [Some(_), None] | [None, Some(_)] => (true, true),
        };
        tx.commit()?;
        Ok((found, broken))
    }

    /// Deletes or inserts both keys. Returns whether that was possible.
    fn change(
        &self,
        tx: &mut Transaction<'_>,
        pair: u64,
        mode: LockMode,
        stamp: u64,
    ) -> std::result::Result<bool, Abort> {
        let rows = [2 * pair, 2 * pair + 1].map(|key| tx.add_to_write_set(self.table(), key, mode));
        tx.execute()?;
        let there = rows.map(|row| tx.value(row).is_some());
        let possible = there == [mode == LockMode::Delete; 2];
        if !possible {
            tx.abort();
            return Ok(false);
        }
        if mode == LockMode::Insert {
            for row in rows {
                for word in tx.value_mut(row)?.chunks_exact_mut(8) {
                    word.copy_from_slice(&stamp.to_le_bytes());
                }
            }
        }
        tx.commit()?;
        Ok(true)
    }
}

impl Workload for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["get", "delete", "insert"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["broken pairs"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("rows per node", ROWS_PER_NODE.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let rows = ROWS_PER_NODE * cluster.options().nodes as u64;
        self.pairs = rows / 2;
        self.table = Some(cluster.open_table("pairs", VALUE_BYTES, rows)?);
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        // Every second pair exists at the start.
        for pair in (0..self.pairs).filter(|pair| pair % 2 == 0 && pair / 2 % shares == share) {
            for key in [2 * pair, 2 * pair + 1] {
                loader.add(self.table(), key, &[7; VALUE_BYTES])?;
            }
        }
        Ok(loader.finish()?)
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let pair = random.random_range(0..self.pairs);
        let draw = random.random_range(0..100);
        let stamp = random.random();
        let tx = coordinator.begin();
        let (transaction, outcome) = match draw {
            0..30 => (GET, self.get(tx, pair)),
            30..65 => {
                (DELETE, self.change(tx, pair, LockMode::Delete, 0).map(|done| (done, false)))
            }
            _ => (INSERT, self.change(tx, pair, LockMode::Insert, stamp).map(|done| (done, false))),
        };
        let (result, broken) = match outcome {
            Ok((true, broken)) => (Result::Qualified, broken),
            Ok((false, broken)) => (Result::RowsMissing, broken),
            Err(abort) => {
                tx.abort();
                (Result::Aborted(abort), false)
            }
        };
        Ran { transaction, result, tally: broken.then_some(BROKEN) }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let mut rows = std::collections::BTreeMap::new();
        for_each_row(cluster, self.table(), |key, value| {
            rows.insert(key, value.to_vec());
        });
        let broken =
            (0..self.pairs).filter(|pair| rows.get(&(2 * pair)) != rows.get(&(2 * pair + 1)));
        let loaded = i128::from(self.pairs.div_ceil(2));
        let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
        let expected = 2 * (loaded + committed(INSERT) - committed(DELETE));
        vec![
            Check::equal("gets that saw half a pair", 0, i128::from(totals.tallies[BROKEN])),
            Check::equal("broken pairs at the end", 0, broken.count() as i128),
            Check::equal("rows", expected, rows.len() as i128).of_all_outcomes(),
        ]
    }
}
