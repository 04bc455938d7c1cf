//! The death of a node whose process goes on: for programs that hold all nodes of a cluster and want to see it survive a loss.
//!
//! ```text
//! the workers of the node stop ─ its jobs that have not begun go to other nodes ─ the others revoke the node
//!                              ─ the commits that it had under way are settled by what the others have, and its jobs are told
//! ```
//! *Invariants*: from the moment at which [`Cluster::kill_node`] begins, the node answers nothing. A node that the others cannot do
//! without is not killed.
//!
//! *Not here*: what the others do, in `local_members`; copies that are made again, in `healing`; the end of a process, in `members`.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::cluster::{Cluster, ClusterError};
use crate::configuration::Change;
use crate::member::Member;
use crate::worker::Job;

/// Between two looks whether the cluster has halted, while a node's workers come to their end.
const END_LOOK: Duration = Duration::from_millis(10);

impl Cluster {
    /// Ends a node of this process as the end of a process of its own would: in the middle of its transactions. The others go on
    /// without it, and each row has one copy less. A transaction that the node was committing is committed if another node has its
    /// record, and its job is told so. The others are primaries of about as many partitions each afterwards, unless transactions hold locks
    /// of rows for long. Where other nodes have room, the copies that the node had are made again while transactions go on:
    /// [`Cluster::membership`] says how many are missing.
    ///
    /// Blocks until the others go on, so it must not be called on a thread that drives workers.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchNode`] if the node is not in this process or was killed before, or if the cluster has other processes;
    /// [`ClusterError::Change`] if it has the last copy of some rows. Then nothing has happened.
    ///
    /// # Panics
    /// Never: nodes are numbered with 16 bits.
    pub fn kill_node(&self, node: usize) -> Result<(), ClusterError> {
        // Nothing panics while it is held, so the data behind a poisoned lock are whole.
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.local_index(node).filter(|_| self.others.is_none());
        let member = index.map(|index| &self.members[index]);
        let member = member.filter(|member| !member.node().is_killed());
        let member = member.ok_or(ClusterError::NoSuchNode { node })?;
        let number = u16::try_from(node).expect("nodes are numbered with 16 bits");
        self.configuration().after(&Change::Revoke(number))?;
        self.stop_workers(member);
        // Pairs with the one in Cluster::put().
        fence(Ordering::SeqCst);
        self.hand_over_jobs(member);
        let mut others = self.local_members();
        let revoked = others.revoke(number);
        if let Err(error) = revoked {
            // The others have stopped, and cannot go on.
            self.state.fail(&error.to_string());
            return Err(error.into());
        }
        let living = self.members.iter().find(|member| !member.node().is_killed());
        let flushed = living.expect("the last node is not killed").node().flushed();
        member.node().bury(flushed);
        member.wake_all();
        self.healer.heal(others, &self.changing);
        Ok(())
    }

    /// Stops the workers of a member for good.
    fn stop_workers(&self, member: &Member) {
        member.node().kill();
        member.wake_all();
        // Acquire: pairs with the Release where it is set.
        while !member.node().wait_for_stop(u64::MAX, END_LOOK)
            && !self.state.halted.load(Ordering::Acquire)
        {}
    }

    /// Gives the jobs that a killed member has not begun to others. One that finds no room is dropped, which tells that it has not
    /// begun.
    pub(crate) fn hand_over_jobs(&self, member: &Arc<Member>) {
        for worker in 0..self.options.threads {
            member.take_jobs(worker).into_iter().for_each(|job| self.enqueue_anywhere(job));
        }
    }

    fn enqueue_anywhere(&self, mut job: Job) {
        for worker in 0..self.workers() {
            match self.enqueue(worker, job) {
                Ok(()) => return,
                Err(refused) => job = refused,
            }
        }
    }
}
