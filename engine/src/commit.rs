//! How far the commits of a coroutine have come, as the coroutine and its worker see them.
//!
//! ```text
//! Executing ─ Validating │ Logging │ Logged ─ PrimariesSent ─ Settled
//!  no log replica has    │ some    │ all log replicas have
//!     the record         │ may     │      the record
//! halted: Aborted        │ Unknown │ Committed
//! flushed: Committed if a member that is left has the record, else Aborted
//! ```
//! The PRIMARYs of transaction n travel with the first requests of n + 1. Until they are answered the coroutine has two commits:
//! n is decided, n + 1 is open, and the log slots of the coroutine hold the record of n.
//!
//! *Source*: `docs/protocol.md`, rules C3, C4, C6 and C8, and "Membership change".
//!
//! *Invariants*: a commit is known by the id of its transaction; the record that lies in a slot says nothing about the open one. A
//! commit is open at most once, and decided before the next one begins to log.
//!
//! *Not here*: the record and its units, which the transaction builds (`transaction/log.rs`); the piggybacked PRIMARYs, which lie in the
//! coroutine's batch (`transaction/primary.rs`), as they travel with whatever it sends next.

use std::cell::Cell;
use std::collections::BTreeSet;

use gannet_rules::rule;
use gannet_storage::TransactionId;

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Settled {
    /// All log replicas have its record, or it had nothing to log.
    Committed,
    /// No log replica has its record.
    Aborted,
    /// Some log replicas may have its record.
    Unknown,
}

/// How far a commit has come, as far as its coroutine can be suspended there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It reads and locks; its code runs.
    Executing,
    /// Its code has ended, and what it has read is validated.
    Validating,
    /// Its first LOG may have been sent, or stored at the own node.
    Logging,
    /// All log replicas have its record; its backups and primaries are to apply it.
    Logged,
    /// All backups have applied it. Its PRIMARYs have left, or leave with the coroutine's next requests.
    PrimariesSent,
    /// It has ended, and all primaries have applied it if it is committed.
    Settled(Settled),
}

impl Stage {
    /// Whether its coroutine may take it for committed.
    #[inline(always)]
    pub(crate) fn is_committed(self) -> bool {
        matches!(self, Self::PrimariesSent | Self::Settled(Settled::Committed))
    }

    /// What becomes of a commit if nothing more is sent for it: rules C3 and C4.
    fn when_halted(self) -> Settled {
        match self {
            Self::Executing | Self::Validating => Settled::Aborted,
            Self::Logging => Settled::Unknown,
            Self::Logged | Self::PrimariesSent => Settled::Committed,
            Self::Settled(settled) => settled,
        }
    }
}

/// A transaction and how far its commit has come.
pub(crate) struct Commit {
    id: Cell<TransactionId>,
    stage: Cell<Stage>,
}

impl Commit {
    #[inline(always)]
    pub(crate) fn id(&self) -> TransactionId {
        self.id.get()
    }

    #[inline(always)]
    pub(crate) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// It has come to a further stage.
    #[inline(always)]
    pub(crate) fn reach(&self, stage: Stage) {
        self.stage.set(stage);
    }
}

/// The commits of a coroutine.
pub(crate) struct Commits {
    /// The last one that has begun.
    pub(crate) open: Commit,
    /// The one whose PRIMARYs are under way; settled if there are none.
    pub(crate) decided: Commit,
}

impl Commits {
    /// Of a coroutine whose first transaction comes after `id`.
    pub(crate) fn new(id: TransactionId) -> Self {
        let ended =
            || Commit { id: Cell::new(id), stage: Cell::new(Stage::Settled(Settled::Aborted)) };
        Self { open: ended(), decided: ended() }
    }

    /// Begins the next commit, in this epoch; that of the last transaction is the decided one if its PRIMARYs are under way.
    #[inline(always)]
    pub(crate) fn begin(&self, epoch: u32) -> TransactionId {
        let Self { open, decided } = self;
        let mut id = open.id();
        if open.stage() == Stage::PrimariesSent {
            decided.id.set(id);
            decided.reach(Stage::PrimariesSent);
        }
        (id.epoch, id.counter) = (epoch, id.counter + 1);
        open.id.set(id);
        open.reach(Stage::Executing);
        id
    }

    /// Settles both, each by its own id, as `decide` tells.
    pub(crate) fn settle(&self, decide: impl Fn(TransactionId, Stage) -> Settled) {
        let Self { open, decided } = self;
        for commit in [decided, open] {
            // The record in the log slot is the decided one's until the open one logs.
            let Commit { id, stage } = if rule!(SETTLE_BY_ID) { commit } else { decided };
            let settled = decide(id.get(), stage.get());
            commit.reach(Stage::Settled(settled));
        }
    }

    /// How a commit ends whose epoch has ended, by the ids of the records that the members that are left have.
    ///
    /// # Panics
    /// If its code was told that it is committed, and there is no record: more members were lost than keep one.
    pub(crate) fn when_flushed(
        flushed: &BTreeSet<TransactionId>,
        id: TransactionId,
        stage: Stage,
    ) -> Settled {
        match stage {
            Stage::Settled(settled) => settled,
            _ if flushed.contains(&id) => Settled::Committed,
            stage => {
                assert!(!stage.is_committed(), "{id:?} is committed, and its record is lost");
                Settled::Aborted
            }
        }
    }

    /// Settles both as commits for which nothing more is sent.
    pub(crate) fn halt(&self) {
        self.settle(|_, stage| stage.when_halted());
    }

    /// The primaries have applied what was decided.
    #[inline(always)]
    pub(crate) fn applied(&self) {
        self.decided.reach(Stage::Settled(Settled::Committed));
        if self.open.stage() == Stage::PrimariesSent {
            self.open.reach(Stage::Settled(Settled::Committed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_known_by_its_id_while_its_primaries_travel_with_the_next_one() {
        let id = |counter| TransactionId { epoch: 1, node: 2, worker: 3, coroutine: 4, counter };
        let commits = Commits::new(id(0));
        assert_eq!(commits.begin(1), id(1));
        commits.open.reach(Stage::PrimariesSent);
        assert_eq!(commits.begin(1), id(2));
        // One that ends without a record leaves the decided one as it is.
        commits.open.reach(Stage::Settled(Settled::Aborted));
        assert_eq!(commits.begin(1), id(3));
        let known = |commit: &Commit| (commit.id(), commit.stage());
        assert_eq!(known(&commits.decided), (id(1), Stage::PrimariesSent));
        assert_eq!(known(&commits.open), (id(3), Stage::Executing));
        commits.applied();
        assert_eq!(known(&commits.decided), (id(1), Stage::Settled(Settled::Committed)));
        assert_eq!(known(&commits.open), (id(3), Stage::Executing));
        commits.open.reach(Stage::PrimariesSent);
        commits.applied();
        assert!(commits.open.stage().is_committed() && commits.decided.stage().is_committed());
    }
}
