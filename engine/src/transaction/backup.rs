//! Commit backup: apply each unit at the backups and learners of its partition, and wait for all of them.
//!
//! *Source*: FaSST section 5, step 4. The wait (rule C5) keeps a bucket's updates in the same order
//! on every copy: the primary stays locked until its backups have this one.

use crate::request::{self, PART_BYTES_MAX, Status};
use crate::transaction::round::Interrupted;
use crate::transaction::{Transaction, local};

impl Transaction<'_> {
    /// Applies the transaction at the backups.
    #[inline(always)]
    pub(super) fn commit_backups(&mut self) -> Result<(), Interrupted> {
        self.send_units(request::BACKUP)?;
        match self.round.end()? {
            None => Ok(()),
            Some(status) => self.commit_backups_again(status),
        }
    }

    /// Applies the transaction at the backups that have not heard of its tables before, when they have. Others have its updates already.
    #[cold]
    fn commit_backups_again(&mut self, answered: Status) -> Result<(), Interrupted> {
        let mut answered = Some(answered);
        while let Some(status) = answered {
            if status != Status::Early {
                self.round.fail("BACKUP", status);
            }
            self.round.pause()?;
            self.send_units(request::BACKUP)?;
            answered = self.round.end()?;
        }
        Ok(())
    }

    /// Sends every unit of the record to its partition's backups or primary, which apply it. This node applies its own units by
    /// a local call, unless the transaction is large: then they are sent, too, so that it holds up no other.
    ///
    /// The transaction is decided, and no copy may refuse it. A node whose copy misses an earlier update, or has lost the lock, ends
    /// instead of an answer, and the change of the membership settles the transaction. This node's own copy ends this node.
    #[inline(always)]
    pub(super) fn send_units(&mut self, kind: u16) -> Result<(), Interrupted> {
        let Self { view, record, round, .. } = self;
        let configuration = view.configuration();
        let is_large = record.bytes().len() > PART_BYTES_MAX;
        round.begin()?;
        for (partition, unit) in record.units() {
            let updated = configuration.updated(partition);
            let targets = if kind == request::PRIMARY { &updated[..1] } else { &updated[1..] };
            for &target in targets {
                if target == view.id() && !is_large {
                    round.answered(local::applied(view, kind, unit));
                    continue;
                }
                round.request_that_fits(target, kind, unit)?;
            }
        }
        Ok(())
    }
}
