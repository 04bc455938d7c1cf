//! COPY and INSERT ... SELECT into a table that no other transaction knows: the workers of the node share the rows.
//!
//! ```text
//! chunk   some thousand rows of the client or of the query
//! divide  a chunk into shares, each of the rows of some partitions
//! write   each share by one worker, in transactions of their own
//! ```
//! Workers that write to different partitions lock no bucket that another one wants. The entries of indexes lie in other partitions than their
//! rows: then a chunk is one share. What was written before an error goes with the table.
//!
//! *Invariant*: the table holds none of the rows while the query reads it, because the query does not read it.
//!
//! *Not here*: other tables, whose rows are a part of the statement's transaction or batches of one transaction each (`write`, `session/run/copy`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gannet_engine::Coordinator;

use crate::catalog::Catalog;
use crate::encoding::row::{Wanted, decode};
use crate::error::Failure;
use crate::execute::operator::Operator;
use crate::execute::sharing::{Sharing, Work};
use crate::execute::transaction::alone;
use crate::execute::write::{Entry, entries_of, insert_batch, insert_unread};
use crate::execute::{BATCH_ROWS, Context, Resources, Row, Transaction};
use crate::memory::Charge;
use crate::plan::Insert;

/// Rows of a chunk.
pub(crate) const CHUNK_ROWS: usize = 8 * BATCH_ROWS;
/// Bytes of a chunk, however few rows they are.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// Shares of a chunk for each worker.
const SHARES_PER_WORKER: usize = 4;

/// Inserts a chunk of rows that a client has sent.
///
/// # Errors
/// Those of the rows. Some may have been inserted then.
pub(crate) fn load(
    insert: &Arc<Insert>,
    rows: &[Row],
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Failure> {
    let sharing = Sharing::new(Loading::new(insert, resources), resources);
    let _ended = sharing.ended();
    let mut transaction = sharing.work.begin();
    let mut context = Context::new(coordinator, &mut transaction, resources);
    sharing.add(sharing.work.divided(rows, &mut context)?);
    sharing.ask_for_help(coordinator, resources);
    while sharing.go_on(coordinator, resources)? {}
    Ok(())
}

/// Inserts a query's rows, and returns their number. The query is read meanwhile, as a part of the statement's transaction.
///
/// # Errors
/// Those of the query and of its rows. Some may have been inserted then.
pub(super) fn load_query(
    insert: &Arc<Insert>,
    source: &mut dyn Operator,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    let sharing = Sharing::new(Loading::new(insert, context.resources), context.resources);
    let _ended = sharing.ended();
    let (mut count, mut kept) = (0, Charge::default());
    loop {
        let rows = next_chunk(source, &mut kept, context)?;
        count += rows.len() as u64;
        let shares = sharing.work.divided(&rows, context)?;
        kept.dispose(rows);
        // Of a table with indexes there is one share at a time, whose worker competes with nobody.
        let may_add = || match insert.rules.table.indexes.is_empty() {
            true => sharing.is_short(),
            false => sharing.is_idle(),
        };
        let is_end = shares.is_empty();
        while (is_end || !may_add()) && sharing.go_on(context.coordinator, context.resources)? {}
        if is_end {
            return Ok(count);
        }
        sharing.add(shares);
        sharing.ask_for_help(context.coordinator, context.resources);
    }
}

/// The next rows of a query; none at the end.
fn next_chunk(
    source: &mut dyn Operator,
    kept: &mut Charge,
    context: &mut Context<'_, '_>,
) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    while rows.len() < CHUNK_ROWS && kept.bytes() < CHUNK_BYTES {
        let Some(mut batch) = source.next(context)? else { break };
        context.keep(kept, &batch)?;
        rows.append(&mut batch);
    }
    Ok(rows)
}

/// A table that is loaded, and the catalog that describes it.
struct Loading {
    insert: Arc<Insert>,
    catalog: Arc<Catalog>,
}

/// Rows that are to be inserted, as they are stored.
#[derive(Default)]
struct Share {
    /// Keys and values.
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    charge: Charge,
}

impl Loading {
    fn new(insert: &Arc<Insert>, resources: &Resources) -> Self {
        Self { insert: Arc::clone(insert), catalog: Arc::clone(&resources.facts.catalog) }
    }

    /// The shares of a chunk.
    fn divided(&self, rows: &[Row], context: &mut Context<'_, '_>) -> Result<Vec<Share>, Failure> {
        let cluster = &context.resources.database.cluster;
        let configuration = cluster.configuration();
        let count = match self.insert.rules.table.indexes.is_empty() {
            true => SHARES_PER_WORKER * cluster.options().threads,
            false => 1,
        };
        let mut shares: Vec<Share> = std::iter::repeat_with(Share::default).take(count).collect();
        for chunk in rows.chunks(BATCH_ROWS) {
            context.check_cancel()?;
            for entry in entries_of(&self.insert, chunk, context)? {
                let number = usize::from(configuration.partition_of_row(&entry.primary));
                let share = &mut shares[number % count];
                let Some((_, value)) = entry.keys.into_iter().next() else { continue };
                share.charge.add(context.budget(), entry.primary.len() + value.len())?;
                share.rows.push_back((entry.primary, value));
            }
        }
        shares.retain(|share| !share.rows.is_empty());
        Ok(shares)
    }
}

impl Work for Loading {
    type Share = Share;

    fn is_done(share: &Share) -> bool {
        share.rows.is_empty()
    }

    fn begin(&self) -> Transaction {
        Transaction::part_of(Arc::clone(&self.catalog))
    }

    fn go_on(
        &self,
        share: &mut Share,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Failure> {
        let table = &*self.insert.rules.table;
        let begin = |_| self.begin();
        let inserted = alone(coordinator, resources, begin, |context| {
            // Under contention smaller transactions get through. The second attempt tells duplicates.
            let rows = BATCH_ROWS >> context.attempt.saturating_sub(2).min(6);
            let rows = rows.min(share.rows.len());
            let (mut entries, missing) = (Vec::with_capacity(rows), table.missing_values()?);
            for (primary, value) in share.rows.iter().take(rows) {
                entries.push(match context.attempt {
                    1 if table.indexes.is_empty() => {
                        let keys = vec![(table.row_key(primary), value.clone())];
                        Entry { row: Row::new(), primary: primary.clone(), keys }
                    }
                    _ => Entry::new(table, decode(value, &Wanted::All, &missing)?, primary.clone()),
                });
            }
            let inserted = match context.attempt {
                1 => insert_unread(entries, context),
                _ => insert_batch(&self.insert, entries, &mut BTreeSet::new(), context),
            };
            context.checked(inserted).map(|_| rows)
        })?;
        share.rows.drain(..inserted);
        Ok(())
    }
}
