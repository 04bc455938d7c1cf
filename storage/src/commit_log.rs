//! The commit log of one worker: a slot for each coroutine that may log here.
//!
//! A slot holds the last record of its coroutine. The next record may replace it only once all
//! primaries acknowledged the last one (rule C8), so the log truncates itself without messages and
//! its memory is bounded by nodes x coroutines x the largest record. Worker i receives records from
//! worker i of each node alone, so a worker's slots are its own and need no synchronisation.
//!
//! A record larger than a message arrives in parts, one after the other. It is in the log, and is acknowledged,
//! when its last part has arrived. Until then the slot keeps the record before.
//!
//! *Source*: FaSST section 5, step 3; `docs/protocol.md`, rule C8.
//!
//! *Not here*: the disk.

use std::sync::Arc;

use gannet_rules::rule;

use crate::bucket_update::Malformed;
use crate::commit_record::{CommitRecord, RECORD_BYTES_MAX};
use crate::owner::TransactionId;

/// Bytes of a slot that are kept for the next record.
const BYTES_KEPT_MAX: usize = 64 << 10;

/// Sees every record as it is stored, before a later one overwrites it.
pub trait LogObserver: Send + Sync {
    /// Called with the bytes of the slot right after they were stored.
    fn stored(&self, record: &[u8]);
}

/// What storing a record did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The record is in its slot.
    Stored,
    /// The slot holds this record or part of it, or a later one; it was left as it is.
    Duplicate,
    /// The part is there; the record is not yet.
    Partial,
}

/// A part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPart<'a> {
    /// The record's transaction.
    pub id: TransactionId,
    /// Bytes of the whole record.
    pub record_bytes: usize,
    /// Where the part begins.
    pub offset: usize,
    /// The part.
    pub bytes: &'a [u8],
}

/// One coroutine's slot. Empty until its coroutine first logs.
#[derive(Default)]
struct Slot {
    /// (epoch, counter) of the record.
    position: (u32, u64),
    record: Vec<u8>,
    /// The next record, while it arrives.
    arriving: Arriving,
}

/// A record of which some parts are missing.
#[derive(Default)]
struct Arriving {
    position: (u32, u64),
    bytes: Vec<u8>,
}

impl Slot {
    fn finish(&mut self, position: (u32, u64), observer: Option<&dyn LogObserver>) {
        self.position = position;
        if let Some(observer) = observer {
            observer.stored(&self.record);
        }
    }
}

/// The slots that one worker of a node keeps, as log replica, for the coroutines of its peers.
pub struct CommitLog {
    /// By node, then coroutine.
    slots: Vec<Slot>,
    coroutines: usize,
    observer: Option<Arc<dyn LogObserver>>,
}

impl CommitLog {
    /// Slots for `coroutines` coroutines of each of `nodes` nodes.
    #[must_use]
    pub fn new(nodes: usize, coroutines: usize, observer: Option<Arc<dyn LogObserver>>) -> Self {
        let slots = (0..nodes * coroutines).map(|_| Slot::default()).collect();
        Self { slots, coroutines, observer }
    }

    /// Stores `record` in the slot of its coroutine, if it is newer than what the slot holds.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are no record, or name a coroutine that has no slot.
    pub fn store(&mut self, record: &[u8]) -> Result<Stored, Malformed> {
        let id = CommitRecord::parse(record)?.id;
        let slot = self.slot(id)?;
        let slot = &mut self.slots[slot];
        let position = (id.epoch, id.counter);
        if slot.position >= position {
            return Ok(Stored::Duplicate);
        }
        slot.record.clear();
        slot.record.shrink_to(BYTES_KEPT_MAX);
        slot.record.extend_from_slice(record);
        slot.finish(position, self.observer.as_deref());
        Ok(Stored::Stored)
    }

    /// Stores part of a record whose earlier parts were stored before; with the last one the record
    /// is in its slot.
    ///
    /// # Errors
    /// [`Malformed`] if the part does not continue what is there, if all parts make no record, or if
    /// they name a coroutine that has no slot.
    pub fn store_part(&mut self, part: &RecordPart<'_>) -> Result<Stored, Malformed> {
        let RecordPart { id, record_bytes, offset, bytes } = *part;
        let slot = self.slot(id)?;
        let slot = &mut self.slots[slot];
        let position = (id.epoch, id.counter);
        if slot.position >= position || slot.arriving.position > position {
            return Ok(Stored::Duplicate);
        }
        let end = offset.saturating_add(bytes.len());
        Malformed::check("record of parts", end, record_bytes.min(RECORD_BYTES_MAX))?;
        if slot.arriving.position < position {
            slot.arriving = Arriving {
                position,
                bytes: Vec::with_capacity(record_bytes.min(RECORD_BYTES_MAX)),
            };
        }
        let arrived = slot.arriving.bytes.len();
        Malformed::check("parts of a record before this one", offset, arrived)?;
        if offset < arrived {
            return Ok(Stored::Duplicate);
        }
        slot.arriving.bytes.extend_from_slice(bytes);
        if end < record_bytes {
            return Ok(Stored::Partial);
        }
        let whole = std::mem::take(&mut slot.arriving).bytes;
        if CommitRecord::parse(&whole)?.id != id {
            return Err(Malformed { what: "record of parts", expected: end, found: 0 });
        }
        slot.record = whole;
        slot.finish(position, self.observer.as_deref());
        Ok(Stored::Stored)
    }

    /// Where the records of a coroutine are kept.
    fn slot(&self, id: TransactionId) -> Result<usize, Malformed> {
        let coroutine = if rule!(C8) { usize::from(id.coroutine) } else { 0 };
        let index = usize::from(id.node) * self.coroutines + coroutine;
        let found = if coroutine < self.coroutines { self.slots.len() } else { 0 };
        Malformed::check("record's coroutine", index + 1, found)?;
        Ok(index)
    }

    /// The records of transactions of an epoch, in the order of their coroutines.
    pub fn records_of_epoch(&self, epoch: u32) -> impl Iterator<Item = &[u8]> {
        let of_epoch = self.slots.iter().filter(move |slot| slot.position.0 == epoch);
        of_epoch.map(|slot| slot.record.as_slice())
    }

    /// The records present, in the order of their coroutines.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.slots.iter().map(|slot| slot.record.as_slice()).filter(|record| !record.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit_record::CommitRecordWriter;
    use crate::owner::TransactionId;

    fn record(node: u16, coroutine: u16, counter: u64) -> Vec<u8> {
        let id = TransactionId { epoch: 1, node, worker: 0, coroutine, counter };
        let mut bytes = Vec::new();
        CommitRecordWriter::begin(&mut bytes, id, [7].into_iter()).finish(0);
        bytes
    }

    #[test]
    fn a_slot_never_goes_back() {
        let mut log = CommitLog::new(2, 3, None);
        assert_eq!(log.store(&record(1, 2, 5)), Ok(Stored::Stored));
        assert_eq!(log.store(&record(1, 2, 5)), Ok(Stored::Duplicate));
        assert_eq!(log.store(&record(1, 2, 4)), Ok(Stored::Duplicate));
        assert_eq!(log.store(&record(0, 2, 1)), Ok(Stored::Stored));
        let expected = [record(0, 2, 1), record(1, 2, 5)];
        assert!(log.records().eq(expected.iter().map(Vec::as_slice)));
    }

    #[test]
    fn a_record_in_parts_replaces_the_last_one_when_it_is_whole() {
        let mut log = CommitLog::new(2, 3, None);
        let (old, new) = (record(1, 2, 5), record(1, 2, 6));
        assert_eq!(log.store(&old), Ok(Stored::Stored));
        let id = CommitRecord::parse(&new).unwrap().id;
        let part = |range: std::ops::Range<usize>| RecordPart {
            id,
            record_bytes: new.len(),
            offset: range.start,
            bytes: &new[range],
        };
        let end = new.len();
        assert_eq!(log.store_part(&part(0..20)), Ok(Stored::Partial));
        assert!(log.store_part(&part(30..end)).is_err(), "a part is missing between them");
        assert_eq!(log.store_part(&part(0..20)), Ok(Stored::Duplicate));
        assert_eq!(log.store_part(&part(20..30)), Ok(Stored::Partial));
        assert!(log.records().eq([&old[..]]));
        assert_eq!(log.store_part(&part(30..end)), Ok(Stored::Stored));
        assert_eq!(log.store_part(&part(30..end)), Ok(Stored::Duplicate));
        assert!(log.records().eq([&new[..]]));
    }

    #[test]
    fn parts_that_make_no_record_are_refused() {
        let mut log = CommitLog::new(2, 3, None);
        let id = TransactionId { epoch: 1, node: 0, worker: 0, coroutine: 0, counter: 1 };
        let part = |offset, bytes| RecordPart { id, record_bytes: 60, offset, bytes };
        assert!(log.store_part(&part(0, &[1; 61])).is_err(), "longer than its record");
        assert_eq!(log.store_part(&part(0, &[1; 30])), Ok(Stored::Partial));
        assert!(log.store_part(&part(30, &[1; 30])).is_err(), "no record");
        let other = record(1, 0, 1);
        let part = RecordPart { id, record_bytes: other.len(), offset: 0, bytes: &other };
        assert!(log.store_part(&part).is_err(), "another transaction's record");
        assert_eq!(log.records().count(), 0);
    }

    #[test]
    fn a_coroutine_without_a_slot_is_refused() {
        let mut log = CommitLog::new(2, 3, None);
        assert!(log.store(&record(0, 3, 1)).is_err());
        assert!(log.store(&record(2, 0, 1)).is_err());
        assert!(log.store(b"short").is_err());
        assert_eq!(log.records().count(), 0);
    }
}
