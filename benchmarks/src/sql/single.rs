//! Single statements on a narrow table, to measure SQL by itself.
//!
//! ```text
//! select   one row by its key               copy   1,000 rows of COPY, into a table of its own
//! update   one row by its key, + 1          scan   all rows, sent to the client
//!                                           sum    all rows, summed by the database
//! ```
//!
//! Each operation is a benchmark: each of its transactions is that one statement.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::RngExt;

use super::{SqlConnection, SqlFailure, SqlRows, SqlValue, SqlWorkload};
use crate::check::Check;
use crate::statistics::Totals;
use crate::workload::{BenchmarkError, Profile, Ran, Random};

/// Maximum number of rows: scans keep them in memory.
const ROWS_MAX: u64 = 100_000_000;
/// Maximum number of bytes of a filler.
const FILLER_BYTES_MAX: usize = 64 << 10;
/// Bytes of a row's two numbers.
const NUMBERS_BYTES: u64 = 16;
/// Rows of a measured COPY.
const COPY_ROWS: u64 = 1_000;
/// Bytes of a chunk of COPY's data.
const CHUNK_BYTES: usize = 64 << 10;

/// The statement to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read of a row by its key.
    Select,
    /// A change of a row by its key.
    Update,
    /// A COPY of rows into the database.
    Copy,
    /// A read of all rows by the client.
    Scan,
    /// A sum of all rows.
    Sum,
}

/// The workload.
pub struct SingleStatements {
    operation: Operation,
    rows: u64,
    /// The text of each row beside its two numbers, if there is one.
    filler: String,
    /// The first key that no COPY has used.
    next: AtomicU64,
}

impl SingleStatements {
    /// A workload with one operation on a table of `rows` rows: two numbers of 8 bytes, and a text of `filler_bytes` unless that is 0.
    ///
    /// # Errors
    /// [`BenchmarkError::Setting`] if `rows` is 0 or too large, or `filler_bytes` is.
    pub fn new(
        operation: Operation,
        rows: u64,
        filler_bytes: usize,
    ) -> Result<Self, BenchmarkError> {
        if !(1..=ROWS_MAX).contains(&rows) {
            let (value, allowed) = (rows.to_string(), format!("1 to {ROWS_MAX}"));
            return Err(BenchmarkError::Setting { setting: "--rows", value, allowed });
        }
        if filler_bytes > FILLER_BYTES_MAX {
            let (value, allowed) = (filler_bytes.to_string(), format!("0 to {FILLER_BYTES_MAX}"));
            return Err(BenchmarkError::Setting { setting: "--filler", value, allowed });
        }
        let filler = "x".repeat(filler_bytes);
        Ok(Self { operation, rows, filler, next: AtomicU64::new(0) })
    }

    /// The rows with these keys, in the text format of COPY.
    fn lines(&self, keys: Range<u64>) -> impl Iterator<Item = Vec<u8>> {
        copy_data(keys.map(|id| match &*self.filler {
            "" => format!("{id}\t{id}\n"),
            filler => format!("{id}\t{id}\t{filler}\n"),
        }))
    }

    fn row_count(&self) -> i64 {
        i64::try_from(self.rows).expect("checked to be few")
    }

    async fn scan(&self, connection: &mut impl SqlConnection) -> Result<bool, SqlFailure> {
        let rows = connection.query("SELECT id, value FROM bench_narrow", &[]).await?;
        Ok(rows.count() as u64 == self.rows)
    }

    async fn copy(&self, connection: &mut impl SqlConnection) -> Result<bool, SqlFailure> {
        let first = self.next.fetch_add(COPY_ROWS, Ordering::Relaxed);
        let data = self.lines(first..first + COPY_ROWS);
        let count = connection.copy("COPY bench_copied FROM STDIN", data).await?;
        Ok(count == COPY_ROWS)
    }
}

/// Lines of COPY's text format, in chunks of a fixed size.
pub fn copy_data(lines: impl Iterator<Item = String>) -> impl Iterator<Item = Vec<u8>> {
    let mut lines = lines.peekable();
    std::iter::from_fn(move || {
        lines.peek()?;
        let mut chunk = Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 3));
        while chunk.len() < CHUNK_BYTES
            && let Some(line) = lines.next()
        {
            chunk.extend_from_slice(line.as_bytes());
        }
        Some(chunk)
    })
}

impl SqlWorkload for SingleStatements {
    fn profile(&self) -> Profile {
        let (transactions, rows_each): (&[&str], _) = match self.operation {
            Operation::Select => (&["select"], None),
            Operation::Update => (&["update"], None),
            Operation::Copy => (&["copy"], Some(COPY_ROWS)),
            Operation::Scan => (&["scan"], Some(self.rows)),
            Operation::Sum => (&["sum"], Some(self.rows)),
        };
        let mut settings = vec![("rows", self.rows.to_string())];
        if !self.filler.is_empty() {
            settings.push(("filler", self.filler.len().to_string()));
        }
        Profile { name: "sql", transactions, tallies: &[], settings, rows_each }
    }

    fn schema(&self) -> Vec<String> {
        let tables = ["bench_narrow", "bench_copied"];
        let filler = if self.filler.is_empty() { "" } else { ", filler text NOT NULL" };
        let statements = tables.iter().flat_map(|table| {
            [
                format!("DROP TABLE IF EXISTS {table}"),
                format!(
                    "CREATE TABLE {table} (id bigint PRIMARY KEY, value bigint NOT NULL{filler})"
                ),
            ]
        });
        statements.collect()
    }

    async fn load(&self, connection: &mut impl SqlConnection) -> Result<u64, SqlFailure> {
        connection.copy("COPY bench_narrow FROM STDIN", self.lines(0..self.rows)).await
    }

    fn payload_bytes(&self) -> Option<u64> {
        Some(self.rows * (NUMBERS_BYTES + self.filler.len() as u64))
    }

    async fn run_one(
        &self,
        connection: &mut impl SqlConnection,
        random: &mut Random,
    ) -> Result<Ran, SqlFailure> {
        let outcome = match self.operation {
            Operation::Select => {
                let id = random.random_range(0..self.row_count());
                let sql = "SELECT value FROM bench_narrow WHERE id = $1";
                let rows = connection.query(sql, &[SqlValue::Integer(id)]).await;
                rows.map(|rows| rows.count() == 1 && rows.integer(0, 0) == id)
            }
            Operation::Update => {
                let id = random.random_range(0..self.row_count());
                let sql = "UPDATE bench_narrow SET value = value + 1 WHERE id = $1";
                connection.change(sql, &[SqlValue::Integer(id)]).await.map(|count| count == 1)
            }
            Operation::Copy => self.copy(connection).await,
            Operation::Scan => self.scan(connection).await,
            Operation::Sum => {
                let sql = "SELECT count(*), sum(value)::bigint FROM bench_narrow";
                let rows = connection.query(sql, &[]).await;
                let expected = (self.row_count(), sum_below(self.row_count()));
                rows.map(|rows| (rows.integer(0, 0), rows.integer(0, 1)) == expected)
            }
        };
        Ran::of(0, outcome)
    }

    async fn verify(
        &self,
        connection: &mut impl SqlConnection,
        totals: &Totals,
    ) -> Result<Vec<Check>, SqlFailure> {
        let sql = "SELECT count(*), coalesce(sum(value), 0)::bigint FROM bench_narrow";
        let narrow = connection.query(sql, &[]).await?;
        let sql = "SELECT count(*), coalesce(sum(value - id), 0)::bigint FROM bench_copied";
        let copied = connection.query(sql, &[]).await?;
        let committed = i128::from(totals.types[0].qualified);
        let updates = if self.operation == Operation::Update { committed } else { 0 };
        let copies = if self.operation == Operation::Copy { committed } else { 0 };
        let found = |rows: i64| i128::from(rows);
        Ok(vec![
            Check::equal(
                "wrong answers",
                0,
                totals.types.iter().map(|totals| i128::from(totals.rows_missing)).sum(),
            ),
            Check::equal("rows", i128::from(self.rows), found(narrow.integer(0, 0))),
            Check::equal(
                "sum of their values",
                i128::from(sum_below(self.row_count())) + updates,
                found(narrow.integer(0, 1)),
            ),
            Check::equal(
                "rows copied",
                copies * i128::from(COPY_ROWS),
                found(copied.integer(0, 0)),
            ),
            Check::equal("their values less their keys", 0, found(copied.integer(0, 1))),
        ])
    }
}

/// 0 + 1 + ... + (count - 1).
fn sum_below(count: i64) -> i64 {
    count * (count - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_data_has_every_line_once_in_chunks() {
        let lines = || (0..100_000).map(|id| format!("{id}\n"));
        let pieces: Vec<_> = copy_data(lines()).collect();
        assert!(pieces.len() > 5 && pieces.iter().all(|piece| piece.len() < CHUNK_BYTES + 10));
        assert_eq!(pieces.concat(), lines().collect::<String>().into_bytes());
        assert_eq!(copy_data(std::iter::empty()).count(), 0);
    }
}
