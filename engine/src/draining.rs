//! Members that operators drain, remove or restart.
//!
//! ```text
//! drain  ──▶ it hands over what it is primary of, its copies are made on others, and it gives them up ─▶ its process may be stopped
//! cancel ──▶ it gets its share again
//! remove ──▶ a member that is silent, and without which the others cannot decide to go on, is no member any more
//! give up ─▶ members that had a majority will never run again, and one that is left decides without them
//! restart ─▶ it stops as if by a signal, and the program that has started its process starts it again
//! ```
//! *Invariants*: a drain loses no copy: what no other member can have stays. The configuration keeps the wish for a drain,
//! so each decider goes on with the drain.
//!
//! *Source*: `docs/protocol.md`, "Nodes that are drained".
//!
//! *Not here*: where copies go, in `placement`; what a drained node still has, in `membership_status`.

use crate::cluster::{Cluster, ClusterError};
use crate::configuration::{Change, ChangeError};
use crate::statistics::NodeState;

impl Cluster {
    /// Has a node hold nothing that others can hold, or its share again. What follows takes its time: [`Cluster::membership`] tells. To do it
    /// twice is to do it once. Blocks, so it must not be called on a thread that drives workers.
    ///
    /// # Errors
    /// [`ClusterError::OneProcess`] if all nodes are in one process; [`ClusterError::Change`] if the node is no member, or is the last one
    /// that is not drained; [`ClusterError::Join`] if the cluster halts.
    pub fn drain_node(&self, node: u16, is_drained: bool) -> Result<(), ClusterError> {
        self.check_processes()?;
        if self.configuration().is_drained(node) == is_drained
            && self.configuration().is_member(node)
        {
            return Ok(());
        }
        self.change(Change::Drain { node, is_drained })
    }

    /// Removes a node that is silent, and that the others wait for because it has the last copy of some rows: `loses_rows` says that these
    /// rows may be lost, for ever. Nodes that are silent are removed without that. Blocks, as [`Cluster::drain_node`].
    ///
    /// # Errors
    /// As [`Cluster::drain_node`]; [`ClusterError::NodeRuns`] if this process hears the node, and [`ClusterError::Change`]
    /// if the decider hears the node when it decides, or if rows would be lost, or the last log of some transactions.
    pub fn remove_node(&self, node: u16, loses_rows: bool) -> Result<(), ClusterError> {
        self.check_processes()?;
        let status = self.status();
        let state = status.iter().find(|status| status.node == usize::from(node));
        if state.is_some_and(|status| status.state == NodeState::Up) {
            return Err(ClusterError::NodeRuns(node));
        }
        let was_member = self.configuration().is_member(node);
        let change = if loses_rows { Change::Lose(node) } else { Change::Revoke(node) };
        // Other changes may wait for the node.
        match self.manager.propose(change)? {
            // An earlier decider has done it.
            Err(ChangeError::NoSuchMember(_)) if was_member => Ok(()),
            result => Ok(result?),
        }
    }

    /// Gives up a majority of the nodes that decide on the membership, which is gone for ever: nodes `lost` will never run again, and this
    /// process's node decides alone until others vote in their place. The lost nodes are removed, in a new epoch. It is recorded
    /// ([`MembershipStatus::given_up`](crate::MembershipStatus)). Blocks, as [`Cluster::drain_node`].
    ///
    /// If one of them runs on where nobody here hears it, there are two clusters, which both answer; no check can rule that out.
    ///
    /// # Errors
    /// As [`Cluster::drain_node`]; [`ClusterError::Override`] says why this node cannot.
    pub fn give_up_nodes(&self, lost: &[u16]) -> Result<(), ClusterError> {
        self.check_processes()?;
        let others = self.others.as_ref().ok_or(ClusterError::OneProcess)?;
        others.give_up(lost.iter().copied().collect())
    }

    /// Has a node's process stop as if by a signal, and end in a way that tells the program which has started it to start it
    /// again. The process is told, and nothing is waited for.
    ///
    /// # Errors
    /// [`ClusterError::OneProcess`] if all nodes are in one process; [`ClusterError::Change`] if the node is no member that is there;
    /// [`ClusterError::NodeNeeded`] if rows would be lost without its process, or the others could decide on nothing.
    pub fn restart_node(&self, node: u16) -> Result<(), ClusterError> {
        self.check_processes()?;
        let others = self.others.as_ref().ok_or(ClusterError::OneProcess)?;
        if let Some(why) = self.need_of(node) {
            return Err(ClusterError::NodeNeeded { node, why });
        }
        if others.restart(node) { Ok(()) } else { Err(ChangeError::NoSuchMember(node).into()) }
    }

    /// Says what this process does when [`Cluster::restart_node`] names its node; else nothing comes of it.
    pub fn on_restart(&self, act: impl Fn() + Send + Sync + 'static) {
        if let Some(others) = &self.others {
            others.on_restart(act);
        }
    }

    fn check_processes(&self) -> Result<(), ClusterError> {
        if self.members.len() == self.options.nodes {
            return Err(ClusterError::OneProcess);
        }
        Ok(())
    }
}
