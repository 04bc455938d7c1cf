//! The jobs that a worker gives itself: the copies that fill its node, and the growth of tables.
//!
//! *Invariants*: where a worker has two coroutines, copies leave one to clients. Workers share partitions by number, so that no
//! partition is copied twice.
//!
//! *Not here*: the jobs themselves, in `learning` and `growing`.

use std::sync::Arc;

use gannet_rpc::{PacketReceiver, PacketSender};
use gannet_rules::rule;

use crate::configuration::Configuration;
use crate::coordinator::Coordinator;
use crate::copying::Copier;
use crate::growing;
use crate::learning::JOBS_MAX;
use crate::worker::Worker;

impl<S: PacketSender, R: PacketReceiver> Worker<S, R> {
    /// Begins what another configuration than before leaves to do.
    pub(super) fn begin_own_jobs(&mut self, before: &Configuration) {
        self.begin_copies();
        // Of another placement alone: to look for what is to be given back, all tables are looked at.
        if !self.view.configuration().is_placed_as(before) || self.node.has_dropped() {
            self.giving_back.begin();
        }
    }

    /// Begins to copy the partitions that the node is filled with. Workers share them by their numbers. A worker copies few at once: clients
    /// have all other coroutines, and the pace is the worker's.
    pub(super) fn begin_copies(&mut self) {
        let configuration = self.view.configuration();
        let workers = self.node.worker_count();
        let own = self.view.configuration().held_by(self.node.id());
        // Clients have a coroutine, too, if there are two.
        let jobs_max = JOBS_MAX.min(u64::from(self.coroutines()).saturating_sub(1)).max(1);
        for partition in own.filter(|it| usize::from(*it) % workers == usize::from(self.number)) {
            for learner in configuration.learners(partition) {
                let lesson = (partition, learner.since);
                let is_due = learner.fills || !rule!(GRACE_PERIOD);
                let is_own = learner.node == self.node.id() && is_due;
                let worker = self.number;
                if is_own && self.node.learning().begin(worker, lesson, jobs_max) {
                    let node = Arc::clone(&self.node);
                    self.own_jobs.push_back(Box::new(move |coordinator: &mut Coordinator<'_>| {
                        Copier::new(&node, worker).run(coordinator);
                        coordinator.finish_job();
                    }));
                }
            }
        }
    }

    /// Begins to split buckets of the node's crowded tables, unless the worker does so already.
    #[cold]
    pub(super) fn grow_tables(&mut self, now_ns: u64) {
        let Some(coroutine) = self.idle.pop_grower() else { return };
        let node = Arc::clone(&self.node);
        node.count_growing(true);
        let job = Box::new(move |coordinator: &mut Coordinator<'_>| {
            growing::grow_tables(coordinator, &node);
            coordinator.finish_job();
            node.count_growing(false);
        });
        self.start_job(coroutine, job, now_ns);
    }
}
