//! The rules of this crate that a test can remove.
//!
//! *Invariants*: a rule holds unless a test has removed the rule, which takes the Cargo feature `mutants`, or loom.
//!
//! *Source*: `docs/protocol.md`, "Rules by name". The rules of sequences, fences, chains and mapped memory are those of
//! `bucket.rs` and `cells.rs`.
//!
//! *Not here*: the tests that remove them, which `tests/mutants.rs` lists.

gannet_rules::rules! {
    /// Each coroutine has a log slot of its own.
    C8,
    /// A lock for an insert reserves the space of the row.
    C9_RESERVATION,
    /// A READ of a bucket that is locked by another transaction is refused.
    LOCKED_BUCKETS,
    /// A pending entry of another epoch's transaction is removed from the index.
    DEAD_ENTRIES,
    /// A reservation of another epoch's transaction ends, and so does the pending entry that belongs to it.
    DEAD_RESERVATIONS,
    /// A scan barrier of another epoch's transaction ends.
    DEAD_BARRIERS,
    /// A lock of another epoch than the requester's keeps nobody out.
    DEAD_LOCKS,
    /// A backup applies a unit only on the version that the unit was made for.
    BASE_VERSION,
    /// An unlock of a transaction that aborts leaves the version of the bucket as it was.
    VERSION_ON_ABORT,
    /// A reader reads again if the physical sequence of the bucket has changed.
    SEQUENCE_CHECK,
    /// An acquire fence is between a reader's copy and its second look at the sequence.
    READ_FENCE,
    /// A release fence is between a writer's odd sequence and its first change.
    WRITE_FENCE,
    /// A release fence is between the freeing of a cell and its next use.
    REUSE_FENCE,
    /// A reader follows a number that may be torn only to memory that is mapped.
    MAPPED_CELLS,
    /// A key whose bucket was split since it was looked for is looked for again.
    SPLIT_BUCKETS,
    /// A row that is there is as it was read if it was last written at that version of its bucket, or before.
    ROW_VERSIONS,
    /// An absent key has not come and gone since if the last deletion from its bucket is no later than the version that was read.
    DELETION_MARKS,
    /// The deletion of a row marks the other rows with its hash.
    ONE_HASH,
    /// An entry that was added to the index after a scan of its range is noticed.
    ADDED_ENTRIES,
    /// An entry of a range that is pending for another transaction is noticed.
    PENDING_ENTRIES,
    /// A key of a range that another transaction is about to remove is noticed.
    LEAVING_ENTRIES,
    /// A removal from a leaf of the index after a scan of its range is noticed.
    REMOVAL_MARKS,
    /// Both halves of a leaf that is split have its marks, and so has the leaf before one that vanishes.
    MARKS_OF_LEAVES,
    /// A merged bucket takes a version above those of both halves.
    MERGED_VERSION,
    /// A merged bucket has the deletion marks of both halves.
    MERGED_MARKS,
    /// A bucket that was merged into another one since all its rows were read has changed.
    MERGED_BUCKETS,
    /// A bucket that has changed since it was folded is noticed.
    FOLDED_CHANGES,
    /// A partition that is being loaded is not served.
    LOADED_UNSERVED,
    /// A reader follows a chain of overflow buckets only while its bucket is unchanged.
    UNCHANGED_CHAIN,
}
