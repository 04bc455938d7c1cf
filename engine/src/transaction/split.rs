//! Split: the next buckets of a partition are split in two, as a transaction of their primary.
//!
//! ```text
//! lock the buckets ─ log ─ backup ─ primary: installs both halves and releases the lock
//! ```
//! *Source*: `docs/protocol.md`, "Growth".
//!
//! *Invariants*: a bucket and its half are locked while it is split, and the memory of both is taken before the split is logged (rule C9). No lock
//! is waited for, so that two transactions do not wait for each other.

use gannet_storage::{BucketUpdateWriter, Reshaping};

use crate::commit::Stage;
use crate::outcome::Abort;
use crate::transaction::Transaction;

/// Buckets that are split together.
const TOGETHER: u32 = 8;
/// Most buckets that are split before a sample of the buckets is looked at again.
const SAMPLED_MAX: u32 = 16 * TOGETHER;

/// What the last look at the rows of a partition has told.
#[derive(Default)]
pub(crate) struct Splits {
    /// So many are wanted still.
    wanted: u32,
    /// Whether the buckets had become far too few.
    pub(crate) are_late: bool,
}

impl Transaction<'_> {
    /// Splits the next buckets of a partition, if this node is its primary and it is crowded. How the lock of the first one was answered.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn split_buckets(
        &mut self,
        table: u32,
        partition: u16,
        splits: &mut Splits,
    ) -> Result<Reshaping, Abort> {
        let is_primary = self.view.configuration().primary(partition) == self.view.id();
        let Some(found) = self.view.table(table).filter(|_| is_primary) else {
            return Ok(Reshaping::Enough);
        };
        let Splits { wanted, are_late } = splits;
        if *wanted == 0 {
            let all = found.splits_wanted(partition);
            (*wanted, *are_late) = (all.min(SAMPLED_MAX), found.is_late(partition, all));
        }
        found.prefetch_splits(partition, TOGETHER.min(*wanted));
        let (owner, mut first, mut behind) = (self.owner, Reshaping::Enough, 0);
        let id = self.round.commits().open.id();
        let count = self.record.write_of((id, partition), |out| {
            if behind == TOGETHER {
                return false;
            }
            let splitting = found.lock_to_split(partition, (behind, *wanted), owner);
            first = if behind == 0 { splitting } else { first };
            let Reshaping::Granted { bucket, version } = splitting else { return false };
            let address = (table, partition, bucket);
            BucketUpdateWriter::begin(out, address, version, owner).split();
            behind += 1;
            true
        });
        *wanted = wanted.saturating_sub(behind);
        if count > 0 {
            self.commit_locked()?;
        }
        Ok(first)
    }

    /// Commits the units of the record, whose buckets are locked.
    ///
    /// # Errors
    /// That of an interruption.
    pub(super) fn commit_locked(&mut self) -> Result<(), Abort> {
        self.scratch.held.clear();
        self.reach(Stage::Validating);
        let result = self.replicate();
        self.conclude(result)
    }
}
