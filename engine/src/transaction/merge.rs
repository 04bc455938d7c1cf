//! Merge: the last halves of a partition are merged into the buckets that they were split off from, as a transaction of their primary.
//!
//! ```text
//! lock each bucket and its half ─ log their rows ─ backup ─ primary: installs the merged bucket and releases both locks
//! ```
//! *Source*: `docs/protocol.md`, "Shrinking".
//!
//! *Invariants*: a bucket and its half are locked while they are merged, and the room for the rows is taken before the merge is logged (rule
//! C9). No lock is waited for, so that two transactions do not wait for each other.

use gannet_rpc::PAYLOAD_BYTES_MAX;
use gannet_storage::{BucketSnapshot, Reshaping};

use crate::outcome::Abort;
use crate::transaction::Transaction;

/// Halves that are merged together, at most.
const TOGETHER: u32 = 16;
/// A transaction that has so many bytes of rows merges no further half.
const BYTES_MAX: usize = 64 << 10;

impl Transaction<'_> {
    /// Merges the last halves of a partition, if this node is its primary and it has too many buckets. How the lock of the first one was
    /// answered.
    ///
    /// # Errors
    /// That of an interruption.
    pub(crate) fn merge_buckets(&mut self, table: u32, partition: u16) -> Result<Reshaping, Abort> {
        let is_primary = self.view.configuration().primary(partition) == self.view.id();
        let Some(found) = self.view.table(table).filter(|_| is_primary) else {
            return Ok(Reshaping::Enough);
        };
        let (wanted, owner) = (found.merges_wanted(partition).min(TOGETHER), self.owner);
        let (mut first, mut behind) = (Reshaping::Enough, 0);
        let mut snapshot = BucketSnapshot::default();
        let id = self.round.commits().open.id();
        let count = self.record.write_of((id, partition), |out| {
            if behind == wanted || out.len() > BYTES_MAX {
                return false;
            }
            let merging = found.lock_to_merge(partition, behind, owner);
            first = if behind == 0 { merging } else { first };
            let Reshaping::Granted { bucket, version } = merging else { return false };
            let (start, address) = (out.len(), (table, partition, bucket));
            found.write_merge(address, version, owner, (&mut snapshot, out));
            if out.len() - start > PAYLOAD_BYTES_MAX {
                // No message takes its rows.
                out.truncate(start);
                found.unlock_merge(partition, (bucket, version), owner);
                found.want_no_merges(partition);
                first = if behind == 0 { Reshaping::Enough } else { first };
                return false;
            }
            behind += 1;
            true
        });
        if count > 0 {
            self.commit_locked()?;
        }
        Ok(first)
    }
}
