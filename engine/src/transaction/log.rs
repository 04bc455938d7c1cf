//! Log: write the commit record, and store it at the f+1 log replicas of this node.
//!
//! *Source*: FaSST section 5, step 3. Rules: C3 (from the first LOG on the coordinator does not
//! abort), C4 (no update before all acknowledgements), C9 (what cannot fit is refused before).

use gannet_rpc::PAYLOAD_BYTES_MAX;
use gannet_storage::{
    BucketUpdateWriter, CommitRecordWriter, LockMode, RECORD_BYTES_MAX, RecordPart, TransactionId,
    UNIT_ITEMS_MAX,
};

use crate::commit::Stage;
use crate::outcome::{Abort, Misuse};
use crate::request::{self, PART_BYTES_MAX, Status, encode_part};
use crate::transaction::access_set::AccessSet;
use crate::transaction::round::{Interrupted, Round};
use crate::transaction::{Scratch, Transaction};

/// A commit record: the bytes that log replicas store, and where the units of the copies lie in them.
#[derive(Default)]
pub(super) struct Record {
    bytes: Vec<u8>,
    units: Vec<Unit>,
}

/// Where the unit of a bucket lies in a record.
struct Unit {
    partition: u16,
    bounds: [u32; 2],
}

impl Record {
    #[inline(always)]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes that it has room for.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Writes a record of units of buckets of one partition, which `append` adds one by one, until it adds none. How many there are.
    pub(super) fn write_of(
        &mut self,
        (id, partition): (TransactionId, u16),
        mut append: impl FnMut(&mut Vec<u8>) -> bool,
    ) -> usize {
        self.units.clear();
        let mut writer = CommitRecordWriter::begin(&mut self.bytes, id, std::iter::once(partition));
        loop {
            let start = writer.units().len();
            if !append(writer.units()) {
                break;
            }
            let bounds = [start, writer.units().len()];
            let bounds =
                bounds.map(|at| u32::try_from(at).expect("a few units, which fit messages"));
            self.units.push(Unit { partition, bounds });
        }
        writer.finish(u32::try_from(self.units.len()).expect("a few units"));
        self.units.len()
    }

    /// The units, each with the partition of its bucket.
    #[inline(always)]
    pub(super) fn units(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.units.iter().map(|Unit { partition, bounds: [start, end] }| {
            (*partition, &self.bytes[*start as usize..*end as usize])
        })
    }
}

impl Transaction<'_> {
    /// Writes the record of all buckets that this transaction holds, one unit for each.
    ///
    /// # Errors
    /// [`Misuse::TooLarge`] if the record is too large, or a unit does not fit a message;
    /// [`Misuse::TooManyRows`] if a unit's items are more than it can count. Nothing has been sent yet.
    pub(super) fn write_record(&mut self) -> Result<(), Abort> {
        let Self { set: AccessSet { rows, values, .. }, record, owner, .. } = self;
        let Scratch { order, held, .. } = &self.scratch;
        let id = self.round.commits().open.id();
        record.units.clear();
        // Groups lie in the order of (table, partition): a partition is repeated only between tables.
        let partitions = held.iter().map(|group| rows[group.row as usize].location.partition);
        let mut writer = CommitRecordWriter::begin(&mut record.bytes, id, partitions);
        for group in held {
            let first = &rows[group.row as usize];
            let address = (first.table, first.location.partition, first.bucket);
            let start = writer.units().len();
            let mut unit =
                BucketUpdateWriter::begin(writer.units(), address, first.version, *owner);
            for &(_, row) in &order[group.range()] {
                let row = &rows[row as usize];
                if !row.changes() {
                    continue;
                }
                let key = row.key(values);
                if row.mode == Some(LockMode::Delete) {
                    unit.delete(key);
                } else {
                    unit.put(key, &values[row.value_range()]);
                }
            }
            if unit.items() > UNIT_ITEMS_MAX {
                return Err(Misuse::TooManyRows { table: first.table, max: UNIT_ITEMS_MAX }.into());
            }
            unit.finish();
            let bounds = [start, writer.units().len()];
            check_size(bounds[1] - start, PAYLOAD_BYTES_MAX)?;
            check_size(bounds[1], RECORD_BYTES_MAX)?;
            let bounds = bounds.map(|at| u32::try_from(at).unwrap_or(u32::MAX));
            record.units.push(Unit { partition: first.location.partition, bounds });
        }
        writer.finish(u32::try_from(held.len()).expect("a record of 64 MiB has fewer units"));
        Ok(())
    }

    /// Stores the record at every log replica and waits for all of them.
    ///
    /// # Errors
    /// That of an interruption; no other after [`Self::write_record`] succeeded: the record fits.
    pub(super) fn log(&mut self) -> Result<(), Abort> {
        self.round.assert_settled();
        self.reach(Stage::Logging);
        if self.record.bytes.len() > PART_BYTES_MAX {
            return self.log_in_parts();
        }
        // The lines arrive while the log replicas answer.
        self.prefetch_backups();
        let Self { view, record: Record { bytes: record, .. }, round, log, .. } = self;
        round.begin()?;
        for &replica in view.configuration().log_group(view.id()) {
            if replica == view.id() {
                let stored = log.borrow_mut().store(record);
                round.answered(stored.map_or(Status::Refused, |_| Status::Done));
            } else {
                round.request(replica, request::LOG, record)?;
            }
        }
        end_logged(round)?;
        self.reach(Stage::Logged);
        Ok(())
    }

    /// As [`Self::log`], part by part. A replica has the record when it has the last part.
    #[cold]
    fn log_in_parts(&mut self) -> Result<(), Abort> {
        let Self { view, record: Record { bytes: record, .. }, round, scratch, .. } = self;
        let (id, message) = (round.commits().open.id(), &mut scratch.message);
        for (number, bytes) in record.chunks(PART_BYTES_MAX).enumerate() {
            let offset = number * PART_BYTES_MAX;
            let part = RecordPart { id, record_bytes: record.len(), offset, bytes };
            encode_part(&part, message);
            round.begin()?;
            for &replica in view.configuration().log_group(id.node) {
                round.request(replica, request::LOG_PART, message)?;
            }
            end_logged(round)?;
        }
        self.reach(Stage::Logged);
        Ok(())
    }
}

/// Ends a round: no log replica refuses a record of its cluster.
#[inline(always)]
fn end_logged(round: &mut Round<'_>) -> Result<(), Interrupted> {
    if let Some(status) = round.end()? {
        round.fail("LOG", status);
    }
    Ok(())
}

fn check_size(bytes: usize, max: usize) -> Result<(), Misuse> {
    if bytes > max { Err(Misuse::TooLarge { bytes, max }) } else { Ok(()) }
}
