//! The deaths of members, in the middle of their commits or of a change of the membership.
//!
//! ```text
//! begins_at transactions ─ the member is at `moment`, for the n-th time ─ the member is killed
//!     its streams end, and nobody listens at its port ─ the others revoke it and go on, or halt if they cannot
//! ```
//! *Source*: `docs/simulation.md`, "Members that die".
//!
//! *Invariants*: a killed member takes no step and sends nothing. What it has sent before still arrives.
//!
//! *Not here*: what the others do, in `membership_change`; processes that are started again, in `coming_back.rs`.

use gannet_storage::TransactionId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::commit::{Settled, Stage};
use crate::configuration::Phase;
use crate::simulation::Simulation;

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

impl Simulation {
    /// Plans the deaths of members.
    pub fn plan_kills(&mut self, kills: Vec<Kill>) {
        self.planned_kills = kills;
    }

    /// The deaths of members that have come.
    #[must_use]
    pub fn killed(&self) -> &[Kill] {
        &self.killed
    }

    /// How the members that have halted have settled the commits that were under way.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Whether a member is at a moment.
    fn is_at(&self, node: usize, moment: KillMoment) -> bool {
        let configuration = self.cluster.members[node].node().view().shared_configuration();
        match moment {
            KillMoment::Commit(stage) => self.stages(node).flatten().any(|at| at == stage),
            KillMoment::Change => configuration.phase == Phase::Preparing,
            KillMoment::NewEpoch => configuration.epoch > 1 && configuration.phase == Phase::Active,
        }
    }

    /// A death whose moment has come.
    fn kill_due(&mut self, begun: u64) -> Option<Kill> {
        for index in 0..self.planned_kills.len() {
            let Kill { node, moment, begins_at, moments, .. } = self.planned_kills[index];
            let is_alive = !self.nodes[usize::from(node)].has_ended;
            if begins_at > begun || !is_alive || !self.is_at(usize::from(node), moment) {
                continue;
            }
            if moments == 0 {
                return Some(self.planned_kills.remove(index));
            }
            self.planned_kills[index].moments -= 1;
        }
        None
    }

    /// Kills the member whose time has come, whose jobs that have not begun go to another.
    pub(super) fn kill_member(&mut self, begun: u64) {
        if self.planned_kills.is_empty() {
            return;
        }
        let Some(kill) = self.kill_due(begun) else { return };
        let (now_ns, number) = (self.now_ns(), usize::from(kill.node));
        let node = &mut self.nodes[number];
        node.has_ended = true;
        node.workers.iter_mut().for_each(|(worker, _)| worker.kill());
        self.cluster.members[number].node().kill();
        self.members.lock().kill(number);
        self.members_due_ns = 0;
        self.hand_over(number);
        self.trace.note(now_ns, || format!("kills: {kill}"));
        self.restarts.extend(kill.restarts_after_ns.map(|ns| (now_ns + ns, number)));
        self.killed.push(kill);
        self.back.remove(&number);
    }

    /// Gives the jobs that a killed member has not begun to the next one that lives, unless they were those of a process.
    pub(super) fn hand_over(&mut self, killed: usize) {
        if self.has_processes {
            return;
        }
        let members = &self.cluster.members;
        let others = (1..members.len()).map(|apart| (killed + apart) % members.len());
        let Some(heir) = others.into_iter().find(|node| !self.nodes[*node].has_ended) else {
            return;
        };
        for worker in 0..self.cluster.options.threads {
            for job in members[killed].take_jobs(worker) {
                // A job that finds no room is dropped, which tells that it has not begun.
                self.handed_over += u64::from(members[heir].put(worker, job).is_ok());
            }
        }
    }

    /// Jobs of a killed member that another has got.
    #[must_use]
    pub fn handed_over(&self) -> u64 {
        self.handed_over
    }
}
