//! GET_ACCESS_DATA, 35 %: one read, one round, 1 message; finds its row for 62.5 % of types.

use gannet_benchmarks::Random;
use gannet_engine::{Abort, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::access_info_key;

pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let key = access_info_key(s_id, random.random_range(1..=4));
    let access_info = tx.add_to_read_set(tables.access_info, key);
    tx.execute()?;
    let found = tx.value(access_info).is_some();
    tx.commit()?;
    Ok(found)
}
