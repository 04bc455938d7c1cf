//! SmallBank: savings and checking accounts, six transactions, 85 % of them writing.
//!
//! Balances are in cents, so the sum of all accounts follows exactly from the committed transactions. An account's rows have
//! the same key in both tables, and so the same primary. 4 % of the accounts are hot, and 90 % of the transactions take all
//! their accounts from those.
//!
//! *Source*: FaSST section 6.3, for the number of accounts per thread and the share of hot ones; section 6, for accounts that
//! are chosen at random without regard to their nodes. Amounts and mix are those of FaSST's released code. Its balances are
//! floating-point numbers, with which the sum of all accounts would prove nothing.
//!
//! *Not here*: detection of stale reads without a write, which the sum cannot show; the workload skew of `benchmarks` does.
#![forbid(unsafe_code)]

mod amalgamate;
mod balance;
mod deposit_checking;
mod floor;
mod send_payment;
mod sql;
mod transact_savings;
mod verify;
mod write_check;

use gannet_benchmarks::{
    BenchmarkError, Check, Ran, Random, Report, Result, Settings, Totals, Workload, seeded,
};
use gannet_engine::{Abort, Cluster, Coordinator, RowId, TableId, Transaction};
use rand::RngExt;

pub use floor::Floor;

/// The transaction types.
const TRANSACTIONS: [&str; 6] = [
    "amalgamate",
    "balance",
    "deposit_checking",
    "send_payment",
    "transact_savings",
    "write_check",
];
pub(crate) const AMALGAMATE: usize = 0;
pub(crate) const BALANCE: usize = 1;
pub(crate) const DEPOSIT_CHECKING: usize = 2;
pub(crate) const SEND_PAYMENT: usize = 3;
pub(crate) const TRANSACT_SAVINGS: usize = 4;
pub(crate) const WRITE_CHECK: usize = 5;

/// Tally: a check, covered or not.
pub(crate) const CHECKS: usize = 0;
pub(crate) const OVERDRAFT_CHECKS: usize = 1;
/// Tally: a payment that the account did not cover.
pub(crate) const REFUSED: usize = 2;

/// Amounts in cents.
pub(crate) const DEPOSIT: i64 = 130;
pub(crate) const PAYMENT: i64 = 500;
pub(crate) const SAVING: i64 = 2_020;
pub(crate) const CHECK: i64 = 500;
pub(crate) const OVERDRAFT_CHECK: i64 = 600;

/// Bytes of a balance.
const BALANCE_BYTES: usize = 8;

/// The tables of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) savings: TableId,
    pub(crate) checking: TableId,
}

/// The choice of accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accounts {
    pub(crate) count: u64,
}

impl Accounts {
    fn hot(self) -> u64 {
        (self.count / 25).max(2)
    }

    /// Two distinct accounts: both hot with 90 %, otherwise both from all accounts.
    #[inline]
    pub(crate) fn draw(self, random: &mut Random) -> (u64, u64) {
        let bound = if random.random_range(0..100) < 90 { self.hot() } else { self.count };
        let a = random.random_range(0..bound);
        let b = random.random_range(0..bound - 1);
        (a, if b < a { b } else { b + 1 })
    }

    /// The initial balances of an account, savings and checking: 10,000.00 to 50,000.00 each.
    pub(crate) fn initial(seed: u64, account: u64) -> (i64, i64) {
        let mut random = seeded(seed ^ 0x5b, account);
        (random.random_range(1_000_000..=5_000_000), random.random_range(1_000_000..=5_000_000))
    }
}

/// Draws a transaction type by the mix, in percent: 15, 15, 15, 25, 15, 15.
#[inline]
pub(crate) fn draw_transaction(random: &mut Random) -> usize {
    match random.random_range(0..100_u32) {
        0..15 => AMALGAMATE,
        15..30 => BALANCE,
        30..45 => DEPOSIT_CHECKING,
        45..70 => SEND_PAYMENT,
        70..85 => TRANSACT_SAVINGS,
        _ => WRITE_CHECK,
    }
}

/// The balance in a row. Accounts are never created or removed while transactions run.
#[inline]
pub(crate) fn cents(tx: &Transaction<'_>, row: RowId) -> i64 {
    let value = tx.value(row).and_then(|value| value.try_into().ok());
    i64::from_le_bytes(value.expect("every account was loaded, with 8 bytes"))
}

/// Sets the balance in a row of the write set.
#[inline]
pub(crate) fn set_cents(
    tx: &mut Transaction<'_>,
    row: RowId,
    cents: i64,
) -> std::result::Result<(), Abort> {
    tx.put(row, &cents.to_le_bytes())
}

/// The workload.
pub struct SmallBank {
    accounts: Accounts,
    seed: u64,
    tables: Option<Tables>,
}

impl SmallBank {
    /// SmallBank with `accounts` accounts.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] if there are too few or too many.
    pub fn new(accounts: u64, seed: u64) -> std::result::Result<Self, BenchmarkError> {
        if !(2..=1 << 36).contains(&accounts) {
            let (value, allowed) = (accounts.to_string(), "2 to 2^36".to_owned());
            return Err(BenchmarkError::Setting { setting: "--accounts", value, allowed });
        }
        Ok(Self { accounts: Accounts { count: accounts }, seed, tables: None })
    }

    /// Runs the workload. The loop of its clients is compiled with its transactions.
    ///
    /// # Errors
    /// Those of [`gannet_benchmarks::run`].
    pub fn run(self, settings: &Settings) -> std::result::Result<Report, BenchmarkError> {
        gannet_benchmarks::run(self, settings)
    }

    /// The same transactions on plain hash maps.
    #[must_use]
    pub fn floor(&self) -> Floor {
        Floor::new(self.accounts, self.seed)
    }

    fn tables(&self) -> Tables {
        self.tables.expect("the harness creates the tables first")
    }
}

impl Workload for SmallBank {
    fn name(&self) -> &'static str {
        "smallbank"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &TRANSACTIONS
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["checks", "overdraft checks", "payments refused"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("accounts", self.accounts.count.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let table = |name| cluster.open_table(name, BALANCE_BYTES, self.accounts.count);
        self.tables = Some(Tables { savings: table("savings")?, checking: table("checking")? });
        Ok(())
    }

    fn load(
        &self,
        cluster: &Cluster,
        share: u64,
        shares: u64,
    ) -> std::result::Result<(), BenchmarkError> {
        let mut loader = cluster.loader();
        let tables = self.tables();
        for account in (share..self.accounts.count).step_by(usize::try_from(shares).unwrap_or(1)) {
            let (savings, checking) = Accounts::initial(self.seed, account);
            loader.add(tables.savings, account, &savings.to_le_bytes())?;
            loader.add(tables.checking, account, &checking.to_le_bytes())?;
        }
        Ok(loader.finish()?)
    }

    #[inline]
    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let transaction = draw_transaction(random);
        let (a, b) = self.accounts.draw(random);
        let tables = self.tables();
        let tx = coordinator.begin();
        let mut tally = None;
        // Parts of this function: after a suspension the processor mispredicts each return.
        let outcome = match transaction {
            AMALGAMATE => amalgamate::run(tx, tables, a, b),
            BALANCE => balance::run(tx, tables, a),
            DEPOSIT_CHECKING => deposit_checking::run(tx, tables, a),
            SEND_PAYMENT => send_payment::run(tx, tables, a, b).map(|covered| {
                tally = (!covered).then_some(REFUSED);
            }),
            TRANSACT_SAVINGS => transact_savings::run(tx, tables, a),
            _ => write_check::run(tx, tables, a).map(|counted_as| tally = Some(counted_as)),
        };
        let result = match outcome {
            // A refused payment has found its rows, and commits the observation that the balance is too small.
            Ok(()) => Result::Qualified,
            Err(abort) => {
                tx.abort();
                Result::Aborted(abort)
            }
        };
        Ran { transaction, result, tally }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        verify::money(verify::found(cluster, self.tables()), self.accounts, self.seed, totals)
    }
}
