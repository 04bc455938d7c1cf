//! The journal: what raft wants to be remembered, as frames on a disk.
//!
//! ```text
//! log        frame of the header, a frame for each write
//!   header   "gannetml" | u32 format | name of the cluster, number of the node, incarnation of the process
//!   write    what was made by then | records: a vote, an entry, a truncation, a purge
//! snapshot   one frame: what it contains, and the owner's state after it
//! ```
//! Payloads but for the header's first fields are in postcard.
//!
//! *Invariants*: a directory has a log only if it has a snapshot, that of the beginning if no other. The log has what the
//! snapshot has not. The log is replaced when most of it is dead, so that its size follows from what it holds.
//!
//! *Not here*: files, in `disk`.

use std::collections::BTreeMap;
use std::io;

use openraft::{EmptyNode, Entry, LogId, SnapshotMeta, Vote};
use serde::{Deserialize, Serialize};

use crate::disk::{DirectoryError, Disk, Kind};
use crate::frames;
use crate::{ReplicaId, Types};

const MAGIC: [u8; 8] = *b"gannetml";
const FORMAT: u32 = 3;
/// A log of fewer bytes is not replaced.
pub(crate) const REPLACED_BYTES_MIN: usize = 16 << 10;

/// What is written in one piece, or one of several.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    Vote(Vote<u64>),
    Entry(Entry<Types>),
    /// Entries from this place on are gone.
    Truncate(u64),
    /// Entries up to this one are in a snapshot.
    Purge(LogId<u64>),
}

/// What raft wants to be remembered, but for the snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Log {
    pub(crate) vote: Option<Vote<u64>>,
    /// Is written with the next record: raft can do without.
    pub(crate) committed: Option<LogId<u64>>,
    pub(crate) purged: Option<LogId<u64>>,
    pub(crate) entries: BTreeMap<u64, Entry<Types>>,
}

impl Log {
    pub(crate) fn take(&mut self, record: Record) {
        match record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Entry(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Record::Truncate(from) => drop(self.entries.split_off(&from)),
            Record::Purge(last) => {
                self.entries = self.entries.split_off(&(last.index + 1));
                self.purged = Some(last);
            }
        }
    }

    /// Records that make it.
    fn records(&self) -> Vec<Record> {
        let vote = self.vote.map(Record::Vote);
        let purged = self.purged.map(Record::Purge);
        let entries = self.entries.values().cloned().map(Record::Entry);
        vote.into_iter().chain(purged).chain(entries).collect()
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Saved {
    pub(crate) meta: SnapshotMeta<u64, EmptyNode>,
    /// The owner's.
    pub(crate) state: Vec<u8>,
}

/// The replica that has the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) cluster: String,
    pub(crate) replica: ReplicaId,
}

/// A journal that is open.
pub(crate) struct Journal {
    disk: Box<dyn Disk>,
    header: Vec<u8>,
    log_bytes: usize,
    /// When the log has so many bytes, it may be worth to be replaced.
    log_bytes_max: usize,
}

/// What a journal had when it was opened.
pub(crate) struct Opened {
    pub(crate) journal: Journal,
    pub(crate) log: Log,
    /// None of a journal that is new.
    pub(crate) snapshot: Option<Saved>,
}

fn framed(value: &impl Serialize) -> io::Result<Vec<u8>> {
    frames::frame(&postcard::to_stdvec(value).map_err(io::Error::other)?)
}

fn header_of(owner: &Owner) -> io::Result<Vec<u8>> {
    let owner = postcard::to_stdvec(owner).map_err(io::Error::other)?;
    frames::frame(&[&MAGIC[..], &FORMAT.to_le_bytes(), &owner].concat())
}

/// The replica whose log it is. Refuses a log of another node.
fn replica_of(
    header: &[u8],
    (cluster, node): (&str, u16),
    path: String,
) -> Result<ReplicaId, DirectoryError> {
    let format = header.strip_prefix(&MAGIC).and_then(|rest| rest.split_first_chunk::<4>());
    let Some((format, rest)) = format else { return Err(DirectoryError::NoLog(path)) };
    let found = u32::from_le_bytes(*format);
    if found != FORMAT {
        return Err(DirectoryError::Format { path, found, known: FORMAT });
    }
    match postcard::from_bytes::<Owner>(rest) {
        Ok(found) if found.cluster == cluster && found.replica.node == node => Ok(found.replica),
        Ok(found) => Err(DirectoryError::Foreign {
            path,
            found_node: found.replica.node,
            found_cluster: found.cluster,
            node,
            cluster: cluster.to_owned(),
        }),
        Err(_) => Err(DirectoryError::Damaged { path, at: 0 }),
    }
}

/// The snapshot beside a log.
fn read_snapshot(disk: &mut dyn Disk, log: &Log) -> Result<Saved, DirectoryError> {
    let path = disk.path(Kind::Snapshot);
    let Some(bytes) = disk.read(Kind::Snapshot)? else {
        return Err(DirectoryError::Snapshot(path));
    };
    let payloads = frames::read(&bytes).map(|frames| frames.payloads).unwrap_or_default();
    let saved = match payloads[..] {
        [(_, payload)] => postcard::from_bytes::<Saved>(payload).ok(),
        _ => None,
    };
    match saved {
        Some(saved) if saved.meta.last_log_id >= log.purged => Ok(saved),
        Some(_) => Err(DirectoryError::Snapshot(path)),
        None => Err(DirectoryError::Damaged { path, at: 0 }),
    }
}

/// The replica of a node whose journal is on a disk, if there is one.
pub(crate) fn left_on(
    disk: &mut dyn Disk,
    owner: (&str, u16),
) -> Result<Option<ReplicaId>, DirectoryError> {
    let path = disk.path(Kind::Log);
    let Some(bytes) = disk.read(Kind::Log)? else { return Ok(None) };
    let frames = frames::read(&bytes);
    let frames = frames.map_err(|damaged| {
        let path = path.clone();
        DirectoryError::Damaged { path, at: damaged.at }
    })?;
    let Some((_, header)) = frames.payloads.first() else {
        return Err(DirectoryError::NoLog(path));
    };
    replica_of(header, owner, path).map(Some)
}

impl Journal {
    /// Opens the owner's journal, or makes one whose snapshot of the beginning is `first`.
    pub(crate) fn open(
        mut disk: Box<dyn Disk>,
        owner: &Owner,
        first: Vec<u8>,
    ) -> Result<Opened, DirectoryError> {
        let header = header_of(owner)?;
        let path = disk.path(Kind::Log);
        let Some(bytes) = disk.read(Kind::Log)? else {
            let saved = Saved { meta: SnapshotMeta::default(), state: first };
            disk.replace(Kind::Snapshot, &framed(&saved)?)?;
            disk.replace(Kind::Log, &header)?;
            let journal = Self::new(disk, header.clone(), header.len());
            return Ok(Opened { journal, log: Log::default(), snapshot: None });
        };
        let frames = frames::read(&bytes);
        let frames = frames.map_err(|damaged| {
            let path = path.clone();
            DirectoryError::Damaged { path, at: damaged.at }
        })?;
        let Some(((_, found), writes)) = frames.payloads.split_first() else {
            return Err(DirectoryError::NoLog(path));
        };
        let replica = replica_of(found, (&owner.cluster, owner.replica.node), path.clone())?;
        if replica != owner.replica {
            return Err(DirectoryError::Predecessor(path));
        }
        let mut log = Log::default();
        for (at, write) in writes {
            let write = postcard::from_bytes::<(Option<LogId<u64>>, Vec<Record>)>(write);
            let (committed, records) = write.map_err(|_| {
                let path = path.clone();
                DirectoryError::Damaged { path, at: *at }
            })?;
            records.into_iter().for_each(|record| log.take(record));
            log.committed = committed;
        }
        let log_bytes = frames.whole_bytes;
        if log_bytes < bytes.len() {
            let torn_bytes = bytes.len() - log_bytes;
            tracing::warn!("the last write to {path} was torn; its {torn_bytes} bytes are cut off");
            disk.replace(Kind::Log, &bytes[..log_bytes])?;
        }
        let snapshot = Some(read_snapshot(&mut *disk, &log)?);
        Ok(Opened { journal: Self::new(disk, header, log_bytes), log, snapshot })
    }

    fn new(disk: Box<dyn Disk>, header: Vec<u8>, log_bytes: usize) -> Self {
        let log_bytes_max = REPLACED_BYTES_MIN.max(2 * log_bytes);
        Self { disk, header, log_bytes, log_bytes_max }
    }

    /// What the snapshot's file is called.
    pub(crate) fn snapshot_path(&self) -> String {
        self.disk.path(Kind::Snapshot)
    }

    /// Writes records in one piece, and what was made by then.
    pub(crate) fn write(
        &mut self,
        committed: Option<LogId<u64>>,
        records: &[Record],
    ) -> io::Result<()> {
        let write = framed(&(committed, records))?;
        self.disk.append(&write)?;
        self.log_bytes += write.len();
        if records.iter().any(|record| matches!(record, Record::Purge(_))) {
            self.log_bytes_max = REPLACED_BYTES_MIN;
        }
        Ok(())
    }

    /// Replaces the log by one without what is dead, if that is most of it.
    pub(crate) fn clear(&mut self, log: &Log) -> io::Result<()> {
        if self.log_bytes < self.log_bytes_max {
            return Ok(());
        }
        let mut whole = self.header.clone();
        whole.extend(framed(&(log.committed, log.records()))?);
        if 2 * whole.len() < self.log_bytes {
            self.disk.replace(Kind::Log, &whole)?;
            self.log_bytes = whole.len();
        }
        self.log_bytes_max = REPLACED_BYTES_MIN.max(2 * self.log_bytes);
        Ok(())
    }

    /// Replaces the snapshot.
    pub(crate) fn save(&mut self, saved: &Saved) -> io::Result<()> {
        self.disk.replace(Kind::Snapshot, &framed(saved)?)
    }
}

#[cfg(test)]
mod tests;
