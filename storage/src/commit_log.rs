//! The commit log of one worker: a slot for each coroutine that may log here.
//!
//! A slot holds the last record of its coroutine. The next record may replace it only once all
//! primaries acknowledged the last one (rule C8), so the log truncates itself without messages and
//! its memory is bounded by nodes x coroutines x the largest record. Worker i receives records from
//! worker i of other nodes alone, so a worker's slots are its own and need no synchronisation.
//!
//! *Source*: FaSST section 5, step 3; `recovery.md`, rule C8.
//!
//! *Not here*: the disk.

use std::sync::Arc;

use crate::bucket_update::Malformed;
use crate::commit_record::CommitRecord;

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
    /// The slot holds this record or a later one; it was left as it is.
    Duplicate,
}

/// One record's place. Empty until its coroutine first logs.
#[derive(Default)]
struct Slot {
    /// (epoch, counter) of the record.
    position: (u32, u64),
    record: Vec<u8>,
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
        let coroutine = usize::from(id.coroutine);
        let index = usize::from(id.node) * self.coroutines + coroutine;
        let found = if coroutine < self.coroutines { self.slots.len() } else { 0 };
        Malformed::check("record's coroutine", index + 1, found)?;
        let slot = &mut self.slots[index];
        if slot.position >= (id.epoch, id.counter) {
            return Ok(Stored::Duplicate);
        }
        slot.position = (id.epoch, id.counter);
        slot.record.clear();
        slot.record.extend_from_slice(record);
        if let Some(observer) = &self.observer {
            observer.stored(&slot.record);
        }
        Ok(Stored::Stored)
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
    fn a_coroutine_without_a_slot_is_refused() {
        let mut log = CommitLog::new(2, 3, None);
        assert!(log.store(&record(0, 3, 1)).is_err());
        assert!(log.store(&record(2, 0, 1)).is_err());
        assert!(log.store(b"short").is_err());
        assert_eq!(log.records().count(), 0);
    }
}
