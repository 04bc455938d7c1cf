//! GET_SUBSCRIBER_DATA, 35 %: one read, one round, 1 message; always finds its row.

use gannet_engine::{Abort, Transaction};

use crate::Tables;

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, s_id: u64) -> Result<bool, Abort> {
    let subscriber = tx.add_to_read_set(tables.subscriber, s_id);
    tx.execute()?;
    let found = tx.value(subscriber).is_some();
    tx.commit()?;
    Ok(found)
}
