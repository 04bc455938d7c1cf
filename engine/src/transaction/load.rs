//! Bulk loads: rows for a table that no transaction uses, sent to all copies of their partitions, without locks, log and units.
//!
//! ```text
//! BEGIN_LOAD   primaries, then all         nothing was ever written there
//! LOAD         primaries, then backups     some rows; as often as there are rows
//! END_LOAD     primaries and backups       all copies have all rows
//! ```
//! The primary counts the memory of rows before any backup takes it, as for a LOCK (rule C9).
//!
//! *Source*: `docs/protocol.md`, "Bulk loads". *Invariants*: all requests of a load are sent in one epoch and one placement of copies. What fails
//! leaves a table behind that is of no use, and that is to be dropped.

use std::ops::Range;

use gannet_rules::rule;
use gannet_storage::{HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Owner, TableKind};

use crate::answer::{ROWS_BYTES, decode_rows};
use crate::control::WaitReason;
use crate::outcome::{Abort, Conflict, Failure, Misuse, RowProblem};
use crate::participant;
use crate::request::{
    self, COUNTS_MEMORY, KeyAndValue, LOADED_BYTES_MAX, LOADED_ROWS_MAX, Load, Status,
    TableRequest, push_loaded_row,
};
use crate::table_id::TableId;
use crate::transaction::round::Interrupted;
use crate::transaction::{BYTES_KEPT_MAX, Transaction};

/// A bulk load that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkLoad {
    table: TableId,
    /// The transaction that has begun it.
    owner: Owner,
    epoch: u32,
    /// The version of the placement in which all rows are to be sent.
    placement: u64,
}

impl BulkLoad {
    /// The table.
    #[must_use]
    pub fn table(self) -> TableId {
        self.table
    }

    fn request(self, partition: u16, copies: Copies) -> Load {
        let Self { table, owner, placement, .. } = self;
        let role = if copies == Copies::Primaries { COUNTS_MEMORY } else { 0 };
        Load { table: table.0, partition, role, placement, owner }
    }
}

/// Whom requests of a load are sent to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    Primaries,
    Backups,
    All,
}

impl Copies {
    /// Some of the copies of a partition, whose first is the primary.
    fn of(self, copies: &[u16]) -> &[u16] {
        match self {
            Self::Primaries => &copies[..1],
            Self::Backups => &copies[1..],
            Self::All => copies,
        }
    }
}

/// Rows of one partition for one node: a range of the rows in the order of their partitions.
struct Part {
    target: u16,
    partition: u16,
    rows: Range<usize>,
}

/// What the answers to some LOADs have told.
#[derive(Default)]
struct Answers {
    /// Places of rows that are there already.
    existing: Vec<usize>,
    /// What is to be sent again.
    left: Vec<Part>,
    failed: Option<Status>,
}

impl Answers {
    fn take(&mut self, part: Part, status: Status, loaded: Option<usize>) {
        let Part { target, partition, rows } = part;
        let from = rows.start + loaded.unwrap_or(0).min(rows.len());
        match status {
            Status::Done => {}
            Status::Exists => self.existing.push(from),
            // The node is about to have memory, or to hear of the placement.
            Status::Locked | Status::Early => {
                self.left.push(Part { target, partition, rows: from..rows.end });
            }
            status => self.failed = self.failed.or(Some(status)),
        }
    }
}

impl Transaction<'_> {
    /// Begins a bulk load of a table. None if copies are being made or given up, something was written to the table, another load has begun,
    /// or the table was laid out for many rows.
    ///
    /// # Errors
    /// [`Misuse::NoSuchTable`]; [`Failure::Lost`], [`Conflict::Reconfigured`], or that of an interruption: the table is of no use then.
    pub(crate) fn begin_bulk_load(&mut self, table: TableId) -> Result<Option<BulkLoad>, Abort> {
        let found = self.view.kept_table(table.0);
        if found.is_none_or(|table| table.layout().kind != TableKind::Ordered) {
            return Err(Misuse::NoSuchTable { table: table.0 }.into());
        }
        self.check_all_partitions()?;
        let Some(placement) = self.view.configuration().settled_placement() else {
            return Ok(None);
        };
        let load = BulkLoad { table, owner: self.owner, epoch: self.epoch(), placement };
        // All, whichever copies are primaries by then: to begin twice is to begin once.
        for copies in [Copies::Primaries, Copies::All] {
            if !self.tell(load, request::BEGIN_LOAD, copies)? {
                // Where it has begun, nothing was loaded. What has not begun does not end.
                self.tell(load, request::END_LOAD, Copies::All)?;
                return Ok(None);
            }
        }
        Ok(Some(load))
    }

    /// Adds rows. The number of the first whose key is there already, if there is one: then the load has failed.
    ///
    /// # Errors
    /// Why the load has failed: [`Conflict::Reconfigured`] if a copy has come or gone, or is being made; [`Failure::TableFull`],
    /// [`Misuse::Row`] and [`Misuse::ValueBytes`] for a row that the table cannot have, [`Misuse::LoadEnded`], [`Misuse::NoSuchTable`] for a
    /// table that is dropped, or that of an interruption.
    pub(crate) fn bulk_load(
        &mut self,
        load: BulkLoad,
        rows: &[KeyAndValue<'_>],
    ) -> Result<Option<usize>, Abort> {
        let mut start = 0;
        while start < rows.len() {
            let mut bytes = 0;
            let fits = |(key, value): &&KeyAndValue<'_>| {
                let is_first = bytes == 0;
                bytes += key.len() + value.len();
                is_first || bytes <= LOADED_BYTES_MAX
            };
            let count = rows[start..].iter().take(LOADED_ROWS_MAX).take_while(fits).count();
            if let Some(existing) = self.load_together(load, &rows[start..start + count])? {
                return Ok(Some(start + existing));
            }
            start += count;
        }
        Ok(None)
    }

    /// Ends a load, all of whose rows are at all copies: transactions can use the table.
    ///
    /// # Errors
    /// As [`Self::bulk_load`].
    pub(crate) fn end_bulk_load(&mut self, load: BulkLoad) -> Result<(), Abort> {
        match self.tell(load, request::END_LOAD, Copies::All)? {
            true => Ok(()),
            false => Err(refusal(Status::Changed, load.table)),
        }
    }

    /// Waits until this worker knows the placement of a load.
    ///
    /// # Errors
    /// [`Conflict::Reconfigured`] if that is not the present one any more.
    fn join_load(&mut self, load: BulkLoad) -> Result<(), Abort> {
        while self.view.configuration().placement() < load.placement {
            self.pause_load()?;
        }
        let settled = self.view.configuration().settled_placement();
        let is_same = settled == Some(load.placement) && self.epoch() == load.epoch;
        if is_same || !rule!(LOAD_IN_ONE_EPOCH) {
            Ok(())
        } else {
            Err(Conflict::Reconfigured.into())
        }
    }

    /// Waits for a while, and goes by the present view then: what is waited for may wait until nobody has an earlier one.
    fn pause_load(&mut self) -> Result<(), Interrupted> {
        self.settle()?;
        self.round.pause()?;
        self.refresh_view();
        Ok(())
    }

    /// Sends a request about a load to copies of all partitions, again where a node has not heard of the table or the placement yet. Whether all
    /// answers were `Done`; some were `Changed` if not.
    ///
    /// # Errors
    /// That of any other answer, whatever the others were.
    fn tell(&mut self, load: BulkLoad, kind: u16, copies: Copies) -> Result<bool, Abort> {
        self.join_load(load)?;
        let partitions = self.partitioning().count();
        let mut early: Vec<(u16, u16)> = (0..)
            .take(partitions)
            .flat_map(|it| {
                copies.of(self.view.configuration().copies(it)).iter().map(move |to| (*to, it))
            })
            .collect();
        let (mut are_done, mut failed) = (true, None);
        while !early.is_empty() {
            self.settle()?;
            self.round.begin()?;
            for (target, partition) in &early {
                let request = load.request(*partition, copies).encode();
                self.round.batch().push(*target, kind, &request, 0)?;
            }
            self.round.wait_for(WaitReason::Responses)?;
            let mut batch = self.round.batch();
            early.retain(|(target, _)| {
                let status = Status::from_wire(batch.next_response(*target).kind);
                are_done &= status != Status::Changed;
                if !matches!(status, Status::Done | Status::Changed | Status::Early) {
                    failed = failed.or(Some(status));
                }
                status == Status::Early
            });
            drop(batch);
            self.round.begin()?;
            if let Some(status) = failed {
                return Err(refusal(status, load.table));
            }
            if !early.is_empty() {
                self.pause_load()?;
                self.join_load(load)?;
            }
        }
        Ok(are_done)
    }

    /// Adds rows that may be sent together.
    fn load_together(
        &mut self,
        load: BulkLoad,
        rows: &[KeyAndValue<'_>],
    ) -> Result<Option<usize>, Abort> {
        self.join_load(load)?;
        let table = self.view.kept_table(load.table.0);
        let table = table.ok_or(Misuse::NoSuchTable { table: load.table.0 })?;
        let mut order = Vec::with_capacity(rows.len());
        for (number, (key, value)) in rows.iter().enumerate() {
            check_row(load.table, key, value)?;
            order.push((table.locate(table.hashed(*key).word()).partition, number));
        }
        order.sort_unstable();
        // Each copy gets the rows once, whichever is primary by then.
        let parts = [Copies::Primaries, Copies::Backups].map(|it| (it, self.parts_for(it, &order)));
        for (copies, parts) in parts {
            let existing = self.send_parts(load, copies, parts, |at| rows[order[at].1])?;
            if let Some(existing) = existing.into_iter().map(|at| order[at].1).min() {
                return Ok(Some(existing));
            }
        }
        Ok(None)
    }

    /// What copies are to get of rows, whose partitions and numbers `order` has.
    fn parts_for(&self, copies: Copies, order: &[(u16, usize)]) -> Vec<Part> {
        let mut end = 0;
        let parts = order.chunk_by(|one, other| one.0 == other.0).flat_map(|part| {
            let rows = end..end + part.len();
            end = rows.end;
            let (partition, _) = part[0];
            let targets = copies.of(self.view.configuration().copies(partition)).iter();
            targets.map(move |target| Part { target: *target, partition, rows: rows.clone() })
        });
        parts.collect()
    }

    /// Sends LOADs, until all rows are loaded; the places of rows that are there already. This node has its own part without a request.
    fn send_parts<'r>(
        &mut self,
        load: BulkLoad,
        copies: Copies,
        mut parts: Vec<Part>,
        row: impl Fn(usize) -> KeyAndValue<'r>,
    ) -> Result<Vec<usize>, Abort> {
        let id = self.view.id();
        let mut message = std::mem::take(&mut self.scratch.message);
        while !parts.is_empty() {
            self.settle()?;
            self.round.begin()?;
            let mut answers = Answers::default();
            let mut sent = Vec::new();
            for part in parts {
                message.clear();
                message.extend_from_slice(&load.request(part.partition, copies).encode());
                for (key, value) in part.rows.clone().map(&row) {
                    push_loaded_row(key, value, &mut message);
                }
                if part.target == id {
                    let (status, loaded) = participant::loaded(&self.view, &message);
                    answers.take(part, status, Some(loaded));
                } else {
                    self.round.batch().push(part.target, request::LOAD, &message, ROWS_BYTES)?;
                    sent.push(part);
                }
            }
            if !sent.is_empty() {
                self.round.wait_for(WaitReason::Responses)?;
            }
            for part in sent {
                let mut batch = self.round.batch();
                let answer = batch.next_response(part.target);
                answers.take(part, Status::from_wire(answer.kind), decode_rows(answer.payload));
            }
            self.round.begin()?;
            match answers {
                Answers { failed: Some(status), .. } => return Err(refusal(status, load.table)),
                Answers { existing, .. } if !existing.is_empty() => return Ok(existing),
                Answers { left, .. } => parts = left,
            }
            if !parts.is_empty() {
                if self.is_cancelled() {
                    return Err(Abort::Cancelled);
                }
                self.pause_load()?;
                self.join_load(load)?;
                if self.view.kept_table(load.table.0).is_none() {
                    return Err(refusal(Status::Refused, load.table));
                }
            }
        }
        if message.capacity() <= BYTES_KEPT_MAX {
            self.scratch.message = message;
        }
        Ok(Vec::new())
    }
}

/// Whether an ordered table can have a row.
fn check_row(TableId(table): TableId, key: &[u8], value: &[u8]) -> Result<(), Misuse> {
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Err(Misuse::Row { table, key: key.into(), problem: RowProblem::KeyBytes });
    }
    match value.len() {
        found if found > HEAP_VALUE_BYTES_MAX => {
            Err(Misuse::ValueBytes { table, expected: HEAP_VALUE_BYTES_MAX, found })
        }
        _ => Ok(()),
    }
}

/// Why a load fails that was answered so.
fn refusal(status: Status, TableId(table): TableId) -> Abort {
    match status {
        Status::Moved => Conflict::Reconfigured.into(),
        Status::Full => Failure::TableFull { table }.into(),
        Status::Changed => Misuse::LoadEnded { table }.into(),
        Status::Refused => Misuse::NoSuchTable { table }.into(),
        _ => Failure::Refused.into(),
    }
}
