//! Execute: read the read set, and lock and read the write set, in one round trip.
//!
//! *Source*: FaSST section 5, step 1, and section 5.2.1. Execute fails if a key is locked; the caller then aborts.
//!
//! *Invariants*: execute returns when every request is answered, so the coordinator knows every lock that was granted (rule C1). Local
//! rows are read after the answers of the round.

use gannet_rules::rule;
use gannet_storage::{Owner, level_of};

use crate::control::WaitReason;
use crate::holder::Passes;
use crate::outcome::{Abort, Conflict, Failure, Misuse};
use crate::request::{self, HEADER_BYTES, LockRow, Read, Status, TableRequest, VERSION_BYTES};
use crate::transaction::access_set::{AccessSet, Row, RowState};
use crate::transaction::{Transaction, heap, local};
use crate::view::View;

impl Transaction<'_> {
    /// Reads and locks all keys added since the last call, at their primaries.
    ///
    /// May be called several times, with keys chosen by what was read before.
    ///
    /// # Errors
    /// Why the transaction cannot commit any more, now or since an earlier call; abort it then.
    // A part of its caller: after a suspension the processor mispredicts each return.
    #[inline(always)]
    pub fn execute(&mut self) -> Result<(), Abort> {
        let mut is_due = self.set.executed < self.set.rows.len() && self.is_open();
        if !rule!(C1) {
            is_due = is_due && self.validate_early();
        }
        while is_due {
            let reason = self.send_rows();
            self.round.suspend(reason);
            is_due = self.take_answers(reason);
        }
        let is_interrupted = self.round.interruption().is_some();
        if self.is_open() && !is_interrupted { Ok(()) } else { Err(self.why_not_executed()) }
    }

    #[cold]
    fn why_not_executed(&mut self) -> Abort {
        match self.round.interruption() {
            Some(interruption) => self.round.answer(interruption).into(),
            None => self.doom.unwrap_or(Misuse::Ended.into()),
        }
    }

    /// Without rule C1, what was read is validated before later rows are locked. Whether it was valid.
    #[cold]
    fn validate_early(&mut self) -> bool {
        let is_later_round = self.set.executed > 0;
        let validate = |it: &mut Self| it.group_buckets().and_then(|()| it.validate_groups(false));
        match if is_later_round { validate(self) } else { Ok(()) } {
            Ok(()) => true,
            Err(abort) => {
                self.doom(abort);
                false
            }
        }
    }

    /// Sends the requests for rows that are not executed, as many as fit; what to wait for.
    fn send_rows(&mut self) -> WaitReason {
        self.set.requested = self.request_rows();
        let is_sent = !self.round.batch().is_empty();
        if is_sent { WaitReason::Responses } else { WaitReason::Turn }
    }

    /// Fills a batch with as many rows as fit, and queues prefetches of those of this node; returns the first row that has to
    /// wait.
    #[inline(always)]
    fn request_rows(&mut self) -> usize {
        let Self { view, set, round, scratch, owner, prefetches, passes, .. } = self;
        let (AccessSet { rows, values, executed, .. }, message) = (set, &mut scratch.message);
        let mut batch = round.batch();
        batch.clear();
        let mut local_rows = 0;
        for (offset, row) in rows[*executed..].iter().enumerate() {
            if row.is_local(view) {
                local::queue_prefetch(view, row, prefetches);
                local_rows += 1;
                if local_rows == local::ROWS_MAX {
                    return *executed + offset + 1;
                }
                continue;
            }
            let (kind, request) = row.request(*owner, *passes);
            let pushed = if row.key_bytes == 0 {
                let answer_bytes = VERSION_BYTES + row.value_bytes as usize;
                batch.push(row.primary, kind, &request, answer_bytes)
            } else {
                message.clear();
                message.extend_from_slice(&request);
                message.extend_from_slice(&values[row.key_range()]);
                // The length of the value is not known yet: a response that is full says so.
                batch.push(row.primary, kind, message, VERSION_BYTES)
            };
            if pushed.is_err() {
                // Piggybacked requests go first, alone.
                let fits_alone = offset > 0 || batch.has_piggybacked();
                assert!(fits_alone, "a message takes the largest value");
                return *executed + offset;
            }
        }
        rows.len()
    }

    /// Takes the answers for the rows that were requested; dooms the transaction if one of them must. Whether there are rows left.
    fn take_answers(&mut self, reason: WaitReason) -> bool {
        if let Err(interrupted) = self.round.resumed(reason) {
            self.doom = Some(interrupted.into());
            return false;
        }
        if let Some((status, table)) = self.take_each_answer() {
            self.doom(abort_of(status, table));
            return false;
        }
        self.set.executed < self.set.rows.len()
    }

    /// Takes the answers; of the first that dooms the transaction, its status and table. Rows from the first that was postponed on are
    /// requested again: what was locked is then locked already.
    #[inline(always)]
    fn take_each_answer(&mut self) -> Option<(Status, u32)> {
        let Self { view, set, round, owner, .. } = self;
        let AccessSet { rows, executed: first, requested: end, values, values_used, .. } = set;
        let mut failed = None;
        let mut batch = round.batch();
        let mut executed = *end;
        for (offset, row) in rows[*first..*end].iter_mut().enumerate() {
            let (status, answer) = if !row.is_local(view) {
                let answer = batch.next_response(row.primary);
                (Status::from_wire(answer.kind), answer.payload)
            } else if let Some((status, _)) = failed {
                // The transaction is lost: nothing more is locked for it.
                (status, &[][..])
            } else {
                let value = &mut values[row.value_range()];
                let (status, version) = local::execute(view, row, *owner, value);
                row.observe(version, view);
                (status, &[][..])
            };
            row.state = match status {
                Status::Found | Status::Exists => RowState::Found,
                Status::Absent => RowState::Absent,
                Status::Granted => {
                    if row.state == RowState::Found {
                        // It was requested again, to be inserted, and has gone meanwhile.
                        values[row.value_range()].fill(0);
                    }
                    RowState::Granted
                }
                Status::Postponed => {
                    executed = executed.min(*first + offset);
                    continue;
                }
                Status::Locked
                | Status::Barrier
                | Status::Reserved
                | Status::Moved
                | Status::Early
                | Status::Crowded
                | Status::Full
                | Status::Refused
                | Status::Done
                | Status::More
                | Status::Changed
                | Status::Gap => {
                    failed = failed.or(Some((status, row.table)));
                    // A lock that was granted before the request was repeated is still held, and has to be released.
                    if row.state == RowState::Granted {
                        RowState::Granted
                    } else {
                        RowState::Failed
                    }
                }
            };
            let Some((version, value)) = answer.split_first_chunk::<VERSION_BYTES>() else {
                continue;
            };
            row.observe(u64::from_le_bytes(*version), view);
            if row.key_bytes > 0 {
                if !heap::take_answer(row, value, (values, values_used)) {
                    failed = failed.or(Some((Status::Changed, row.table)));
                }
            } else if value.len() == row.value_bytes as usize {
                // An answer has a value where the key is there.
                values[row.value_range()].copy_from_slice(value);
            }
        }
        *first = executed;
        failed
    }
}

impl Row {
    /// Notes the version of its bucket, from which the bucket's number follows.
    #[inline(always)]
    fn observe(&mut self, version: u64, view: &View) {
        self.version = version;
        if level_of(version) > 0 {
            let table = view.table(self.table).expect("rows were added to tables that exist");
            self.bucket = table.bucket_at(self.location, version);
        }
    }

    /// READ or LOCK of the row, but for the bytes of its key.
    #[inline(always)]
    fn request(&self, owner: Owner, passes: Passes) -> (u16, [u8; HEADER_BYTES]) {
        let (table, key) = (self.table, self.key);
        let Some(mode) = self.mode else {
            return (request::READ, Read { table, key, owner }.encode());
        };
        // The table tells the size of its values, if they are fixed.
        let is_fixed = self.key_bytes == 0;
        let value_bytes = if is_fixed { 0 } else { self.value_bytes };
        (request::LOCK, LockRow { table, mode, passes, value_bytes, key, owner }.encode())
    }
}

/// Why a transaction aborts whose row of this table was answered so.
fn abort_of(status: Status, table: u32) -> Abort {
    match status {
        Status::Full => Failure::TableFull { table }.into(),
        Status::Refused => Misuse::NoSuchTable { table }.into(),
        Status::Changed => Conflict::Changed.into(),
        Status::Barrier => Conflict::Barrier.into(),
        Status::Reserved => Conflict::Reserved.into(),
        Status::Locked => Conflict::Locked.into(),
        Status::Moved => Conflict::Reconfigured.into(),
        _ => Failure::Refused.into(),
    }
}
