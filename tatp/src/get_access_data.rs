//! GET_ACCESS_DATA, 35 %: reads 1 row, writes none; 1 round. In SQL: 1 SELECT.
//!
//! Messages to other nodes, at most: READ 1. One read of one bucket needs no VALIDATE.
//!
//! *Outcome*: the row exists for 62.5 % of types. A transaction without the row commits, and counts as one whose rows are
//! missing.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, SqlRows};
use gannet_engine::{Abort, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::access_info_key;
use crate::sql::integer;

/// An access info type.
fn draw(random: &mut Random) -> u8 {
    random.random_range(1..=4)
}

#[inline(always)]
pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let key = access_info_key(s_id, draw(random));
    let access_info = tx.add_to_read_set(tables.access_info, key);
    tx.execute()?;
    let found = tx.value(access_info).is_some();
    tx.commit()?;
    Ok(found)
}

const SELECT: &str = "SELECT data1, data2, data3, data4 FROM tatp_access_info \
                      WHERE s_id = $1 AND ai_type = $2";

pub(crate) async fn run_sql(
    connection: &mut impl SqlConnection,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let parameters = [integer(s_id), integer(draw(random))];
    Ok(connection.query(SELECT, &parameters).await?.count() == 1)
}
