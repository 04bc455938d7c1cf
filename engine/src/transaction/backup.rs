//! Commit backup: apply each unit at the backups of its partition, and wait for all of them.
//!
//! *Source*: FaSST section 5, step 4. The wait (rule C5) keeps a bucket's updates in the same order
//! on every copy: the primary stays locked until its backups have this one.

use crate::request::{self, PART_BYTES_MAX};
use crate::transaction::{Transaction, here};

impl Transaction<'_> {
    /// Applies the transaction at the backups.
    pub(super) fn commit_backups(&mut self) {
        self.ask_for_units(request::BACKUP);
        match self.round.end() {
            None => {}
            Some(status) => self.round.fail("BACKUP", status),
        }
    }

    /// Asks that every unit of the record is applied at its partition's backups or primary. Those of a large transaction are
    /// sent to the own node, too, so that it holds up no other.
    ///
    /// The transaction is decided, and no copy may refuse it: any answer but `Done` ends the worker, and with it the cluster, as
    /// nobody removes the copy. That holds for `Gap`, too, the answer of a backup that missed an earlier update, or of a primary
    /// that lost the lock: such a copy has not the update, and whoever were told that the transaction is committed would rely
    /// on it.
    #[inline(always)]
    pub(super) fn ask_for_units(&mut self, kind: u16) {
        let Self { node, rows, held, record, round, .. } = self;
        let configuration = node.configuration();
        let is_large = record.len() > PART_BYTES_MAX;
        round.begin();
        for group in held.iter() {
            let unit = &record[group.unit.0 as usize..group.unit.1 as usize];
            let copies = configuration.copies(rows[group.row as usize].partition);
            let targets = if kind == request::PRIMARY { &copies[..1] } else { &copies[1..] };
            for &target in targets {
                if target == node.id() && !is_large {
                    round.answered(here::applied(node, kind, unit));
                    continue;
                }
                round
                    .request(target, kind, unit)
                    .expect("a unit is smaller than the record logged");
            }
        }
    }
}
