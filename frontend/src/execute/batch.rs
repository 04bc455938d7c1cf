//! Many keys at once: new ones as part of the transaction, and those that nobody sees any more in transactions of
//! their own, in batches.

use std::ops::Bound;

use gannet_engine::{Abort, Coordinator, Deferred, Direction, KeyRange};

use crate::catalog::{index_prefix, storage_prefix};
use crate::error::{Failure, SqlError};
use crate::execute::{Context, Resources, Stored};

/// Keys of one transaction.
const BATCH_KEYS: usize = 1_000;
/// Runs of one batch before its conflicts are reported.
const ATTEMPTS_MAX: u32 = 100;

/// Puts keys that are new to the transaction. Gives the number of the first one that is there already.
///
/// # Errors
/// The engine's.
pub(super) fn put_new(
    context: &mut Context<'_, '_>,
    puts: &[(Vec<u8>, Vec<u8>)],
) -> Result<Option<usize>, Failure> {
    for (number, chunk) in puts.chunks(BATCH_KEYS).enumerate() {
        context.check_cancel()?;
        let keys: Vec<Vec<u8>> = chunk.iter().map(|(key, _)| key.clone()).collect();
        let there = context.get_many(keys)?;
        if let Some(taken) = there.iter().position(Option::is_some) {
            return Ok(Some(number * BATCH_KEYS + taken));
        }
        for (key, value) in chunk {
            context.put(key.clone(), value.clone())?;
        }
    }
    Ok(None)
}

/// Removes keys that nobody sees any more. What an error leaves behind takes memory and nothing else.
///
/// # Errors
/// The engine's.
pub(crate) fn clear(
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
    stored: Stored,
) -> Result<(), Failure> {
    let table = resources.database.table;
    let (from, mut to) = match stored.index {
        None => (storage_prefix(stored.storage), storage_prefix(stored.storage)),
        Some(index) => {
            let prefix = index_prefix(stored.storage, index);
            (prefix.clone(), prefix)
        }
    };
    // Numbers behind a prefix are followed by bytes; 0xff bytes come after all of them.
    to.extend_from_slice(&[0xff; 8]);
    let range = KeyRange { from: Bound::Included(from), to: Bound::Excluded(to) };
    loop {
        let done = retried(coordinator, |coordinator, deferred| {
            let page =
                deferred.scan(coordinator, table, &range, Direction::Ascending, BATCH_KEYS)?;
            let done = page.rows.is_empty() && page.rest.is_none();
            for (key, _) in page.rows {
                deferred.delete(table, key);
            }
            Ok(done)
        })?;
        if done {
            return Ok(());
        }
    }
}

/// Runs a transaction until it commits.
///
/// # Errors
/// The engine's, a conflict after many attempts included.
pub(crate) fn retried<T>(
    coordinator: &mut Coordinator<'_>,
    mut body: impl FnMut(&mut Coordinator<'_>, &mut Deferred) -> Result<T, Abort>,
) -> Result<T, Failure> {
    let mut attempt = 0;
    loop {
        let mut deferred = Deferred::new();
        let result = body(coordinator, &mut deferred)
            .and_then(|value| deferred.commit(coordinator).map(|()| value));
        match result {
            Ok(value) => return Ok(value),
            Err(abort) if abort.is_conflict() && attempt < ATTEMPTS_MAX => {
                attempt += 1;
                coordinator.back_off(attempt);
            }
            Err(abort) => return Err(SqlError::from(abort).into()),
        }
    }
}
