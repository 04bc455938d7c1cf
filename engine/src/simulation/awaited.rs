//! What a run waits for before it is over: jobs, and a cluster that has come to rest.
//!
//! *Invariants*: dead members count for nothing. A living one has gone on if its epoch is the latest and active, all dead
//! nodes are out, and its placement is the latest. Without leases a run waits neither for copies and primaries nor for
//! memory that is given back.
//!
//! *Source*: `docs/simulation.md`, "Oracles".
//!
//! *Not here*: the clients, which tell themselves whether they have ended.

use std::fmt;

use crate::configuration::Phase;
use crate::placement;
use crate::simulation::{SimulatedNode, Simulation};

/// See the module's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// A job runs or waits at a node.
    Job {
        /// The node.
        node: usize,
    },
    /// A member has neither halted nor gone on: without those that are dead, and with the placement that others go by.
    Member {
        /// Its node.
        node: usize,
        /// Its epoch.
        epoch: u32,
        /// The latest epoch that any member has come to.
        latest: u32,
    },
    /// Copies or primaries are not where they are to be.
    Placement,
    /// A process is still to be started, or to be let in.
    Newcomer,
    /// A drain is still to come, or to be decided.
    Drain,
    /// Members have bytes of partitions that they hold no more.
    Forgotten {
        /// How many.
        bytes: usize,
    },
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job { node } => write!(out, "a job at node {node} does not end"),
            Self::Member { node, epoch, latest } => {
                write!(
                    out,
                    "node {node} has not gone on: its epoch is {epoch}, the latest is {latest}"
                )
            }
            Self::Placement => write!(out, "copies are not where they are to be"),
            Self::Newcomer => write!(out, "a process is neither let in nor refused"),
            Self::Drain => write!(out, "a drain is not decided"),
            Self::Forgotten { bytes } => {
                write!(out, "members have {bytes} bytes of partitions that they hold no more")
            }
        }
    }
}

impl Simulation {
    /// What the run waits for, but for its clients.
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        if let Some(node) = self.working_node() {
            return Some(Awaited::Job { node });
        }
        if let Some((node, epoch, latest)) = self.late_member() {
            return Some(Awaited::Member { node, epoch, latest });
        }
        let has_living = self.nodes.iter().any(|node| !node.has_ended);
        if has_living && !self.is_placed() {
            return Some(Awaited::Placement);
        }
        if self.awaits_newcomers() {
            return Some(Awaited::Newcomer);
        }
        if self.awaits_drains() {
            return Some(Awaited::Drain);
        }
        let gives_back = self.lease_terms.is_some() && !self.has_halted();
        let bytes = if gives_back { self.bytes_of_others() } else { 0 };
        (bytes > 0).then_some(Awaited::Forgotten { bytes })
    }

    /// Whether no job runs or waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.working_node().is_none()
    }

    /// A node at which a job runs or waits.
    fn working_node(&self) -> Option<usize> {
        let works = |node: &SimulatedNode| node.workers.iter().any(|(worker, _)| !worker.is_idle());
        self.nodes.iter().position(|node| !node.has_ended && works(node))
    }

    /// A member that lives and has not gone on, with its epoch and the latest.
    fn late_member(&self) -> Option<(usize, u32, u32)> {
        let (latest, dead) = (self.latest_configuration(), self.dead());
        let mut living = (0..self.nodes.len()).filter(|node| !self.nodes[*node].has_ended);
        living.find_map(|node| {
            let view = self.cluster.members[node].node().view();
            let configuration = view.configuration();
            let is_out = |dead: &usize| {
                u16::try_from(*dead).is_ok_and(|dead| !configuration.is_member(dead))
            };
            let goes_on = configuration.epoch == latest.epoch
                && configuration.settled_placement() == latest.settled_placement()
                && dead.iter().all(is_out)
                && configuration.phase == Phase::Active;
            (!goes_on).then_some((node, configuration.epoch, latest.epoch))
        })
    }

    /// Whether all copies and primaries are where they are to be, if members make that so.
    pub(super) fn is_placed(&self) -> bool {
        let latest = self.latest_configuration();
        self.lease_terms.is_none() || placement::is_reached(&latest)
    }
}
