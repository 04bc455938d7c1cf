//! INSERT_CALL_FORWARDING, 2 %: reads 1 row, the subscriber's number, then reads 1 and locks and writes 1; 5 rounds. In
//! SQL: BEGIN, 2 SELECT, 1 INSERT, COMMIT.
//!
//! Messages to other nodes, at most, with f > 0 backups: READ 1; READ and LOCK 2; VALIDATE 2, of number and facility;
//! LOG f; BACKUP f; PRIMARY 1, with the next transaction. If nothing is inserted: VALIDATE 2, or 3 if the row exists;
//! UNLOCK 1 if the lock was granted.
//!
//! *Outcome*: 31.25 % succeed at first. If the row exists, or the facility does not, nothing changes, and the transaction
//! counts as one whose rows are missing. In SQL the INSERT then gives 0 rows, or is left out.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, SqlRows, SqlValue, in_transaction};
use gannet_engine::{Abort, LockMode, Transaction};
use gannet_rules::rule;
use rand::RngExt;

use crate::Tables;
use crate::rows::{call_forwarding_key, call_forwarding_row, special_facility_key};
use crate::sql::{digits, integer};
use crate::update_location::{look_up, look_up_sql};

/// The row to insert.
struct Forwarding {
    sf_type: u8,
    start_time: u8,
    end_time: u8,
    numberx: u64,
}

impl Forwarding {
    fn draw(random: &mut Random) -> Self {
        let sf_type = random.random_range(1..=4);
        let start_time = 8 * random.random_range(0..3_u8);
        let end_time = start_time + random.random_range(1..=8_u8);
        let numberx = random.random_range(0..1_000_000_000_000_000);
        Self { sf_type, start_time, end_time, numberx }
    }
}

#[inline(always)]
pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let Forwarding { sf_type, start_time, end_time, numberx } = Forwarding::draw(random);
    let Some(s_id) = look_up(tx, tables, s_id)? else {
        tx.commit()?;
        return Ok(false);
    };
    let key = special_facility_key(s_id, sf_type);
    let facility = tx.add_to_read_set(tables.special_facility, key);
    let key = call_forwarding_key(s_id, sf_type, start_time);
    let forwarding = tx.add_to_write_set(tables.call_forwarding, key, LockMode::Insert);
    tx.execute()?;
    let has_facility = tx.value(facility).is_some() || !rule!(FACILITY_CHECK);
    let possible = has_facility && tx.value(forwarding).is_none();
    if possible {
        tx.put(forwarding, &call_forwarding_row(end_time, numberx))?;
    }
    tx.commit()?;
    Ok(possible)
}

const SELECT_FACILITY: &str =
    "SELECT sf_type FROM tatp_special_facility WHERE s_id = $1 AND sf_type = $2";
const INSERT: &str = "INSERT INTO tatp_call_forwarding (s_id, sf_type, start_time, end_time, numberx) \
                      VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";

pub(crate) async fn run_sql<C: SqlConnection>(
    connection: &mut C,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let Forwarding { sf_type, start_time, end_time, numberx } = Forwarding::draw(random);
    in_transaction(connection, async |connection: &mut C| {
        let Some(s_id) = look_up_sql(connection, s_id).await? else { return Ok(false) };
        let (s_id, sf_type) = (integer(s_id), integer(sf_type));
        let facility = connection.query(SELECT_FACILITY, &[s_id.clone(), sf_type.clone()]).await?;
        if facility.count() == 0 && rule!(FACILITY_CHECK) {
            return Ok(false);
        }
        let numberx = SqlValue::Text(digits(numberx));
        let row = [s_id, sf_type, integer(start_time), integer(end_time), numberx];
        Ok(connection.change(INSERT, &row).await? == 1)
    })
    .await
}
