//! DELETE_CALL_FORWARDING, 2 %: reads 1 row, the subscriber's number, then locks, reads and removes 1; 5 rounds. In SQL:
//! BEGIN, 1 SELECT, 1 DELETE, COMMIT.
//!
//! Messages to other nodes, at most, with f > 0 backups: READ 1; LOCK 1; VALIDATE 1, of the number; LOG f; BACKUP f;
//! PRIMARY 1, with the next transaction. If the row is absent: READ 1; LOCK 1; VALIDATE 2, and no UNLOCK, as no lock was
//! granted.
//!
//! *Outcome*: 31.25 % succeed at first. If the row is absent, nothing changes, and the transaction counts as one whose
//! rows are missing.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::call_forwarding_key;
use crate::sql::integer;
use crate::update_location::{look_up, look_up_sql};

/// A facility type and a start time.
fn draw(random: &mut Random) -> (u8, u8) {
    (random.random_range(1..=4), 8 * random.random_range(0..3_u8))
}

#[inline(always)]
pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let (sf_type, start_time) = draw(random);
    let Some(s_id) = look_up(tx, tables, s_id)? else {
        tx.commit()?;
        return Ok(false);
    };
    let key = call_forwarding_key(s_id, sf_type, start_time);
    let forwarding = tx.add_to_write_set(tables.call_forwarding, key, LockMode::Delete);
    tx.execute()?;
    let found = tx.value(forwarding).is_some();
    tx.commit()?;
    Ok(found)
}

const DELETE: &str = "DELETE FROM tatp_call_forwarding \
                      WHERE s_id = $1 AND sf_type = $2 AND start_time = $3";

pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let (sf_type, start_time) = draw(random);
    in_transaction(connection, async |connection: &mut C| {
        let Some(s_id) = look_up_sql(connection, s_id).await? else { return Ok(false) };
        let parameters = [integer(s_id), integer(sf_type), integer(start_time)];
        Ok(connection.change(DELETE, &parameters).await? == 1)
    })
    .await
}
