//! The deaths of members, in the middle of their commits or of a change of the membership.
//!
//! ```text
//! begins_at transactions ─ the member is at `moment`, for the n-th time ─ the member is killed
//!     its streams end, and nobody listens at its port ─ the others revoke it and go on, or halt if they cannot
//!     its process is started again, empty ─ the others refuse it
//! ```
//! *Source*: `docs/simulation.md`, "Members that die".
//!
//! *Invariants*: a killed member takes no step and sends nothing. What it has sent before still arrives.
//!
//! *Not here*: what the others do, in `membership_change`.

use gannet_storage::TransactionId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::commit::{Settled, Stage};

/// What a member is at when it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KillMoment {
    /// One of its commits is at this stage.
    Commit(Stage),
    /// It has stopped, as another member was lost.
    Change,
    /// It works in an epoch that has begun after a loss, for the first time.
    NewEpoch,
}

/// The moments at which members are killed.
pub const KILL_MOMENTS: [KillMoment; 7] = [
    KillMoment::Commit(Stage::Executing),
    KillMoment::Commit(Stage::Validating),
    KillMoment::Commit(Stage::Logging),
    KillMoment::Commit(Stage::Logged),
    KillMoment::Commit(Stage::PrimariesSent),
    KillMoment::Change,
    KillMoment::NewEpoch,
];

/// Of [`KILL_MOMENTS`], those that need no earlier death.
const COMMIT_MOMENTS: usize = 5;
/// A member is killed after the first of so many such moments.
const MOMENTS_MAX: u32 = 40;
/// Most members that die in a run.
const KILLS_MAX: usize = 3;
/// A process that is started again is so within this virtual time.
const RESTART_NS_MAX: u64 = 60_000_000;

/// When a member dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The member.
    pub node: u16,
    /// What it is at then.
    pub moment: KillMoment,
    /// After this many transactions have begun.
    pub begins_at: u64,
    /// How many such moments come before, since then.
    pub moments: u32,
    /// How long after the death its process is started again, in nanoseconds of virtual time, if it is.
    pub restarts_after_ns: Option<u64>,
}

impl Kill {
    /// The deaths of members of a run, `nodes` being all there are. The first is at a stage of a commit, which `turn` chooses, somewhere
    /// in the first half of `transactions`. At least one member is left.
    #[must_use]
    pub fn draw(seed: u64, nodes: u16, transactions: u64, turn: usize) -> Vec<Self> {
        let mut random = SmallRng::seed_from_u64(seed);
        let kills = random.random_range(1..=KILLS_MAX.min(usize::from(nodes) - 1));
        let mut left: Vec<u16> = (0..nodes).collect();
        let mut draw = |number: usize| {
            let node = left.remove(random.random_range(0..left.len()));
            let moment = match number {
                0 => turn % COMMIT_MOMENTS,
                _ if random.random_bool(0.6) => {
                    random.random_range(COMMIT_MOMENTS..KILL_MOMENTS.len())
                }
                _ => random.random_range(0..COMMIT_MOMENTS),
            };
            let begins_at = random.random_range(0..=transactions / 2);
            let moment = KILL_MOMENTS[moment];
            let moments = match moment {
                KillMoment::Commit(_) => random.random_range(0..MOMENTS_MAX),
                // There are few steps in which a member has stopped.
                KillMoment::Change | KillMoment::NewEpoch => random.random_range(0..2),
            };
            // What comes with a change comes with the first one.
            let is_of_change = !matches!(moment, KillMoment::Commit(_));
            let begins_at = if is_of_change { 0 } else { begins_at };
            Self { node, moment, begins_at, moments, restarts_after_ns: None }
        };
        let mut kills: Vec<_> = (0..kills).map(&mut draw).collect();
        for kill in &mut kills {
            let after_ns = random.random_range(0..RESTART_NS_MAX);
            kill.restarts_after_ns = random.random_bool(0.5).then_some(after_ns);
        }
        kills
    }
}

impl std::fmt::Display for Kill {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, moment, begins_at, moments, .. } = self;
        write!(out, "node {node} is killed after {moments} moments in {moment:?} ")?;
        write!(out, "from transaction {begins_at}")?;
        match self.restarts_after_ns {
            Some(ns) => write!(out, ", and started again {} ms later", ns / 1_000_000),
            None => Ok(()),
        }
    }
}

/// What became of processes of killed members that were started again, empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CameBack {
    /// All of them.
    pub all: u64,
    /// Those that another member has refused.
    pub refused: u64,
    /// Those that have joined: none.
    pub joined: u64,
}

/// How a commit was settled that was under way when its member halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Its transaction.
    pub id: TransactionId,
    /// How far it had come.
    pub stage: Stage,
    /// What its code was told.
    pub settled: Settled,
}
