//! Tables, versions and locks, and the commit log of one node; knows no network.
//!
//! ```text
//! Arena ── one mapping per node, huge pages; hands out extents, and takes them back when a table goes
//!   └─ Table ── one per name; hosts any subset of the cluster's partitions
//!        └─ Partition ── main buckets, reservations, index and scan barriers, and whether it serves transactions
//!             └─ Bucket ── header (version, owner, sequence, next, tags) and 7 slots, then overflow buckets
//! CommitLog ── one slot per (node, coroutine) for each worker, holding the last CommitRecord
//! ```
//!
//! *Source*: FaSST section 5 and figure 5 (MICA table with one header per main bucket).
//!
//! *Not here*: which node holds which partition, and everything that sends (crate `engine`).
#![deny(unsafe_code)]

mod apply;
mod arena;
mod bucket;
mod bucket_room;
mod bucket_update;
mod bulk_load;
mod cells;
#[cfg(all(test, not(loom)))]
mod changing_rows;
mod chunks;
mod commit_log;
mod commit_record;
mod crowding;
mod error;
mod extents;
mod fold;
mod give_back;
mod growth;
mod heap;
mod iterate;
mod key;
mod layout;
mod load;
mod location;
mod lock;
mod lock_counts;
#[cfg(all(test, loom))]
mod loom_tests;
mod ordered_index;
mod owner;
mod partition;
mod prefetch;
mod read;
mod reservations;
pub mod rules;
mod scan;
mod scan_barrier;
mod shrinking;
mod sync;
mod table;
mod unlock;
mod validate;

pub use apply::Applied;
pub use arena::{Arena, Loading, Retired, prefetch_line};
pub use bucket::SLOTS_PER_MAIN_BUCKET;
pub use bucket_update::{
    BucketUpdate, BucketUpdateWriter, Half, Item, Items, Malformed, UNIT_ITEMS_MAX, UnitKind,
    padded,
};
pub use bulk_load::BulkLoaded;
pub use commit_log::{CommitLog, LogObserver, RecordPart, Stored};
pub use commit_record::{CommitRecord, CommitRecordWriter, RECORD_BYTES_MAX};
pub use error::StorageError;
pub use fold::{FoldedBucket, FoldedSpan};
pub use growth::{Reshaping, level_of};
pub use heap::HEAP_VALUE_BYTES_MAX;
pub use iterate::BucketSnapshot;
pub use key::{HashSeed, HashedKey, KEY_BYTES_MAX, Key};
pub use layout::{TableDefinition, TableKind, TableLayout, VALUE_BYTES_MAX};
pub use location::{Location, Partitioning};
pub use lock::{Lock, LockMode};
pub use ordered_index::{Counted, Direction};
pub use owner::{Owner, TransactionId};
pub use prefetch::SlotHint;
pub use read::Read;
pub use scan::{Scanned, ScannedRow};
pub use table::{BucketAddress, Table};
pub use unlock::Unlocked;
pub use validate::Validation;
