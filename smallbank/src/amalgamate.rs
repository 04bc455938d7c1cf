//! AMALGAMATE(a, b), 15 %: locks, reads and writes 3 rows; 3 rounds. In SQL: BEGIN, 1 SELECT, 3 UPDATE, COMMIT.
//!
//! `C[b] += S[a] + C[a]`; `S[a] = C[a] = 0`. Messages to other nodes, at most, with f > 0 backups: LOCK 2; LOG f;
//! BACKUP 2f; PRIMARY 2, with the next transaction. The two rows of an account have one primary, and share messages.
//!
//! *Outcome*: never refused. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};

use crate::sql::{ADD_TO_CHECKING, id, one_row, sum, value};
use crate::{Tables, cents, set_cents};

#[inline(always)]
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

const EMPTY_SAVINGS: &str = "UPDATE smallbank_savings SET balance = 0 WHERE id = $1";
const EMPTY_CHECKING: &str = "UPDATE smallbank_checking SET balance = 0 WHERE id = $1";

pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    a: u64,
    b: u64,
) -> Result<(), SqlFailure> {
    in_transaction(connection, async |connection: &mut C| {
        let moved = sum(connection, a).await?;
        one_row(connection.change(EMPTY_SAVINGS, &[id(a)]).await?)?;
        one_row(connection.change(EMPTY_CHECKING, &[id(a)]).await?)?;
        one_row(connection.change(ADD_TO_CHECKING, &[id(b), value(moved)]).await?)
    })
    .await
}
