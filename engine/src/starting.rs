//! A node that the first change of the configuration starts, in a process of its own or in a simulator.
//!
//! ```text
//! prepare the first change   the node gets memory, ports and threads, or says why it cannot start; it has no tables yet
//!                            then its view of the change, as at any later one
//! adopt it                   its process has joined
//! later changes              the node prepares and adopts views
//! ```
//! *Invariant*: a node that could not start has no part in later changes. One that has started keeps its threads if the first change is not
//! made and another one is prepared in its place.
//!
//! *Not here*: the rounds of a change, in `change`; what a process does to start its node, in `join`.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::cluster::{Cluster, ClusterError};
use crate::configuration::Configuration;
use crate::local_members::LocalMembers;
use crate::replica::{Records, Replica};
use crate::view::View;

/// A node in the process that starts it: the first change of the configuration starts it, and it takes part in all later ones.
pub(crate) struct Starting {
    start: Option<Start>,
    /// The cluster, until this process has joined.
    cluster: Option<Box<Cluster>>,
    /// Gets the cluster when all members have started, or why this one could not.
    started: Sender<Result<Cluster, ClusterError>>,
    local: Option<LocalMembers>,
}

type Start = Box<dyn FnOnce(&Configuration) -> Result<Cluster, ClusterError> + Send>;

impl Starting {
    /// A node that `start` starts.
    pub(crate) fn new(
        started: Sender<Result<Cluster, ClusterError>>,
        start: impl FnOnce(&Configuration) -> Result<Cluster, ClusterError> + Send + 'static,
    ) -> Self {
        Self { start: Some(Box::new(start)), cluster: None, started, local: None }
    }
}

impl Replica for Starting {
    type Prepared = Vec<View>;

    fn prepare(&mut self, configuration: &Arc<Configuration>) -> Result<Vec<View>, String> {
        if let Some(start) = self.start.take() {
            match start(&configuration.before_tables()) {
                Ok(cluster) => {
                    self.local = Some(cluster.local_members());
                    self.cluster = Some(Box::new(cluster));
                }
                Err(error) => {
                    let reason = error.to_string();
                    // The receiver is gone if this process joins no longer.
                    let _ = self.started.send(Err(error));
                    return Err(reason);
                }
            }
        }
        let local = self.local.as_mut().ok_or("it has not started")?;
        local.prepare(configuration)
    }

    fn check_room(&self, configuration: &Configuration) -> Result<(), String> {
        self.local.as_ref().map_or(Ok(()), |local| local.check_room(configuration))
    }

    fn abandon(&mut self) {
        self.local.iter_mut().for_each(Replica::abandon);
    }

    fn begin_hand_over(&mut self, configuration: &Configuration) {
        self.local.iter_mut().for_each(|local| local.begin_hand_over(configuration));
    }

    fn has_no_lock_holders(&self) -> bool {
        self.local.as_ref().is_none_or(Replica::has_no_lock_holders)
    }

    fn undo_hand_over(&mut self) {
        self.local.iter_mut().for_each(Replica::undo_hand_over);
    }

    fn count_hand_over(&mut self, unserved: Duration) {
        self.local.iter_mut().for_each(|local| local.count_hand_over(unserved));
    }

    fn adopt(&mut self, prepared: Vec<View>) {
        if let Some(local) = &self.local {
            local.publish(prepared);
        }
        if let Some(cluster) = self.cluster.take() {
            let _ = self.started.send(Ok(*cluster));
        }
    }

    fn has_adopted(&self) -> bool {
        self.local.as_ref().is_none_or(Replica::has_adopted)
    }

    fn stop(&mut self, configuration: &Arc<Configuration>) {
        self.local.iter_mut().for_each(|local| local.stop(configuration));
    }

    fn records(&self) -> Option<Records> {
        self.local.as_ref().map_or_else(|| Some(Records::new()), Replica::records)
    }

    fn flush(&mut self, records: &Records) -> Result<(), String> {
        self.local.as_mut().map_or(Ok(()), |local| local.flush(records))
    }

    fn begin_epoch(&mut self, configuration: &Arc<Configuration>) {
        self.local.iter_mut().for_each(|local| local.begin_epoch(configuration));
    }
}
