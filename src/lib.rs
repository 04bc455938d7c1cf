//! Gannet: a distributed in-memory OLTP engine, embedded.
#![forbid(unsafe_code)]

pub use gannet_engine::{
    Abort, Cluster, ClusterError, ClusterOptions, Completion, Coordinator, Loader, LockMode,
    LogObserver, Lost, Outcome, Place, RowId, TableId, Topology, Transaction,
};
