//! A second table that takes rows while transactions of a workload are measured: laid out for the rows, or growing.
//!
//! ```text
//! clients     warm-up ─► measured ────────────────────────────────► stopped
//! coroutines  one of each worker expects and inserts its share of the rows ─► all rows are there
//! ```
//! *Not here*: tables that have grown before the measurement (`grow`).

use gannet_engine::{Abort, Cluster, Coordinator, LockMode, TableId, WorkerId};

use crate::check::Check;
use crate::rows::for_each_row;
use crate::workload::BenchmarkError;

/// Coroutines of each worker that run no client.
pub(crate) const COROUTINES: usize = 1;
/// Rows that a table that is to grow is laid out for.
const ROWS_BEFORE_GROWTH: u64 = 1_000;
/// Rows for which a worker has buckets split before it inserts them.
const EXPECTED_ROWS: usize = 1_024;
/// Rows of a transaction.
const BATCH_ROWS: usize = 16;
const VALUE_BYTES: usize = 40;
/// Runs of a transaction before its conflict is an error.
const ATTEMPTS_MAX: u32 = 1_000;

/// The second table of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// Rows that it takes.
    pub rows: u64,
    /// Whether it has buckets for all rows at the start; otherwise it grows from buckets for a thousand.
    pub is_laid_out: bool,
}

impl Beside {
    /// The setting in the report.
    pub(crate) fn setting(self) -> String {
        let layout = if self.is_laid_out { "laid out" } else { "growing" };
        format!("{} rows, {layout}", self.rows)
    }

    pub(crate) fn create(self, cluster: &Cluster) -> Result<Filling, BenchmarkError> {
        let laid_out = if self.is_laid_out { self.rows } else { self.rows.min(ROWS_BEFORE_GROWTH) };
        let table = cluster.open_table("beside", VALUE_BYTES, laid_out)?;
        Ok(Filling { table, rows: self.rows })
    }
}

/// Refuses settings with which no client would run.
pub(crate) fn check_coroutines(
    beside: Option<Beside>,
    coroutines: usize,
) -> Result<(), BenchmarkError> {
    if beside.is_some() && coroutines <= COROUTINES {
        return Err(BenchmarkError::Setting {
            setting: "--coroutines",
            value: coroutines.to_string(),
            allowed: format!("at least {}: {COROUTINES} runs no client", COROUTINES + 1),
        });
    }
    Ok(())
}

/// A second table that takes its rows.
#[derive(Clone, Copy)]
pub(crate) struct Filling {
    table: TableId,
    rows: u64,
}

impl Filling {
    /// Inserts all rows. The nodes are in this process.
    ///
    /// # Errors
    /// [`BenchmarkError::Beside`] if a transaction fails, such as for lack of memory.
    pub(crate) fn run(self, cluster: &Cluster) -> Result<(), BenchmarkError> {
        let (nodes, threads) = (cluster.options().nodes, cluster.options().threads);
        let workers = nodes * threads;
        let mut completions = Vec::with_capacity(workers);
        for number in 0..workers {
            let job = move |coordinator: &mut Coordinator<'_>| -> Result<(), Abort> {
                let is_conflict = |abort: &Abort| abort.is_conflict();
                let keys: Vec<u64> = (number as u64..self.rows).step_by(workers).collect();
                for expected in keys.chunks(EXPECTED_ROWS) {
                    // Growth that finds no room or time is no error: the rows go into overflow buckets.
                    let _ = coordinator.expect_rows(self.table, workers * expected.len())?;
                    for keys in expected.chunks(BATCH_ROWS) {
                        coordinator.retried(ATTEMPTS_MAX, is_conflict, |coordinator, _| {
                            insert(coordinator, self.table, keys)
                        })?;
                    }
                }
                Ok(())
            };
            let at = WorkerId { node: number / threads, worker: number % threads };
            completions.push(cluster.spawn(at, job)?);
        }
        completions.into_iter().try_for_each(|completion| {
            let ended = completion.wait().map_err(|lost| cluster.loss(lost))?;
            ended.map_err(BenchmarkError::Beside)
        })
    }

    /// Whether the table has each row once.
    pub(crate) fn check(self, cluster: &Cluster) -> Check {
        let (mut count, mut whole) = (0, 0);
        for_each_row(cluster, self.table, |key, value| {
            count += 1;
            whole += u64::from(key < self.rows && value[..8] == key.to_le_bytes());
        });
        let details = format!("expected {}, found {count}, {whole} of them whole", self.rows);
        let passed = (count, whole) == (self.rows, self.rows);
        Check::new("rows of the second table", passed, details)
    }
}

fn insert(coordinator: &mut Coordinator<'_>, table: TableId, keys: &[u64]) -> Result<(), Abort> {
    let tx = coordinator.begin();
    let rows: Vec<_> =
        keys.iter().map(|key| tx.add_to_write_set(table, *key, LockMode::Insert)).collect();
    let inserted = tx.execute().and_then(|()| {
        for (row, key) in rows.into_iter().zip(keys) {
            tx.value_mut(row)?[..8].copy_from_slice(&key.to_le_bytes());
        }
        tx.commit()
    });
    if inserted.is_err() {
        tx.abort();
    }
    inserted
}
