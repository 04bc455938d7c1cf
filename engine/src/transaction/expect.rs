//! Expecting rows: before a transaction inserts many rows, the primaries of its tables split buckets for them.
//!
//! Without that, the rows of a large transaction would all go into the few buckets of a table that was empty, and each insert walks a
//! chain of those before it. And while buckets are split, a transaction that locks hundreds of them mostly meets one that is being split, and
//! begins its commit again. It is a hint: the primaries may have no memory for buckets, and the rows fit into overflow buckets all the same.
//!
//! *Source*: `docs/protocol.md`, "Growth".

use crate::configuration::NOBODY;
use crate::request::{self, Expect, Status, TableRequest};
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;

/// Rows of a table that are worth it: fewer seldom meet a bucket that is being split.
pub(crate) const EXPECTED_ROWS_MIN: usize = 256;
/// Rows of a partition that are worth it.
const ROWS_OF_PARTITION_MIN: u32 = 8;

impl Transaction<'_> {
    /// How many of some rows, which are to be inserted into a table, lie in each partition.
    pub(crate) fn count_by_partition(&self, table: TableId, keys: &[&[u8]]) -> Vec<u32> {
        let partitioning = self.view.configuration().partitioning;
        let mut rows = vec![0; partitioning.count()];
        for key in keys {
            let word = self.number(table, key).unwrap_or_else(|| partitioning.seed().hash(key));
            rows[usize::from(partitioning.partition(word))] += 1;
        }
        rows
    }

    /// Tells the primaries of a table how many rows are to be inserted into each partition. Whether one of them needs more buckets.
    pub(crate) fn expect(&mut self, table: TableId, rows: &[u32]) -> Result<bool, Interrupted> {
        let Self { view, round, owner, .. } = self;
        let configuration = view.configuration();
        if view.table(table.number()).is_none() {
            return Ok(false);
        }
        round.begin()?;
        let numbered = (0..).zip(rows.iter().copied());
        for (partition, rows) in numbered.filter(|(_, rows)| *rows >= ROWS_OF_PARTITION_MIN) {
            let primary = configuration.primary(partition);
            if primary != NOBODY {
                let request = Expect { table: table.number(), partition, rows, owner: *owner };
                round.request_that_fits(primary, request::EXPECT, &request.encode())?;
            }
        }
        Ok(round.end()? == Some(Status::Crowded))
    }
}
