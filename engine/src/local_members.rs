//! The members of this process, as those that make a change of the configuration.
//!
//! *Invariant*: a member that was killed has no part in changes.
//!
//! *Not here*: the rounds of a change, in `change`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gannet_storage::StorageError;

use crate::cluster_state::ClusterState;
use crate::configuration::{Change, ChangeError, Configuration};
use crate::member::Member;
use crate::node::Node;
use crate::placement::CopiedPartition;
use crate::replica::{Records, Replica};
use crate::view::View;

/// Longest wait for workers before one looks whether there is something else to do.
const WORKERS_LOOK: Duration = Duration::from_millis(1);

/// Looks at the locks of partitions that are handed over, each of about a millisecond, before lock holders are waited for no longer.
const LOCKS_LOOKS: usize = 100;

/// The members of this process.
pub(crate) struct LocalMembers {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) state: Arc<ClusterState>,
}

impl LocalMembers {
    /// Whether the new tables of a later configuration would fit.
    ///
    /// # Errors
    /// As [`crate::Node::check_memory`].
    pub(crate) fn check_memory(&self, next: &Configuration) -> Result<(), StorageError> {
        self.members.iter().try_for_each(|member| member.node().check_memory(next))
    }

    /// Makes a change of a cluster that has no other members.
    ///
    /// # Errors
    /// Why it is not possible.
    pub(crate) fn make(&self, change: &Change) -> Result<(), ChangeError> {
        let next = Arc::new(self.configuration().after(change)?);
        let prepared = self.prepare_views(&next)?;
        self.refuse_moved(&next);
        if !(0..LOCKS_LOOKS).any(|_| self.has_no_lock_holders()) {
            self.serve_again();
            return Err(ChangeError::RowsLocked);
        }
        self.publish(prepared);
        self.wait_until(&|| self.has_adopted());
        Ok(())
    }

    /// Makes a change of the placement, if there is room for it.
    ///
    /// # Errors
    /// Why it is not possible.
    pub(crate) fn take_step(&self, change: &Change) -> Result<(), String> {
        let next = self.configuration().after(change).map_err(|error| error.to_string())?;
        if matches!(change, Change::Learn(_)) {
            self.check_room(&next)?;
        }
        self.make(change).map_err(|error| error.to_string())
    }

    /// The partitions that members have copied, or given back, since the last call.
    pub(crate) fn take_copied(&self) -> BTreeSet<CopiedPartition> {
        let copied = self.present().flat_map(|member| {
            let copied = member.node().learning().take_copied().into_iter();
            copied.map(|(partition, since)| (partition, member.node().id(), since))
        });
        copied.collect()
    }

    /// Has nobody served at partitions that have another primary in a later configuration.
    fn refuse_moved(&self, next: &Configuration) {
        for member in self.present() {
            member.node().begin_hand_over(next);
            member.wake_all();
        }
    }

    /// The same partitions are served again.
    fn serve_again(&self) {
        self.present().for_each(|member| member.node().undo_hand_over());
    }

    /// Revokes a node whose workers have been killed, in a cluster that has no other members: its transactions are finished or
    /// undone, and the others go on. It is not interrupted by another loss.
    ///
    /// # Errors
    /// Why it is not possible.
    pub(crate) fn revoke(&mut self, node: u16) -> Result<(), ChangeError> {
        let prepared = Arc::new(self.configuration().after(&Change::Revoke(node))?);
        let active = Arc::new(prepared.after(&Change::Activate)?);
        self.stop(&prepared);
        self.wait_until(&|| self.records().is_some());
        let refused = |reason| ChangeError::Refused { node: usize::from(node), reason };
        let records = self.records().ok_or_else(|| refused("the cluster has halted".to_owned()))?;
        let flushed = Self::flush(self, &records);
        flushed.map_err(refused)?;
        self.begin_epoch(&active);
        self.wait_until(&|| self.has_adopted());
        Ok(())
    }

    /// The present configuration.
    pub(crate) fn configuration(&self) -> Arc<Configuration> {
        let present = self.present().next().map(|member| member.node().view());
        present.expect("a cluster has a member").shared_configuration()
    }

    /// The members that were not killed.
    fn present(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(|member| !member.node().is_killed())
    }

    fn prepare_views(&self, next: &Arc<Configuration>) -> Result<Vec<View>, ChangeError> {
        let prepare = |member: &Arc<Member>| {
            let node = member.node();
            node.prepare(Arc::clone(next)).map_err(|error| ChangeError::Refused {
                node: usize::from(node.id()),
                reason: error.to_string(),
            })
        };
        self.present().map(prepare).collect()
    }

    /// Has the members go by views.
    pub(crate) fn publish(&self, views: Vec<View>) {
        for (member, view) in self.present().zip(views) {
            member.node().publish(view);
            member.wake_all();
        }
    }

    /// Has the members go by a configuration with the tables that there are.
    fn publish_configuration(&self, configuration: &Arc<Configuration>) {
        let views = self.prepare_views(configuration);
        self.publish(views.expect("the tables of what is decided are there"));
    }

    /// Waits until something is so, or the cluster has halted.
    fn wait_until(&self, is_so: &dyn Fn() -> bool) {
        // Acquire: pairs with the Release where it is set.
        while !is_so() && !self.state.halted.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Whether something is so of every member that threads drive; each is waited for for a short time. A simulator does not wait: it
    /// comes to another view with its next steps.
    fn is_so_of_all(&self, is_so: impl Fn(&Node, u64, Duration) -> bool) -> bool {
        self.present().all(|member| {
            let (node, has_threads) = (member.node(), member.has_threads());
            let at_most = if has_threads { WORKERS_LOOK } else { Duration::ZERO };
            is_so(node, node.view().configuration().version, at_most)
        })
    }
}

impl Replica for LocalMembers {
    type Prepared = Vec<View>;

    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Vec<View>, String> {
        self.prepare_views(configuration).map_err(|error| match error {
            ChangeError::Refused { reason, .. } => reason,
            error => error.to_string(),
        })
    }

    fn check_room(&self, configuration: &Configuration) -> Result<(), String> {
        let mut members = self.present();
        members
            .try_for_each(|member| member.node().check_shares(configuration))
            .map_err(|error| error.to_string())
    }

    fn abandon(&mut self) {
        self.present().for_each(|member| member.node().abandon());
    }

    fn begin_hand_over(&mut self, configuration: &Configuration) {
        self.refuse_moved(configuration);
    }

    fn has_no_lock_holders(&self) -> bool {
        self.is_so_of_all(|node, _, at_most| node.wait_for_lock_holders(at_most))
    }

    fn undo_hand_over(&mut self) {
        self.serve_again();
    }

    fn count_hand_over(&mut self, unserved: Duration) {
        self.present().for_each(|member| member.node().changes().count_hand_over(unserved));
    }

    fn adopt(&mut self, prepared: Vec<View>) {
        self.publish(prepared);
    }

    fn has_adopted(&self) -> bool {
        // The workers of a simulation run when its members need leases.
        let is_driven =
            |member: &Arc<Member>| member.has_threads() || member.node().lease_terms().is_some();
        let is_driven = self.members.iter().any(is_driven);
        !is_driven || self.is_so_of_all(Node::wait_for_adoption)
    }

    fn stop(&mut self, configuration: &Arc<Configuration>) {
        self.publish_configuration(configuration);
    }

    fn records(&self) -> Option<Records> {
        let have_stopped = self.is_so_of_all(Node::wait_for_stop);
        have_stopped.then(|| self.present().flat_map(|member| member.node().records()).collect())
    }

    fn flush(&mut self, records: &Records) -> Result<(), String> {
        let mut members = self.present();
        members
            .try_for_each(|member| member.node().flush(records))
            .map_err(|error| error.to_string())
    }

    fn begin_epoch(&mut self, configuration: &Arc<Configuration>) {
        self.publish_configuration(configuration);
    }
}
