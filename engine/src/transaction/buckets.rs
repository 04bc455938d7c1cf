//! From rows to buckets: versions and locks belong to buckets, so all later phases work on them.
//!
//! Rule C2: all observations of one bucket by one transaction must agree, whether they were reads or
//! locks, and in whatever round of execute they were made.

use gannet_storage::LockMode;

use crate::outcome::Abort;
use crate::transaction::{Row, RowState, Transaction};

/// The rows of one bucket: a range of `Transaction::order`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketGroup {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Whether this transaction holds the bucket.
    pub(super) locked: bool,
    /// The bucket's bytes in the commit record: its unit.
    pub(super) unit: (u32, u32),
}

impl Row {
    fn address(&self) -> (u16, u16, u32) {
        (self.table, self.partition, self.bucket)
    }

    fn is_observed(&self) -> bool {
        matches!(self.state, RowState::Found | RowState::Absent | RowState::Granted)
    }
}

impl Transaction<'_> {
    /// Sorts the rows that were answered into groups of one bucket each.
    ///
    /// # Errors
    /// [`Abort::Changed`] if two observations of a bucket differ, [`Abort::Usage`] for a key that is
    /// in the write set twice.
    pub(super) fn group_buckets(&mut self) -> Result<(), Abort> {
        let Self { rows, order, groups, .. } = self;
        order.clear();
        groups.clear();
        let count = u32::try_from(rows.len()).expect("fewer than 2^32 rows");
        order.extend((0..count).filter(|&row| rows[row as usize].is_observed()));
        if order.len() > 1 {
            order.sort_unstable_by_key(|&row| (rows[row as usize].address(), row));
        }
        let mut start = 0;
        for end in 1..=order.len() {
            let address = rows[order[start] as usize].address();
            if end < order.len() && rows[order[end] as usize].address() == address {
                continue;
            }
            let members = &order[start..end];
            check_group(rows, members)?;
            let locked = members.iter().any(|&row| rows[row as usize].state == RowState::Granted);
            let bounds = [start, end].map(|at| u32::try_from(at).expect("at most as many as rows"));
            groups.push(BucketGroup { start: bounds[0], end: bounds[1], locked, unit: (0, 0) });
            start = end;
        }
        Ok(())
    }

    /// A row of the group; all have the same bucket and version.
    #[inline]
    pub(super) fn first_row(&self, group: BucketGroup) -> &Row {
        &self.rows[self.order[group.start as usize] as usize]
    }
}

fn check_group(rows: &[Row], members: &[u32]) -> Result<(), Abort> {
    let version = rows[members[0] as usize].version;
    for (index, &member) in members.iter().enumerate() {
        let row = &rows[member as usize];
        if row.version != version {
            return Err(Abort::Changed);
        }
        let is_again = |&other: &u32| {
            let other = &rows[other as usize];
            other.mode.is_some() && other.key == row.key
        };
        if row.mode.is_some() && members[..index].iter().any(is_again) {
            let problem = match row.mode {
                Some(LockMode::Update | LockMode::Insert | LockMode::Delete) | None => {
                    "is in the write set twice; add each key once"
                }
            };
            return Err(Abort::Usage { table: row.table, key: row.key, problem });
        }
    }
    Ok(())
}
