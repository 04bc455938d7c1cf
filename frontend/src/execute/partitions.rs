//! Rows in temporary files, by the hash of a key, if not all keys fit into memory.
//!
//! ```text
//! keys in memory        their rows are processed at once
//! other keys ─ hash ─┬─ partition 0     each is read after those before it, and is divided
//!                    ├─ ...             by another hash if its keys do not fit, either
//!                    └─ partition 7
//! ```
//!
//! *Source*: Graefe, Query Evaluation Techniques for Large Databases, section 4.2: hybrid hashing.
//!
//! *Invariants*: all rows with one key are in memory, or in one partition. The number of divisions is bounded, and so is that
//! of files.
//!
//! *Not here*: what operators do with the rows (`aggregate`, `distinct`, `join`, `sets`).

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use crate::error::Failure;
use crate::execute::context::KEY_OVERHEAD_BYTES;
use crate::execute::gather::Writer;
use crate::execute::operator::Operator;
use crate::execute::{Context, Row};
use crate::key_map::KeyMap;
use crate::memory::Charge;
use crate::spill::SpillFile;
use crate::value::Value;

/// Partitions of one division.
const PARTITIONS: usize = 8;
/// Maximum number of divisions of a row.
const DIVIDED_MAX: u32 = 5;
/// Smaller sets of keys are not worth files for the rest.
const KEYS_BYTES_MIN: usize = 64 << 10;
/// Bytes in memory of rows that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Rows whose keys do not fit into memory, and the partitions that are still to be read.
#[derive(Default)]
pub(super) struct Partitions {
    /// How often the rows being read were divided.
    divided: u32,
    writers: Vec<Writer>,
    waiting: Vec<Partition>,
}

impl Partitions {
    /// Whether no row of those being read was put here.
    pub(super) fn is_empty(&self) -> bool {
        self.writers.is_empty()
    }

    /// Charges a key that is to stay in memory. Tells whether it fits.
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
        if may_divide && charge.bytes() + bytes > context.budget().share(charge.bytes()) {
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

    /// Puts a row of one of two sides into the partition of its key.
    pub(super) fn put_side(
        &mut self,
        key: &[u8],
        mut row: Row,
        is_right: bool,
        context: &mut Context<'_, '_>,
    ) -> Result<(), Failure> {
        row.push(Value::Boolean(is_right));
        self.put(key, &row, context)
    }

    /// The next partition's rows, after those before have ended.
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

/// A set of keys, and the rows whose keys do not fit.
#[derive(Default)]
pub(super) struct Seen {
    keys: KeyMap<()>,
    charge: Charge,
    others: Partitions,
}

impl Seen {
    /// Whether the set contains a key.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    /// Adds a new key, and tells whether it is new. A key that does not fit counts as not new: its row goes to a file.
    pub(super) fn add(
        &mut self,
        key: &[u8],
        row: impl FnOnce() -> Row,
        context: &mut Context<'_, '_>,
    ) -> Result<bool, Failure> {
        if !self.others.fits(&mut self.charge, key.len() + KEY_OVERHEAD_BYTES, context)? {
            self.others.put(key, &row(), context)?;
            return Ok(false);
        }
        self.keys.insert_new(key, ());
        Ok(true)
    }

    /// Clears the set. Returns the rows of the next partition, after those before have ended.
    pub(super) fn next(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<Box<dyn Operator>>, Failure> {
        self.charge.dispose(std::mem::take(&mut self.keys));
        self.others.next(context)
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.charge.dispose(std::mem::take(&mut self.keys));
    }
}

/// Rows of two sides; those on the right come first.
pub(super) struct Sides<'p> {
    /// The remaining inputs, each with whether it is the right side; None for a partition, whose rows tell their side.
    inputs: VecDeque<(Box<dyn Operator + 'p>, Option<bool>)>,
    /// Rows on the left that were read together with rows on the right.
    left: Vec<Row>,
}

impl<'p> Sides<'p> {
    pub(super) fn new(left: Box<dyn Operator + 'p>, right: Box<dyn Operator + 'p>) -> Self {
        Self { inputs: [(right, Some(true)), (left, Some(false))].into(), left: Vec::new() }
    }

    /// The rows of a partition, written by [`Partitions::put_side`].
    pub(super) fn of_partition(rows: Box<dyn Operator + 'p>) -> Self {
        Self { inputs: [(rows, None)].into(), left: Vec::new() }
    }

    /// The next rows, and whether they are on the right; None at the end.
    pub(super) fn next(
        &mut self,
        context: &mut Context<'_, '_>,
    ) -> Result<Option<(Vec<Row>, bool)>, Failure> {
        while self.left.is_empty()
            && let Some((input, side)) = self.inputs.front_mut()
        {
            let Some(mut batch) = input.next(context)? else {
                self.inputs.pop_front();
                continue;
            };
            if let Some(is_right) = side {
                return Ok(Some((batch, *is_right)));
            }
            let is_right = |row: &Row| row.last() == Some(&Value::Boolean(true));
            self.left = batch.split_off(batch.partition_point(is_right));
            for row in batch.iter_mut().chain(&mut self.left) {
                row.pop();
            }
            if !batch.is_empty() {
                return Ok(Some((batch, true)));
            }
        }
        let left = std::mem::take(&mut self.left);
        Ok((!left.is_empty()).then_some((left, false)))
    }
}

/// A file of rows.
struct Partition {
    file: Arc<SpillFile>,
    /// Offset of the next row.
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
