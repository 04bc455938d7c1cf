//! The errors of storage. Each variant of an open, a table or a load says which caller reacts, and each message says what
//! to do.
//!
//! *Invariants*: an operation that failed has changed nothing, but for a load that ends with `MembersChanged`. `NoRoom`
//! refuses a change of the configuration. Sizes are in bytes.
//!
//! *Not here*: outcomes of operations on rows, such as a lock that is held; those are enums beside the operations.

/// An operation on storage that failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// Reacted to by the caller that opens a node: the operating system refused the arena.
    #[error(
        "the operating system refused {bytes} bytes of address space for a node's tables: {source}; \
         lower the memory limit or raise `ulimit -v`"
    )]
    Map {
        /// Size requested.
        bytes: usize,
        /// The operating system's answer.
        source: std::io::Error,
    },
    /// Reacted to by the caller that creates a table: its main buckets do not fit.
    #[error(
        "table {table} needs {needed} bytes for its main buckets and {free} of the node's {limit} \
         are free for it; raise the memory limit of every node or lower the expected rows"
    )]
    OutOfMemory {
        /// The table's name.
        table: String,
        /// Bytes that its main buckets take on this node.
        needed: usize,
        /// Bytes that are free.
        free: usize,
        /// The node's memory limit in bytes.
        limit: usize,
    },
    /// Reacted to by the caller that creates a table.
    #[error("table {table}: values of {bytes} bytes are not possible; use 1 to {max} bytes")]
    ValueBytes {
        /// The table's name.
        table: String,
        /// Size requested.
        bytes: usize,
        /// Largest possible size.
        max: usize,
    },
    /// Reacted to by the caller that creates a table.
    #[error("table {table}: {rows} expected rows are not possible; use at most {max}")]
    Rows {
        /// The table's name.
        table: String,
        /// Rows requested.
        rows: u64,
        /// Largest possible number.
        max: u64,
    },
    /// Reacted to by the caller that loads rows: no slot is left and the share of the row's partition is used up.
    #[error(
        "table {table} is full: a partition has used its share of the node's memory limit of {limit} \
         bytes, or of a smaller limit of another node that holds it; raise the limits"
    )]
    Full {
        /// The table's name.
        table: String,
        /// The node's memory limit in bytes.
        limit: usize,
    },
    /// Reacted to by the caller that loads rows: the value does not have the table's size.
    #[error(
        "table {table} has values of {expected} bytes and was given {found}; pad or cut the value"
    )]
    RowBytes {
        /// The table's name.
        table: String,
        /// The table's value size.
        expected: usize,
        /// The size given.
        found: usize,
    },
    /// Reacted to by the caller that loads rows: the value is longer than any of a heap table.
    #[error(
        "table {table} has values of at most {max} bytes and was given {found}; split the value"
    )]
    LongValue {
        /// The table's name.
        table: String,
        /// The size given.
        found: usize,
        /// Largest possible size.
        max: usize,
    },
    /// Reacted to by the caller that loads rows: a number for a heap table, or bytes for a fixed one, or no or too many
    /// bytes.
    #[error("table {table} has {expected} as keys and was given {found}; use such a key")]
    KeyKind {
        /// The table's name.
        table: String,
        /// What its keys are.
        expected: &'static str,
        /// The key given.
        found: String,
    },
    /// Reacted to by the caller that loads rows: the key is there already.
    #[error("table {table} already holds key {key}; load each key once")]
    Exists {
        /// The table's name.
        table: String,
        /// The key.
        key: String,
    },
    /// Reacted to by the caller that loads rows: no node has a copy of the row's partition.
    #[error(
        "partition {partition} is lost: all nodes that had a copy have ended; start the cluster again and load all rows"
    )]
    Lost {
        /// The partition.
        partition: u16,
    },
    /// Reacted to by the caller that loads rows: some of them may be missing at some nodes.
    #[error(
        "copies of rows were lost or made again while rows were loaded, and the load has failed as a whole; wait until all copies are there, \
         drop the table, create it, and load all rows again"
    )]
    MembersChanged,
    /// A node that takes one more partition leaves too little to those that it has.
    #[error(
        "partition {partition} has {used} bytes, and would have room for {share} if its nodes took more partitions; \
         give the nodes more memory"
    )]
    NoRoom {
        /// The partition.
        partition: u16,
        /// Its bytes.
        used: usize,
        /// What it would have room for.
        share: usize,
    },
}
