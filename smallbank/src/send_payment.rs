//! SEND_PAYMENT(a, b), 25 %: locks C[a] and C[b] in one round, then log, backup, primary.
//! Refused if C[a] < 5.00; else 5.00 move from a to b.

use gannet_engine::{Abort, LockMode, Transaction};

use crate::{PAYMENT, Tables, cents, set_cents};

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64, b: u64) -> Result<bool, Abort> {
    let checking_a = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    let checking_b = tx.add_to_write_set(tables.checking, b, LockMode::Update);
    tx.execute()?;
    let (have_a, have_b) = (cents(tx, checking_a), cents(tx, checking_b));
    let covered = have_a >= PAYMENT;
    if covered {
        set_cents(tx, checking_a, have_a - PAYMENT)?;
        set_cents(tx, checking_b, have_b + PAYMENT)?;
    }
    tx.commit()?;
    Ok(covered)
}
