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
//! votes are in memory, so a process that comes back is another replica than its predecessor ([`ReplicaId`]), and hears nothing that is
//! for that one.
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
pub use replica::{Event, LogMembers, Options, Replica, StartError};

/// A replica: one incarnation of a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ReplicaId {
    /// The node.
    pub node: u16,
    /// Which of its processes.
    pub incarnation: u32,
}

impl ReplicaId {
    /// Its number in the log.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.incarnation) << 16 | u64::from(self.node)
    }

    /// The replica with a number in the log.
    #[expect(clippy::cast_possible_truncation, reason = "the number has 48 bits")]
    pub(crate) fn of(number: u64) -> Self {
        Self { node: number as u16, incarnation: (number >> 16) as u32 }
    }
}

/// The last place of a replica's log. A log has all decisions that were made when it was the one with the last end of a majority.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct LogEnd {
    /// The term in which the log took what is there.
    pub term: u64,
    /// The place, from 1; 0 if the log is empty.
    pub index: u64,
}

openraft::declare_raft_types!(
    /// The types that raft handles.
    pub(crate) Types:
        D = Vec<u8>,
        R = (),
        NodeId = u64,
        Node = openraft::EmptyNode,
        SnapshotData = std::io::Cursor<Vec<u8>>,
);
