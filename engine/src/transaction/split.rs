//! Split: the next buckets of a partition are split in two, as a transaction of their primary.
//!
//! ```text
//! lock the buckets ─ log ─ backup ─ primary: installs both halves and releases the lock
//! ```
//! *Source*: `docs/protocol.md`, "Growth".
//!
//! *Invariants*: a bucket is locked while it is split, and the memory of both halves is taken before the split is logged (rule C9). No lock
//! is waited for, so that two transactions do not wait for each other.

use gannet_storage::Splitting;

use crate::commit::Stage;
use crate::outcome::Abort;
use crate::transaction::Transaction;

/// Buckets that are split together.
const TOGETHER: u32 = 16;

impl Transaction<'_> {
    /// Splits the next buckets of a partition, if this node is its primary and it is crowded. How the lock of the first one was answered.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn split_buckets(&mut self, table: u32, partition: u16) -> Result<Splitting, Abort> {
        let is_primary = self.view.configuration().primary(partition) == self.view.id();
        let Some(found) = self.view.table(table).filter(|_| is_primary) else {
            return Ok(Splitting::Enough);
        };
        let answers =
            (0..TOGETHER).map(|behind| found.lock_to_split(partition, behind, self.owner));
        let mut refused = Splitting::Enough;
        let buckets: Vec<(u32, u64)> = answers
            .map_while(|answer| match answer {
                Splitting::Granted { bucket, version } => Some((bucket, version)),
                Splitting::Enough | Splitting::Locked | Splitting::Full => {
                    refused = answer;
                    None
                }
            })
            .collect();
        let Some(&(bucket, version)) = buckets.first() else { return Ok(refused) };
        self.scratch.held.clear();
        self.write_splits((table, partition), &buckets);
        self.reach(Stage::Validating);
        let result = self.replicate();
        self.conclude(result)?;
        Ok(Splitting::Granted { bucket, version })
    }
}
