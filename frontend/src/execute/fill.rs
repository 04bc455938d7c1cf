//! Filling what is built online: the entries of an index, or the rows of a table under their new primary key.
//!
//! ```text
//! read    the rows of a chunk of the table, page by page: of each its future key, and its primary key or itself
//! divide  the chunk into shares, one for each partition of the future keys
//! write   each share by one worker of the node, in the order of its keys: in transactions of their own, or, of rows under a new primary key,
//!         as a part of a bulk load (`bulk`)
//! ```
//! Other transactions change the rows while an index is built. So a page of entries is written by a transaction that reads its rows again. Nobody
//! changes the rows of a frozen table, which are written as they were read.
//!
//! Workers that write to different partitions lock no bucket that another one wants, and keys that come in their order find the leaves of the
//! index in the processor's cache. The statement's own coroutine reads, and writes while there are shares enough (`sharing`).
//!
//! *Invariant*: a page is written by a transaction that has read its rows, or that depends on the declaration which froze them before they were
//! read.
//!
//! *Not here*: what is declared before, and what follows (`online`); builds inside BEGIN (`build`).

use std::collections::BTreeMap;
use std::sync::Arc;

use gannet_engine::{BulkLoad, Coordinator, Direction, KeyRange, NewRows, TableKey};

use crate::catalog::{Catalog, Index, Table, table_key};
use crate::encoding::row::{Wanted, decode, decode_into};
use crate::error::{Failure, SqlError};
use crate::execute::build::{KeyedRows, add_entries, add_rows, duplicate_primary, new_primary};
use crate::execute::bulk::{Bulk, Sending};
use crate::execute::changes::{Build, changed_meanwhile};
use crate::execute::scan::whole;
use crate::execute::sharing::{Sharing, Work};
use crate::execute::transaction::alone;
use crate::execute::{Context, Resources, Row, Transaction};
use crate::memory::{Budget, Charge};

/// Pages of a share, on average.
const SHARE_PAGES: usize = 4;
/// Most pages of a chunk.
const CHUNK_PAGES_MAX: usize = 64;
/// A chunk ends with the page at which it has so many bytes.
const CHUNK_BYTES: usize = 16 << 20;
/// The same, as a part of the memory that a statement may keep.
const CHUNK_PART: usize = 8;
/// A page ends with the row at which it has so many bytes: one transaction writes them.
const PAGE_BYTES: usize = 1 << 20;

/// A row that is to be written: its future key, where that lies, and what is written there.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placed {
    partition: u16,
    key: Vec<u8>,
    /// For an index the row's primary key. For a new primary key the row, as it is stored.
    source: Vec<u8>,
    /// Bytes of the row.
    row_bytes: usize,
}

impl Placed {
    /// Memory that it takes.
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.source.len()
    }
}

/// Rows whose future keys lie in one partition.
#[derive(Default)]
struct Share {
    rows: Vec<Placed>,
    /// How many of them are written.
    written: usize,
    sending: Sending,
    is_sorted: bool,
    charge: Charge,
}

impl Share {
    fn add(&mut self, row: Placed, budget: &Arc<Budget>) -> Result<(), SqlError> {
        self.charge.add(budget, row.memory_bytes())?;
        self.rows.push(row);
        Ok(())
    }

    /// The next page, of at most so many rows.
    fn page(&self, rows_max: usize) -> &[Placed] {
        let left = &self.rows[self.written..];
        let mut bytes = 0;
        let fit = left.iter().take(rows_max).take_while(|row| {
            let is_short = bytes < PAGE_BYTES;
            bytes += row.row_bytes;
            is_short
        });
        &left[..fit.count()]
    }
}

/// Fills the index or the storage.
///
/// # Errors
/// SQLSTATE 23505 for keys that are not unique, 23502 for a new primary key that is NULL; that of another definition that changes the table.
pub(super) fn fill(
    build: &Build,
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Failure> {
    let filling = Filling::new(build, resources)?;
    if let Build::PrimaryKey { rebuilt, .. } = build
        && rebuilt.indexes.is_empty()
    {
        filling.bulk.begin(rebuilt.rows(), coordinator)?;
    }
    let sharing = Sharing::new(filling, resources);
    let _ended = sharing.ended();
    let (mut rest, mut is_large) = (Some(whole()), false);
    loop {
        if let Some(range) = rest.take_if(|_| sharing.is_short()) {
            let (shares, left) = sharing.work.read_chunk(range, coordinator, resources)?;
            sharing.add(shares);
            is_large |= left.is_some();
            if is_large {
                sharing.start_helpers(coordinator, resources);
            }
            rest = left;
        } else if !sharing.go_on(coordinator, resources)? && rest.is_none() {
            return sharing.work.bulk.end(coordinator);
        }
    }
}

/// What is filled, and the catalog in which it is declared.
struct Filling {
    build: Build,
    catalog: Arc<Catalog>,
    bulk: Bulk,
}

impl Filling {
    fn new(build: &Build, resources: &Resources) -> Result<Self, Failure> {
        let catalog = resources.database.catalog();
        let filling = Self { build: build.clone(), catalog, bulk: Bulk::default() };
        filling.table()?;
        Ok(filling)
    }

    fn table(&self) -> Result<&Table, Failure> {
        let table = self.catalog.table_numbered(self.build.table());
        Ok(table.ok_or_else(changed_meanwhile)?)
    }

    /// Adds the next page of a share in a bulk load.
    fn add(
        &self,
        load: BulkLoad,
        share: &mut Share,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        share.sending.begin()?;
        let page = share.page(page_rows(context));
        let rows: Vec<_> = page.iter().map(|row| (&row.key[..], &row.source[..])).collect();
        if let Some(existing) = context.bulk_load(load, &rows)?
            && let Target::Rebuilt(rebuilt) = Target::of(&self.build, self.table()?)?
        {
            let row = decode(rows[existing].1, &Wanted::All, &rebuilt.missing_values()?)?;
            return Err(duplicate_primary(rebuilt, &row).into());
        }
        share.written += rows.len();
        share.sending.end();
        Ok(())
    }

    /// Reads the first rows of a range; the rest of it.
    fn read_chunk(
        &self,
        range: KeyRange,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(impl Iterator<Item = Share> + use<>, Option<KeyRange>), Failure> {
        let (database, budget) = (&resources.database, &resources.facts.budget);
        let partitions = database.cluster.configuration().partitioning.count();
        let pages = (SHARE_PAGES * partitions).min(CHUNK_PAGES_MAX);
        let rows_max = pages * database.built_rows;
        let bytes_max = CHUNK_BYTES.min(budget.share(0) / CHUNK_PART);
        let mut shares: BTreeMap<u16, Share> = BTreeMap::new();
        let (mut rest, mut rows, mut bytes) = (Some(range), 0, 0);
        while let Some(range) =
            rest.take_if(|_| rows == 0 || (rows < rows_max && bytes < bytes_max))
        {
            let begin = |_| self.begin();
            let (placed, left) = alone(coordinator, resources, begin, |context| {
                read_page(&self.build, self.table()?, (&range, page_rows(context)), context)
            })?;
            rows += placed.len();
            for row in placed {
                bytes += row.memory_bytes();
                shares.entry(row.partition).or_default().add(row, budget)?;
            }
            rest = left;
        }
        Ok((shares.into_values(), rest))
    }
}

impl Work for Filling {
    type Share = Share;

    fn is_done(share: &Share) -> bool {
        share.written == share.rows.len()
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
        if !std::mem::replace(&mut share.is_sorted, true) {
            share.rows.sort_unstable();
        }
        if let Some(load) = self.bulk.load() {
            let mut transaction = self.begin();
            return self.add(
                load,
                share,
                &mut Context::new(coordinator, &mut transaction, resources),
            );
        }
        let begin = |_| self.begin();
        let written = alone(coordinator, resources, begin, |context| {
            let page = share.page(page_rows(context));
            write_page(&self.build, self.table()?, page, context)?;
            Ok(page.len())
        })?;
        share.written += written;
        Ok(())
    }
}

/// Rows of a page: under contention smaller pages get through.
fn page_rows(context: &Context<'_, '_>) -> usize {
    (context.resources.database.built_rows >> (context.attempt - 1).min(6)).max(1)
}

/// What is to be written for the first rows of a range, at most `rows_max`, and where; and the rest of the range. 23502 if a column of a new primary
/// key is NULL.
pub(super) fn read_page(
    build: &Build,
    table: &Table,
    (range, rows_max): (&KeyRange, usize),
    context: &mut Context<'_, '_>,
) -> Result<(Vec<Placed>, Option<KeyRange>), Failure> {
    depend_on(table, context)?;
    let (target, missing) = (Target::of(build, table)?, table.missing_values()?);
    let page = context.scan(table.rows(), range, Direction::Ascending, rows_max)?;
    let configuration = context.resources.database.cluster.configuration();
    let wanted = target.columns(table);
    let mut row = Vec::new();
    let placed = |(primary, bytes): (&[u8], &[u8])| {
        decode_into(bytes, &wanted, &missing, &mut row)?;
        let (key, source) = match &target {
            Target::Index(index) => (index.entry(&row, primary).0.key, primary.to_vec()),
            Target::Rebuilt(rebuilt) => (new_primary(rebuilt, &row)?, bytes.to_vec()),
        };
        let partition = configuration.partition_of_row(&key);
        Ok(Placed { partition, key, source, row_bytes: bytes.len() })
    };
    let placed: Result<_, SqlError> = page.rows.iter().map(placed).collect();
    Ok((placed?, page.rest))
}

/// Writes a page of rows, or the entries of those that are still there.
pub(super) fn write_page(
    build: &Build,
    table: &Table,
    page: &[Placed],
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    depend_on(table, context)?;
    match Target::of(build, table)? {
        Target::Index(index) => {
            let keys: Vec<TableKey> = page.iter().map(|row| table.row_key(&row.source)).collect();
            let values = context.get_many(&keys)?;
            let missing = table.missing_values()?;
            let there = page.iter().zip(values).filter_map(|(row, value)| Some((row, value?)));
            let rows: Result<KeyedRows, SqlError> = there
                .map(|(row, value)| {
                    Ok((row.source.clone(), decode(&value, &Wanted::All, &missing)?))
                })
                .collect();
            add_entries(table, index, rows?, context)
        }
        // The second attempt tells duplicates.
        Target::Rebuilt(rebuilt) if context.attempt == 1 && rebuilt.indexes.is_empty() => {
            let rows: Vec<_> = page.iter().map(|row| (&row.key[..], &row.source[..])).collect();
            context.commit_and_add(NewRows { table: rebuilt.rows(), rows: &rows })
        }
        Target::Rebuilt(rebuilt) => {
            let missing = rebuilt.missing_values()?;
            let rows: Result<Vec<Row>, SqlError> =
                page.iter().map(|row| decode(&row.source, &Wanted::All, &missing)).collect();
            add_rows(rebuilt, rows?, context)
        }
    }
}

/// What is filled.
enum Target<'t> {
    Index(&'t Index),
    /// The table with its new primary key.
    Rebuilt(&'t Table),
}

impl<'t> Target<'t> {
    fn of(build: &'t Build, table: &'t Table) -> Result<Self, SqlError> {
        match build {
            Build::PrimaryKey { rebuilt, .. } => Ok(Self::Rebuilt(rebuilt)),
            Build::Index { index, .. } => {
                let found = table.indexes.iter().find(|other| other.id == *index);
                found.map(Self::Index).ok_or_else(changed_meanwhile)
            }
        }
    }

    /// The columns of a row that its future key is made of.
    fn columns(&self, table: &Table) -> Wanted {
        let columns = match self {
            Self::Index(index) => &index.columns,
            Self::Rebuilt(rebuilt) => rebuilt.primary_columns(),
        };
        Wanted::Some((0..table.columns.len()).map(|column| columns.contains(&column)).collect())
    }
}

/// Makes the transaction fail if the table differs from its declaration, or will when the transaction commits.
fn depend_on(table: &Table, context: &mut Context<'_, '_>) -> Result<(), Failure> {
    let key = table_key(table.id);
    let catalog_table = context.resources.database.catalog_table;
    let deferred = &mut context.transaction.deferred;
    let found =
        deferred.get_many(context.coordinator, catalog_table, std::slice::from_ref(&key))?;
    let found = found.into_iter().next().flatten();
    let same = found.and_then(|bytes| serde_json::from_slice::<Table>(&bytes).ok());
    if same.as_ref() == Some(table) { Ok(()) } else { Err(changed_meanwhile().into()) }
}
