//! WRITE_CHECK(a), 15 %: reads S[a] and locks C[a] in one round, then validation of S[a], log,
//! backup, primary. C[a] -= 5.00, or 6.00 if S[a] + C[a] < 5.00.

use gannet_engine::{Abort, LockMode, Transaction};

use crate::{CHECK, CHECKS, OVERDRAFT_CHECK, OVERDRAFT_CHECKS, Tables, cents, set_cents};

/// Returns what the check is counted as.
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<usize, Abort> {
    let savings = tx.add_to_read_set(tables.savings, a);
    let checking = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    tx.execute()?;
    let have = cents(tx, checking);
    let covered = cents(tx, savings) + have >= CHECK;
    let (amount, counted_as) =
        if covered { (CHECK, CHECKS) } else { (OVERDRAFT_CHECK, OVERDRAFT_CHECKS) };
    set_cents(tx, checking, have - amount)?;
    tx.commit()?;
    Ok(counted_as)
}
