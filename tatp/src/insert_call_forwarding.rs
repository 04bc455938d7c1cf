//! INSERT_CALL_FORWARDING, 2 %: reads 1 row, then reads 1 and locks 1 in one round, then validation,
//! log, backup, primary. Fails if the row is there, or the facility is not: 31.25 % succeed at first.

use gannet_benchmarks::Random;
use gannet_engine::mutant::{Mutant, active};
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::{call_forwarding_key, call_forwarding_row, special_facility_key};
use crate::update_location::look_up;

pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let sf_type = random.random_range(1..=4);
    let start_time = 8 * random.random_range(0..3_u8);
    let end_time = start_time + random.random_range(1..=8_u8);
    let numberx = random.random_range(0..1_000_000_000_000_000);
    let Some(s_id) = look_up(tx, tables, s_id)? else {
        tx.commit()?;
        return Ok(false);
    };
    let key = special_facility_key(s_id, sf_type);
    let facility = tx.add_to_read_set(tables.special_facility, key);
    let key = call_forwarding_key(s_id, sf_type, start_time);
    let forwarding = tx.add_to_write_set(tables.call_forwarding, key, LockMode::Insert);
    tx.execute()?;
    let has_facility = tx.value(facility).is_some() || active(Mutant::TatpSkipsFacility);
    let possible = has_facility && tx.value(forwarding).is_none();
    if possible {
        tx.put(forwarding, &call_forwarding_row(end_time, numberx))?;
    }
    tx.commit()?;
    Ok(possible)
}
