//! DEPOSIT_CHECKING(a), 15 %: locks, reads and writes 1 row; 3 rounds. In SQL: 1 UPDATE.
//!
//! `C[a] += 1.30`. Messages to other nodes, at most, with f > 0 backups: LOCK 1; LOG f; BACKUP f; PRIMARY 1, with the
//! next transaction.
//!
//! *Outcome*: never refused. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

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
