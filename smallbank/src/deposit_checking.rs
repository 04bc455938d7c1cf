//! DEPOSIT_CHECKING(a), 15 %: locks C[a], then log, backup, primary. C[a] += 1.30.

use gannet_engine::{Abort, LockMode, Transaction};

use crate::{DEPOSIT, Tables, cents, set_cents};

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let checking = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    tx.execute()?;
    let sum = cents(tx, checking) + DEPOSIT;
    set_cents(tx, checking, sum)?;
    tx.commit()?;
    Ok(())
}
