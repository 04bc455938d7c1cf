//! GET_SUBSCRIBER_DATA, 35 %: reads 1 row, writes none; 1 round. In SQL: 1 SELECT.
//!
//! Messages to other nodes, at most: READ 1. One read of one bucket needs no VALIDATE.
//!
//! *Outcome*: the row always exists. A transaction without the row would count as one whose rows are missing.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::sql::{SqlConnection, SqlFailure, SqlRows};
use gannet_engine::{Abort, Transaction};

use crate::Tables;
use crate::sql::integer;

#[inline(always)]
pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, s_id: u64) -> Result<bool, Abort> {
    let subscriber = tx.add_to_read_set(tables.subscriber, s_id);
    tx.execute()?;
    let found = tx.value(subscriber).is_some();
    tx.commit()?;
    Ok(found)
}

const SELECT: &str = "SELECT s_id, sub_nbr, \
     bit_1, bit_2, bit_3, bit_4, bit_5, bit_6, bit_7, bit_8, bit_9, bit_10, \
     hex_1, hex_2, hex_3, hex_4, hex_5, hex_6, hex_7, hex_8, hex_9, hex_10, \
     byte2_1, byte2_2, byte2_3, byte2_4, byte2_5, byte2_6, byte2_7, byte2_8, byte2_9, byte2_10, \
     msc_location, vlr_location FROM tatp_subscriber WHERE s_id = $1";

pub(crate) async fn run_sql(
    connection: &mut impl SqlConnection,
    s_id: u64,
) -> Result<bool, SqlFailure> {
    Ok(connection.query(SELECT, &[integer(s_id)]).await?.count() == 1)
}
