//! The death of a member in the middle of its commits, and the halt of the others.
//!
//! ```text
//! begins_at transactions ─ a commit of the member is in `stage`, for the n-th time ─ the member is killed
//!                        its streams end, and nobody listens at its port ─ the others halt, and settle their commits
//! ```
//! *Source*: `docs/simulation.md`, "Members that die".
//!
//! *Invariants*: a killed member takes no step and sends nothing. What it has sent before still arrives.
//!
//! *Not here*: recovery.

use gannet_storage::TransactionId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::commit::{Settled, Stage};

/// The stages of a commit in which members are killed.
pub const KILL_STAGES: [Stage; 5] =
    [Stage::Executing, Stage::Validating, Stage::Logging, Stage::Logged, Stage::PrimariesSent];

/// A member is killed after the first of so many moments in its stage.
const MOMENTS_MAX: u32 = 40;

/// When a member dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kill {
    /// The member.
    pub node: u16,
    /// What one of its commits is at then.
    pub stage: Stage,
    /// After this many transactions have begun.
    pub begins_at: u64,
    /// How many moments in that stage come before, since then.
    pub moments: u32,
}

impl Kill {
    /// The death of a member of `nodes` in `stage`, somewhere in the first half of `transactions`.
    #[must_use]
    pub fn draw(seed: u64, nodes: u16, transactions: u64, stage: Stage) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        Self {
            node: random.random_range(0..nodes),
            stage,
            begins_at: random.random_range(0..=transactions / 2),
            moments: random.random_range(0..MOMENTS_MAX),
        }
    }
}

impl std::fmt::Display for Kill {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { node, stage, begins_at, moments, .. } = self;
        write!(out, "node {node} is killed after {moments} moments in {stage:?} ")?;
        write!(out, "from transaction {begins_at}")
    }
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
