//! Temporary files for rows beyond the memory of statements. Rows are read in the order in which they were written.
//!
//! ```text
//! file   row, row, ...
//! row    4 bytes length, little-endian; the row as tables store it
//! ```
//!
//! *Invariants*: a file has no name, so nothing of it outlives the process. Threads of their own read and write files,
//! because a disk may hold a thread for long. The number of files is bounded. A full disk ends the statement, and nothing
//! else.
//!
//! *Not here*: which rows go to files (`execute`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::aside::{Aside, Pending};
use crate::encoding::row::{decode_whole, encode};
use crate::error::SqlError;
use crate::execute::row_bytes;
use crate::value::Value;

/// Maximum number of open files.
const FILES_MAX: usize = 256;
/// Bytes that are written at a time, unless a single row is longer.
const CHUNK_BYTES: usize = 256 << 10;
/// Bytes that are read at a time, at least.
const READ_BYTES_MIN: usize = 4 << 10;
/// A lower bound for the bytes in memory of one byte in a file, approximately.
const BYTES_IN_MEMORY: usize = 4;
/// Bytes of a row's length.
const LENGTH_BYTES: usize = 4;

/// The directory for temporary files.
pub(crate) struct Spill {
    directory: PathBuf,
    threads: Aside,
    files: Arc<AtomicUsize>,
}

impl Spill {
    /// Checks that files can be created in a directory.
    ///
    /// # Errors
    /// SQLSTATE 58030 if they cannot.
    pub(crate) fn open(directory: &Path) -> Result<Self, SqlError> {
        tempfile::tempfile_in(directory).map_err(|error| {
            let message = format!(
                "no temporary file can be made in {}: {error}; give --spill a directory that this process may write in",
                directory.display()
            );
            SqlError::new("58030", message)
        })?;
        let (directory, files) = (directory.to_owned(), Arc::default());
        Ok(Self { directory, threads: Aside::start()?, files })
    }

    /// A new file, which is empty.
    pub(crate) fn file(&self) -> Result<SpillFile, SqlError> {
        let counted = Counted::new(&self.files, FILES_MAX).ok_or_else(|| {
            let message = format!("the statements that run now have {FILES_MAX} temporary files");
            SqlError::new("53400", message).with_hint("run fewer large statements at a time")
        })?;
        let file = tempfile::tempfile_in(&self.directory).map_err(|error| disk_error(&error))?;
        Ok(SpillFile { file, bytes: 0, rows: 0, blocks: Vec::new(), _counted: counted })
    }

    /// Submits a job that reads or writes files.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, SqlError> + Send + 'static,
    ) -> Pending<T> {
        self.threads.submit(|_| job())
    }
}

/// A share in a bounded number of open files. Dropping it returns the share.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// None if the maximum is reached.
    pub(crate) fn new(files: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        // Relaxed: the number guards no other memory.
        let add = |files: usize| (files < max).then_some(files + 1);
        let counted = files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        counted.ok().map(|_| Self(Arc::clone(files)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A temporary file.
#[derive(Debug)]
pub(crate) struct SpillFile {
    file: File,
    bytes: u64,
    rows: usize,
    /// In the order of the file.
    blocks: Vec<Block>,
    _counted: Counted,
}

/// Rows that were written together.
#[derive(Debug)]
struct Block {
    /// Offset of the first row in the file.
    place: u64,
    /// Number of the first row in the file, from 0.
    first: usize,
}

impl SpillFile {
    /// Bytes of the file's rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes in memory of the table of blocks.
    pub(crate) fn index_bytes(&self) -> usize {
        self.blocks.len() * size_of::<Block>()
    }

    /// Appends rows. Blocks.
    ///
    /// # Errors
    /// SQLSTATE 53100 if the disk is full, 58030 for another error of the disk.
    pub(crate) fn append(&mut self, rows: &RowBuffer) -> Result<(), SqlError> {
        self.file.write_all_at(&rows.bytes, self.bytes).map_err(|error| disk_error(&error))?;
        if rows.rows > 0 {
            self.blocks.push(Block { place: self.bytes, first: self.rows });
        }
        self.bytes += rows.bytes.len() as u64;
        self.rows += rows.rows;
        Ok(())
    }

    /// Some of the rows with these numbers, about as many as take `memory_bytes` in memory, and at least one of a range that
    /// is not empty. They are the first of the range; if `is_backward`, the last of the range in reverse order. Blocks.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_rows(
        &self,
        numbers: Range<usize>,
        is_backward: bool,
        memory_bytes: usize,
    ) -> Result<Vec<Vec<Value>>, SqlError> {
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = if is_backward { numbers.end - 1 } else { numbers.start };
        let behind = self.blocks.partition_point(|block| block.first <= wanted);
        let block = behind.checked_sub(1).map(|number| &self.blocks[number]);
        let block = block.ok_or_else(malformed)?;
        let (end, last) = match self.blocks.get(behind) {
            Some(next) => (next.place, next.first),
            None => (self.bytes, self.rows),
        };
        let length = usize::try_from(end - block.place).map_err(|_| malformed())?;
        let mut bytes = vec![0; length];
        let read = self.file.read_exact_at(&mut bytes, block.place);
        read.map_err(|error| disk_error(&error))?;
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        for number in block.first..last.min(numbers.end) {
            let (row, behind) = split_row(rest).ok_or_else(malformed)?;
            if number >= numbers.start {
                found.push(row);
            }
            rest = behind;
        }
        if is_backward {
            found.reverse();
        }
        let (mut rows, mut room) = (Vec::new(), memory_bytes);
        for row in found {
            let row = decode_whole(row)?;
            let Some(less) = room.checked_sub(row_bytes(&row)).or(rows.is_empty().then_some(0))
            else {
                break;
            };
            rows.push(row);
            room = less;
        }
        Ok(rows)
    }

    /// The first rows between two places, and the place behind them: about as many as take `memory_bytes` in memory, and at
    /// least one of a range that is not empty. Blocks.
    ///
    /// # Errors
    /// SQLSTATE 58030 for an error of the disk, XX001 for bytes that are no row.
    pub(crate) fn read(
        &self,
        places: Range<u64>,
        memory_bytes: usize,
    ) -> Result<(Vec<Vec<Value>>, u64), SqlError> {
        let left = usize::try_from(places.end - places.start).unwrap_or(usize::MAX);
        let mut wanted = left.min((memory_bytes / BYTES_IN_MEMORY).max(READ_BYTES_MIN));
        loop {
            let mut bytes = vec![0; wanted];
            let read = self.file.read_exact_at(&mut bytes, places.start);
            read.map_err(|error| disk_error(&error))?;
            let (mut rows, mut rest, mut needed) = (Vec::new(), &bytes[..], LENGTH_BYTES);
            let mut room = memory_bytes;
            while let Some((length, behind)) = rest.split_first_chunk::<LENGTH_BYTES>() {
                let length =
                    usize::try_from(u32::from_le_bytes(*length)).map_err(|_| malformed())?;
                let Some((row, behind)) = behind.split_at_checked(length) else {
                    needed = LENGTH_BYTES + length;
                    break;
                };
                let row = decode_whole(row)?;
                let Some(less) = room.checked_sub(row_bytes(&row)).or(rows.is_empty().then_some(0))
                else {
                    break;
                };
                rows.push(row);
                (room, rest) = (less, behind);
            }
            if !rows.is_empty() || left == 0 {
                return Ok((rows, places.start + (wanted - rest.len()) as u64));
            }
            // The row is longer than the bytes read.
            if needed <= wanted || needed > left {
                return Err(malformed());
            }
            wanted = needed;
        }
    }
}

/// Encoded rows that wait to be written.
#[derive(Default)]
pub(crate) struct RowBuffer {
    bytes: Vec<u8>,
    rows: usize,
}

impl RowBuffer {
    /// Adds a row.
    ///
    /// # Errors
    /// SQLSTATE 54000 if the row is too long.
    pub(crate) fn push(&mut self, row: &[Value]) -> Result<(), SqlError> {
        let bytes = encode(row);
        let length = u32::try_from(bytes.len());
        let length = length.map_err(|_| SqlError::new("54000", "a row is too long for a file"))?;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(&bytes);
        self.rows += 1;
        Ok(())
    }

    /// Whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether the buffer must be written before it takes more rows.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= CHUNK_BYTES
    }
}

/// The first row, and the bytes behind it.
fn split_row(rows: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = rows.split_first_chunk::<LENGTH_BYTES>()?;
    behind.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

fn malformed() -> SqlError {
    SqlError::new("XX001", "a row in a temporary file is malformed")
}

fn disk_error(error: &io::Error) -> SqlError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            SqlError::new("53100", format!("the disk of --spill is full: {error}"))
                .with_hint("add a condition or a LIMIT, or make room in that directory")
        }
        _ => {
            SqlError::new("58030", format!("a temporary file in the directory of --spill: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_lengths_come_back_in_their_order() {
        let spill = Spill::open(&std::env::temp_dir()).unwrap();
        let mut file = spill.file().unwrap();
        let lengths = [0, 1, CHUNK_BYTES - 8, CHUNK_BYTES, 3 * CHUNK_BYTES, 7, 100_000, 200_000];
        let row =
            |length: &usize| vec![Value::Integer(7), Value::Text("x".repeat(*length)), Value::Null];
        let rows: Vec<_> = lengths.iter().map(row).collect();
        for some in rows.chunks(3) {
            let mut buffer = RowBuffer::default();
            some.iter().for_each(|row| buffer.push(row).unwrap());
            file.append(&buffer).unwrap();
        }
        let (mut place, mut found) = (0, Vec::new());
        while place < file.bytes() {
            let (some, next) = file.read(place..file.bytes(), 1 << 20).unwrap();
            assert!(next > place);
            found.extend(some);
            place = next;
        }
        assert_eq!(found, rows);
        assert_eq!(file.read(place..place, 1 << 20).unwrap(), (Vec::new(), place));
        // From every row on, in both directions.
        let count = rows.len();
        assert_eq!(file.rows(), count);
        for (from, to) in (0..=count).flat_map(|from| (from..=count).map(move |to| (from, to))) {
            let (mut place, mut found) = (from, Vec::new());
            while place < to {
                let some = file.read_rows(place..to, false, 300_000).unwrap();
                assert!(!some.is_empty());
                place += some.len();
                found.extend(some);
            }
            assert_eq!(found, rows[from..to]);
            let (mut end, mut found) = (to, Vec::new());
            while end > from {
                let some = file.read_rows(from..end, true, 300_000).unwrap();
                assert!(!some.is_empty());
                end -= some.len();
                found.extend(some);
            }
            found.reverse();
            assert_eq!(found, rows[from..to]);
        }
        // As many rows as memory takes, and at least one.
        assert_eq!(file.read_rows(0..count, false, 1_000).unwrap().len(), 2);
        assert_eq!(file.read_rows(0..count, true, 1).unwrap().len(), 1);
        assert_eq!(file.read(0..file.bytes(), 1_000).unwrap().0.len(), 2);
        assert_eq!(file.read(0..file.bytes(), 1).unwrap().0.len(), 1);
    }

    #[test]
    fn files_are_bounded_and_leave_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let spill = Spill::open(directory.path()).unwrap();
        let files: Vec<_> = (0..FILES_MAX).map(|_| spill.file().unwrap()).collect();
        assert_eq!(spill.file().err().unwrap().code, "53400");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        drop(files);
        spill.file().unwrap();
        assert_eq!(Spill::open(&directory.path().join("nowhere")).err().unwrap().code, "58030");
    }
}
