//! Shares of a large table that is folded: some partitions each. The statement takes them one after the other, and so do helpers, one on
//! each worker of the statement's node.
//!
//! *Invariant*: a share that a helper has taken is folded to its end or given back, or the fold ends with an error. A statement does not wait for a helper
//! that has taken none: its worker may have no coroutine for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_engine::{Abort, Cluster, Conflict, Coordinator, Deferred, FoldRest, TableId, WorkerId};

/// Shares of each helper.
const SHARES_PER_HELPER: usize = 2;
/// Rounds that wait for the statement, and their bytes, at which helpers leave the rest to it.
const ROUNDS_MAX: usize = 64;
const ROUND_BYTES_MAX: usize = 4 << 20;

/// What the primaries have answered a helper, and the transaction that has read it.
type Round = Result<(Vec<Vec<u8>>, Box<Deferred>), Abort>;

/// What a statement does next.
pub(super) enum Next {
    /// It takes the answers to a helper.
    Round(Round),
    /// It goes on with its share.
    GoOn,
    /// It folds a share.
    Share(FoldRest),
    /// It waits for helpers.
    Wait,
    /// Everything is folded.
    End,
}

/// The shares of one fold.
pub(super) struct Shares {
    state: Arc<Mutex<State>>,
}

struct State {
    left: Vec<FoldRest>,
    rounds: VecDeque<Round>,
    /// Helpers that have taken a share.
    busy: usize,
    /// Whether the statement takes no more.
    is_over: bool,
}

impl State {
    /// Whether the statement has as many rounds to take as it should have.
    fn is_ahead(&self) -> bool {
        let rounds = self.rounds.iter().flatten();
        let bytes = rounds.flat_map(|(results, _)| results).map(Vec::len).sum::<usize>();
        self.rounds.len() >= ROUNDS_MAX || bytes >= ROUND_BYTES_MAX
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Shares {
    fn drop(&mut self) {
        lock(&self.state).is_over = true;
    }
}

impl Shares {
    /// Divides what is left of a table, and asks the workers of a node for help.
    pub(super) fn new(
        (cluster, node): (&Cluster, u16),
        table: TableId,
        program: &Arc<[u8]>,
        rest: &FoldRest,
    ) -> Self {
        let workers = cluster.options().threads;
        let (left, rounds) = (rest.divided(SHARES_PER_HELPER * workers), VecDeque::new());
        let state = Arc::new(Mutex::new(State { left, rounds, busy: 0, is_over: false }));
        for worker in 0..workers {
            let (state, program) = (Arc::clone(&state), Arc::clone(program));
            let worker = WorkerId { node: usize::from(node), worker };
            // A worker whose queue is full does not help, and one that is busy may begin when the fold has ended.
            let _ = cluster.spawn(worker, move |coordinator: &mut Coordinator<'_>| {
                while let Some(mut taken) = Taken::from(&state) {
                    taken.fold(coordinator, table, &program);
                }
            });
        }
        Self { state }
    }

    /// What a statement does next that has a share, or none.
    pub(super) fn next(&self, has_share: bool) -> Next {
        let mut state = lock(&self.state);
        if let Some(round) = state.rounds.pop_front() {
            return Next::Round(round);
        }
        if has_share {
            return Next::GoOn;
        }
        match state.left.pop() {
            Some(share) => Next::Share(share),
            None if state.busy > 0 => Next::Wait,
            None => Next::End,
        }
    }
}

/// A share that a helper has taken.
struct Taken<'s> {
    state: &'s Mutex<State>,
    share: FoldRest,
}

impl<'s> Taken<'s> {
    fn from(state: &'s Mutex<State>) -> Option<Self> {
        let mut locked = lock(state);
        if locked.is_over || locked.is_ahead() {
            return None;
        }
        let share = locked.left.pop()?;
        locked.busy += 1;
        drop(locked);
        Some(Self { state, share })
    }

    fn fold(&mut self, coordinator: &mut Coordinator<'_>, table: TableId, program: &[u8]) {
        while !self.share.is_empty() {
            let mut state = lock(self.state);
            if state.is_ahead() {
                state.left.push(std::mem::replace(&mut self.share, FoldRest::nothing()));
                return;
            }
            drop(state);
            let mut reads = Deferred::new();
            let folded = reads.fold(coordinator, table, program, &mut self.share);
            if folded.is_err() {
                // The statement ends with that error.
                self.share = FoldRest::nothing();
            }
            let mut state = lock(self.state);
            if state.is_over {
                return;
            }
            state.rounds.push_back(folded.map(|results| (results, Box::new(reads))));
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.state);
        state.busy -= 1;
        if !self.share.is_empty() {
            // The helper was interrupted: the cluster has halted, or the statement has ended.
            state.rounds.push_back(Err(Conflict::Reconfigured.into()));
        }
    }
}
