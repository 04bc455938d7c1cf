//! COPY into a table that no other transaction knows: the workers of the node share each batch.
//!
//! ```text
//! divide  a batch into shares, each of the rows of some partitions
//! write   each share by one worker, in transactions of their own
//! ```
//! Workers that write to different partitions lock no bucket that another one wants. What was written before an error goes with the table.
//!
//! *Not here*: COPY into other tables, whose batches are one transaction each (`session/run/copy`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use gannet_engine::Coordinator;

use crate::catalog::Table;
use crate::database::Database;
use crate::encoding::row::{Wanted, decode};
use crate::error::Failure;
use crate::execute::sharing::{Sharing, Work};
use crate::execute::transaction::alone;
use crate::execute::write::{Entry, entries_of, insert_batch, insert_unread};
use crate::execute::{BATCH_ROWS, Context, Resources, Row, Transaction};
use crate::plan::{Insert, Plan, PlanKind};

/// Rows of a batch that workers share.
pub(crate) const SHARED_ROWS: usize = 8 * BATCH_ROWS;
/// Shares of a batch for each worker.
const SHARES_PER_WORKER: usize = 4;

/// Whether workers may share the batches of a COPY into a table: the entries of its indexes lie in other partitions than its rows.
pub(crate) fn is_shared(table: &Table, database: &Database) -> bool {
    table.indexes.is_empty() && database.cluster.options().threads > 1
}

/// Inserts a batch of rows.
///
/// # Errors
/// Those of the rows. Some may have been inserted then.
pub(crate) fn fill(
    plan: &Arc<Plan>,
    rows: &[Row],
    coordinator: &mut Coordinator<'_>,
    resources: &Resources,
) -> Result<(), Failure> {
    let sharing = Sharing::new(Filling { plan: Arc::clone(plan) }, resources);
    let _ended = sharing.ended();
    sharing.add(sharing.work.divided(rows, coordinator, resources)?);
    sharing.ask_for_help(coordinator, resources);
    while sharing.go_on(coordinator, resources)? {}
    Ok(())
}

/// A table that is filled.
struct Filling {
    plan: Arc<Plan>,
}

/// Rows that are to be inserted, as they are stored: keys and values.
type Share = VecDeque<(Vec<u8>, Vec<u8>)>;

impl Filling {
    fn insert(&self) -> &Insert {
        match &self.plan.kind {
            PlanKind::Insert(insert) => insert,
            _ => unreachable!("the plan of a COPY is an INSERT"),
        }
    }

    /// The shares of a batch.
    fn divided(
        &self,
        rows: &[Row],
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<Vec<Share>, Failure> {
        let cluster = &resources.database.cluster;
        let configuration = cluster.configuration();
        let mut shares = vec![Share::new(); SHARES_PER_WORKER * cluster.options().threads];
        let mut transaction = self.begin();
        let mut context = Context::new(coordinator, &mut transaction, resources);
        for chunk in rows.chunks(BATCH_ROWS) {
            context.check_cancel()?;
            for entry in entries_of(self.insert(), chunk, &mut context)? {
                let number = usize::from(configuration.partition_of_row(&entry.primary));
                let count = shares.len();
                let value = entry.keys.into_iter().next().map(|(_, value)| value);
                shares[number % count].extend(value.map(|value| (entry.primary, value)));
            }
        }
        shares.retain(|share| !share.is_empty());
        Ok(shares)
    }
}

impl Work for Filling {
    type Share = Share;

    fn is_done(share: &Share) -> bool {
        share.is_empty()
    }

    fn begin(&self) -> Transaction {
        Transaction::part_of(Arc::clone(&self.plan.catalog))
    }

    fn go_on(
        &self,
        share: &mut Share,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Failure> {
        let insert = self.insert();
        let table = &*insert.rules.table;
        let begin = |_| self.begin();
        let inserted = alone(coordinator, resources, begin, |context| {
            // Under contention smaller transactions get through. The second attempt tells duplicates.
            let is_first = context.attempt == 1;
            let rows = (BATCH_ROWS >> context.attempt.saturating_sub(2).min(6)).min(share.len());
            let (mut entries, missing) = (Vec::with_capacity(rows), table.missing_values()?);
            for (primary, value) in share.iter().take(rows) {
                let row =
                    if is_first { Row::new() } else { decode(value, &Wanted::All, &missing)? };
                let keys = vec![(table.row_key(primary), value.clone())];
                entries.push(Entry { row, primary: primary.clone(), keys });
            }
            let inserted = match is_first {
                true => insert_unread(entries, context),
                false => insert_batch(insert, entries, &mut BTreeSet::new(), context),
            };
            context.checked(inserted).map(|_| rows)
        })?;
        share.drain(..inserted);
        Ok(())
    }
}
