//! BALANCE(a), 15 %: reads S[a] and C[a] in one round, then validation.

use gannet_engine::{Abort, Transaction};

use crate::{Tables, cents};

pub(crate) fn run(tx: &mut Transaction<'_>, tables: Tables, a: u64) -> Result<(), Abort> {
    let savings = tx.add_to_read_set(tables.savings, a);
    let checking = tx.add_to_read_set(tables.checking, a);
    tx.execute()?;
    std::hint::black_box(cents(tx, savings) + cents(tx, checking));
    tx.commit()?;
    Ok(())
}
