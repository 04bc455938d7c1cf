//! UPDATE_SUBSCRIBER_DATA, 2 %: locks and reads 2 rows in one round, then log, backup, primary;
//! an absent facility (37.5 % of types) makes it give both back.

use gannet_benchmarks::Random;
use gannet_engine::{Abort, LockMode, Transaction};
use rand::RngExt;

use crate::Tables;
use crate::rows::{BITS_AT, DATA_A_AT, special_facility_key};

pub(crate) fn run(
    tx: &mut Transaction<'_>,
    tables: Tables,
    s_id: u64,
    random: &mut Random,
) -> Result<bool, Abort> {
    let sf_type = random.random_range(1..=4);
    let bit_1: bool = random.random();
    let data_a: u8 = random.random();
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
