//! The bank's books after a run: the sum of all balances has changed only by committed transactions.
//!
//! *Not here*: equality of copies, which the harness checks.

use gannet_benchmarks::{Check, Totals, for_each_row};
use gannet_engine::Cluster;

use crate::{
    Accounts, CHECK, CHECKS, DEPOSIT, DEPOSIT_CHECKING, OVERDRAFT_CHECK, OVERDRAFT_CHECKS, SAVING,
    TRANSACT_SAVINGS, Tables,
};

/// The balances in the tables.
#[derive(Clone, Copy, Default)]
pub(crate) struct Found {
    pub(crate) rows: i128,
    pub(crate) cents: i128,
}

/// Reads the balances in the tables of a cluster.
pub(crate) fn found(cluster: &Cluster, tables: Tables) -> Found {
    let mut found = Found::default();
    for table in [tables.savings, tables.checking] {
        for_each_row(cluster, table, |_, row| {
            found.rows += 1;
            let cents = row.try_into().map(i64::from_le_bytes).expect("a balance is 8 bytes");
            found.cents += i128::from(cents);
        });
    }
    found
}

pub(crate) fn money(found: Found, accounts: Accounts, seed: u64, totals: &Totals) -> Vec<Check> {
    let initial: i128 = (0..accounts.count)
        .map(|account| Accounts::initial(seed, account))
        .map(|(savings, checking)| i128::from(savings) + i128::from(checking))
        .sum();
    let committed = |transaction: usize| i128::from(totals.types[transaction].qualified);
    let tally = |tally: usize| i128::from(totals.tallies[tally]);
    let expected = initial
        + i128::from(DEPOSIT) * committed(DEPOSIT_CHECKING)
        + i128::from(SAVING) * committed(TRANSACT_SAVINGS)
        - i128::from(CHECK) * tally(CHECKS)
        - i128::from(OVERDRAFT_CHECK) * tally(OVERDRAFT_CHECKS);
    vec![
        Check::equal("rows", 2 * i128::from(accounts.count), found.rows),
        Check::equal("sum of all balances, cents", expected, found.cents).of_all_outcomes(),
    ]
}
