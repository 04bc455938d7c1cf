//! SEND_PAYMENT(a, b), 25 %: locks, reads and writes 2 rows; 3 rounds. In SQL: BEGIN, 2 UPDATE, the second if the first
//! changed a row, COMMIT.
//!
//! 5.00 move from `C[a]` to `C[b]`. Messages to other nodes, at most, with f > 0 backups: LOCK 2; LOG f; BACKUP 2f;
//! PRIMARY 2, with the next transaction. If refused: LOCK 2; UNLOCK 2.
//!
//! *Outcome*: refused if `C[a] < 5.00`. A refused payment changes nothing, commits, qualifies, and counts in the tally of
//! refused payments. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};

use crate::sql::{ADD_TO_CHECKING, id, one_row, value};
use crate::{PAYMENT, Tables, cents, set_cents};

#[inline(always)]
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

const TAKE_IF_COVERED: &str =
    "UPDATE smallbank_checking SET balance = balance - $2 WHERE id = $1 AND balance >= $2";

/// Whether the payment was covered.
pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    a: u64,
    b: u64,
) -> Result<bool, SqlFailure> {
    in_transaction(connection, async |connection: &mut C| {
        let taken = connection.change(TAKE_IF_COVERED, &[id(a), value(PAYMENT)]).await?;
        if taken == 0 {
            return Ok(false);
        }
        one_row(connection.change(ADD_TO_CHECKING, &[id(b), value(PAYMENT)]).await?)?;
        Ok(true)
    })
    .await
}
