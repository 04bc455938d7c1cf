//! Tables and their rows, as programs name them.
//!
//! *Invariant*: no two tables of a cluster ever have the same number.

/// A table of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableId(pub(crate) u32);

impl TableId {
    /// Its number, as it stands in messages and records. No other table of the cluster has it, or will have it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The table with a number that was kept. If the table is gone, its first use tells the caller so.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// A row of a table, by its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableKey {
    /// The table.
    pub table: TableId,
    /// The row's key: a byte string, or a number, little-endian.
    pub key: Vec<u8>,
}
