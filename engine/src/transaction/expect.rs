//! Expecting rows: before a transaction inserts many rows, the primaries of its tables split buckets for them.
//!
//! Without that, the rows of a large transaction would all go into the few buckets of a table that was empty, and each insert walks a
//! chain of those before it. It is a hint: the primaries may have no memory for buckets, and the rows fit into overflow buckets all the same.
//!
//! *Source*: `docs/protocol.md`, "Growth".

use crate::configuration::NOBODY;
use crate::request::{self, Expect, Status, TableRequest};
use crate::table_id::TableId;
use crate::transaction::Transaction;
use crate::transaction::round::Interrupted;

/// Rows of a table that are worth it.
pub(crate) const EXPECTED_ROWS_MIN: usize = 1_000;
/// Rows of a partition that are worth it: fewer make no long chains.
const ROWS_OF_PARTITION_MIN: usize = 64;
impl Transaction<'_> {
    /// Tells the primaries of a table that so many rows are to be inserted. Whether one of them needs more buckets.
    pub(crate) fn expect(&mut self, table: TableId, rows: usize) -> Result<bool, Interrupted> {
        let Self { view, round, owner, .. } = self;
        let configuration = view.configuration();
        let partitions = configuration.partitioning.count();
        let each = rows / partitions;
        if each < ROWS_OF_PARTITION_MIN || view.table(table.number()).is_none() {
            return Ok(false);
        }
        let rows = u32::try_from(each).unwrap_or(u32::MAX);
        round.begin()?;
        for partition in (0..).take(partitions) {
            let primary = configuration.primary(partition);
            if primary != NOBODY {
                let request = Expect { table: table.number(), partition, rows, owner: *owner };
                round.request_that_fits(primary, request::EXPECT, &request.encode())?;
            }
        }
        Ok(round.end()? == Some(Status::Crowded))
    }
}
