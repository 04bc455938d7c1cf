//! The bank's books after a run: money appears and disappears only as committed transactions say.

use gannet_benchmarks::{Check, Totals, for_each_row};
use gannet_engine::Cluster;

use crate::{
    Accounts, CHECK, CHECKS, DEPOSIT, DEPOSIT_CHECKING, OVERDRAFT_CHECK, OVERDRAFT_CHECKS, SAVING,
    TRANSACT_SAVINGS, Tables,
};

pub(crate) fn money(
    cluster: &Cluster,
    tables: Tables,
    accounts: Accounts,
    seed: u64,
    totals: &Totals,
) -> Vec<Check> {
    let (mut rows, mut found) = (0_i128, 0_i128);
    for table in [tables.savings, tables.checking] {
        for_each_row(cluster, table, |_, row| {
            rows += 1;
            let cents = row.try_into().map(i64::from_le_bytes).expect("a balance is 8 bytes");
            found += i128::from(cents);
        });
    }
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
        Check::equal("rows", 2 * i128::from(accounts.count), rows),
        Check::equal("sum of all balances, cents", expected, found),
    ]
}
