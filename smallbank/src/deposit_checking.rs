//! DEPOSIT_CHECKING(a), 15 %: locks C[a], then log, backup, primary. C[a] += 1.30.
//! In SQL: 1 UPDATE.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure};
use gannet_engine::{Abort, LockMode, Transaction};

use crate::sql::{ADD_TO_CHECKING, id, one_row, value};
use crate::{DEPOSIT, Tables, cents, set_cents};

#[inline(always)]
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let checking = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    tx.execute()?;
    let sum = cents(tx, checking) + DEPOSIT;
    set_cents(tx, checking, sum)?;
    tx.commit()?;
    Ok(())
}

pub(crate) async fn run_sql(connection: &mut impl SqlConnection, a: u64) -> Result<(), SqlFailure> {
    one_row(connection.change(ADD_TO_CHECKING, &[id(a), value(DEPOSIT)]).await?)
}
