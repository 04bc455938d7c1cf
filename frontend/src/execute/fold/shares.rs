//! Shares of a large table that is folded: some partitions each. The statement takes them one after the other, and so do helpers, one on
//! each worker of the statement's node.
//!
//! *Invariant*: what a share has left is given back when its helper is interrupted, meets an error, or is silent: the statement folds it then, and meets
//! the same. A statement does not wait for a helper that has taken no share: its worker may have no coroutine for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gannet_engine::{Cluster, Coordinator, Deferred, FoldRest, TableId, WorkerId};

/// Shares of each helper.
const SHARES_PER_HELPER: usize = 2;
/// Rounds that wait for the statement, and their bytes, at which helpers leave the rest to it.
const ROUNDS_MAX: usize = 64;
const ROUND_BYTES_MAX: usize = 4 << 20;

/// What the primaries have answered a helper, and the transaction that has read it.
type Round = (Vec<Vec<u8>>, Box<Deferred>);

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
    /// What is left of the share that each helper has taken.
    taken: Vec<Option<FoldRest>>,
    /// Whether the statement takes no more.
    is_over: bool,
}

impl State {
    /// Whether the statement has as many rounds to take as it should have.
    fn is_ahead(&self) -> bool {
        let results = self.rounds.iter().flat_map(|(results, _)| results);
        let bytes = results.map(Vec::len).sum::<usize>();
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
        let taken = vec![None; workers];
        let state = Arc::new(Mutex::new(State { left, rounds, taken, is_over: false }));
        for worker in 0..workers {
            let (state, program) = (Arc::clone(&state), Arc::clone(program));
            let worker = WorkerId { node: usize::from(node), worker };
            // A worker whose queue is full does not help, and one that is busy may begin when the fold has ended.
            let _ = cluster.spawn(worker, move |coordinator: &mut Coordinator<'_>| {
                let next = || Taken::from(&state, worker.worker);
                while next().is_some_and(|taken| taken.fold(coordinator, table, &program)) {}
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
            None if state.taken.iter().any(Option::is_some) => Next::Wait,
            None => Next::End,
        }
    }

    /// Takes the shares of helpers back.
    pub(super) fn take_back(&self) {
        let mut state = lock(&self.state);
        let State { left, taken, .. } = &mut *state;
        left.extend(taken.iter_mut().filter_map(Option::take));
    }
}

/// A share that a helper has taken.
struct Taken<'s> {
    state: &'s Mutex<State>,
    helper: usize,
}

impl<'s> Taken<'s> {
    fn from(state: &'s Mutex<State>, helper: usize) -> Option<Self> {
        let mut locked = lock(state);
        if locked.is_over || locked.is_ahead() {
            return None;
        }
        let share = locked.left.pop()?;
        locked.taken[helper] = Some(share);
        Some(Self { state, helper })
    }

    /// Folds it. Whether the helper is to take another one.
    fn fold(self, coordinator: &mut Coordinator<'_>, table: TableId, program: &[u8]) -> bool {
        loop {
            let state = lock(self.state);
            let Some(mut rest) = state.taken[self.helper].clone() else { return true };
            if state.is_over || state.is_ahead() {
                return false;
            }
            drop(state);
            let mut reads = Deferred::new();
            let folded = reads.fold(coordinator, table, program, &mut rest);
            let mut state = lock(self.state);
            let (Ok(results), Some(left)) = (folded, &mut state.taken[self.helper]) else {
                return false;
            };
            *left = rest;
            if left.is_empty() {
                state.taken[self.helper] = None;
            }
            state.rounds.push_back((results, Box::new(reads)));
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.state);
        let rest = state.taken[self.helper].take();
        state.left.extend(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> Shares {
        let (left, rounds) = (vec![FoldRest::whole()], VecDeque::new());
        let state = State { left, rounds, taken: vec![None], is_over: false };
        Shares { state: Arc::new(Mutex::new(state)) }
    }

    #[test]
    fn a_share_of_an_interrupted_helper_is_given_back() {
        let shares = shares();
        let taken = Taken::from(&shares.state, 0).expect("there is a share");
        assert!(matches!(shares.next(false), Next::Wait));
        drop(taken);
        assert!(matches!(shares.next(false), Next::Share(_)));
        assert!(matches!(shares.next(false), Next::End));
    }

    #[test]
    fn a_share_of_a_silent_helper_is_folded_once() {
        let shares = shares();
        let taken = Taken::from(&shares.state, 0).expect("there is a share");
        shares.take_back();
        assert!(matches!(shares.next(false), Next::Share(_)));
        drop(taken);
        assert!(matches!(shares.next(false), Next::End));
    }
}
