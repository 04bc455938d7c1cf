//! COPY and INSERT ... SELECT into storages that no other transaction knows: the workers of the node share the rows.
//!
//! ```text
//! chunk   rows of the client or of the query: 8,000, or as many as take 1 MiB
//! divide  a chunk into shares, each of the rows of some partitions
//! write   each share by one worker: as a part of a bulk load, or in transactions of their own
//! ```
//! The rows of a table without indexes, in a storage to which nothing was written before, come by a bulk load (`bulk`).
//!
//! Workers that write to different partitions lock no bucket that another one wants. The entries of indexes lie in other partitions than their
//! rows: then a chunk is one share. What was written before an error goes with the storages.
//!
//! *Invariant*: the query reads none of the rows that are loaded. It does not read the table, or it reads the storages that the table had before.
//!
//! *Not here*: other tables, whose rows are a part of the statement's transaction or batches of one transaction each (`write`, `session/run/copy`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gannet_engine::{BulkLoad, Coordinator, NewRows};
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

use crate::catalog::Catalog;
use crate::encoding::row::{Wanted, decode, encode};
use crate::error::{Failure, SqlError};
use crate::execute::bulk::{Bulk, Sending};
use crate::execute::operator::{Begun, Operator};
use crate::execute::sharing::{Ended, Sharing, Work};
use crate::execute::transaction::alone;
use crate::execute::write::{Entry, duplicate, insert_batch, insert_unread, new_row};
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
/// How long a load waits for a client's next rows before it looks again.
const FEED_LOOK: Duration = Duration::from_micros(100);
/// How long it waits for them, at least, before it ends.
const IDLE_MAX: Duration = Duration::from_millis(5);
/// Shares of a chunk for each worker.
const SHARES_PER_WORKER: usize = 4;

/// Batches of a client's rows, and the charges of those that have waited, on their way to a load.
pub(crate) type Feed = Receiver<(VecDeque<Row>, Charge)>;

/// Inserts the rows of a client as they come, until their sender is dropped. If none comes for a while, the load ends, and the sender learns
/// that: so the sessions of slow clients keep no coroutines. A bulk load goes on until the caller ends it.
///
/// # Errors
/// Those of the rows. Some may have been inserted then.
pub(crate) fn load_fed(
    (insert, bulk): (&Arc<Insert>, &Arc<Bulk>),
    mut feed: Feed,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Failure> {
    let mut transaction = Transaction::part_of(Arc::clone(&resources.facts.catalog));
    let context = &mut Context::new(coordinator, &mut transaction, resources);
    let mut load = Load::new(insert, bulk, context);
    let mut idle = Duration::ZERO;
    loop {
        if load.may_add() {
            match feed.try_recv() {
                Ok((rows, charge)) => {
                    if let Err(failure) = load.add_all(&mut Begun::all(rows, charge), context) {
                        // An error of rows before comes first.
                        load.end(context)?;
                        return Err(failure);
                    }
                    idle = Duration::ZERO;
                    continue;
                }
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {}
            }
        }
        if !load.sharing.go_on(context.coordinator, context.resources)? {
            if idle >= IDLE_MAX {
                // What was sent before is still taken: `Disconnected` follows the last batch.
                feed.close();
            }
            context.check_cancel()?;
            context.wait(FEED_LOOK);
            idle += FEED_LOOK;
        }
    }
    load.end(context).map(|_| ())
}

/// Inserts the rows of a source, and returns their number. The source is read meanwhile, as a part of the statement's transaction. A bulk load
/// goes on until the caller ends it.
///
/// # Errors
/// Those of the source and of its rows. Some may have been inserted then.
pub(super) fn load(
    (insert, bulk): (&Arc<Insert>, &Arc<Bulk>),
    source: &mut dyn Operator,
    context: &mut Context<'_, '_>,
) -> Result<u64, Failure> {
    context.transaction.has_loaded = true;
    let mut load = Load::new(insert, bulk, context);
    load.add_all(source, context)?;
    load.end(context)
}

/// A load in progress.
struct Load {
    sharing: Arc<Sharing<Loading>>,
    _ended: Ended<Loading>,
    chunk: Chunk,
    count: u64,
}

impl Load {
    fn new(insert: &Arc<Insert>, bulk: &Arc<Bulk>, context: &Context<'_, '_>) -> Self {
        let catalog = Arc::clone(&context.resources.facts.catalog);
        let loading = Loading { insert: Arc::clone(insert), catalog, bulk: Arc::clone(bulk) };
        let sharing = Sharing::new(loading, context.resources);
        Self { _ended: sharing.ended(), sharing, chunk: Chunk::default(), count: 0 }
    }

    /// Adds the rows of a source, and gives chunks of them to the workers.
    fn add_all(
        &mut self,
        source: &mut dyn Operator,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        while let Some(rows) = source.next(context)? {
            self.count += rows.len() as u64;
            for part in rows.chunks(PART_ROWS) {
                self.chunk.add(&self.sharing.work.insert, part, context)?;
                let bytes_max = CHUNK_BYTES.min(context.budget().share(0) / CHUNK_PART);
                if self.chunk.rows >= CHUNK_ROWS || self.chunk.bytes >= bytes_max {
                    self.give_out(context)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the workers have done most of the shares before. Of a table with indexes there is one share at a time, whose worker competes
    /// with nobody.
    fn may_add(&self) -> bool {
        match self.sharing.work.insert.rules.table.indexes.is_empty() {
            true => self.sharing.is_short(),
            false => self.sharing.is_idle(),
        }
    }

    /// Gives the shares of the chunk to the workers, as soon as they may get further ones.
    fn give_out(&mut self, context: &mut Context<'_, '_>) -> Result<(), Failure> {
        let Loading { insert, bulk, .. } = &self.sharing.work;
        let table = &*insert.rules.table;
        if table.indexes.is_empty() && self.chunk.rows > 0 {
            bulk.begin(table.rows(), context.coordinator)?;
        }
        while !self.may_add() && self.sharing.go_on(context.coordinator, context.resources)? {}
        let shares = std::mem::take(&mut self.chunk).shares.into_iter();
        self.sharing.add(shares.filter(|share| !Loading::is_done(share)));
        self.sharing.start_helpers(context.coordinator, context.resources);
        Ok(())
    }

    /// Inserts what is left; the number of all rows.
    fn end(mut self, context: &mut Context<'_, '_>) -> Result<u64, Failure> {
        self.give_out(context)?;
        while self.sharing.go_on(context.coordinator, context.resources)? {}
        Ok(self.count)
    }
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
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// How many of them are inserted.
    inserted: usize,
    sending: Sending,
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
            share.rows.push(row);
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
    bulk: Arc<Bulk>,
}

impl Loading {
    /// Adds the next rows of a share in a bulk load.
    fn add(
        &self,
        load: BulkLoad,
        share: &mut Share,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        share.sending.begin()?;
        let rows = share.rows[share.inserted..].iter().take(BATCH_ROWS);
        let rows: Vec<_> = rows.map(|(key, value)| (&key[..], &value[..])).collect();
        if let Some(existing) = context.bulk_load(load, &rows)? {
            let table = &*self.insert.rules.table;
            let row = decode(rows[existing].1, &Wanted::All, &table.missing_values()?)?;
            return Err(duplicate(table, 0, &row).into());
        }
        share.inserted += rows.len();
        share.sending.end();
        Ok(())
    }

    /// Inserts stored rows. The second attempt tells duplicates.
    fn insert(
        &self,
        rows: &[(Vec<u8>, Vec<u8>)],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        let table = &*self.insert.rules.table;
        if context.attempt == 1 && table.indexes.is_empty() {
            context.check_version()?;
            let rows: Vec<_> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            return context.commit_and_add(NewRows { table: table.rows(), rows: &rows });
        }
        let missing = table.missing_values()?;
        let entry = |(primary, value): &(Vec<u8>, Vec<u8>)| {
            Ok(Entry::new(table, decode(value, &Wanted::All, &missing)?, primary.clone()))
        };
        let entries = rows.iter().map(entry).collect::<Result<Vec<_>, SqlError>>()?;
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
        share.inserted == share.rows.len()
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
        if let Some(load) = self.bulk.load() {
            let mut transaction = self.begin();
            return self.add(
                load,
                share,
                &mut Context::new(coordinator, &mut transaction, resources),
            );
        }
        let begin = |_| self.begin();
        let inserted = alone(coordinator, resources, begin, |context| {
            // Under contention smaller transactions get through.
            let batch = BATCH_ROWS >> context.attempt.saturating_sub(2).min(6);
            let rows = &share.rows[share.inserted..];
            let rows = &rows[..batch.min(rows.len())];
            let inserted = self.insert(rows, context);
            context.checked(inserted).map(|()| rows.len())
        })?;
        share.inserted += inserted;
        Ok(())
    }
}
