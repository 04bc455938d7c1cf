//! UPDATE_LOCATION, 14 %: reads 1 row, the subscriber's number, then locks, reads and writes 1; 5 rounds. In SQL:
//! 1 UPDATE by number.
//!
//! Messages to other nodes, at most, with f > 0 backups: READ 1; LOCK 1; VALIDATE 1, of the number; LOG f; BACKUP f;
//! PRIMARY 1, with the next transaction.
//!
//! *Outcome*: number and subscriber always exist. A transaction without the number would count as one whose rows are
//! missing.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.
//!
//! *Not here*: the other two transactions that begin with `look_up` (`insert_call_forwarding.rs`,
//! `delete_call_forwarding.rs`).

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, SqlRows, SqlValue};
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::{VLR_LOCATION_AT, sub_nbr};
use crate::sql::{digits, integer};

/// Finds a subscriber by number, as the last three transactions of the mix do.
#[inline(always)]
pub(crate) fn look_up(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
) -> Result<Option<u64>, Abort> {
    let secondary = tx.add_to_read_set(tables.secondary, sub_nbr(s_id));
    tx.execute()?;
    let row = tx.value(secondary);
    Ok(row.map(|row| u64::from_le_bytes(row.try_into().expect("a secondary row is 8 bytes"))))
}

#[inline(always)]
pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let vlr_location: u32 = random.random();
    let Some(s_id) = look_up(tx, tables, s_id)? else {
        tx.commit()?;
        return Ok(false);
    };
    let subscriber = tx.add_to_write_set(tables.subscriber, s_id, LockMode::Update);
    tx.execute()?;
    let row = tx.value_mut(subscriber)?;
    row[VLR_LOCATION_AT..VLR_LOCATION_AT + 4].copy_from_slice(&vlr_location.to_le_bytes());
    tx.commit()?;
    Ok(true)
}

const SELECT: &str = "SELECT s_id FROM tatp_subscriber WHERE sub_nbr = $1";
const UPDATE: &str = "UPDATE tatp_subscriber SET vlr_location = $1 WHERE sub_nbr = $2";

/// Finds a subscriber by number, as the last two transactions of the mix do.
pub(crate) async fn look_up_sql(
    connection: &mut impl SqlConnection,
    s_id: u64,
) -> Result<Option<u64>, SqlFailure> {
    let rows = connection.query(SELECT, &[SqlValue::Text(digits(s_id))]).await?;
    Ok((rows.count() == 1).then(|| u64::try_from(rows.integer(0, 0)).unwrap_or(u64::MAX)))
}

pub(crate) async fn run_sql(
    connection: &mut impl SqlConnection,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let vlr_location: u32 = random.random();
    let parameters = [integer(vlr_location), SqlValue::Text(digits(s_id))];
    Ok(connection.change(UPDATE, &parameters).await? == 1)
}
