//! TRANSACT_SAVINGS(a), 15 %: locks, reads and writes 1 row; 3 rounds. In SQL: 1 UPDATE.
//!
//! `S[a] += 20.20`. Messages to other nodes, at most, with f > 0 backups: LOCK 1; LOG f; BACKUP f; PRIMARY 1, with the
//! next transaction.
//!
//! *Outcome*: never refused. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

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
