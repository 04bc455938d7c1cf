//! The control block of a coroutine: what the coroutine and its worker tell each other across a suspension.
//!
//! ```text
//! coroutine ── what it waits for, how far its commits have come, which view it goes by ──► worker
//! worker    ── another epoch has begun, the cluster has halted, the worker closes ───────► coroutine
//! ```
//! *Invariant*: both are on one thread, and one of them runs at a time.
//!
//! *Not here*: the jobs of coroutines, in `worker`; suspension itself, in crate `rpc`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gannet_storage::{SlotHint, TransactionId};

use crate::cancellation::CancellationToken;
use crate::commit::{Commits, Settled, Stage};
use crate::outcome::{Abort, Conflict, Failure};

/// How often the code of a job is told that its node has ended, before the job is dropped.
const ANSWERS_MAX: u32 = 1_000;

/// Why a coroutine must not go on with its transaction. Its commits are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    /// Another epoch has begun: the coroutine goes on with its next transaction.
    Reconfigured,
    /// The node was revoked: the coroutine sends nothing any more.
    Revoked,
    /// The cluster has halted: the coroutine sends nothing any more.
    Halted,
}

impl Interruption {
    /// Whether the coroutine may do nothing more.
    pub(crate) fn is_end(self) -> bool {
        match self {
            Self::Reconfigured => false,
            Self::Revoked | Self::Halted => true,
        }
    }
}

impl From<Interruption> for Abort {
    #[cold]
    fn from(interruption: Interruption) -> Self {
        match interruption {
            Interruption::Reconfigured => Conflict::Reconfigured.into(),
            Interruption::Revoked => Failure::Revoked.into(),
            Interruption::Halted => Failure::Halted.into(),
        }
    }
}

/// What a suspended coroutine waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitReason {
    /// The answers to its batch, which is to be sent.
    Responses,
    /// The next step: the local rows that it has prefetched arrive in the meantime.
    Turn,
    /// The clock to show this time in nanoseconds.
    Time(u64),
    /// A job.
    Job,
    /// The end of its worker: a bug was found, which its [`Control`] tells.
    Failure,
    /// Its own end: its code goes on asking a cluster that has halted.
    End,
}

/// What a coroutine and its worker tell each other across a suspension.
pub(crate) struct Control {
    pub(crate) waits_for: Cell<WaitReason>,
    /// Whether the worker closes: the coroutine ends instead of waiting for another job.
    pub(crate) closing: Cell<bool>,
    /// Version of the configuration that the coroutine goes by.
    pub(crate) view_version: Cell<u64>,
    /// The bug, if a coroutine waits for [`WaitReason::Failure`].
    pub(crate) bug: RefCell<Option<String>>,
    /// Why the coroutine must not go on with its transaction.
    pub(crate) interruption: Cell<Option<Interruption>>,
    /// How often its code is told so.
    pub(crate) answers_left: Cell<u32>,
    /// How far the coroutine's commits have come.
    pub(crate) commits: Commits,
    /// What the job shares with its waiter.
    pub(crate) token: RefCell<Option<Arc<CancellationToken>>>,
    /// Transactions that committed, and that did not.
    pub(crate) committed: Cell<u64>,
    pub(crate) aborted: Cell<u64>,
}

impl Control {
    /// Of a coroutine that waits for its first job, and goes by this version of the configuration; `id` is that of no transaction.
    pub(crate) fn new(id: TransactionId, view_version: u64) -> Self {
        Self {
            waits_for: Cell::new(WaitReason::Job),
            closing: Cell::new(false),
            view_version: Cell::new(view_version),
            bug: RefCell::new(None),
            interruption: Cell::new(None),
            answers_left: Cell::new(ANSWERS_MAX),
            commits: Commits::new(id),
            token: RefCell::new(None),
            committed: Cell::new(0),
            aborted: Cell::new(0),
        }
    }

    /// Settles the commits as those for which nothing more is sent; from now on the coroutine sends nothing.
    pub(crate) fn halt(&self) {
        let has_ended = self.interruption.get().is_some_and(Interruption::is_end);
        self.interruption.set(Some(Interruption::Halted));
        if !has_ended {
            self.commits.halt();
        }
    }

    /// Settles the commits as `decide` tells, each by its own id. A coroutine with a job goes on as the interruption says.
    pub(crate) fn interrupt(
        &self,
        interruption: Interruption,
        decide: impl Fn(TransactionId, Stage) -> Settled,
    ) {
        self.commits.settle(decide);
        if self.waits_for.get() != WaitReason::Job {
            self.interruption.set(Some(interruption));
        }
    }
}

/// Slots of local rows that coroutines of the worker read when they are resumed.
pub(crate) type PrefetchQueue = RefCell<Vec<SlotHint>>;
