//! What a replica stores: its vote, its entries, and the decisions that were made.
//!
//! *Invariants*: entries lie without gaps. A snapshot is all decisions in their order, so one that is installed hands on those that are
//! new.
//!
//! *Not here*: disks. A replica that ends has forgotten everything, and must not come back as the same one.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, Cursor};
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend,
    RaftLogReader, RaftSnapshotBuilder, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership, Vote,
};
use serde::{Deserialize, Serialize};

use crate::Types;

type Result<T> = std::result::Result<T, StorageError<u64>>;

#[derive(Default)]
struct Log {
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
    purged: Option<LogId<u64>>,
    entries: BTreeMap<u64, Entry<Types>>,
}

/// Votes and entries.
#[derive(Clone, Default)]
pub(crate) struct LogStore(Arc<Mutex<Log>>);

impl LogStore {
    fn lock(&self) -> MutexGuard<'_, Log> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>> {
        Ok(self.lock().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let log = self.lock();
        let last = log.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last.or(log.purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        self.lock().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(self.lock().vote)
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<()> {
        self.lock().committed = committed;
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>> {
        Ok(self.lock().committed)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        self.lock().entries.extend(entries);
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<()> {
        self.lock().entries.split_off(&log_id.index);
        Ok(())
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<()> {
        let mut log = self.lock();
        log.entries = log.entries.split_off(&(log_id.index + 1));
        log.purged = Some(log_id);
        Ok(())
    }
}

/// What has been made of the entries.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Made {
    last: Option<LogId<u64>>,
    voters: StoredMembership<u64, EmptyNode>,
    /// With their terms.
    decisions: Vec<(u64, Vec<u8>)>,
}

/// Gets each decision when it is made, and the term in which the log has taken it.
pub(crate) type OnDecision = Box<dyn FnMut(u64, &[u8]) + Send + Sync>;

/// The decisions that were made.
pub(crate) struct Decisions {
    made: Made,
    on_decision: OnDecision,
    snapshot: Option<Snapshot<Types>>,
}

impl Decisions {
    pub(crate) fn new(on_decision: OnDecision) -> Self {
        Self { made: Made::default(), on_decision, snapshot: None }
    }
}

/// Makes a snapshot of the decisions at one moment.
pub(crate) struct SnapshotBuilder(Made);

fn snapshot_error(error: postcard::Error) -> StorageError<u64> {
    let error = AnyError::from(&io::Error::other(error));
    StorageIOError::new(ErrorSubject::Snapshot(None), ErrorVerb::Read, error).into()
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let Self(made) = self;
        let bytes = postcard::to_stdvec(made).map_err(snapshot_error)?;
        let index = made.last.map_or(0, |last| last.index);
        let meta = SnapshotMeta {
            last_log_id: made.last,
            last_membership: made.voters.clone(),
            snapshot_id: format!("{index}-{}", made.decisions.len()),
        };
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

impl RaftStateMachine<Types> for Decisions {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, EmptyNode>)> {
        Ok((self.made.last, self.made.voters.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        for entry in entries {
            self.made.last = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(decision) => {
                    let term = entry.log_id.leader_id.term;
                    (self.on_decision)(term, &decision);
                    self.made.decisions.push((term, decision));
                }
                EntryPayload::Membership(voters) => {
                    self.made.voters = StoredMembership::new(Some(entry.log_id), voters);
                }
            }
            answers.push(());
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder(self.made.clone())
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, EmptyNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let Made { decisions, .. } =
            postcard::from_bytes(snapshot.get_ref()).map_err(snapshot_error)?;
        let known = self.made.decisions.len();
        let new = decisions.iter().skip(known);
        new.for_each(|(term, decision)| (self.on_decision)(*term, decision));
        let (last, voters) = (meta.last_log_id, meta.last_membership.clone());
        self.made = Made { last, voters, decisions };
        self.snapshot = Some(Snapshot { meta: meta.clone(), snapshot });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        if self.snapshot.is_none() && self.made.last.is_some() {
            self.snapshot = Some(SnapshotBuilder(self.made.clone()).build_snapshot().await?);
        }
        Ok(self.snapshot.clone())
    }
}

#[cfg(test)]
mod tests {
    use openraft::testing::{StoreBuilder, Suite};

    use super::*;

    struct Builder;

    impl StoreBuilder<Types, LogStore, Decisions> for Builder {
        async fn build(&self) -> Result<((), LogStore, Decisions)> {
            Ok(((), LogStore::default(), Decisions::new(Box::new(|_, _| {}))))
        }
    }

    #[test]
    fn the_store_passes_the_tests_of_openraft() {
        Suite::test_all(Builder).expect("the tests of openraft pass");
    }
}
