//! The heal phase: when the clients have ended, each node that lives writes to each partition that has a copy.
//!
//! ```text
//! create: a row in each partition ··· the run ··· a job on each living node: one write to each row ─▶ Check
//! ```
//! *Invariant*: a write that commits proves that primary, backups and log replicas of the writer all answer in the present epoch.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use gannet_engine::simulation::Simulation;
use gannet_engine::{
    Abort, Cluster, Completion, Coordinator, Failure, LockMode, Outcome, TableId, WorkerId,
};

use crate::check::Check;
use crate::workload::BenchmarkError;

/// All writes must have committed this long after the last fault has ended, in nanoseconds of virtual time.
const BOUND_NS: u64 = 10_000_000_000;
const VALUE_BYTES: usize = 8;

/// A check that the cluster serves all partitions when the clients have ended: each living node writes to each that has a copy.
pub struct HealPhase {
    table: TableId,
    /// By partition: a key in it.
    keys: Vec<u64>,
}

impl HealPhase {
    /// Creates a table with a row in each partition.
    ///
    /// # Errors
    /// [`BenchmarkError`] if there is no room.
    pub fn create(cluster: &Cluster) -> Result<Self, BenchmarkError> {
        let partitioning = cluster.configuration().partitioning;
        let is_in =
            |key: &u64, partition: usize| usize::from(partitioning.partition(*key)) == partition;
        let key_in = |partition| (0..).find(|key| is_in(key, partition));
        let keys: Vec<_> = (0..partitioning.count()).filter_map(key_in).collect();
        let table = cluster.open_table("healed", VALUE_BYTES, keys.len() as u64)?;
        let mut loader = cluster.loader();
        keys.iter().try_for_each(|key| loader.add(table, *key, &[0; VALUE_BYTES]))?;
        loader.finish()?;
        Ok(Self { table, keys })
    }

    /// Has all living nodes write; `begun` transactions have begun before.
    ///
    /// # Errors
    /// [`BenchmarkError`] if a job is not accepted.
    pub fn run(self, simulation: &mut Simulation, begun: u64) -> Result<Check, BenchmarkError> {
        let until_ns = simulation.now_ns().max(simulation.last_end_ns()) + BOUND_NS;
        let cluster = simulation.shared_cluster();
        let living = (0..cluster.nodes().len()).filter(|node| !simulation.dead().contains(node));
        let living: Vec<_> = living.collect();
        let mut jobs = Vec::new();
        for node in living {
            let (table, keys) = (self.table, self.keys.clone());
            let job = move |coordinator: &mut Coordinator<'_>| write_all(coordinator, table, &keys);
            jobs.push((node, cluster.spawn(WorkerId { node, worker: 0 }, job)?));
        }
        let all_have_ended = simulation.run_until(until_ns, &|| begun);
        let dead = simulation.dead();
        // A process that has come back meanwhile knows nothing of the job.
        let is_same = |node: usize| match (cluster.node(node), simulation.cluster().node(node)) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        let jobs = jobs.into_iter();
        let failures = jobs.filter(|(node, _)| !dead.contains(node) && is_same(*node));
        let failures = failures.filter_map(|(node, job)| {
            let problem = problem(job)?;
            Some(format!("node {node}: {problem}"))
        });
        let mut failures: Vec<_> = failures.collect();
        if !all_have_ended {
            failures.push("jobs or members still wait".to_owned());
        }
        // Those that have halted have answered; no partition is served any more.
        let passed = failures.is_empty() || simulation.has_halted();
        let name = "each living node writes to each partition with a copy";
        Ok(Check::new(name, passed, failures.join("; ")))
    }
}

/// Adds one to each row whose partition is not lost. Returns the reason why one could not be changed.
fn write_all(coordinator: &mut Coordinator<'_>, table: TableId, keys: &[u64]) -> Option<String> {
    for key in keys {
        loop {
            let written = coordinator.run(|tx| {
                let row = tx.add_to_write_set(table, *key, LockMode::Update);
                tx.execute()?;
                let value = tx.value_mut(row)?;
                value[0] = value[0].wrapping_add(1);
                Ok::<_, Abort>(())
            });
            match written {
                Outcome::Committed(()) => break,
                Outcome::Aborted(Abort::Failure(Failure::Lost { .. }))
                | Outcome::Failed(Abort::Failure(Failure::Lost { .. })) => break,
                Outcome::Aborted(abort) | Outcome::Failed(abort) if abort.is_conflict() => {}
                other => return Some(format!("key {key}: {other:?}")),
            }
        }
    }
    None
}

/// Why a job has not written everything.
fn problem(job: Completion<Option<String>>) -> Option<String> {
    match pin!(job).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(problem)) => problem,
        Poll::Ready(Err(lost)) => Some(lost.to_string()),
        Poll::Pending => Some("its writes have not ended".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use gannet_engine::ClusterOptions;

    use super::*;

    #[test]
    fn a_write_that_fails_is_told() {
        let options = ClusterOptions { partitions: 4, ..ClusterOptions::default() };
        let mut simulation = Simulation::open(options, 1, Vec::new(), None).unwrap();
        let mut phase = HealPhase::create(simulation.cluster()).unwrap();
        let table = phase.table;
        // There is no row with this key.
        let bad = HealPhase { table, keys: vec![phase.keys[0], u64::MAX] };
        phase.keys.truncate(3);
        let good = phase.run(&mut simulation, 0).unwrap();
        assert!(good.passed, "{good:?}");
        let bad = bad.run(&mut simulation, 0).unwrap();
        assert!(!bad.passed && bad.detail.starts_with("node 0: key 18446744073709551615"));
    }
}
