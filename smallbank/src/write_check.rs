//! WRITE_CHECK(a), 15 %: reads 2 rows, locks and writes 1 of them; 4 rounds. In SQL: BEGIN, 1 SELECT, 1 UPDATE, COMMIT.
//!
//! `C[a] -= 5.00`, or 6.00 if `S[a] + C[a] < 5.00`. Messages to other nodes, at most, with f > 0 backups: READ and
//! LOCK 1; VALIDATE 1, of `S[a]`; LOG f; BACKUP f; PRIMARY 1, with the next transaction.
//!
//! *Outcome*: never refused. A check counts in one of two tallies, covered or overdraft, from which `verify.rs` has the
//! sum. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};

use crate::sql::{ADD_TO_CHECKING, id, one_row, sum, value};
use crate::{CHECK, CHECKS, OVERDRAFT_CHECK, OVERDRAFT_CHECKS, Tables, cents, set_cents};

/// The amount of a check on an account with this sum, and its tally.
fn amount(sum: i64) -> (i64, usize) {
    if sum >= CHECK { (CHECK, CHECKS) } else { (OVERDRAFT_CHECK, OVERDRAFT_CHECKS) }
}

/// Returns the check's tally.
#[inline(always)]
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<usize, Abort> {
    let savings = tx.add_to_read_set(tables.savings, a);
    let checking = tx.add_to_write_set(tables.checking, a, LockMode::Update);
    tx.execute()?;
    let have = cents(tx, checking);
    let (amount, counted_as) = amount(cents(tx, savings) + have);
    set_cents(tx, checking, have - amount)?;
    tx.commit()?;
    Ok(counted_as)
}

/// Returns the check's tally.
pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    a: u64,
) -> Result<usize, SqlFailure> {
    in_transaction(connection, async |connection: &mut C| {
        let (amount, counted_as) = amount(sum(connection, a).await?);
        one_row(connection.change(ADD_TO_CHECKING, &[id(a), value(-amount)]).await?)?;
        Ok(counted_as)
    })
    .await
}
