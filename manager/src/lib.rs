//! The configuration manager's log: decisions about a cluster, replicated by raft among some of its nodes.
//!
//! ```text
//! Replica          one node's replica, on a thread of its own                  replica.rs
//!   │                or driven by its owner, in a simulation                   replica/driven.rs
//!   ├─ Decisions   what was made, folded into the owner's state                decisions.rs
//!   ├─ Storage     votes, entries and a snapshot, in memory                    store.rs
//!   │    └─ Journal   the same on a disk, if there is one                      journal.rs, frames.rs, disk.rs
//!   └─ Network     requests of raft, as bytes that the owner carries           network.rs
//! ```
//! A decision is bytes. It is *made* when a majority of the *voters* has it; then every node of the cluster gets it, in one order. Nodes
//! that do not vote are raft's learners. One voter, the *leader*, proposes decisions. All else is the owner's: what a decision means, who
//! proposes what, and how bytes reach another node.
//!
//! *Source*: Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm (ATC'14); the crate `openraft` implements it.
//!
//! *Invariants*: a replica goes on from what is in its directory. One without a directory is one incarnation of its node: its
//! votes are in memory, so a process that comes back must not take its predecessor's number among the voters.
//!
//! *Not here*: decisions and what follows from them, in `engine`.
#![forbid(unsafe_code)]

mod decisions;
mod disk;
#[cfg(test)]
mod fakes;
mod frames;
mod journal;
mod network;
mod replica;
pub mod rules;
mod store;

pub use decisions::StateMachine;
pub use disk::{Directory, DirectoryError};
pub use replica::driven::DrivenReplica;
pub use replica::{Event, Options, Replica, StartError};

openraft::declare_raft_types!(
    /// The types that raft handles.
    pub(crate) Types:
        D = Vec<u8>,
        R = (),
        NodeId = u64,
        Node = openraft::EmptyNode,
        SnapshotData = std::io::Cursor<Vec<u8>>,
);
