//! DELETE_CALL_FORWARDING, 2 %: reads 1 row, locks 1, then validation of the first, log, backup,
//! primary. Fails if the row is absent: 31.25 % succeed at first.

use gannet_benchmarks::Random;
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::call_forwarding_key;
use crate::update_location::look_up;

pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let sf_type = random.random_range(1..=4);
    let start_time = 8 * random.random_range(0..3_u8);
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
