//! Work of a statement that the workers of its node share.
//!
//! ```text
//! statement ─ shares ─► queue ─┬─► the statement's own coroutine
//!                              └─► helpers, one on each other worker of its node, or on the only one
//! ```
//! Helpers end when no share is left, and are asked again when there are others.
//!
//! *Invariants*: a share that a worker gives up goes to another one. Nothing is left when no share waits or is taken. A failure ends the work when
//! the shares before it have ended, and is that of the first share that has failed. A cancellation of the statement ends its helpers, and the
//! silence of a node that they wait for is the statement's.
//!
//! *Not here*: what shares are (`fill`, `load`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gannet_engine::{Coordinator, WorkerId};

use crate::error::Failure;
use crate::execute::{Context, Resources, Transaction};

/// How long the statement waits for helpers before it looks again.
const LOOK: Duration = Duration::from_micros(200);
/// The next shares are made while there are at most so many for each helper, and so many in all.
const SHARES_PER_HELPER: usize = 4;
const SHARES_LEFT_MAX: usize = 16;

/// What is shared.
pub(super) trait Work: Send + Sync + Sized + 'static {
    /// A part of it, which one worker does.
    type Share: Send;

    /// Whether nothing of a share is left.
    fn is_done(share: &Self::Share) -> bool;

    /// A transaction of the work.
    fn begin(&self) -> Transaction;

    /// Does some of a share.
    fn go_on(
        &self,
        share: &mut Self::Share,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Failure>;
}

/// Work that the statement and its helpers share.
pub(super) struct Sharing<W: Work> {
    pub(super) work: W,
    state: Mutex<State<W::Share>>,
}

struct State<S> {
    /// Those that wait, by their numbers.
    shares: VecDeque<(u64, S)>,
    /// The number of the next share.
    next: u64,
    /// Shares that are taken.
    taken: usize,
    /// By worker: whether a helper was asked there, and has not ended.
    helps: Vec<bool>,
    /// The first share that has failed, and why.
    failure: Option<(u64, Failure)>,
    /// The statement has ended.
    is_over: bool,
}

/// What a worker does next.
enum Next<'w, W: Work> {
    Share(Taken<'w, W>),
    /// A share has failed, and none is taken any more.
    Failed,
    /// Others do what is left.
    Wait,
    /// No share is left or taken.
    End,
}

impl<W: Work> Sharing<W> {
    pub(super) fn new(work: W, resources: &Resources) -> Arc<Self> {
        let state = State {
            shares: VecDeque::new(),
            next: 0,
            taken: 0,
            helps: vec![false; resources.database.cluster.options().threads],
            failure: None,
            is_over: false,
        };
        Arc::new(Self { work, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<W::Share>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next shares are to be made while helpers do those that wait.
    pub(super) fn is_short(&self) -> bool {
        let state = self.lock();
        let helpers = state.helps.iter().filter(|helps| **helps).count();
        state.shares.len() <= (helpers * SHARES_PER_HELPER).min(SHARES_LEFT_MAX)
    }

    /// Whether no share waits or is taken.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.shares.is_empty() && state.taken == 0
    }

    pub(super) fn add(&self, shares: impl IntoIterator<Item = W::Share>) {
        let mut state = self.lock();
        for share in shares {
            let number = state.next;
            state.next += 1;
            state.shares.push_back((number, share));
        }
    }

    /// Asks the other workers of the statement's node for help that do not help yet.
    pub(super) fn start_helpers(
        self: &Arc<Self>,
        coordinator: &Coordinator<'_>,
        resources: &Resources,
    ) {
        let (node, own) = (usize::from(coordinator.node()), coordinator.worker());
        let token = coordinator.cancellation();
        let workers = self.lock().helps.len();
        // A helper beside the statement on the only worker works while the statement waits for answers.
        for worker in (0..workers).filter(|worker| *worker != own || workers == 1) {
            if std::mem::replace(&mut self.lock().helps[worker], true) {
                continue;
            }
            let helper = Helper { sharing: Arc::clone(self), worker };
            let (resources, token) = (resources.lent(), token.clone());
            // A worker whose queue is full drops the helper. One that is busy begins later, when the statement may have ended.
            let _ = resources.database.cluster.clone().spawn(
                WorkerId { node, worker },
                move |coordinator: &mut Coordinator<'_>| {
                    token.into_iter().for_each(|token| coordinator.set_cancellation(token));
                    helper.help(coordinator, &resources);
                },
            );
        }
    }

    /// Does a share, or waits for the helpers. Whether anything was left.
    ///
    /// # Errors
    /// Those of the work.
    pub(super) fn go_on(
        &self,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<bool, Failure> {
        match self.next() {
            Next::Share(taken) => self.run(taken, coordinator, resources),
            Next::Failed => return self.failed(),
            Next::Wait => {
                let mut transaction = self.work.begin();
                let mut context = Context::new(coordinator, &mut transaction, resources);
                context.check_cancel()?;
                context.wait(LOOK);
            }
            Next::End => return Ok(false),
        }
        Ok(true)
    }

    fn next(&self) -> Next<'_, W> {
        let mut state = self.lock();
        if state.failure.is_some() {
            // Of the shares that are taken some come before the one that has failed.
            return if state.taken > 0 { Next::Wait } else { Next::Failed };
        }
        if state.is_over {
            return Next::End;
        }
        match state.shares.pop_front() {
            Some((number, share)) => {
                state.taken += 1;
                Next::Share(Taken { sharing: self, number, share: Some(share) })
            }
            None if state.taken > 0 => Next::Wait,
            None => Next::End,
        }
    }

    /// Does a share, and notes its failure.
    fn run(
        &self,
        mut taken: Taken<'_, W>,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) {
        if let Err(failure) = taken.run(coordinator, resources) {
            self.fail(taken.number, failure);
        }
    }

    /// Ends the work with the failure of a share. Nothing is left then.
    fn failed(&self) -> Result<bool, Failure> {
        let mut state = self.lock();
        state.is_over = true;
        state.failure.take().map_or(Ok(false), |(_, failure)| Err(failure))
    }

    /// Notes the failure of a share.
    fn fail(&self, number: u64, failure: Failure) {
        let mut state = self.lock();
        if state.failure.as_ref().is_none_or(|(first, _)| number < *first) {
            state.failure = Some((number, failure));
        }
    }

    /// What ends the work of the helpers with the statement.
    pub(super) fn ended(self: &Arc<Self>) -> Ended<W> {
        Ended(Arc::clone(self))
    }
}

/// Tells the helpers that the statement has ended.
pub(super) struct Ended<W: Work>(Arc<Sharing<W>>);

impl<W: Work> Drop for Ended<W> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let shares = std::mem::take(&mut state.shares);
        drop(state);
        drop(shares);
    }
}

/// A helper, from the moment when it is asked.
struct Helper<W: Work> {
    sharing: Arc<Sharing<W>>,
    worker: usize,
}

impl<W: Work> Helper<W> {
    /// Does shares until none is left.
    fn help(&self, coordinator: &mut Coordinator<'_>, resources: &Resources) {
        loop {
            match self.sharing.next() {
                Next::Share(taken) => self.sharing.run(taken, coordinator, resources),
                Next::Wait | Next::End | Next::Failed => return,
            }
        }
    }
}

impl<W: Work> Drop for Helper<W> {
    fn drop(&mut self) {
        self.sharing.lock().helps[self.worker] = false;
    }
}

/// A share that a worker has taken: what is left of it.
struct Taken<'w, W: Work> {
    sharing: &'w Sharing<W>,
    number: u64,
    share: Option<W::Share>,
}

impl<W: Work> Taken<'_, W> {
    fn run(
        &mut self,
        coordinator: &mut Coordinator<'_>,
        resources: &Resources,
    ) -> Result<(), Failure> {
        let Self { sharing, share, .. } = self;
        while let Some(share) = share.as_mut().filter(|share| !W::is_done(share))
            && !sharing.lock().is_over
        {
            sharing.work.go_on(share, coordinator, resources)?;
        }
        Ok(())
    }
}

impl<W: Work> Drop for Taken<'_, W> {
    fn drop(&mut self) {
        let left = self.share.take().filter(|share| !W::is_done(share));
        let mut state = self.sharing.lock();
        state.taken -= 1;
        if !state.is_over {
            // The worker was interrupted, or has failed.
            left.into_iter().for_each(|share| state.shares.push_front((self.number, share)));
        }
    }
}
