//! TRANSACT_SAVINGS(a), 15 %: locks S[a], then log, backup, primary. S[a] += 20.20.

use gannet_engine::{Abort, LockMode, Transaction};

use crate::{SAVING, Tables, cents, set_cents};

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let savings = tx.add_to_write_set(tables.savings, a, LockMode::Update);
    tx.execute()?;
    let sum = cents(tx, savings) + SAVING;
    set_cents(tx, savings, sum)?;
    tx.commit()?;
    Ok(())
}
