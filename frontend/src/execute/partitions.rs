//! Rows in temporary files by the hash of a key, where keys do not all fit memory.
//!
//! ```text
//! keys in memory        what comes with them is done at once
//! other keys ─ hash ─┬─ partition 0     each is read when all before it is done, and is divided
//!                    ├─ ...             by another hash if its keys do not fit, either
//!                    └─ partition 7
//! ```
//! *Source*: Graefe, Query Evaluation Techniques for Large Databases, section 4.2: hybrid hashing.
//! *Invariants*: all rows with a key are in memory or in one partition. How often rows are divided is bounded, and so are files.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use crate::error::Failure;
use crate::execute::gather::Writer;
use crate::execute::operator::Operator;
use crate::execute::{Context, Row};
use crate::memory::Charge;
use crate::spill::SpillFile;
use crate::value::Value;

/// Partitions that rows are divided into.
const PARTITIONS: usize = 8;
/// Times that rows are divided.
const DIVIDED_MAX: u32 = 5;
/// Keys of fewer bytes are not worth files for the others.
const KEYS_BYTES_MIN: usize = 64 << 10;
/// Bytes in memory of rows that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Rows whose keys do not fit memory, and those that were found so before.
#[derive(Default)]
pub(super) struct Partitions {
    /// How often what is read now was divided.
    divided: u32,
    writers: Vec<Writer>,
    waiting: Vec<Partition>,
}

impl Partitions {
    /// Charges a key that is to be kept: whether it fits, and is not to be put here.
    pub(super) fn fits(
        &self,
        charge: &mut Charge,
        bytes: usize,
        context: &Context<'_, '_>,
    ) -> Result<bool, Failure> {
        if !self.writers.is_empty() {
            return Ok(false);
        }
        let may_divide =
            context.may_spill() && self.divided < DIVIDED_MAX && charge.bytes() >= KEYS_BYTES_MIN;
        if may_divide && charge.bytes() + bytes > context.budget().result_bytes() {
            return Ok(false);
        }
        match charge.add(context.budget(), bytes) {
            Ok(()) => Ok(true),
            Err(_) if may_divide => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Puts a row into the partition of its key.
    pub(super) fn put(
        &mut self,
        key: &[u8],
        row: &[Value],
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        if self.writers.is_empty() {
            self.writers.resize_with(PARTITIONS, Writer::default);
        }
        let mut hasher = DefaultHasher::new();
        hasher.write_u32(self.divided);
        hasher.write(key);
        let number = hasher.finish() % PARTITIONS as u64;
        self.writers[usize::try_from(number).unwrap_or(0)].put(row, context)
    }

    /// The rows that are to be read next, once those before have ended.
    pub(super) fn next(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Box<dyn Operator>>, Failure> {
        for writer in std::mem::take(&mut self.writers) {
            if !writer.is_empty() {
                let file = Arc::new(writer.finish(context)?);
                self.waiting.push(Partition { file, place: 0, divided: self.divided + 1 });
            }
        }
        let Some(next) = self.waiting.pop() else { return Ok(None) };
        self.divided = next.divided;
        Ok(Some(Box::new(next)))
    }
}

/// A file of rows.
struct Partition {
    file: Arc<SpillFile>,
    /// Where the next row is.
    place: u64,
    divided: u32,
}

impl Operator for Partition {
    fn next(&mut self, context: &mut Context<'_, '_>) -> Result<Option<Vec<Row>>, Failure> {
        let places = self.place..self.file.bytes();
        if places.is_empty() {
            return Ok(None);
        }
        let file = Arc::clone(&self.file);
        let (rows, next) = context.on_disk(move |_| file.read(places, READ_BYTES))?;
        self.place = next;
        Ok(Some(rows))
    }
}
