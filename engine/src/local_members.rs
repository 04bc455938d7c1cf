//! The members of this process, as those that make a change of the configuration.
//!
//! *Invariant*: when a change is adopted, all coroutines of these members go by it, or the cluster has halted.
//!
//! *Not here*: the rounds of a change, in `change`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gannet_storage::StorageError;

use crate::change::Replica;
use crate::cluster_state::ClusterState;
use crate::configuration::{Change, ChangeError, Configuration};
use crate::member::Member;
use crate::node::Node;
use crate::view::View;

/// Between two looks whether the cluster has halted, while workers come to another view.
const ADOPTION_LOOK: Duration = Duration::from_millis(100);

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
        let present = self.members[0].node().view();
        let next = Arc::new(present.configuration().after(change)?);
        let refused = |node: &Node, error: StorageError| ChangeError::Refused {
            node: usize::from(node.id()),
            reason: error.to_string(),
        };
        let prepare = |member: &Arc<Member>| {
            let node = member.node();
            node.prepare(Arc::clone(&next)).map_err(|error| refused(node, error))
        };
        let prepared = self.members.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        self.go_by(prepared);
        Ok(())
    }

    /// Has the members go by views; returns when all their coroutines do.
    fn go_by(&self, views: Vec<View>) {
        let versions = views.iter().map(|view| view.configuration().version);
        let Some(version) = versions.max() else { return };
        for (member, view) in self.members.iter().zip(views) {
            member.node().publish(view);
        }
        self.members.iter().for_each(|member| member.wake_all());
        self.members.iter().for_each(|member| self.wait_for(member, version));
    }

    /// Waits until all coroutines of a member go by a version, or the cluster has halted. A simulator comes to it with its next steps.
    fn wait_for(&self, member: &Member, version: u64) {
        while member.has_threads() && !member.node().wait_for_adoption(version, ADOPTION_LOOK) {
            // Acquire: pairs with the Release where it is set.
            if self.state.halted.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

impl Replica for LocalMembers {
    type Prepared = Vec<View>;

    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Vec<View>, String> {
        let prepare = |member: &Arc<Member>| member.node().prepare(Arc::clone(configuration));
        let prepared = self.members.iter().map(prepare).collect::<Result<_, _>>();
        prepared.map_err(|error| error.to_string())
    }

    fn adopt(&mut self, prepared: Vec<View>) {
        self.go_by(prepared);
    }
}
