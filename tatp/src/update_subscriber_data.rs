//! UPDATE_SUBSCRIBER_DATA, 2 %: locks, reads and writes 2 rows; 3 rounds. In SQL: BEGIN, 2 UPDATE, the second if the
//! first changed a row, COMMIT.
//!
//! Messages to other nodes, at most, with f > 0 backups: LOCK 2; LOG f; BACKUP 2f; PRIMARY 2, with the next transaction.
//! Without the facility: LOCK 2; VALIDATE 1; UNLOCK 1.
//!
//! *Outcome*: the facility is absent for 37.5 % of types. Then the lock of the subscriber is released, nothing changes,
//! and the transaction counts as one whose rows are missing.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::{BITS_AT, DATA_A_AT, special_facility_key};
use crate::sql::integer;

/// The new values, and the facility.
struct Change {
    sf_type: u8,
    bit_1: bool,
    data_a: u8,
}

impl Change {
    fn draw(random: &mut Random) -> Self {
        Self {
            sf_type: random.random_range(1..=4),
            bit_1: random.random(),
            data_a: random.random(),
        }
    }
}

#[inline(always)]
pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let Change { sf_type, bit_1, data_a } = Change::draw(random);
    let subscriber = tx.add_to_write_set(tables.subscriber, s_id, LockMode::Update);
    let key = special_facility_key(s_id, sf_type);
    let facility = tx.add_to_write_set(tables.special_facility, key, LockMode::Update);
    tx.execute()?;
    let found = tx.value(facility).is_some();
    if found {
        let row = tx.value_mut(subscriber)?;
        row[BITS_AT] = row[BITS_AT] & !1 | u8::from(bit_1);
        tx.value_mut(facility)?[DATA_A_AT] = data_a;
    }
    tx.commit()?;
    Ok(found)
}

const UPDATE_FACILITY: &str =
    "UPDATE tatp_special_facility SET data_a = $1 WHERE s_id = $2 AND sf_type = $3";
const UPDATE_SUBSCRIBER: &str = "UPDATE tatp_subscriber SET bit_1 = $1 WHERE s_id = $2";

pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let Change { sf_type, bit_1, data_a } = Change::draw(random);
    in_transaction(connection, async |connection: &mut C| {
        let parameters = [integer(data_a), integer(s_id), integer(sf_type)];
        if connection.change(UPDATE_FACILITY, &parameters).await? == 0 {
            return Ok(false);
        }
        let parameters = [integer(bit_1), integer(s_id)];
        Ok(connection.change(UPDATE_SUBSCRIBER, &parameters).await? == 1)
    })
    .await
}
