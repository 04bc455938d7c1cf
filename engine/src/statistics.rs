//! Statistics of workers and nodes. A worker publishes its numbers now and then; other threads and other nodes read them.
//!
//! *Invariants*: a worker's numbers lie on cache lines that no other worker writes, and only rise. Each number stands for
//! itself, and all count from the start of the node. The times without service of the last 1,024 hand-overs are kept, the
//! latest first. A report is a message between members: a change of its fields is one of the protocol.
//!
//! *Not here*: when members report, in `members`; counts of packets, in crate `rpc`; metrics and SQL that show the
//! numbers, in `frontend`.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gannet_manager::LogEnd;
use gannet_rpc::Counters;
use serde::{Deserialize, Serialize};

/// How many numbers [`Statistics`] has.
const NUMBERS: usize = 8;

/// What workers have done since they started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Transactions that committed, those of single statements and of retries included.
    pub committed: u64,
    /// Transactions that met a conflict or had no room.
    pub aborted: u64,
    /// Requests run for other nodes' coordinators and for own ones.
    pub requests: u64,
    /// Packets received.
    pub packets: u64,
    /// Packets of requests that were sent again.
    pub retransmitted: u64,
    /// Packets received twice.
    pub duplicates: u64,
    /// Packets that found no room to be sent.
    pub unsent: u64,
    /// Packets that were not for this node as it is: of strangers, damaged, or of another time.
    pub refused: u64,
}

impl Statistics {
    pub(crate) fn new(committed: u64, aborted: u64, unsent: u64, counters: &Counters) -> Self {
        let strange = counters.malformed + counters.corrupt + counters.foreign;
        let of_others = counters.wrong_cluster + counters.wrong_epoch + counters.wrong_incarnation;
        Self {
            committed,
            aborted,
            requests: counters.requests,
            packets: counters.packets,
            retransmitted: counters.retransmitted,
            duplicates: counters.duplicates + counters.late_responses,
            unsent,
            refused: strange + counters.unauthentic + of_others,
        }
    }

    /// Each number with its name and what it counts.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); NUMBERS] {
        [
            ("committed", "Transactions that committed.", self.committed),
            ("aborted", "Transactions that met a conflict or had no room.", self.aborted),
            (
                "requests",
                "Requests run for coordinators; what they read and lock of their own node themselves is none.",
                self.requests,
            ),
            ("packets", "Packets received.", self.packets),
            ("retransmitted", "Packets of requests that were sent again.", self.retransmitted),
            ("duplicates", "Packets received twice.", self.duplicates),
            ("unsent", "Packets that found no room to be sent.", self.unsent),
            ("refused", "Packets of strangers, damaged, or of another time.", self.refused),
        ]
    }

    fn from_numbers(numbers: [u64; NUMBERS]) -> Self {
        let [committed, aborted, requests, packets, retransmitted, duplicates, unsent, refused] =
            numbers;
        Self { committed, aborted, requests, packets, retransmitted, duplicates, unsent, refused }
    }
}

impl Add for Statistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (own, others) = (self.named(), other.named());
        Self::from_numbers(std::array::from_fn(|index| own[index].2 + others[index].2))
    }
}

/// The numbers that one worker has published.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct PublishedStatistics([AtomicU64; NUMBERS]);

impl PublishedStatistics {
    // Relaxed: each number stands for itself.
    pub(crate) fn write(&self, statistics: &Statistics) {
        for (word, (_, _, number)) in self.0.iter().zip(statistics.named()) {
            word.store(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Statistics {
        Statistics::from_numbers(std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed)))
    }
}

/// What changes of the membership have done at a node since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeCounts {
    /// Epochs that have begun after the first one.
    pub epochs: u64,
    /// Transactions of its clients that were under way when an epoch ended, and that the flush has found to be committed.
    pub flushed_committed: u64,
    /// The same of those that it has found to be aborted. Programs run most of them again.
    pub flushed_aborted: u64,
    /// Partitions of which it was primary, and that it has handed over to other primaries.
    pub handed_over: u64,
    /// Bytes of rows that it has copied, as it was filled with partitions.
    pub copied_bytes: u64,
    /// Copies of partitions of a table that it has given up to other nodes.
    pub copies_given_up: u64,
}

/// What a node has of a partition that nodes are being filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LessonReport {
    /// The partition.
    pub partition: u16,
    /// How many nodes are being filled with the partition.
    pub learners: u16,
    /// Whether the node is one of them; else it is the primary.
    pub learns: bool,
    /// Bytes that it has of the partition.
    pub bytes: u64,
}

/// The counts of a node, which its workers add to.
#[derive(Debug, Default)]
pub(crate) struct ChangeCounters {
    epochs: AtomicU64,
    flushed_committed: AtomicU64,
    flushed_aborted: AtomicU64,
    handed_over: AtomicU64,
    /// For how long nobody was served at the last hand-overs.
    unserved: Mutex<VecDeque<Duration>>,
}

/// Hand-overs whose times are kept.
const HAND_OVERS_KEPT: usize = 1_024;

impl ChangeCounters {
    // Relaxed: each number stands for itself.
    pub(crate) fn count_epoch(&self) {
        self.epochs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts transactions that a flush has settled.
    pub(crate) fn count_flushed(&self, committed: u64, aborted: u64) {
        self.flushed_committed.fetch_add(committed, Ordering::Relaxed);
        self.flushed_aborted.fetch_add(aborted, Ordering::Relaxed);
    }

    /// Counts partitions whose primary the node was, and is no more.
    pub(crate) fn count_handed_over(&self, partitions: u64) {
        self.handed_over.fetch_add(partitions, Ordering::Relaxed);
    }

    /// Counts a hand-over, and keeps for how long nobody was served.
    pub(crate) fn count_hand_over(&self, time: Duration) {
        let mut unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        unserved.truncate(HAND_OVERS_KEPT - 1);
        unserved.push_front(time);
    }

    /// For how long nobody was served at the last hand-overs, the latest first.
    pub(crate) fn unserved(&self) -> Vec<Duration> {
        let unserved = self.unserved.lock().unwrap_or_else(PoisonError::into_inner);
        unserved.iter().copied().collect()
    }

    pub(crate) fn read(&self) -> ChangeCounts {
        ChangeCounts {
            epochs: self.epochs.load(Ordering::Relaxed),
            flushed_committed: self.flushed_committed.load(Ordering::Relaxed),
            flushed_aborted: self.flushed_aborted.load(Ordering::Relaxed),
            handed_over: self.handed_over.load(Ordering::Relaxed),
            ..ChangeCounts::default()
        }
    }
}

/// What a node tells of its part in the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerReport {
    /// The last place of its log.
    pub log_end: LogEnd,
    /// The members that it hears.
    pub hears: BTreeSet<u16>,
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Of all its workers together.
    pub statistics: Statistics,
    /// Bytes of table memory in use.
    pub memory_bytes: u64,
    /// Bytes of these in main buckets, which tables have from the start, whether rows have come to them or not.
    pub memory_reserved_bytes: u64,
    /// Bytes of table memory that it may use.
    pub memory_limit_bytes: u64,
    /// Updates that a copy could not apply because an earlier one is missing: 0, or there is a bug.
    pub gaps: u64,
    /// For how long it holds its lease still, in milliseconds: 0 if it does not; none if it needs no lease.
    pub lease_ms: Option<u64>,
    /// What changes of the membership have done there.
    pub changes: ChangeCounts,
    /// The partitions that nodes are being filled with, and that it is primary of or is being filled with.
    pub lessons: Vec<LessonReport>,
    /// Its part in the manager, if it has one.
    pub manager: Option<ManagerReport>,
}

/// How a node is, as this process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It is in this process, or says every second how it is.
    Up,
    /// It is connected, and has said nothing for so many seconds.
    Silent(u64),
    /// Its process has ended, or the connection to it.
    Gone,
}

/// A node of a cluster, as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its number.
    pub node: usize,
    /// Where it is, if the nodes are processes.
    pub address: Option<std::net::SocketAddr>,
    /// How it is.
    pub state: NodeState,
    /// What it last said; nothing has been heard yet if it is missing.
    pub report: Option<NodeReport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let counters =
            Counters { requests: 3, packets: 4, corrupt: 5, foreign: 6, ..Counters::default() };
        let statistics = Statistics::new(1, 2, 7, &counters);
        assert_eq!(statistics.refused, 11);
        let published = PublishedStatistics::default();
        published.write(&statistics);
        assert_eq!(published.read(), statistics);
        assert_eq!((statistics + statistics).packets, 8);
        assert_eq!(statistics.named().map(|(.., number)| number), [1, 2, 3, 4, 0, 0, 7, 11]);
    }
}
