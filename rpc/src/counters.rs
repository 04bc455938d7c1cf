//! Counters of an endpoint: what became of every packet that it received.
//!
//! *Invariant*: a counter only rises.

/// What an endpoint has seen; each counter only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received, whatever became of them.
    pub packets: u64,
    /// Requests run.
    pub requests: u64,
    /// Packets that were too short, of unknown kind, or malformed inside: dropped.
    pub malformed: u64,
    /// Packets whose checksum was wrong: dropped.
    pub corrupt: u64,
    /// Datagrams that another program or another version sent: dropped.
    pub foreign: u64,
    /// Datagrams without the cluster's key, or changed on their way: dropped.
    pub unauthentic: u64,
    /// Packets of another cluster: dropped.
    pub wrong_cluster: u64,
    /// Packets of another epoch: dropped.
    pub wrong_epoch: u64,
    /// Packets of or for another incarnation, node or worker: dropped.
    pub wrong_incarnation: u64,
    /// Requests run before: their response was sent again, or they were dropped as older.
    pub duplicates: u64,
    /// Responses that no coroutine waits for: dropped.
    pub late_responses: u64,
    /// Times a receiver requested the next fragments.
    pub continued: u64,
    /// Request packets sent again.
    pub retransmitted: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            requests: self.requests + other.requests,
            malformed: self.malformed + other.malformed,
            corrupt: self.corrupt + other.corrupt,
            foreign: self.foreign + other.foreign,
            unauthentic: self.unauthentic + other.unauthentic,
            wrong_cluster: self.wrong_cluster + other.wrong_cluster,
            wrong_epoch: self.wrong_epoch + other.wrong_epoch,
            wrong_incarnation: self.wrong_incarnation + other.wrong_incarnation,
            duplicates: self.duplicates + other.duplicates,
            late_responses: self.late_responses + other.late_responses,
            continued: self.continued + other.continued,
            retransmitted: self.retransmitted + other.retransmitted,
        }
    }
}
