//! What has been made of the entries: the decisions in their order, folded into the owner's state.
//!
//! *Invariants*: a snapshot is the owner's state after all decisions up to a place in the log. The owner hears of each decision,
//! or of a snapshot that has it.
//!
//! *Not here*: where snapshots are kept, in `store`.

use std::io::Cursor;

use openraft::storage::{RaftStateMachine, Snapshot};
use openraft::{
    EmptyNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, SnapshotMeta,
    StoredMembership,
};

use crate::Types;
use crate::journal::Saved;
use crate::replica::{Event, OnEvent};
use crate::store::{Result, Storage};

/// What decisions come to. Equal decisions in equal order make equal states, at all nodes.
pub trait StateMachine: Send + Sync + 'static {
    /// Makes a decision that the log has taken in this term.
    fn apply(&mut self, term: u64, decision: &[u8]);

    /// The state as bytes.
    fn snapshot(&self) -> Vec<u8>;

    /// Takes the state of another, or of a process before this one.
    ///
    /// # Errors
    /// Why the bytes are no state; then the replica ends.
    fn install(&mut self, snapshot: &[u8]) -> std::result::Result<(), String>;
}

/// The decisions that were made.
pub(crate) struct Decisions {
    storage: Storage,
    state: Box<dyn StateMachine>,
    /// The last entry that was made.
    last: Option<LogId<u64>>,
    voters: StoredMembership<u64, EmptyNode>,
    on_event: OnEvent,
}

impl Decisions {
    /// Those in a state, which is that of the snapshot described.
    pub(crate) fn new(
        storage: Storage,
        state: Box<dyn StateMachine>,
        meta: SnapshotMeta<u64, EmptyNode>,
        on_event: OnEvent,
    ) -> Self {
        Self { storage, state, last: meta.last_log_id, voters: meta.last_membership, on_event }
    }
}

fn snapshot_of(Saved { meta, state }: Saved) -> Snapshot<Types> {
    Snapshot { meta, snapshot: Box::new(Cursor::new(state)) }
}

/// Stores a snapshot of one moment.
pub(crate) struct SnapshotBuilder {
    storage: Storage,
    saved: Saved,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        self.storage.save(self.saved.clone())?;
        Ok(snapshot_of(self.saved.clone()))
    }
}

impl RaftStateMachine<Types> for Decisions {
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, EmptyNode>)> {
        Ok((self.last, self.voters.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        for entry in entries {
            self.last = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(decision) => {
                    let term = entry.log_id.leader_id.term;
                    self.state.apply(term, &decision);
                    (self.on_event)(Event::Made { term, decision });
                }
                EntryPayload::Membership(voters) => {
                    self.voters = StoredMembership::new(Some(entry.log_id), voters);
                }
            }
            answers.push(());
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let (term, index) = self.last.map_or((0, 0), |last| (last.leader_id.term, last.index));
        let meta = SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.voters.clone(),
            snapshot_id: format!("{term}-{index}"),
        };
        let saved = Saved { meta, state: self.state.snapshot() };
        SnapshotBuilder { storage: self.storage.clone(), saved }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, EmptyNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let state = snapshot.into_inner();
        let installed = self.state.install(&state);
        let installed =
            installed.map_err(|reason| format!("the leader's snapshot cannot be read: {reason}"));
        self.storage.check(installed)?;
        self.storage.save(Saved { meta: meta.clone(), state: state.clone() })?;
        (self.last, self.voters) = (meta.last_log_id, meta.last_membership.clone());
        self.storage.tell_installed(meta, state);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        // That of the beginning is no snapshot to raft.
        let saved = self.storage.snapshot().filter(|saved| saved.meta.last_log_id.is_some());
        Ok(saved.map(snapshot_of))
    }
}
