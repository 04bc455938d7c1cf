//! AMALGAMATE(a, b), 15 %: locks 3 rows in one round, then log, backup, primary.
//! C[b] += S[a] + C[a]; S[a] = C[a] = 0.

use gannet_engine::{Abort, LockMode, Transaction};

use crate::{Tables, cents, set_cents};

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64, b: u64) -> Result<(), Abort> {
    let savings_a = tx.add_to_write_set(tables.savings, a, LockMode::Update);
    let checking_a = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    let checking_b = tx.add_to_write_set(tables.checking, b, LockMode::Update);
    tx.execute()?;
    let moved = cents(tx, savings_a) + cents(tx, checking_a);
    let sum = cents(tx, checking_b) + moved;
    set_cents(tx, savings_a, 0)?;
    set_cents(tx, checking_a, 0)?;
    set_cents(tx, checking_b, sum)?;
    tx.commit()?;
    Ok(())
}
