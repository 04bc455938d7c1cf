//! Skew: validation of rows that are read and not written.
//!
//! Pairs of accounts x and y. A transaction reads both, and withdraws from one of them only if x + y covers the amount.
//! Serializable executions keep x + y >= 0. Without read validation, two transactions that withdraw from different accounts
//! of a pair each see a sufficient sum, and together take too much.
//!
//! *Source*: the write skew of Berenson et al., A Critique of ANSI SQL Isolation Levels, A5B.

use gannet_engine::{Abort, Cluster, Coordinator, LockMode, TableId, Transaction};
use rand::RngExt;

use crate::check::Check;
use crate::harness::Settings;
use crate::report::Report;
use crate::rows::for_each_row;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

const WITHDRAW: usize = 0;
const DEPOSIT: usize = 1;
const CHECK: usize = 2;
/// The amount of a withdrawal or a deposit.
const AMOUNT: i64 = 100;
/// Tally: a committed read saw a pair with a sum below zero.
const BELOW_ZERO: usize = 0;

/// The workload.
pub struct Skew {
    pairs: u64,
    table: Option<TableId>,
}

impl Skew {
    /// A workload with `pairs` pairs of accounts; few pairs make conflicts frequent.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] if `pairs` is 0.
    pub fn new(pairs: u64) -> std::result::Result<Self, BenchmarkError> {
        if pairs == 0 || pairs > 1 << 40 {
            let (value, allowed) = (pairs.to_string(), "1 to 2^40".to_owned());
            return Err(BenchmarkError::Setting { setting: "--pairs", value, allowed });
        }
        Ok(Self { pairs, table: None })
    }

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

    /// Reads both accounts of a pair; adds `change`, if there is one, to account `which`, and commits.
    fn transact(
        &self,
        tx: &mut Transaction<'_>,
        pair: u64,
        change: Option<(u64, i64)>,
    ) -> std::result::Result<(bool, i64), Abort> {
        let rows = [2 * pair, 2 * pair + 1].map(|key| tx.add_to_read_set(self.table(), key));
        tx.execute()?;
        let balances = rows.map(|row| tx.value(row).map_or(0, balance));
        let sum = balances[0] + balances[1];
        let Some((which, amount)) = change else {
            tx.commit()?;
            return Ok((true, sum));
        };
        if sum + amount < 0 {
            tx.commit()?;
            return Ok((false, sum));
        }
        let row = tx.add_to_write_set(self.table(), 2 * pair + which, LockMode::Update);
        tx.execute()?;
        let changed = tx.value(row).map_or(0, balance) + amount;
        tx.put(row, &changed.to_le_bytes())?;
        tx.commit()?;
        Ok((true, sum))
    }
}

fn balance(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().expect("an account is 8 bytes"))
}

impl Workload for Skew {
    fn name(&self) -> &'static str {
        "skew"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["withdraw", "deposit", "check"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["sums below zero"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("pairs", self.pairs.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        self.table = Some(cluster.open_table("accounts", 8, 2 * self.pairs)?);
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        for key in (0..2 * self.pairs).filter(|key| key % shares == share) {
            loader.add(self.table(), key, &AMOUNT.to_le_bytes())?;
        }
        Ok(loader.finish()?)
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let pair = random.random_range(0..self.pairs);
        let which = random.random_range(0..2);
        let draw = random.random_range(0..100);
        let tx = coordinator.begin();
        let (transaction, change) = match draw {
            0..60 => (WITHDRAW, Some((which, -AMOUNT))),
            60..85 => (DEPOSIT, Some((which, AMOUNT))),
            _ => (CHECK, None),
        };
        let (result, tally) = match self.transact(tx, pair, change) {
            Ok((true, sum)) => (Result::Qualified, (sum < 0).then_some(BELOW_ZERO)),
            Ok((false, sum)) => (Result::RowsMissing, (sum < 0).then_some(BELOW_ZERO)),
            Err(abort) => {
                tx.abort();
                (Result::Aborted(abort), None)
            }
        };
        Ran { transaction, result, tally }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let mut sums = std::collections::BTreeMap::new();
        for_each_row(cluster, self.table(), |key, value| {
            *sums.entry(key / 2).or_insert(0_i128) += i128::from(balance(value));
        });
        let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
        let initial = i128::from(2 * self.pairs) * i128::from(AMOUNT);
        let expected = initial + i128::from(AMOUNT) * (committed(DEPOSIT) - committed(WITHDRAW));
        let below = sums.values().filter(|&&sum| sum < 0).count();
        vec![
            Check::equal(
                "committed reads of a sum below zero",
                0,
                i128::from(totals.tallies[BELOW_ZERO]),
            ),
            Check::equal("pairs below zero at the end", 0, below as i128),
            Check::equal("sum of all accounts", expected, sums.values().sum()).of_all_outcomes(),
        ]
    }
}
