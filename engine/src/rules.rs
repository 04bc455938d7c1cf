//! The rules of this crate that a test can remove.
//!
//! *Source*: `docs/protocol.md`.
//!
//! *Not here*: faults, which are in `faults.rs`.

gannet_rules::rules! {
    /// All locks are granted before the first VALIDATE is sent.
    C1,
    /// All observations of one bucket by one transaction agree.
    C2,
    /// From the first LOG on the coordinator never aborts.
    C3,
    /// No copy is changed before all log replicas have acknowledged.
    C4,
    /// Primaries are updated after all backups of the partition have acknowledged.
    C5,
    /// The outcome is told after all log replicas have acknowledged.
    C6,
    /// The buckets that a transaction has only read are validated (FaSST section 5, step 2).
    READ_VALIDATION,
    /// The ranges that were scanned are validated.
    RANGE_VALIDATION,
    /// A unit is based on the version of its bucket that the lock returned.
    GRANTED_BASE,
    /// An abort sends UNLOCK for every lock that was granted.
    UNLOCK_ON_ABORT,
    /// A transaction has one unit for each bucket, however many of its keys lie there.
    ONE_UNIT,
    /// No coroutine and no handler takes a step while an epoch is prepared.
    C7,
    /// A flush has the records of all members that are left.
    ALL_RECORDS,
    /// A flush applies the units of all records at all copies.
    FLUSHED_UNITS,
    /// What a transaction has read in one epoch is not validated in another.
    ONE_EPOCH,
    /// The outcome that is kept under a token is that of every later run and question.
    TOKENS,
    /// A node answers only while it holds a lease.
    LEASES,
    /// The clock is read after the data, not before.
    CLOCK_AFTER_DATA,
    /// An epoch begins when the leases of removed members are over.
    LEASES_OVER,
    /// An epoch begins when that is decided.
    ACTIVATION_DECIDED,
    /// Of two members that do not reach each other one is removed, though both hold their leases.
    COMPLAINTS,
    /// The rows of a load go to the same members.
    LOAD_IN_ONE_EPOCH,
    /// A node answers and grants locks only for partitions whose primary it is, and for none that it is about to hand over.
    MOVED,
    /// A node that has not heard of a new table yet is sent its updates again, until it has.
    TABLES_TO_COME,
    /// A primary hands a partition over when no bucket of it is locked any more.
    LOCKS_FINISH,
    /// What was scanned at one primary of a partition is not validated at another.
    SCANNED_PRIMARY,
    /// What a learner cannot apply yet waits until its bucket is copied.
    WAITING_UPDATES,
    /// What waits for a half of a bucket that a learner has not copied is applied when the split is.
    WAITING_SPLITS,
    /// A learner copies rows when all transactions send their updates to it.
    GRACE_PERIOD,
    /// A learner is no copy before all rows are copied.
    LEARNED_WHOLE,
    /// A bucket is copied with its version.
    COPIED_VERSION,
    /// A learner is never primary: where the last copy is lost, the partition is.
    LEARNERS_APART,
    /// A copy is given back when no transaction sends it updates any more.
    DISMISSED_SPARED,
    /// Where reads are confirmed, they are right only when a renewal was granted that was sent after them.
    CONFIRMED_READS,
    /// A commit is settled by its own id, and not by the record that lies in its coroutine's log slot.
    SETTLE_BY_ID,
}
