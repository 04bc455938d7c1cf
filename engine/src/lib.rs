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
//! *Not here*: tables and locks (crate `storage`), packets and coroutines (crate `rpc`).
#![forbid(unsafe_code)]

mod accept;
mod answer;
mod by_number;
mod cancellation;
mod change;
mod change_message;
mod change_steps;
mod clients;
mod cluster;
mod cluster_state;
mod commit;
mod completion;
mod configuration;
mod control;
mod coordinator;
mod copying;
mod dead_locks;
mod decider;
mod decision;
mod deferred;
mod draining;
mod driver;
pub mod faults;
mod fence;
mod fold;
mod giving_back;
mod growing;
mod healing;
mod holder;
mod host_memory;
mod hosted;
mod idle;
mod join;
mod key_range;
mod kill;
mod learning;
mod lease;
mod link;
mod loader;
mod local_members;
mod log_limiter;
mod manager;
mod member;
mod members;
mod membership_change;
mod membership_status;
mod newcomers;
mod node;
mod observed;
mod obstacle;
mod outcome;
mod participant;
mod pending;
mod placement;
mod replica;
mod request;
mod reserving;
mod row_key;
mod row_reservations;
mod rows;
pub mod rules;
mod scan_page;
mod shared_ranges;
mod silences;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
mod spawn;
mod starting;
mod statistics;
mod stopping;
mod table_id;
mod tables;
mod threads;
mod token;
mod tokens;
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
pub use commit::{Settled, Stage};
pub use completion::{Completion, Lost, block_on};
pub use configuration::{ChangeError, Configuration, MemberEntry, Phase, TableEntry};
pub use coordinator::Coordinator;
pub use deferred::{Deferred, NewRows, Page, Savepoint, Seen};
pub use fold::{FoldProgram, FoldPrograms, FoldRest, ReadFoldProgram};
pub use hosted::{Driver, ThreadHost};
pub use key_range::KeyRange;
pub use lease::LeaseLeft;
pub use loader::Loader;
pub use log_limiter::{LogLimiter, Suppressed};
pub use members::{
    ClusterTerms, Invitation, JoinError, Membership, OverrideError, RdmaPort, Transport,
    ask_members,
};
pub use membership_status::{Drained, Losses, MembershipStatus, Unhealthy};
pub use node::Node;
pub use obstacle::{Obstacle, SilentNode};
pub use outcome::{Abort, Conflict, Failure, Misuse, Outcome, RowProblem};
pub use pending::{PendingConnection, PendingConnections, source};
pub use reserving::{Reservations, WaitEnded};
pub use row_key::{KeyStart, RowKey};
pub use rows::{KeyValue, Rows};
pub use statistics::{ChangeCounts, LessonReport, NodeReport, NodeState, NodeStatus, Statistics};
pub use stopping::OnlyCopies;
pub use table_id::{TableId, TableKey};
pub use threads::Topology;
pub use token::{Once, TOKEN_RESULT_BYTES_MAX, Token, TokenError, TokenOutcome, TokenRefusal};
pub use tokens::Tokens;
pub use transaction::load::BulkLoad;
pub use transaction::{Change, RowId, Transaction};
pub use view::View;
pub use worker::{Job, Worker, WorkerParts};

/// Re-exported for embedding.
pub use gannet_rpc::{Clock, ClusterKey, ClusterKeyError, MonotonicClock};
/// Re-exported for embedding.
pub use gannet_storage::{
    Direction, HEAP_VALUE_BYTES_MAX, KEY_BYTES_MAX, Key, LockMode, LogObserver, StorageError,
};
