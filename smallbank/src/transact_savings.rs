//! TRANSACT_SAVINGS(a), 15 %: locks S[a], then log, backup, primary. S[a] += 20.20.
//! In SQL: 1 UPDATE.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure};
use gannet_engine::{Abort, LockMode, Transaction};

use crate::sql::{id, one_row, value};
use crate::{SAVING, Tables, cents, set_cents};

#[inline(always)]
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let savings = tx.add_to_write_set(tables.savings, a, LockMode::Update);
    tx.execute()?;
    let sum = cents(tx, savings) + SAVING;
    set_cents(tx, savings, sum)?;
    tx.commit()?;
    Ok(())
}

const ADD_TO_SAVINGS: &str = "UPDATE smallbank_savings SET balance = balance + $2 WHERE id = $1";

pub(crate) async fn run_sql(connection: &mut impl SqlConnection, a: u64) -> Result<(), SqlFailure> {
    one_row(connection.change(ADD_TO_SAVINGS, &[id(a), value(SAVING)]).await?)
}
