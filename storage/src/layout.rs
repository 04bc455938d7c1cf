//! What a table is, and the sizes that follow from that.
//!
//! ```text
//! TableDefinition: name, kind, value bytes, rows      stored and sent; the same on every node
//!       layout ─▶ TableLayout: sizes of buckets and slots, for a number of partitions
//! ```
//! *Source*: FaSST section 5 (7 to 15 slots in a bucket); the layout of a bucket is in `bucket.rs`.
//!
//! *Invariants*: every size follows from the definition and the partitioning, so that all nodes have the same layout. A definition
//! that was decoded has sizes with which a table is possible, with as many partitions as there can be.
//!
//! *Not here*: memory (`table.rs`).

use serde::{Deserialize, Serialize};

use crate::arena::LINE_WORDS;
use crate::arena::Quota;
use crate::bucket::{
    HEADER_WORDS, OVERFLOW_HEADER_WORDS, OVERFLOW_SLOTS_MAX, SLOTS_PER_MAIN_BUCKET,
};
use crate::error::StorageError;
use crate::location::Partitioning;

/// Largest value of a fixed table, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Bytes of a slot's value in a heap table: the pointer to a row.
const ROW_NUMBER_BYTES: usize = 8;
/// Rows per main bucket at the expected number of rows. A tenth of the rows then lie in overflow buckets, each of which costs two
/// more cache misses. With seven rows it would be a seventh, and a row would take 7 % less memory.
const ROWS_PER_BUCKET: u64 = 6;
/// The same for slots of less than [`SMALL_SLOT_WORDS`], whose headers take a larger share. With seven the memory per row is least:
/// with more, overflow buckets cost more than the main buckets save.
const SMALL_ROWS_PER_BUCKET: u64 = 7;
const SMALL_SLOT_WORDS: usize = 4;
/// Fewest buckets over all partitions of a table whose rows are known to be expected, so that tiny hot tables do not share locks. One that
/// begins with fewer gets as many where its locks are often met.
const BUCKETS_MIN: u64 = 1024;
/// A main bucket starts at a multiple of this many words, so that its header lies in one cache line.
const MAIN_ALIGNMENT_WORDS: usize = 4;
/// The same where the coarser one would cost a tenth of the memory: values of a word or less. A
/// header may then lie in two cache lines.
const SMALL_ALIGNMENT_WORDS: usize = 2;
/// An overflow bucket holds at least this many slots, unless a single one fills cache lines.
const OVERFLOW_SLOTS_MIN: usize = 2;

/// What a table's keys and values are, and how they lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableKind {
    /// Keys are numbers of 64 bits, values have one size and lie in the slots.
    Fixed,
    /// Keys and values are byte strings, and lie in cells that the slots point to.
    Heap,
    /// A heap table with an ordered index of its keys.
    Ordered,
}

/// What a table is: a value that nodes store and send to each other, from which every size follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Encoded")]
pub struct TableDefinition {
    /// The table's name.
    pub name: String,
    /// What the keys and values are.
    pub kind: TableKind,
    /// Bytes of each value of a fixed table. The other kinds have values of any size, and do not use it.
    pub value_bytes: usize,
    /// How many rows are expected in the whole cluster; 0 if that is not known. The table begins with buckets for so many, and grows.
    pub rows: u64,
    /// Whether its rows may take the memory that is left for new tables: without them no table could be created or dropped.
    pub is_system: bool,
}

/// A definition as it is stored and sent; its sizes are not checked yet.
#[derive(Deserialize)]
#[serde(rename = "TableDefinition")]
struct Encoded {
    name: String,
    kind: TableKind,
    value_bytes: usize,
    rows: u64,
    is_system: bool,
}

impl TableDefinition {
    /// The sizes of this table in a cluster with these partitions.
    ///
    /// # Errors
    /// [`StorageError::ValueBytes`] or [`StorageError::Rows`] if a size is out of range.
    pub fn layout(&self, partitioning: Partitioning) -> Result<TableLayout, StorageError> {
        let (name, bytes) = (&self.name, self.value_bytes);
        let layout = match self.kind {
            TableKind::Fixed => TableLayout::new(name, bytes, self.rows, partitioning),
            TableKind::Heap => TableLayout::heap(name, self.rows, partitioning),
            TableKind::Ordered => TableLayout::ordered(name, self.rows, partitioning),
        };
        let quota = if self.is_system { Quota::Share } else { Quota::WithinShare };
        Ok(TableLayout { quota, ..layout? })
    }
}

impl TryFrom<Encoded> for TableDefinition {
    type Error = StorageError;

    fn try_from(encoded: Encoded) -> Result<Self, StorageError> {
        let Encoded { name, kind, value_bytes, rows, is_system } = encoded;
        let definition = Self { name, kind, value_bytes, rows, is_system };
        definition.layout(Partitioning::MOST)?;
        Ok(definition)
    }
}

/// The sizes that follow from a table's definition: the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLayout {
    /// Bytes of each value of a fixed table; what a slot of a heap table has beside the hash.
    pub value_bytes: usize,
    /// What the keys and values are.
    pub kind: TableKind,
    /// Main buckets per partition that the table begins with: its roots (`growth.rs`).
    pub buckets: u32,
    /// How keys divide over partitions.
    pub(crate) partitioning: Partitioning,
    /// Rows per bucket of a table that grows.
    pub(crate) rows_per_bucket: u64,
    pub(crate) slot_words: usize,
    pub(crate) main_words: usize,
    pub(crate) overflow_slots: usize,
    pub(crate) overflow_words: usize,
    /// What rows may take.
    pub(crate) quota: Quota,
}

impl TableLayout {
    /// The layout of table `name` for about `rows` values of `value_bytes` in the whole cluster.
    ///
    /// # Errors
    /// [`StorageError::ValueBytes`] or [`StorageError::Rows`] if a size is out of range.
    pub fn new(
        name: &str,
        value_bytes: usize,
        rows: u64,
        partitioning: Partitioning,
    ) -> Result<Self, StorageError> {
        if !(1..=VALUE_BYTES_MAX).contains(&value_bytes) {
            let (table, max) = (name.to_owned(), VALUE_BYTES_MAX);
            return Err(StorageError::ValueBytes { table, bytes: value_bytes, max });
        }
        let partitions = partitioning.count() as u64;
        let slot_words = 1 + value_bytes.div_ceil(8);
        let is_small = slot_words < SMALL_SLOT_WORDS;
        let rows_per_bucket = if is_small { SMALL_ROWS_PER_BUCKET } else { ROWS_PER_BUCKET };
        let fewest = if rows == 0 { partitions } else { BUCKETS_MIN };
        let buckets = rows.div_ceil(rows_per_bucket).max(fewest).div_ceil(partitions);
        let buckets = u32::try_from(buckets).map_err(|_| StorageError::Rows {
            table: name.to_owned(),
            rows,
            max: u64::from(u32::MAX) * partitions,
        })?;
        let alignment = if slot_words > 2 { MAIN_ALIGNMENT_WORDS } else { SMALL_ALIGNMENT_WORDS };
        let main_words =
            (HEADER_WORDS + SLOTS_PER_MAIN_BUCKET * slot_words).next_multiple_of(alignment);
        let overflow_min = if slot_words > 2 * LINE_WORDS { 1 } else { OVERFLOW_SLOTS_MIN };
        let overflow_words =
            (OVERFLOW_HEADER_WORDS + overflow_min * slot_words).next_multiple_of(LINE_WORDS);
        let overflow_slots =
            ((overflow_words - OVERFLOW_HEADER_WORDS) / slot_words).min(OVERFLOW_SLOTS_MAX);
        Ok(Self {
            value_bytes,
            kind: TableKind::Fixed,
            buckets,
            partitioning,
            rows_per_bucket,
            slot_words,
            main_words,
            overflow_slots,
            overflow_words,
            quota: Quota::WithinShare,
        })
    }

    /// The layout of table `name` with byte strings as keys and values, for about `rows` rows in the whole cluster: of kind
    /// [`TableKind::Heap`].
    ///
    /// # Errors
    /// [`StorageError::Rows`] if there are too many.
    pub fn heap(name: &str, rows: u64, partitioning: Partitioning) -> Result<Self, StorageError> {
        let layout = Self::new(name, ROW_NUMBER_BYTES, rows, partitioning)?;
        // A word for the last deletion.
        let main_words = (layout.main_words + 1).next_multiple_of(SMALL_ALIGNMENT_WORDS);
        Ok(Self { kind: TableKind::Heap, main_words, ..layout })
    }

    /// As [`Self::heap`], of kind [`TableKind::Ordered`].
    ///
    /// # Errors
    /// As [`Self::heap`].
    pub fn ordered(
        name: &str,
        rows: u64,
        partitioning: Partitioning,
    ) -> Result<Self, StorageError> {
        Ok(Self { kind: TableKind::Ordered, ..Self::heap(name, rows, partitioning)? })
    }

    /// Bytes of the main buckets of `partitions` partitions.
    #[must_use]
    pub fn main_bytes(&self, partitions: usize) -> usize {
        self.partition_words().saturating_mul(partitions).saturating_mul(8)
    }

    /// Whether a table with so many buckets per partition gets more where its locks are often met.
    pub(crate) fn spreads(&self, buckets: u32) -> bool {
        u64::from(buckets) * (self.partitioning.count() as u64) < BUCKETS_MIN
    }

    /// Whether overflow buckets are cells, which come back when they are empty.
    pub(crate) fn has_overflow_cells(&self) -> bool {
        self.overflow_words == LINE_WORDS
    }

    /// Words of the main buckets of a partition, in whole lines.
    pub(crate) fn partition_words(&self) -> usize {
        (self.buckets as usize * self.main_words).next_multiple_of(LINE_WORDS)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn layout(value_bytes: usize, rows: u64) -> Result<TableLayout, StorageError> {
        let partitioning = Partitioning::new(16).expect("a power of two");
        TableLayout::new("t", value_bytes, rows, partitioning)
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(matches!(layout(0, 1), Err(StorageError::ValueBytes { .. })));
        assert!(matches!(layout(4097, 1), Err(StorageError::ValueBytes { max: 4096, .. })));
        assert!(matches!(layout(8, u64::MAX), Err(StorageError::Rows { .. })));
        assert_eq!(layout(4096, 1).unwrap().overflow_slots, 1);
        assert_eq!(layout(40, 0).unwrap().buckets, 1);
        assert_eq!(layout(40, 1).unwrap().buckets, 64);
    }

    fn definition(kind: TableKind, value_bytes: usize, rows: u64) -> TableDefinition {
        TableDefinition { name: "t".to_owned(), kind, value_bytes, rows, is_system: false }
    }

    #[test]
    fn a_definition_has_the_layout_of_its_kind() {
        let partitioning = Partitioning::new(16).unwrap();
        let layout = |kind| definition(kind, 40, 1_000_000).layout(partitioning).unwrap();
        let expected = [
            TableLayout::new("t", 40, 1_000_000, partitioning),
            TableLayout::heap("t", 1_000_000, partitioning),
            TableLayout::ordered("t", 1_000_000, partitioning),
        ];
        let kinds = [TableKind::Fixed, TableKind::Heap, TableKind::Ordered];
        assert_eq!(kinds.map(layout), expected.map(Result::unwrap));
    }

    #[test]
    fn a_definition_is_read_as_it_was_written_unless_no_cluster_could_have_it() {
        let sizes = [(1, 0), (4096, 1 << 40), (0, 7), (4097, 7), (8, u64::MAX)];
        for kind in [TableKind::Fixed, TableKind::Heap, TableKind::Ordered] {
            for (value_bytes, rows) in sizes {
                let written = definition(kind, value_bytes, rows);
                let error = written.layout(Partitioning::MOST).err().map(|error| error.to_string());
                let json = serde_json::to_string(&written).unwrap();
                match (serde_json::from_str::<TableDefinition>(&json), &error) {
                    (Ok(read), None) => assert_eq!(read, written),
                    (Err(refused), Some(error)) => assert_eq!(refused.to_string(), *error),
                    (read, error) => panic!("{read:?} {error:?}"),
                }
                let bytes = postcard::to_stdvec(&written).unwrap();
                let read = postcard::from_bytes::<TableDefinition>(&bytes);
                assert_eq!(read.ok(), error.is_none().then_some(written));
            }
        }
        let refused = [(TableKind::Fixed, 0, 1), (TableKind::Heap, 0, u64::MAX)];
        for (kind, value_bytes, rows) in refused {
            assert!(definition(kind, value_bytes, rows).layout(Partitioning::MOST).is_err());
        }
    }
}
