//! Transactions over replicated tables: coordinators, participants, placement, nodes and clusters.
//!
//! ```text
//! Cluster ── nodes of one process, one OS thread per worker number
//!   └─ Worker ── poll(): packets, coroutines, requests, submitted jobs
//!        ├─ Participant ── runs requests of coordinators: participant/{read,lock,...}.rs
//!        └─ Coordinator ── in each coroutine; Transaction: transaction/{execute,...}.rs
//! ```
//! *Source*: FaSST section 5. The commit rules C1 to C9 are named in the phase that keeps each.
//!
//! *Not here*: tables and locks (crate `storage`), packets and coroutines (crate `rpc`), nodes that come back.
#![forbid(unsafe_code)]

mod accept;
mod cancellation;
mod change;
mod change_message;
mod clients;
mod cluster;
mod cluster_state;
mod commit;
mod completion;
mod configuration;
mod control;
mod coordinator;
mod decider;
mod decision;
mod deferred;
mod driver;
pub mod faults;
mod host_memory;
mod hosted;
mod join;
mod kill;
mod link;
mod loader;
mod local_members;
mod log_limiter;
mod manager;
mod member;
mod members;
mod membership_change;
mod node;
mod observed;
mod outcome;
mod participant;
mod pending;
mod replica;
mod request;
mod rows;
pub mod rules;
mod scan_page;
pub mod simulation;
mod spawn;
mod starting;
mod statistics;
mod tables;
mod threads;
mod transaction;
mod view;
mod waiting;
mod worker;
mod worker_group;

pub use cancellation::CancellationToken;

pub use clients::{
    Client, ClientError, ClientOptions, Clients, Gateway, GatewayError, GatewayOptions,
    RemoteTransaction,
};
pub use cluster::{Cluster, ClusterError, ClusterOptions, OnFailure, WorkerId};
pub use completion::{Completion, Lost, block_on};
pub use configuration::{ChangeError, Configuration, MemberEntry, TableEntry};
pub use coordinator::Coordinator;
pub use deferred::{Deferred, Page, Savepoint, Seen};
pub use hosted::{Driver, ThreadHost};
pub use loader::Loader;
pub use log_limiter::{LogLimiter, Suppressed};
pub use members::{JoinError, Membership, RdmaPort, Transport};
pub use node::{Node, TableId};
pub use outcome::{Abort, Outcome};
pub use pending::{PendingConnection, PendingConnections, source};
pub use rows::{KeyValue, Rows};
pub use statistics::{NodeReport, NodeState, NodeStatus, Statistics};
pub use threads::Topology;
pub use transaction::{Change, KeyRange, RowId, Transaction};
pub use view::View;
pub use worker::{Job, Worker, WorkerParts};

/// Re-exported for embedding.
pub use gannet_rpc::{Clock, ClusterKey, ClusterKeyError, MonotonicClock};
/// Re-exported for embedding.
pub use gannet_storage::{
    Direction, HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Key, LockMode, LogObserver, StorageError,
};
