//! The configuration manager's log: decisions about a cluster, replicated by raft among some of its nodes.
//!
//! ```text
//! Replica        one node's replica, on a thread of its own                     replica.rs
//!   ├─ Store     votes and entries, in memory; decisions are handed on in order  store.rs
//!   └─ Network   requests of raft, as bytes that the owner carries               network.rs
//! ```
//! A decision is bytes. It is *made* when a majority of the *voters* has it; then every node of the cluster gets it, in one order. Nodes
//! that do not vote are raft's learners. One voter, the *leader*, proposes decisions. All else is the owner's: what a decision means, who
//! proposes what, and how bytes reach another node.
//!
//! *Source*: Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm (ATC'14); the crate `openraft` implements it.
//!
//! *Invariants*: a replica is one incarnation of its node. Its votes are in memory, so a process that comes back must not take its
//! predecessor's number among the voters.
//!
//! *Not here*: decisions and what follows from them, in `engine`; disks.
#![forbid(unsafe_code)]

mod network;
mod replica;
mod store;

pub use replica::{Event, Options, Replica};

openraft::declare_raft_types!(
    /// The types that raft handles.
    pub(crate) Types:
        D = Vec<u8>,
        R = (),
        NodeId = u64,
        Node = openraft::EmptyNode,
        SnapshotData = std::io::Cursor<Vec<u8>>,
);
