//! What a run waits for before it is over: jobs, and a cluster that has come to rest.
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
    /// A member has neither gone on with the others nor halted.
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
    /// A member has so many bytes of partitions that it holds no more.
    BytesOfOthers(usize),
}

impl fmt::Display for Awaited {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job { node } => write!(out, "a job at node {node} does not end"),
            Self::Member { node, epoch, latest } => {
                write!(out, "node {node} is in epoch {epoch}, and others are in epoch {latest}")?;
                write!(out, " or have another placement")
            }
            Self::Placement => write!(out, "copies are not where they are to be"),
            Self::Newcomer => write!(out, "a process is neither let in nor refused"),
            Self::Drain => write!(out, "a drain is not decided"),
            Self::BytesOfOthers(bytes) => {
                write!(out, "members have {bytes} bytes of partitions that they hold no more")
            }
        }
    }
}

impl Simulation {
    /// What the run waits for, but for its clients.
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        let job = self.working_node().map(|node| Awaited::Job { node });
        job.or_else(|| self.awaited_member()).or_else(|| {
            let bytes = || match self.lease_terms {
                Some(_) if !self.has_halted() => self.bytes_of_others(),
                _ => 0,
            };
            if self.awaits_newcomers() {
                Some(Awaited::Newcomer)
            } else if self.awaits_drains() {
                Some(Awaited::Drain)
            } else {
                Some(bytes()).filter(|bytes| *bytes > 0).map(Awaited::BytesOfOthers)
            }
        })
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

    /// A member that lives and has not gone on without those that are dead, with all copies and primaries where they are to be.
    fn awaited_member(&self) -> Option<Awaited> {
        let (latest, dead) = (self.latest_configuration(), self.dead());
        let mut living = self.nodes.iter().enumerate().filter(|(_, node)| !node.has_ended);
        let is_placed = self.is_placed();
        living.find_map(|(node, _)| {
            let view = self.cluster.members[node].node().view();
            let configuration = view.configuration();
            let is_out = |dead: &usize| {
                u16::try_from(*dead).is_ok_and(|dead| !configuration.is_member(dead))
            };
            let goes_on = configuration.epoch == latest.epoch
                && configuration.settled_placement() == latest.settled_placement()
                && dead.iter().all(is_out)
                && configuration.phase == Phase::Active;
            match goes_on {
                true if is_placed => None,
                true => Some(Awaited::Placement),
                false => {
                    let (epoch, latest) = (configuration.epoch, latest.epoch);
                    Some(Awaited::Member { node, epoch, latest })
                }
            }
        })
    }

    /// Whether all copies and primaries are where they are to be, if members make that so.
    pub(super) fn is_placed(&self) -> bool {
        let latest = self.latest_configuration();
        self.lease_terms.is_none() || placement::is_reached(&latest)
    }
}
