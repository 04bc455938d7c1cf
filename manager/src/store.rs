//! What a replica stores for raft: its vote, its entries and its last snapshot, in memory and, with a disk, in the journal.
//!
//! ```text
//! raft ──▶ LogStore ──┬─▶ Storage ─┬─▶ Log       what readers see
//!          Decisions ─┘            └─▶ Journal   what outlives the process
//! ```
//! *Invariants*: what is written is on the disk before raft hears that it is. The owner hears of a decision that the log takes
//! before raft does, and of one that leaves the log again. The first error ends the storage: a disk that has failed once may have
//! lost what it was given before, and is not asked again.
//!
//! *Not here*: what has been made of the entries, in `decisions`.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, CommittedLeaderId, EmptyNode, Entry, EntryPayload, LogId, Membership, OptionalSend,
    RaftLogReader, SnapshotMeta, StorageError, StorageIOError, Vote,
};

use crate::decisions::{Decisions, StateMachine};
use crate::disk::{DirectoryError, Disk};
use crate::journal::{Journal, Log, Opened, Owner, Record, Saved};
use crate::replica::{Event, OnEvent, nodes_of};
use crate::{LogEnd, ReplicaId, Types};

pub(crate) type Result<T> = std::result::Result<T, StorageError<u64>>;

/// An error of the storage, as raft has it.
fn storage_error(error: &io::Error) -> StorageError<u64> {
    StorageIOError::write(AnyError::new(error)).into()
}

struct Kept {
    log: Log,
    snapshot: Option<Saved>,
    journal: Option<Journal>,
    /// Why there is no storage any more.
    failure: Option<String>,
}

/// All that is stored.
#[derive(Clone)]
pub(crate) struct Storage {
    own: ReplicaId,
    kept: Arc<Mutex<Kept>>,
    log_ends: LogEnds,
    on_event: OnEvent,
}

#[expect(clippy::result_large_err, reason = "the errors of the traits of openraft are as large")]
impl Storage {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something that ends the storage if it fails; the owner hears of that.
    fn attempt(&self, act: impl FnOnce(&mut Kept) -> io::Result<()>) -> io::Result<()> {
        let error = {
            let mut kept = self.lock();
            if let Some(reason) = &kept.failure {
                return Err(io::Error::other(reason.clone()));
            }
            let Err(error) = act(&mut kept) else {
                self.log_ends.set(&kept);
                return Ok(());
            };
            kept.failure = Some(error.to_string());
            error
        };
        (self.on_event)(Event::Failed { reason: error.to_string() });
        Err(error)
    }

    /// Ends the storage if something that is not stored has failed.
    pub(crate) fn check(&self, done: std::result::Result<(), String>) -> Result<()> {
        let checked = self.attempt(|_| done.map_err(io::Error::other));
        checked.map_err(|error| storage_error(&error))
    }

    fn write(&self, records: Vec<Record>) -> Result<()> {
        let written = self.attempt(|Kept { log, journal, .. }| {
            if let Some(journal) = journal {
                journal.write(log.committed, &records)?;
            }
            records.into_iter().for_each(|record| log.take(record));
            journal.as_mut().map_or(Ok(()), |journal| journal.clear(log))
        });
        written.map_err(|error| storage_error(&error))
    }

    /// Stores a snapshot, if there is no later one.
    pub(crate) fn save(&self, saved: Saved) -> Result<()> {
        let stored = self.attempt(|Kept { snapshot, journal, .. }| {
            let last = |saved: &Saved| saved.meta.last_log_id;
            if snapshot.as_ref().is_some_and(|present| last(present) >= last(&saved)) {
                return Ok(());
            }
            if let Some(journal) = journal {
                journal.save(&saved)?;
            }
            *snapshot = Some(saved);
            Ok(())
        });
        stored.map_err(|error| storage_error(&error))
    }

    /// The last snapshot.
    pub(crate) fn snapshot(&self) -> Option<Saved> {
        self.lock().snapshot.clone()
    }

    /// What tells the last place of the log, also when its replica has ended.
    pub(crate) fn log_ends(&self) -> LogEnds {
        self.log_ends.clone()
    }

    /// The log takes an entry by which its own replica alone votes, and these hear decisions, in a term of its own.
    pub(crate) fn take_over(&self, all: &BTreeSet<ReplicaId>) -> io::Result<()> {
        let LogEnd { term, index } = self.log_ends.last();
        let voted = self.lock().log.vote.map_or(0, |vote| vote.leader_id.term);
        let (term, own) = (term.max(voted) + 1, self.own.number());
        let members = all.iter().map(|replica| replica.number()).chain([own]);
        let members = Membership::new(vec![[own].into()], members.collect::<BTreeSet<_>>());
        let log_id = LogId::new(CommittedLeaderId::new(term, own), index + 1);
        let entry = Entry { log_id, payload: EntryPayload::Membership(members) };
        let records = vec![Record::Vote(Vote::new(term, own)), Record::Entry(entry)];
        self.write(records).map_err(io::Error::other)
    }

    /// Tells the owner what was stored by a process before this one.
    pub(crate) fn tell_stored(&self) {
        let (snapshot, entries) = {
            let kept = self.lock();
            (kept.snapshot.clone(), kept.log.entries.values().cloned().collect::<Vec<_>>())
        };
        if let Some(Saved { meta, state }) = snapshot {
            self.tell_installed(&meta, state);
        }
        entries.iter().for_each(|entry| self.tell_appended(entry));
    }

    /// Tells the owner of the decision, or of the voters, in an entry.
    fn tell_appended(&self, entry: &Entry<Types>) {
        let index = entry.log_id.index;
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(decision) => {
                let (term, decision) = (entry.log_id.leader_id.term, decision.clone());
                (self.on_event)(Event::Appended { index, term, decision });
            }
            EntryPayload::Membership(members) => self.tell_voting(index, members),
        }
    }

    /// Tells the owner of a snapshot, and who votes according to it.
    pub(crate) fn tell_installed(&self, meta: &SnapshotMeta<u64, EmptyNode>, snapshot: Vec<u8>) {
        let index = meta.last_log_id.map_or(0, |last| last.index);
        (self.on_event)(Event::Installed { index, snapshot });
        if let Some(at) = meta.last_membership.log_id() {
            self.tell_voting(at.index, meta.last_membership.membership());
        }
    }

    fn tell_voting(&self, index: u64, members: &Membership<u64, EmptyNode>) {
        let sets = members.get_joint_config().iter();
        let sets = sets.map(|set| nodes_of(self.own, set)).collect();
        (self.on_event)(Event::Voting { index, sets });
    }
}

/// Tells the last place of a log that is stored, without a wait for the disk.
#[derive(Clone, Default)]
pub(crate) struct LogEnds(Arc<Mutex<LogEnd>>);

impl LogEnds {
    /// The last place.
    pub(crate) fn last(&self) -> LogEnd {
        // Nothing panics while it is held.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, kept: &Kept) {
        let saved = kept.snapshot.as_ref().and_then(|saved| saved.meta.last_log_id);
        let last = kept.log.entries.values().next_back().map(|entry| entry.log_id);
        let last = last.or(kept.log.purged).max(saved);
        let end = last.map(|last| LogEnd { term: last.leader_id.term, index: last.index });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = end.unwrap_or_default();
    }
}

/// Opens what a replica of a cluster stores, on a disk or in memory alone; `state` goes on from the snapshot.
pub(crate) fn open(
    disk: Option<Box<dyn Disk>>,
    cluster: &str,
    own: ReplicaId,
    mut state: Box<dyn StateMachine>,
    on_event: &OnEvent,
) -> std::result::Result<(LogStore, Decisions), DirectoryError> {
    let (mut journal, mut log, mut snapshot) = (None, Log::default(), None);
    if let Some(disk) = disk {
        let owner = Owner { cluster: cluster.to_owned(), replica: own };
        let opened = Journal::open(disk, &owner, state.snapshot())?;
        let Opened { journal: present, log: stored, snapshot: saved } = opened;
        if let Some(saved) = &saved {
            state.install(&saved.state).map_err(|reason| {
                let path = present.snapshot_path();
                DirectoryError::State { path, reason }
            })?;
        }
        (journal, log, snapshot) = (Some(present), stored, saved);
    }
    if let Some(vote) = &mut log.vote
        && vote.leader_id.voted_for == Some(own.number())
    {
        // Raft would have it lead on in its old term, whose numbers the process before has used. It may be elected again.
        vote.committed = false;
    }
    let meta = snapshot.as_ref().map(|saved| saved.meta.clone()).unwrap_or_default();
    let kept = Kept { log, snapshot, journal, failure: None };
    let log_ends = LogEnds::default();
    log_ends.set(&kept);
    let kept = Arc::new(Mutex::new(kept));
    let storage = Storage { own, kept, log_ends, on_event: Arc::clone(on_event) };
    let decisions = Decisions::new(storage.clone(), state, meta, Arc::clone(on_event));
    Ok((LogStore(storage), decisions))
}

/// Votes and entries.
#[derive(Clone)]
pub(crate) struct LogStore(Storage);

impl LogStore {
    /// All that is stored.
    pub(crate) fn storage(&self) -> &Storage {
        &self.0
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>> {
        Ok(self.0.lock().log.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let kept = self.0.lock();
        let last = kept.log.entries.values().next_back().map(|entry| entry.log_id);
        let purged = kept.log.purged;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.0.write(vec![Record::Vote(*vote)])
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.0.lock().log.vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<()> {
        self.0.lock().log.committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>> {
        Ok(self.0.lock().log.committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        entries.iter().for_each(|entry| self.0.tell_appended(entry));
        self.0.write(entries.into_iter().map(Record::Entry).collect())?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<()> {
        self.0.write(vec![Record::Truncate(log_id.index)])?;
        (self.0.on_event)(Event::Truncated { from: log_id.index });
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<()> {
        self.0.write(vec![Record::Purge(log_id)])
    }
}

#[cfg(test)]
mod tests;
