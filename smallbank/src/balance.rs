//! BALANCE(a), 15 %: reads 2 rows, writes none; 2 rounds. In SQL: 1 SELECT, a join.
//!
//! The sum `S[a] + C[a]`. Messages to other nodes, at most: READ 1; VALIDATE 1. The two rows of an account have one
//! primary, and share messages.
//!
//! *Outcome*: never refused. A missing account ends the run.
//!
//! *Source*: FaSST's released code, for share and amounts; FaSST section 5, for the rounds.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure};
use gannet_engine::{Abort, Transaction};

use crate::sql::sum;
use crate::{Tables, cents};

#[inline(always)]
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let savings = tx.add_to_read_set(tables.savings, a);
    let checking = tx.add_to_read_set(tables.checking, a);
    tx.execute()?;
    std::hint::black_box(cents(tx, savings) + cents(tx, checking));
    tx.commit()?;
    Ok(())
}

pub(crate) async fn run_sql(connection: &mut impl SqlConnection, a: u64) -> Result<(), SqlFailure> {
    std::hint::black_box(sum(connection, a).await?);
    Ok(())
}
