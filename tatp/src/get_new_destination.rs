//! GET_NEW_DESTINATION, 10 %: reads 1 row, then 1 to 3 rows if the facility is active, writes none; 1 or 3 rounds. In
//! SQL: 1 SELECT, a join.
//!
//! Messages to other nodes, at most: READ 1; if the facility is active, READ 3 and VALIDATE 4.
//!
//! *Outcome*: the transaction qualifies if some call forwarding of an active facility starts at or before the probe's
//! start and ends after the probe's end. Any other one commits, and counts as one whose rows are missing.
//! `expectation.rs` derives the rate from the loaded rows.
//!
//! *Source*: the TATP specification, as public ports of the benchmark quote it; FaSST section 5, for the rounds.

use gannet_benchmarks::Random;
use gannet_benchmarks::sql::{SqlConnection, SqlFailure, SqlRows};
use gannet_engine::{Abort, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::{call_forwarding_key, special_facility_key};
use crate::sql::integer;

/// The parameters: a facility type, a start time index 0..3, and an end time 1..=24.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) sf_type: u8,
    pub(crate) start_index: u8,
    pub(crate) end_time: u8,
}

impl Probe {
    #[inline]
    pub(crate) fn draw(random: &mut Random) -> Self {
        Self {
            sf_type: random.random_range(1..=4),
            start_index: random.random_range(0..3),
            end_time: random.random_range(1..=24),
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
    let probe = Probe::draw(random);
    let key = special_facility_key(s_id, probe.sf_type);
    let facility = tx.add_to_read_set(tables.special_facility, key);
    tx.execute()?;
    let active = tx.value(facility).is_some_and(|row| row[0] == 1);
    if !active {
        tx.commit()?;
        return Ok(false);
    }
    let mut forwardings = [None; 3];
    for index in 0..=probe.start_index {
        let key = call_forwarding_key(s_id, probe.sf_type, 8 * index);
        forwardings[usize::from(index)] = Some(tx.add_to_read_set(tables.call_forwarding, key));
    }
    tx.execute()?;
    let mut rows = forwardings.iter().flatten().filter_map(|&row| tx.value(row));
    let found = rows.any(|row| probe.end_time < row[0]);
    tx.commit()?;
    Ok(found)
}

const SELECT: &str = "SELECT cf.numberx FROM tatp_special_facility sf, tatp_call_forwarding cf \
     WHERE sf.s_id = $1 AND sf.sf_type = $2 AND sf.is_active = 1 \
     AND cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type \
     AND cf.start_time <= $3 AND cf.end_time > $4";

pub(crate) async fn run_sql(
    connection: &mut impl SqlConnection,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, SqlFailure> {
    let Probe { sf_type, start_index, end_time } = Probe::draw(random);
    let parameters = [integer(s_id), integer(sf_type), integer(8 * start_index), integer(end_time)];
    Ok(connection.query(SELECT, &parameters).await?.count() > 0)
}
