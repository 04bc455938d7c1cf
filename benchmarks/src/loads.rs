//! Loads: bulk loads of new tables beside transactions on those that are loaded.
//!
//! ```text
//! table   new ─▶ being loaded ─▶ loaded: its rows are read and counted up
//!                            └─▶ failed: nobody uses it any more
//! row     number (4, BE) ─▶ count (8, LE), and as many bytes as the number says
//! ```
//! A load sends its rows in batches, with pauses in between, and one row twice in a few of them, which fails it. Where a bulk load is refused,
//! because a bucket of the table was split, or copies come or go, transactions insert the rows. Each row of a table that was loaded must be found,
//! and be counted up as often as transactions have told.
//!
//! *Source*: `docs/protocol.md`, "Bulk loads".

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_engine::{Abort, Change, Cluster, Coordinator, Failure, Outcome, TableId, Transaction};
use rand::RngExt;

use crate::check::Check;
use crate::rows::for_each_row_in_order;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Ran, Random, Result, Workload};

const LOAD: usize = 0;
const COUNT: usize = 1;
const READ: usize = 2;
/// Tally: a row of a loaded table was not found, or was not as it was loaded.
const WRONG: usize = 0;

const TABLES: usize = 40;
const ROWS_MAX: u32 = 400;
const BATCH_ROWS_MAX: usize = 60;
const PAUSE_MAX: Duration = Duration::from_micros(400);
/// One transaction of so many is a load, while tables are new.
const LOAD_EVERY: u32 = 60;
/// One load of so many has a row twice.
const TWICE_EVERY: u32 = 8;
const COUNT_BYTES: usize = 8;

/// A table that was loaded, and its rows.
#[derive(Clone, Copy)]
struct Loaded {
    table: TableId,
    rows: u32,
}

/// The workload.
#[derive(Default)]
pub struct Loads {
    tables: Vec<TableId>,
    /// How many of them are new no more.
    begun: AtomicUsize,
    loaded: Mutex<Vec<Loaded>>,
    /// Loads that have failed.
    failed: AtomicU64,
    /// Tables whose rows transactions have inserted.
    inserted: AtomicU64,
    /// Answers that did not name a row that was there, or named one that was not.
    wrong: AtomicU64,
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

fn value(number: u32, count: u64) -> Vec<u8> {
    let rest = [u8::try_from(number % 251).expect("a byte")].repeat(number as usize % 150);
    [&count.to_le_bytes()[..], &rest].concat()
}

/// The count of a row, if its value is that of the number.
fn count_of(number: u32, bytes: &[u8]) -> Option<u64> {
    let count = u64::from_le_bytes(*bytes.first_chunk::<COUNT_BYTES>()?);
    (bytes == value(number, count)).then_some(count)
}

impl Loads {
    fn loaded(&self) -> MutexGuard<'_, Vec<Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a table with rows; whether by a bulk load.
    fn load_table(
        &self,
        coordinator: &mut Coordinator<'_>,
        Loaded { table, rows }: Loaded,
        random: &mut Random,
    ) -> std::result::Result<bool, Abort> {
        let mut numbers: Vec<u32> = (0..rows).collect();
        let step = random.random_range(0..numbers.len());
        numbers.rotate_left(step);
        let twice = random.random_ratio(1, TWICE_EVERY).then(|| numbers[numbers.len() / 2]);
        let load = coordinator.begin_bulk_load(table)?;
        while !numbers.is_empty() {
            let count = random.random_range(1..=BATCH_ROWS_MAX.min(numbers.len()));
            let mut batch: Vec<u32> = numbers.drain(..count).collect();
            batch.extend(twice.filter(|_| numbers.is_empty() && load.is_some()));
            let batch: Vec<_> = batch.into_iter().map(|it| (key(it), value(it, 0))).collect();
            let batch: Vec<_> = batch.iter().map(|(key, value)| (&key[..], &value[..])).collect();
            match load {
                None => insert(coordinator, table, &batch)?,
                Some(load) => {
                    let existing = coordinator.bulk_load(load, &batch)?;
                    let is_expected = existing.is_some() == (twice.is_some() && numbers.is_empty());
                    self.wrong.fetch_add(u64::from(!is_expected), Ordering::Relaxed);
                    if existing.is_some() {
                        // The load has failed.
                        return Err(Abort::Requested);
                    }
                }
            }
            coordinator.pause(random.random_range(Duration::ZERO..PAUSE_MAX));
        }
        if let Some(load) = load {
            coordinator.end_bulk_load(load)?;
        }
        Ok(load.is_some())
    }

    fn load_next(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Result {
        // Relaxed: each number is given once.
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let rows = random.random_range(1..=ROWS_MAX);
        let Some(table) = self.tables.get(number) else { return Result::RowsMissing };
        let loaded = Loaded { table: *table, rows };
        match self.load_table(coordinator, loaded, random) {
            Ok(is_bulk) => {
                self.inserted.fetch_add(u64::from(!is_bulk), Ordering::Relaxed);
                self.loaded().push(loaded);
                Result::Qualified
            }
            Err(abort) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Result::Aborted(abort)
            }
        }
    }

    /// Reads a row of a loaded table, or counts the row up; whether the row is as it was loaded.
    fn use_row(
        &self,
        tx: &mut Transaction<'_>,
        Loaded { table, rows }: Loaded,
        (transaction, random): (usize, &mut Random),
    ) -> std::result::Result<bool, Abort> {
        let number = random.random_range(0..rows);
        let row = tx.add_to_read_set(table, &key(number)[..]);
        tx.execute()?;
        let count = tx.value(row).and_then(|found| count_of(number, found));
        if let (Some(count), COUNT) = (count, transaction) {
            let value = value(number, count + 1);
            tx.add_row_to_write_set(table, &key(number), Change::Update(&value));
        }
        tx.commit()?;
        Ok(count.is_some())
    }
}

/// Inserts rows by a transaction, again after conflicts.
fn insert(
    coordinator: &mut Coordinator<'_>,
    table: TableId,
    rows: &[(&[u8], &[u8])],
) -> std::result::Result<(), Abort> {
    let outcome = coordinator.run(|tx| {
        for (key, value) in rows {
            tx.add_row_to_write_set(table, key, Change::Insert(value));
        }
        Ok::<_, Abort>(())
    });
    match outcome {
        Outcome::Committed(()) => Ok(()),
        Outcome::Aborted(abort) | Outcome::Failed(abort) => Err(abort),
        Outcome::Unknown => Err(Failure::Unknown.into()),
        Outcome::Panicked(message) => panic!("{message}"),
    }
}

/// How many copies of a table have not heard of the end of a bulk load.
fn unended_copies(cluster: &Cluster, table: TableId) -> u64 {
    let configuration = cluster.configuration();
    let views: Vec<_> = cluster.nodes().iter().map(|node| node.view()).collect();
    let copies = (0..).take(configuration.partitioning.count()).flat_map(|partition| {
        let nodes = configuration.copies(partition).iter();
        nodes
            .filter_map(|node| Some((views.get(usize::from(*node))?, partition)))
            .collect::<Vec<_>>()
    });
    let tables = copies.filter_map(|(view, it)| Some((view.table(table.number())?, it)));
    tables.filter(|(table, partition)| table.is_bulk_loaded(*partition)).count() as u64
}

impl Workload for Loads {
    fn name(&self) -> &'static str {
        "loads"
    }

    fn transactions(&self) -> &'static [&'static str] {
        &["load", "count", "read"]
    }

    fn tallies(&self) -> &'static [&'static str] {
        &["wrong rows"]
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("tables", TABLES.to_string())]
    }

    fn create_tables(&mut self, cluster: &Cluster) -> std::result::Result<(), BenchmarkError> {
        let create = |number| cluster.create_ordered_table(&format!("loads {number}"), 0);
        self.tables = (0..TABLES).map(create).collect::<std::result::Result<_, _>>()?;
        Ok(())
    }

    fn load(&self, _: &Cluster, _: u64, _: u64) -> std::result::Result<(), BenchmarkError> {
        Ok(())
    }

    fn run_one(&self, coordinator: &mut Coordinator<'_>, random: &mut Random) -> Ran {
        let loaded = self.loaded().clone();
        if loaded.is_empty() || random.random_ratio(1, LOAD_EVERY) {
            let result = self.load_next(coordinator, random);
            return Ran { transaction: LOAD, result, tally: None };
        }
        let loaded = loaded[random.random_range(0..loaded.len())];
        let transaction = if random.random_bool(0.5) { COUNT } else { READ };
        let used = self.use_row(coordinator.begin(), loaded, (transaction, random));
        let (result, tally) = match used {
            Ok(is_right) => (Result::Qualified, (!is_right).then_some(WRONG)),
            Err(abort) => (Result::Aborted(abort), None),
        };
        Ran { transaction, result, tally }
    }

    fn verify(&self, cluster: &Cluster, totals: &Totals) -> Vec<Check> {
        let (mut differing, mut counted, mut unserved) = (0_u64, 0, 0_u64);
        for Loaded { table, rows } in self.loaded().iter() {
            unserved += unended_copies(cluster, *table);
            let mut numbers = Vec::new();
            for_each_row_in_order(cluster, *table, |key, bytes| {
                let number = key.try_into().map_or(u32::MAX, u32::from_be_bytes);
                match count_of(number, bytes) {
                    Some(count) => counted += count,
                    None => differing += 1,
                }
                numbers.push(number);
            });
            numbers.sort_unstable();
            differing += u64::from(!numbers.into_iter().eq(0..*rows));
        }
        // Relaxed: no transaction runs any more.
        let [failed, inserted, wrong] =
            [&self.failed, &self.inserted, &self.wrong].map(|it| it.load(Ordering::Relaxed));
        let loads = self.loaded().len() as u64 - inserted;
        let detail = format!(
            "{differing} differ; {loads} bulk loads, {failed} that failed, {inserted} tables of transactions"
        );
        let told = totals.types[COUNT].qualified;
        vec![
            Check::new("loaded tables have their rows", differing == 0, detail),
            Check::equal(
                "copies of loaded tables that have not heard of the end",
                0,
                unserved.into(),
            ),
            Check::equal("loads that were told wrongly of a row", 0, wrong.into()),
            Check::equal("rows that were not as they were loaded", 0, totals.tallies[WRONG].into()),
            Check::equal("rows that were counted up", told.into(), counted.into())
                .of_all_outcomes(),
        ]
    }
}
