//! COPY and INSERT ... SELECT into storages that no other transaction knows: the workers of the node share the rows.
//!
//! ```text
//! chunk   rows of the client or of the query: 8,000, or as many as take 1 MiB
//! divide  a chunk into shares, each of the rows of some partitions
//! write   each share by one worker, in transactions of their own
//! ```
//! Workers that write to different partitions lock no bucket that another one wants. The entries of indexes lie in other partitions than their
//! rows: then a chunk is one share. What was written before an error goes with the storages.
//!
//! *Invariant*: the query reads none of the rows that are loaded. It does not read the table, or it reads the storages that the table had before.
//!
//! *Not here*: other tables, whose rows are a part of the statement's transaction or batches of one transaction each (`write`, `session/run/copy`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gannet_engine::Coordinator;

use crate::catalog::Catalog;
use crate::encoding::row::{Wanted, decode, encode};
use crate::error::{Failure, SqlError};
use crate::execute::operator::{Begun, Operator};
use crate::execute::sharing::{Sharing, Work};
use crate::execute::transaction::alone;
use crate::execute::write::{Entry, insert_batch, insert_keys, insert_unread, new_row};
use crate::execute::{BATCH_ROWS, Context, Resources, Row, Transaction};
use crate::memory::Charge;
use crate::plan::Insert;

/// Rows of a chunk.
pub(crate) const CHUNK_ROWS: usize = 8 * BATCH_ROWS;
/// Bytes of a chunk, however few rows they are. A transaction writes a part of a chunk, and so does not become large.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
/// The same, as a part of the memory that a statement may keep: some chunks wait while the next one is made.
const CHUNK_PART: usize = 8;
/// Rows whose values are computed before their bytes are counted.
const PART_ROWS: usize = 64;
/// Shares of a chunk for each worker.
const SHARES_PER_WORKER: usize = 4;

/// Inserts rows that a client has sent, which are charged if they have waited.
///
/// # Errors
/// Those of the rows. Some may have been inserted then.
pub(crate) fn load_rows(
    insert: &Arc<Insert>,
    (rows, charge): (VecDeque<Row>, Charge),
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Failure> {
    let mut transaction = Transaction::part_of(Arc::clone(&resources.facts.catalog));
    let mut context = Context::new(coordinator, &mut transaction, resources);
    load(insert, &mut Begun::all(rows, charge), &mut context)?;
    Ok(())
}

/// Inserts the rows of a source, and returns their number. The source is read meanwhile, as a part of the statement's transaction.
///
/// # Errors
/// Those of the source and of its rows. Some may have been inserted then.
pub(super) fn load(
    insert: &Arc<Insert>,
    source: &mut dyn Operator,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    context.transaction.has_loaded = true;
    let catalog = Arc::clone(&context.resources.facts.catalog);
    let loading = Loading { insert: Arc::clone(insert), catalog };
    let sharing = Sharing::new(loading, context.resources);
    let _ended = sharing.ended();
    let (mut count, mut chunk) = (0, Chunk::default());
    while let Some(rows) = source.next(context)? {
        count += rows.len() as u64;
        for part in rows.chunks(PART_ROWS) {
            chunk.add(insert, part, context)?;
            let bytes_max = CHUNK_BYTES.min(context.budget().share(0) / CHUNK_PART);
            if chunk.rows >= CHUNK_ROWS || chunk.bytes >= bytes_max {
                give_out(&sharing, std::mem::take(&mut chunk), context)?;
            }
        }
    }
    give_out(&sharing, chunk, context)?;
    while sharing.go_on(context.coordinator, context.resources)? {}
    Ok(count)
}

/// Gives the shares of a chunk to the workers, as soon as they have done most of those before.
fn give_out(
    sharing: &Arc<Sharing<Loading>>,
    chunk: Chunk,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    // Of a table with indexes there is one share at a time, whose worker competes with nobody.
    let may_add = || match sharing.work.insert.rules.table.indexes.is_empty() {
        true => sharing.is_short(),
        false => sharing.is_idle(),
    };
    while !may_add() && sharing.go_on(context.coordinator, context.resources)? {}
    sharing.add(chunk.shares.into_iter().filter(|share| !share.rows.is_empty()));
    sharing.start_helpers(context.coordinator, context.resources);
    Ok(())
}

/// Rows of a chunk, by partition.
#[derive(Default)]
struct Chunk {
    shares: Vec<Share>,
    rows: usize,
    bytes: usize,
}

/// Rows that are to be inserted, as they are stored.
#[derive(Default)]
struct Share {
    /// Keys and values.
    rows: VecDeque<(Vec<u8>, Vec<u8>)>,
    charge: Charge,
}

impl Chunk {
    /// Computes the values of rows, and adds them.
    fn add(
        &mut self,
        insert: &Insert,
        rows: &[Row],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        context.check_cancel()?;
        let cluster = &context.resources.database.cluster;
        let configuration = cluster.configuration();
        if self.shares.is_empty() {
            let count = match insert.rules.table.indexes.is_empty() {
                true => SHARES_PER_WORKER * cluster.options().threads,
                false => 1,
            };
            self.shares.resize_with(count, Share::default);
        }
        let count = self.shares.len();
        for row in rows {
            let (row, primary) = new_row(insert, row, context)?;
            let number = usize::from(configuration.partition_of_row(&primary));
            let share = &mut self.shares[number % count];
            let row = (primary, encode(&row));
            let bytes = size_of_val(&row) + row.0.len() + row.1.len();
            share.charge.add(context.budget(), bytes)?;
            share.rows.push_back(row);
            self.bytes += bytes;
        }
        self.rows += rows.len();
        Ok(())
    }
}

/// A table that is loaded, and the catalog that describes it.
struct Loading {
    insert: Arc<Insert>,
    catalog: Arc<Catalog>,
}

impl Loading {
    /// Inserts stored rows. The second attempt tells duplicates.
    fn insert<'r>(
        &self,
        rows: impl Iterator<Item = &'r (Vec<u8>, Vec<u8>)>,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let table = &*self.insert.rules.table;
        if context.attempt == 1 && table.indexes.is_empty() {
            context.check_version()?;
            let keys = rows.map(|(primary, value)| (table.row_key(primary), value.clone()));
            return insert_keys(keys, context);
        }
        let missing = table.missing_values()?;
        let entry = |(primary, value): &(Vec<u8>, Vec<u8>)| {
            Ok(Entry::new(table, decode(value, &Wanted::All, &missing)?, primary.clone()))
        };
        let entries = rows.map(entry).collect::<Result<Vec<_>, SqlError>>()?;
        match context.attempt {
            1 => insert_unread(entries, context)?,
            _ => insert_batch(&self.insert, entries, &mut BTreeSet::new(), context)?,
        };
        Ok(())
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
        let begin = |_| self.begin();
        let inserted = alone(coordinator, resources, begin, |context| {
            // Under contention smaller transactions get through.
            let rows = BATCH_ROWS >> context.attempt.saturating_sub(2).min(6);
            let rows = rows.min(share.rows.len());
            let inserted = self.insert(share.rows.range(..rows), context);
            context.checked(inserted).map(|()| rows)
        })?;
        share.rows.drain(..inserted);
        Ok(())
    }
}
