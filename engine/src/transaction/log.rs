//! Log: write the commit record, and store it at the f+1 log replicas of this node.
//!
//! *Source*: FaSST section 5, step 3. Rules: C3 (from the first LOG on the coordinator does not
//! abort), C4 (no update before all acknowledgements), C9 (what cannot fit is refused before).

use gannet_rpc::PAYLOAD_BYTES_MAX;
use gannet_storage::{
    BucketUpdateWriter, CommitRecordWriter, LockMode, RECORD_BYTES_MAX, RecordPart, UNIT_ITEMS_MAX,
};

use crate::outcome::Abort;
use crate::request::{self, PART_BYTES_MAX, Status, encode_part};
use crate::transaction::Transaction;
use crate::transaction::round::Round;

impl Transaction<'_> {
    /// Writes the record of all buckets that this transaction holds, one unit for each.
    ///
    /// # Errors
    /// [`Abort::TooLarge`] if the record is too large, or a unit does not fit a message;
    /// [`Abort::TooManyRows`] if a unit's items are more than it can count. Nothing has been sent yet.
    pub(super) fn write_record(&mut self) -> Result<(), Abort> {
        let Self { node, rows, order, held, values, record, id, owner, .. } = self;
        // Groups lie in the order of (table, partition): a partition is repeated only between tables.
        let partitions = held.iter().map(|group| rows[group.row as usize].partition);
        let mut writer = CommitRecordWriter::begin(record, *id, partitions);
        for group in held.iter_mut() {
            let first = &rows[group.row as usize];
            let table = node.table(first.table).expect("rows were added to tables that exist");
            let address = (first.table, first.partition, first.bucket, table.layout().version);
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
                    unit.put(key, &values[row.value_at..row.value_at + row.value_bytes]);
                }
            }
            if unit.items() > UNIT_ITEMS_MAX {
                return Err(Abort::TooManyRows { table: first.table, max: UNIT_ITEMS_MAX });
            }
            unit.finish();
            let bounds = [start, writer.units().len()];
            check_size(bounds[1] - start, PAYLOAD_BYTES_MAX)?;
            check_size(bounds[1], RECORD_BYTES_MAX)?;
            let bounds = bounds.map(|at| u32::try_from(at).unwrap_or(u32::MAX));
            group.unit = (bounds[0], bounds[1]);
        }
        writer.finish(u32::try_from(held.len()).expect("a record of 64 MiB has fewer units"));
        Ok(())
    }

    /// Logs an empty record over this transaction's, as the coroutine's next transaction would (a mutant).
    pub(super) fn log_next(&mut self) -> Result<(), Abort> {
        let own = std::mem::take(&mut self.record);
        self.id.counter += 1;
        CommitRecordWriter::begin(&mut self.record, self.id, std::iter::empty()).finish(0);
        let result = self.log();
        self.record = own;
        result
    }

    /// Stores the record at every log replica and waits for all of them.
    ///
    /// # Errors
    /// Never after [`Self::write_record`] succeeded: the record fits.
    pub(super) fn log(&mut self) -> Result<(), Abort> {
        self.round.assert_settled();
        if self.record.len() > PART_BYTES_MAX {
            return self.log_in_parts();
        }
        // The lines arrive while the log replicas answer.
        self.prefetch_backups();
        let Self { node, record, round, id, log, .. } = self;
        round.begin();
        for &replica in node.configuration().log_group(id.node) {
            if replica == id.node {
                let stored = log.borrow_mut().store(record);
                round.answered(stored.map_or(Status::Refused, |_| Status::Done));
            } else {
                round.request(replica, request::LOG, record)?;
            }
        }
        assert_logged(round);
        Ok(())
    }

    /// As [`Self::log`], part by part. A replica has the record when it has the last part.
    #[cold]
    fn log_in_parts(&mut self) -> Result<(), Abort> {
        let Self { node, record, round, id, message, .. } = self;
        for (number, bytes) in record.chunks(PART_BYTES_MAX).enumerate() {
            let offset = number * PART_BYTES_MAX;
            let part = RecordPart { id: *id, record_bytes: record.len(), offset, bytes };
            encode_part(&part, message);
            round.begin();
            for &replica in node.configuration().log_group(id.node) {
                round.request(replica, request::LOG_PART, message)?;
            }
            assert_logged(round);
        }
        Ok(())
    }
}

/// Ends the phase: no log replica refuses a record of its cluster.
fn assert_logged(round: &mut Round<'_>) {
    if let Some(status) = round.end() {
        round.fail("LOG", status);
    }
}

fn check_size(bytes: usize, max: usize) -> Result<(), Abort> {
    if bytes > max { Err(Abort::TooLarge { bytes, max }) } else { Ok(()) }
}
